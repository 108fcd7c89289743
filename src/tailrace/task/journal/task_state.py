"""The state of a task at a cut that no checkpoint holds, because a job that starts again from the checkpoint finds it out
anew: the positions of its channels, what its loop is in the midst of, which subtasks a source has requested splits from,
counters. A replay of the steps behind the cut (`task.journal.history`) needs it as it was.

Everything here is small and plain. The contents of channels are not here: their senders or the checkpoint have them.
"""

from __future__ import annotations

import pickle
from typing import Any

from tailrace.task.channels.inputs import InputChannel, Returning
from tailrace.task.channels.outbox import OutputChannel
from tailrace.task.channels.partition import AtRandom, Partitioner, RoundRobin
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.loops import HeadTask, LeaveTask, TailTask
from tailrace.task.operators.sink import SinkTask
from tailrace.task.operators.source import SourceTask
from tailrace.task.operators.timestamps import TimestampsTask
from tailrace.task.subtask.looping import TaskLoop
from tailrace.task.subtask.machine import Task

Came = list[list[tuple[int, int, Returning, dict[str, Any]]]]
"""The channels that bring records back to a task, as `Gate.front` has them: (number in its id, number in the gate, the
old channel, its fields of event time)."""

_CHANNEL_IN = ("worked_off", "watermark", "idle", "ended")
_TIME_IN = ("watermark", "idle", "ended")
_CHANNEL_OUT = (
    "seq", "sealed", "sent", "record_bytes", "watermark_due", "watermark_sent", "awake_due", "idle_due", "idle_said",
)  # fmt: skip
_GATE = ("watermark", "idle_at_end", "woken")
_CHAIN = ("arrived", "reached", "passed", "ending", "_told", "fallen_silent")
_WORK = ("advancing", "said_end", "finished", "records_in")
_LOOP = (
    "wave", "passing", "rest", "rounds", "commands", "_kept", "ending", "_resting", "obliged", "ended", "fed", "rested",
    "time", "reached", "times", "released",
)  # fmt: skip
_OPERATOR = ("rested", "rests", "finished")
_OF_CLASS: dict[type[OperatorTask], tuple[str, ...]] = {
    TimestampsTask: ("largest", "empty", "looked", "silent", "idle", "held", "_watermark", "_restored"),
    HeadTask: ("over", "fed", "round", "round_over", "stopped", "said_round", "_regular_turn"),
    LeaveTask: ("released", "idle", "_allowed"),
    SinkTask: ("records",),
    SourceTask: (
        "_next", "_discover_at", "_over", "_cuts", "_inbox", "_ended", "_asking", "_last", "_ends_here", "_left", "_dealer",
        "opened_splits", "ended_splits", "said",
    ),
}  # fmt: skip


def taken(task: Task) -> bytes:
    """The state of a task now, as bytes. It is taken at the task's cut."""
    work, aligner = task.work, task.cuts.aligner
    return pickle.dumps(
        {
            "in": [(channel.position, _of(channel, _CHANNEL_IN)) for channel in task.gate.channels.values()],
            "came": [[_of_returning(channel) for channel in channels] for channels in task.gate.front],
            "out": [_of_output(channel) for channel in task.outbox.channels.values()],
            "partitioners": [_turn_of(output.partitioner) for output in task.outbox.outputs],
            "idle_waits": task.outbox.idle_waits,
            "records_out": task.outbox.records,
            "gate": _of(task.gate, _GATE),
            "live": list(aligner.live),
            "chain": _of(task.chain, _CHAIN),
            "work": _of(work, _WORK),
            "loop": None if task.loop is None else _of_loop(task, task.loop),
            "operators": [_of_operator(operator) for operator in task.chain.operators],
        },
        5,
    )


