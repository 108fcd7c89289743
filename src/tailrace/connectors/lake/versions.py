"""The versions of a table that is read, one after the other, and the rows of their files.

A version of a table is an entry of its log: a commit of Delta, a snapshot of Iceberg. `NewVersions` takes the versions in
order. It gives out the files of one version, and those of the next one only when they are read to their end. The log of the
format (`TableLog`) knows what a version has added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.api.connectors import Enumerator
from tailrace.connectors.files.newfiles import AT_ONCE, LOCAL_POLL, REMOTE_POLL
from tailrace.connectors.parquet import ParquetRows
from tailrace.elements.columns.casts import column_as
from tailrace.errors import ConfigError

NEXT = "next"
"""The version to start with that stands for the first one that comes."""


class TableFile(msgspec.Struct, frozen=True):
    """A file that a version has added."""

    path: str
    partition: dict[str, str | None]
    """Delta: partition column -> value as text. Iceberg: the ids of the columns by whose values the file is parted."""
    version: int


class VersionPosition(msgspec.Struct, omit_defaults=True):
    """The position of a `NewVersions`."""

    version: int
    """The version whose files are given out."""
    whole: bool = False
    """True if they are all files of the table in that version, and not those that it has added."""
    given: int = 0
    """Number of its files that were given out, in the order of their paths."""
    reading: int = 0
    """Number of files that were not read to their end."""
    until: int | None = None
    """The last version; None: without end."""
    behind: bool = False
    """True if the files of this version are read, and the number of the next one is not known."""


class TableLog:
    """The log of a table that is read: which versions follow each other, and which files each has added."""

    local: bool
    """True if a look at the log takes no time to speak of."""

    def first(self, start: int | str | None, follow: bool) -> VersionPosition:
        """The position of a reader that has read nothing. `start`: the version to begin with; `NEXT` for the one that comes;
        None for all rows of today. Raises `ConfigError` if there is no such version."""
        raise NotImplementedError

    def find(self, at: VersionPosition) -> tuple[VersionPosition, list[TableFile]] | None:
        """The version at a position, and its files in the order of their paths; None if there is none yet. Raises
        `ConfigError` for a version that cannot be read as added rows."""
        raise NotImplementedError

    def behind(self, at: VersionPosition) -> VersionPosition:
        """The position behind the version of a position."""
        raise NotImplementedError

    def ends(self, at: VersionPosition) -> bool:
        """True if the version of a position is the last one to read."""
        raise NotImplementedError


class NewVersions(Enumerator):
    """The enumerator of the files of a table, version by version.

    Invariant D6: of each version each file is given out once, and before those of later versions.
    """

    def __init__(
        self, log: TableLog, parallelism: int, start: int | str | None, follow: bool, poll: float | None, position: Any
    ) -> None:
        self.log, self.most, self._start, self.follow = log, AT_ONCE * parallelism, start, follow
        self.progress = None if position is None else msgspec.convert(position, VersionPosition)
        self.poll = poll or (LOCAL_POLL if log.local else REMOTE_POLL)
        self.files: list[TableFile] | None = None
        """The files of `progress.version`; None: not known."""
        self._looked_at = float("-inf")
        self._look: Future[Any] | None = None
        self._threads: ThreadPoolExecutor | None = None

    def discover(self, now: float) -> Sequence[dict[str, Any]] | None:
        if self.files is None and not self._find(now):
            return []
        assert self.progress is not None and self.files is not None
        at, given = self.progress, []
        while at.given < len(self.files) and at.reading < self.most:
            given.append(msgspec.to_builtins(self.files[at.given]))
            at.given, at.reading = at.given + 1, at.reading + 1
        if at.given == len(self.files) and not at.reading:
            if self.log.ends(at):
                return given or None
            self.progress = self.log.behind(at)
            self.files = None
        return given

    def _find(self, now: float) -> bool:
        """Takes the files of the next version. False if there is none yet."""
        if self._look is None:
            if self._looked_at <= now < self._looked_at + self.poll and self._empty:
                return False
            self._look = self._submit()
        if not self._look.done():
            return False
        (self.progress, self.files), self._look, self._looked_at = self._look.result(), None, now
        self._empty = self.files is None
        return not self._empty

    _empty = False
    """True if the last look has found no version."""

    def _submit(self) -> Future[Any]:
        """A look at the log; one that may take long comes from a thread."""
        if not self.log.local:
            self._threads = self._threads or ThreadPoolExecutor(1, "tailrace-versions")
            return self._threads.submit(self._step)
        done: Future[Any] = Future()
        done.set_result(self._step())
        return done

    def _step(self) -> tuple[VersionPosition, list[TableFile] | None]:
        """The next version and its files; None in their place if there is none yet."""
        at = self.progress or self.log.first(self._start, self.follow)
        return self.log.find(at) or (at, None)

    def ended(self, split: Any) -> None:
        assert self.progress is not None
        self.progress.reading -= 1

    def next_at(self, now: float) -> float:
        if self.files is not None or self._look is not None or not self._empty:
            return now + 0.01
        return max(now, self._looked_at + self.poll)

    @property
    def position(self) -> Any:
        return msgspec.to_builtins(self.progress)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class TableRows(ParquetRows):
    """The rows of a file of a table: with null in columns that the file does not have, and with columns that the log has a
    value for."""

    def __init__(self, path: str, opened: Any, like: pa.Schema, values: Mapping[str, pa.Scalar]) -> None:
        """`values`: a column that is the same in all rows of the file -> its value."""
        self._values = values
        self.names: Mapping[str, str] = {}
        """A column -> its name in the file, if the file has it."""
        super().__init__(path, like, opened)

    def _check_columns(self) -> None:
        self.names = self.names_in_file()
        self.columns = [self.names[name] for name in self.schema.names if name in self.names]

    def names_in_file(self) -> dict[str, str]:
        """The columns that are read from the file, with their names there. Raises `ConfigError` if they cannot be."""
        return {one: one for one in self.schema.names if one not in self._values and one in self._read_as.names}

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in self._values:
            return pa.repeat(self._values[field.name], batch.num_rows)
        if field.name not in self.names:
            return pa.nulls(batch.num_rows, field.type)
        return column_as(self._moments(batch, self.names[field.name]), field)


def check_start(given: Any, who: str) -> int | str | None:
    """The setting `starting_version`, checked."""
    if given in (None, NEXT) or (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
        return given  # type: ignore[no-any-return]
    raise ConfigError(f"{who}: starting_version is the number of a version, or 'next', not {given!r}")


def chosen_columns(schema: pa.Schema, columns: Sequence[str] | None, who: str) -> pa.Schema:
    """The columns that a user has chosen, or all, each of which may be null. Raises `ConfigError` for an unknown one."""
    names = check_columns(schema.names, columns, who)
    return pa.schema([schema.field(name).with_nullable(True) for name in names])


def check_columns(there: Sequence[str], columns: Sequence[str] | None, who: str) -> list[str]:
    """The names of the columns that a user has chosen of those that are there, or all. Raises `ConfigError` for an unknown
    one, and for one that is chosen twice."""
    names = list(there if columns is None else columns)
    unknown = [name for name in names if name not in there]
    if unknown:
        raise ConfigError(f"{who}: columns has {unknown[0]!r}, and the table has {', '.join(there)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{who}: columns has a column twice: {', '.join(names)}")
    return names
