"""The manifest of a checkpoint: one small file whose atomic creation makes the checkpoint real.

A line `tailrace-manifest <version> <XXH64 in hex> <length>`, then JSON. It names every file that the checkpoint needs,
what the operators were, and what sinks have prepared and may not have published yet. Reading it unpickles nothing.

That of a savepoint has a line of its own, `tailrace-savepoint <version> …`, and the same JSON behind it. It names no files
but those in its folder; and no prepared output, unless it was made by hand of a checkpoint whose output may not be visible.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tailrace.elements.valueclasses import Shapes
from tailrace.errors import CheckpointCorrupt, InternalError
from tailrace.state.format import Placed, TableInfo, checksum

VERSION = 2
OLDEST = 1
"""The oldest version that is read, and written where it suffices: it has all that sinks prepared within."""
SAVEPOINT_VERSION = 1
"""The version of a savepoint: of its manifest, and of how its folder is laid out."""
_MAGIC = "tailrace-manifest"
_SAVEPOINT_MAGIC = "tailrace-savepoint"


class StateFile(msgspec.Struct, frozen=True):
    """A file of one worker that this checkpoint wrote."""

    slot: int
    name: str
    """Relative to the checkpoint folder of the job."""
    size: int


class OperatorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator as it was."""

    uid: str
    name: str
    parallelism: int
    finished: list[bool] = []
    """By subtask: whether it had finished."""
    tables: list[TableInfo] = []
    stateful: bool = False
    """Whether there is anything to be restored: keyed state, or state of its own."""
    kind: str = ""
    """What kind of operator it was (`api.kinds`); empty in older manifests."""
    shape: list[str] = []
    """What of its description its state depends on: the aggregates, the windows, the source."""
    own: list[TableInfo] = []
    """What it held beside keyed state."""
    keys: list[list[str]] = []
    """By input: the columns that make its key, in their order, where there are several."""


class InFlight(msgspec.Struct, frozen=True, omit_defaults=True):
    """Records that were on their way over one edge: the uid of who sent them, its side output, and the uid and port of who
    was to receive them."""

    source: str
    tag: str | None
    target: str
    port: int
    classes: Shapes = ()
    """The classes of the records, as they were."""


class Prepared(msgspec.Struct, frozen=True):
    """Output that the sink `uid` has prepared in one subtask, to be published. Opaque."""

    uid: str
    data: bytes | Placed
    """The bytes, or where they are."""


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One complete checkpoint."""

    job: str
    run_id: str
    incarnation: int
    checkpoint: int
    timestamp: int
    """When it was triggered, int64 microseconds since 1970."""
    max_parallelism: int
    slots: int
    files: list[StateFile]
    """The files of this checkpoint, one per worker."""
    older: list[str] = []
    """Files of earlier checkpoints that these refer to, relative to the checkpoint folder of the job."""
    operators: list[OperatorRecord] = []
    prepared: list[Prepared] = []
    """In the order in which it was prepared; a start from this manifest publishes it again."""
    kind: str = "checkpoint"
    """"checkpoint" or "savepoint"."""
    final: bool = False
    """Whether every input had ended: the last checkpoint of a job."""
    size: int = 0
    """Bytes written by this checkpoint."""
    stopped: bool = False
    """Whether a stop has taken it: its run has ended with it, but for publishing."""
    in_flight: dict[str, int] = {}
    """By the uid of an operator: bytes of records that barriers have overtaken on their way to it."""
    channels: list[InFlight] = []
    """The edges that had records on their way, feedback of loops too; empty in older manifests."""
    root: str = ""
    """The URL of the checkpoint folder of the job that wrote it, for people; files are found beside the manifest."""


_decoder = msgspec.json.Decoder(Manifest)


def awaits_output(later: Iterable[Manifest | None], run_id: str) -> bool:
    """Whether one of these checkpoints (None: one that cannot be read) may be of this run and have output that is not
    published. A start from an earlier one must leave the run's hidden output: a start from a later one publishes it."""
    return any(one is None or (one.prepared and one.run_id == run_id) for one in later)


def has_more(earlier: Iterable[Manifest | None], origin: Manifest) -> bool:
    """Whether one of these checkpoints (None: one that cannot be read), which were complete before `origin` was, may
    have unpublished output that is not in that one. A start from `origin` must leave its traces."""
    return any(one is None or any(each not in origin.prepared for each in one.prepared) for one in earlier)


def encode_manifest(manifest: Manifest) -> bytes:
    """A manifest as the bytes of its file."""
    if manifest.kind == "savepoint":
        return encode_savepoint(manifest)
    version = VERSION if any(isinstance(one.data, Placed) for one in manifest.prepared) else OLDEST
    return _encoded(_MAGIC, version, manifest)


def savepoint_of(manifest: Manifest) -> Manifest:
    """The manifest of the savepoint that is a copy of the files of a checkpoint that was taken whole. The output of that is
    visible by now, so it names neither this nor earlier files that have some of it; nor does it say where it was."""
    return msgspec.structs.replace(manifest, kind="savepoint", prepared=[], older=[], root="", stopped=False)


def encode_savepoint(savepoint: Manifest, *, output: bool = False) -> bytes:
    """The manifest of a savepoint as the bytes of its file. `output`: it was made of a checkpoint whose job does not publish
    any more what sinks had prepared, so that goes along. Raises `InternalError` for one that refers to anything outside its
    folder."""
    if savepoint.kind != "savepoint" or savepoint.older or (savepoint.prepared and not output):
        raise InternalError(f"the savepoint of checkpoint {savepoint.checkpoint} refers to what is not in its folder")
    return _encoded(_SAVEPOINT_MAGIC, SAVEPOINT_VERSION, savepoint)


def _encoded(magic: str, version: int, manifest: Manifest) -> bytes:
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return f"{magic} {version} {checksum(body):016x} {len(body)}\n".encode() + body


def decode_manifest(data: bytes, name: str) -> Manifest:
    """A manifest, of a checkpoint or a savepoint, from the bytes of its file. Raises `CheckpointCorrupt`, with what is wrong
    with it."""
    line, _, body = data.partition(b"\n")
    parts = line.decode(errors="replace").split(" ")
    if parts[0] not in (_MAGIC, _SAVEPOINT_MAGIC) or len(parts) != 4:
        raise CheckpointCorrupt(f"{name} is not a checkpoint manifest of tailrace")
    known = range(OLDEST, VERSION + 1) if parts[0] == _MAGIC else range(1, SAVEPOINT_VERSION + 1)
    if parts[1] not in map(str, known):
        what = "a manifest" if parts[0] == _MAGIC else "a savepoint"
        raise CheckpointCorrupt(
            f"{name} is {what} of version {parts[1]}; this tailrace reads versions {known[0]} to {known[-1]}"
        )
    if parts[3] != str(len(body)) or parts[2] != f"{checksum(body):016x}":
        raise CheckpointCorrupt(f"{name} is damaged: its checksum does not match its {len(body)} bytes")
    try:
        found = _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CheckpointCorrupt(f"{name} cannot be read: {error}") from error
    if (found.kind == "savepoint") != (parts[0] == _SAVEPOINT_MAGIC):
        raise CheckpointCorrupt(f"{name} begins as a {parts[0]} and holds a {found.kind}")
    return found
