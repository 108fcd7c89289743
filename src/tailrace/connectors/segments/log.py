"""The log of a sink: numbered entries, of which each names the segments that one publication has added.

An entry is made by one atomic `Folder.create`, so all output of a checkpoint becomes readable at once, and an entry never
changes. Numbers go on over restarts and over runs of the job: number n means the same rows for ever.

A publication comes again after a failure, whole or in part, from any process. The log of itself says what is new: within
a run the files of a subtask are published in the order of (incarnation, number of the file), as decision 54 has it for
transactions. So one *mark* for each run and subtask is enough. The marks follow from the entries; each `MARKS_EVERY`th entry
has them all, so that no publisher reads more than that many entries.

Invariant U5: a segment is in at most one entry. Of two publishers that add the same entry one succeeds; the other one reads
it, and finds its own segments below the marks.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from tailrace.connectors.hidden import origin_of
from tailrace.elements.columns.schemas import text_of
from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, ConfigError
from tailrace.storage.filesystem import Folder
from tailrace.storage.parallel import at_once

ABOUT = "about"
STREAMS = "streams"
"""The folder of all logs in the folder of a job."""
SEGMENTS = "segments"
"""The folder of the segments of a log, in the folder of the log."""
MARKS_EVERY = 32
"""The distance of entries that have all marks."""
_LOG = "log"


class OutputSegment(msgspec.Struct, frozen=True, array_like=True):
    """A file of rows: its name in the folder of segments, the number of its rows, and its size in bytes."""

    name: str
    rows: int
    bytes: int


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """The identity of a log, and the columns of its rows."""

    stream: str
    """A random id: a log that is made anew in the place of another one is another log."""
    job: str
    uid: str
    columns: str | None = None
    """The Arrow schema of the rows, in base64; None if it was not known at the start of the job."""

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of the rows, if it was known at the start of the job."""
        return None if self.columns is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.columns)))


class FileMark(NamedTuple):
    """The place of a file among those of its run and subtask, in the order of publication."""

    incarnation: int
    file: int
    """The number of the file."""


class _Stored(msgspec.Struct, omit_defaults=True):
    """An entry as it is stored."""

    segments: list[OutputSegment]
    marks: dict[str, FileMark] | None = None


class Publication(NamedTuple):
    """An entry of a log."""

    number: int
    digest: str
    """A hash of the entry. With the number it says which rows: a log that was copied, and went another way, has others."""
    segments: Sequence[OutputSegment]
    marks: dict[str, FileMark] | None

    @property
    def rows(self) -> int:
        """The number of rows of its segments."""
        return sum(one.rows for one in self.segments)

    @property
    def bytes(self) -> int:
        """The size of its segments."""
        return sum(one.bytes for one in self.segments)


