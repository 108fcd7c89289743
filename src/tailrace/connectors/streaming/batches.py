"""The folder of the batches of a streaming query: which are there, which of their files are read, and where they end.

    data/<name>.parquet            the files of all batches; those that no list names are leftovers, or not listed yet
    data/_spark_metadata/<id>      Spark's own note of the files of a batch: it has committed the batch if this is there
    lists/<id>.json                the list of a batch: lanes read it if this is there
    read/<lane>-<id>               this lane needs no batch before this one any more
    end                            there are no more batches
    query/                         the checkpoint of the query, which is Spark's

Invariant SB1: of each id there is one list, of the files of Spark's note, with the offsets that the query's own checkpoint
has for that id. Ids follow each other without a gap.
Invariant SB2: a list is deleted only if a newer one is there, every lane has a complete checkpoint behind it, and its files
are gone; a file only if its lane has a complete checkpoint behind it. Before that the lane notes how far it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from tailrace.connectors.travelling import folder_of, is_local
from tailrace.errors import CheckpointError, ConfigError
from tailrace.passwords import hide_passwords
from tailrace.storage.filesystem import Folder

_LISTS, DATA, _READ, END, QUERY = "lists", "data", "read", "end", "query"


class BatchFile(msgspec.Struct, omit_defaults=True):
    """One file of a batch."""

    name: str
    """Name below `data`."""
    partition: int
    rows: int
    latest: int | None = None
    """The latest event time in it (int64 microseconds)."""


class BatchList(msgspec.Struct, omit_defaults=True):
    """The list of one batch."""

    query: str
    """The id of the query that wrote it: it stays the same as long as the query's checkpoint is there."""
    offsets: str
    """Hash of the offsets that the query's checkpoint has for the batch; empty where it was listed so late that they were
    gone."""
    files: list[BatchFile] = []
    latest: int | None = None
    """The latest event time in this batch and all before it (int64 microseconds)."""

    @property
    def rows(self) -> int:
        """Number of rows of the batch."""
        return sum(file.rows for file in self.files)


_lists = msgspec.json.Decoder(BatchList)


