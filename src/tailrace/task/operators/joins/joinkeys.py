"""Keys of joins in columns: their hashes, and the comparison of keys whose hashes are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.batches import Columns
from tailrace.elements.columns.joined import key_column
from tailrace.elements.keycolumns import groups_of_arrow
from tailrace.elements.keygroups import KeyGroups
from tailrace.elements.keyslots import is_text, texts_of, words_of
from tailrace.elements.rows import plain_values
from tailrace.elements.slottables import TextTable, mix
from tailrace.errors import UserCodeError
from tailrace.graph.operators import Selector, key_columns
from tailrace.task.channels.key_readers import column_of, settled_keys
from tailrace.task.operators.context import OperatorContext

Array = np.ndarray[Any, Any]
_NULL = np.uint64(0x5851F42D4C957F2D)
"""Word that stands for null in a hash."""
_TEXTS = TextTable()


def hashes_of(columns: Sequence[pa.Array]) -> Array:
    """The hashes (uint64) of keys, whose columns are as `elements.columns.joined.key_column` makes them. Keys of one column
    of words, without nulls, are equal exactly if their hashes are."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        words = _TEXTS.hashes(texts_of(column)).view(np.int64) if is_text(column.type) else words_of(column)
        made = mix(found, words)
        if column.null_count:
            nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
            made[nulls] = mix(found[nulls], np.full(len(nulls), _NULL).view(np.int64))
        found = made
    return found


def have_exact_hashes(columns: Sequence[pa.Array]) -> bool:
    """True if keys of these columns are equal exactly if their hashes are."""
    return len(columns) == 1 and not is_text(columns[0].type) and not columns[0].null_count


def are_equal(first: Sequence[pa.Array], second: Sequence[pa.Array]) -> Array:
    """Mask of the keys that are equal, of two lists of keys of one length. null equals null, NaN equals NaN."""
    found = np.ones(len(first[0]), np.bool_)
    for a, b in zip(first, second, strict=True):
        if is_text(a.type):
            same = pc.fill_null(pc.equal(a, b), False).to_numpy(zero_copy_only=False)
        else:
            same = words_of(a) == words_of(b)
        if a.null_count or b.null_count:
            empty, other = (one.is_null().to_numpy(zero_copy_only=False) for one in (a, b))
            same = (same & ~empty & ~other) | (empty & other)
        found &= same
    return found


class JoinKeys:
    """The keys of both inputs of one operator."""

    def __init__(self, operator: str, ctx: OperatorContext, selectors: tuple[Selector, Selector]) -> None:
        self.selectors = selectors
        self.names = key_columns(selectors[0]), key_columns(selectors[1])
        """For each input, the names of the columns of its key."""
        self.groups = KeyGroups(ctx.services.max_parallelism)
        self.exact = [True, True]
        """For each input, true if its records so far have keys that are equal exactly if their hashes are."""
        self._where = operator, ctx.subtask
        self._kinds: list[pa.DataType] | None = None
        """The types as which keys are compared; None before the first record."""

    def take(self, data: pa.RecordBatch, groups: Array | None, port: int) -> tuple[Array, Array]:
        """The hashes and the key groups of the keys of new records. `groups`: the key groups, if they are known."""
        columns = self.columns(data, port)
        self.exact[port] &= have_exact_hashes(columns)
        if groups is None:
            groups = groups_of_arrow(columns if isinstance(self.selectors[port], tuple) else columns[0], self.groups)
        return self.hashes(columns), groups

    @staticmethod
    def hashes(columns: list[pa.Array]) -> Array:
        """The hashes of keys as they are compared."""
        return hashes_of(columns)

    def columns(self, data: pa.RecordBatch, port: int) -> list[pa.Array]:
        """The keys of records as they are compared. Raises `UserCodeError` for keys that cannot be."""
        batch = Columns(data)
        try:
            columns = [key_column(column_of(batch, name, *self._where)) for name in self.names[port]]
        except ValueError as error:
            raise self.refusal(str(error)) from None
        kinds = [column.type for column in columns]
        if self._kinds is None:
            self._kinds = kinds
        elif kinds != self._kinds:
            ours, others = (", ".join(map(str, some)) for some in (kinds, self._kinds))
            raise self.refusal(
                f"the keys of one stream are of {ours}, those of the other of {others}, and are never compared in columns; "
                f"cast them to one type before key_by, or call to_rows() on both streams"
            )
        return columns

    def values(self, data: pa.RecordBatch, port: int) -> list[Any]:
        """The keys of records as state holds them."""
        lists = [plain_values(column) for column in self.columns(data, port)]
        return settled_keys(list(zip(*lists, strict=True)) if isinstance(self.selectors[port], tuple) else lists[0])

    def refusal(self, message: str) -> UserCodeError:
        """An error about the columns of the inputs: the program has to change."""
        return UserCodeError(message, operator=self._where[0], subtask=self._where[1], permanent=True)
