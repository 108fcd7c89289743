"""The sink that calls a function of the user with a DataFrame behind each complete checkpoint: `tr.sinks.ForeachBatch`.

Workers write Parquet files, and the publication of a checkpoint creates a *unit*: the list of its files, under the next
number, in one atomic act. The driver calls the function for one unit after the other, and notes each that is done.

    part-….parquet         files of workers; those that no unit names are not published
    units/<number>         a unit: the names of its files
    done/<number>          the function has returned for this unit
    settled/<number>       nobody will publish the files of this unit once more

Invariant SB3: a file is in one unit, and the function is not called for a unit that is noted as done. A unit stays until it
is done and settled, and the newest one always: numbers do not repeat.
"""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow.parquet as pq

from tailrace.api.connectors import SinkContext, SinkWriter
from tailrace.connectors import hidden
from tailrace.connectors.filesinks import FileSink
from tailrace.connectors.hidden import FileOrigin
from tailrace.connectors.travelling import Reading, ResultFolder, check_sign, leave_sign
from tailrace.elements.callables import misfit_function
from tailrace.errors import ConfigError
from tailrace.spark.data.dataframe_files import DataFrame, parquet_files
from tailrace.spark.data.places import FilePlace, Places
from tailrace.spark.data.schemas import spark_schema

_UNITS, _DONE, _SETTLED = "units", "done", "settled"
_NUMBER = re.compile(r"\d{12}")
_locks: dict[str, threading.Lock] = {}
"""A lock for each folder: a cancelled job of this process may still be in a call when the next one starts."""


class Units(ResultFolder):
    """The folder of such a sink, for all who use it."""

    def numbers(self, kind: str) -> list[int]:
        """The numbers of the units, or of notes about them, in order."""
        names = [entry.name.rpartition("/")[2] for entry in self.folder.entries(kind)]
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def files_of(self, number: int) -> list[str]:
        """The names of the files of a unit; none if it is gone."""
        try:
            return msgspec.json.decode(self.folder.read(f"{_UNITS}/{number:012d}"), type=list[str])
        except FileNotFoundError:
            return []

    def publish(self, prepared: Sequence[bytes]) -> None:
        """Makes a unit of finished files, without those that are in a unit already. Raises `FileNotFoundError` if one of
        them is missing."""
        while True:
            numbers = self.numbers(_UNITS)
            known = {name for number in numbers for name in self.files_of(number)}
            new = sorted(hidden.names_in(prepared) - known)
            for name in new:
                if not self.folder.exists(name):
                    raise FileNotFoundError(
                        f"{self.folder.url_of(name)}: prepared, and not there any more; somebody has removed it, and its "
                        f"records are lost"
                    )
            if not new:
                return
            with contextlib.suppress(FileExistsError):  # another publisher was faster: its unit may have these files
                number = numbers[-1] + 1 if numbers else 0
                self.folder.create(f"{_UNITS}/{number:012d}", msgspec.json.encode(new))
                return

    def settle(self, prepared: Sequence[bytes]) -> None:
        """Notes the units whose files nobody will publish once more."""
        names = hidden.names_in(prepared)
        settled = set(self.numbers(_SETTLED))
        for number in self.numbers(_UNITS):
            if number not in settled and names.issuperset(self.files_of(number)):
                self.note(_SETTLED, number)

    def note(self, kind: str, number: int) -> None:
        """Notes something about a unit."""
        with contextlib.suppress(FileExistsError):
            self.folder.create(f"{kind}/{number:012d}", b"")

    def finish(self, number: int) -> None:
        """Notes that a unit is done, and removes its files."""
        self.note(_DONE, number)
        self.folder.delete(self.files_of(number))

    def forget(self) -> None:
        """Removes units that are done and settled, but the newest."""
        gone = set(self.numbers(_DONE)) & set(self.numbers(_SETTLED)) - set(self.numbers(_UNITS)[-1:])
        self.folder.delete([f"{_UNITS}/{number:012d}" for number in gone])  # first: else they would be called once more
        self.folder.delete([f"{kind}/{number:012d}" for kind in (_DONE, _SETTLED) for number in gone])

    def open_units(self) -> list[int]:
        """The numbers of the units that are not done, in order."""
        done = set(self.numbers(_DONE))
        return [number for number in self.numbers(_UNITS) if number not in done]

    def sweep(self, goes: Callable[[FileOrigin], bool], keep: set[str], *, traces: bool = True) -> None:
        known = keep | {name for number in self.numbers(_UNITS) for name in self.files_of(number)}
        gone = []
        for entry in self.folder.entries():
            origin = None if entry.folder else hidden.origin_of(entry.name)
            if origin is not None and entry.name not in known and goes(origin):
                gone.append(entry.name)
        self.folder.delete(gone)


