"""The encoding of entries of state into blocks of a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from tailrace.elements.keygroups import KeyGroups
from tailrace.elements.keys import UnsupportedKey
from tailrace.elements.pickling import advice
from tailrace.errors import UserCodeError, error_text, short_repr
from tailrace.state.backend import Block
from tailrace.state.codecs import Entries, immutable, pack, pickled_key
from tailrace.state.tables import StateTable

BLOCK_ENTRIES = 2_048
"""Largest number of entries in a block."""
BLOCK_BYTES = 256 * 1024
"""Bytes of single values and long texts at which a block is closed."""
_TEXTS = {str, bytes}


class _Bucket:
    """Entries of one table and key group that wait for their block."""

    __slots__ = ("count", "deleted", "keys", "single_keys", "singles", "size", "values")

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.single_keys: list[Any] = []
        self.singles: list[bytes] = []
        self.deleted: list[Any] = []
        self.count = 0
        """Number of all its keys, deleted ones included."""
        self.size = 0


class Encoder:
    """The encoder of values and keys of one operator. A value that cannot be saved is an error of the user."""

    def __init__(self, operator: str, subtask: int, groups: KeyGroups) -> None:
        self.operator = operator
        self.subtask = subtask
        self._groups = groups

    def group_of(self, table: StateTable, key: Any) -> int:
        """The key group of an entry. Raises `UserCodeError` for a key of a type that has no key group."""
        try:
            return table.group_of(self._groups, key)
        except UnsupportedKey as error:
            raise self.user_error(str(error)) from error

    def value(self, table: StateTable, key: Any, value: Any) -> bytes:
        """The bytes of a value. Raises `UserCodeError` if it cannot be saved."""
        try:
            return table.codec.encode(value)
        except Exception as error:
            what = f"the value of state {table.name!r} for key {short_repr(key, 80)} cannot be saved"
            raise self.user_error(
                f"{what} ({error_text(error)}); it is {short_repr(value)}; {advice(error)}"
            ) from error

    def check_key(self, table: StateTable, key: Any) -> None:
        """Raises `UserCodeError` if the key cannot be saved."""
        try:
            pickled_key(key)
        except Exception as error:
            what = f"the key {short_repr(key, 80)} of state {table.name!r} cannot be saved"
            raise self.user_error(f"{what} ({error_text(error)}); {advice(error)}") from error

    def user_error(self, what: str) -> UserCodeError:
        """An error of the user that no restart mends."""
        return UserCodeError(what, operator=self.operator, subtask=self.subtask, permanent=True)


class Blocks:
    """The entries of one checkpoint on their way into blocks. They are gathered by table and key group. A block is closed
    when it is large enough or its group is complete."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._buckets: dict[tuple[int, int], tuple[StateTable, _Bucket]] = {}
        self._ready: list[Block] = []
        self.touched: set[int] = set()
        """Groups that have received an entry."""

    def take(self) -> list[Block]:
        """Takes the blocks that are closed."""
        ready, self._ready = self._ready, []
        return ready

    def forget(self) -> None:
        """Drops the entries that are not in a block yet."""
        self._buckets = {}

    def _bucket(self, table: StateTable, group: int) -> _Bucket:
        found = self._buckets.get((table.index, group))
        if found is None:
            found = self._buckets[table.index, group] = table, _Bucket()
            self.touched.add(group)
        return found[1]

    def delete(self, table: StateTable, group: int, key: Any) -> None:
        """Adds a deleted key."""
        bucket = self._bucket(table, group)
        bucket.deleted.append(key)
        bucket.count += 1
        if bucket.count >= BLOCK_ENTRIES or bucket.size >= BLOCK_BYTES:
            self._close(table, group, bucket)

    def put(self, table: StateTable, group: int, key: Any, value: Any, data: bytes | None) -> None:
        """Adds an entry, with the bytes of its value if they are known."""
        bucket = self._bucket(table, group)
        if data is None and (table.codec.name != "pickle" or not immutable(value)):
            data = self._encoder.value(table, key, value)
        if data is None:
            bucket.keys.append(key)
            bucket.values.append(value)
            kind = type(value)
            if kind is str or kind is bytes:
                bucket.size += len(value)
            elif kind is tuple:
                for one in value:
                    if type(one) is str or type(one) is bytes:
                        bucket.size += len(one)
        else:
            bucket.single_keys.append(key)
            bucket.singles.append(data)
            bucket.size += len(data)
        bucket.count += 1
        if bucket.count >= BLOCK_ENTRIES or bucket.size >= BLOCK_BYTES:
            self._close(table, group, bucket)

    def put_all(self, table: StateTable, group: int, keys: list[Any], encoded: list[bytes]) -> None:
        """Adds entries of one group, with the bytes of their values."""
        bucket = self._bucket(table, group)
        count, size = bucket.count + len(keys), bucket.size + sum(map(len, encoded))
        if count >= BLOCK_ENTRIES or size >= BLOCK_BYTES:  # the block is full before the last of them
            for key, data in zip(keys, encoded, strict=True):
                self.put(table, group, key, None, data)
            return
        bucket.single_keys += keys
        bucket.singles += encoded
        bucket.count, bucket.size = count, size

    def put_values(self, table: StateTable, group: int, keys: list[Any], values: list[Any]) -> None:
        """Adds entries of one group, whose values are all plain or all tuples of plain ones (`all_immutable`)."""
        bucket, size = self._bucket(table, group), _texts_size(values)
        if table.codec.name != "pickle" or bucket.count + len(keys) > BLOCK_ENTRIES or size > BLOCK_BYTES // 4:
            for key, value in zip(keys, values, strict=True):
                self.put(table, group, key, value, None)
            return
        bucket.keys += keys
        bucket.values += values
        bucket.count += len(keys)
        bucket.size += size
        if bucket.count >= BLOCK_ENTRIES or bucket.size >= BLOCK_BYTES:
            self._close(table, group, bucket)

    def _close(self, table: StateTable, group: int, bucket: _Bucket) -> None:
        del self._buckets[table.index, group]
        self._ready.append(self._block(table, group, bucket))

    def close(self) -> Iterator[int]:
        """Makes blocks of all gathered entries. Yields for each the approximate amount of work, in entries."""
        for place in sorted(self._buckets):
            table, bucket = self._buckets.pop(place)
            self._ready.append(self._block(table, place[1], bucket))
            yield 8 + bucket.count // 8

    def _block(self, table: StateTable, group: int, bucket: _Bucket) -> Block:
        entries = Entries(bucket.keys, bucket.values, bucket.single_keys, bucket.singles, bucket.deleted)
        try:
            data = pack(entries)
        except Exception:
            for key, value in zip(bucket.keys, bucket.values, strict=True):
                self._encoder.value(table, key, value)
            for key in chain(bucket.keys, bucket.single_keys, bucket.deleted):
                self._encoder.check_key(table, key)
            raise
        return Block(table.index, group, bucket.count, data)


def _texts_size(values: list[Any]) -> int:
    """The length of all texts and bytes among plain values, or in tuples of plain values."""
    kinds = set(map(type, values))
    if tuple in kinds:
        values = list(chain.from_iterable(values))
        kinds = set(map(type, values))
    if kinds <= _TEXTS:
        return sum(map(len, values))
    return 0 if kinds.isdisjoint(_TEXTS) else sum(len(one) for one in values if type(one) in _TEXTS)
