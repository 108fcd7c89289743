"""The lists of the batches that Spark has committed, as the driver of a job makes them.

Spark's file sink writes the files of a batch, and then its *note*: the names of these files, in one atomic act, at most once
for an id. A batch whose note is there is not written again. The driver follows the notes, and makes the list of each batch.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec

from tailrace.connectors.streaming.batches import (
    DATA,
    QUERY,
    BatchFolder,
    loss_text,
    offsets_hash,
    query_id,
    written_names,
)
from tailrace.connectors.streaming.batchfiles import written_file
from tailrace.connectors.travelling import is_local
from tailrace.errors import ConfigError
from tailrace.storage.parallel import at_once

_NOTES = f"{DATA}/_spark_metadata"
POLL_SECONDS, REMOTE_POLL_SECONDS = 0.02, 0.25
"""Seconds between two looks for the next batch."""
SWEEP_BATCHES = 1000
"""Number of batches from one search for leftovers to the next."""


class _Note(msgspec.Struct):
    """One line of a note of Spark's."""

    path: str
    action: str


_notes = msgspec.json.Decoder(_Note)


class BatchLister:
    """The maker of the lists of one query. Two drivers may do it at a time: both make the same lists.

    A file that no list names may be one of the batch that Spark is writing. It is a *leftover*, of a task that was lost or
    started twice, once the batch behind all that were there when it was found has its list."""

    def __init__(self, batches: BatchFolder, event_time: int | None) -> None:
        """`event_time`: the number of the column whose latest value is noted."""
        self.batches, self._event_time = batches, event_time
        self._query = BatchFolder(f"{batches.url}/{QUERY}", batches.options).folder
        self.pause = POLL_SECONDS if is_local(batches.url) else REMOTE_POLL_SECONDS
        self._next: int | None = None
        """The next batch to be listed; None before the first look."""
        self._suspects: set[str] = set()
        """Files that are leftovers if no list up to batch `_known_at` names them."""
        self._known_at = 0

    def look(self) -> None:
        """Makes the lists of all batches that Spark has committed. Raises `ConfigError` for a batch that does not follow
        from the others, or whose files this process does not see."""
        if self._next is None:
            listed = self.batches.ids()
            self._next = listed[-1] + 1 if listed else 0
            self._find_suspects()
        while (names := self._names_of(self._next)) is not None:
            self._list(self._next, names)
            self._next += 1

    def all_done(self) -> bool:
        """True if the query has done each batch that it has begun. One that was stopped seldom has."""
        return self._newest_of("offsets") == self._newest_of("commits")

    def _newest_of(self, log: str) -> int:
        """The id of the newest batch in one of the logs of the query's checkpoint; -1 if there is none."""
        names = [entry.name.rpartition("/")[2] for entry in self._query.entries(log)]
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def _list(self, batch: int, names: list[str]) -> None:
        read = partial(written_file, self.batches, event_time=self._event_time)
        files = at_once(read, names, "tailrace-batches")
        self.batches.commit(batch, [file for file in files if file.rows], *self._stamp(batch))
        self.batches.delete_files(file.name for file in files if not file.rows)
        self._delete_note(batch - 1)
        self._suspects.difference_update(names)
        if self._suspects and batch >= self._known_at:
            self.batches.delete_files(self._suspects)
            self._suspects = set()
        if not (batch + 1) % SWEEP_BATCHES:
            self._find_suspects()

    def _stamp(self, batch: int) -> tuple[str, str]:
        """The id of the query and the hash of the offsets of a batch. Where later batches are there, the query may have
        deleted these offsets."""
        try:
            owner = query_id(self._query)
            try:
                return owner, offsets_hash(self._query, batch)
            except FileNotFoundError:
                if self._newest() > batch:
                    return owner, ""
                raise
        except FileNotFoundError:
            raise ConfigError(f"batch {batch} of the streaming query is there: {loss_text(self.batches.url)}") from None

    def _names_of(self, batch: int) -> list[str] | None:
        """The names of the files of a batch that Spark has committed, those of a task in order; None if it has not."""
        try:
            version, *lines = self.batches.folder.read(f"{_NOTES}/{batch}").decode().splitlines()
        except FileNotFoundError:
            return None
        notes = [_notes.decode(line) for line in lines]
        if version != "v1" or any(note.action != "add" for note in notes):
            raise ConfigError(
                f"this version of Spark notes batch {batch} of the streaming query as nobody here can read it"
            )
        return [unquote(note.path.rpartition("/")[2]) for note in notes]

    def _newest(self) -> int:
        """The id of the newest batch that Spark has committed; -1 if there is none."""
        return max(self._notes_there(), default=-1)

    def _notes_there(self) -> list[int]:
        names = [entry.name.rpartition("/")[2] for entry in self.batches.folder.entries(_NOTES)]
        if compacted := [name for name in names if name.endswith(".compact")]:
            raise ConfigError(
                f"Spark has put its notes of the batches of the streaming query together ({compacted[0]}), so that nobody "
                f"knows which files are of which batch: spark.sql.streaming.fileSink.log.compactInterval cannot be set in "
                f"this session"
            )
        return [int(name) for name in names if name.isdecimal()]

    def _delete_note(self, batch: int) -> None:
        """Deletes the note of a batch that is listed. The newest stays: Spark counts on from it."""
        self.batches.folder.delete(written_names(self.batches.url, f"{_NOTES}/{batch}"))

    def _find_suspects(self) -> None:
        """Finds files that no list names, and that the next batches do not name either if nobody needs them."""
        there = {_plain(entry) for entry in self.batches.folder.entries(DATA) if not entry.folder}
        self._known_at = self._newest() + 1
        for batch in self.batches.ids() if there else ():
            known = self.batches.list_of(batch)
            there -= set() if known is None else {file.name for file in known.files}
        self._suspects = there


def _plain(entry: Any) -> str:
    """The name of the file that an entry is, or whose checksums it has."""
    name = str(entry.name).rpartition("/")[2]
    return name[1:].removesuffix(".crc") if name.startswith(".") else name
