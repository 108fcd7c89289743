"""Copies and fingerprints of records, for `copy_records` and for debug runs."""

from __future__ import annotations

import pickle
from typing import Any

import xxhash

from tailrace.elements.batches import Batch, Rows
from tailrace.elements.pickling import advice
from tailrace.errors import UserCodeError, message_of
from tailrace.task.contract.usercode import user_error


def copy_of(batch: Batch) -> Batch:
    """Batch whose records share nothing mutable with the original. Columns are immutable and stay as they are."""
    if not isinstance(batch, Rows):
        return batch
    return Rows(list(map(own_copy, batch.values)), batch.times, batch.groups, batch.split)


def own_copy(value: Any) -> Any:
    """Copy that shares nothing mutable with the original, nor with another copy."""
    return pickle.loads(pickle.dumps(value, 5))


def unpicklable(values: list[Any], error: Exception, operator: str, subtask: int, why: str) -> UserCodeError:
    """Error for records that pickle refused with `error`; it names the first such record. `why` is the purpose of the
    pickling."""
    for value in values:
        try:
            pickle.dumps(value, 5)
        except Exception as again:
            kind = type(value).__name__
            what = f"it gave a record of type {kind} that cannot be pickled to {why} ({message_of(again)}); {advice(again)}"
            return user_error(again, operator, subtask, value, what=what, permanent=True)
    what = f"it gave records that cannot be pickled to {why} ({message_of(error)}); {advice(error)}"
    return user_error(error, operator, subtask, what=what, permanent=True)


def fingerprint(batch: Batch) -> list[int] | None:
    """Hash of each record, which changes if the record is changed in place; None for columns, which cannot be changed."""
    if not isinstance(batch, Rows):
        return None
    return [xxhash.xxh3_64_intdigest(_bytes(value)) for value in batch.values]


def _bytes(value: Any) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception:  # what cannot be pickled is watched by its repr
        return repr(value).encode(errors="replace")
