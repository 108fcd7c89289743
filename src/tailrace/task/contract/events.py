"""Events of a worker, as data: its driver hands them to it, one after the other. What a worker does is a function of them
(K3). Its drivers are `runtime.worker.main_loop`, where sockets and the clock decide, the simulator, where a seed does, and
a replay, where a log of these values does.

An event is made once for each frame, step or message, never for each record.
"""

from __future__ import annotations

import msgspec

from tailrace.protocol.deployment import Failed
from tailrace.protocol.message_codec import ToWorker
from tailrace.state.parts import Part


class _Event(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The root of all events."""


# Steps: the times at which tasks work, and how much they do.


class Step(_Event, frozen=True, gc=False):
    """A step of the task of a vertex, of about `budget` records. `now` is the clock (int64 microseconds)."""

    vertex: int
    now: int
    budget: int


class Flush(_Event, frozen=True):
    """A flush of what was gathered, when no task has anything to do."""

    answers: bool = True
    """True if a hot standby that has replayed all that it can may answer its worker, which then sends what has come."""


class Encode(_Event, frozen=True, gc=False):
    """A portion of encoding: about `limit` more entries of a snapshot. The driver decides when: between steps, and no
    longer than it can let the records wait."""

    now: int
    limit: int


class FreezeTook(_Event, frozen=True, gc=False):
    """The duration of the last cut of a vertex's task, which the driver has measured."""

    vertex: int
    micros: int


class ReportDue(_Event, frozen=True):
    """A progress report is due."""

    busy: dict[int, int]
    """Microseconds of work, by vertex."""
    elapsed: int
    refused: dict[str, int] = {}
    """Connections refused at the worker's port, by reason."""
    now: int = 0
    """The clock (int64 microseconds)."""


# Other workers.


class FrameArrived(_Event, frozen=True, gc=False):
    """Bytes from the worker of slot `peer`: records, a marker or a grant."""

    data: bytes
    peer: int


class PeersConnected(_Event, frozen=True):
    """Answers `ConnectPeers`: all links to other workers are up."""


class PeersUnreachable(_Event, frozen=True):
    """Answers `ConnectPeers`: a worker cannot be reached."""

    reason: str


class PeerLost(_Event, frozen=True):
    """The loss of a link to another worker."""

    peer: int
    reason: str


class PeerBack(_Event, frozen=True):
    """Answers `AwaitPeer`: the link to the worker that has taken a lost one's place is up."""

    peer: int


# The coordinator.


class CoordinatorSaid(_Event, frozen=True):
    """A message from the coordinator."""

    message: ToWorker


class CoordinatorLost(_Event, frozen=True):
    """The loss of the coordinator's link: no message will reach this worker any more."""

    reason: str


class CoordinatorFound(_Event, frozen=True):
    """A link to another coordinator of the run, which may go on in the place of the lost one."""


class MessageTooLarge(_Event, frozen=True):
    """Answers `ToCoordinator`: a message of this name cannot be sent."""

    name: str
    reason: str


class DriverFailed(_Event, frozen=True):
    """An unexpected error, which the driver caught."""

    fault: Failed


# The storage of checkpoints.


class StatePartRead(_Event, frozen=True):
    """Answers `ReadState` of this number: a part of the state that is to be restored. Others follow."""

    number: int
    part: Part


class StateRead(_Event, frozen=True):
    """Answers `ReadState` of this number: all parts were read."""

    number: int


class StateUnreadable(_Event, frozen=True):
    """Answers `ReadState` of this number: the state cannot be read. `fatal` if another try would not help."""

    number: int
    reason: str
    fatal: bool


class PlacedRead(_Event, frozen=True):
    """Answers `ReadPlaced` of this number: the bytes, in the order of the request."""

    number: int
    data: list[bytes]


class PlacedUnreadable(_Event, frozen=True):
    """Answers `ReadPlaced` of this number: the bytes cannot be read. `fatal` if another try would not help."""

    number: int
    reason: str
    fatal: bool


class StateWritten(_Event, frozen=True):
    """Answers the last `WriteState` of a checkpoint: its file is durable. `now` is the clock (int64 microseconds)."""

    checkpoint: int
    now: int


class StateNotWritten(_Event, frozen=True):
    """Answers a `WriteState` of a checkpoint: its file cannot be written."""

    checkpoint: int
    reason: str


# The world outside.


class CallsAnswered(_Event, frozen=True, gc=False):
    """Answers to asynchronous calls (`BeginCalls`): so many more of an operator are there. A step of its task takes them, as
    answers of the world outside (`task.contract.calls`)."""

    uid: str
    count: int


class ReaderWoken(_Event, frozen=True, gc=False):
    """The reader of all splits of a source has woken its task: records may have come."""

    uid: str


class SinkAnswered(_Event, frozen=True):
    """Answers `CallSink` of this number: the call has come back, or raised."""

    number: int
    error: str = ""
    """What it raised, in words; empty where it has raised nothing."""
    traceback: str = ""
    """The user's part of the traceback."""
    permanent: bool = False
    """True if the same call would raise again, however often it is made."""


Event = (
    Step
    | Flush
    | Encode
    | FreezeTook
    | ReportDue
    | FrameArrived
    | PeersConnected
    | PeersUnreachable
    | PeerLost
    | PeerBack
    | CoordinatorSaid
    | CoordinatorLost
    | CoordinatorFound
    | MessageTooLarge
    | DriverFailed
    | StatePartRead
    | StateRead
    | StateUnreadable
    | PlacedRead
    | PlacedUnreadable
    | StateWritten
    | StateNotWritten
    | CallsAnswered
    | ReaderWoken
    | SinkAnswered
)
