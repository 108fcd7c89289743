"""The messages between a worker and the coordinator, and which are legal in which phase."""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.errors import ProtocolViolation
from tailrace.protocol.deployment import (
    AFTER,
    Deploy,
    Deployed,
    EndSources,
    Failed,
    FailureKind,
    Heartbeat,
    Hello,
    Inspect,
    Inspection,
    KeyTime,
    Leave,
    NotPublished,
    OperatorEvent,
    Peer,
    PeerHello,
    Phase,
    Progress,
    Publish,
    Published,
    Settled,
    Start,
    SubtaskReport,
    SubtasksFinished,
    ThreadStack,
    Welcome,
    next_phase,
)
from tailrace.protocol.hot_standby import Feed, Feeds, Follow, NotFollowed
from tailrace.protocol.message import Message
from tailrace.protocol.message_codec import (
    AnyMessage,
    FromWorker,
    Greeting,
    HeartMessage,
    Speech,
    ToWorker,
    decode_from_heart,
    decode_from_worker,
    decode_greeting,
    decode_to_heart,
    decode_to_worker,
    encode,
)
from tailrace.protocol.recovery import Reset, WasReset
from tailrace.protocol.replay import (
    Gained,
    KnownHistory,
    NotCompared,
    Replaced,
    ReplayDone,
    Restored,
    Resume,
    Severed,
    WorkerLost,
)
from tailrace.protocol.snapshot import Abort, Ack, Complete, Declined, OperatorAck, SubtaskAck, Transaction, Trigger
from tailrace.protocol.standby import Hold, StandBy, StandsBy, StateHeld, TakeSlot
from tailrace.protocol.succession import GoOn, Keep, LogKept, Received, Rejoin, Secured
from tailrace.protocol.termination import (
    Advance,
    CallFinish,
    EndLoop,
    EventTimeMoved,
    Quiet,
    Release,
    RoundReport,
    ScopeFacts,
    StartRound,
    StartWave,
    StopRounds,
    WaveFacts,
    WaveReport,
)
from tailrace.state.format import Placed, TableInfo

SAID: list[Any] = [
    Hello(1, "host", 4711, 99, "job", 1, 2),
    Heartbeat(1, 99),
    Inspect(4, 2.0),
    Inspection(4, 1, 99, [ThreadStack("worker", "  File", "scores")], [KeyTime("scores", "'a'", 3)], {"scores": 3}),
    Deployed(),
    Progress([SubtaskReport(0, 1, records_in=5, watermark=-3, metrics={"a.b": 1.5})], 77, {"bad token": 2}),
    SubtasksFinished([("files", b"\x00prepared")], True, ["files"]),
    Published(4, True, 2),
    NotPublished(4, 1, "the disk is full", 2, "files", "a line"),
    OperatorEvent(0, 1, 2, b"asks for a split"),
    Failed(FailureKind.USER, "it broke", operator="map", subtask=1, record="[1]"),
    Welcome(7),
    Deploy(b"plan", [Peer(0, "host", 1, 2)], 3, 1, b"manifest", "s3a://bucket/other", True),
    Start(),
    Publish([("files", [b"a", Placed("1/chk-5/w0-1.state", 8, 9, 10)])], 4, ["run", "run-before"], "s3://b/job", 2, 3),
    Settled(4, True),
    EndSources(),
    Leave("the job has finished"),
    PeerHello(1, 2, 3, "job"),
    Trigger(CutRequest(5, CutKind.FINAL)),
    Ack(
        5,
        "1/chk-5/w0-1.state",
        1234,
        ["1/chk-4/w0-1.state"],
        [SubtaskAck(0, 1, 10, 20, 30, 1000, [OperatorAck("uid", "name", 2, True, True, [TableInfo("counts")])])],
        [
            Transaction("files", b"\x00prepared", 4, 1),
            Transaction("rows", Placed("1/chk-5/w0-1.state", 8, 70_000, 2**63)),
        ],
        77,
    ),
    Declined(5, "the disk is full"),
    Abort(5),
    Complete(5),
    Reset(2),
    WasReset(2),
    Quiet(0, [1, 0], 3, 2),
    EventTimeMoved(1, -5, 7),
    Gained(3, [b"a step", b"a cut"], [(2, 4)]),
    NotCompared("name", "why"),
    Severed(1, "reset", 3),
    StandBy(b"plan"),
    StandsBy(),
    Hold(3, b"manifest", [0, 2]),
    StateHeld(3, [0]),
    TakeSlot(2),
    Feed(Peer(3, "h", 1, 1), 5),
    Feeds(3, 5, possible=False, reason="why"),
    Follow(1, Resume(Deploy(b"plan", [Peer(1, "h", 1, 1)], 2, 4, b"manifest"), 5, Gained(3, [b"a cut"], [(5, 3)]), [])),
    NotFollowed(1, "why"),
    WorkerLost(1, 5),
    KnownHistory(1, Gained(3, [b"a step"]), [(0, 1, 2, 17, 12345)], 1, [(0, 1, 2, 2**40, 2**32 - 1)]),
    Resume(
        Deploy(b"plan", [Peer(0, "h", 1, 1)], 2, 1, b"manifest"), 5, Gained(3, []), [(0, 1, 2, 17, 12345)], [(4, 2)]
    ),
    Replaced(Peer(1, "h", 2, 3), 5),
    Restored(),
    ReplayDone(12),
    WaveReport(1, 2, WaveFacts(3, True, True, False, 5, 4, 1, 2, True, [ScopeFacts((0, 1), 7, 8, 6, True)])),
    RoundReport(0, 1, 2, False),
    StartWave(0, 3, 9),
    Release(0, 1, [((0,), 2**63 - 1)]),
    Advance(0),
    CallFinish(0, 1),
    EndLoop(0),
    StartRound(0, 4),
    StopRounds(0),
    Keep(1, 70, [b"an event", b"another"], b"base"),
    LogKept(72),
    Secured(3),
    Received(4),
    Rejoin(1, 2, 4, 5, 3, Keep(1, 70, [], b"base"), 2, 1, 99),
    GoOn(3),
]


