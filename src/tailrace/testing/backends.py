"""Checks for implementers of a state backend: what every backend must do, compared with a model.

`check_backend(make)` runs them all; `make()` gives a new, empty backend for key groups 0 to 127. `Files` stands for the
contents of a checkpoint's files, and can be used in your own tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.elements.keygroups import key_group
from tailrace.elements.plainkeys import NAN
from tailrace.state.backend import Backend
from tailrace.state.format import TableInfo
from tailrace.task.operators.groupchains import GroupChains

Make = Callable[[], Backend]
GROUPS = 128


class Kind(Enum):
    """Keys that are members of an Enum, in checks."""

    SMALL = 1
    LARGE = 2


@dataclass(frozen=True)
class Box:
    """Keys that are objects of a frozen dataclass with fields, in checks."""

    kind: Kind
    content: Any


@dataclass
class Snapshot:
    """The blocks that one checkpoint wrote, and the place of each of its key groups."""

    checkpoint: int
    kind: CutKind = CutKind.CHECKPOINT
    blocks: dict[int, list[tuple[TableInfo, bytes]]] = field(default_factory=dict)
    full: list[int] = field(default_factory=list)
    delta: list[int] = field(default_factory=list)
    chains: dict[int, list[int]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of bytes that the checkpoint wrote."""
        return sum(len(data) for blocks in self.blocks.values() for _, data in blocks)


class Files:
    """Checkpoints of one backend, kept as a job keeps them: a chain of deltas per key group."""

    def __init__(self) -> None:
        self.snapshots: dict[int, Snapshot] = {}
        self.chains = GroupChains()

    def take(
        self,
        backend: Backend,
        checkpoint: int,
        limit: Callable[[], int] = lambda: 1_000,
        kind: CutKind = CutKind.CHECKPOINT,
    ) -> Snapshot:
        """Takes a checkpoint, except for its outcome."""
        backend.freeze(CutRequest(checkpoint, kind))
        made = Snapshot(checkpoint, kind)
        while not self.encode(backend, made, limit()):
            pass
        return made

    def encode(self, backend: Backend, made: Snapshot, limit: int) -> bool:
        """Encodes a portion of a frozen checkpoint. True when that was the last one."""
        infos = backend.tables_info()
        blocks, done = backend.encode(limit)
        for block in blocks:
            assert block.count > 0, "a block without entries"
            made.blocks.setdefault(block.group, []).append((infos[block.table], block.data))
        if done:
            named = {info.name: info for info in backend.tables_info()}  # with the classes of all values
            made.blocks = {
                group: [(named[info.name], data) for info, data in blocks] for group, blocks in made.blocks.items()
            }
            made.full, made.delta = backend.groups(made.checkpoint)
            assert not set(made.full) & set(made.delta), "a group is written as a whole, or what changed in it"
            assert set(made.blocks) <= {*made.full, *made.delta}, "a block of a group that is not told"
            self._chain(made)
        return done

    def _chain(self, made: Snapshot) -> None:
        name = str(made.checkpoint)
        chains, whole = self.chains.extend(made.checkpoint, name, made.full, made.delta, made.blocks)
        self.chains.check(name, chains, whole, made.blocks)
        made.chains = {group: [int(one) for one in chain] for group, chain in chains.items()}
        if made.kind.whole:
            assert not made.delta, "of a group in a whole checkpoint only what changed was written"
            assert all(chain == [made.checkpoint] for chain in made.chains.values()), "it refers to an earlier one"
        self.snapshots[made.checkpoint] = made

    def confirm(self, backend: Backend, checkpoint: int) -> None:
        """Confirms a checkpoint as complete."""
        backend.confirm(checkpoint)
        self.chains.confirm(checkpoint)

    @property
    def confirmed(self) -> dict[int, list[int]]:
        """The chains of the newest complete checkpoint, as numbers of checkpoints."""
        return {group: [int(one) for one in chain] for group, chain in self.chains.confirmed.items()}

    @confirmed.setter
    def confirmed(self, chains: dict[int, list[int]]) -> None:
        self.chains = GroupChains()
        self.chains.confirmed = {group: tuple(map(str, chain)) for group, chain in chains.items()}

    def restore(self, backend: Backend, checkpoint: int, own: bool, groups: Container[int] = range(GROUPS)) -> None:
        """Puts these groups of a checkpoint into a backend, whose tables are declared."""
        for group, chain in self.snapshots[checkpoint].chains.items():
            for one in chain if group in groups else ():
                for info, data in self.snapshots[one].blocks.get(group, []):
                    backend.apply(info, group, data)
        backend.end_restore(own)


