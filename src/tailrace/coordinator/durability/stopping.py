"""The stop of a job: its requests, its stage, and the answers to the parties that wait for it.

    NONE --asked--> WANTED --the job runs--> SUSPENDING or DRAINING --its checkpoint is complete--> SEALED
      ^                ^                          |
      |                +--------------------------+  a worker is replaced, or all workers restart
      +----------------+--------------------------+  it has failed: the waiting parties are informed, and the job goes on

Where the manifest of its checkpoint was on its way when an attempt was over, it is DOUBTFUL: only the next claim shows
what has become of it. A stop has `ATTEMPTS` attempts. From SEALED there is no way back: a restart publishes what is not
visible yet, and then the job ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tailrace.coordinator.actions import SavepointEnded, StopEnded
from tailrace.coordinator.checkpoint_stats import CheckpointStats, SavepointStats
from tailrace.coordinator.durability.savepoints import ATTEMPTS, given_up
from tailrace.errors import InternalError


@dataclass(frozen=True)
class Aim:
    """The aim of a stop."""

    drain: bool = False
    """True if sources end, so that the job comes to its end as if its inputs had: loops come to rest, timers fire,
    functions finish. False if everything stays as it is, to go on from there."""
    savepoint: str | None = None
    """The folder of the requested savepoint; empty: the usual one; None: no savepoint."""

    def __str__(self) -> str:
        how = "a stop that drains" if self.drain else "a stop"
        return how if self.savepoint is None else f"{how} with a savepoint in {self.savepoint or 'the usual place'}"


class Stage(Enum):
    """The stages of a stop."""

    NONE = "none"
    WANTED = "wanted"
    """A stop is requested; the job does not run yet, or again."""
    SUSPENDING = "suspending"
    """The checkpoint behind which tasks do nothing is under way."""
    DRAINING = "draining"
    """Sources have ended, and the job comes to its end."""
    DOUBTFUL = "doubtful"
    """The checkpoint of the stop may be complete, or not: the storage had not answered for the manifest when the attempt
    was over."""
    SEALED = "sealed"
    """The checkpoint of the stop is complete."""


class Happening(Enum):
    """The events of a stop."""

    ASKED = "asked"
    SUSPENDS = "suspends"
    DRAINS = "drains"
    FAILED = "failed"
    ONCE_MORE = "once more"
    IN_DOUBT = "in doubt"
    SEALED = "sealed"


AFTER: dict[tuple[Stage, Happening], Stage] = {
    (Stage.NONE, Happening.ASKED): Stage.WANTED,
    (Stage.NONE, Happening.SEALED): Stage.SEALED,
    (Stage.WANTED, Happening.SUSPENDS): Stage.SUSPENDING,
    (Stage.WANTED, Happening.DRAINS): Stage.DRAINING,
    (Stage.WANTED, Happening.FAILED): Stage.NONE,
    (Stage.WANTED, Happening.ONCE_MORE): Stage.WANTED,
    (Stage.WANTED, Happening.SEALED): Stage.SEALED,
    (Stage.SUSPENDING, Happening.FAILED): Stage.NONE,
    (Stage.SUSPENDING, Happening.ONCE_MORE): Stage.WANTED,
    (Stage.SUSPENDING, Happening.IN_DOUBT): Stage.DOUBTFUL,
    (Stage.SUSPENDING, Happening.SEALED): Stage.SEALED,
    (Stage.DRAINING, Happening.FAILED): Stage.NONE,
    (Stage.DRAINING, Happening.ONCE_MORE): Stage.WANTED,
    (Stage.DRAINING, Happening.IN_DOUBT): Stage.DOUBTFUL,
    (Stage.DRAINING, Happening.SEALED): Stage.SEALED,
    (Stage.DOUBTFUL, Happening.FAILED): Stage.NONE,
    (Stage.DOUBTFUL, Happening.ONCE_MORE): Stage.WANTED,
    (Stage.DOUBTFUL, Happening.IN_DOUBT): Stage.DOUBTFUL,
    (Stage.DOUBTFUL, Happening.SEALED): Stage.SEALED,
}
"""The stage of a stop after each event. A job that has come to its end by itself is sealed without a request."""


class Stopping:
    """The bookkeeping of one run's stop; the coordinator carries out what follows.

    Invariant J6: each request of a stop is answered once, and only when the job has ended, or goes on; from SEALED on the
    job restores nothing but the checkpoint of the stop, and deploys only to publish. At most `ATTEMPTS` attempts are ended
    by failures of workers.
    """

    def __init__(self) -> None:
        self.stage = Stage.NONE
        self.aim: Aim | None = None
        self.sealed: CheckpointStats | None = None
        """The checkpoint of the stop, once it is complete; None where the job takes none."""
        self._failures = 0
        """The number of attempts that failures of workers have ended."""
        self._waiting: list[Any] = []
        self._savepoint: SavepointStats | None = None
        self._no_savepoint = ""
        """The reason why the requested savepoint does not exist."""

    @property
    def active(self) -> bool:
        """True if the job is being stopped."""
        return self.stage is not Stage.NONE

    @property
    def is_sealed(self) -> bool:
        """True if the job has nothing more to do than to publish, and to end."""
        return self.stage is Stage.SEALED

    @property
    def keeps(self) -> bool:
        """True if only the checkpoint of the stop is left to start from, since the savepoint failed."""
        return self.is_sealed and bool(self._no_savepoint)

    @property
    def is_open(self) -> bool:
        """True if the stop may still fail."""
        return self.stage not in (Stage.NONE, Stage.SEALED)

    @property
    def saved(self) -> str:
        """The folder of the savepoint of the stop; empty where there is none."""
        return "" if self._savepoint is None else self._savepoint.path

    def request(self, who: Any, aim: Aim) -> list[StopEnded]:
        """Takes a request of a stop. A later request joins the first one if its aim is equal, and is refused otherwise."""
        if not self.active:
            self._goes(Happening.ASKED)
            self.aim = aim
        elif self.aim is None:  # sealed before any request
            if aim.savepoint is not None:
                return [StopEnded(who, None, None, "the job has come to its end; start it again for a savepoint")]
            self.aim = aim
        elif aim != self.aim:
            what = f"the job is being stopped already, by {self.aim}, and not by {aim}; wait for it, or cancel the job"
            return [StopEnded(who, None, None, what)]
        self._waiting.append(who)
        return []

    def begins(self, *, suspend: bool) -> None:
        """Begins the stop of a job that runs: its sources end, or the cut is requested."""
        self._goes(Happening.SUSPENDS if suspend else Happening.DRAINS)

    def seal(self, stats: CheckpointStats | None) -> None:
        """Notes that the last checkpoint of the job is complete. A second call changes nothing."""
        if not self.is_sealed:
            self._goes(Happening.SEALED)
            self.sealed = stats

    def fail(self, reason: str) -> list[StopEnded]:
        """Ends the stop without success: its checkpoint will not be complete, and the job goes on, or fails."""
        if not self.is_open:
            return []
        self._goes(Happening.FAILED)
        self.aim, self._savepoint, self._no_savepoint, self._failures = None, None, "", 0
        return self._answer(lambda who: StopEnded(who, None, None, reason))

    def once_more(self, reason: str) -> list[StopEnded]:
        """Lets the stop wait until all workers run again. Its checkpoint was given up because of a failure of a worker, or
        of all, and is taken anew then. The stop fails where it has no attempt left."""
        self._failures += 1
        if self._failures == ATTEMPTS:
            return self.fail(f"{given_up('its checkpoint was complete', reason)}; the job goes on")
        self._goes(Happening.ONCE_MORE)
        self._savepoint, self._no_savepoint = None, ""
        return []

    def doubtful(self) -> None:
        """Notes that the manifest of the stop's checkpoint was on its way when the attempt was over."""
        if not self.is_sealed:
            self._goes(Happening.IN_DOUBT)

    def savepoint_ended(self, ended: SavepointEnded) -> None:
        """Notes that the savepoint of the stop is there, or never will be."""
        self._savepoint, self._no_savepoint = ended.stats, ended.reason

    def over(self, status: str, well: bool, kept: bool) -> list[StopEnded]:
        """Answers all requests at the end of the job. `kept`: the checkpoint of the stop outlives the job."""
        complete, path = self.sealed, "" if self.sealed is None else f"checkpoint {self.sealed.id} ({self.sealed.path})"
        if well and self._no_savepoint:
            reason = f"the job has stopped, but there is no savepoint: {self._no_savepoint}; start it again from {path}"
            return self._answer(lambda who: StopEnded(who, None, None, reason))
        if well:
            savepoint = self.aim is not None and self.aim.savepoint is not None
            taken = complete if kept else None
            return self._answer(lambda who: StopEnded(who, taken, self._savepoint if savepoint else None, ""))
        reason = f"the job is {status}"
        if complete is not None and kept:
            reason += (
                f"; {path} of the stop is complete: a start from it publishes what is not visible yet, and goes on"
            )
        return self._answer(lambda who: StopEnded(who, None, None, reason))

    def _answer(self, outcome: Callable[[Any], StopEnded]) -> list[StopEnded]:
        waiting, self._waiting = self._waiting, []
        return [outcome(who) for who in waiting]

    def _goes(self, happening: Happening) -> None:
        after = AFTER.get((self.stage, happening))
        if after is None:
            raise InternalError(f"a stop that is {self.stage.value} cannot be {happening.value}")
        self.stage = after
