"""Base of all kinds of windows: the functions that are aggregated, late records, and results in rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from tailrace.api.aggregates import is_builtin
from tailrace.api.functions import as_callable
from tailrace.elements.batches import Batch, Columns, Rows, Times
from tailrace.elements.columns.schemas import OneSchema
from tailrace.elements.rows import made_rows
from tailrace.errors import IncompatibleState, short_repr
from tailrace.graph.graph import Node
from tailrace.graph.operators import SessionWindow, Window, key_columns
from tailrace.task.channels.key_readers import FieldReader
from tailrace.task.contract.failedcall import RESULT
from tailrace.task.contract.usercode import raised_text
from tailrace.task.operators.aggregates.arrow import GroupedBatch, result_arrays
from tailrace.task.operators.aggregates.running import StatefulTask
from tailrace.task.operators.columns.conversion import fit
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.late_records import Floors, least_time
from tailrace.task.operators.windows.windowtimes import check_room

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Fired = tuple[Any, int, int, Any]
"""Window that fires: (key, start, end, current state)."""


class WindowedTask(StatefulTask):
    """Operator that aggregates the records of each key and window."""

    one_schema_of = "input"
    before_end = 1
    """Microseconds from the timestamp of a result to the end of its window."""
    labels: Mapping[str, pa.DataType] = MappingProxyType({})
    """Names and types of what a result has behind the results of the functions."""

    def __init__(self, node: Node, ctx: OperatorContext, operator: Window | SessionWindow, kind: str) -> None:
        super().__init__(node, ctx, operator.key, kind)
        self.reduce = as_callable(operator.reduce) if operator.reduce is not None else None
        self.functions = [operator.reduce] if operator.reduce is not None else [f for _, f in operator.aggregates]
        self.inputs = [
            FieldReader(getattr(f, "of", None), node.name, ctx.subtask, node.written) for f in self.functions
        ]
        names = (*(("value",) if self.reduce else (name for name, _ in operator.aggregates)), *self.labels)
        self.names = names
        self.in_loop = node.scope.level > 0
        self._key = operator.key
        self.bounds = operator.bounds
        self.reached = Floors(node, ctx)
        self._columns_of_rows = (*key_columns(operator.key), "start", "end", *names)
        self.one_schema = OneSchema()
        self._types: tuple[pa.Schema, GroupedBatch] | None = None
        """Schema of the input in columns, and what a batch of it without records comes to, which gives the types of
        results."""

    # Records in.

    def process(self, batch: Batch, port: int) -> None:
        if not len(batch):
            return
        least = least_time(self, batch, "a window")
        assert batch.times is not None
        self.check_range(self.room, least, int(batch.times.max()))
        self.reached.take(batch, self._key, self._take)

    def restore_floors(self, floors: list[tuple[int, int, int]]) -> None:
        self.reached.ranges = floors

    def floors(self) -> list[tuple[int, int, int]]:
        return self.reached.ranges

    def _take(self, batch: Batch) -> None:
        if isinstance(batch, Columns) and self.is_vectorised():
            self.take_columns(Columns(fit(self, batch.data), batch.times))
        else:
            self.take_rows(batch.to_rows())

    def take_rows(self, rows: Rows) -> None:
        """Takes records in rows, with timestamps."""
        raise NotImplementedError

    def take_columns(self, batch: Columns) -> None:
        """Takes records in columns, with timestamps, if all aggregates are built in."""
        raise NotImplementedError

    @property
    def room(self) -> int:
        """Microseconds from a timestamp to the ends of its windows, at most."""
        raise NotImplementedError

    def check_range(self, room: int, *times: int) -> None:
        """Raises `UserCodeError` for a timestamp so near to the ends of time that its windows would lie beyond them."""
        try:
            check_room(room, *times)
        except OverflowError as error:
            raise self.user_error(error) from error

    def is_vectorised(self) -> bool:
        """True if Arrow can aggregate batches in columns."""
        return self.reduce is None and all(map(is_builtin, self.functions))

    # Results out.

    def fire(self, fired: list[Fired]) -> None:
        """Emits the results of windows."""
        self.send(fired, list(map(self.results_of, fired)))

    def send(self, fired: list[Fired], results: list[tuple[Any, ...]]) -> None:
        """Emits results: of each window those of its functions, and its labels."""
        if not fired:
            return
        some = self.sample()
        for (key, start, _, state), result in zip(fired[some], results[some], strict=True):
            made, giver = (result, "reduce") if self.reduce is not None else ((*state, *result), "an aggregate")
            self.check_kept(made, f"{giver}, in {place_of(key, start)},")
        times = np.array([end for _, _, end, _ in fired], np.int64) - self.before_end
        if self.node.form == "columns":
            self.out(Columns(self._record_batch(fired, results), times))
            return
        several, bound = isinstance(self._key, tuple), _bound_in(self.bounds)
        try:
            values = [
                (*(key if several else (key,)), bound(start), bound(end), *result)
                for (key, start, end, _), result in zip(fired, results, strict=True)
            ]
        except OverflowError as error:
            what = "the start or the end of a window is in no year that a datetime has; use bounds='seconds'"
            raise self.user_error(error, what=what) from error
        self.out(Rows(made_rows(self._columns_of_rows, values), times))

    def results_of(self, fired: Fired) -> tuple[Any, ...]:
        """The results of the functions for a window."""
        key, start, _, state = fired
        if self.reduce is not None:
            return (state,)
        try:
            return tuple([f.get_result(a) for f, a in zip(self.functions, state, strict=True)])
        except Exception as error:
            where = place_of(key, start)
            made = self.user_error(error, what=f"{where}: get_result raised {raised_text(error)}")
            made.call.what = RESULT
            raise made from error

    def _record_batch(self, fired: list[Fired], results: list[tuple[Any, ...]]) -> pa.RecordBatch:
        grouped = self.grouped_nothing()
        keys = [key for key, _, _, _ in fired]
        lists = list(zip(*keys, strict=True)) if grouped.tupled else [keys]
        arrays = result_arrays(self, grouped.key_names, lists, [column.type for column in grouped.key_columns])
        starts, ends = (np.array([one[i] for one in fired], np.int64) for i in (1, 2))
        types = [*grouped.result_types, *self.labels.values()]
        values = result_arrays(self, self.names, list(zip(*results, strict=True)), types)
        return self.batch_of(arrays, starts, ends, values)

    def batch_of(
        self, keys: Sequence[pa.Array], starts: Times, ends: Times, values: Sequence[pa.Array]
    ) -> pa.RecordBatch:
        """Results in columns."""
        bounds = [
            pa.array(times / 1e6) if self.bounds is None else pa.array(times, bound_type(self.bounds))
            for times in (starts, ends)
        ]
        arrays = [*keys, *bounds, *values]
        names = [*self.grouped_nothing().key_names, "start", "end", *self.names]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def grouped_nothing(self) -> GroupedBatch:
        """Groups of a batch without records: the types of keys and results follow from the one schema of the input.
        Raises `IncompatibleState` if that schema is unknown."""
        schema = None if self.one_schema is None else self.one_schema.schema
        if schema is None:
            raise IncompatibleState(
                f"operator {self.node.name!r} (uid {self.ctx.uid!r}): the checkpoint holds windows of a stream in rows, and "
                f"it is in columns now; declare its schema, with to_columns(schema) in front of it"
            )
        if self._types is None or self._types[0] is not schema:
            empty = pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)
            nothing = np.empty(0, np.int64)
            grouped = GroupedBatch.of(self, Columns(empty, nothing), self.keys.selector, self.functions, nothing)
            self._types = (schema, grouped)
        return self._types[1]


def bound_type(zone: str | None) -> pa.DataType:
    """Type of the start and the end of a window in columns: a timestamp in this time zone, or (None) seconds."""
    return pa.float64() if zone is None else pa.timestamp("us", zone)


def _bound_in(zone: str | None) -> Callable[[int], Any]:
    """The form of bounds in rows: datetimes in this time zone, or (None) seconds."""
    if zone is None:
        return lambda time: time / 1e6
    place = UTC if zone == "UTC" else ZoneInfo(zone)
    return lambda time: (_EPOCH + timedelta(microseconds=time)).astimezone(place)


def place_of(key: Any, start: int) -> str:
    """The key and the start of a window, for errors."""
    return f"the window of key {short_repr(key)} from {start / 1e6}"
