"""Sessions of streams in columns: with built-in aggregates they are in arrays (`sessionstate`), if their types allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.aggregates import Mean, Sum
from tailrace.elements.batches import Columns, Rows
from tailrace.elements.keyslots import is_text, key_slots
from tailrace.elements.rows import plain_values
from tailrace.elements.slottables import Slots
from tailrace.graph.graph import Node
from tailrace.task.channels.key_readers import column_of
from tailrace.task.operators.aggregates.accumulators import Answers, NotInArrays
from tailrace.task.operators.aggregates.arrow import GroupedBatch, one_zero
from tailrace.task.operators.aggregates.grouping import answers_by_code
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.late_records import set_aside
from tailrace.task.operators.windows.sessionbatch import BatchGroups
from tailrace.task.operators.windows.sessionbounds import gaps_in, groups_of, merge_all
from tailrace.task.operators.windows.sessionfront import SessionFront
from tailrace.task.operators.windows.sessionload import load
from tailrace.task.operators.windows.sessions import SessionTask
from tailrace.task.operators.windows.sessionstate import SessionState

Array = np.ndarray[Any, Any]


class ColumnSessionTask(SessionTask):
    """Session windows whose state is in arrays while it can be: from the first batch in columns until a batch comes that
    arrays cannot hold."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        selector: Any = self.keys.selector
        self._tupled = not isinstance(selector, str)
        self._key_names: list[str] = list(selector) if isinstance(selector, tuple) else [selector]
        self._state: SessionState | None = None
        """Sessions in arrays; None while they are in entries."""
        self._nulls = False
        """True if keys are known to be null now and then."""
        # Arrays must fit in memory, and a table on disk may be larger.
        self._in_columns = self.is_vectorised() and node.form == "columns" and self.table.base.mutable
        """True if arrays may be tried, or continued."""

    # Records in.

    def add(self, rows: Rows, keys: list[Any], merged: Array) -> Array:
        self._leave_columns()
        return super().add(rows, keys, merged)

    def take_columns(self, batch: Columns) -> None:
        merged = np.zeros(len(batch), np.bool_)
        if self._in_columns:
            gaps = self._gaps_in(batch)
            try:
                self._add_columns(batch, gaps, merged)
            except NotInArrays:
                self._leave_columns()
            else:
                self.order += len(batch)
                set_aside(self, batch, ~merged)
                return
        lists = list(map(plain_values, self._key_columns(batch), self._key_names))
        keys = list(zip(*lists, strict=True)) if self._tupled else lists[0]
        set_aside(self, batch, self.add(batch.to_rows(), keys, merged))

    def _add_columns(self, batch: Columns, gaps: Any, merged: Array) -> None:
        """Adds the records of a batch that are not late, and marks them. Raises `NotInArrays`; what is marked then was
        added."""
        state, keys = self._keys_in(batch)
        assert batch.times is not None
        times, reached = batch.times, self.ctx.watermark_time

        def add(some: Slots) -> None:
            self._add_some(state, batch, keys, gaps, some)
            merged[some] = True

        merge_all(state, keys, times, reached, add)

    def _add_some(self, state: SessionState, batch: Columns, keys: Slots, gaps: Any, some: Slots) -> None:
        assert batch.times is not None
        data, starts = batch.data, batch.times
        if len(some) < len(batch):
            data, starts, keys = data.take(pa.array(some)), starts[some], keys[some]
            gaps = gaps if isinstance(gaps, int) else gaps[some]
        groups = groups_of(state, keys, starts, gaps, self.order + 1 + some)
        state.merge(groups, self._answers(state, Columns(data, None), groups))

    def _answers(self, state: SessionState, data: Columns, groups: BatchGroups) -> Sequence[Answers]:
        found = answers_by_code(data, state.aggregates, state.kinds, groups.codes, len(groups.keys))
        if found is not None:
            return found
        grouped = GroupedBatch.of(self, data, self.keys.selector, self.functions, groups.codes)
        assert grouped.windows is not None
        sequence = pa.array(np.argsort(grouped.windows))
        return [[answer.take(sequence) for answer in answers] for answers in grouped.answers]

    def _gaps_in(self, batch: Columns) -> Any:
        """The gap of all records, or of each, in microseconds. Raises `UserCodeError` for what is no span above zero."""
        if self.gap_of is None:
            return self.gap
        gaps = gaps_in(column_of(batch, str(self.gap_of.selector), self.node.name, self.ctx.subtask))
        if gaps is not None:
            assert batch.times is not None
            self.check_range(int(gaps.max()), int(batch.times.min()), int(batch.times.max()))
            return gaps
        return np.array(self.gaps_of(batch.to_rows()), np.int64)  # which names the record that is wrong

    def _key_columns(self, batch: Columns) -> list[pa.Array]:
        where = self.node.name, self.ctx.subtask
        return [one_zero(column_of(batch, name, *where)) for name in self._key_names]

    def _keys_in(self, batch: Columns) -> tuple[SessionState, Slots]:
        """The state in arrays for batches like this one, and the slots of the keys of its records. Raises `NotInArrays`."""
        columns = self._key_columns(batch)
        kinds = [None if f.of is None else batch.data.column(f.of).type for f in self.functions]
        state = self._state
        if state is not None and not (state.keys.takes(columns) and kinds == state.kinds):
            self._into_entries(state)
            state = None
        if state is None:
            self._nulls = self._nulls or any(column.null_count for column in columns)
            state = self._load_state(columns, kinds)
        keys = state.keys.of_records(columns)
        if keys is None and len(columns) == 1 and is_text(columns[0].type) and not columns[0].null_count:
            encoded = pc.dictionary_encode(columns[0])
            keys = state.keys.slots([encoded.dictionary])[encoded.indices.to_numpy()]
        if keys is None:
            keys = state.keys.slots(columns)
        state.grow_keys()
        return state, keys

    def _load_state(self, columns: list[pa.Array], kinds: list[Any]) -> SessionState:
        keys = key_slots(columns, self._key_names, self._nulls, self._tupled)
        floats = any(
            type(f) in (Sum, Mean) and pa.types.is_floating(kind) for f, kind in zip(self.functions, kinds, strict=True)
        )
        # Entries add floats one by one, in another order than arrays do, and a worker that takes a lost one's place may have
        # the one where that had the other.
        if keys is None or (floats and self.ctx.services.exact):
            raise NotInArrays
        state = SessionState(keys, self.functions, kinds, self.reach)
        load(state, self.table, self._key_names, columns)
        self.table.front = SessionFront(state)
        self._state = state
        return state

    def _into_entries(self, state: SessionState) -> None:
        """Moves all sessions from arrays into entries."""
        self.table.settle()
        order = self.order
        self.table.front = self._state = None
        self.rebuild()
        self.order = order

    def _leave_columns(self) -> None:
        """Moves the sessions from arrays into entries until the next start, because a batch came that arrays cannot hold."""
        if self._state is not None:
            self._into_entries(self._state)
        self._in_columns = False

    # Sessions out.

    def next_event(self) -> int | None:
        return super().next_event() if self._state is None else self._state.next_time()

    def advance(self, time: int, limit: int) -> bool:
        state = self._state
        if state is None:
            return super().advance(time, limit)
        self.ctx.watermark_time = time
        self.reached.pass_by(time)
        self._emit_slots(state, state.due(time, limit))
        if state.ends.any_due(time, state.end):
            return False
        over = state.forget(time, limit)
        if self.table.frozen is None:
            state.tidy()
        return over

    def _emit_slots(self, state: SessionState, slots: Slots) -> None:
        if not len(slots):
            return
        keys = state.keys.columns(state.key[slots])
        starts, ends = state.start[slots], state.end[slots]
        values = state.results(slots, self.grouped_nothing().result_types)
        state.emit(slots)
        self.out(Columns(self.batch_of(keys, starts, ends, values), ends))
