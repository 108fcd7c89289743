"""The messages by which coordinator and workers agree that a checkpoint is complete.

    worker                          coordinator
                              <-    Trigger(cut)       to all workers; sources and tasks without live inputs cut
    (cut, freeze, encode, write)
    Ack(n, file, …)           ->                       all tasks of the worker are in one durable file
    Declined(n, reason)       ->                       or it cannot be
                              <-    Complete(n)        all acked, and the manifest was created
                              <-    Abort(n)           or it will never be: timeout, a decline, a failed write

The output that sinks prepared for n goes with the ack into the manifest, and is published after its commit
(`deployment.Publish`).
"""

from __future__ import annotations

import msgspec

from tailrace.elements.cuts import CutRequest
from tailrace.protocol.message import Message
from tailrace.state.format import Placed, TableInfo
from tailrace.state.manifest import InFlight


class Trigger(Message, frozen=True):
    """A command to a worker: take a checkpoint."""

    cut: CutRequest

    @property
    def checkpoint(self) -> int:
        """The number of the checkpoint."""
        return self.cut.number


class OperatorAck(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator's entry in the manifest, as one subtask knows it."""

    uid: str
    name: str
    parallelism: int
    finished: bool = False
    stateful: bool = False
    tables: list[TableInfo] = []
    kind: str = ""
    shape: list[str] = []
    own: list[TableInfo] = []
    keys: list[list[str]] = []


class SubtaskAck(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of one subtask in a checkpoint. Times are int64 microseconds."""

    vertex: int
    subtask: int
    alignment_micros: int = 0
    """Time from the reading of the first marker to the cut."""
    freeze_micros: int = 0
    """Duration of the step in which the task cut."""
    encode_micros: int = 0
    """Time from the cut until all state was encoded."""
    size: int = 0
    operators: list[OperatorAck] = []
    announced_micros: int = 0
    """Time from the arrival of the first marker, behind records that were still to be read, to the cut."""
    overtook: bool = False
    """True if the cut was made before all markers were read."""


class Transaction(msgspec.Struct, frozen=True, array_like=True):
    """Output that a sink has prepared in one subtask."""

    uid: str
    data: bytes | Placed
    """The bytes, or where they are in the worker's file."""
    first: int = 0
    """The first checkpoint that had it: every complete one from there on has it, too. 0 where that is this checkpoint."""
    subtask: int = -1
    """The subtask, if its own worker publishes it; -1 where one worker publishes what all subtasks have prepared."""


class Ack(Message, frozen=True):
    """A report of a worker: all its subtasks have cut, and their state is durable."""

    checkpoint: int
    file: str
    size: int
    older: list[str] = []
    """Files of earlier checkpoints that this one refers to."""
    subtasks: list[SubtaskAck] = []
    prepared: list[Transaction] = []
    """Output that sinks have prepared, and that is in no checkpoint which the worker knows to be complete."""
    write_micros: int = 0
    """Time from the last block to a durable file."""
    inflight: int = 0
    """Bytes of records that were in flight: on their way around loops, or overtaken by barriers."""
    overtaken: dict[str, int] = {}
    """Bytes of overtaken records, by the uid of the operator that was to receive them."""
    referred: int = 0
    """Bytes of `inflight` that lie in files of earlier checkpoints; this one only refers to them."""
    channels: list[InFlight] = []
    """The edges over which these records were on their way, each once."""


class Declined(Message, frozen=True):
    """A report of a worker: it cannot take part in this checkpoint. The job goes on."""

    checkpoint: int
    reason: str
    out_of_reach: bool = False
    """True if the reason is that the storage of checkpoints is out of reach."""


class Abort(Message, frozen=True):
    """A message to workers: the checkpoint will never be complete, forget it."""

    checkpoint: int


class Complete(Message, frozen=True):
    """A message to workers: the checkpoint is complete, its manifest exists."""

    checkpoint: int
    visible: int = -1
    """The newest checkpoint up to which all output that sinks prepared is published. 0 stands for the checkpoint with which
    the job has begun; -1: none is."""
