"""Operators given by expressions of `pyarrow.compute`: no Python per record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.verbs.columns import no_condition
from tailrace.elements.batches import Batch, Columns
from tailrace.elements.columns.expressions import Formula, first_failing
from tailrace.elements.columns.schemas import OneSchema
from tailrace.errors import UserCodeError, error_text
from tailrace.graph.declared import selected_schema
from tailrace.graph.graph import Node
from tailrace.graph.operators import FilterColumns, Select
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.columns.conversion import fit, record_at
from tailrace.task.operators.context import OperatorContext


class ExpressionTask(OperatorTask):
    """Base of operators with expressions. A failure is the user's error, with the first record that causes it."""

    def formula(self, expression: Any) -> Formula:
        """Expression of the user, ready to be called. Raises `UserCodeError` for an invalid one."""
        try:
            return Formula(expression)
        except ValueError as error:
            raise self.user_error(error.with_traceback(None), what=str(error)) from error

    def failure(self, error: Exception, formula: Formula, data: pa.RecordBatch, what: str) -> UserCodeError:
        """The user's error for what a formula raised on a batch."""
        at = first_failing(formula, data)
        record = () if at is None else (record_at(data, at),)
        message = f"{what} cannot be computed: {error_text(error)}"
        return self.user_error(error.with_traceback(None), *record, what=message)


class SelectTask(ExpressionTask):
    """`select` and `with_columns`. Each record keeps its timestamp."""

    one_schema_of = "output"

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, Select)
        self.spec = node.operator
        self.formulas = {name: self.formula(expression) for name, expression in node.operator.columns}
        self.one_schema = OneSchema()
        self._given: pa.Schema | None = None
        self._made: pa.Schema = None
        """Schema of the last batch that came (`_given`), and of the batch made of it."""

    def process(self, batch: Batch, port: int) -> None:
        assert isinstance(batch, Columns)
        data = batch.data
        found = {name: self._column(name, formula, data) for name, formula in self.formulas.items()}
        if self._given is None or not data.schema.equals(self._given):
            self._check_names(data.schema.names)
            self._given, self._made = data.schema, selected_schema(self.spec, data.schema)
        arrays = [found[name] if name in found else data.column(name) for name in self._made.names]
        made = pa.RecordBatch.from_arrays(arrays, schema=self._made)
        self.out(Columns(fit(self, made), batch.times, None, batch.split))

    def _check_names(self, names: list[str]) -> None:
        twice = sorted({name for name in names if names.count(name) > 1})
        if self.spec.keeps and twice:
            listed = ", ".join(map(repr, twice))
            what = f"several columns are named {listed}; the batch has {', '.join(names)}; give each a name of its own"
            raise self.user_error(ValueError(what), what=what)

    def _column(self, name: str, formula: Formula, data: pa.RecordBatch) -> pa.Array:
        try:
            return formula(data)
        except Exception as error:
            raise self.failure(error, formula, data, f"column {name!r}") from error


class FilterColumnsTask(ExpressionTask):
    """`filter` by a column or an expression. As in SQL, a record for which it is null is not kept."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, FilterColumns)
        self.predicate = node.operator.condition
        self.condition = self.formula(self.predicate)

    def process(self, batch: Batch, port: int) -> None:
        assert isinstance(batch, Columns)
        data = batch.data
        try:
            mask = self.condition(data)
        except Exception as error:
            raise self.failure(error, self.condition, data, "the condition") from error
        if pa.types.is_null(mask.type):
            return
        if not pa.types.is_boolean(mask.type):
            raise self.user_error(TypeError(no_condition(self.predicate, mask.type)))
        kept = mask.true_count
        if kept == len(mask):
            self.out(Columns(data, batch.times, None, batch.split))
        elif kept:
            times = batch.times
            if times is not None:
                times = times[np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))]
            self.out(Columns(data.filter(mask), times, None, batch.split))
