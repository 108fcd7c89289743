"""What holds a job, in one sentence. The first of these that is the case: the job is over, starts or restarts; a place or
a step that it waits for; checkpoints that fail; a worker that is being replaced; an operator that is busy while those before
it wait; an input that holds event time back."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.coordinator.view.snapshot import FailureFigures, JobSnapshot, OperatorFigures

BUSY = 0.8
"""The share from which on an operator counts as busy."""
PRESSED = 0.5
"""The share from which on an operator counts as back-pressured."""
SKEWED = 1.5
"""The factor by which a subtask has more than its part of the records, from which on it is named."""
HELD_SECONDS = 60.0
"""Event time by which an input is behind all others of its operator, from which on it is named."""


def sentence_of(snapshot: JobSnapshot) -> str:
    """What holds a job, or that nothing does."""
    found = _of_status(snapshot)
    return found if found else next(_troubles(snapshot), "Nothing holds the job.")


def _of_status(snapshot: JobSnapshot) -> str:
    job, last = snapshot.job, snapshot.failures[-1] if snapshot.failures else None
    match job.status:
        case "FINISHED":
            return "The job has finished."
        case "CANCELLED":
            return "The job was cancelled."
        case "FAILED" | "FAILING":
            return f"The job has failed: {_failure_text(last)}"
        case "RESTARTING":
            return f"The job restarts (restart {job.restarts}): {_failure_text(last)}"
        case "CREATED" | "STARTING":
            return f"The job waits for its workers: {job.workers_reporting} of {job.workers} have reported."
        case "STOPPING" | "FINISHING" | "CANCELLING":
            return f"The job is {job.status.lower()}."
    return ""


def _failure_text(failure: FailureFigures | None) -> str:
    if failure is None:
        return "the reason is not known yet."
    where = f" ({failure.line})" if failure.line is not None else ""
    return f"{failure.text}{where}"


def _troubles(snapshot: JobSnapshot) -> Iterator[str]:
    """What holds a running job, the worst first."""
    names = {one.uid: one.name for one in snapshot.graph.operators}
    taken = snapshot.checkpoints
    for place in taken.waits_for if taken is not None else ():
        yield f"The job waits for {place.place} for {place.age:,.0f} s: {place.reason}"
    for stall in snapshot.stalled:
        yield f"`{names[stall.operator]}`, subtask {stall.subtask}: a step has not come back for {stall.seconds:,.0f} s."
    for one in snapshot.slices:
        if one["being_replaced"]:
            yield f"Worker {one['slot']} was lost, and is being replaced; the others go on."
    if taken is not None and taken.failed_in_a_row:
        reason = f": {taken.failures[-1].reason}" if taken.failures else "."
        many = taken.failed_in_a_row
        yield f"{many} checkpoint{'s have' if many > 1 else ' has'} failed since the last complete one{reason}"
    if snapshot.job.workers_reporting < snapshot.job.workers:
        yield f"{snapshot.job.workers_reporting} of {snapshot.job.workers} workers have reported."
    yield from _bottleneck(snapshot, names)
    yield from _held_inputs(snapshot, names)


def _bottleneck(snapshot: JobSnapshot, names: dict[str, str]) -> Iterator[str]:
    """The operators that are busy, behind ones that wait for them first."""
    chains: dict[int, list[str]] = {}
    for operator in snapshot.graph.operators:
        chains.setdefault(operator.chain, []).append(operator.uid)
    chain_of = {uid: chain for chain, uids in chains.items() for uid in uids}
    figures = {chain: snapshot.operators[uids[0]] for chain, uids in chains.items()}
    before: dict[int, set[int]] = {}
    for edge in snapshot.graph.edges:
        if chain_of[edge.source] != chain_of[edge.target]:
            before.setdefault(chain_of[edge.target], set()).add(chain_of[edge.source])
    busy = [chain for chain, one in figures.items() if one.busy is not None and one.busy.worst >= BUSY]
    pressed = [chain for chain in busy if any(_is_pressed(figures[one]) for one in before.get(chain, ()))]
    for chain in [*pressed, *(one for one in busy if one not in pressed)]:
        one = figures[chain]
        assert one.busy is not None
        whole = " → ".join(names[uid] for uid in chains[chain])
        what = "the operators before it wait" if chain in pressed else "more input would have to wait"
        yield f"`{whole}` is busy ({one.busy.worst:.0%}): {what}{_skew_text(one)}."


def _skew_text(figures: OperatorFigures) -> str:
    """The subtask of an operator that has far more than its part of the input."""
    for skew, what in ((figures.waiting_skew, "what waits"), (figures.skew, "the records")):
        if skew is not None and skew.share * figures.subtasks_reporting >= SKEWED:
            return f"; its subtask {skew.subtask} has {skew.share:.0%} of {what}"
    return ""


def _is_pressed(figures: OperatorFigures) -> bool:
    return figures.backpressured is not None and figures.backpressured.worst >= PRESSED


def _held_inputs(snapshot: JobSnapshot, names: dict[str, str]) -> Iterator[str]:
    """The inputs that hold event time back: farther behind than all others of their operator."""
    for held in snapshot.inputs:
        others = [one for one in snapshot.inputs if one.operator == held.operator and one is not held]
        if not held.holds or not others:
            continue
        by = f"its input `{names[held.source]}`, subtask {held.held_by}"
        if held.watermark == "-inf" and any(one.watermark != "-inf" for one in others):
            yield f"Event time of `{names[held.operator]}` waits for {by}, which has had none yet."
        elif held.lag is not None and all(one.lag is None or held.lag - one.lag >= HELD_SECONDS for one in others):
            yield f"Event time of `{names[held.operator]}` is held back by {by}: {held.watermark}."
