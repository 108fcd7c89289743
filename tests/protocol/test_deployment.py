"""The words between a worker and the coordinator, and which may be said when."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolViolation
from tailrace.protocol import deployment
from tailrace.protocol.deployment import (
    AFTER,
    Deploy,
    Deployed,
    Failed,
    FailureKind,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Peer,
    PeerHello,
    Phase,
    Progress,
    Publish,
    Published,
    Start,
    SubtaskReport,
    SubtasksFinished,
    Welcome,
    decode,
    encode,
    next_phase,
)

SAID: list[Any] = [
    Hello(1, "host", 4711, 99, "job", 1, 2),
    Heartbeat(1, 99),
    Deployed(),
    Progress([SubtaskReport(0, 1, records_in=5, watermark=-3, metrics={"a.b": 1.5})], 77, {"bad token": 2}),
    SubtasksFinished([(3, b"\x00prepared")]),
    Published(),
    Failed("user", "it broke", operator="map", subtask=1, record="[1]"),
    Welcome(7),
    Deploy(b"plan", [Peer(0, "host", 1, 2)]),
    Start(),
    Publish([(3, [b"a", b"b"])]),
    Leave("the job has finished"),
    PeerHello(1, 2, 3, "job"),
]


@pytest.mark.parametrize("message", SAID, ids=lambda m: type(m).__name__)
def test_a_message_is_heard_as_it_was_said(message: Any) -> None:
    assert decode(encode(message)) == message


def test_every_message_there_is_was_tried() -> None:
    assert {type(message) for message in SAID} == set(Message.__subclasses__())


@pytest.mark.parametrize("message", SAID, ids=lambda m: type(m).__name__)
def test_a_message_cut_short_is_refused(message: Any) -> None:
    data = encode(message)
    for cut in range(len(data)):
        with pytest.raises(ProtocolViolation, match="no control message"):
            decode(data[:cut])


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="no control message"):
        decode(data)


def test_a_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="no control message"):
        decode(encode(Leave("abc")).replace(b"abc", b"\xff\xfe\xfd"))


def test_lists_nested_without_end_are_refused() -> None:
    nested = b"\x82\xa4type\xa5Start\xa1x" + b"\x91" * 200_000 + b"\x90"
    with pytest.raises(ProtocolViolation, match="no control message"):
        decode(nested)


def test_a_field_of_a_later_version_is_passed_over() -> None:
    said = msgspec.msgpack.decode(encode(Welcome(7)))
    assert decode(msgspec.msgpack.encode({**said, "since_version_9": [1, {"a": None}]})) == Welcome(7)


def test_every_kind_of_failure_has_its_word() -> None:
    assert {kind.value for kind in FailureKind} == {"user", "peer", "import", "internal"}


# The order of a worker's life.


def test_a_worker_joins_deploys_runs_publishes_and_leaves() -> None:
    phase = Phase.JOINING
    for message, then in [
        (Welcome(1), Phase.JOINED),
        (Deploy(b"", []), Phase.DEPLOYED),
        (Start(), Phase.RUNNING),
    ]:
        phase = next_phase(phase, message)
        assert phase is then
    phase = Phase.FINISHED  # by itself, when its subtasks have ended
    assert next_phase(phase, Publish([])) is Phase.FINISHED
    assert next_phase(phase, Leave("")) is Phase.LEFT


@pytest.mark.parametrize("phase", Phase)
def test_leaving_is_legal_at_any_time(phase: Phase) -> None:
    assert next_phase(phase, Leave("the job was cancelled")) is Phase.LEFT


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("message", [m for m in SAID if not isinstance(m, Leave)], ids=lambda m: type(m).__name__)
def test_what_is_not_in_the_table_is_illegal(phase: Phase, message: Any) -> None:
    if (phase, type(message)) in AFTER:
        assert next_phase(phase, message) is AFTER[phase, type(message)]
        return
    with pytest.raises(ProtocolViolation, match=f"{type(message).__name__} came while the worker was {phase.value}"):
        next_phase(phase, message)


def test_the_words_of_the_module_are_all_of_one_union() -> None:
    assert set(deployment.AnyMessage.__args__) == set(Message.__subclasses__())
