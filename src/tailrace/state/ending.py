"""The mark of the end of a run: what outlives its checkpoints, so that nobody goes on from an older one by mistake.

A run that has come to its end leaves one, and so does a run that has had checkpoints and keeps none of them. A run whose
newest checkpoint stays, to go on from it, leaves none: that checkpoint says all.
"""

from __future__ import annotations

import msgspec

from tailrace.elements.timestamps import isoformat
from tailrace.errors import CheckpointCorrupt, shortened

FINISHED = "FINISHED"
STOPPED = "STOPPED"


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