class Scenario:
    """A backend and a model of it, moved at random by a seed."""

    TABLES = {"plain": "value", "lists": "list", "timers": "timers"}

    def __init__(self, make: Make, seed: int) -> None:
        self.make = make
        self.random = random.Random(seed)
        self.files = Files()
        self.backend = self._make_declared()
        self.model: dict[str, dict[Any, Any]] = {name: {} for name in self.TABLES}
        self.cuts: dict[int, dict[str, dict[Any, Any]]] = {}
        self.pending: list[int] = []
        self.last_confirmed: int | None = None
        self.going: Snapshot | None = None
        self.number = 0

    def _make_declared(self) -> Backend:
        made = self.make()
        for name, kind in self.TABLES.items():
            timers = kind == "timers"
            made.table(name, kind=kind, group_by=_first if timers else None, in_memory=timers)
        return made

    def close(self) -> None:
        """Closes the backend."""
        self.backend.close()

    def step(self) -> None:
        """Does one thing that may happen to a backend, drawn by chance."""
        roll = self.random.random()
        if roll < 0.80:
            self.write()
        elif roll < 0.93:
            self.checkpoint()
        elif roll < 0.99:
            self.outcome()
        else:
            self.restart()
        self.backend.relieve()

    def write(self) -> None:
        """Sets, changes in place, deletes or reads an entry, and compares it with the model."""
        name = self.random.choice(list(self.TABLES))
        key: Any = self.random.choice([self.random.randrange(300), f"k{self.random.randrange(50)}", NAN, None])
        if name == "timers":
            key = (key, self.random.randrange(3))
        table, model = self.backend.tables[name], self.model[name]
        match self.random.randrange(5):
            case 0:
                assert _same(table.pop(key, "nothing"), model.pop(key, "nothing"))
            case 1:
                assert _same(table.get(key, "nothing"), model.get(key, "nothing"))
                assert (key in table) == (key in model)
            case _ if name == "lists":
                found = table.get(key)
                assert _same(found, model.get(key))
                if found is None:
                    found = table.top[key] = []
                found.append(self.random.random())
                model.setdefault(key, []).append(found[-1])
            case _:
                model[key] = table.top[key] = self.random.randrange(1_000)

    def checkpoint(self) -> None:
        """Freezes the backend, or encodes a portion of what was frozen."""
        if self.going is None:
            self.number += 1
            self.cuts[self.number] = {name: _copy_of(entries) for name, entries in self.model.items()}
            kind = CutKind.SAVEPOINT if self.random.random() < 0.15 else CutKind.CHECKPOINT
            self.backend.freeze(CutRequest(self.number, kind))
            self.going = Snapshot(self.number, kind)
        elif self.files.encode(self.backend, self.going, self.random.randrange(1, 400)):
            self.pending.append(self.going.checkpoint)
            self.going = None

    def outcome(self) -> None:
        """Completes a checkpoint, or aborts it."""
        if self.going is not None and self.random.random() < 0.5:
            self.backend.abort(self.going.checkpoint)
            self.going = None
        elif self.pending:
            one = self.pending.pop(self.random.randrange(len(self.pending)))
            if self.random.random() < 0.5:
                self.backend.abort(one)
            else:
                self.files.confirm(self.backend, one)
                self.last_confirmed = one
                self.pending = [other for other in self.pending if other > one]

    def restart(self) -> None:
        """Restarts from the last complete checkpoint."""
        if self.last_confirmed is None:
            return
        self.backend.close()
        self.backend = self._make_declared()
        own = self.random.random() < 0.7
        self.files.restore(self.backend, self.last_confirmed, own)
        self.files.confirmed = self.files.snapshots[self.last_confirmed].chains if own else {}
        self.model = {name: _copy_of(entries) for name, entries in self.cuts[self.last_confirmed].items()}
        self.pending, self.going = [], None

    def compare(self) -> None:
        """Checks that all entries equal the model's."""
        for name, model in self.model.items():
            table = self.backend.tables[name]
            assert len(table) == len(model), f"{name}: {len(table)} entries, not {len(model)}"
            assert _same(dict(table.items()), model), name

    def compare_last(self) -> None:
        """Checks that the last complete checkpoint, as a whole and in parts, holds the state of its cut."""
        if self.last_confirmed is None:
            return
        for groups in (range(GROUPS), range(50), range(50, GROUPS)):
            other = self._make_declared()
            self.files.restore(other, self.last_confirmed, True, groups)
            for name, cut in self.cuts[self.last_confirmed].items():
                key_of = _first if name == "timers" else _itself
                expected = {key: value for key, value in cut.items() if key_group(key_of(key), GROUPS) in groups}
                assert _same(dict(other.tables[name].items()), expected), name
                assert len(other.tables[name]) == len(expected)
            other.close()


def _copy_of(entries: dict[Any, Any]) -> dict[Any, Any]:
    return {key: list(value) if isinstance(value, list) else value for key, value in entries.items()}


def _first(entry: Any) -> Any:
    return entry[0]


def _itself(key: Any) -> Any:
    return key


def _same(found: Any, expected: Any) -> bool:
    assert found == expected, f"{found!r} is not {expected!r}"
    return True


def check_mixed_life(make: Make) -> None:
    """Checks writes, deletions, checkpoints that complete, are aborted or overtake each other, and restarts, at random."""
    for seed in range(8):
        scenario = Scenario(make, seed)
        for i in range(1_000):
            scenario.step()
            if i % 100 == 0:
                scenario.compare()
                scenario.compare_last()
        scenario.compare()
        scenario.compare_last()
        scenario.close()


