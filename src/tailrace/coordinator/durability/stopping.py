"""The stop of a job: who wants it, how far it has come, and what they are told.

    NONE --asked--> WANTED --the job runs--> SUSPENDING or DRAINING --its checkpoint is complete--> SEALED
      ^                ^                          |
      |                +---- a worker is replaced-+
      +----------------+--------------------------+  it has failed: whoever waits is told, and the job goes on

Where the manifest of its checkpoint was on its way when an attempt was over, it is DOUBTFUL: only the next claim can tell
what has become of it. From SEALED there is no way back: a restart publishes what is not visible yet, and then the job ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tailrace.coordinator.actions import SavepointEnded, StopEnded
from tailrace.coordinator.stats import CheckpointStats, SavepointStats
from tailrace.errors import InternalError


@dataclass(frozen=True)
class Aim:
    """What a stop is to be."""

    drain: bool = False
    """Whether sources end, so that the job comes to its end as if its inputs had: loops come to rest, timers fire, functions
    finish. Else everything stays as it is, to go on from there."""
    savepoint: str | None = None
    """The folder of the savepoint that is wanted; empty: the usual one; None: no savepoint."""

    def __str__(self) -> str:
        how = "a stop that drains" if self.drain else "a stop"
        return how if self.savepoint is None else f"{how} with a savepoint in {self.savepoint or 'the usual place'}"


class Stage(Enum):
    """How far a stop has come."""

    NONE = "none"
    WANTED = "wanted"
    """The job does not run yet, or again."""
    SUSPENDING = "suspending"
    """The checkpoint behind which tasks do nothing is under way."""
    DRAINING = "draining"
    """Sources have ended, and the job comes to its end."""
    DOUBTFUL = "doubtful"
    """Its checkpoint may be complete, or not: nobody has answered for the manifest before the attempt was over."""
    SEALED = "sealed"
    """Its checkpoint is complete."""


class Happening(Enum):
    """What may happen to a stop."""

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
    (Stage.WANTED, Happening.SEALED): Stage.SEALED,
    (Stage.SUSPENDING, Happening.FAILED): Stage.NONE,
    (Stage.SUSPENDING, Happening.ONCE_MORE): Stage.WANTED,
    (Stage.SUSPENDING, Happening.IN_DOUBT): Stage.DOUBTFUL,
    (Stage.SUSPENDING, Happening.SEALED): Stage.SEALED,
    (Stage.DRAINING, Happening.FAILED): Stage.NONE,
    (Stage.DRAINING, Happening.IN_DOUBT): Stage.DOUBTFUL,
    (Stage.DRAINING, Happening.SEALED): Stage.SEALED,
    (Stage.DOUBTFUL, Happening.FAILED): Stage.NONE,
    (Stage.DOUBTFUL, Happening.IN_DOUBT): Stage.DOUBTFUL,
    (Stage.DOUBTFUL, Happening.SEALED): Stage.SEALED,
}
"""What a stop comes to. A job that has come to its end by itself is sealed without anybody's asking."""


