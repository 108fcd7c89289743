"""Operators without state: fused row functions, and conversions between rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType
from typing import Any

import numpy as np

from tailrace.api.failure_options import FAIL
from tailrace.api.functions import Function, as_callable
from tailrace.elements.batches import Batch, Rows
from tailrace.elements.callables import not_one_value, one_for_several, run_to_its_end
from tailrace.elements.columns.kinds import plain_schema
from tailrace.errors import message_of
from tailrace.graph.graph import Node
from tailrace.graph.operators import Filter, FlatMap, Map, ToColumns
from tailrace.task.contract.usercode import ResultMisfit, fused_code, innermost_fused_frame, user_error
from tailrace.task.operators.base import OperatorTask, call_user, close_functions
from tailrace.task.operators.columns.conversion import columns_in, rows_in
from tailrace.task.operators.context import OperatorContext

FUSIBLE = (Map, Filter, FlatMap)


def is_fusible(node: Node) -> bool:
    """True if a node may be fused with others: it is a function of rows, and has no policy for records that fail."""
    return isinstance(node.operator, FUSIBLE) and node.on_error == FAIL


class FusedRows(OperatorTask):
    """Run of map, filter and flat_map as one generated loop.

    Each user function is called on a line of its own in the generated code. When one raises, the line of the innermost
    generated frame identifies its operator, and the frame's locals hold its record. (A comprehension would give neither:
    it has one line, and from Python 3.12 on its variables are gone once it is left.)
    """

    def __init__(self, nodes: list[Node], ctxs: list[OperatorContext]) -> None:
        super().__init__(nodes[-1], ctxs[-1])
        self.nodes = nodes
        self.ctxs = ctxs
        self.functions = [_function(node) for node in nodes]
        self.keeps_count = all(isinstance(node.operator, Map) for node in nodes)
        self._untried = {i for i, node in enumerate(nodes) if not isinstance(node.operator, FlatMap)}
        """Functions of one value that no record has come to. The results of each are checked in the first batch in which it
        is called: a filter that lets nothing pass does not make the check of those before it last."""
        self._plain, self._timed = self._compile()

    @property
    def entry(self) -> Node:
        return self.nodes[0]

    def open(self) -> None:
        for fn, ctx in zip(self.functions, self.ctxs, strict=True):
            if isinstance(fn, Function):
                call_user(fn.open, ctx, what="open", operator=ctx.name, subtask=ctx.subtask)

    def contexts(self) -> list[OperatorContext]:
        return self.ctxs

    def advance(self, time: int, limit: int) -> bool:
        for ctx in self.ctxs:
            ctx.watermark_time = time
        return True

    def _compile(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        self._checked = frozenset(self._untried)
        functions = [run_to_its_end(as_callable(fn)) for fn in self.functions]
        return compile_functions(self.nodes, functions, self._checked, self._untried.discard)

    def process(self, batch: Batch, port: int) -> None:
        rows = batch.to_rows()
        try:
            if rows.times is None:
                made = Rows(self._plain(rows.values), None, None, rows.split)
            elif self.keeps_count:
                made = Rows(self._plain(rows.values), rows.times, None, rows.split)
            else:
                values, times = self._timed(rows.values, rows.times.tolist())
                made = Rows(values, np.array(times, np.int64), None, rows.split)
        except Exception as error:
            raise self._locate(error) from error
        if len(self._untried) != len(self._checked):
            self._plain, self._timed = self._compile()
        if made.values:
            self.out(made)

    def _locate(self, error: Exception) -> Exception:
        at = innermost_fused_frame(error.__traceback__)
        if at is None:
            return self.user_error(error)
        index = self.index_at(at.tb_lineno)
        record = at.tb_frame.f_locals[input_names(self.nodes)[index]]
        what = None
        if isinstance(error, ResultMisfit):
            what = message_of(error)
        node = self.nodes[index]
        return user_error(error, node.name, self.ctx.subtask, record, what=what, written=node.written)

    def index_at(self, line: int) -> int:
        """Index of the function that a line of the generated code calls."""
        return min(max(line - _FIRST_LINE, 0), len(self.nodes) - 1)

    def close(self) -> None:
        close_functions(self.functions)


def _function(node: Node) -> Any:
    operator = node.operator
    assert isinstance(operator, FUSIBLE)
    return operator.fn


_FIRST_LINE = 4
"""Line of the generated code on which the first user function is called."""


MAX_FUSED = 16
"""Largest number of functions that are fused: each flat_map is a loop in a loop, and Python allows for twenty."""


def input_names(nodes: list[Node]) -> list[str]:
    """Variables of the generated code that hold each operator's record, and at the end the variable of the result."""
    names = ["x0"]
    for i, node in enumerate(nodes):
        names.append(names[i] if isinstance(node.operator, Filter) else f"x{i + 1}")
    return names


