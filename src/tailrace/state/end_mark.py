"""The mark of the end of a run. It outlives the checkpoints of the run, so that no start goes on from an older one by
mistake.

A run that has finished leaves a mark, and so does a run that has had checkpoints and keeps none of them. A run whose
newest checkpoint stays, to go on from it, leaves none: that checkpoint shows where to go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tailrace.elements.timestamps import isoformat
from tailrace.errors import CheckpointCorrupt, short_repr

FINISHED = "FINISHED"
STOPPED = "STOPPED"


class OperatorIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """The identity of a source, a sink or an operator with state, for the comparison of dataflows."""

    uid: str
    """The uid that the user gave. Empty if it is derived from the shape of the graph: a derived uid does not identify the
    operator."""
    kind: str
    """The kind of the operator, as in manifests (`api.restore.kinds`)."""
    details: list[str]
    """For a source or a sink: its class and the place that it writes to. For another operator: the description of its
    state."""
    name: str
    """The name of the operator, for people."""

    @property
    def key(self) -> tuple[str, ...]:
        """A key that is equal for two records of one operator. A uid that the user gave identifies the operator, whatever
        else has changed."""
        return ("uid", self.uid, self.kind) if self.uid else ("derived", self.kind, *self.details)

    def __str__(self) -> str:
        return f"{self.name!r} ({f'uid {self.uid!r}' if self.uid else ', '.join([self.kind, *self.details])})"


Dataflow = Sequence[OperatorIdentity]
"""The operators that identify a dataflow. Operators without state are not among them: a user may add or remove one."""


def not_in(one: Dataflow, other: Dataflow) -> list[OperatorIdentity]:
    """The operators of the dataflow `one` that `other` does not have."""
    there = Counter(operator.key for operator in other)
    found = []
    for operator in one:
        if there[operator.key] == 0:
            found.append(operator)
        there[operator.key] -= 1
    return found


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a run. Written when all of its output is published, or will never be."""

    job: str
    run_id: str
    status: str
    """FINISHED: the job has finished, by itself or drained. STOPPED: a user has stopped it before, and it keeps no
    checkpoint. CANCELLED and FAILED: it ended in that way, and keeps no checkpoint."""
    timestamp: int
    """Time of the end, int64 microseconds since 1970."""
    number: int = 0
    """Number of the last checkpoint of the run."""
    checkpoint: str = ""
    """The manifest of that checkpoint, relative to the folder of the job, if it stays; else empty."""
    savepoint: str = ""
    """The folder of the savepoint with which the run was stopped; empty if there is none."""
    dataflow: list[OperatorIdentity] = []
    """The dataflow that the run ran; empty in older marks."""

    @property
    def finished(self) -> bool:
        """True if the job has finished: there is nothing left to do."""
        return self.status == FINISHED

    def __str__(self) -> str:
        when = isoformat(self.timestamp)
        return (
            f"run {self.run_id} of job {self.job!r} ended as {self.status} at {when}, behind checkpoint {self.number}"
        )


def encode_ending(ending: Ending) -> bytes:
    """The bytes of the file of an ending."""
    return msgspec.json.encode(ending) + b"\n"


def decode_ending(data: bytes, name: str) -> Ending:
    """The ending from the bytes of its file. Raises `CheckpointCorrupt`."""
    try:
        return msgspec.json.decode(data, type=Ending)
    except msgspec.DecodeError as error:
        raise CheckpointCorrupt(
            f"{name}, the mark of the end of a run, cannot be read: {short_repr(data)} ({error})"
        ) from error
