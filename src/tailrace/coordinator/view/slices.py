"""The slices of a job as its user sees them: where each runs, who holds its state, how much would have to be done again, and
how it was replaced (`showing` makes that of what the coordinator knows)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SliceStandby:
    """A process that stands by and is to hold the state of a slice. `place` is its number, behind those of the workers;
    `host`, `executor` (None where Spark does not say, as in local mode) and `pid` say where it runs. `ready`: it holds the
    state as checkpoint `checkpoint` has it, which is `behind` checkpoints older than the newest complete one, and
    `behind_seconds`; they are None before that."""

    place: int
    host: str
    executor: str | None
    pid: int
    ready: bool
    checkpoint: int | None = None
    behind: int | None = None
    behind_seconds: float | None = None


@dataclass(frozen=True)
class Failover:
    """How the worker of a slice was replaced while the others went on, in milliseconds from when its loss was noticed, at
    `timestamp` (seconds since 1970): until a process was there for it (`process_ms`), until the others had said what they
    know (`survivors_ms`, what that took longer), until its state was there and functions were open (`restore_ms`), and
    until it had done again what the lost one did (`replay_ms`). `total_ms` is all of that."""

    timestamp: float
    process_ms: float
    survivors_ms: float
    restore_ms: float
    replay_ms: float
    total_ms: float


@dataclass(frozen=True)
class SliceStatus:
    """A slice: the part of a job that one worker runs. `host`, `executor` (None where Spark does not say, as in local mode)
    and `pid` say where; None: nobody runs it now. `attempt` is the `ctx.attempt` of its functions. `standbys` are those that
    are to hold its state.

    By the newest report of its worker, `log_entries` and `log_bytes` are those of its history since the newest complete
    checkpoint, which another worker would have to do again, and `kept_bytes` what it keeps of what has gone to others.

    `replaced`: how many times its worker was replaced while others went on, the last time as `last_failover` tells;
    `being_replaced`: whether it is now. `not_replaced`: why it could not be the last time that it was lost and could not;
    empty where that never was so."""

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


@dataclass(frozen=True)
class Slices:
    """Those of a job, in the order of their slots."""

    all: tuple[SliceStatus, ...] = ()
    standbys: tuple[int, int] | None = None
    """How many processes that stand by are ready, and how many there are to be; None where no worker is replaced alone."""


def standby_figures(slices: Slices) -> dict[str, Any] | None:
    """A few figures of them all, for a progress report; None where no worker is replaced alone."""
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
    """How many checkpoints the best of them is behind; None where none holds the slice."""
    return min((one.behind for one in standbys if one.behind is not None), default=None)
