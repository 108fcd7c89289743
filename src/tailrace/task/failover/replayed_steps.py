"""Steps and cuts of a task that were made in another process, and are replayed in this one."""

from __future__ import annotations

from tailrace.elements.cuts import CutRequest
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.loops import HeadTask, TailTask
from tailrace.task.subtask.machine import ORDER, Task
from tailrace.task.subtask.order import NOTHING


def replay_step(task: Task, line: int, now: int, budget: int, seed: int | None = None) -> None:
    """Replays a step (`task.journal.history.Did`): it follows line `line`, whatever the order of the task gives here.
    `seed`: that of the shared random generators, if it has used them."""
    task.work.begin(now)
    _seed(task, seed)
    task.wake()
    act = None if line == NOTHING else ORDER[line].act
    idle = None if act is None else act(task if ORDER[line].of_task else task.work, now, budget)
    if act is None or idle is not None:
        task.outbox.flush_if_old()


def replay_cut(task: Task, request: CutRequest, now: int, seed: int | None = None) -> None:
    """Replays a cut for a checkpoint that will not be complete: it has its effects on operators and their state, of which
    nothing is written, and its barrier goes out."""
    task.work.begin(now)
    task.wake()
    pass_over(task, request.number)
    for operator in task.chain.operators:
        cut_operator(operator, request.number)
        freeze_state(operator, request)
    if not task.said_end:
        task.outbox.barrier(request)
    task.chain.begin_epoch(request.number)
    task.checkpoints.abort(request.number)


def _seed(task: Task, seed: int | None) -> None:
    shared = task.services.shared
    if seed is not None and shared is not None:
        shared.seed(seed)


def pass_over(task: Task, number: int) -> None:
    """Makes all cuts up to a number count as made, whatever was read by then."""
    cuts = task.cuts
    for known in [one for one in cuts.known if one <= number]:
        cuts.abort(known)
    cuts.done = max(cuts.done, number)


def cut_operator(operator: OperatorTask, checkpoint: int) -> None:
    """Repeats the effects of a cut on an operator. Ends of a loop do not begin or complete a log."""
    if isinstance(operator, HeadTask):
        operator.queue.seal()
    elif isinstance(operator, TailTask):
        operator.queue.keep_apart()
    else:
        operator.snapshot(checkpoint)


def freeze_state(operator: OperatorTask, request: CutRequest) -> None:
    """Repeats the effects of a cut on the keyed state of an operator: values come back from it as from a file."""
    if operator.backend is not None:
        operator.backend.freeze(request)
