"""Expressions of `pyarrow.compute`, evaluated on record batches: columns in, one column out, record by record.

Arrow can evaluate an expression on a batch only in a plan of its own engine. There a number in an expression takes the
smallest type that holds it: `pc.field("x") * 1.5` is computed in 32 bits. So an expression is taken apart into its calls, in
the form in which Arrow pickles it, and each call is a call of a function of `pyarrow.compute` on arrays: there 1 is 64 bits
wide, and 1.5 is a double.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.columns.encoding import plain_array
from tailrace.elements.columns.functions import rule_of
from tailrace.elements.columns.guards import plainly
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.mixed_types import LOOKUPS, Lookup

_Value = Callable[[pa.RecordBatch], Any]


class Formula:
    """A function from batches to columns, from an expression or the name of a column. Raises `ValueError` for an expression
    that is not evaluated record by record, or not known to be exact."""

    def __init__(self, expression: Any) -> None:
        self._found: list[str] = []
        if isinstance(expression, str):
            self._value = self._column(expression)
        else:
            pairs, constants = _serialize(expression)
            self._value = self._tree(*next(pairs), pairs, constants)
        self.fields = tuple(dict.fromkeys(self._found))
        """Names of the columns that the formula reads."""

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """The value of the formula for each record. Raises what Arrow raises, and `Misfit` for a missing column."""
        made = self._value(batch)
        if isinstance(made, pa.Scalar):
            return pa.repeat(made, batch.num_rows) if batch.num_rows else pa.repeat(made, 1).slice(0, 0)
        if len(made) != batch.num_rows:
            raise ValueError(f"pyarrow gave {len(made)} values for {batch.num_rows} records")
        return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """The type of the formula's values in batches of this schema. Raises what a call raises."""
        return self(pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)).type

    def _tree(self, key: str, value: str, pairs: Iterator[tuple[str, str]], constants: list[Any]) -> _Value:
        if key == "field_ref":
            return self._column(value)
        if key == "nested_field_ref":
            path = [next(pairs)[1] for _ in range(int(value))]
            column, inner = self._column(path[0]), path[1:]
            return lambda batch: pc.struct_field(column(batch), inner)
        if key == "literal":
            scalar = plain_array(constants[int(value)])[0]
            return lambda batch: scalar
        if key == "call":
            return self._call(value, pairs, constants)
        raise ValueError(
            f"this version of pyarrow writes {key!r} in it, which is not known here; use map_batches instead"
        )

    def _column(self, name: str) -> _Value:
        self._found.append(name)

        def column(batch: pa.RecordBatch) -> pa.Array:
            at = batch.schema.get_field_index(name)
            if at < 0:
                names = batch.schema.names
                how_many = f"are {names.count(name)} columns" if name in names else "is no column"
                raise Misfit(f"there {how_many} {name!r}; the stream has {', '.join(names)}")
            return batch.column(at)

        return column

    def _call(self, name: str, pairs: Iterator[tuple[str, str]], constants: list[Any]) -> _Value:
        arguments, written = [], None
        for key, value in pairs:
            if key == "end":
                break
            if key == "options":
                written = constants[int(value)]
            else:
                arguments.append(self._tree(key, value, pairs, constants))
        if name == _REQUIRE:
            return _requirement(*arguments)
        rule = rule_of(name)
        if not arguments:
            raise ValueError(f"pc.{name} is given no column, so that it does not depend on records")
        function = _function(rule.called or name)
        if name in LOOKUPS and written is not None:
            lookup, inner = Lookup(name, written[0]), arguments[0]
            return lambda batch: function.call(lookup.arguments(inner(batch)), lookup.options)
        options, scalars = None, dict[str, pa.Scalar]()
        if written is not None:
            options, scalars = _options(written), dict(written[0].items())
        guard = None if rule.guard is plainly else rule.guard
        seen, constant = list[pa.DataType](), False

        def call(batch: pa.RecordBatch) -> Any:
            nonlocal seen, constant
            given = [argument(batch) for argument in arguments]
            kinds = [one.type for one in given]
            if kinds != seen:
                rule.check(name, kinds)
                seen, constant = kinds, all(isinstance(one, pa.Scalar) for one in given)
            if guard is None:
                return function.call(given, options)
            if constant:
                return guard(function, [pa.repeat(one, 1) for one in given], options, scalars)[0]
            return guard(function, given, options, scalars)

        return call


_REQUIRE = "tailrace_require"


def require(value: Any, holds: Any, message: str) -> Any:
    """An expression with the value of `value`. It raises `ArrowInvalid` with the message if the condition `holds` is false
    for a record. It passes where it is null."""
    return pc.Expression._call(_REQUIRE, [value, holds, pc.scalar(message)])


def _requirement(value: _Value, holds: _Value, message: _Value) -> _Value:
    def call(batch: pa.RecordBatch) -> Any:
        found = holds(batch)
        if found.as_py() is False if isinstance(found, pa.Scalar) else pc.any(pc.invert(found)).as_py():
            raise pa.ArrowInvalid(message(batch).as_py())
        return value(batch)

    return call


def _function(name: str) -> Any:
    try:
        return pc.get_function(name)
    except KeyError:
        raise ValueError(f"this version of pyarrow has no function {name!r}; use map_batches") from None


def _serialize(expression: Any) -> tuple[Iterator[tuple[str, str]], list[Any]]:
    """An expression as Arrow writes it: its calls as pairs in the metadata of a batch, and its constants in the batch.
    Raises `ValueError` if Arrow cannot write it."""
    try:
        buffer = expression.__reduce__()[1][0]
    except pa.ArrowNotImplementedError as error:
        raise ValueError(f"it cannot be sent to the subtasks: {error}; give columns by name: pc.field('x')") from None
    batch = pa.ipc.open_file(buffer).get_batch(0)
    return _metadata(batch.schema), batch.columns


def _options(column: pa.Array) -> Any:
    """The options of a function, from the column that they are written in."""
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([column], names=[""])
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pc.FunctionOptions.deserialize(sink.getvalue())


class _ArrowSchema(ctypes.Structure):
    """The beginning of a schema in Arrow's C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """All pairs of a schema's metadata in order. (`schema.metadata` is a dictionary, and here keys repeat.)"""
    capsule = schema.__arrow_c_schema__()
    at = _ArrowSchema.from_address(_pointer_of(capsule, b"arrow_schema")).metadata

    def number() -> int:
        nonlocal at
        at += 4
        return ctypes.c_int32.from_address(at - 4).value

    def text() -> str:
        nonlocal at
        size = number()
        at += size
        return ctypes.string_at(at - size, size).decode()

    return iter([(text(), text()) for _ in range(number())])


def first_failing(formula: Formula, batch: pa.RecordBatch) -> int | None:
    """The index of the first record for which a formula raises, given that it raises for the batch. None if it also raises
    for a batch without records."""
    if _raises(formula, batch.slice(0, 0)):
        return None
    good, bad = 0, int(batch.num_rows)
    while bad - good > 1:
        middle = (good + bad) // 2
        if _raises(formula, batch.slice(0, middle)):
            bad = middle
        else:
            good = middle
    return bad - 1


def _raises(formula: Formula, batch: pa.RecordBatch) -> bool:
    try:
        formula(batch)
    except Exception:  # the caller has the error already
        return True
    return False