class BatchFolder:
    """The folder of the batches of one query. Every process opens it for itself."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.url, self.options = url, options
        self.folder: Folder = folder_of(url, options)

    def __repr__(self) -> str:
        return f"BatchFolder({hide_passwords(self.url)!r})"

    # What is there.

    def list_of(self, batch: int) -> BatchList | None:
        """The list of a batch; None if there is none."""
        try:
            return _lists.decode(self.folder.read(_list_name(batch)))
        except FileNotFoundError:
            return None

    def ids(self) -> list[int]:
        """The ids of the batches that are there, in order."""
        names = [entry.name.rpartition("/")[2] for entry in self.folder.entries(_LISTS) if not entry.folder]
        return sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json") and name[0] != ".")

    def end(self) -> int | None:
        """The id behind the last batch, if there are no more; else None."""
        try:
            return int(self.folder.read(END))
        except FileNotFoundError:
            return None

    def note_end(self) -> None:
        """Notes that there are no more batches than those that are there."""
        listed = self.ids()
        with contextlib.suppress(FileExistsError):
            self.folder.create(END, str(listed[-1] + 1 if listed else 0).encode())

    # The lists, in the driver.

    def commit(self, batch: int, files: Sequence[BatchFile], owner: str, offsets: str) -> None:
        """Makes a batch visible, unless its list is there. `owner`, `offsets`: the id of the query, and the hash of the
        offsets of the batch. Raises `ConfigError` for a batch that does not follow from the others: the query's checkpoint
        was lost or exchanged."""
        known = self.list_of(batch) or self._create(batch, files, owner, offsets)
        if (known.query, known.offsets or offsets) != (owner, offsets or known.offsets):
            raise ConfigError(
                f"batch {batch} of the streaming query is there already, with other offsets: {loss_text(self.url)}"
            )

    def _create(self, batch: int, files: Sequence[BatchFile], owner: str, offsets: str) -> BatchList:
        """Creates the list of a batch. Returns the one that is there then: another driver may have been faster."""
        listed = self.ids()
        expected = listed[-1] + 1 if listed else 0
        if batch != expected:
            raise ConfigError(
                f"batch {batch} of the streaming query came where {expected} is next: {loss_text(self.url)}"
            )
        before = self.list_of(listed[-1]) if listed else None
        if before is not None and before.query != owner:
            raise ConfigError(f"batch {batch} is of another streaming query than {batch - 1}: {loss_text(self.url)}")
        times = [file.latest for file in files] + ([] if before is None else [before.latest])
        latest = max((time for time in times if time is not None), default=None)
        made = BatchList(owner, offsets, list(files), latest)
        try:
            self.folder.create(_list_name(batch), msgspec.json.encode(made))
        except FileExistsError:
            return self.list_of(batch) or made
        return made

    def check_query(self, query: Folder) -> None:
        """Raises `ConfigError` if batches are there whose query's checkpoint is not: a query that starts there would count
        from 0, and nobody would know what of its input is in the batches."""
        listed = self.ids()
        if not listed:
            return
        newest = self.list_of(listed[-1])
        try:
            same = newest is not None and newest.query == query_id(query)
            same = same and newest is not None and newest.offsets in ("", offsets_hash(query, listed[-1]))
        except FileNotFoundError:
            same = False
        if not same:
            raise ConfigError(f"batches up to {listed[-1]} of the streaming query are there: {loss_text(self.url)}")

    # What is read.

    def read_marks(self) -> dict[int, int]:
        """Lane -> the first batch that it may still need."""
        found: dict[int, int] = {}
        for entry in self.folder.entries(_READ):
            lane, _, batch = entry.name.rpartition("/")[2].partition("-")
            if lane.isdecimal() and batch.isdecimal():
                found[int(lane)] = max(int(batch), found.get(int(lane), 0))
        return found

    def note_read(self, lane: int, batch: int, before: int | None) -> None:
        """Notes that a lane needs no batch before this one. `before`: the batch that it noted last."""
        with contextlib.suppress(FileExistsError):
            self.folder.create(_mark_name(lane, batch), b"")
        if before is not None and before != batch:
            self.folder.delete([_mark_name(lane, before)])

    def delete_files(self, names: Iterable[str]) -> None:
        """Deletes files of batches, and what Hadoop keeps beside a local file."""
        self.folder.delete([path for name in names for path in written_names(self.url, f"{DATA}/{name}")])

    def delete_lists(self, lanes: int) -> None:
        """Deletes the lists that no lane needs, but the newest."""
        marks = self.read_marks()
        listed = self.ids()
        if len(marks) < lanes or not listed:
            return
        first = min(marks.values())
        gone = []
        for batch in listed[:-1]:
            if batch >= first:
                break
            found = self.list_of(batch)
            if found is not None and any(self.folder.exists(f"{DATA}/{f.name}") for f in found.files):
                break
            gone.append(_list_name(batch))
        self.folder.delete(gone)

    def check_position(self, lane: int, batch: int) -> None:
        """Raises `CheckpointError` if a lane cannot go on at a batch, because batches from there on were deleted."""
        mark = self.read_marks().get(lane, 0)
        listed = self.ids()
        first = max(mark, listed[0] if listed else 0)
        if batch < first:
            raise CheckpointError(
                f"the checkpoint goes on at batch {batch} of its streaming query, and batches before {first} were deleted: "
                f"later checkpoints of the job were complete, behind which nobody needed them; start from a newer one, or "
                f"anew without one: the stream is then read from its beginning"
            )
        if batch and not listed:
            raise CheckpointError(
                f"the checkpoint goes on at batch {batch} of its streaming query, and there are no batches at "
                f"{hide_passwords(self.url)}: the folder was moved or removed; put it back, or start anew without a "
                f"checkpoint"
            )


def written_names(url: str, name: str) -> list[str]:
    """The names of what Hadoop writes for one file: on a local disk it keeps the checksums of a file beside it."""
    above, _, last = name.rpartition("/")
    return [name, f"{above}/.{last}.crc"] if is_local(url) else [name]


def query_id(query: Folder) -> str:
    """The id of the query, by its checkpoint. Raises `FileNotFoundError` if there is none."""
    found: dict[str, Any] = msgspec.json.decode(query.read("metadata"))
    return str(found["id"])


def offsets_hash(query: Folder, batch: int) -> str:
    """A hash of what the query's checkpoint has as the offsets of a batch. Raises `FileNotFoundError` if it has none."""
    return xxhash.xxh3_128_hexdigest(query.read(f"offsets/{batch}"))


def loss_text(url: str) -> str:
    """What has become of a query whose batches do not follow from each other, and what to do."""
    return (
        f"the checkpoint of the query, {hide_passwords(url)}/{QUERY}, was lost or exchanged since, so nobody knows which of "
        f"its input the batches have; put it back, or start the job anew without a checkpoint: the stream is then read from "
        f"its beginning"
    )


def _list_name(batch: int) -> str:
    return f"{_LISTS}/{batch:012d}.json"


def _mark_name(lane: int, batch: int) -> str:
    return f"{_READ}/{lane}-{batch}"
