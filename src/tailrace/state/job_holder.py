"""The holder of a job, by the claims in its folder, and what a run may do then. `storage` reads and makes claims, for
production and the simulator alike; this module decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """The claim of an incarnation, as it was read."""

    incarnation: int
    run_id: str | None
    """The run that has made the claim; None if the claim cannot be read."""
    where: str = ""
    """The process that has made the claim, for people."""
    lives: bool = False
    """True if that process is known to live, and has not released the claim."""
    term: int = 0
    """Number of coordinators of this run that were lost before the one that has made the claim."""


def barred_by(run_id: str, newest: Holder | None) -> Holder | None:
    """The run that keeps a starting run from taking the job, if there is one. A run that may live on another host is taken
    over: it cannot be told from a dead one, and it is fenced."""
    return newest if newest is not None and newest.lives and _another(run_id, newest) else None


def overtaken_by(run_id: str, newer: Iterable[Holder], term: int = 0) -> Holder | None:
    """The first of the `newer` claims by which another run, or a successor of this coordinator, has taken the job over.

    The coordinator of `term` restarts, commits or ends; `newer` are the claims after its own. A coordinator that was
    overtaken must claim, commit and remove nothing more: its successor starts from what it has written, and publishes
    what it has prepared. A claim of an earlier term overtakes no coordinator.
    """
    return next((one for one in newer if _another(run_id, one) or one.term > term), None)


def _another(run_id: str, holder: Holder) -> bool:
    return holder.run_id is not None and holder.run_id != run_id
