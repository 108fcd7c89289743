"""Where a worker may be replaced, values are behind a cut what a checkpoint gives: also in the order in which they are gone
through (B8)."""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pytest

from tailrace.elements.cuts import CutRequest
from tailrace.state.handles import NoKey, ValueState
from tailrace.state.layers import LayeredBackend
from tailrace.state.memory_backend import MemoryBackend
from tailrace.state.pickle_roundtrip import comes_back
from tailrace.storage.disk_backend import DiskBackend
from tailrace.testing.backends import Files, Snapshot


class Colour(Enum):
    RED = 1


class Place(NamedTuple):
    x: int
    y: Any


@dataclass
class Open:
    items: Any = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slotted:
    items: Any


class Plain:
    def __init__(self, items: Any) -> None:
        self.items = items


class OfItsOwn(Plain):
    def __reduce__(self) -> Any:
        return OfItsOwn, (sorted(self.items),)


class Struct(msgspec.Struct):
    items: Any


class Named(dict[str, int]):
    pass


SIMPLE = [
    None, 1, math.nan, "a", b"a", Decimal(1), datetime(2026, 1, 2, tzinfo=UTC),
    UUID(int=7), Path("a/b"), Colour.RED, np.int64(3), np.float32(1), (1, "a"),
    [], [1, [2, (3, {"a": [4]})]], {"a": {1: [None]}}, Counter("aab"), defaultdict(list, a=[1]), deque([1, (2,)], 3),
    Place(1, [2]), Open([1]), Slotted((1,)), Plain({"a": 1}), Struct([1]), [Place(1, 2), Place(3, 4)], np.arange(6),
    np.arange(6).reshape(2, 3).T,
]  # fmt: skip


@pytest.mark.parametrize("value", SIMPLE, ids=lambda value: type(value).__name__)
def test_what_is_made_of_plain_values_comes_back_as_it_is(value: Any) -> None:
    assert comes_back(value)
    assert repr(pickle.loads(pickle.dumps(value, 5))) == repr(value) or "object at" in repr(value)


def itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


HELD = [
    {1}, frozenset((1,)), (1, frozenset((1,))), [1, [2, {3}]], {"a": {1}}, Place(1, {2}), Open({1}), Slotted({1}),
    Plain([{1}]), Struct({1}), OfItsOwn([1]), Named(a=1), np.arange(6)[::2], np.array([{1}]), deque([{1}]), random.Random(1),
    itself(), {Slotted(frozenset((1,))): 1}, object(),
]  # fmt: skip


@pytest.mark.parametrize("value", HELD, ids=lambda value: f"{type(value).__name__}")
def test_what_holds_a_set_or_says_itself_how_it_is_pickled_may_not(value: Any) -> None:
    assert not comes_back(value)


class Holder:
    current_key: Any = NoKey("it")


KINDS: dict[str, Any] = {
    "set": set,
    "frozen": frozenset,
    "in a tuple": lambda members: (1, frozenset(members)),
    "in lists": lambda members: [[set(members)]],
    "in an object": Open,
}


def members_of(value: Any) -> Any:
    """The set in a value."""
    while not isinstance(value, set | frozenset):
        value = value.items if isinstance(value, Open) else value[-1]
    return value


class Life:
    """State in which sets grow and shrink, and what of it was seen: each value that was read, in its order."""

    def __init__(self, backend: LayeredBackend, kind: str, exact: bool = True) -> None:
        self.inexact = 0
        self.backend, self.make, self.seen = backend, KINDS[kind], list[Any]()
        self.in_place = kind != "frozen" and kind != "in a tuple"
        backend.on_inexact = self.note if exact else None
        self.holder = Holder()
        declared = ValueState(object)
        declared.name = "members"
        self.state: Any = declared.bind(backend, self.holder)

    def note(self) -> None:
        self.inexact += 1

    def use(self, key: int, seed: int) -> None:
        """Reads the set of a key, and puts another few into it, or takes most of it away."""
        self.holder.current_key = key
        rng = random.Random(seed)
        found = self.state.value
        members = set() if found is None else members_of(found)
        self.seen.append((key, list(members)))
        if not self.in_place:
            members = set(members)
        if rng.random() < 0.3:
            for one in sorted(members)[2:]:
                members.discard(one)
        else:
            members.update(rng.sample(range(1_000), rng.choice([1, 4, 30])))
        if found is None or not self.in_place:
            self.state.value = self.make(members)
        elif rng.random() < 0.5:
            self.state.value = found
        self.backend.relieve()


