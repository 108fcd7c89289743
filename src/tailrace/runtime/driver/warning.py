"""Warnings of a job, in the log of the program that has started it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tailrace.coordinator.actions import (
    Autoscaled,
    CheckpointFailed,
    HistoryFills,
    InReach,
    NotHot,
    NotReplaced,
    NotResized,
    OutOfReach,
    Replacing,
    Resizing,
    Restarting,
    Stalled,
    StandbyLost,
    Told,
    ValuesNotCompared,
    WorkerReplaced,
)
from tailrace.elements.byte_texts import size_text
from tailrace.log import fields, log

_MINUTE = 60_000_000


@dataclass(frozen=True)
class StorageWarning:
    """A failure of the storage of checkpoints that the next start makes good. `trace` is its traceback."""

    what: str
    trace: str


class RecordFields(Protocol):
    """The fields of records on a job (`log.fields`), on a worker or an operator of it."""

    def __call__(
        self, slot: int | None = None, operator: str | None = None, *, paced: bool = False
    ) -> dict[str, Any]: ...


def _about(slot: int | None = None, operator: str | None = None, *, paced: bool = False) -> dict[str, Any]:
    return fields(slot=slot, paced=paced)


def warn(job: str, action: Told | StorageWarning, about: RecordFields = _about) -> None:
    """Logs what goes wrong in a job, and what follows."""
    match action:
        case StorageWarning():
            log.warning("job %r: " + action.what + "\n%s", job, action.trace, extra=about())
        case Restarting():
            cause = action.cause
            where = f" in operator {cause.operator!r}" if cause.operator is not None else ""
            text = f"{cause.message}\n{action.advice}" if action.advice else cause.message
            log.warning(
                "job %r restarts (restart %d)%s: %s",
                job,
                action.attempt,
                where,
                text,
                extra=about(cause.slot, cause.operator),
            )
        case Resizing():
            back = f", back from {action.text}: {action.reason}" if action.reason else ""
            back = f": {action.lacking}" if action.lacking else back
            log.warning("job %r moves from %d to %d workers%s", job, action.before, action.after, back, extra=about())
        case NotResized():
            what = "job %r keeps its %d workers, and is not resized to %s: %s"
            log.warning(what, job, action.slots, action.text, action.reason)
        case Autoscaled():
            what = "job %r is to have %d workers in place of %d: %s"
            log.warning(what, job, action.after, action.before, action.reason, extra=about())
        case Stalled():
            whose = about(action.slot, action.under_way.operator, paced=True)
            log.warning("job %r: %s", job, stall_text(action), extra=whose)
        case Replacing():
            what = "worker %d is being replaced, and the others go on: %s"
            log.warning("job %r: " + what, job, action.slot, action.cause.message, extra=about(action.slot))
        case NotReplaced():
            what = "worker %d cannot be replaced alone: %s"
            log.warning("job %r: " + what, job, action.slot, action.reason, extra=about(action.slot))
        case WorkerReplaced():
            what = "worker %d is back, %.1f s after its loss was noticed"
            log.warning("job %r: " + what, job, action.slot, action.took / 1e6, extra=about(action.slot))
        case CheckpointFailed() | OutOfReach() | InReach():
            _outage(job, action, about)
        case ValuesNotCompared():
            what = "what operator %r emits is not compared in full when a worker is replaced: %s"
            log.warning("job %r: " + what, job, action.operator, action.reason, extra=about(None, action.operator))
        case HistoryFills():
            what = "a checkpoint is taken early: the history of worker %d takes %s of %s (StandbyConfig(history_bytes=...))"
            sizes = size_text(action.taken), size_text(action.most)
            log.warning("job %r: " + what, job, action.slot, *sizes, extra=about(action.slot, paced=True))
        case StandbyLost():
            what = "it is started again when the job is" if action.left else "another one is started"
            log.warning("job %r: standby %d is gone (%s); %s", job, action.place, action.reason, what, extra=about())
        case NotHot():
            what = "standby %d does not follow worker %d any more, until the next checkpoint: %s"
            log.warning(
                "job %r: " + what, job, action.place, action.slot, action.reason, extra=about(action.slot, paced=True)
            )


def _outage(job: str, action: CheckpointFailed | OutOfReach | InReach, about: RecordFields) -> None:
    """Logs events that repeat: the 1st, the 2nd, the 4th, the 8th of them, and so on."""
    match action:
        case CheckpointFailed():
            if _is_reported(action.in_a_row):
                row = "" if action.in_a_row == 1 else f" ({action.in_a_row} in a row)"
                what = "checkpoint %d has failed%s: %s; %s"
                log.warning(
                    "job %r: " + what, job, action.checkpoint, row, action.reason, action.then, extra=about(paced=True)
                )
        case OutOfReach():
            if _is_due(action) if action.setting == "publish_timeout" else _is_reported(action.tries):
                left = max(0, action.patience - action.since) / 1e6
                what = "%s is out of reach, for %.0f s now: %s; "
                what += "tried again in %.1f s, and for %.0f s more (%s)"
                parts = action.place, action.since / 1e6, action.reason, action.pause / 1e6, left, action.setting
                log.warning("job %r: " + what, job, *parts, extra=about(paced=True))
        case InReach():
            log.warning(
                "job %r: %s is in reach again, after %.1f s",
                job,
                action.place,
                action.took / 1e6,
                extra=about(paced=True),
            )


def _is_due(action: OutOfReach) -> bool:
    """True for the first failure, and for one in each minute after it."""
    return action.tries == 1 or (action.since >= _MINUTE and action.since % _MINUTE < action.pause)


def _is_reported(count: int) -> bool:
    """True for a power of two."""
    return count & (count - 1) == 0


def stall_text(action: Stalled) -> str:
    """A sentence on a thread that has not come back, with its stack."""
    what, seconds = action.under_way, action.under_way.micros / 1e6
    who = f"worker {action.slot}" if what.operator is None else f"operator {what.operator!r}, subtask {action.slot}"
    doing = "a step" if what.vertex is not None else "opening, publishing or closing"
    return (
        f"{who}: {doing} has not come back for {seconds:.0f} s, and nothing else of this worker goes on meanwhile; it is "
        f"here:\n{what.stack}"
    )
