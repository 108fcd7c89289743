"""Checkpoints: how coordinator and workers agree that one is complete.

    worker                          coordinator
                              <-    Trigger(cut)       to all workers; sources and tasks without live inputs cut
    (cut, freeze, encode, write)
    Ack(n, file, …)           ->                       all tasks of the worker are in one durable file
    Declined(n, reason)       ->                       or it cannot be
                              <-    Complete(n)        all acked, and the manifest was created
                              <-    Abort(n)           or it will never be: timeout, a decline, a failed write

What sinks prepared for n goes with the ack into the manifest, and is published after its commit (`deployment.Publish`).
"""

from __future__ import annotations

import msgspec

from tailrace.elements.cuts import CutRequest
from tailrace.protocol.message import Message
from tailrace.state.format import Placed, TableInfo
from tailrace.state.manifest import InFlight


class Trigger(Message, frozen=True):
    """Take a checkpoint."""

    cut: CutRequest

    @property
    def checkpoint(self) -> int:
        """Its number."""
        return self.cut.number


class OperatorAck(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the manifest says of an operator, as one subtask knows it."""

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
    """One subtask's part in a checkpoint. Times are int64 microseconds."""

    vertex: int
    subtask: int
    alignment_micros: int = 0
    """From the moment at which the first marker was read, to the cut."""
    freeze_micros: int = 0
    """How long the step of the cut took."""
    encode_micros: int = 0
    """From the cut until all was encoded."""
    size: int = 0
    operators: list[OperatorAck] = []
    announced_micros: int = 0
    """From the moment at which the first marker had arrived, behind records that were still to be read, to the cut."""
    overtook: bool = False
    """Whether the cut was made before all markers were read."""


class Transaction(msgspec.Struct, frozen=True, array_like=True):
    """What a sink has prepared in one subtask."""

    uid: str
    data: bytes | Placed
    """The bytes, or where they are in the worker's file."""
    first: int = 0
    """The checkpoint that had it first: every complete one from there on has it, too. 0 where that is this one."""


class Ack(Message, frozen=True):
    """All subtasks of the worker have cut, and their state is durable."""

    checkpoint: int
    file: str
    size: int
    older: list[str] = []
    """Files of earlier checkpoints that this one refers to."""
    subtasks: list[SubtaskAck] = []
    prepared: list[Transaction] = []
    """What sinks have prepared, and is in no checkpoint that the worker knows to be complete."""
    write_micros: int = 0
    """From the last block to a durable file."""
    inflight: int = 0
    """Bytes of records that were in flight: on their way around loops, or overtaken by barriers."""
    overtaken: dict[str, int] = {}
    """Of the latter: bytes by the uid of the operator that was to receive them."""
    referred: int = 0
    """Bytes of `inflight` that are in files of earlier checkpoints, and only referred to."""
    channels: list[InFlight] = []
    """The edges over which these records were on their way, each once."""


class Declined(Message, frozen=True):
    """The worker cannot take part in this checkpoint. The job goes on."""

    checkpoint: int
    reason: str
    out_of_reach: bool = False
    """Whether that is because the storage of checkpoints is."""


class Abort(Message, frozen=True):
    """The checkpoint will never be complete: forget it."""

    checkpoint: int


class Complete(Message, frozen=True):
    """The checkpoint is complete: its manifest exists."""

    checkpoint: int
    visible: int = -1
    """Up to which checkpoint all that sinks prepared is published (0: that which the job has begun with); -1: none."""
