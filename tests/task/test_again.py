"""A slice that does again what a lost one has done reads what that one had read, whatever is granted by then."""

from __future__ import annotations

import random

import tailrace as tr
from tailrace.elements.frames import HISTORY, decode
from tailrace.graph.plan import Plan
from tailrace.task.again import Again
from tailrace.task.history import Facts
from tailrace.task.history import decode as decode_entry
from tailrace.task.outside import Recorder
from tailrace.task.replacing import peer_replaced
from tailrace.task.services import Services
from tailrace.task.slice import Slice
from tailrace.task.tuning import Tuning

WINDOW, SENDER, READER = 2_000, 0, 1


def plan() -> Plan:
    """A source in worker 0, all of whose records go to worker 1."""
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, 200), parallelism=1)
    numbers.key_by(lambda n: "b").count().sink_to(tr.sinks.Callback(lambda record: None))
    return env._plan(env._pending())


def opened(slot: int) -> Slice:
    services = Services(random.Random, facts=Facts(), sizes=Facts(), outside=Recorder(), tuning=Tuning(window=WINDOW))
    made = Slice(plan(), slot, 0, services, 1 << 20)
    made.open()
    return made


def deliver(one: Slice, other: Slice) -> int:
    """What one has for the other arrives there. How much."""
    actions, one.actions = one.actions, []
    for action in actions:
        assert action.slot == other.slot
        other.receive(decode(action.data), one.slot)
    return len(actions)


def work(slice: Slice, budget: int) -> None:
    """Each task takes a step, and what it has gathered goes."""
    for task in slice.tasks:
        slice.step(task, 7, budget)
    slice.flush()


def test_a_step_that_has_read_a_whole_window_finds_all_of_it_again() -> None:
    """A reader says a grant when half of a window is due, so what is open depends on what was read before the checkpoint.
    Who does its steps again begins with a whole window, and may have less open when one of them has read a whole one. It
    reads nothing before that has come: it says what is due by then."""
    sender, reader = opened(SENDER), opened(READER)
    (incoming,) = [c for task in reader.tasks for c in task.gate.channels.values() if c.id.source == SENDER]
    outbox = sender.by_vertex[sender.plan.edges[incoming.id.edge].source].outbox
    outgoing = outbox.channels[incoming.id]
    outgoing.flow.allowed = incoming.flow.granted = WINDOW * 6 // 10  # so much was open at the checkpoint
    said = 0
    while not said:
        work(sender, 1)
        deliver(sender, reader)
        work(reader, 1)
        said = deliver(reader, sender)
    while not outbox.blocked:
        work(sender, 1)
        deliver(sender, reader)
    assert incoming.flow.arrived - incoming.flow.consumed > WINDOW * 0.9
    work(reader, 1_000)
    assert incoming.flow.arrived == incoming.flow.consumed, "in one step"

    assert reader.history is not None
    other = opened(READER)
    again = Again(other, map(decode_entry, reader.history.entries), 0)
    assert decode(peer_replaced(sender, READER).data).kind == HISTORY
    while not again.go_on():
        moved = deliver(sender, other) + deliver(other, sender)
        assert moved, f"it waits for {again.left[0]}"
    assert [task.work.records_in for task in other.tasks] == [task.work.records_in for task in reader.tasks]
