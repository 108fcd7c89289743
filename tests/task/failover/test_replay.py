"""A slice that does again what a lost one has done reads what that one had read, whatever is granted by then."""

from __future__ import annotations

import random

import tailrace as tr
from tailrace.elements.frame_codec import HISTORY, decode
from tailrace.graph.plan import Plan
from tailrace.protocol.credit import Producer
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.channels.outbox import Outbox
from tailrace.task.channels.services import Services
from tailrace.task.channels.spilling import MemorySpill
from tailrace.task.contract.tuning import Tuning
from tailrace.task.failover.replay import Again
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.failover.survivor import peer_replaced
from tailrace.task.journal.history import decode as decode_entry
from tailrace.task.journal.sent_log import Keeping

WINDOW, SENDER, READER = 2_000, 0, 1


def plan() -> Plan:
    """A source in worker 0, all of whose records go to worker 1."""
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, 200), parallelism=1)
    numbers.key_by(lambda n: "b").count().sink_to(tr.sinks.Callback(lambda record: None))
    return env._plan(env._pending())


def opened(slot: int) -> ReplayableSlice:
    services = Services(random.Random, tuning=Tuning(window=WINDOW))
    made = ReplayableSlice(plan(), slot, 0, services, 1 << 20, Keeping(MemorySpill, 0))
    made.open()
    return made


def deliver(one: ReplayableSlice, other: ReplayableSlice) -> int:
    """What one has for the other arrives there. How much."""
    actions, one.actions = one.actions, []
    for action in actions:
        assert action.slot == other.slot
        other.receive(decode(action.data), one.slot)
    return len(actions)


def work(slice: ReplayableSlice, budget: int) -> None:
    """Each task takes a step, and what it has gathered goes."""
    for task in slice.tasks:
        slice.step(task, 7, budget)
    slice.flush()


def channel_between(sender: ReplayableSlice, reader: ReplayableSlice) -> tuple[InputChannel, Outbox]:
    """The one into the reader, as it has it, and where the sender has it."""
    (incoming,) = [c for task in reader.tasks for c in task.gate.channels.values() if c.id.source == SENDER]
    return incoming, sender.by_vertex[sender.plan.edges[incoming.id.edge].source].outbox


def fill(sender: ReplayableSlice, reader: ReplayableSlice, outbox: Outbox) -> None:
    """All goes that is granted, and nothing is read."""
    while not outbox.blocked:
        work(sender, 1)
        deliver(sender, reader)


def done_again(sender: ReplayableSlice, reader: ReplayableSlice) -> None:
    """Another worker does what the reader has done."""
    other = opened(READER)
    again = Again(other, map(decode_entry, reader.history.entries), 0)
    assert [decode(action.data).kind for action in peer_replaced(sender, READER)] == [HISTORY]
    while not again.go_on():
        moved = deliver(sender, other) + deliver(other, sender)
        assert moved, f"it waits for {again.left[0]}"
    assert [task.work.records_in for task in other.tasks] == [task.work.records_in for task in reader.tasks]


def test_a_step_that_has_read_a_whole_window_finds_all_of_it_again() -> None:
    """A reader sends a grant when half of a window is due, so what is open depends on what was read before the
    checkpoint. A replacement begins with a whole window, and may have less open when one of the steps has read a whole
    one. It reads nothing before that has come: it sends the grant that is due by then."""
    sender, reader = opened(SENDER), opened(READER)
    incoming, outbox = channel_between(sender, reader)
    outgoing = outbox.channels[incoming.id]
    outgoing.flow.allowed = incoming.flow.granted = WINDOW * 6 // 10  # so much was open at the checkpoint
    reported = 0
    while not reported:
        work(sender, 1)
        deliver(sender, reader)
        work(reader, 1)
        reported = deliver(reader, sender)
    fill(sender, reader, outbox)
    assert incoming.flow.arrived - incoming.flow.consumed > WINDOW * 0.9
    work(reader, 1_000)
    assert incoming.flow.arrived == incoming.flow.consumed, "in one step"

    done_again(sender, reader)


def test_a_step_that_has_read_more_than_a_window_finds_all_of_it_again() -> None:
    """A sender's replacement begins with a whole window, beside what is unread by then. A reader that was busy
    meanwhile reads all of it in one step, and is lost itself."""
    sender, reader = opened(SENDER), opened(READER)
    incoming, outbox = channel_between(sender, reader)
    fill(sender, reader, outbox)
    (task,) = [task for task in reader.tasks if incoming.id in task.gate.channels]
    task.gate.sender_replaced(incoming.id)
    outbox.channels[incoming.id].flow = Producer(WINDOW)
    outbox.grant(incoming.id, WINDOW)
    fill(sender, reader, outbox)
    assert incoming.flow.arrived - incoming.flow.consumed > WINDOW * 1.8
    work(reader, 1_000)
    assert incoming.flow.arrived == incoming.flow.consumed, "in one step"
    done_again(sender, reader)
