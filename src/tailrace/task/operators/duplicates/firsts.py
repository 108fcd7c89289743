"""Distinct keys of a batch in columns, each with the first of its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.keyslots import key_slots
from tailrace.elements.slottables import Slots
from tailrace.task.channels.key_readers import settled_keys
from tailrace.task.operators.aggregates.arrow import one_zero


@dataclass(frozen=True)
class DistinctKeys:
    """The distinct keys of a batch, numbered in any order."""

    keys: list[Any]
    """By number, the key as state holds it."""
    first: Slots
    """By number, the place of the first record of the key."""
    numbers: Slots
    """By record, the number of its key."""


def distinct_keys(columns: Sequence[pa.Array], names: Sequence[str], tupled: bool) -> DistinctKeys | None:
    """The distinct keys of records in columns, of which there is at least one; None if their types have no index."""
    columns = [one_zero(column) for column in columns]
    slots = key_slots(columns, names, tupled=tupled)
    if slots is None:
        return None
    numbers = slots.slots(columns)
    first = np.empty(slots.count, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)  # of several the one that is written last stays
    return DistinctKeys(settled_keys(slots.keys(np.arange(slots.count))), first, numbers)