class ForeachBatch(FileSink):
    """A sink that calls `fn(df, number)` in the driver, behind each complete checkpoint that has records: `df` is a Spark
    DataFrame of them."""

    description = "foreach batch"
    position_format = "ForeachBatch"

    def __init__(self, fn: Callable[[Any, int], object], schema: Any = None) -> None:
        if not callable(fn):
            raise ConfigError(f"ForeachBatch takes a function of a DataFrame and a number, not {fn!r}")
        wrong = misfit_function(fn)
        if wrong is not None:
            raise ConfigError(f"ForeachBatch: {getattr(fn, '__name__', type(fn).__name__)} {wrong}")
        self.fn: Callable[[Any, int], object] | None = fn
        self._frame = DataFrame(schema)
        self.schema = self._frame.schema
        self.form = "columns"
        self.options: Mapping[str, Any] | None = None
        self.shared = False
        self.spark: Any = None
        self.last: int | None = None
        """The number of the last call that has returned."""
        self.calls: int | None = None
        """The number of the last call that was made."""

    @property
    def place(self) -> str | None:
        return None

    # Before the job runs, in the driver.

    def bind(self, spark: Any, place: FilePlace, begins_anew: bool) -> None:
        """Takes the session and the folder. In a job that `begins_anew`, units of an earlier run are given up: their records
        come once more."""
        self.spark, self.path, self.options, self.shared = spark, place.url, place.options, place.shared
        self._frame.prepare(spark, lambda: None)
        leave_sign(place.url, place.options)
        if begins_anew:
            units = self._units()
            for number in units.open_units():
                units.finish(number)

    # In workers.

    def writer(self, ctx: SinkContext) -> SinkWriter:
        if self.path is None:
            raise ConfigError(
                "ForeachBatch: the function is called with a Spark DataFrame, so the job must run on Spark"
            )
        if self.shared:
            check_sign(self.path)
        return self._frame.writer_into(self._units(), ctx)

    def _make_visible(self, prepared: Sequence[bytes]) -> None:
        self._units().publish(prepared)

    def settled(self, prepared: Sequence[bytes]) -> None:
        self._units().settle(prepared)
        self._unsettled -= frozenset(prepared)

    def _units(self) -> Units:
        assert self.path is not None
        return Units(self.path, self.options)

    def _folder(self, path: str) -> Units:
        return Units(path, self.options)

    # The calls, in the driver.

    def call(self, goes_on: Callable[[], bool]) -> None:
        """Calls the function for each unit that is not done, in order, while `goes_on`. Raises what the function raises."""
        assert self.path is not None and self.fn is not None
        units = self._units()
        with _locks.setdefault(self.path, threading.Lock()):
            for number in units.open_units():
                if not goes_on():
                    return
                self.calls = number
                self.fn(self._rows(units, number), number)
                units.finish(number)
                self.last = number
            units.forget()

    def _rows(self, units: Units, number: int) -> Any:
        """The records of a unit, as a DataFrame."""
        names = units.files_of(number)
        columns = self.schema
        if columns is None:
            with io.BufferedReader(Reading(units.folder, names[0])) as file:
                columns = pq.read_schema(file)
        files = [units.folder.url_of(name) for name in names]
        return parquet_files(self.spark, files, spark_schema(columns), self.options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fn": None, "spark": None}  # both stay in the driver


def foreach_place(places: Places, uid: str) -> FilePlace:
    """The folder of the sink with this uid."""
    return places.lasting(f"foreach-{hidden.whose(uid)}")