class Stopping:
    """The bookkeeping of one run; what follows from it is for the coordinator to do.

    Invariant J6: whoever asks for a stop is told once, and only when the job has ended, or goes on; from SEALED on the job
    restores nothing but the checkpoint of the stop, and deploys only to publish.
    """

    def __init__(self) -> None:
        self.stage = Stage.NONE
        self.aim: Aim | None = None
        self.sealed: CheckpointStats | None = None
        """The checkpoint of the stop, once it is complete; None where the job takes none."""
        self._waiting: list[Any] = []
        self._savepoint: SavepointStats | None = None
        self._no_savepoint = ""
        """Why there is none that was wanted."""

    @property
    def active(self) -> bool:
        """Whether the job is being stopped."""
        return self.stage is not Stage.NONE

    @property
    def is_sealed(self) -> bool:
        """Whether the job has nothing more to do than to publish, and to end."""
        return self.stage is Stage.SEALED

    @property
    def keeps(self) -> bool:
        """Whether the checkpoint of the stop is all that there is to go on from, since the savepoint failed."""
        return self.is_sealed and bool(self._no_savepoint)

    @property
    def is_open(self) -> bool:
        """Whether it may still fail."""
        return self.stage not in (Stage.NONE, Stage.SEALED)

    @property
    def saved(self) -> str:
        """The folder of the savepoint of the stop; empty where there is none."""
        return "" if self._savepoint is None else self._savepoint.path

    def ask(self, who: Any, aim: Aim) -> list[StopEnded]:
        """Somebody wants the job to stop: so does who has asked before for the same, else it is refused."""
        if not self.active:
            self._goes(Happening.ASKED)
            self.aim = aim
        elif self.aim is None:  # sealed before anybody had asked
            if aim.savepoint is not None:
                return [StopEnded(who, None, None, "the job has come to its end; start it again for a savepoint")]
            self.aim = aim
        elif aim != self.aim:
            what = f"the job is being stopped already, by {self.aim}, and not by {aim}; wait for it, or cancel the job"
            return [StopEnded(who, None, None, what)]
        self._waiting.append(who)
        return []

    def begins(self, *, suspend: bool) -> None:
        """The job runs: its sources are told, or the cut is asked for."""
        self._goes(Happening.SUSPENDS if suspend else Happening.DRAINS)

    def seal(self, stats: CheckpointStats | None) -> None:
        """The last checkpoint of the job is complete. Said again, it is the same."""
        if not self.is_sealed:
            self._goes(Happening.SEALED)
            self.sealed = stats

    def failed(self, reason: str) -> list[StopEnded]:
        """Its checkpoint will not be complete, and the job goes on, or fails."""
        if not self.is_open:
            return []
        self._goes(Happening.FAILED)
        self.aim, self._savepoint, self._no_savepoint = None, None, ""
        return self._tell(lambda who: StopEnded(who, None, None, reason))

    def once_more(self) -> None:
        """Its checkpoint was given up, and is taken anew as soon as the job runs whole again."""
        self._goes(Happening.ONCE_MORE)
        self._savepoint, self._no_savepoint = None, ""

    def doubtful(self) -> None:
        """The manifest of its checkpoint was on its way when the attempt was over."""
        if not self.is_sealed:
            self._goes(Happening.IN_DOUBT)

    def savepoint_ended(self, ended: SavepointEnded) -> None:
        """The savepoint of the stop is there, or never will be."""
        self._savepoint, self._no_savepoint = ended.stats, ended.reason

    def over(self, status: str, well: bool, kept: bool) -> list[StopEnded]:
        """The job ends so; everybody is told. `kept`: the checkpoint of the stop outlives it."""
        complete, path = self.sealed, "" if self.sealed is None else f"checkpoint {self.sealed.id} ({self.sealed.path})"
        if well and self._no_savepoint:
            reason = f"the job has stopped, but there is no savepoint: {self._no_savepoint}; start it again from {path}"
            return self._tell(lambda who: StopEnded(who, None, None, reason))
        if well:
            wanted = self.aim is not None and self.aim.savepoint is not None
            taken = complete if kept else None
            return self._tell(lambda who: StopEnded(who, taken, self._savepoint if wanted else None, ""))
        reason = f"the job is {status}"
        if complete is not None and kept:
            reason += (
                f"; {path} of the stop is complete: a start from it publishes what is not visible yet, and goes on"
            )
        return self._tell(lambda who: StopEnded(who, None, None, reason))

    def _tell(self, said: Callable[[Any], StopEnded]) -> list[StopEnded]:
        waiting, self._waiting = self._waiting, []
        return [said(who) for who in waiting]

    def _goes(self, happening: Happening) -> None:
        after = AFTER.get((self.stage, happening))
        if after is None:
            raise InternalError(f"a stop that is {self.stage.value} cannot be {happening.value}")
        self.stage = after