def check_keys(make: Make) -> None:
    """Checks that keys that are equal are one key, whatever their types; that None, NaN, tuples, members of Enums and
    objects of frozen dataclasses are keys; and that all survive a restore."""
    keys: list[Any] = [None, NAN, 1, "1", b"1", (1, "a"), ("a", NAN), 2.5, -1, ""]
    keys += [Kind.SMALL, Kind.LARGE, Box(Kind.SMALL, 1), Box(Kind.LARGE, (1, NAN)), (Kind.SMALL, Box(Kind.SMALL, None))]
    backend, files = make(), Files()
    table = backend.table("t")
    for key in keys:
        table[key] = ("value of", key)
    files.take(backend, 1)
    files.confirm(backend, 1)
    assert table[1.0] == table[True] == table[1]
    assert table[Box(Kind.SMALL, True)] == table[Box(Kind.SMALL, 1)]
    other = make()
    restored = other.table("t")
    files.restore(other, 1, True)
    assert len(restored) == len(keys)
    for one in (table, restored):
        for key in keys:
            assert one.get(key)[0] == "value of", key
            assert one.pop(key)[0] == "value of"
            assert key not in one
        assert not len(one)
    backend.close()
    other.close()


def check_mutation(make: Make) -> None:
    """Checks that a value that is changed in place after the cut is in the checkpoint as it was at the cut."""
    for portions in (0, 1, 3):
        backend, files = make(), Files()
        table = backend.table("t")
        for key in range(500):
            table[key] = [key]
        files.take(backend, 1)
        files.confirm(backend, 1)
        for key in range(0, 500, 2):
            table[key].append("before")
        backend.freeze(CutRequest(2))
        made = Snapshot(2)
        for _ in range(portions):
            files.encode(backend, made, 40)
        for key in range(500):
            table[key].append("behind")
        while not files.encode(backend, made, 40):
            pass
        files.confirm(backend, 2)
        other = make()
        other.table("t")
        files.restore(other, 2, True)
        for key in range(500):
            assert other.tables["t"][key] == [key, "before"][: 2 - key % 2], (portions, key)
            assert table[key][-1] == "behind"
        backend.close()
        other.close()


def check_aborts(make: Make) -> None:
    """Checks that a thousand checkpoints that fail, one after the other, leave nothing behind, and that the next one has
    all entries."""
    backend, files = make(), Files()
    table = backend.table("t")
    for key in range(100):
        table[key] = 0
    for number in range(1, 1_001):
        table[number % 100] = number
        backend.freeze(CutRequest(number))
        if number % 3:
            backend.encode(1_000_000 if number % 2 else 30)
        backend.abort(number)
    assert len(table) == 100
    files.take(backend, 1_001)
    files.confirm(backend, 1_001)
    other = make()
    other.table("t")
    files.restore(other, 1_001, True)
    assert dict(other.tables["t"].items()) == dict(table.items())
    backend.close()
    other.close()


def check_whole(make: Make) -> None:
    """Checks that a whole checkpoint has everything in blocks of its own, also where earlier ones are pending, or have
    emptied a group since. Checkpoints after it may again write only what has changed."""
    backend, files = make(), Files()
    table, timers = backend.table("t"), backend.table("timers", kind="timers", group_by=_first, in_memory=True)
    for key in range(24_000):  # more than a backend may take for so little that it writes all of it each time
        table[key] = (key, "first")
    for key in range(300):
        timers[key, 1] = None
    files.take(backend, 1)
    files.confirm(backend, 1)
    emptied = key_group(7, GROUPS)
    for key in [key for key in range(24_000) if key_group(key, GROUPS) == emptied]:
        table.pop(key)
        timers.pop((key, 1), None)
    files.take(backend, 2)  # its outcome is not known for long
    table[24_000] = "new"
    table.pop(8, None)
    cut = dict(table.items())
    backend.freeze(CutRequest(3, CutKind.SAVEPOINT))
    made = Snapshot(3, CutKind.SAVEPOINT)
    table[9] = "behind the cut"
    while not files.encode(backend, made, 1_000):
        pass
    assert set(made.chains) == {key_group(key, GROUPS) for key in cut}, (
        "a group is missing, or one is there that is empty"
    )
    alone = Files()
    alone.snapshots[3] = made
    other = make()
    restored, due = other.table("t"), other.table("timers", kind="timers", group_by=_first, in_memory=True)
    alone.restore(other, 3, own=False)
    assert dict(restored.items()) == cut
    assert dict(due.items()) == dict(timers.items())
    files.confirm(backend, 3)
    files.take(backend, 4)
    files.confirm(backend, 4)
    again = make()
    newest = again.table("t")
    again.table("timers", kind="timers", group_by=_first, in_memory=True)
    files.restore(again, 4, own=True)
    assert dict(newest.items()) == dict(table.items())
    for one in (backend, other, again):
        one.close()


CHECKS: tuple[Callable[[Make], None], ...] = (
    check_keys,
    check_mutation,
    check_aborts,
    check_whole,
    check_mixed_life,
)


def check_backend(make: Make) -> None:
    """Runs every check. Raises `AssertionError` with a description of the fault."""
    for check in CHECKS:
        check(make)
