"""A slice holds what follows from histories that it does not know yet, until they come from their owners."""

from __future__ import annotations

import random

import pytest

import tailrace as tr
from tailrace.elements.batches import Rows
from tailrace.elements.frame_codec import ChannelId, decode, encode_batch, encode_history
from tailrace.protocol.replay import Gained, WorkerLost, bits_of, decode_gained, encode_gained
from tailrace.task.channels.services import Services
from tailrace.task.channels.spilling import MemorySpill
from tailrace.task.contract.actions import ToPeer
from tailrace.task.failover.history_sending import with_history
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.failover.survivor import known_history, peer_replaced
from tailrace.task.journal.history import Flushed
from tailrace.task.journal.replayable_gate import gate_of
from tailrace.task.journal.sent_log import Keeping

OWNER, SENDER, READER = 0, 1, 2


def opened(slot: int, depth: int = 2) -> ReplayableSlice:
    """The slice of one of four workers, all of which exchange records."""
    env = tr.Environment(parallelism=4)
    env.from_source(tr.sources.Sequence(0, 100)).key_by(abs).count().sink_to(tr.sinks.Callback(lambda record: None))
    services = Services(random.Random, depth=depth)
    made = ReplayableSlice(env._plan(env._pending()), slot, 0, services, 1 << 20, Keeping(MemorySpill, 0))
    made.open()
    return made


def channel(reader: ReplayableSlice, source: int) -> ChannelId:
    (found,) = [ident for task in reader.tasks for ident in task.gate.channels if ident.source == source]
    return found


def came(reader: ReplayableSlice, source: int) -> int:
    """The number of elements that have come on the channel from a worker, and were used."""
    ident = channel(reader, source)
    (task,) = [task for task in reader.tasks if ident in task.gate.channels]
    return gate_of(task).came_since(ident, 0).count


def history(reader: ReplayableSlice, source: int, gained: Gained) -> None:
    """A worker sends a history."""
    data = encode_history(source, reader.slot, reader.incarnation, 0, encode_gained(gained))
    reader.receive(decode(data), source)


def waiting(*needs: tuple[int, int]) -> ReplayableSlice:
    """A reader that has a frame which needs these histories, and one behind it."""
    reader = opened(READER)
    history(reader, SENDER, Gained(0, [b"x"], needs=[*needs]))
    for seq in (0, 1):
        data = encode_batch(channel(reader, SENDER), reader.incarnation, 0, seq, Rows([seq]))
        reader.receive(decode(data), SENDER)
    return reader


def test_a_frame_is_used_once_the_histories_are_there_that_it_needs() -> None:
    reader = waiting((OWNER, 2))
    assert came(reader, SENDER) == 0 and SENDER not in reader.copies
    history(reader, OWNER, Gained(0, [b"a"]))
    assert came(reader, SENDER) == 0, "one entry is missing"
    history(reader, OWNER, Gained(1, [b"b"]))
    assert came(reader, SENDER) == 2 and reader.copies[SENDER].end == 1 and not reader.held


def test_a_frame_that_is_used_lets_others_be_used() -> None:
    reader = waiting((OWNER, 1))
    history(reader, OWNER, Gained(0, [b"a"], needs=[(3, 1)]))
    assert came(reader, SENDER) == 0 and sorted(reader.held) == [OWNER, SENDER]
    history(reader, 3, Gained(0, [b"c"]))
    assert came(reader, SENDER) == 2 and not reader.held


def test_what_a_lost_sender_had_sent_and_was_not_used_is_dropped() -> None:
    reader = waiting((OWNER, 2))
    known = known_history(reader, WorkerLost(SENDER, 0))
    assert known.history.entries == [] and all(count == 0 for *_, count, _ in known.came)
    history(reader, OWNER, Gained(0, [b"a", b"b"]))
    assert came(reader, SENDER) == 0 and not reader.held


def test_nobody_waits_for_a_history_that_the_coordinator_has() -> None:
    reader = waiting((OWNER, 2))
    known_history(reader, WorkerLost(OWNER, 0))
    reader.settle(OWNER, 1)
    assert came(reader, SENDER) == 0
    reader.settle(OWNER, 2)
    assert came(reader, SENDER) == 2


def sent(slice: ReplayableSlice, *slots: int) -> dict[int, list[Gained]]:
    """The histories that go in front of frames to these workers, by the worker to which they go."""
    found: dict[int, list[Gained]] = {}
    for action in with_history(slice, [ToPeer(slot, b"a frame") for slot in slots]):
        if isinstance(action, ToPeer) and action.data != b"a frame":
            found.setdefault(action.slot, []).append(decode_gained(decode(action.data).history()))
    return found


@pytest.mark.parametrize("depth", [1, 2])
def test_an_owner_names_all_to_which_it_sends_its_history_and_its_receivers_pass_nothing_on_to_these(
    depth: int,
) -> None:
    owner, sender = opened(OWNER, depth), opened(SENDER, depth)
    for slice in (owner, sender):
        slice.place({OWNER: "x", SENDER: "x", READER: "y", 3: "z"})
    owner.history.add(Flushed())
    owner.pause = 10
    reports = sent(owner, SENDER, READER)
    assert [one.also for one in reports[SENDER]] == [bits_of([SENDER, READER])]
    history(sender, OWNER, reports[SENDER][0])
    found = sent(sender, READER, 3)
    assert [(one.origin, one.needs) for one in found[READER]] == [(-1, [(OWNER, 1)])]
    assert [(one.origin, len(one.entries)) for one in found[3]] == [(OWNER, 1), (-1, 0)], "nobody else tells this one"
    assert sent(sender, READER, 3) == {}, "both know it by now"
    owner.history.add(Flushed())
    owner.history.add(Flushed())
    history(sender, OWNER, sent(owner, SENDER)[SENDER][0])
    assert [(one.origin, one.first, one.needs) for one in sent(sender, READER)[READER]] == [(OWNER, 1, []), (-1, 0, [])]
    owner.history.add(Flushed())
    history(sender, OWNER, sent(owner, SENDER, READER)[SENDER][0])
    owner.history.add(Flushed())
    history(sender, OWNER, sent(owner, SENDER)[SENDER][0])
    found = sent(sender, READER)
    assert [(one.origin, one.first, one.needs) for one in found[READER]] == [(OWNER, 4, []), (-1, 0, [(OWNER, 4)])]
    again = [
        decode_gained(decode(one.data).history()) for one in peer_replaced(sender, READER) if isinstance(one, ToPeer)
    ]
    assert [(one.origin, len(one.entries), one.needs) for one in again] == [(OWNER, 5, []), (-1, 0, [])]


def test_a_history_goes_to_all_peers_now_and_then() -> None:
    owner = opened(OWNER)
    for number in range(2 * owner.pause):
        owner.history.add(Flushed())
        reports = sent(owner, SENDER)
        whole = number % owner.pause == owner.pause - 1
        assert sorted(reports) == ([SENDER, READER, 3] if whole else [SENDER])
        assert reports[SENDER][0].also == bits_of([SENDER, READER, 3] if whole else [SENDER])
