"""Encodings of columns: dictionaries, runs and views have equal values in plain columns, which every part of Arrow can
process.

A stream has plain columns only. Columns from the user are made plain at the boundary; a sink that requires an encoding gets
it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.columns.kinds import is_plain, plain_type
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.pythonlists import python_list

_REFUSALS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ArithmeticError, ValueError, TypeError)
"""Errors of pyarrow for a value that it does not take, or cannot return."""


def plain_array(array: pa.Array, path: str = "") -> pa.Array:
    """An array of the plain type with the values of `array`. Raises `Misfit` for a nested type with a value that Python
    cannot hold."""
    while not is_plain(array.type):
        kind = array.type
        if isinstance(array, pa.DictionaryArray):
            array = _looked_up(array)
        elif pa.types.is_run_end_encoded(kind):
            array = pc.run_end_decode(array)
        elif kind == pa.string_view() or kind == pa.binary_view():
            array = array.cast(plain_type(kind))
        else:
            # Through Python: casts between layouts of lists lose items in Arrow 26.
            try:
                return pa.array(python_list(array), plain_type(kind))
            except _REFUSALS as error:
                raise Misfit(
                    f"column {path!r} of {kind} has a value that Python cannot hold, through which this type is made "
                    f"plain: {error}; cast the column before, to {plain_type(kind)}"
                ) from None
    return array


def _looked_up(array: pa.Array) -> pa.Array:
    values = plain_array(array.dictionary)
    return values.take(array.indices)


def encode(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """An array of plain values in a type that encodes them. Raises `Misfit` if the type cannot, as for a dictionary that is
    too small."""
    try:
        if pa.types.is_dictionary(kind) and is_plain(kind.value_type):
            return array.dictionary_encode().cast(kind)
        if kind in (pa.string_view(), pa.binary_view()):
            return array.cast(kind)
        if pa.types.is_run_end_encoded(kind) and is_plain(kind.value_type):
            return pc.run_end_encode(array, run_end_type=kind.run_end_type)
        if _holds_codes(kind):
            raise pa.ArrowNotImplementedError("a dictionary, or runs, inside of another type; declare the plain type")
        return pa.array(python_list(array), kind)
    except _REFUSALS as error:
        raise Misfit(f"column {path!r} is declared {kind}, which cannot hold its values: {error}") from None


def _holds_codes(kind: pa.DataType) -> bool:
    """True if a type has a dictionary or runs in it. Arrow 26 makes invalid arrays of these inside of other types."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return True
    return any(_holds_codes(kind.field(i).type) for i in range(kind.num_fields))
