"""Built-in sources (`tr.sources`). Each reader's position is exact: reading on from it repeats and skips nothing."""

from __future__ import annotations

import glob
import inspect
import itertools
import os
from collections import abc
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.api.connectors import NOTHING_YET, Enumerator, Reader, Source
from tailrace.elements.batches import Form
from tailrace.elements.convert import rows_of
from tailrace.errors import ConfigError, GraphError

_CHUNK = 1 << 18


class _Pace:
    """How many records may have been read by now, at `rate` per second from the first read on: of this reader, so after a
    restore nothing is caught up on."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.started: float | None = None
        self.done = 0

    def allowed(self, limit: int, now: float) -> int:
        if self.rate is None:
            return limit
        if self.started is None:
            self.started = now
        return max(0, min(limit, int((now - self.started) * self.rate) + 1 - self.done))

    def next_at(self, now: float) -> float:
        if self.rate is None or self.started is None:
            return now + 0.01
        return self.started + self.done / self.rate


def _check_rate(rate: float | None) -> float | None:
    if rate is not None and (not isinstance(rate, int | float) or rate <= 0):
        raise ConfigError(f"rate is a number of records per second above zero, not {rate!r}")
    return rate


class Sequence(Source):
    """The whole numbers from `start` up to, not including, `end` (as `range`); without end when `end` is None. `rate` is
    records per second over all subtasks; None is as fast as it goes."""

    description = "sequence"

    def __init__(self, start: int, end: int | None, *, rate: float | None = None) -> None:
        if not isinstance(start, int) or not (end is None or isinstance(end, int)):
            raise ConfigError(f"Sequence takes whole numbers, not {start!r} and {end!r}")
        self.start, self.end, self.rate = start, end, _check_rate(rate)
        self.bounded = end is not None

    def splits(self, parallelism: int) -> abc.Sequence[tuple[int, int]]:
        return [(i, parallelism) for i in range(parallelism)]

    def reader(self, split: tuple[int, int], position: int | None = None) -> Reader:
        first = self.start + split[0] if position is None else position
        return _Numbers(first, self.end, split[1], self.rate, None)


class _Numbers(Reader):
    """Every `step`-th number from `at`, through a function where there is one."""

    def __init__(
        self, at: int, end: int | None, step: int, rate: float | None, fn: Callable[[int], Any] | None
    ) -> None:
        self.at, self.end, self.step, self.fn = at, end, step, fn
        self.pace = _Pace(None if rate is None else rate / step)

    def read(self, limit: int, now: float) -> Any:
        if self.end is not None and self.at >= self.end:
            return None
        count = self.pace.allowed(limit, now)
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
    """These items, in order, in as many splits as there are subtasks."""

    description = "collection"

    def __init__(self, items: Iterable[Any]) -> None:
        if isinstance(items, str | bytes) or not isinstance(items, Iterable):
            raise GraphError(f"from_collection: expected a list of records, got {type(items).__name__}")
        self.items = list(items)

    def splits(self, parallelism: int) -> abc.Sequence[tuple[int, int]]:
        size = len(self.items)
        bounds = [size * i // parallelism for i in range(parallelism + 1)]
        return list(itertools.pairwise(bounds))

    def reader(self, split: tuple[int, int], position: int | None = None) -> Reader:
        return _Items(self.items, split[0] if position is None else position, split[1])


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


class Generator(Source):
    """Records from a function. `fn(i)` is called for i = 0, 1, 2, …: an unbounded stream, or one of `count` records, over
    all subtasks. `fn()` without parameters returns an iterator and is read by one subtask until it ends. Called again
    with the same number, `fn` must give an equal record."""

    description = "generator"

    def __init__(self, fn: Callable[..., Any], *, rate: float | None = None, count: int | None = None) -> None:
        if not callable(fn):
            raise ConfigError(f"Generator takes a function, not {fn!r}")
        self.fn, self.rate, self.count = fn, _check_rate(rate), count
        self.indexed = _takes_one(fn)
        if not self.indexed and not _callable_with(fn):
            raise ConfigError("Generator takes fn(i), one record for each number, or fn(), an iterator over records")
        self.bounded = count is not None or not self.indexed

    def splits(self, parallelism: int) -> abc.Sequence[tuple[int, int]]:
        return [(i, parallelism) for i in range(parallelism)] if self.indexed else [(0, 1)]

    def reader(self, split: tuple[int, int], position: int | None = None) -> Reader:
        if self.indexed:
            return _Numbers(split[0] if position is None else position, self.count, split[1], self.rate, self.fn)
        return _Iterated(self.fn(), position or 0, self.count, self.rate)


def _takes_one(fn: Callable[..., Any]) -> bool:
    if inspect.isgeneratorfunction(fn):
        return False  # it gives many records, whatever its parameters
    return _callable_with(fn, 0)


def _callable_with(fn: Callable[..., Any], *args: Any) -> bool:
    try:
        inspect.signature(fn).bind(*args)
    except TypeError:
        return False
    except ValueError:
        return True  # a built-in that does not tell
    return True


class _Iterated(Reader):
    def __init__(self, items: Iterable[Any], skip: int, count: int | None, rate: float | None) -> None:
        self.items = iter(items)
        self.count = count
        self.pace = _Pace(rate)
        self.at = sum(1 for _ in itertools.islice(self.items, skip))

    def read(self, limit: int, now: float) -> Any:
        wanted = self.pace.allowed(limit, now)
        if self.count is not None:
            wanted = min(wanted, self.count - self.at)
            if self.at >= self.count:
                return None
        if not wanted:
            return NOTHING_YET
        taken = list(itertools.islice(self.items, wanted))
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


def files_at(path: str, suffix: str = "") -> list[str]:
    """The files of a path: a file, a folder (without names that start with `.` or `_`), or a glob pattern. Raises
    `ConfigError` where there is none."""
    path = os.fspath(path)
    if os.path.isfile(path):
        found = [path]
    elif os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if not name.startswith((".", "_")) and name.endswith(suffix))
        found = [os.path.join(path, name) for name in names if os.path.isfile(os.path.join(path, name))]
    else:
        found = sorted(name for name in glob.glob(path) if os.path.isfile(name))
    if not found:
        raise ConfigError(f"there are no files at {path!r}")
    return [os.path.abspath(name) for name in found]


class TextFiles(Source):
    """The lines of text files (UTF-8), without their line ends. `path` is a file, a folder or a glob pattern. With
    `follow` files are read on as they grow, without end, and files that come later are read as well."""

    description = "text files"

    def __init__(self, path: str, *, follow: bool = False) -> None:
        self.path, self.follow = os.path.abspath(os.fspath(path)), follow
        self.bounded = not follow

    def splits(self, parallelism: int) -> abc.Sequence[str]:
        return files_at(self.path)

    def enumerator(self, parallelism: int, position: list[str] | None = None) -> Enumerator | None:
        return _Following(self.path, position) if self.follow else None

    def reader(self, split: str, position: int | None = None) -> Reader:
        return _Lines(split, position or 0, self.follow)


class _Following(Enumerator):
    """Finds the files that come to a path."""

    def __init__(self, path: str, found: list[str] | None) -> None:
        self.path = path
        self.found = dict.fromkeys(found or [])
        self.must_exist = found is None and not os.path.isdir(path)

    def discover(self, now: float) -> list[str]:
        try:
            there = files_at(self.path)
        except ConfigError:
            if self.must_exist:
                raise
            return []
        self.must_exist = False
        new = [path for path in there if path not in self.found]
        self.found.update(dict.fromkeys(new))
        return new

    @property
    def position(self) -> list[str]:
        return list(self.found)


class _Lines(Reader):
    def __init__(self, path: str, position: int, follow: bool) -> None:
        self.path, self.at, self.follow = path, position, follow
        self.file = open(path, "rb")  # noqa: SIM115 - closed by close()
        self.file.seek(position)
        self.rest = b""
        """What was read after the last line that was handed out."""

    def read(self, limit: int, now: float) -> Any:
        lines = self._lines(limit)
        while not lines:
            chunk = self.file.read(_CHUNK)
            if not chunk:
                if self.follow:
                    return NOTHING_YET
                if not self.rest:
                    return None
                self.rest += b"\n"  # the last line of a file may lack its end
                self.at -= 1
            self.rest += chunk
            lines = self._lines(limit)
        return lines

    def _lines(self, limit: int) -> list[str]:
        parts = self.rest.split(b"\n", limit)
        taken, self.rest = parts[:-1], parts[-1]
        lines = []
        for raw in taken:
            try:
                lines.append(raw.decode().removesuffix("\r"))
            except UnicodeDecodeError as error:
                raise ValueError(f"{self.path} at byte {self.at}: not UTF-8: {error}") from None
            self.at += len(raw) + 1
        return lines

    @property
    def position(self) -> int:
        return self.at

    def next_at(self, now: float) -> float:
        return now + 0.1

    def close(self) -> None:
        self.file.close()


class Parquet(Source):
    """The rows of Parquet files: named tuples, or record batches with `form="columns"`. `path` is a file, a folder or a
    glob pattern."""

    description = "parquet"

    def __init__(self, path: str, *, form: Form = "rows") -> None:
        if form not in ("rows", "columns"):
            raise ConfigError(f"Parquet: form is 'rows' or 'columns', not {form!r}")
        self.path, self.form = os.path.abspath(os.fspath(path)), form
        self.columns = tuple(pq.read_schema(files_at(self.path)[0]).names)

    def splits(self, parallelism: int) -> abc.Sequence[str]:
        return files_at(self.path)

    def reader(self, split: str, position: int | None = None) -> Reader:
        file = pq.ParquetFile(split)
        return Batches(file.iter_batches(batch_size=8192), position or 0, self.form, file.close)


class Batches(Reader):
    """Record batches of an iterator, cut to the asked size. The position is the number of rows read."""

    def __init__(
        self, batches: Iterable[pa.RecordBatch], position: int, form: Form, close: Callable[[], object]
    ) -> None:
        self.batches, self.at, self.form, self._close = iter(batches), 0, form, close
        self.current: pa.RecordBatch | None = None
        self.taken = 0
        self._skip(position)

    def _skip(self, count: int) -> None:
        while self.at < count and self._fill():
            assert self.current is not None
            step = min(count - self.at, self.current.num_rows - self.taken)
            self.taken += step
            self.at += step

    def _fill(self) -> bool:
        while self.current is None or self.taken >= self.current.num_rows:
            self.current, self.taken = next(self.batches, None), 0
            if self.current is None:
                return False
        return True

    def read(self, limit: int, now: float) -> Any:
        if not self._fill():
            return None
        assert self.current is not None
        part = self.current.slice(self.taken, limit)
        self.taken += part.num_rows
        self.at += part.num_rows
        return part if self.form == "columns" else rows_of(part)

    @property
    def position(self) -> int:
        return self.at

    def close(self) -> None:
        self.current = None
        self._close()


class ArrowFiles(Source):
    """Arrow IPC files with these columns, as `from_dataframe` writes them: immutable, one split a file."""

    description = "dataframe"

    def __init__(self, paths: list[str], columns: tuple[str, ...], form: Form) -> None:
        self.paths, self.columns, self.form = paths, columns, form

    def splits(self, parallelism: int) -> abc.Sequence[str]:
        return self.paths

    def reader(self, split: str, position: int | None = None) -> Reader:
        if not os.path.exists(split):
            raise ConfigError(
                f"{split} is not there any more: the files of a DataFrame live as long as the job's checkpoint folder, or, "
                f"where that is no local or shared path, as long as work_dir or the Spark session; start the job anew"
            )
        # What was read stays mapped; the file need not stay open, there may be many.
        with pa.memory_map(split) as mapped:
            file = pa.ipc.open_file(mapped.read_buffer())
        batches = (file.get_batch(i) for i in range(file.num_record_batches))
        return Batches(batches, position or 0, self.form, lambda: None)
