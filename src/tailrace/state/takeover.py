"""Who holds a job, by the claims in its folder. `storage` reads and makes claims, for production and the simulator
alike; this module decides what a run may do then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """The claim of an incarnation, as it was read."""

    incarnation: int
    run_id: str | None
    """Which run has made it; None where that cannot be read."""
    where: str = ""
    """In which process, for people."""
    lives: bool = False
    """Whether that process is known to live, and has not given the claim up."""
    term: int = 0
    """How many coordinators of this run were lost before the one that has made the claim."""


def barred_by(run_id: str, newest: Holder | None) -> Holder | None:
    """A run starts: the run that it must not take the job from, if there is one. One that may live elsewhere is taken over:
    nobody can tell it from a dead one, and it is fenced."""
    return newest if newest is not None and newest.lives and _another(run_id, newest) else None


def overtaken_by(run_id: str, newer: Iterable[Holder], term: int = 0) -> Holder | None:
    """The first of the `newer` claims by which another run has taken the job over, or a successor of this coordinator.

    The coordinator of `term` restarts, commits or ends; `newer` are the claims after its own. One that was overtaken must
    claim and commit nothing more, and remove nothing: the other one starts from what it has written, and publishes what it
    has prepared. A claim of an earlier term overtakes nobody.
    """
    return next((one for one in newer if _another(run_id, one) or one.term > term), None)


def _another(run_id: str, holder: Holder) -> bool:
    return holder.run_id is not None and holder.run_id != run_id
