"""Reading of keys and fields from the records of a batch, for an operator or an edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tailrace.elements.batches import Batch, Columns, Groups, Rows
from tailrace.elements.keycolumns import groups_of_arrow
from tailrace.elements.keygroups import KeyGroups
from tailrace.elements.keys import UnsupportedKey
from tailrace.elements.plainkeys import plain_key
from tailrace.elements.rows import field_getter
from tailrace.errors import UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import Hash, Selector, describe_selector
from tailrace.task.contract.usercode import raised_text, user_error


class FieldReader:
    """Reads one value per record, by function or by column name."""

    def __init__(self, selector: Selector | None, who: str, subtask: int, written: str = "") -> None:
        self.selector = selector
        self.who = who
        self.subtask = subtask
        self.written = written
        """Place where the user wrote the selector, if that is not where the operator is written."""
        self._for_type: type | None = None
        self._getter: Callable[[Any], Any] = selector if callable(selector) else _itself

    def getter(self, values: list[Any]) -> Callable[[Any], Any]:
        """Function that reads the value from records like these. `values` must not be empty."""
        if self.selector is None or callable(self.selector):
            return self._getter
        kind = type(values[0])
        if kind is not self._for_type:
            self._for_type, self._getter = kind, self._by_name(values[0])
        # A field has its place in each type of record: where types differ it is looked up for each record.
        return self._getter if set(map(type, values)) == {kind} else lambda value: self._by_name(value)(value)

    def _by_name(self, example: Any) -> Callable[[Any], Any]:
        if isinstance(self.selector, tuple):
            getters = [field_getter(name, example) for name in self.selector]
            return lambda value: tuple([get(value) for get in getters])
        assert isinstance(self.selector, str)
        return field_getter(self.selector, example)

    def values(self, batch: Rows) -> list[Any]:
        """One value per record. Raises `UserCodeError` naming the record for which it failed."""
        values = batch.values
        if not values:
            return []
        try:
            found = list(map(self.getter(values), values))
        except Exception as error:
            raise self.error(error, values) from error
        if len(found) != len(values):  # a StopIteration from the user's function ends `map` without an error
            raise self.error(StopIteration(), values)
        return found

    def error(self, error: Exception, values: list[Any]) -> UserCodeError:
        """Error of the user: finds the first record for which reading fails (selectors are pure by contract)."""
        getter = self.getter(values)
        for value in values:
            try:
                getter(value)
            except Exception as again:
                what = f"reading {describe_selector(self.selector)!r} from a record raised {raised_text(again)}"
                return user_error(again, self.who, self.subtask, value, what=what, written=self.written)
        what = f"reading a field raised {raised_text(error)}"
        return user_error(error, self.who, self.subtask, what=what, written=self.written)


class KeyReader(FieldReader):
    """Reads keys and finds their key groups."""

    def __init__(self, selector: Selector, who: str, subtask: int, max_parallelism: int, written: str = "") -> None:
        super().__init__(selector, who, subtask, written)
        self.cache = KeyGroups(max_parallelism)

    def groups(self, batch: Batch) -> Groups:
        """Key group of each record. Raises `UserCodeError` for a key without a canonical form."""
        try:
            if isinstance(batch, Columns) and not callable(self.selector):
                return groups_of_arrow(self.arrays(batch), self.cache)
            rows = batch.to_rows()
            return self.cache.groups_of(self.values(rows))
        except UnsupportedKey as error:
            raise self._refusal(error, batch.to_rows()) from error

    def arrays(self, batch: Columns) -> pa.Array | list[pa.Array]:
        """Key columns: one array, or a list of arrays for a key of several columns."""
        assert self.selector is not None and not callable(self.selector)
        if isinstance(self.selector, str):
            return column_of(batch, self.selector, self.who, self.subtask, self.written)
        return [column_of(batch, name, self.who, self.subtask, self.written) for name in self.selector]

    def _refusal(self, error: UnsupportedKey, rows: Rows) -> UserCodeError:
        for key, value in zip(self.values(rows), rows.values, strict=True):
            try:
                self.cache.groups_of([key])
            except UnsupportedKey as again:
                return user_error(again, self.who, self.subtask, value, what=str(again), written=self.written)
        return user_error(error, self.who, self.subtask, what=str(error), written=self.written)


def column_of(batch: Columns, name: str, who: str, subtask: int, written: str = "") -> pa.Array:
    """Column by its name. Raises `UserCodeError` if there is none, or more than one."""
    names = batch.data.schema.names
    if names.count(name) != 1:
        how_many = f"are {names.count(name)} columns" if name in names else "is no column"
        what = f"there {how_many} {name!r}; the batch has {', '.join(names)}"
        raise UserCodeError(what, operator=who, subtask=subtask, written=written)
    return batch.data.column(name)


def key_reader(node: Node, selector: Selector | None, subtask: int, port: int = 0) -> FieldReader:
    """Reader of the keys of what comes to an operator on one of its inputs. Its errors are about the `key_by` of that
    input."""
    edges = (edge.partitioning for edge in node.inputs if edge.port == port)
    written = next((kind.written for kind in edges if isinstance(kind, Hash)), "")
    return FieldReader(selector, node.name, subtask, written)


def key_of_state(key: Any) -> Any:
    """Key as state and timers hold it: as the user gave it, but for keys that a dictionary would not find again, or would
    take for another (see `plain_key`)."""
    return plain_key(key)


PLAIN_KEYS = {int, str, bytes, bool, type(None)}
"""Types of keys that a dictionary finds again as they are."""


def settled_keys(keys: list[Any]) -> list[Any]:
    """Keys as state holds them. Keys of plain types are not looked at one by one."""
    return keys if are_plain(keys) else list(map(key_of_state, keys))


def are_plain(keys: list[Any]) -> bool:
    """True if all keys have plain types."""
    return set(map(type, keys)) <= PLAIN_KEYS


def _itself(value: Any) -> Any:
    return value
