"""Checks that a source or a sink of the user returns what its contract requires. Anything else is a `TypeError` or
`ValueError` that names the user's class and method, and states the contract."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from tailrace.api.connectors import Enumerator, Reader, SinkWriter, Source, SplitReader
from tailrace.elements.batches import Batch, Columns, Form, Rows

_READ = {
    "rows": "a list of records, empty when there is nothing at the moment, or None at the end of the split",
    "columns": "a pyarrow.RecordBatch, empty when there is nothing at the moment, or None at the end of the split",
}
_OF_SPLITS = ("assign", "revoke", "pause", "read", "position", "next_at", "completed", "lag", "close")
_PAIRS = "a tr.SplitReader must return pairs, each with the number of a split and what comes next of it"
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


def split_reader_of(given: Any, who: str) -> SplitReader | None:
    """Reader of several splits that `who` made, or None. Raises `TypeError` for anything else."""
    if given is not None and not all(callable(getattr(given, name, None)) for name in _OF_SPLITS):
        raise TypeError(f"{who} must return a tr.SplitReader, or None, not {of_class(given)}")
    return cast("SplitReader | None", given)


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


def parts_of(
    given: Any, limit: int, source: Source, may_give: Collection[int], who: str
) -> list[tuple[int, Batch | None]]:
    """Records that `who` read of several splits: pairs of the number of a split, one of `may_give`, and a batch, or None at
    the end of the split; at most `limit` records in all."""
    parts: list[tuple[int, Batch | None]] = []
    for pair in _pairs(given, who):
        split, records = pair
        if split not in may_give:
            raise ValueError(
                f"{who} returned records of split {split!r}, which is not assigned, or paused; it may return those of "
                f"{', '.join(map(str, sorted(may_give))) or 'none'}"
            )
        batch: Batch | None = None
        if source.form == "columns":
            columns = batch_of(records, limit, source.columns, who)
            batch = None if columns is None else Columns(columns, split=split)
        else:
            values = records_of(records, limit, "rows", who)
            # The reader keeps its list, and may fill it anew; batches wait in channels.
            batch = None if values is None else Rows(list(values), split=split)
        limit -= 0 if batch is None else len(batch)
        parts.append((split, batch))
    return parts


def _pairs(given: Any, who: str) -> list[Any]:
    if isinstance(given, (*_NO_LIST, Mapping)) or not isinstance(given, Iterable):
        raise TypeError(f"{who} returned {_an(given)}; {_PAIRS}")
    pairs = list(given)
    wrong = next((pair for pair in pairs if not isinstance(pair, tuple) or len(pair) != 2), None)
    if wrong is not None:
        raise TypeError(f"{who} returned a list with {_an(wrong)} in it; {_PAIRS}")
    return pairs


def _an(given: Any) -> str:
    module = type(given).__module__
    name = of_class(given) if module == "builtins" else f"{module.partition('.')[0]}.{of_class(given)}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
