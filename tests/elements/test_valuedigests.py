"""A digest of values distinguishes two executions of a channel by their values and by nothing else: not by where frames
end, which objects are shared, the order of a set, or what lies behind the nulls of a column."""

from __future__ import annotations

import itertools
import json
import math
import os
import pickle
import random
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tailrace.elements.batches import Batch, Columns, Rows, concat
from tailrace.elements.rows import row_type
from tailrace.elements.valuedigests import ValueDigest, ValueWriter

MOST = 1 << 30


def digest(*batches: Batch, writer: ValueWriter | None = None) -> int | None:
    """The digest of some batches of a channel."""
    found, first = ValueDigest(), 0
    for batch in batches:
        found.add(batch, first, MOST, writer or ValueWriter())
        first += len(batch)
    return found.value


def split(batch: Batch, *at: int) -> list[Batch]:
    """A batch in parts that end at these records."""
    bounds = [0, *at, len(batch)]
    return [batch.slice(a, b) for a, b in itertools.pairwise(bounds)]


class Colour(Enum):
    RED, BLUE = 1, 2


@dataclass
class Reading:
    sensor: str
    value: Any
    note: str = field(default="", compare=False)
    cached: int = field(default=0, init=False, compare=False)


def calculated(reading: Reading) -> Reading:
    reading.cached = 1
    return reading


@dataclass(frozen=True, slots=True)
class Other:
    sensor: str
    value: Any


class Packed(msgspec.Struct):
    sensor: str
    value: Any


Pair = namedtuple("Pair", "left right")
named_row = row_type(("a", "b"))


