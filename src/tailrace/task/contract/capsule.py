"""A capsule: the file of one failed call of user code, from which `tailrace debug` makes the call again.

The format is described in `docs/formats/capsules.md`.
"""

from __future__ import annotations

import pickle
from typing import Any

import msgspec

from tailrace.errors import ConfigError, error_text

MAGIC = b"tailrace-capsule\n"
VERSION = 1


class CodeFrame(msgspec.Struct, frozen=True):
    """A frame of the user's code in the traceback, the outermost one first."""

    file: str
    line: int
    function: str
    locals: list[tuple[str, str]] = []
    """Names and shortened values of its variables. Values of names that may be secret are left out."""


class FailedOperator(msgspec.Struct, kw_only=True):
    """The operator whose call has failed, and the attempt of its job."""

    job: str
    run_id: str = ""
    incarnation: int = 1
    attempt: int = 0
    operator: str
    uid: str
    kind: str
    """The class of the operator's description."""
    subtask: int
    parallelism: int = 1
    round: int | None = None
    """The round of a loop in rounds."""
    seed: int = 0
    """The seed of the operator's random numbers since the last cut."""


class ShownFailure(FailedOperator, kw_only=True):
    """A failed call as people see it."""

    error: str
    """The exception in one line."""
    error_class: str = ""
    message: str = ""
    """The text of the error, with the user's traceback."""
    written: str = ""
    record: str = ""
    """The record, shortened; empty if there is none."""
    key: str = ""
    """The key, likewise."""
    frames: list[CodeFrame] = []
    sources: dict[str, str] = {}
    """The files of the user's code in the traceback, as they were."""
    gaps: list[str] = []
    """Sentences for the user: what may differ from the call in the job. Empty if the capsule is exact."""


class Capsule(ShownFailure, kw_only=True):
    """A failed call: what it was given, and what is needed to make it again."""

    what: str = "record"
    """The kind of the call: "record", "timer", "open" or "finish"."""
    time: int = 0
    """The timestamp of the record (int64 microseconds; `NO_TIME`: none)."""
    watermark: int = 0
    now: int = 0
    """The clock of the step."""
    timer: int | None = None
    domain: str = "event"
    port: int = 0
    parts: dict[str, bytes] = {}
    """Name -> a pickled value: `batch` (form, values and timestamps), `key`, `state`, `random`, `answers`."""
    own_state: bytes | None = None
    """State of the operator that is not keyed, as in a checkpoint."""
    keep: int = 10
    """The largest number of capsules of the job."""
    limit: int = 4 << 20
    """Bytes of `parts` at most, and of `plan`."""
    plan: bytes = b""
    """The pickled job, as its workers received it; added when the capsule is stored."""

    def part(self, name: str) -> Any:
        """A part, unpickled. Raises `KeyError` for one that is not there."""
        return pickle.loads(self.parts[name])


def stored_form(data: bytes, name: str, plan: bytes) -> tuple[bytes, int]:
    """A capsule with the program of its job, as it is stored, and the largest number of capsules."""
    capsule = decode_capsule(data, name)
    if len(plan) <= capsule.limit:
        capsule.plan = plan
    else:
        capsule.gaps.append(
            f"the program is left out: with its collections it has {len(plan):,} bytes (tr.Capsules(max_bytes=...))"
        )
    return encode_capsule(capsule), capsule.keep


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Capsule)


def encode_capsule(capsule: Capsule) -> bytes:
    """The bytes of a capsule."""
    return b"%s%d\n%s" % (MAGIC, VERSION, _encoder.encode(capsule))


def decode_capsule(data: bytes, name: str) -> Capsule:
    """The capsule in these bytes. Raises `ConfigError` for bytes that are none, or of a newer version."""
    head, _, body = data[len(MAGIC) :].partition(b"\n")
    if not data.startswith(MAGIC) or not head.isdigit():
        raise ConfigError(f"{name} is no capsule of a failed call")
    if int(head) > VERSION:
        raise ConfigError(f"{name} is a capsule of version {int(head)}; this tailrace reads up to {VERSION}: update it")
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{name} is damaged: {error_text(error)}") from error