class SegmentLog:
    """A log in a folder. A new object reads and writes nothing."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._about: About | None = None
        self._marks: dict[str, FileMark] = {}
        """The mark of each run and subtask, through the entry `_through`."""
        self._through: int | None = None
        """The newest entry that this object knows; None before its first look."""

    def __repr__(self) -> str:
        return f"SegmentLog({self.folder.url!r})"

    # The log itself.

    def begin(self, job: str, uid: str, schema: pa.Schema | None) -> About:
        """Makes the log if it is not there. Raises `ConfigError` if it is there with other columns."""
        columns = None if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode()
        with contextlib.suppress(FileExistsError):
            self.folder.create(ABOUT, msgspec.json.encode(About(uuid.uuid4().hex, job, uid, columns)))
        about = self.about()
        there = about.schema
        if there is not None and schema is not None and not there.equals(schema):
            raise ConfigError(
                f"the stream of sink {uid!r} in {self.folder.url} has the columns ({text_of(there)}), and the sink writes "
                f"({text_of(schema)}): readers of a stream get one kind of rows. Give the sink another name or uid"
            )
        return about

    def about(self) -> About:
        """What the log is. Raises `CheckpointNotFound` if there is none."""
        if self._about is None:
            try:
                self._about = msgspec.json.decode(self.folder.read(ABOUT), type=About)
            except FileNotFoundError:
                raise CheckpointNotFound(f"there is no stream in {self.folder.url}") from None
            except msgspec.DecodeError as error:
                raise CheckpointCorrupt(f"{self.folder.url_of(ABOUT)} cannot be read: {error}") from error
        return self._about

    def exists(self) -> bool:
        """True if the log was made."""
        try:
            self.about()
        except CheckpointNotFound:
            return False
        return True

    # Reading.

    def entry(self, number: int) -> Publication:
        """An entry. Raises `FileNotFoundError` if it is not there."""
        data = self.folder.read(_name_of(number))
        try:
            stored = msgspec.json.decode(data, type=_Stored)
        except msgspec.DecodeError as error:
            raise CheckpointCorrupt(f"{self.folder.url_of(_name_of(number))} cannot be read: {error}") from error
        return Publication(number, hashlib.blake2s(data, digest_size=6).hexdigest(), stored.segments, stored.marks)

    def numbers(self) -> list[int]:
        """The numbers of the entries that are there, in order."""
        names = (entry.name.rpartition("/")[2] for entry in self.folder.entries(_LOG) if not entry.folder)
        return sorted(int(name) for name in names if name.isdecimal())

    def newest(self) -> int:
        """The number of the newest entry; 0 for none."""
        return self._catch_up()

    def entries(self, first: int, last: int) -> Iterator[Publication]:
        """The entries from `first` through `last`. Raises `CheckpointNotFound` if one is not there any more."""
        for number in range(first, last + 1):
            try:
                yield self.entry(number)
            except FileNotFoundError:
                raise CheckpointNotFound(self.gone_text(number)) from None

    def gone_text(self, number: int) -> str:
        """The text of an error for an entry that is not there."""
        there = self.numbers()
        what = f"those from {there[0]} to {there[-1]} are there" if there else "none is there"
        return f"entry {number} of the stream in {self.folder.url} is gone; {what}"

    def delete(self, numbers: Iterable[int]) -> None:
        """Deletes entries. The newest one with all marks, and those behind it, must stay."""
        self.folder.delete(map(_name_of, numbers))

    # Adding.

    def append(self, segments: Sequence[OutputSegment]) -> None:
        """Adds an entry with those of the segments that were not published before; none if all were. Raises
        `FileNotFoundError` if a new one is lost."""
        while True:
            number = self._catch_up() + 1
            new = [one for one in segments if self._is_new(one)]
            if not new:
                return
            self._check_there(new)
            marks = self._marks_with(new) if number % MARKS_EVERY == 0 else None
            with contextlib.suppress(FileExistsError):  # another publisher was faster: look what it has added
                self.folder.create(_name_of(number), msgspec.json.encode(_Stored(new, marks)))

    def above_marks(self, names: Sequence[str]) -> list[str]:
        """The segments that are above the marks. Any other one was published, or never will be."""
        self.newest()
        return [name for name in names if self._is_new(OutputSegment(name, 0, 0))]

    def _catch_up(self) -> int:
        """Reads the entries that this object does not know, and takes their marks. Returns the number of the newest one."""
        through = self._first_look() if self._through is None else self._through
        while (found := self._entry_if_there(through + 1)) is not None:
            through = self._take(found)
        self._through = through
        return through

    def _first_look(self) -> int:
        """Takes the marks of the newest entry that has all of them, and returns its number. Raises `CheckpointCorrupt` if
        there are entries, and none of them has."""
        before: list[int] | None = None
        while (numbers := self.numbers()) and numbers != before:
            for number in reversed(numbers):
                whole = number == 1 or number % MARKS_EVERY == 0
                if whole and (found := self._entry_if_there(number)) is not None:
                    return self._take(found)
            before = numbers  # entries go while they are looked at: newer ones have come
        if numbers:
            raise CheckpointCorrupt(
                f"{self.gone_text(numbers[0] - 1)}, and none of them says what was published before"
            )
        return 0

    def _entry_if_there(self, number: int) -> Publication | None:
        try:
            return self.entry(number)
        except FileNotFoundError:
            return None

    def _take(self, entry: Publication) -> int:
        self._marks = self._marks_with(entry.segments) if entry.marks is None else dict(entry.marks)
        return entry.number

    def _marks_with(self, segments: Sequence[OutputSegment]) -> dict[str, FileMark]:
        """The marks when these are published as well."""
        marks = dict(self._marks)
        for one in segments:
            scope, mark = _place_of(one.name)
            marks[scope] = max(mark, marks.get(scope, mark))
        return marks

    def _is_new(self, segment: OutputSegment) -> bool:
        scope, mark = _place_of(segment.name)
        return scope not in self._marks or mark > self._marks[scope]

    def _check_there(self, segments: Sequence[OutputSegment]) -> None:
        lost: list[str] = []

        def look(one: OutputSegment) -> None:
            if not self.folder.exists(f"{SEGMENTS}/{one.name}"):
                lost.append(one.name)

        at_once(look, segments, "tailrace-publish")
        if lost:
            name = self.folder.url_of(f"{SEGMENTS}/{min(lost)}")
            raise FileNotFoundError(
                f"{name}: prepared, and not there any more; somebody has removed it: its rows are lost"
            )


def _name_of(number: int) -> str:
    return f"{_LOG}/{number:012d}"


def _place_of(name: str) -> tuple[str, FileMark]:
    """The scope of a segment (its run and subtask), and its place in it."""
    origin = origin_of(name)
    if origin is None:
        raise CheckpointCorrupt(f"{name!r} is no name of a segment")
    return f"{origin.run_id}/{origin.subtask}", FileMark(origin.incarnation, origin.count)
