"""The manifest of a checkpoint: one small file whose atomic creation makes the checkpoint real.

A manifest is a line `tailrace-manifest <version> <XXH64 in hex> <length>`, then JSON. It names every file that the
checkpoint needs, describes its operators, and holds the output that sinks have prepared and may not have published yet.
Reading it unpickles nothing.

The manifest of a savepoint begins with the line `tailrace-savepoint <version> …`, with the same JSON behind it. It names
only files in its own folder. It holds no prepared output, unless a user has made it from a checkpoint whose output may
not be visible.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tailrace.elements.valueclasses import Shapes
from tailrace.errors import CheckpointCorrupt, InternalError
from tailrace.state.format import Placed, TableInfo, checksum

VERSION = 2
SAVEPOINT_VERSION = 1
"""The version of a savepoint: of its manifest, and of the layout of its folder."""
_MAGIC = "tailrace-manifest"
_SAVEPOINT_MAGIC = "tailrace-savepoint"


class StateFile(msgspec.Struct, frozen=True):
    """A file of one worker that this checkpoint wrote."""

    slot: int
    name: str
    """Name of the file, relative to the checkpoint folder of the job."""
    size: int


class OperatorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator as it was at the checkpoint."""

    uid: str
    name: str
    parallelism: int
    finished: list[bool] = []
    """By subtask: True if it had finished."""
    tables: list[TableInfo] = []
    stateful: bool = False
    """True if there is anything to restore: keyed state, or state of its own."""
    kind: str = ""
    """The kind of the operator (`api.restore.kinds`); empty for state that a user has made for an operator of any kind."""
    shape: list[str] = []
    """The parts of its description that its state depends on: the aggregates, the windows, the source."""
    own: list[TableInfo] = []
    """Descriptions of the state that it held besides keyed state."""
    keys: list[list[str]] = []
    """By input: the columns that form its key, in their order, if there are several."""


class InFlight(msgspec.Struct, frozen=True, omit_defaults=True):
    """Records in flight on one edge: the uid and side output of the operator that sent them, and the uid and port of the
    operator that was to receive them."""

    source: str
    tag: str | None
    target: str
    port: int
    classes: Shapes = ()
    """The classes of the records, as they were at that time."""


class Prepared(msgspec.Struct, frozen=True, omit_defaults=True):
    """Output that the sink `uid` has prepared for publishing in one subtask. Only the sink can read it."""

    uid: str
    data: bytes | Placed
    """The bytes, or their place in a state file."""
    subtask: int = -1
    """The subtask, if its own worker publishes it; -1 where one worker publishes what all subtasks have prepared."""