class Draw:
    """A maker of random values, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"values {seed}")

    def value(self, depth: int = 3) -> Any:
        rng = self.rng
        if depth and rng.random() < 0.5:
            return self.compound(depth - 1)
        return rng.choice(self.plain)()

    @property
    def plain(self) -> list[Callable[[], Any]]:
        rng = self.rng
        return [
            lambda: None,
            lambda: rng.random() < 0.5,
            lambda: rng.choice([0, 1, -1, -2, 255, 1 << 31, -(1 << 63), 1 << 90, rng.randint(-99, 99)]),
            lambda: rng.choice([0.0, -0.0, 1.0, math.nan, math.inf, rng.random()]),
            self.text,
            lambda: rng.choice([b"", b"x", rng.randbytes(9), b"y" * 300]),
            lambda: bytearray(rng.randbytes(3)),
            lambda: complex(rng.random(), 1),
            lambda: Colour(rng.randint(1, 2)),
            lambda: date(2020, 1, rng.randint(1, 28)),
            lambda: datetime(2020, 1, 1, rng.randint(0, 23), tzinfo=rng.choice([None, UTC])),
            lambda: timedelta(seconds=rng.randint(0, 9)),
            lambda: Decimal(rng.choice(["1", "1.0", "NaN", "-0"])),
            lambda: UUID(int=rng.getrandbits(128)),
            lambda: rng.choice([np.float64, np.float32, np.int64])(rng.randint(0, 9)),
            lambda: np.datetime64(rng.randint(0, 9), "s"),
            lambda: np.array([rng.random() for _ in range(4)]).reshape(rng.choice([(4,), (2, 2)])),
        ]

    def text(self) -> str:
        return self.rng.choice(["", "a", "key", "größe", "日本", "\ud800", "x" * 300, str(self.rng.random())])

    def hashable(self) -> Any:
        return self.rng.choice([self.text(), self.rng.randint(-5, 5), (self.text(), None), self.rng.random()])

    def compound(self, depth: int) -> Any:
        rng = self.rng
        some = lambda: [self.value(depth) for _ in range(rng.randint(0, 4))]  # noqa: E731
        hashables = lambda: [self.hashable() for _ in range(rng.randint(0, 9))]  # noqa: E731
        return rng.choice(
            [
                lambda: tuple(some()),
                some,
                lambda: {self.hashable(): one for one in some()},
                lambda: set(hashables()),
                lambda: frozenset(hashables()),
                lambda: Reading(self.text(), self.value(depth)),
                lambda: Other(self.text(), self.value(depth)),
                lambda: Packed(self.text(), self.value(depth)),
                lambda: Pair(self.value(depth), self.text()),
                lambda: named_row(self.text(), self.value(depth)),
                lambda: OrderedDict((self.text(), one) for one in some()),
                lambda: deque(map(str, hashables())),
                lambda: Counter(map(str, hashables())),
                lambda: defaultdict(int, {self.text(): 1}),
            ]
        )()


def changed(value: Any, rng: random.Random) -> Any:
    """Another value, which differs in one place."""
    kind = type(value)
    if kind in (list, tuple) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return kind([*value[:at], changed(value[at], rng), *value[at + 1 :]])
    if kind is dict and value and rng.random() < 0.8:
        key = rng.choice([*value])
        return {**value, key: changed(value[key], rng)}
    if kind in (Reading, Other, Packed):
        return kind(value.sensor, changed(value.value, rng))
    if kind in (set, frozenset):
        return kind([*value, "another one"])
    if kind is bool or kind is int:
        return rng.choice([value + 1, float(value) + 0.5, str(value), -2 if value == -1 else -1 - value])
    if kind is float:
        return -value if value == 0 else 7.5
    if kind is str:
        return value + "z"
    return ("changed", value)


def records(seed: int) -> list[Any]:
    """Records of a seed: of one kind, or of several."""
    draw = Draw(seed)
    count = draw.rng.choice([1, 2, 3, 5, 40])
    if draw.rng.random() < 0.5:
        make = draw.rng.choice([*draw.plain, lambda: (draw.text(), 1, 2.5), lambda: Reading(draw.text(), 1)])
        return [make() for _ in range(count)]
    return [draw.value() for _ in range(count)]


SEEDS = range(150)


def copy_of(value: Any) -> Any:
    """An equal value that shares no object with it."""
    return pickle.loads(pickle.dumps(value, 5))


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_values_have_equal_digests_wherever_frames_end_and_whatever_objects_are_shared(seed: int) -> None:
    rng, values = random.Random(seed), records(seed)
    whole = Rows(values)
    made = digest(whole)
    assert digest(*split(whole, rng.randint(0, len(whole)))) == made
    assert digest(*split(whole, *range(1, len(whole)))) == made, "one by one"
    alone = [copy_of(value) for value in values]
    assert digest(Rows(alone)) == made, "nothing is shared"
    assert digest(Rows(copy_of(values))) == made, "what was shared still is"
    assert digest(Rows([*values, *values])) == digest(Rows([*values, *alone])), "records that occur twice"


@pytest.mark.parametrize("seed", SEEDS)
def test_other_values_have_another_digest(seed: int) -> None:
    rng, values = random.Random(seed), records(seed)
    at = rng.randrange(len(values))
    other = [*values[:at], changed(values[at], rng), *values[at + 1 :]]
    assert digest(Rows(other)) != digest(Rows(values))
    assert digest(Rows(values[:-1])) != digest(Rows(values))


PRINT = """
import json, sys
from tests.elements.test_valuedigests import Rows, digest, records
print(json.dumps([digest(Rows(records(seed))) for seed in json.load(sys.stdin)]))
"""


def test_another_process_has_the_same_digests_whatever_it_hashes_texts_to() -> None:
    root = Path(__file__).parents[2]
    mine = [digest(Rows(records(seed))) for seed in SEEDS]
    for hash_seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", PRINT],
            input=json.dumps([*SEEDS]),
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(ran.stdout) == mine


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (-1, -2),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ("1", b"1"),
        ((1, 2), [1, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (("ab", "c"), ("a", "bc")),
        (Reading("a", 1), Other("a", 1)),
        (Pair(1, 2), (1, 2)),
        ({1, 2}, frozenset({1, 2, 3})),
        ([{1}], [{2}]),
        (np.float64(1), np.float32(1)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (Decimal("1"), Decimal("1.0")),
        (datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)),
        (datetime(2020, 10, 25, 2, 30), datetime(2020, 10, 25, 2, 30, fold=1)),
        (Reading("a", 1, note="x"), Reading("a", 1, note="y")),
    ],
    ids=str,
)
def test_values_that_a_function_can_tell_apart_differ(one: Any, other: Any) -> None:
    assert digest(Rows([one])) != digest(Rows([other]))
    assert digest(Rows([("x", one)])) != digest(Rows([("x", other)]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Reading("a", 1), calculated(Reading("a", 1))),
        (named_row(1, 2), (1, 2)),
        ({3, 11, 19, 27}, {27, 19, 11, 3}),
        (np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))),
        ("".join(["ke", "y"]), "key"),
    ],
    ids=["a field that does not count", "the names of a row", "a set", "the layout of an array", "another text object"],
)
def test_what_no_value_depends_on_does_not_count(one: Any, other: Any) -> None:
    assert digest(Rows([one])) == digest(Rows([other]))


def test_a_permutation_is_another_stream() -> None:
    values = [("a", None), ("b", 1.5), ("c", float("nan")), ("d", b"x")]
    assert digest(Rows([values[1], values[0], *values[2:]])) != digest(Rows(values))
    assert digest(Rows([1]), Columns(pa.record_batch({"a": [1]}))) != digest(
        Columns(pa.record_batch({"a": [1]})), Rows([1])
    )


class Opaque:
    def __init__(self, of: int) -> None:
        self.of = of


def cyclic() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Opaque, "Opaque"),
        (lambda i: np.array([Opaque(i)], object), "ndarray"),
        (lambda i: np.zeros(1, [("a", "i1"), ("b", "i8")]), "ndarray"),
        (lambda i: cyclic(), "list"),
        (lambda i: lambda: i, "function"),
    ],
    ids=["a plain class", "an array of objects", "an array with gaps", "a cycle", "a function"],
)
def test_a_value_without_a_certain_form_counts_with_the_name_of_its_class(make: Any, name: str) -> None:
    writer = ValueWriter()
    made = digest(Rows([1, make(1), 2]), writer=writer)
    assert list(writer.opaque) == [name]
    assert digest(Rows([1]), Rows([make(2), 2])) == made
    assert digest(Rows([1, make(1), 3])) != made, "what is beside it counts"
    fresh = ValueWriter()
    assert digest(Rows([1, (2, 3)]), writer=fresh) is not None and fresh.opaque == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda items: deque([set(items)]),
        lambda items: defaultdict(set, {"a": set(items)}),
        lambda items: Reading("cbuiltins\nset\n", {"a": [frozenset(items)]}),
        lambda items: {(Other("x", 1), frozenset(items)): Packed("y", (set(items),))},
        lambda items: {frozenset(items), frozenset([*items, 1.5])},
    ],
    ids=["deque", "defaultdict", "dataclass", "key", "set of sets"],
)
def test_a_set_counts_wherever_it_is_and_its_order_does_not(make: Any) -> None:
    items = ["a", "b", 8, 16, 24, None]
    other = digest(Rows([1, make(items), 2]))
    assert digest(Rows([1, make(items[::-1]), 2])) == other == digest(Rows([1, make(items)]), Rows([2]))
    assert digest(Rows([1, make(items[1:]), 2])) != other


def test_errors_leave_nothing_behind_in_the_writer() -> None:
    """The writer of Python counts how deep it is, and does not begin anew when an object is refused."""
    writer, deep = ValueWriter(), [[[[1]]]]
    fine = digest(Rows([deep] * 3), writer=writer)
    for _ in range(100):
        digest(Rows([[[[[lambda: 1]]]]]), writer=writer)
    assert digest(Rows([deep] * 3), writer=writer) == fine == digest(Rows([deep] * 3))


def test_what_grows_too_large_ends_the_digest() -> None:
    """In a frame a text that all records share is there once; its digest would read it for each of them."""
    text = "x" * 10_000
    found = ValueDigest()
    found.add(Rows([(text, i) for i in range(1_000)]), 0, 1 << 20, ValueWriter())
    assert found.value is None and found.over
    found.add(Rows([1]), 1_000, 1 << 20, ValueWriter())
    assert found.value is None


# Columns.

KINDS: list[tuple[pa.DataType, Callable[[random.Random], Any]]] = [
    (pa.int8(), lambda rng: rng.randint(-9, 9)),
    (pa.int64(), lambda rng: rng.randint(-9, 9)),
    (pa.float64(), lambda rng: rng.choice([0.0, -0.0, math.nan, rng.random()])),
    (pa.bool_(), lambda rng: rng.random() < 0.5),
    (pa.string(), lambda rng: rng.choice(["", "a", "größe"])),
    (pa.large_string(), lambda rng: rng.choice(["", "a", "größe"])),
    (pa.binary(), lambda rng: rng.randbytes(rng.randint(0, 3))),
    (pa.binary(2), lambda rng: rng.randbytes(2)),
    (pa.timestamp("us", "UTC"), lambda rng: rng.randint(0, 9)),
    (pa.date32(), lambda rng: date(2020, 1, rng.randint(1, 9))),
    (pa.decimal128(9, 2), lambda rng: Decimal(rng.randint(0, 9))),
    (pa.null(), lambda rng: None),
    (pa.list_(pa.int32()), lambda rng: [rng.randint(0, 3) for _ in range(rng.randint(0, 3))]),
    (pa.large_list(pa.string()), lambda rng: ["x"] * rng.randint(0, 3)),
    (pa.list_(pa.int16(), 2), lambda rng: [rng.randint(0, 3), None]),
    (pa.struct({"a": pa.int32(), "b": pa.list_(pa.string())}), lambda rng: {"a": rng.randint(0, 2), "b": ["y", None]}),
    (pa.map_(pa.string(), pa.int32()), lambda rng: [("k", rng.randint(0, 2))] * rng.randint(0, 2)),
    (pa.dictionary(pa.int8(), pa.string()), lambda rng: rng.choice("abc")),
]


def column(kind: pa.DataType, make: Callable[[random.Random], Any], rng: random.Random, count: int) -> pa.Array:
    nulls = rng.choice([0, 0.3, 1])
    return pa.array([None if rng.random() < nulls else make(rng) for _ in range(count)], kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind[0]))
@pytest.mark.parametrize("seed", range(4))
def test_columns_are_compared_by_their_values(kind: Any, seed: int) -> None:
    rng = random.Random(f"columns {seed}")
    array = column(*kind, rng, 20)
    whole = Columns(pa.record_batch({"n": pa.array(range(20)), "x": array}))
    made, at = digest(whole), rng.randint(0, 20)
    assert digest(*split(whole, at)) == digest(*split(whole, *range(1, 20))) == made
    compact = [Columns(one.data.take(pa.array(range(len(one)), pa.int64()))) for one in split(whole, at)]
    assert digest(*compact) == made, "without offsets"
    assert digest(concat(compact)) == made
    for place in range(20):
        other = array.to_pylist()
        other[place] = kind[1](rng) if other[place] is None else None
        changed = pa.array(other, kind[0])
        if not changed.equals(array):
            assert digest(Columns(whole.data.set_column(1, "x", changed))) != made


def test_what_lies_behind_nulls_does_not_count() -> None:
    mask = pa.array([True, False, True]).buffers()[1]
    absent = pa.array([False, True, False])

    def columns(number: int, text: str) -> Columns:
        ends = pa.array([0, 1, 1 + len(text), 2 + len(text)])
        held = {
            "number": pa.Array.from_buffers(pa.int64(), 3, [mask, pa.array([1, number, 3]).buffers()[1]]),
            "text": pa.Array.from_buffers(pa.string(), 3, [mask, *pa.array(["a", text, "c"]).buffers()[1:]]),
            "list": pa.ListArray.from_arrays(ends, pa.array(["x", *text, "z"]), mask=absent),
        }
        return Columns(pa.record_batch(held))

    clean = {"number": [1, None, 3], "text": ["a", None, "c"], "list": [["x"], None, ["z"]]}
    assert columns(7, "bb").data.equals(pa.record_batch(clean))
    assert digest(columns(7, "bb")) == digest(columns(8, "b")) == digest(Columns(pa.record_batch(clean)))


def test_columns_of_other_types_or_names_differ() -> None:
    batches = [{"a": pa.array([1], pa.int64())}, {"b": pa.array([1], pa.int64())}, {"a": pa.array([1], pa.int32())}]
    assert len({digest(Columns(pa.record_batch(one))) for one in batches}) == 3
