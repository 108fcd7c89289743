"""Slots of keys in columns: each distinct key has a number, found for a whole batch at once, which leads back to the key.

They are only for types of which two values are equal as keys exactly if they are equal as words, or as bytes. For other
types there is no such index (`key_slots` returns None).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.rows import plain_values
from tailrace.elements.slottables import Slots, Texts, TextTable, Words, WordTable

_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def is_text(kind: pa.DataType) -> bool:
    """True if keys of this type are kept as bytes."""
    return kind in _TEXTS


def is_word(kind: pa.DataType) -> bool:
    """True if each value of this type has a 64-bit word of its own, by which the state may hold it."""
    some = pa.types.is_integer(kind) or kind in (pa.bool_(), pa.float32(), pa.float64(), pa.date32())
    return bool(some or (pa.types.is_timestamp(kind) and kind.unit == "us"))


def words_of(column: pa.Array) -> Words:
    """The values of a column as words: floats by their bits, nulls as zero."""
    kind = column.type
    found: Any
    if column.null_count:
        # Not `fill_null`: for types of time it requires a scalar of that type.
        column = pc.if_else(column.is_valid(), column, pa.scalar(0, _number(kind)).cast(kind))
    if pa.types.is_floating(kind):
        found = column.cast(pa.float64()).to_numpy(zero_copy_only=False).view(np.int64)
    elif kind == pa.uint64():
        found = column.to_numpy(zero_copy_only=False).view(np.int64)
    else:
        plain = column.cast(pa.int32()) if kind == pa.date32() else column
        found = plain.cast(pa.int64()).to_numpy(zero_copy_only=False)
    words: Words = found
    return words


def column_of_words(words: Words, kind: pa.DataType, nulls: np.ndarray[Any, Any] | None = None) -> pa.Array:
    """The column that words stand for; `nulls` is true where it is null. Raises `pa.ArrowInvalid` for a value that the type
    cannot hold."""
    if pa.types.is_floating(kind):
        return pa.array(words.view(np.float64), pa.float64(), mask=nulls).cast(kind)
    if kind == pa.uint64():
        return pa.array(words.view(np.uint64), kind, mask=nulls)
    found = pa.array(words, pa.int64(), mask=nulls)
    return (found.cast(pa.int32()) if kind == pa.date32() else found).cast(kind)


def _number(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if kind == pa.date32() else kind if not pa.types.is_boolean(kind) else pa.int8()


def texts_of(column: pa.Array) -> Texts:
    """The texts of a column as bytes."""
    wide = column.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    ends = np.frombuffer(offsets, np.int64, len(wide) + 1, 8 * wide.offset)
    begin, end = int(ends[0]), int(ends[-1])
    held = np.zeros(end - begin + 8, np.uint8)
    if end > begin:
        held[: end - begin] = np.frombuffer(data, np.uint8, end - begin, begin)
    lengths = np.diff(ends)
    if wide.null_count:
        lengths[~wide.is_valid().to_numpy(zero_copy_only=False)] = -1
    return Texts(held, ends[:-1] - begin, lengths)


def text_column(table: TextTable, slots: Slots, kind: pa.DataType) -> pa.Array:
    """The texts in some slots as a column."""
    lengths = table.lengths[slots]
    sizes = np.maximum(lengths, 0)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    # Each byte has the distance from the beginning of its text that it has in the table.
    places = np.arange(offsets[-1]) + np.repeat(table.starts[slots] - offsets[:-1], sizes)
    valid = None
    if (lengths < 0).any():
        valid = pa.array(lengths >= 0).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(table.data[places])]
    wide = pa.large_binary() if kind in (pa.binary(), pa.large_binary()) else pa.large_string()
    return pa.Array.from_buffers(wide, len(slots), buffers).cast(kind)


class KeySlots:
    """The keys of one operator, by slot. Made by `key_slots`, which checks the types."""

    def __init__(self, kinds: Sequence[pa.DataType], nulls: bool, names: Sequence[str], tupled: bool) -> None:
        self.kinds = list(kinds)
        self.tupled = tupled
        """True if keys are tuples: keys of several columns, or of a list of one."""
        self._names = list(names)
        """Names of the columns, for errors."""
        self.nulls = nulls
        """True if a key, or a part of it, may be null."""
        self._texts = [TextTable() if is_text(kind) else None for kind in kinds]
        [first, *more] = self._texts
        self._only = first if not more else None
        """Table of texts if each key is one text: its slots are the slots of the keys. Else None."""
        self._words = None if self._only is not None else WordTable(len(kinds) + nulls)
        self._dense = np.empty(0, np.int64)
        """Slots of the keys 0, 1, 2, … if each key is one integer; -1 for keys without a slot."""

    @property
    def count(self) -> int:
        """The number of keys that have slots."""
        return self._only.count if self._only is not None else self._table.count

    @property
    def _table(self) -> WordTable:
        assert self._words is not None
        return self._words

    def empty(self) -> KeySlots:
        """An empty index for keys of these types."""
        return KeySlots(self.kinds, self.nulls, self._names, self.tupled)

    def takes(self, columns: Sequence[pa.Array]) -> bool:
        """True if keys in these columns can be looked up in this index."""
        if [column.type for column in columns] != self.kinds:
            return False
        return self.nulls or self._only is not None or not _any_null(columns)

    def slots(self, columns: Sequence[pa.Array]) -> Slots:
        """The slots of keys. New keys get the next slots."""
        if self._only is not None:
            return self._only.slots(texts_of(columns[0]))
        words = [
            words_of(column) if texts is None else texts.slots(texts_of(column))
            for column, texts in zip(columns, self._texts, strict=True)
        ]
        if self.nulls:
            empty = np.zeros(len(columns[0]), np.int64)
            for i, column in enumerate(columns):
                if column.null_count:
                    empty |= (~column.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64) << i
            words.append(empty)
        return self._table.slots(words)

    def of_records(self, columns: Sequence[pa.Array]) -> Slots | None:
        """The slots of the keys of records, of which many repeat. New keys get the next slots. Only for small integers: None
        for all others, for which it is no slower to find the distinct keys first."""
        [first, *more] = columns
        if (
            more
            or self.kinds != [first.type]
            or first.null_count
            or not pa.types.is_integer(first.type)
            or not len(first)
        ):
            return None
        words = words_of(first)
        low, high = int(words.min()), int(words.max())
        if low < 0 or high >= _DENSE:
            return None
        if high >= len(self._dense):
            longer = np.full(max(high + 1, min(2 * len(self._dense), _DENSE)), -1, np.int64)
            longer[: len(self._dense)] = self._dense
            self._dense = longer
        slots = self._dense.take(words)
        missing = slots < 0
        if missing.any():
            requested = [words[missing]]
            if self.nulls:
                requested.append(np.zeros(len(requested[0]), np.int64))
            found = self._table.slots(requested)
            slots[missing] = self._dense[requested[0]] = found
        return slots

    def columns(self, slots: Slots) -> list[pa.Array]:
        """The keys in these slots, by column."""
        if self._only is not None:
            return [text_column(self._only, slots, self.kinds[0])]
        words = [one[slots] for one in self._table.words]
        found = []
        for i, (kind, texts) in enumerate(zip(self.kinds, self._texts, strict=True)):
            nulls = (words[-1] >> i & 1).astype(bool) if self.nulls else None
            found.append(
                column_of_words(words[i], kind, nulls) if texts is None else text_column(texts, words[i], kind)
            )
        return found

    def keys(self, slots: Slots) -> list[Any]:
        """The keys in these slots as Python values. Raises `Misfit` for a value that Python cannot hold."""
        lists = list(map(plain_values, self.columns(slots), self._names))
        return list(zip(*lists, strict=True)) if self.tupled else lists[0]


def key_slots(
    columns: Sequence[pa.Array], names: Sequence[str], nulls: bool = False, tupled: bool = False
) -> KeySlots | None:
    """An index for keys in columns like these; None if the type of one of them has no such index. `nulls`: true if there
    was a null before. `tupled`: true if the key of one column is also a tuple."""
    kinds = [column.type for column in columns]
    if len(kinds) > _MOST or not all(is_word(kind) or is_text(kind) for kind in kinds):
        return None
    nulls = nulls or (_any_null(columns) and not (len(kinds) == 1 and is_text(kinds[0])))
    return KeySlots(kinds, nulls, names, tupled or len(kinds) > 1)


_DENSE = 1 << 20
"""Bound of the integers whose slots are in a table, with eight bytes each."""
_MOST = 60
"""Maximum number of columns of a key: each has a bit in the word of the nulls."""


def _any_null(columns: Sequence[pa.Array]) -> bool:
    return any(column.null_count for column in columns)
