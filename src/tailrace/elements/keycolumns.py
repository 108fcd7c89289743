"""The key groups of columns. They are equal to the key groups of these records as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.batches import Groups
from tailrace.elements.columns.pythonlists import python_list
from tailrace.elements.keygroups import KeyGroups
from tailrace.elements.keys import UnsupportedKey

_Codes = np.ndarray[Any, np.dtype[np.int64]]


def groups_of_arrow(array: pa.Array | pa.ChunkedArray | Sequence[pa.Array], cache: KeyGroups) -> Groups:
    """The key groups of an Arrow array or chunked array, or of a list of them: a composite key, which is a tuple.

    They are equal to the key groups of these records as rows: each distinct value is taken as the Python object that a row
    holds (a null is None) and goes through the cache for rows. Raises `UnsupportedKey`.
    """
    if isinstance(array, pa.Array) and pa.types.is_integer(array.type) and not array.null_count:
        if array.type != pa.uint64():
            return cache.groups_of_integers(array.to_numpy().astype(np.int64, copy=False))
    if isinstance(array, pa.Array | pa.ChunkedArray):
        codes, values = _codes_of(array)
        return cache.groups_of(values)[codes]
    codes, keys = _composite_codes([_codes_of(column) for column in array])
    return cache.groups_of(keys)[codes]


def _codes_of(column: pa.Array | pa.ChunkedArray) -> tuple[_Codes, list[Any]]:
    """(codes, values): a column as Python values, and for each record the index of its value. Values may repeat."""
    if isinstance(column, pa.Array):
        return _chunk_codes(column)
    all_codes, all_values = [np.empty(0, np.int64)], list[Any]()
    for chunk in column.chunks:
        codes, values = _chunk_codes(chunk)
        all_codes.append(codes + len(all_values))
        all_values += values
    return np.concatenate(all_codes), all_values


def _chunk_codes(chunk: pa.Array) -> tuple[_Codes, list[Any]]:
    if isinstance(chunk, pa.DictionaryArray):
        codes, dictionary = _only_used(_indices(chunk), chunk.dictionary)
    else:
        try:
            encoded = chunk.dictionary_encode()
        except pa.ArrowNotImplementedError:  # UUIDs, small decimals; lists and structs, which groups_of refuses
            return np.arange(len(chunk)), _python_values(chunk)
        codes, dictionary = _indices(encoded), encoded.dictionary
    values = _python_values(dictionary)
    values.append(None)  # _indices points nulls here
    return codes, values


def _indices(encoded: pa.DictionaryArray) -> _Codes:
    """The indices of a dictionary array; a null has the index after the last entry of the dictionary."""
    indices = encoded.indices.cast(pa.int64()).fill_null(len(encoded.dictionary))
    codes: _Codes = indices.to_numpy(zero_copy_only=False)
    return codes


def _only_used(codes: _Codes, dictionary: pa.Array) -> tuple[_Codes, pa.Array]:
    """(codes, dictionary) without unused entries of the dictionary: rows would not have them, and they may not be keys."""
    used = np.zeros(len(dictionary) + 1, np.bool_)
    used[codes] = True
    if used[:-1].all():
        return codes, dictionary
    try:
        values = dictionary.take(pa.array(np.flatnonzero(used[:-1])))
    except pa.ArrowNotImplementedError:  # views of texts and bytes, all of which may be keys
        return codes, dictionary
    # If there are nulls, their index is used, and so it stays after the last value.
    places = np.cumsum(used) - 1
    return places[codes], values


def _python_values(array: pa.Array) -> list[Any]:
    """The values of an array as rows hold them. Raises `UnsupportedKey` for a time that Python cannot hold."""
    kind = array.type
    if array.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        numbers: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return numbers
    try:
        return python_list(array)
    except (OverflowError, ValueError) as error:  # a time that Python's calendar does not have
        raise UnsupportedKey(
            f"a value of a column of type {kind} cannot be a key: {error}; cast the column, for example to int64"
        ) from error


def _composite_codes(columns: Sequence[tuple[_Codes, list[Any]]]) -> tuple[_Codes, list[tuple[Any, ...]]]:
    """(codes, tuples): the distinct tuples of several columns, and for each record the index of its tuple."""
    if not columns:
        raise ValueError("a composite key needs at least one column")
    if len({len(codes) for codes, _ in columns}) != 1:
        raise ValueError(f"the columns of a key differ in length: {[len(codes) for codes, _ in columns]}")
    if 2 * max(len(values) for _, values in columns) > len(columns[0][0]):
        # Most records have a tuple of their own: to find repeated ones costs more than it saves.
        return np.arange(len(columns[0][0])), _tuples(columns)
    combined, size = columns[0][0], len(columns[0][1])
    for codes, values in columns[1:]:
        if size * len(values) >= 1 << 63:
            combined, size = _dense(combined)
        combined = combined * len(values) + codes
        size *= len(values)
    combined, size = _dense(combined)
    example = np.empty(size, np.int64)
    example[combined] = np.arange(len(combined))  # for each distinct tuple, some record that has it
    return combined, _tuples([(codes[example], values) for codes, values in columns])


def _tuples(columns: Sequence[tuple[_Codes, list[Any]]]) -> list[tuple[Any, ...]]:
    return list(zip(*[map(values.__getitem__, codes.tolist()) for codes, values in columns], strict=True))


def _dense(codes: _Codes) -> tuple[_Codes, int]:
    """(codes, count): the codes renumbered from 0 without gaps, and the number of distinct codes."""
    encoded = pa.array(codes).dictionary_encode()
    return _indices(encoded), len(encoded.dictionary)
