"""What the coordinator of a job wants done, as data. Its drivers carry it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.stats import CheckpointStats, SavepointStats
from tailrace.protocol.deployment import UnderWay
from tailrace.protocol.wire import AnyMessage
from tailrace.state.manifest import Manifest


@dataclass(frozen=True)
class Launch:
    """An action: start a Spark job for a slot, or for a standby: their places count on behind the slots."""

    slot: int
    launch: int = 1
    """Which start of the place it is."""


@dataclass(frozen=True)
class Send:
    """An action: a message to the worker that holds a slot under this epoch."""

    slot: int
    epoch: int
    message: AnyMessage


@dataclass(frozen=True)
class CloseLink:
    """An action: close the link of a worker that was replaced or that has left."""

    slot: int
    epoch: int


@dataclass(frozen=True)
class Kill:
    """An action: cancel a Spark job of a place; its worker did not leave by itself, or is not wanted any more."""

    slot: int
    launch: int = 1


@dataclass(frozen=True)
class StatusChanged:
    """An action: tell the watchers."""

    status: JobStatus


@dataclass(frozen=True)
class Claim:
    """An action: claim a new incarnation, so that nobody can commit under an older one. `claimed` or `claim_failed`."""


@dataclass(frozen=True)
class Commit:
    """An action: create the manifest of a checkpoint. `committed` or `not_committed`."""

    checkpoint: int
    incarnation: int
    after: int
    """The checkpoint that was committed before it under this incarnation; 0: none."""
    data: bytes
    needs: list[str]
    """The files that it names: it is not to be created where one is gone."""


@dataclass(frozen=True)
class Delete:
    """An action: these files (relative to the checkpoint folder of the job) are not needed any more."""

    names: list[str]


@dataclass(frozen=True)
class Sweep:
    """An action: what this run has written under incarnations before this one, and is not among `needed`, goes. So does what
    earlier runs have left and no manifest of theirs names."""

    incarnation: int
    needed: list[str]
    keep_runs: int = 0
    """So many earlier runs keep what they have left; 0: all."""
    spare: str = ""
    """A run that does in any case: the job goes on from its checkpoint."""


@dataclass(frozen=True)
class MarkSwept:
    """An action: sinks have removed what earlier runs had left under cover, and the next start need not look for it."""


@dataclass(frozen=True)
class MarkPublished:
    """An action: all that this manifest has prepared was published, and need not be published again. `marked`, when that is
    written down."""

    path: str


@dataclass(frozen=True)
class CheckpointEnded:
    """An action: tell those who wait for a checkpoint that it is complete (`stats`), or why it never will be."""

    checkpoint: int
    waiting: tuple[Any, ...]
    stats: CheckpointStats | None
    reason: str | None


@dataclass(frozen=True)
class CheckpointFailed:
    """An action: tell the watchers that a checkpoint has failed, how many have in a row, and what comes next."""

    checkpoint: int
    reason: str
    in_a_row: int
    then: str


@dataclass(frozen=True)
class OutOfReach:
    """An action: tell the watchers that the job waits for a place (the storage of checkpoints, that of a sink): why, how
    many tries have failed within so many microseconds (`since`), and in how many it is tried again."""

    place: str
    reason: str
    tries: int
    since: int
    pause: int
    patience: int


@dataclass(frozen=True)
class InReach:
    """An action: tell the watchers that a place can be used again, which was out of reach for so many microseconds."""

    place: str
    took: int


@dataclass(frozen=True)
class CopySavepoint:
    """An action: copy the state files of a checkpoint into a folder of their own (`target`; empty: the usual one), with this
    manifest. `copied` or `not_copied`, however long it takes: other wishes are not to wait for it."""

    checkpoint: int
    savepoint: Manifest
    target: str


@dataclass(frozen=True)
class SavepointEnded:
    """An action: tell who waits for a savepoint that it is there (`stats`), or why it never will be. `checkpoint` is 0 where
    none was begun for it."""

    checkpoint: int
    who: Any
    stats: SavepointStats | None
    reason: str


@dataclass(frozen=True)
class StopEnded:
    """An action: tell who has asked for a stop that the job has stopped, with its last checkpoint and its savepoint, where
    there are such; or why it has not (`reason` is not empty then)."""

    who: Any
    stats: CheckpointStats | None
    savepoint: SavepointStats | None
    reason: str


@dataclass(frozen=True)
class WasPublished:
    """An action: sinks have made something visible; on the driver's side something may be left to do (a table's cache)."""


@dataclass(frozen=True)
class Restarting:
    """An action: tell the watchers."""

    attempt: int
    cause: Cause


@dataclass(frozen=True)
class Stalled:
    """An action: tell the watchers that the thread of a slot's worker has not come back from what it does, and where it
    is."""

    slot: int
    under_way: UnderWay


@dataclass(frozen=True)
class Replacing:
    """An action: tell the watchers that a worker was lost, and that it is being replaced while the others go on."""

    slot: int
    cause: Cause


@dataclass(frozen=True)
class NotReplaced:
    """An action: tell the watchers why a worker that was lost cannot be replaced alone: all start again."""

    slot: int
    reason: str


@dataclass(frozen=True)
class WorkerReplaced:
    """An action: tell the watchers that a worker has taken the place of a lost one, so many microseconds after that was
    noticed."""

    slot: int
    took: int


@dataclass(frozen=True)
class StandbyLost:
    """An action: tell the watchers that a standby is gone. `left`: it is not started again."""

    place: int
    reason: str
    left: bool


StoreAction = Claim | Commit | Delete | Sweep | MarkPublished | MarkSwept | CopySavepoint
"""What is wanted of the storage of checkpoints."""
Ended = CheckpointEnded | SavepointEnded | StopEnded
"""What becomes of something that somebody waits for."""
Replacement = Replacing | NotReplaced | WorkerReplaced | StandbyLost
Told = Restarting | Stalled | Replacement | CheckpointFailed | OutOfReach | InReach
"""What the watchers of a job are told in its log."""
Action = Launch | Send | CloseLink | Kill | StatusChanged | Ended | WasPublished | Told | StoreAction
