"""Checks that a source or a sink of the user returns what its contract requires. Anything else is a `TypeError` or
`ValueError` that names the user's class and method, and states the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from tailrace.api.connectors import Enumerator, Reader, SinkWriter
from tailrace.elements.batches import Form

_READ = {
    "rows": "a list of records, empty when there is nothing at the moment, or None at the end of the split",
    "columns": "a pyarrow.RecordBatch, empty when there is nothing at the moment, or None at the end of the split",
}
_NO_LIST = (str, bytes, bytearray, memoryview)


def of_class(value: Any) -> str:
    """The name of a value's class."""
    return type(value).__name__


def list_of(given: Any, who: str) -> list[Any]:
    """Splits that `who` (a class and a method) listed. Raises `TypeError` for a text or a mapping, which would be taken
    apart."""
    if isinstance(given, (*_NO_LIST, Mapping)) or not isinstance(given, Iterable):
        raise TypeError(f"{who} must return a list of splits, not {of_class(given)}")
    return list(given)


def reader_of(given: Any, who: str) -> Reader:
    """Reader that `who` made. Raises `TypeError` for anything else."""
    if not callable(getattr(given, "read", None)) or not callable(getattr(given, "close", None)):
        raise TypeError(f"{who} must return a tr.Reader, not {of_class(given)}")
    return cast(Reader, given)


def enumerator_of(given: Any, who: str) -> Enumerator | None:
    """Enumerator that `who` made, or None. Raises `TypeError` for anything else."""
    if given is not None and not callable(getattr(given, "discover", None)):
        raise TypeError(f"{who} must return a tr.Enumerator, or None, not {of_class(given)}")
    return cast("Enumerator | None", given)


def writer_of(given: Any, who: str) -> SinkWriter:
    """Writer that `who` made. Raises `TypeError` for anything else."""
    if not all(callable(getattr(given, name, None)) for name in ("write", "prepare", "close")):
        raise TypeError(f"{who} must return a tr.SinkWriter, not {of_class(given)}")
    return cast(SinkWriter, given)


def records_of(given: Any, limit: int, form: Form, who: str) -> list[Any] | None:
    """Records that `who` read: a list of at most `limit` records, or None.

    Other containers are refused. A text, a mapping, a data frame and a named tuple could be iterated over as well, but
    they give letters, keys, names of columns and fields, not records.
    """
    if given is None or type(given) is list:
        records = given
    elif _is_plain_sequence(given):
        records = list(given)
    else:
        raise TypeError(f"{who} returned {_an(given)}; a source of {form} must return {_READ[form]}")
    if records is not None and len(records) > limit:
        raise ValueError(
            f"{who} returned {len(records)} records, and at most {limit} were asked for (its argument `limit`)"
        )
    return records


def _is_plain_sequence(given: Any) -> bool:
    if isinstance(given, tuple):
        return type(given) is tuple  # those with names are records
    return isinstance(given, Sequence) and not isinstance(given, _NO_LIST)


def batch_of(given: Any, limit: int, names: tuple[str, ...] | None, who: str) -> pa.RecordBatch | None:
    """Record batch that `who` read: at most `limit` rows with these column names, or None. An empty list is an empty
    batch."""
    if given is None or isinstance(given, pa.RecordBatch):
        batch = given
    elif isinstance(given, list | tuple) and not given:
        return pa.record_batch({})
    else:
        raise TypeError(f"{who} returned {_an(given)}; a source of columns must return {_READ['columns']}")
    if batch is not None and batch.num_rows > limit:
        raise ValueError(
            f"{who} returned {batch.num_rows} rows, and at most {limit} were asked for (its argument `limit`)"
        )
    if batch is not None and names is not None and batch.num_rows and tuple(batch.schema.names) != tuple(names):
        raise ValueError(
            f"{who} returned the columns {', '.join(batch.schema.names)}, and its source declares "
            f"{', '.join(names)} (its attribute `columns`)"
        )
    return batch


def _an(given: Any) -> str:
    module = type(given).__module__
    name = of_class(given) if module == "builtins" else f"{module.partition('.')[0]}.{of_class(given)}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
