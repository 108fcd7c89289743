"""The built-in sources (`tr.sources`). Positions of readers are exact: to read on from one repeats and skips nothing."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections import abc
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from tailrace.api.checks.hints import SOURCES
from tailrace.api.connectors import NOTHING_YET, Enumerator, Reader, Source
from tailrace.connectors.files.csvfiles import Csv as Csv
from tailrace.connectors.files.jsonfiles import Json as Json
from tailrace.connectors.files.newfiles import NewFiles, check_poll, path_of
from tailrace.connectors.files.parquetfiles import Batches
from tailrace.connectors.files.parquetfiles import Parquet as Parquet
from tailrace.connectors.files.partitions import partitions_of
from tailrace.connectors.files.places import base_of, files_now, files_of
from tailrace.connectors.files.records import LineDecoder, RawLines, Records
from tailrace.connectors.followed import FollowedFile
from tailrace.connectors.following import Following, refuse_compressed
from tailrace.connectors.hidden import normal, protocol_of
from tailrace.connectors.lines import LineReader, PacedLines, check_readable
from tailrace.connectors.pace import Pace, check_rate
from tailrace.connectors.schemas import declared_schema
from tailrace.connectors.travelling import Reading, folder_of, is_local, split_of
from tailrace.elements.batches import Form
from tailrace.elements.callables import misfit_function, one_for_several
from tailrace.errors import ConfigError, GraphError
from tailrace.lazynames import resolve
from tailrace.spelling import missing, with_hints

_PLACES: dict[str, str] = {
    "Kafka": "tailrace.connectors.kafka.source",
    "Postgres": "tailrace.connectors.postgres.source",
    "PostgresChanges": "tailrace.connectors.postgres.changes",
    "Nats": "tailrace.connectors.nats.source",
    "RedisStream": "tailrace.connectors.redis.source",
}
"""Name -> module that has it: connectors of servers. A program imports the clients of those that it uses."""


@with_hints
class Sequence(Source):
    """A source of the whole numbers from `start` up to, not including, `end` (as `range`); without end if `end` is None.
    `rate` is the number of records per second over all subtasks; None: no limit. Raises `ConfigError` for wrong
    arguments."""

    description = "sequence"
    tried_dry = True
    """True if a reader has no effect outside: a dry run makes one to check that it accepts the split of a checkpoint."""

    def __init__(self, start: int, end: int | None, *, rate: float | None = None) -> None:
        if not isinstance(start, int) or not (end is None or isinstance(end, int)):
            raise ConfigError(f"Sequence takes whole numbers, not {start!r} and {end!r}")
        self.start, self.end, self.rate = start, end, check_rate(rate)
        self.bounded = end is not None

    def splits(self, parallelism: int) -> abc.Sequence[tuple[int, int]]:
        return [(i, parallelism) for i in range(parallelism)]

    def reader(self, split: tuple[int, int], position: int | None = None) -> Reader:
        _check_numbered(split)
        first = self.start + split[0] if position is None else position
        return _Numbers(first, self.end, split[1], self.rate, None)


def _check_numbered(split: Any) -> None:
    """Raises `ConfigError` if a checkpoint has the split of another kind of source."""
    if not isinstance(split, tuple) or len(split) != 2:
        raise ConfigError(
            f"the checkpoint is of another source, which read {split!r}: give the source that reads now another uid"
        )


class _Numbers(Reader):
    """The reader of every `step`-th number from `at`, or of the results of `fn` for these numbers."""

    def __init__(
        self, at: int, end: int | None, step: int, rate: float | None, fn: Callable[[int], Any] | None
    ) -> None:
        self.at, self.end, self.step, self.fn = at, end, step, fn
        self.pace = Pace(None if rate is None else rate / step)

    def read(self, limit: int, now: float) -> Any:
        if self.end is not None and self.at >= self.end:
            return None
        count = self.pace.allowance(limit, now)
        if not count:
            return NOTHING_YET
        stop = self.at + count * self.step
        if self.end is not None:
            stop = min(stop, self.end)
        numbers = range(self.at, stop, self.step)
        fn = self.fn
        values = list(numbers) if fn is None else [fn(number) for number in numbers]
        self.pace.done += len(values)
        self.at += len(values) * self.step
        return values

    @property
    def position(self) -> int:
        return self.at

    def next_at(self, now: float) -> float:
        return self.pace.next_at(now)


class Collection(Source):
    """A source of the given items, in order, with a split for each subtask. Raises `GraphError` for what is no list of
    records."""

    description = "collection"
    tried_dry = True

    def __init__(self, items: Iterable[Any]) -> None:
        wrong = one_for_several(items) if isinstance(items, Iterable) else type(items).__name__
        if wrong is not None:
            raise GraphError(f"from_collection: expected a list of records, got {wrong}{_instead(items)}")
        self.items = list(items)

    def splits(self, parallelism: int) -> abc.Sequence[tuple[int, int, int]]:
        size = len(self.items)
        bounds = [size * i // parallelism for i in range(parallelism + 1)]
        return [(start, stop, size) for start, stop in itertools.pairwise(bounds)]

    def reader(self, split: tuple[int, ...], position: int | None = None) -> Reader:
        start, stop, size = *split[:2], len(self.items)
        at = start if position is None else position
        if split[2:] != (size,) or not start <= at <= stop <= size:
            known = f"a list of {split[2]} records" if split[2:] else f"records {start} to {stop}, at {at},"
            raise ConfigError(
                f"the checkpoint goes on with {known} and this list has {size}: start from it with the same list, or give "
                f"the source another uid, so that it reads this list from its beginning"
            )
        return _Items(self.items, at, stop)


class _Items(Reader):
    def __init__(self, items: list[Any], at: int, stop: int) -> None:
        self.items, self.at, self.stop = items, at, stop

    def read(self, limit: int, now: float) -> Any:
        if self.at >= self.stop:
            return None
        taken = self.items[self.at : min(self.at + limit, self.stop)]
        self.at += len(taken)
        return taken

    @property
    def position(self) -> int:
        return self.at


def _itself(number: int) -> int:
    return number


@with_hints
class Generator(Source):
    """A source of records from a function. `fn(i)` is called for i = 0, 1, 2, …, over all subtasks: without end, or for
    `count` records. `fn()` without parameters returns an iterator, which one subtask reads to its end, or for `count`
    records. A second call of `fn` for a number must return an equal record, and a second iterator equal records. `rate` is
    the number of records per second over all subtasks; None: no limit. Raises `ConfigError` for wrong arguments."""

    description = "generator"

    def __init__(self, fn: Callable[..., Any], *, rate: float | None = None, count: int | None = None) -> None:
        if not callable(fn):
            raise ConfigError(f"Generator takes a function, not {fn!r}")
        wrong = misfit_function(fn, several=True)
        if wrong is not None:
            raise ConfigError(f"Generator: {getattr(fn, '__name__', type(fn).__name__)} {wrong}")
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
            raise ConfigError(f"Generator: count must be a whole number of at least 0, or None, not {count!r}")
        self.fn, self.rate, self.count = fn, check_rate(rate), count
        self.indexed = _takes_one(fn)
        if not self.indexed and not _callable_with(fn):
            raise ConfigError(
                "Generator takes fn(i), which returns one record, or fn(), which returns an iterator over records"
            )
        self.bounded = count is not None or not self.indexed

    @property
    def position_format(self) -> str:
        return "Generator" if self.indexed else "Generator of an iterator"

    def splits(self, parallelism: int) -> abc.Sequence[tuple[int, int]]:
        return [(i, parallelism) for i in range(parallelism)] if self.indexed else [(0, 1)]

    def raw_source(self) -> tuple[Source, Callable[[Any], Any]] | None:
        return (Generator(_itself, rate=self.rate, count=self.count), self.fn) if self.indexed else None

    def reader(self, split: tuple[int, int], position: int | None = None) -> Reader:
        _check_numbered(split)
        if self.indexed:
            return _Numbers(split[0] if position is None else position, self.count, split[1], self.rate, self.fn)
        items = self.fn()
        wrong = one_for_several(items) if isinstance(items, Iterable) else type(items).__name__
        if wrong is not None:
            raise TypeError(f"Generator: fn() must return an iterator over records, and it returned one {wrong}")
        return _Iterated(items, position or 0, self.count, self.rate)


def _instead(items: Any) -> str:
    """The end of an error: the expression to use in place of a collection that has no records, if one is known."""
    if hasattr(items, "itertuples"):
        return (
            ", which goes through the names of its columns; write from_collection(df.itertuples(index=False)), or "
            "from_dataframe(spark.createDataFrame(df))"
        )
    if hasattr(items, "iter_rows"):
        return (
            "; write from_collection(df.iter_rows(named=True)), or from_dataframe(spark.createDataFrame(df.to_arrow()))"
        )
    if isinstance(items, abc.Mapping):
        return ", which goes through its keys; write from_collection(d.items())"
    return "; write from_collection(table.to_pylist())" if hasattr(items, "to_pylist") else ""


def _takes_one(fn: Callable[..., Any]) -> bool:
    if inspect.isgeneratorfunction(fn):
        return False  # it returns many records, whatever its parameters
    return _callable_with(fn, 0)


def _callable_with(fn: Callable[..., Any], *args: Any) -> bool:
    try:
        inspect.signature(fn).bind(*args)
    except TypeError:
        return False
    except ValueError:
        return True  # a built-in function without a signature
    return True


class _Iterated(Reader):
    def __init__(self, items: Iterable[Any], skip: int, count: int | None, rate: float | None) -> None:
        self.items = iter(items)
        self.count = count
        self.pace = Pace(rate)
        self.at = sum(1 for _ in itertools.islice(self.items, skip))

    def read(self, limit: int, now: float) -> Any:
        count = self.pace.allowance(limit, now)
        if self.count is not None:
            count = min(count, self.count - self.at)
            if self.at >= self.count:
                return None
        if not count:
            return NOTHING_YET
        taken = list(itertools.islice(self.items, count))
        if not taken:
            return None
        self.at += len(taken)
        self.pace.done += len(taken)
        return taken

    @property
    def position(self) -> int:
        return self.at

    def next_at(self, now: float) -> float:
        return self.pace.next_at(now)


@with_hints
class TextFiles(Source):
    """A source of the lines of text files (UTF-8), without their line ends. `path` is a file, a folder or a glob pattern,
    local or a URL.

    - `follow`: local files are read on as they grow, without end, whatever they are renamed to, and also files that come
      later. Behind a URL files that come later are read once they are there, which is looked for each `poll` seconds.
    - `rate`: number of lines per second over all subtasks; None: no limit.
    - `partitions=True`: records are rows of `value`, the line, and of the columns in the names of folders
      (`day=2024-01-01`); a schema gives the types of these.

    Raises `ConfigError` for a file of a kind that it does not read, and for `rate` together with `follow`."""

    description = "text files"

    def __init__(
        self,
        path: str,
        *,
        follow: bool = False,
        rate: float | None = None,
        partitions: bool | Any = False,
        poll: float | None = None,
    ) -> None:
        self.path, self.follow, self.rate = normal(path), follow, check_rate(rate)
        self.poll = check_poll(poll, follow, "TextFiles")
        self._decodes = True
        self.bounded = not follow
        self.grows = follow and protocol_of(self.path) is None
        """True if files are read on as they grow."""
        if follow and rate is not None:
            raise ConfigError(
                "TextFiles: a file that is followed gives its lines as they come; leave out rate or follow"
            )
        check_readable([self.path])
        if self.grows:
            refuse_compressed([self.path])
        self.decoder: LineDecoder | None = None
        """Decoder of lines into rows with partition columns; None: records are lines."""
        if partitions is not False:
            self.decoder = self._with_partitions(partitions)
            self.columns = tuple(self.decoder.columns)

    def _with_partitions(self, columns: Any) -> LineDecoder:
        if self.rate is not None:
            raise ConfigError("TextFiles: a rate is for lines without partition columns; leave out rate or partitions")
        files = files_now(self.path) if self.follow else files_of(self.path)
        columns = columns if columns is True else declared_schema(columns, "TextFiles")
        return LineDecoder("rows", partitions_of(self.path, base_of(self.path), files, columns, None))

    @property
    def position_format(self) -> str:
        return "TextFiles(follow=True)" if self.follow else "TextFiles"

    def splits(self, parallelism: int) -> abc.Sequence[Any]:
        files = check_readable(files_of(self.path))
        if self.rate is None:
            return files
        count = min(len(files), parallelism)
        return [(files[i::count], self.rate / count) for i in range(count)]

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator | None:
        if self.grows:
            return Following(self.path, position)
        return NewFiles(self.path, parallelism, position, self.poll) if self.follow else None

    def reader(self, split: Any, position: Any = None) -> Reader:
        if isinstance(split, tuple):
            files, rate = split
            return PacedLines(files, position or (0, 0), Pace(rate), self._decodes)
        path, decodes = path_of(split), self._decodes and self.decoder is None
        lines: FollowedFile | LineReader
        if self.grows:
            lines = FollowedFile(self.path, split, position, decodes)
        else:
            lines = LineReader(path, position, decodes)
        return (
            lines
            if self.decoder is None
            else Records(RawLines(lines, True), self.decoder if self._decodes else None, path)
        )

    def raw_source(self) -> tuple[Source, Callable[[Any], Any]]:
        made = copy.copy(self)
        made._decodes, made.columns = False, None
        return made, bytes.decode if self.decoder is None else self.decoder.one


class ArrowFiles(Source):
    """A source of Arrow IPC files with these columns, as `from_dataframe` writes them. They do not change; each file is a
    split."""

    description = "dataframe"
    position_format = "DataFrame"

    def __init__(self, paths: list[str], columns: tuple[str, ...], form: Form) -> None:
        self.paths, self.columns, self.form = paths, columns, form
        self.options: abc.Mapping[str, Any] | None = None
        """Options of the filesystem, for files that are URLs."""
        self.moved: abc.Mapping[str, str] = {}
        """Folder of files, as the savepoint that the job starts from names it -> the folder where they are now."""

    def restored_split(self, split: str) -> str:
        """A split of a checkpoint, as it is now."""
        folder, name = split_of(split)
        return f"{self.moved[folder]}/{name}" if folder in self.moved else split

    def fetch(self, folder: str) -> None:
        """Writes the records of the source into files in a local folder, for a job that runs in this process. This class
        does nothing: its files exist."""

    def splits(self, parallelism: int) -> abc.Sequence[str]:
        return self.paths

    def reader(self, split: str, position: int | None = None) -> Reader:
        try:
            file = _map_file(split) if is_local(split) else _read(split, self.options)
        except FileNotFoundError:
            raise ConfigError(
                f"{split} is not there any more: the files of a DataFrame live as long as the job's checkpoint folder, or, "
                f"without checkpoints, as long as work_dir or the Spark session; start the job anew"
            ) from None
        batches = (file.get_batch(i) for i in range(file.num_record_batches))
        return Batches(batches, position or 0, self.form, lambda: None)


def _map_file(path: str) -> Any:
    """An Arrow file of this machine. Its batches stay mapped, but the file does not stay open: there may be many files."""
    with pa.memory_map(path) as mapped:
        return pa.ipc.open_file(mapped.read_buffer())


def _read(url: str, options: abc.Mapping[str, Any] | None) -> Any:
    folder, name = split_of(url)
    return pa.ipc.open_file(pa.PythonFile(Reading(folder_of(folder, options), name), "r"))


def __getattr__(name: str) -> Any:
    found = resolve(__name__, name, _PLACES)
    if found is not None:
        return found
    own = [each for each, value in globals().items() if isinstance(value, type) and value.__module__ == __name__]
    raise missing("tr.sources", name, SOURCES, [*own, *_PLACES])
