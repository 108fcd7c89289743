"""Copies and fingerprints of records, for `copy_records` and for debug runs."""

from __future__ import annotations

import pickle
from typing import Any

import xxhash

from tailrace.elements.batches import Rows


def copied(batch: Any) -> Any:
    """A batch whose records share nothing mutable with the original. Columns are immutable and stay as they are."""
    if not isinstance(batch, Rows):
        return batch
    values = pickle.loads(pickle.dumps(batch.values, 5))
    return Rows(values, batch.times, batch.groups, batch.split)


def fingerprint(batch: Any) -> list[int] | None:
    """A hash per record that changes when the record is changed in place; None where nothing can be."""
    if not isinstance(batch, Rows):
        return None
    return [xxhash.xxh3_64_intdigest(_bytes(value)) for value in batch.values]


def _bytes(value: Any) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception:  # what cannot be pickled is watched by its repr
        return repr(value).encode(errors="replace")