def backend_for(folder: Path, disk: bool, number: int, rng: random.Random) -> LayeredBackend:
    small = rng.choice([None, 0])
    return DiskBackend(folder / str(number), top_entries=50, small=small) if disk else MemoryBackend(small=small)


def lived_through(seed: int, disk: bool, folder: Path, exact: bool = True) -> int:
    """Lives at random, with checkpoints that are complete, aborted, or encoded in part; from each complete one another
    backend goes on as the first one did. How many values these have read. Raises `AssertionError` where one differs."""
    rng, compared = random.Random(f"lives {seed}"), 0
    kind = rng.choice(sorted(KINDS))
    life, files = Life(backend_for(folder, disk, 0, rng), kind, exact), Files()
    story: list[tuple[str, int, int]] = []
    complete: dict[int, tuple[int, int]] = {}
    for number in range(1, 8):
        for _ in range(rng.choice([0, 3, 20])):
            story.append(("use", rng.randint(0, 5), rng.randint(0, 1 << 30)))
            life.use(*story[-1][1:])
        life.backend.freeze(CutRequest(number))
        made, ends = Snapshot(number), rng.choice(["complete", "complete", "aborted"])
        story.append(("cut", number, 0))
        at, seen = len(story), len(life.seen)
        for _ in range(rng.choice([0, 3, 20])):
            if rng.random() < 0.5:
                files.encode(life.backend, made, rng.randint(1, 3))
            story.append(("use", rng.randint(0, 5), rng.randint(0, 1 << 30)))
            life.use(*story[-1][1:])
        if ends == "aborted":
            life.backend.abort(number)
            continue
        while not files.encode(life.backend, made, 100):
            pass
        files.confirm(life.backend, number)
        complete[number] = at, seen
    for number, (at, seen) in complete.items():
        other = Life(backend_for(folder, disk, number, rng), kind, exact)
        files.restore(other.backend, number, own=True)
        for what, key, value in story[at:]:
            if what == "use":
                other.use(key, value)
            else:
                other.backend.freeze(CutRequest(key))
                other.backend.abort(key)
        assert other.seen == life.seen[seen:], f"from checkpoint {number}, {kind}"
        compared += len(other.seen)
        other.backend.close()
    assert disk or not life.inexact
    life.backend.close()
    return compared


@pytest.mark.parametrize("disk", [False, True], ids=["in memory", "on disk"])
def test_who_goes_on_from_a_checkpoint_goes_through_sets_in_the_same_order(disk: bool, scratch: Path) -> None:
    assert sum(lived_through(seed, disk, scratch / str(seed)) for seed in range(12 if disk else 60)) > 1_000


def test_without_care_sets_come_back_in_another_order(scratch: Path) -> None:
    """The test before would see it."""
    with pytest.raises(AssertionError, match="from checkpoint"):
        for seed in range(60):
            lived_through(seed, False, scratch / str(seed), exact=False)


def test_a_set_that_goes_to_disk_behind_no_cut_is_reported_of(scratch: Path) -> None:
    life = Life(DiskBackend(scratch / "it", top_entries=3), "set")
    for key in range(3):
        life.use(key, key)
    assert not life.inexact
    for key in range(3, 600):
        life.use(key, key)
    assert life.inexact
    life.backend.close()


def test_what_comes_back_is_handed_out_as_it_is() -> None:
    """No value is copied where no copy could be noticed."""
    backend = MemoryBackend()
    backend.on_inexact = lambda: None
    table = backend.table("lists")
    table["a"] = held = [1, 2]
    backend.freeze(CutRequest(1))
    assert table["a"] is held
    while not backend.encode(100)[1]:
        pass
    assert table["a"] is held
