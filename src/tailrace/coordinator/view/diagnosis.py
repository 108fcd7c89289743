"""What holds a job, in sentences, the worst first: the job is over, restarts, or has no slots; a place or a call that it
waits for; a full disk; checkpoints that fail; a worker that is being replaced; an operator that is busy while those before
it wait; a loop that grows; an input that holds event time back; a source that falls behind."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.job_snapshot import (
    FailureFigures,
    Finding,
    InputFigures,
    JobSnapshot,
    OperatorFigures,
    StalledStep,
)
from tailrace.coordinator.view.summary import span_text
from tailrace.coordinator.view.tracebacks import line_of

GOOD, WARNS, BAD = "good", "warns", "bad"
"""The health of a job: nothing holds it; it goes on, and something holds it back; it does not go on."""
NOTHING = "Nothing holds the job."
BUSY = 0.8
"""The share from which on an operator counts as busy."""
PRESSED = 0.5
"""The share from which on an operator counts as back-pressured."""
SKEWED = 1.5
"""The factor by which a subtask has more than its part of the records, from which on it is named."""
HELD_SECONDS = 60.0
"""Event time by which an input is behind all others of its operator, from which on it is named."""
STALLED_SECONDS = 30.0
"""The duration of a call from which on the job counts as held by it."""
LATE_SECONDS = 10.0
"""The duration of a start from which on the missing task slots are a warning."""
CLOSE_SECONDS = 1.0
"""Time before a restart within which a failure is its cause."""
FAILED_IN_A_ROW = 3
"""Checkpoints that have failed in a row, from which on the job is in a bad state."""
GROWING_RECORDS = 10_000
"""Records of feedback that wait at the head of a loop, from which on its growth is named."""
FULL = ("no space left", "disk quota exceeded", "disk is full", "not enough space")
"""Parts of errors that mean a full disk, in lower case."""


def findings_of(snapshot: JobSnapshot) -> list[Finding]:
    """All that holds a job, the worst first; empty where nothing does."""
    if JobStatus(snapshot.job.status).final:  # its workers are gone, whatever their last reports say
        return [*_of_status(snapshot)]
    return [*_of_status(snapshot), *_waits(snapshot), *_troubles(snapshot), *_of_end(snapshot)]


def health_of(findings: list[Finding]) -> str:
    """The worst health of all findings."""
    return max((one.health for one in findings), key=(GOOD, WARNS, BAD).index, default=GOOD)


def _of_status(snapshot: JobSnapshot) -> Iterator[Finding]:
    job, last = snapshot.job, snapshot.failures[-1] if snapshot.failures else None
    details = "" if last is None else last.details
    match job.status:
        case "FINISHED":
            yield Finding("over", GOOD, "The job has finished.")
        case "CANCELLED":
            yield Finding("over", GOOD, "The job was cancelled.")
        case "FAILED" | "FAILING":
            yield Finding("failed", BAD, f"The job has failed: {_failure_text(last)}", details)
        case "RESTARTING":
            size, fails = snapshot.size or {}, last is not None and last.at >= job.since - CLOSE_SECONDS
            if size.get("to") is not None and not fails:
                yield Finding("resizes", WARNS, f"The job moves from {size['workers']} to {size['to']} workers.")
            else:
                yield Finding(
                    "restarts", BAD, f"The job restarts (restart {job.restarts}): {_failure_text(last)}", details
                )
            yield from _slots(snapshot)
        case "CREATED" | "STARTING":
            yield from _slots(snapshot)


def _of_end(snapshot: JobSnapshot) -> Iterator[Finding]:
    """The end, or the other size, that is on its way, behind what holds it up."""
    size = snapshot.size or {}
    if snapshot.job.status == "RUNNING" and size.get("to") is not None:
        what = f"The job is about to move from {size['workers']} to {size['to']} workers"
        yield Finding("resizes", GOOD, f"{what}, when they are there and its state can be cut.")
    if snapshot.job.status in ("STOPPING", "FINISHING", "CANCELLING"):
        yield Finding("ends", GOOD, f"The job is {snapshot.job.status.lower()}.")


def _failure_text(failure: FailureFigures | None) -> str:
    if failure is None:
        return "the reason is not known yet."
    where = f" ({failure.line})" if failure.line is not None else ""
    return f"{_of_disk(failure.text)}{failure.text}{where}"


def _of_disk(reason: str) -> str:
    """The beginning of a sentence on a failure, where a full disk is its reason."""
    return "a disk is full: " if _is_full(reason) else ""


def _is_full(reason: str) -> bool:
    return any(part in reason.lower() for part in FULL)


def _slots(snapshot: JobSnapshot) -> Iterator[Finding]:
    """What a job waits for that starts, or starts again."""
    job, since = snapshot.job, max(0.0, snapshot.at - snapshot.job.since)
    health = WARNS if since >= LATE_SECONDS else GOOD
    missing, needed = sum(one["pid"] is None for one in snapshot.slices), job.workers
    there = needed - missing
    if missing:
        what = f"The job waits for task slots: {there} of {needed} workers are there after {since:,.0f} s"
        why = (
            "; the others still start, or Spark has no free slot for them: "
            "then end other jobs, give Spark more cores, or lower the parallelism"
        )
        yield Finding("slots", health, f"{what}{why if since >= LATE_SECONDS else ''}.")
    elif job.workers_reporting < needed and job.status != "RESTARTING":
        what = f"The job waits for its workers: {job.workers_reporting} of {needed} have reported"
        yield Finding("starts", health, f"{what}.")


def _waits(snapshot: JobSnapshot) -> Iterator[Finding]:
    """Places and calls that a job waits for, whatever its status is."""
    taken = snapshot.checkpoints
    for place in taken.waits_for if taken is not None else ():
        what = f"The job waits for {place.place} for {place.age:,.0f} s: {_of_disk(place.reason)}{place.reason}"
        yield Finding("disk" if _is_full(place.reason) else "outage", BAD, what)
    names = _names(snapshot)
    for stall in snapshot.stalled:
        health = BAD if stall.seconds >= STALLED_SECONDS else WARNS
        yield Finding("stalled", health, _stall_text(stall, names), stall.stack)


def _stall_text(stall: StalledStep, names: dict[str, str]) -> str:
    who = f"`{names[stall.operator]}`, subtask {stall.subtask}" if stall.operator else f"Worker {stall.subtask}"
    line = line_of(stall.stack)
    where = f", at {line}" if line is not None else ""
    return f"{who}: {stall.work} has not come back for {stall.seconds:,.0f} s{where}."


def _troubles(snapshot: JobSnapshot) -> Iterator[Finding]:
    """What holds a job that runs."""
    job, taken = snapshot.job, snapshot.checkpoints
    if job.status not in ("RUNNING", "STOPPING", "FINISHING"):
        return
    for one in snapshot.slices:
        if one["being_replaced"]:
            yield Finding("replaced", WARNS, f"Worker {one['slot']} was lost, and is being replaced; the others go on.")
    if taken is not None and taken.failed_in_a_row:
        failed = [one for one in taken.failures if one.failure]
        why, many = failed[-1].reason if failed else "", taken.failed_in_a_row
        what = f"{many} checkpoint{'s have' if many > 1 else ' has'} failed since the last complete one"
        health = BAD if many >= FAILED_IN_A_ROW or _is_full(why) else WARNS
        kind = "disk" if _is_full(why) else "checkpoints"
        yield Finding(kind, health, f"{what}: {_of_disk(why)}{why}" if why else f"{what}.")
    if job.workers_reporting < job.workers:
        yield Finding("starts", WARNS, f"{job.workers_reporting} of {job.workers} workers have reported.")
    busy = [*_bottlenecks(snapshot)]
    yield from busy
    yield from _loops(snapshot)
    held = [*_held_inputs(snapshot)]
    yield from held
    yield from _behind(snapshot, busy=bool(busy), held=bool(held))


def _names(snapshot: JobSnapshot) -> dict[str, str]:
    return {one.uid: one.name for one in snapshot.graph.operators}


def _bottlenecks(snapshot: JobSnapshot) -> Iterator[Finding]:
    """The operators that are busy, behind ones that wait for them first."""
    names = _names(snapshot)
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
    pressed.sort(key=lambda chain: _is_pressed(figures[chain]))  # one that waits itself is not the first cause
    for chain in [*pressed, *(one for one in busy if one not in pressed)]:
        one = figures[chain]
        assert one.busy is not None
        whole = " → ".join(names[uid] for uid in chains[chain])
        what = "the operators before it wait" if chain in pressed else "more input would have to wait"
        skew = _skew_text(one)
        text = f"`{whole}` is busy ({one.busy.worst:.0%}): {what}{skew}{_heaviest(one)}."
        yield Finding("skew" if skew else "busy", WARNS, text, operator=chains[chain][0])


def _skew_text(figures: OperatorFigures) -> str:
    """The subtask of an operator that has far more than its part of the input."""
    for skew, what in ((figures.waiting_skew, "what waits"), (figures.skew, "the records")):
        if skew is not None and skew.share * figures.subtasks_reporting >= SKEWED:
            return f"; its subtask {skew.subtask} has {skew.share:.0%} of {what}"
    return ""


def _heaviest(figures: OperatorFigures) -> str:
    """The key on which an operator spends most of its time, where it was requested."""
    keys = figures.heaviest_keys
    return f"; {keys[0].share:.0%} of its time goes to key {keys[0].key}" if keys and keys[0].share >= PRESSED else ""


def _is_pressed(figures: OperatorFigures) -> bool:
    return figures.backpressured is not None and figures.backpressured.worst >= PRESSED


def _loops(snapshot: JobSnapshot) -> Iterator[Finding]:
    """The loops that feed back more than they process."""
    for one in snapshot.loops:
        waits, growth = one.feedback_waiting, one.growth
        if (
            waits is not None
            and growth is not None
            and waits >= GROWING_RECORDS
            and growth * HELD_SECONDS > 0.1 * waits
        ):
            what = f"Loop `{one.name}` grows: {waits:,} records of feedback wait at its head"
            yield Finding("loop", WARNS, f"{what}, {growth:,.0f} more each second.")


def _held_inputs(snapshot: JobSnapshot) -> Iterator[Finding]:
    """The inputs that hold event time back: they stand still, while other inputs of their operator or other subtasks of
    their source are ahead."""
    names = _names(snapshot)
    for held in snapshot.inputs:
        others = [one for one in snapshot.inputs if one.operator == held.operator and one is not held]
        if not held.holds or not held.stands:
            continue
        behind = _is_behind(held, others)
        if not behind and not held.others_ahead and held.held_by_split is None:
            continue
        split = "" if held.held_by_split is None else f", split {held.held_by_split}"
        by = f"its input `{names[held.source]}`, subtask {held.held_by}{split}"
        others_go = (
            "`idle_after` lets the others go on" if behind else "the others are ahead, and `idle_after` lets them go on"
        )
        if held.watermark == "-inf":
            what = f"Event time of `{names[held.operator]}` waits for {by}, which has had none yet"
        else:
            at = f"it stands at {held.watermark}{_behind_text(held, others) if behind else ''}"
            what = f"Event time of `{names[held.operator]}` is held back by {by}: {at}"
        yield Finding("event time", WARNS, f"{what}; {others_go} without it.", operator=held.operator)


def _is_behind(held: InputFigures, others: list[InputFigures]) -> bool:
    """True if an input is farther behind than all others of its operator."""
    if not others:
        return False
    if held.watermark == "-inf":
        return any(one.watermark != "-inf" for one in others)
    return held.lag is not None and all(one.lag is None or held.lag - one.lag >= HELD_SECONDS for one in others)


def _behind_text(held: InputFigures, others: list[InputFigures]) -> str:
    """How far an input is behind the next one of its operator, where that is known."""
    lags = [one.lag for one in others if one.lag is not None]
    return f", {span_text(held.lag - max(lags))} behind the next one" if held.lag is not None and lags else ""


def _behind(snapshot: JobSnapshot, *, busy: bool, held: bool) -> Iterator[Finding]:
    """A job that falls behind its input."""
    lag = snapshot.lag
    if lag is None or not lag.grows:
        return
    unit, value = ("s", lag.seconds) if lag.seconds is not None else ("records", lag.records)
    assert value is not None and lag.change is not None
    amounts = (
        f"{value:,.0f} {unit} behind{'' if lag.source else ' the clock'}, {lag.change:,.0f} more than a minute ago"
    )
    if lag.source:
        why = "" if busy else "; no operator is busy: the source reads more slowly than records come"
        yield Finding("behind", WARNS, f"`{_names(snapshot)[lag.source]}` falls behind: {amounts}{why}.")
    elif not held:
        yield Finding("event time", WARNS, f"Event time stands, or is slower than the clock: {amounts}.")
