"""The slices of a job as its user sees them: where each runs, which standbys hold its state, how much would have to be done
again, and how it was replaced (`view_makers` makes them from what the coordinator knows)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SliceStandby:
    """A process that stands by and is to hold the state of a slice. `place` is its number, behind the workers' numbers;
    `host`, `executor` (None where Spark does not name one, as in local mode) and `pid` are where it runs. `ready`: it holds
    the state as checkpoint `checkpoint` has it, which is `behind` checkpoints older than the newest complete one, and
    `behind_seconds`; they are None before that. `hot`: with `StandbyConfig(mode="hot")` it does what the worker does, which
    takes as much processor time again."""

    place: int
    host: str
    executor: str | None
    pid: int
    ready: bool
    checkpoint: int | None = None
    behind: int | None = None
    behind_seconds: float | None = None
    hot: bool = False


@dataclass(frozen=True)
class Failover:
    """The replacement of a slice's worker while the other workers went on. `timestamp` is when the loss was noticed, in
    seconds since 1970. The parts are in milliseconds: until a process was there (`process_ms`), until the survivors had
    sent what they know (`survivors_ms`, only what that took longer), until the state was there and functions were open
    (`restore_ms`), and until the replacement had done again what the lost worker did (`replay_ms`). `total_ms` is their
    sum. `hot`: a hot standby took the place, and had only the rest to do."""

    timestamp: float
    process_ms: float
    survivors_ms: float
    restore_ms: float
    replay_ms: float
    total_ms: float
    hot: bool = False


@dataclass(frozen=True)
class SliceStatus:
    """A slice: the part of a job that one worker runs. `host`, `executor` (None where Spark does not name one, as in local
    mode) and `pid` are where it runs; None: no worker runs it now. `attempt` is the `ctx.attempt` of its functions.
    `standbys` are the standbys that are to hold its state.

    By the newest report of its worker, `log_entries` and `log_bytes` are the entries and bytes of its history since the
    newest complete checkpoint, which another worker would have to do again. `log_left_bytes` is the memory that is left for
    it, None where that is not known: with none left the history is dropped, and a loss is a restart until the next
    checkpoint is complete. `copied_bytes` is what it knows of the histories of other workers, in memory and on disk.
    `kept_bytes` is what the worker keeps of what has gone to other workers.

    `replaced`: the number of times that its worker was replaced while the other workers went on, with `last_failover` for
    the last time; `being_replaced`: True while it is being replaced. `not_replaced`: the reason why it could not be
    replaced at its most recent loss without a replacement; empty where there was none. `change`: "joins" while the job
    moves to another size with which it gets the slice, "leaves" while it is about to give it up; else empty.
    """

    slot: int
    host: str | None
    executor: str | None
    pid: int | None
    attempt: int
    standbys: tuple[SliceStandby, ...] = ()
    log_entries: int = 0
    log_bytes: int = 0
    kept_bytes: int = 0
    replaced: int = 0
    being_replaced: bool = False
    last_failover: Failover | None = None
    not_replaced: str = ""
    log_left_bytes: int | None = None
    copied_bytes: int = 0
    change: str = ""


@dataclass(frozen=True)
class Slices:
    """The slices of a job, in the order of their slots."""

    all: tuple[SliceStatus, ...] = ()
    standbys: tuple[int, int] | None = None
    """(ready, total) numbers of standbys; None where no worker is replaced alone."""


@dataclass(frozen=True)
class SizeFigures:
    """The size of a job."""

    workers: int
    to: int | None = None
    """The number of workers that it is about to have, while it changes its size."""
    stage: str = ""
    """The stage of that change."""
    elastic: tuple[int, int] | None = None
    """The least and the most workers of an elastic job."""
    required: int | None = None
    """The number of workers that an elastic job is to have, where there are task slots."""
    room: int | None = None
    """The number of workers for which there are task slots, by the newest report."""
    decided: str = ""
    """The reason of the newest decision by the load."""

    def figures(self) -> dict[str, Any]:
        """The figures for a progress report and for metrics."""
        found: dict[str, Any] = {"workers": self.workers, "to": self.to, "stage": self.stage}
        if self.elastic is None:
            return found
        least, most = self.elastic
        bounds = {"least": least, "most": most, "required": self.required, "room": self.room}
        return {**found, **bounds, "decided": self.decided}


def standby_figures(slices: Slices) -> dict[str, Any] | None:
    """Figures of all slices, for a progress report; None where no worker is replaced alone."""
    if slices.standbys is None:
        return None
    held = [behind for one in slices.all if (behind := least_behind(one.standbys)) is not None]
    failovers = [one.last_failover for one in slices.all if one.last_failover is not None]
    last = max(failovers, key=lambda one: one.timestamp, default=None)
    return {
        "ready": slices.standbys[0],
        "wanted": slices.standbys[1],
        "slicesHeld": len(held),
        "behind": max(held, default=None),
        "logBytes": sum(one.log_bytes for one in slices.all),
        "keptBytes": sum(one.kept_bytes for one in slices.all),
        "replaced": sum(one.replaced for one in slices.all),
        "lastFailoverMs": None if last is None else last.total_ms,
    }


def least_behind(standbys: Sequence[SliceStandby]) -> int | None:
    """The number of checkpoints by which the best standby is behind; None where none holds the slice."""
    return min((one.behind for one in standbys if one.behind is not None), default=None)
