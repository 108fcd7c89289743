"""Running aggregates per key: reduce, count, sum and their like.

In rows there is one output per record, and built-in aggregates run as one generated loop. In columns there is one output
per distinct key and batch. Arrow aggregates the batch first, and only its distinct keys touch the state. That state is in
columns as well (`state`) if its types allow it: from the first batch until a batch comes that columns cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal, Inexact, getcontext, localcontext
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.api.aggregates import Mean, Sum, is_builtin
from tailrace.api.functions import Function, as_callable
from tailrace.api.restore.compatibility import check_shape
from tailrace.api.restore.kinds import shape_of
from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.callables import PLAIN, check_kept
from tailrace.elements.columns.decimal_arithmetic import EXACT
from tailrace.elements.columns.schemas import OneSchema
from tailrace.elements.keygroups import storable
from tailrace.elements.plainkeys import parts_of
from tailrace.elements.slottables import Slots
from tailrace.errors import UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import Aggregate, Reduce
from tailrace.state.backend import Backend, MetaPart
from tailrace.state.tables import MISSING, StateTable
from tailrace.task.channels.copies import own_copy
from tailrace.task.channels.key_readers import FieldReader, key_of_state, key_reader, settled_keys
from tailrace.task.operators.aggregates.accumulators import NotInArrays
from tailrace.task.operators.aggregates.arrow import GroupedBatch, result_arrays
from tailrace.task.operators.aggregates.generated_loops import RowsLoop, compiled_merge
from tailrace.task.operators.aggregates.grouping import SlotGrouping
from tailrace.task.operators.aggregates.state import ColumnState, new_state
from tailrace.task.operators.base import OperatorTask, close_functions, new_journal
from tailrace.task.operators.columns.conversion import fit
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.functions import backend_of


class StatefulTask(OperatorTask):
    """Base of all aggregates: a key, one table of state, and functions that are opened and closed."""

    functions: list[Any]

    def __init__(self, node: Node, ctx: OperatorContext, key: Any, kind: str) -> None:
        super().__init__(node, ctx)
        self.keys = key_reader(node, key, ctx.subtask)
        self.backend: Backend = backend_of(ctx)
        self.table = self.backend.table("aggregate", kind=kind)
        self.functions = []
        self._looked = False
        self.journal = new_journal(node)

    def key_tables(self) -> list[StateTable]:
        """The tables by key, without timers."""
        return [self.table]

    def sample(self) -> slice:
        """Slice of a batch whose results are checked (`check_kept`): the whole first batch, and the last record of each
        other one. Checking each record would cost too much."""
        looked, self._looked = self._looked, True
        return slice(-1, None) if looked else slice(None)

    def check_kept(self, made: Iterable[Any], giver: str, *record: Any) -> None:
        """Raises `UserCodeError` if something that `giver` returned is not a value."""
        try:
            for one in made:
                check_kept(one, giver)
        except TypeError as error:
            raise self.user_error(error, *record) from error

    def open(self) -> None:
        for fn in self.functions:
            if isinstance(fn, Function):
                self.call_user(fn.open, self.ctx, what="open")

    def close(self) -> None:
        try:
            close_functions(self.functions)
        finally:
            self.backend.close()

    def state_entries(self) -> int:
        return self.backend.entries()

    def snapshot(self, checkpoint: int) -> bytes | None:
        return msgspec.msgpack.encode(shape_of(self.node.operator)) if self.backend.entries() else None

    def restore(self, parts: list[MetaPart]) -> None:
        for part in parts:
            if part.data is not None:
                check_shape(self.node, msgspec.msgpack.decode(part.data, type=list[str]))


class ReduceTask(StatefulTask):
    """Merges each record into the value of its key and emits the merged value."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, Reduce)
        super().__init__(node, ctx, node.operator.key, "reduce")
        self.functions = [node.operator.fn]
        self._reduce = as_callable(node.operator.fn)

    def process(self, batch: Batch, port: int) -> None:
        rows = batch.to_rows()
        keys = settled_keys(self.keys.values(rows))
        table, reduce, out, copies = self.table, self._reduce, [], self.ctx.services.copy_records
        top = table.top
        value: Any = None
        try:
            for value, key in zip(rows.values, keys, strict=True):
                before = top.get(key, MISSING)
                if before is MISSING:
                    before = table.find(key, MISSING)
                merged = top[key] = value if before is MISSING else reduce(before, value)
                out.append(own_copy(merged) if copies else merged)
        except Exception as error:
            raise self.user_error(error, value) from error
        if out:
            some = self.sample()
            for record, merged in zip(rows.values[some], out[some], strict=True):
                self.check_kept([merged], "the function of reduce", record)
        self.backend.relieve()
        self.out(Rows(out, rows.times))