def put_back(task: Task, data: bytes, checkpoint: int) -> Came:
    """Gives a task, restored from a checkpoint and opened, the state that it had at its cut. Drops what it would send as
    a task that starts again. Its channels are empty. Returns the channels that had brought records back, whose contents
    the caller puts back."""
    known = pickle.loads(data)
    for channel, (position, fields) in zip(task.gate.channels.values(), known["in"], strict=True):
        channel.expected = position
        set_fields(channel, fields)
    for out, fields in zip(task.outbox.channels.values(), known["out"], strict=True):
        out.buffer, out.buffered, out.before = [], 0, 0
        out.queue.clear()
        set_fields(out, fields)
    for output, turn in zip(task.outbox.outputs, known["partitioners"], strict=True):
        _give_turn(output.partitioner, turn)
    task.outbox.idle_waits, task.outbox.oldest, task.outbox.blocked = known["idle_waits"], None, 0
    task.outbox.records = known["records_out"]
    task.outbox.sends.clear()
    task.work.grants.clear()
    set_fields(task.gate, known["gate"])
    task.gate.compare_anew()
    aligner = task.cuts.aligner
    aligner.live = dict.fromkeys(known["live"])
    aligner.done = checkpoint
    set_fields(task.chain, known["chain"])
    set_fields(task.work, known["work"])
    if task.loop is not None:
        _set_loop(task, task.loop, known["loop"])
    for operator, fields in zip(task.chain.operators, known["operators"], strict=True):
        _set_operator(operator, fields, checkpoint)
    came: Came = known["came"]
    return came


def _of_returning(channel: InputChannel) -> tuple[int, int, Returning, dict[str, Any]]:
    assert channel.returning is not None
    return channel.id.source, channel.number, channel.returning, _of(channel, _TIME_IN)


def _of_output(channel: OutputChannel) -> dict[str, Any]:
    """The fields of an output channel. What waits for credit at the cut is in front of the barrier, and counts as sent.
    What the barrier overtakes is subtracted when it is sent again (`Outbox.goes_again`)."""
    waits = sum(charge > 0 for _, _, charge in channel.queue)
    return _of(channel, _CHANNEL_OUT) | {"sent": channel.sent + waits}


def _of(owner: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names}


def set_fields(owner: object, fields: dict[str, Any]) -> None:
    """Sets these fields of an object."""
    for name, value in fields.items():
        setattr(owner, name, value)


def _turn_of(partitioner: Partitioner) -> Any:
    if isinstance(partitioner, RoundRobin):
        return partitioner.next
    return partitioner.random.getstate() if isinstance(partitioner, AtRandom) else None


def _give_turn(partitioner: Partitioner, turn: Any) -> None:
    if isinstance(partitioner, RoundRobin):
        partitioner.next = turn
    elif isinstance(partitioner, AtRandom):
        partitioner.random.setstate(turn)


def _of_loop(task: Task, loop: TaskLoop) -> dict[str, Any]:
    operators = task.chain.operators
    return _of(loop, _LOOP) | {
        "_to_end": [operators.index(one) for one in loop._to_end],
        "_to_rest": [operators.index(one) for one in loop._to_rest],
    }


def _set_loop(task: Task, loop: TaskLoop, fields: dict[str, Any]) -> None:
    operators = task.chain.operators
    loop._to_end = [operators[at] for at in fields.pop("_to_end")]
    loop._to_rest.clear()
    loop._to_rest.extend(operators[at] for at in fields.pop("_to_rest"))
    set_fields(loop, fields)


def _of_operator(operator: OperatorTask) -> dict[str, Any]:
    fields = _of(operator, _OPERATOR)
    for kind, names in _OF_CLASS.items():
        if isinstance(operator, kind):
            fields |= _of(operator, names)
    if isinstance(operator, TailTask):
        fields["marks"] = operator.queue.marks
    fields["contexts"] = [
        (ctx.round, ctx.watermark_time, ctx.metrics.counters, ctx.metrics.gauges) for ctx in operator.contexts()
    ]
    if isinstance(operator, SourceTask):
        fields["splits"] = [(split.index, split.ready_at, split.reader is None) for split in operator.splits]
    return fields


def _set_operator(operator: OperatorTask, fields: dict[str, Any], checkpoint: int) -> None:
    for ctx, (round, time, counters, gauges) in zip(operator.contexts(), fields.pop("contexts"), strict=True):
        ctx.round, ctx.watermark_time = round, time
        ctx.metrics.counters, ctx.metrics.gauges = counters, gauges
        ctx.begin_epoch(checkpoint)
    if isinstance(operator, TailTask):
        operator.queue.marks = fields.pop("marks")
    splits = fields.pop("splits", None)
    set_fields(operator, fields)
    if isinstance(operator, SourceTask):
        operator.as_it_was(splits)