def compile_functions(
    nodes: list[Node],
    functions: list[Callable[..., Any]],
    checked: Collection[int] = (),
    note: Callable[[int], object] = id,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Generated functions: (values) -> values, and (values, times) -> (values, times). `checked`: the functions of one value
    whose results are checked; `note` is called with the index of each that was."""
    names, indent, lines = input_names(nodes), "    ", []
    for i, node in enumerate(nodes):
        call = f"f{i}({names[i]})"
        if isinstance(node.operator, Map):
            lines.append(f"{indent}{names[i + 1]} = {f'one({i}, {call})' if i in checked else call}")
        elif isinstance(node.operator, Filter):
            lines.append(f"{indent}if not {f'truth({i}, {call})' if i in checked else call}: continue")
        else:
            many = f"r if (k := (r := {call}).__class__) is list or k is generator or k is tuple else several(r)"
            lines.append(f"{indent}for {names[i + 1]} in {many}:")
            indent += "  "
    body = "\n".join(lines)
    plain = f"""def plain(values):
  out = []
  for x0 in values:
{body}
{indent}out.append({names[-1]})
  return out"""
    timed = f"""def timed(values, times):
  out = []; kept = []
  for x0, t in zip(values, times):
{body}
{indent}out.append({names[-1]}); kept.append(t)
  return out, kept"""
    scope: dict[str, Any] = {f"f{i}": fn for i, fn in enumerate(functions)}
    scope |= {
        "several": several_values,
        "generator": GeneratorType,
        "one": partial(_check, note, one_value),
        "truth": partial(_check, note, truth_value),
    }
    for source in (plain, timed):
        exec(fused_code(source), scope)
    return scope["plain"], scope["timed"]


def _check(note: Callable[[int], object], check: Callable[[Any], Any], index: int, given: Any) -> Any:
    note(index)
    return check(given)


def several_values(given: Iterable[Any] | None) -> Iterable[Any]:
    """Records of a flat_map that has returned none of the usual types. Raises `ResultMisfit` for one value, and for an
    object that cannot be iterated over."""
    if given is None:
        return ()
    wrong = one_for_several(given)
    if wrong is not None:
        raise ResultMisfit(f"flat_map must give records, and it returned one {wrong}; return [value], or yield it")
    try:
        return iter(given)
    except TypeError as error:
        raise ResultMisfit(f"flat_map must return an iterable or None ({message_of(error)})") from None


def one_value(given: Any) -> Any:
    """Value that a function of one value has returned. Raises `ResultMisfit` for anything that is no value: it would be
    taken for true, or for a record."""
    wrong = not_one_value(given)
    if wrong is not None:
        raise ResultMisfit(
            f"the function gave a {wrong}, and no value; return the value itself, a list of all for example, or use "
            f"flat_map for a function that yields"
        )
    return given


def truth_value(given: Any) -> Any:
    """Value that the function of a filter has returned. Raises `ResultMisfit` also for a function, which is always true."""
    if isinstance(given, _FUNCTIONS):
        raise ResultMisfit(
            f"the filter gave a function ({getattr(given, '__name__', given)}), and no truth value; call it: f()"
        )
    return one_value(given)


_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, partial)


class ToRowsTask(OperatorTask):
    """Converts columns to rows with names."""

    def process(self, batch: Batch, port: int) -> None:
        self.out(rows_in(self, batch))


class ToColumnsTask(OperatorTask):
    """Converts records of either form to record batches of a declared schema. Of a stream in columns it takes the columns
    that the schema names."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, ToColumns)
        self.schema = plain_schema(node.operator.schema)

    def process(self, batch: Batch, port: int) -> None:
        self.out(columns_in(self, batch, self.schema, select=True))
