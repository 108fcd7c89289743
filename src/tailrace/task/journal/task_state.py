"""The state of a task at a cut that no checkpoint holds, because a job that starts again from the checkpoint finds it out
anew: the positions of its channels, what its loop is in the midst of, which subtasks a source has requested splits from,
counters. A replay of the steps behind the cut (`task.journal.history`) needs it as it was.

Each class declares its part beside itself (`task.contract.cut_state`). Everything here is small and plain. The contents of
channels are not here: their senders or the checkpoint have them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from tailrace.task.channels.inputs import Returning
from tailrace.task.contract.cut_state import CutState
from tailrace.task.subtask.machine import Task

Came = list[list[tuple[int, int, Returning, dict[str, Any]]]]
"""The channels that bring records back to a task, as `Gate.front` has them: (number in its id, number in the gate, the
old channel, its state at the cut)."""


def state_of(task: Task) -> bytes:
    """The state of a task now, as bytes. It is taken at the task's cut."""
    came: Came = [
        [(one.id.source, one.number, one.returning, one.cut_state()) for one in channels if one.returning is not None]
        for channels in task.gate.front
    ]
    known = {
        "states": [one.cut_state() for one in objects(task)],
        "positions": [channel.position for channel in task.gate.channels.values()],
        "live": [*task.cuts.live],
        "came": came,
    }
    return pickle.dumps(known, 5)


def put_back(task: Task, data: bytes, checkpoint: int) -> Came:
    """Gives a task, restored from a checkpoint and opened, the state that it had at its cut. Drops what it would send as
    a task that starts again. Its channels are empty. Returns the channels that had brought records back, whose contents
    the caller puts back."""
    known = pickle.loads(data)
    for one, state in zip(objects(task), known["states"], strict=True):
        one.set_cut_state(state)
    for channel, position in zip(task.gate.channels.values(), known["positions"], strict=True):
        channel.expected = position
    task.cuts.live, task.cuts.done = dict.fromkeys(known["live"]), checkpoint
    task.chain.begin_epoch(checkpoint)
    came: Came = known["came"]
    return came


def objects(task: Task) -> Iterator[CutState]:
    """The objects of a task that have state at a cut, in an order that depends on the plan only."""
    yield from task.gate.channels.values()
    yield task.gate
    yield from task.outbox.channels.values()
    yield task.outbox
    yield from (one.partitioner for one in task.outbox.outputs if isinstance(one.partitioner, CutState))
    yield task.chain
    yield task
    yield task.reports
    yield task.work
    if task.loop.place.nest is not None:
        yield from (task.loop, task.loop.waves, task.loop.rests, task.loop.rounds)
    for operator in task.chain.operators:
        yield from operator.contexts()
        yield operator