class InputFile(msgspec.Struct, frozen=True):
    """A file of a DataFrame that a source has left to read, which a savepoint holds."""

    uid: str
    """The source."""
    url: str
    """The path or URL by which the state of the source names it."""
    name: str
    """Name of the file, relative to the folder of the savepoint."""
    size: int


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One complete checkpoint."""

    job: str
    run_id: str
    incarnation: int
    checkpoint: int
    timestamp: int
    """Time at which the checkpoint was triggered, int64 microseconds since 1970."""
    max_parallelism: int
    slots: int
    files: list[StateFile]
    """The files of this checkpoint, one per worker."""
    older: list[str] = []
    """Files of earlier checkpoints that these files refer to, relative to the checkpoint folder of the job."""
    operators: list[OperatorRecord] = []
    prepared: list[Prepared] = []
    """Prepared output, in the order in which it was prepared; a start from this manifest publishes it again."""
    kind: str = "checkpoint"
    """The kind of the manifest, "checkpoint" or "savepoint"."""
    final: bool = False
    """True if every input had ended: the last checkpoint of a job."""
    size: int = 0
    """Bytes written by this checkpoint."""
    stopped: bool = False
    """True if the checkpoint was taken for a stop: its run has ended with it, except for publishing."""
    in_flight: dict[str, int] = {}
    """Uid of an operator -> bytes of the records that barriers have overtaken on their way to it."""
    channels: list[InFlight] = []
    """The edges with records in flight, including feedback of loops."""
    root: str = ""
    """The URL of the checkpoint folder of the job that wrote it, for people; files are found beside the manifest."""
    deployed: int = 0
    """The incarnation of the files of this checkpoint, where its workers were deployed under an earlier one, and another
    coordinator has taken the place of theirs; else 0."""
    inputs: list[InputFile] = []
    """The files of DataFrames that a savepoint holds."""


_decoder = msgspec.json.Decoder(Manifest)


def awaits_output(later: Iterable[Manifest | None], run_id: str) -> bool:
    """True if one of these checkpoints (None: one that cannot be read) may be of this run and have output that is not
    published. A start from an earlier checkpoint must then leave the run's hidden output, because a start from a later
    one publishes it."""
    return any(one is None or (one.prepared and one.run_id == run_id) for one in later)


def has_more(earlier: Iterable[Manifest | None], origin: Manifest) -> bool:
    """True if one of these checkpoints (None: one that cannot be read), which were complete before `origin` was, may have
    unpublished output that `origin` does not have. A start from `origin` must then leave the traces of that output."""
    return any(one is None or any(each not in origin.prepared for each in one.prepared) for one in earlier)


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of the file of a manifest."""
    if manifest.kind == "savepoint":
        return encode_savepoint(manifest)
    return _encode(_MAGIC, VERSION, manifest)


def savepoint_of(manifest: Manifest) -> Manifest:
    """The manifest of the savepoint that copies the files of a checkpoint that was taken whole. The output of the checkpoint
    is visible by now, so the savepoint holds no prepared output, and names no earlier files that hold some. Nor does it
    name the folder of the checkpoint."""
    return msgspec.structs.replace(manifest, kind="savepoint", prepared=[], older=[], root="", stopped=False)


def encode_savepoint(savepoint: Manifest, *, output: bool = False) -> bytes:
    """The bytes of the file of the manifest of a savepoint. `output`: it was made from a checkpoint whose job does not
    publish the prepared output of sinks any more, so that it may hold prepared output. Raises `InternalError` for a
    savepoint that refers to anything outside its folder."""
    if savepoint.kind != "savepoint" or savepoint.older or (savepoint.prepared and not output):
        raise InternalError(f"the savepoint of checkpoint {savepoint.checkpoint} refers to what is not in its folder")
    return _encode(_SAVEPOINT_MAGIC, SAVEPOINT_VERSION, savepoint)


def _encode(magic: str, version: int, manifest: Manifest) -> bytes:
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return f"{magic} {version} {checksum(body):016x} {len(body)}\n".encode() + body


def decode_manifest(data: bytes, name: str) -> Manifest:
    """The manifest of a checkpoint or a savepoint, from the bytes of its file. Raises `CheckpointCorrupt`, with the
    reason."""
    line, _, body = data.partition(b"\n")
    parts = line.decode(errors="replace").split(" ")
    if parts[0] not in (_MAGIC, _SAVEPOINT_MAGIC) or len(parts) != 4:
        raise CheckpointCorrupt(f"{name} is not a checkpoint manifest of tailrace")
    what, known = ("a manifest", VERSION) if parts[0] == _MAGIC else ("a savepoint", SAVEPOINT_VERSION)
    if parts[1] != str(known):
        raise CheckpointCorrupt(f"{name} is {what} of version {parts[1]}; this tailrace reads version {known}")
    if parts[3] != str(len(body)) or parts[2] != f"{checksum(body):016x}":
        raise CheckpointCorrupt(f"{name} is damaged: its checksum does not match its {len(body)} bytes")
    try:
        found = _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CheckpointCorrupt(f"{name} cannot be read: {error}") from error
    if (found.kind == "savepoint") != (parts[0] == _SAVEPOINT_MAGIC):
        raise CheckpointCorrupt(f"{name} begins as a {parts[0]} and holds a {found.kind}")
    return found