class AggregateTask(StatefulTask):
    """Keeps one accumulator per aggregate and key and emits (key, result, …)."""

    one_schema_of = "input"

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, Aggregate)
        super().__init__(node, ctx, node.operator.key, "aggregate")
        self.names = [name for name, _ in node.operator.aggregates]
        self.functions = [aggregate for _, aggregate in node.operator.aggregates]
        self.builtin = self.table.replaced = all(map(is_builtin, self.functions))
        self.zero = tuple(f.create_accumulator() for f in self.functions) if self.builtin else ()
        self.inputs = [
            FieldReader(getattr(f, "of", None), node.name, ctx.subtask, node.written) for f in self.functions
        ]
        self._loop = RowsLoop(self.functions) if self.builtin else None
        self._read = self._loop.reads if self._loop is not None else []
        self._sums = [i for i in self._read if isinstance(self.functions[i], Sum | Mean)]
        self._careful = False
        """True once batches of rows need the careful way (`_carefully`)."""
        self.one_schema = OneSchema()
        self._merge: Callable[..., list[list[Any]]] | None = None
        self._state: ColumnState | None = None
        self._grouping: SlotGrouping | None = None
        # State in columns must fit in memory, and a table on disk may be larger. The order in which keys were met decides
        # the order of results, and a replay from a checkpoint meets keys in another order.
        self._in_columns = self.builtin and self.table.base.mutable and not ctx.services.exact
        """True if state in columns may be tried, or continued."""

    def process(self, batch: Batch, port: int) -> None:
        if isinstance(batch, Columns):
            self._columns(batch)
            self.backend.relieve()
            return
        if len(batch):
            self._leave_columns()
        if self._loop is not None:
            self._rows(batch, self._loop)
        else:
            self._general(batch)
        self.backend.relieve()

    def _rows(self, rows: Rows, loop: RowsLoop) -> None:
        values = rows.values
        if not values:
            return
        try:
            out = self._carefully(values, loop) if self._needs_care(values) else self._fast(values, loop)
        except UserCodeError:
            raise
        except Exception as error:
            raise self._record_error(error, values) from error
        if len(out) != len(values):  # a StopIteration from the user's function ends `map` without an error
            raise self._record_error(StopIteration(), values)
        if not (self._looked and PLAIN.issuperset(map(type, out[-1]))):
            some = self.sample()
            for value, (_, *results) in zip(values[some], out[some], strict=True):
                self.check_kept(results, "an aggregate", value)
        self.out(Rows(out, rows.times))

    def _fast(self, values: list[Any], loop: RowsLoop) -> list[Any]:
        """Results of the generated loop over records as they come. Rounded decimals, and keys that may have been
        confused, are detected after the loop."""
        context, careful = getcontext(), self._careful
        before, context.flags[Inexact] = context.flags[Inexact], False
        fields = [self.inputs[i].getter(values) for i in self._read]
        out = loop.over(values, self.keys.getter(values), fields, self.table.top, self._first)
        rounded, context.flags[Inexact] = context.flags[Inexact], context.flags[Inexact] or before
        if rounded and any(isinstance(item, Decimal) for record in out for item in _flat(record[1:])):
            what = "a sum of decimals among other numbers may have been rounded; give the aggregate decimals only"
            raise self.user_error(ArithmeticError(what), what=what)
        if self._careful is not careful:
            self._check_keys(values)
        return out

    def _carefully(self, values: list[Any], loop: RowsLoop) -> list[Any]:
        """Results of the generated loop with decimals that are not rounded, over keys that are settled first. The user's
        functions are called before that, in the context of the user: they may round their own decimals."""
        keys = settled_keys(list(map(self.keys.getter(values), values)))
        columns = [list(map(self.inputs[i].getter(values), values)) for i in self._read]
        with localcontext(EXACT):
            return loop.of(keys, columns, self.table.top, self._first)

    def _needs_care(self, values: list[Any]) -> bool:
        """True if there are decimals to sum, or keys that numpy would round when it compares. Only the first key and the
        first value of each sum are looked at; `_fast` detects such values later in a batch."""
        if not self._careful:
            with suppress(Exception):  # it is raised again, with its record, when the records are read
                self._careful = _mistakable(self.keys.getter(values)(values[0]))
                for i in self._sums:
                    first = next((x for x in map(self.inputs[i].getter(values), values) if x is not None), None)
                    self._careful = self._careful or isinstance(first, Decimal)
        return self._careful

    def _check_keys(self, values: list[Any]) -> None:
        """Raises `UserCodeError` for a key that is a number of numpy. Called when a key came in the midst of a batch that
        numpy may take for another one."""
        for value in values:
            key = self.keys.getter(values)(value)
            if any(isinstance(item, np.generic) for item in (key, *parts_of(key))):
                what = (
                    "numpy may take this key for another one, as it rounds to compare; use a Python number: key.item()"
                )
                raise self.user_error(ValueError(what), value, what=what)

    def _first(self, key: Any) -> tuple[Any, ...]:
        """State of a key that the top of the table does not find as it is: a state from below, a new one, or the state of
        a NaN. It begins with the key as the table holds it now, since a restored state begins with another NaN object."""
        held, table = key_of_state(key), self.table
        self._careful = self._careful or _mistakable(held)
        found: tuple[Any, ...] | None = table.top.get(held)
        if found is None and table.layered:
            found = table.find(held)
        if found is None:
            return (held, *self.zero)
        return found if found[0] is held else (held, *found[1:])

    def _record_error(self, error: Exception, values: list[Any]) -> Exception:
        """Error of the first record that fails: its field cannot be read, or its value cannot be added to the state of
        its key."""
        for reader in (self.keys, *self.inputs):
            try:
                reader.values(Rows(values))
            except UserCodeError as found:
                return found
        keys, *fields = [reader.getter(values) for reader in (self.keys, *self.inputs)]
        for value in values:
            state = self._first(keys(value))[1:]
            for aggregate, field, accumulator in zip(self.functions, fields, state, strict=True):
                try:
                    aggregate.add(field(value), accumulator)
                except Exception as again:
                    return self.user_error(again, value)
        return self.user_error(error)

    def _general(self, rows: Rows) -> None:
        table, top, out, copies = self.table, self.table.top, [], self.ctx.services.copy_records
        keys = settled_keys(self.keys.values(rows))
        readers = [reader.getter(rows.values) for reader in self.inputs] if rows.values else []
        value: Any = None
        try:
            for value, key in zip(rows.values, keys, strict=True):
                found = top.get(key)
                if found is None:
                    found = table.find(key)
                # An accumulator of its own for each key, in case the user's function changes it in place.
                state = found[1:] if found is not None else [f.create_accumulator() for f in self.functions]
                made = [f.add(g(value), a) for f, g, a in zip(self.functions, readers, state, strict=True)]
                top[key] = (key, *made)
                result = (key, *[f.get_result(a) for f, a in zip(self.functions, made, strict=True)])
                out.append(own_copy(result) if copies else result)  # it may be the accumulator itself
        except Exception as error:
            raise self.user_error(error, value) from error
        if out:
            some = self.sample()
            for record, key, (_, *results) in zip(rows.values[some], keys[some], out[some], strict=True):
                self.check_kept([*top[key][1:], *results], "an aggregate", record)
        self.out(Rows(out, rows.times))

    def _columns(self, batch: Columns) -> None:
        if not len(batch):
            return
        batch = Columns(fit(self, batch.data), batch.times)
        grouped, slots = self._group(batch)
        arrays = self._merge_groups(grouped, slots)
        if arrays is None:
            arrays = self._merged_one_by_one(grouped)
        data = pa.RecordBatch.from_arrays([*grouped.key_columns, *arrays], names=[*grouped.key_names, *self.names])
        times = None if grouped.times is None else np.asarray(grouped.times, np.int64)
        self.out(Columns(data, times))

    def _group(self, batch: Columns) -> tuple[GroupedBatch, Slots | None]:
        """Groups of a batch by its distinct keys, and the slots of these keys if they are known."""
        if self._state is not None and self._grouping is not None:
            found = self._grouping.group(batch, self._state.keys)
            if found is not None:
                return found
        grouped = GroupedBatch.of(self, batch, self.keys.selector, self.functions)
        if self._in_columns and (self._grouping is None or self._grouping.schema != batch.data.schema):
            self._grouping = SlotGrouping(batch.data.schema, grouped)
        return grouped, None

    def _merge_groups(self, grouped: GroupedBatch, slots: Slots | None) -> list[pa.Array] | None:
        """Results of a batch, merged into state in columns; None if that is not possible."""
        if not self._in_columns:
            return None
        try:
            return self._state_for(grouped).merge(grouped, slots)
        except NotInArrays:
            self._leave_columns()
            return None

    def _state_for(self, grouped: GroupedBatch) -> ColumnState:
        """State in columns that takes a batch: a new one if the batch has other types than the last one. Raises
        `NotInArrays`."""
        state = self._state
        if state is not None and not state.takes(grouped):
            self.table.settle()
            nulls, self._state, self.table.front = state.keys.nulls, None, None
            state = new_state(self.table, grouped, nulls)
        elif state is None:
            state = new_state(self.table, grouped, False)
        if state is None:
            raise NotInArrays
        self._state = self.table.front = state
        return state

    def _leave_columns(self) -> None:
        """Moves the state from columns into entries until the next start, because a batch came that columns cannot hold."""
        if self._state is not None:
            self.table.settle()
        self._state = self.table.front = self._grouping = None
        self._in_columns = False

    def _merged_one_by_one(self, grouped: GroupedBatch) -> list[pa.Array]:
        merge = self._merge = self._merge or compiled_merge(self.functions)
        keys, partials = settled_keys(grouped.keys()), grouped.partials()
        with localcontext(EXACT):
            results = merge(keys, self.table.top, self._first, *partials)
        return result_arrays(self, self.names, results, grouped.result_types)


def _mistakable(key: Any) -> bool:
    """True if this key is a number of numpy, or if numpy may take one for it (see `elements.keys`)."""
    if isinstance(key, np.generic):
        return True
    if isinstance(key, int | float | Decimal):
        return not storable(key)
    return any(map(_mistakable, parts_of(key)))


def _flat(items: tuple[Any, ...]) -> Iterator[Any]:
    for item in items:
        yield from item if isinstance(item, tuple) else (item,)
