"""The mark of the end of a run: what outlives its checkpoints, so that nobody goes on from an older one by mistake.

A run that has come to its end leaves one, and so does a run that has had checkpoints and keeps none of them. A run whose
newest checkpoint stays, to go on from it, leaves none: that checkpoint says all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tailrace.elements.timestamps import isoformat
from tailrace.errors import CheckpointCorrupt, shortened

FINISHED = "FINISHED"
STOPPED = "STOPPED"


class OperatorIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """A source, a sink or an operator with state, as far as it tells one dataflow from another."""

    uid: str
    """As the user gave it; empty where it is derived from the shape of the graph, and says nothing of what it does."""
    kind: str
    """As manifests have it (`api.kinds`)."""
    details: list[str]
    """The class of a source or a sink, and the place that it writes to; of another operator what its state is made of."""
    name: str
    """For people."""

    @property
    def key(self) -> tuple[str, ...]:
        """Equal keys mean one and the same operator. A uid that was given says so whatever else has changed."""
        return ("uid", self.uid, self.kind) if self.uid else ("derived", self.kind, *self.details)

    def __str__(self) -> str:
        return f"{self.name!r} ({f'uid {self.uid!r}' if self.uid else ', '.join([self.kind, *self.details])})"


Dataflow = Sequence[OperatorIdentity]
"""What identifies a dataflow. Operators without state are no part of it: one may be added, or go."""


def not_in(one: Dataflow, other: Dataflow) -> list[OperatorIdentity]:
    """The operators of one dataflow that another one does not have."""
    there = Counter(operator.key for operator in other)
    found = []
    for operator in one:
        if there[operator.key] == 0:
            found.append(operator)
        there[operator.key] -= 1
    return found


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a run has ended. Written when all of its output is published, or will never be."""

    job: str
    run_id: str
    status: str
    """FINISHED: the job has come to its end, by itself or drained. STOPPED: somebody has stopped it before, and it keeps no
    checkpoint. CANCELLED and FAILED: likewise."""
    timestamp: int
    """When it ended, int64 microseconds since 1970."""
    number: int = 0
    """The last checkpoint of the run."""
    checkpoint: str = ""
    """Its manifest, relative to the folder of the job, where it stays; else empty."""
    savepoint: str = ""
    """The folder of the savepoint with which the run was stopped; empty where there is none."""
    dataflow: list[OperatorIdentity] = []
    """What it ran; empty in older marks."""

    @property
    def finished(self) -> bool:
        """Whether the job has come to its end: there is nothing left to do."""
        return self.status == FINISHED

    def __str__(self) -> str:
        when = isoformat(self.timestamp)
        return (
            f"run {self.run_id} of job {self.job!r} ended as {self.status} at {when}, behind checkpoint {self.number}"
        )


def encode_ending(ending: Ending) -> bytes:
    """An ending as the bytes of its file."""
    return msgspec.json.encode(ending) + b"\n"


def decode_ending(data: bytes, name: str) -> Ending:
    """An ending from the bytes of its file. Raises `CheckpointCorrupt`."""
    try:
        return msgspec.json.decode(data, type=Ending)
    except msgspec.DecodeError as error:
        raise CheckpointCorrupt(
            f"{name}, the mark of the end of a run, cannot be read: {shortened(data)} ({error})"
        ) from error
