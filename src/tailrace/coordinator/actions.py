"""The actions of a job's coordinator, as data. Its drivers carry them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.coordinator.checkpoint_stats import CheckpointStats, SavepointStats
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.protocol.deployment import PrintedLine, UnderWay
from tailrace.protocol.message_codec import ToWorker
from tailrace.state.manifest import Manifest


@dataclass(frozen=True)
class Launch:
    """An action: start a Spark job for a slot or for a standby. The places of standbys count on behind the slots."""

    slot: int
    launch: int = 1
    """The number of this start of the place."""


@dataclass(frozen=True)
class Send:
    """An action: send a message to the worker that holds a slot under this epoch."""

    slot: int
    epoch: int
    message: ToWorker


@dataclass(frozen=True)
class CloseLink:
    """An action: close the link of a worker that was replaced or that has left."""

    slot: int
    epoch: int


@dataclass(frozen=True)
class Kill:
    """An action: cancel a Spark job of a place. Its worker did not leave by itself, or the job does not need it any
    more."""

    slot: int
    launch: int = 1


@dataclass(frozen=True)
class StatusChanged:
    """An action: report a new status of the job to its watchers."""

    status: JobStatus


@dataclass(frozen=True)
class Claim:
    """An action: claim a new incarnation, so that no process can commit under an older one. `claim_done` or
    `claim_failed` is the answer."""


@dataclass(frozen=True)
class CheckClaim:
    """An action: look whether another start of the job has taken it over since this incarnation was claimed.
    `claim_checked` is the answer."""

    incarnation: int


@dataclass(frozen=True)
class Commit:
    """An action: create the manifest of a checkpoint. `commit_done` or `not_committed` is the answer."""

    checkpoint: int
    incarnation: int
    after: int
    """The checkpoint that was committed before it under this incarnation; 0: none."""
    data: bytes
    needs: list[str]
    """The files that the manifest names. The storage must not create it where one of them is gone."""


@dataclass(frozen=True)
class KeepCapsule:
    """An action: write the capsule of a failed call into the folder of capsules. Nothing waits for it."""

    name: str
    data: bytes


@dataclass(frozen=True)
class Delete:
    """An action: delete these files (relative to the checkpoint folder of the job), which are not needed any more."""

    names: list[str]


@dataclass(frozen=True)
class Sweep:
    """An action: delete what this run has written under incarnations before this one, except files in `needed`. Delete also
    what earlier runs have left and no manifest of theirs names."""

    incarnation: int
    needed: list[str]
    keep_runs: int = 0
    """The number of earlier runs that keep what they have left; 0: all."""
    spare: str = ""
    """A run that keeps what it has left in any case: the job goes on from its checkpoint."""


@dataclass(frozen=True)
class MarkSwept:
    """An action: note that sinks have removed what earlier runs had left hidden. The next start need not look for it."""


@dataclass(frozen=True)
class MarkPublished:
    """An action: mark this manifest. All output that it has prepared was published, and need not be published again.
    `mark_done` is the answer, when the mark is written."""

    path: str


@dataclass(frozen=True)
class CheckpointEnded:
    """An action: report to the parties that wait for a checkpoint that it is complete (`stats`), or why it never will
    be."""

    checkpoint: int
    waiting: tuple[Any, ...]
    stats: CheckpointStats | None
    reason: str | None


@dataclass(frozen=True)
class CheckpointFailed:
    """An action: report to the watchers that a checkpoint has failed, how many have failed in a row, and what comes
    next."""

    checkpoint: int
    reason: str
    in_a_row: int
    then: str


@dataclass(frozen=True)
class OutOfReach:
    """An action: report to the watchers that the job waits for a place (the storage of checkpoints, or a sink's). The
    report has the reason, the number of failed tries, the microseconds since the first one (`since`), and the microseconds
    until the next one."""

    place: str
    reason: str
    tries: int
    since: int
    pause: int
    patience: int
    setting: str = "storage_patience"
    """The name of the setting that the patience comes from."""


@dataclass(frozen=True)
class InReach:
    """An action: report to the watchers that a place can be used again, which was out of reach for `took` microseconds."""

    place: str
    took: int


@dataclass(frozen=True)
class CopySavepoint:
    """An action: copy the state files of a checkpoint into a folder of their own (`target`; empty: the usual one), with
    this manifest. `copy_done` or `not_copied` is the answer, however long the copy takes. The driver carries out other
    actions meanwhile."""

    checkpoint: int
    savepoint: Manifest
    target: str


@dataclass(frozen=True)
class SavepointEnded:
    """An action: report to the party that waits for a savepoint that it is there (`stats`), or why it never will be.
    `checkpoint` is 0 where none was begun for it."""

    checkpoint: int
    who: Any
    stats: SavepointStats | None
    reason: str
    cancels: bool = False
    """True if the job is cancelled behind the savepoint."""


@dataclass(frozen=True)
class StopEnded:
    """An action: report to the party that requested a stop that the job has stopped, with its last checkpoint and its
    savepoint, where there are such; or why it has not (`reason` is not empty then)."""

    who: Any
    stats: CheckpointStats | None
    savepoint: SavepointStats | None
    reason: str


@dataclass(frozen=True)
class RescaleEnded:
    """An action: report to the party that requested another size that the job has it, or why it has not (`reason` is not
    empty then). `slots`: the number of its workers now."""

    who: Any
    slots: int
    reason: str


@dataclass(frozen=True)
class WasPublished:
    """An action: note that sinks have made something visible. The driver may have something left to do (a table's
    cache)."""


@dataclass(frozen=True)
class Restarting:
    """An action: report a restart to the watchers."""

    attempt: int
    cause: Cause
    advice: str = ""
    """The record that has failed, how often, and what to do about it; empty where no record is to blame."""


@dataclass(frozen=True)
class Resizing:
    """An action: report to the watchers that the job starts again with another number of workers. `reason`: why it goes
    back to the size before; empty where it does not. `lacking`: why an elastic job has fewer than it is to have."""

    before: int
    after: int
    text: str
    reason: str = ""
    lacking: str = ""


@dataclass(frozen=True)
class NotResized:
    """An action: report to the watchers that the job has not the size that was requested, and why."""

    slots: int
    text: str
    reason: str


@dataclass(frozen=True)
class Autoscaled:
    """An action: report to the watchers that the load of an elastic job has decided on another number of workers, and why.
    It has them when there are task slots."""

    before: int
    after: int
    reason: str


@dataclass(frozen=True)
class Stalled:
    """An action: report to the watchers that the thread of a slot's worker has not come back from its work, and where it
    is."""

    slot: int
    under_way: UnderWay


@dataclass(frozen=True)
class Replacing:
    """An action: report to the watchers that a worker was lost, and that it is being replaced while the other workers go
    on."""

    slot: int
    cause: Cause


@dataclass(frozen=True)
class NotReplaced:
    """An action: report to the watchers why a lost worker cannot be replaced alone: all workers start again."""

    slot: int
    reason: str


@dataclass(frozen=True)
class WorkerReplaced:
    """An action: report to the watchers that a worker has taken the place of a lost one, `took` microseconds after the loss
    was noticed."""

    slot: int
    took: int


@dataclass(frozen=True)
class ValuesNotCompared:
    """An action: report to the watchers that the values which an operator sends are not all compared where a worker is
    replaced."""

    operator: str
    reason: str


@dataclass(frozen=True)
class HistoryFills:
    """An action: report to the watchers that the history of a worker takes so many bytes of `most`, and that a checkpoint
    is taken early for that."""

    slot: int
    taken: int
    most: int


@dataclass(frozen=True)
class StandbyLost:
    """An action: report to the watchers that a standby is gone. `left`: it is not started again."""

    place: int
    reason: str
    left: bool


@dataclass(frozen=True)
class NotHot:
    """An action: report to the watchers that a standby follows the worker of a slice no more."""

    place: int
    slot: int
    reason: str


@dataclass(frozen=True)
class WorkerPrinted:
    """An action: report to the watchers what user code has printed in a worker. `left_out`: the number of further lines."""

    slot: int
    lines: Sequence[PrintedLine]
    left_out: int


StoreAction = KeepCapsule | Claim | CheckClaim | Commit | Delete | Sweep | MarkPublished | MarkSwept | CopySavepoint
"""The actions that go to the storage of checkpoints."""
Ended = CheckpointEnded | SavepointEnded | StopEnded | RescaleEnded
"""The actions that report the end of a request to the party that waits for it."""
Replacement = Replacing | NotReplaced | WorkerReplaced | StandbyLost | NotHot | ValuesNotCompared | HistoryFills
Told = (
    Restarting
    | Resizing
    | NotResized
    | Autoscaled
    | Stalled
    | Replacement
    | CheckpointFailed
    | OutOfReach
    | InReach
    | WorkerPrinted
)
"""The actions that the job's log reports to its watchers."""
Action = Launch | Send | CloseLink | Kill | StatusChanged | Ended | WasPublished | Told | StoreAction
