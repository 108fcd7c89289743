"""Records of asynchronous calls whose results have not gone on, as state of their operator."""

from __future__ import annotations

from typing import Any, NamedTuple

from tailrace.elements.keygroups import KeyGroups, group_range
from tailrace.state.backend import Backend
from tailrace.state.format import CALLS
from tailrace.state.tables import MISSING
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.timer_heap import Keyed

Entry = tuple[Any, int, int, int]
"""Place of a record: its key, its timestamp, the event time that had come in front of it, and its number."""


class Pending(NamedTuple):
    """A record whose result has not gone on."""

    entry: Entry
    value: Any

    @property
    def key(self) -> Any:
        return self.entry[0]

    @property
    def timestamp(self) -> int:
        return self.entry[1]

    @property
    def mark(self) -> int:
        """Event time that had come in front of the record."""
        return self.entry[2]


class PendingRecords:
    """Records of one operator in one subtask, by number, in the order in which they came.

    They are a table of state, entry -> record, in whatever backend the operator has, and in the key groups of the subtask:
    those of a stream without keys get a key of its groups, one after the other. So another number of subtasks shares them.

    Invariant T23: the table has exactly the records that came and whose results have not gone on.
    """

    __slots__ = ("_ctx", "_keys", "_table", "_top", "by_number", "number")

    def __init__(self, backend: Backend, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._table = backend.table(CALLS.name, kind=CALLS.kind, group_by=_key_of)
        self._top = self._table.top
        self._table.users.append(self)
        self._keys = keys_of_groups(ctx)
        """Keys for records without one."""
        self.by_number: dict[int, Pending] = {}
        self.number = 0
        """Number of the next record."""

    def __len__(self) -> int:
        return len(self.by_number)

    def rebuild(self) -> None:
        """Finds the records in the table, after a restore. Those of several old subtasks are numbered anew. No event time
        had come in front of one that has not come to this subtask."""
        arrived = self._ctx.watermark_time
        entries = [(min(entry[2], arrived), entry) for entry in list(self._table.keys())]
        entries.sort(key=lambda one: (one[0], one[1][3], Keyed(one[1][0])))
        changed = len({entry[3] for _, entry in entries}) < len(entries) or any(m != e[2] for m, e in entries)
        self.by_number = {}
        # All are taken before one is put: the new entry of a record may be the old one of another.
        values = [self._table.pop(entry, MISSING) if changed else self._table.find(entry) for _, entry in entries]
        for rank, ((mark, entry), value) in enumerate(zip(entries, values, strict=True)):
            if changed:
                entry = (*entry[:2], mark, rank)
                self._top[entry] = value
            self.by_number[entry[3]] = Pending(entry, value)
        self.number = 1 + max(self.by_number, default=-1)

    def add(self, keys: list[Any] | None, times: list[int], values: list[Any]) -> range:
        """Adds records in the order in which they came, and returns their numbers."""
        top, by_number, first, mark = self._top, self.by_number, self.number, self._ctx.watermark_time
        numbers = range(first, first + len(values))
        own = self._keys
        keys = [own[number % len(own)] for number in numbers] if keys is None else keys
        for key, time, number, value in zip(keys, times, numbers, values, strict=True):
            entry = (key, time, mark, number)
            top[entry] = value
            by_number[number] = Pending(entry, value)
        self.number = numbers.stop
        return numbers

    def pop(self, number: int) -> Pending:
        """Takes a record whose result goes on."""
        one = self.by_number.pop(number)
        found = self._table.pop(one.entry, MISSING)
        assert found is not MISSING, "T23"
        return one


GROUPS = 64
"""Key groups among which a subtask divides records without a key."""


def keys_of_groups(ctx: OperatorContext) -> list[int]:
    """A key for each key group of a subtask, for `GROUPS` of them at most."""
    groups = ctx.services.max_parallelism
    own, cache = group_range(ctx.subtask, ctx.parallelism, groups), KeyGroups(groups)
    found: dict[int, int] = {}
    key = 0
    while len(found) < min(len(own), GROUPS):
        group = cache.group_of(key)
        if group in own:
            found.setdefault(group, key)
        key += 1
    return list(found.values())


def _key_of(entry: Entry) -> Any:
    return entry[0]