DECODERS: list[tuple[Any, Callable[[bytes], Any]]] = [
    (Greeting, decode_greeting),
    (FromWorker | Hello, decode_from_worker),
    (ToWorker, decode_to_worker),
    (HeartMessage, decode_from_heart),
    (Inspect, decode_to_heart),
]


@pytest.mark.parametrize("message", SAID, ids=lambda m: type(m).__name__)
def test_a_message_is_heard_as_it_was_said(message: Any) -> None:
    assert [decode(encode(message)) for kinds, decode in DECODERS if isinstance(message, kinds)] != []
    assert all(decode(encode(message)) == message for kinds, decode in DECODERS if isinstance(message, kinds))


@pytest.mark.parametrize("message", SAID, ids=lambda m: type(m).__name__)
def test_a_message_that_goes_the_other_way_is_refused(message: Any) -> None:
    for kinds, decode in DECODERS:
        if not isinstance(message, kinds):
            with pytest.raises(
                ProtocolViolation, match=f"not a control message that may come here.*{type(message).__name__}"
            ):
                decode(encode(message))


def test_every_message_there_is_was_tried() -> None:
    assert {type(message) for message in SAID} == set(Message.__subclasses__())


@pytest.mark.parametrize("message", SAID, ids=lambda m: type(m).__name__)
def test_a_message_cut_short_is_refused(message: Any) -> None:
    data = encode(message)
    for cut, (_, decode) in itertools.product(range(len(data)), DECODERS):
        with pytest.raises(ProtocolViolation, match="not a control message"):
            decode(data[:cut])


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    for _, decode in DECODERS:
        with pytest.raises(ProtocolViolation, match="not a control message"):
            decode(data)


def test_a_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="not a control message"):
        decode_to_worker(encode(Leave("abc")).replace(b"abc", b"\xff\xfe\xfd"))


def test_lists_nested_without_end_are_refused() -> None:
    nested = b"\x82\xa4type\xa5Start\xa1x" + b"\x91" * 200_000 + b"\x90"
    with pytest.raises(ProtocolViolation, match="not a control message"):
        decode_to_worker(nested)


def test_a_field_of_a_later_version_is_passed_over() -> None:
    message = msgspec.msgpack.decode(encode(Welcome(7)))
    assert decode_to_worker(msgspec.msgpack.encode({**message, "since_version_9": [1, {"a": None}]})) == Welcome(7)


def test_every_kind_of_failure_has_its_word() -> None:
    message = {kind.value for kind in FailureKind if kind.of_worker}
    assert message == {"user", "program", "peer", "import", "state", "store", "sink", "internal"}
    found = {kind.value for kind in FailureKind if not kind.of_worker}
    assert found == {"worker", "moved", "resized", "checkpoint", "slots", "fenced", "silent"}


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
    assert next_phase(phase, Publish([])) is Phase.FINISHED  # at the end, or what a checkpoint has made final
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


@pytest.mark.parametrize("phase", [Phase.DEPLOYED, Phase.RUNNING, Phase.FINISHED])
@pytest.mark.parametrize("message", [Publish([]), OperatorEvent(0, 0, 0, b"")], ids=lambda m: type(m).__name__)
def test_a_worker_that_has_its_part_publishes_and_hears_its_fellows(phase: Phase, message: Any) -> None:
    assert next_phase(phase, message) is phase


def test_a_plain_message_is_short() -> None:
    assert encode(Start()) == b"\x81\xa4type\xa5Start"
    assert len(encode(Deploy(b"", []))) < 40, "fields at their defaults do not travel"


def test_what_is_said_to_many_is_made_into_bytes_once() -> None:
    speech, plan = Speech(), Deploy(b"the plan", [Peer(0, "h", 1, 1)])
    first = speech.encode(plan)
    assert first == encode(plan) and speech.encode(plan) is first
    assert speech.encode(Start()) == encode(Start())
    assert speech.encode(plan) == first
    assert speech.encode(Deploy(b"another", [])) == encode(Deploy(b"another", [])), "that it is alike is not enough"


def test_every_conversation_is_in_the_one_union() -> None:
    assert set(AnyMessage.__args__) == set(Message.__subclasses__())
