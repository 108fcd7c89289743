"""Keys: one canonical form for equal keys, in both forms of a batch, frozen by golden vectors."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import subprocess
import sys
import time
import types
import warnings
from collections import namedtuple
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tailrace.elements import keygroups as module
from tailrace.elements.keycolumns import groups_of_arrow
from tailrace.elements.keygroups import MAX_GROUPS, KeyGroups, group_range, key_group, owner, owners
from tailrace.elements.keypickling import dump_keys
from tailrace.elements.keys import UnsupportedKey, canonical_bytes, key_hash
from tailrace.elements.plainkeys import NAN, parts_of, plain_key
from tailrace.errors import TailraceError

P = sys.hash_info.modulus
BERLIN = ZoneInfo("Europe/Berlin")
OTHER_BERLIN = ZoneInfo.no_cache("Europe/Berlin")  # the same zone, and to datetimes another one
NAN32 = np.float32("nan")


class Color(IntEnum):
    RED = 1


class Word(StrEnum):
    A = "a"


class Mixed(float, Enum):
    HALF = 0.5


class Plain(Enum):
    A = 1


class Point(NamedTuple):
    x: Any
    y: Any


class Other(Enum):
    A = 1


class Perm(Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Record:
    x: Any


@dataclass(frozen=True)
class Pair:
    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    x: Any
    y: Any


class Heir(Pair):
    """Equal to its like only, as Python compares dataclasses."""


@dataclass
class Loose:
    x: int


@dataclass(unsafe_hash=True)
class Changeable:
    x: int


@dataclass(frozen=True, eq=False)
class ByIdentity:
    x: int


@dataclass(frozen=True)
class Noted:
    x: int
    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class OwnEquality:
    x: int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


@dataclass(frozen=True)
class OwnHash:
    x: int

    def __hash__(self) -> int:
        return 1


@dataclass(frozen=True)
class Wider(dict):  # type: ignore[type-arg]
    x: int


@dataclass(frozen=True)
class Slot:
    __slots__ = ("more", "x")
    x: int


@dataclass(frozen=True, slots=True)
class Unset:
    x: int = field(init=False)


class Foreign:
    """What only looks like a dataclass."""

    __dataclass_fields__: Any = {}


def inside() -> Any:
    @dataclass(frozen=True)
    class Local:
        x: int

    return Local(1)


# Named after a module of its own, so that the vectors do not depend on where the tests are.
SHOP = types.ModuleType("shop")
sys.modules["shop"] = SHOP
exec(
    "from dataclasses import dataclass\n"
    "from enum import Enum\n"
    "from typing import Any\n"
    "@dataclass(frozen=True)\n"
    "class Place:\n"
    "    zone: Any\n"
    "    row: Any = 0\n"
    "    class Kind(Enum):\n"
    "        INSIDE = 'i'\n"
    "        OUTSIDE = 'o'\n"
    "@dataclass(frozen=True)\n"
    "class Nothing:\n"
    "    pass\n",
    vars(SHOP),
)


class CaseBlind(str):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


# --- golden vectors -------------------------------------------------------------------------------------------------

# These are a file format. A change here, in a byte or a hash, moves the state of running jobs to groups where nobody
# looks for it: it needs a new format and a way to read the old files. Adding vectors is free.
GOLDEN = Path(__file__).with_name("golden_keys.json")
NAMES = {
    "Color": Color,
    "Decimal": Decimal,
    "Mixed": Mixed,
    "Point": Point,
    "UTC": UTC,
    "shop": SHOP,
    "UUID": UUID,
    "Word": Word,
    "ZoneInfo": ZoneInfo,
    "date": date,
    "datetime": datetime,
    "float": float,
    "np": np,
    "pd": pd,
    "timedelta": timedelta,
    "timezone": timezone,
}


def golden_vectors() -> list[dict[str, Any]]:
    golden = json.loads(GOLDEN.read_text())
    return list(golden["vectors"])


def golden_key(vector: dict[str, Any]) -> Any:
    return eval(vector["key"], dict(NAMES))


@pytest.mark.parametrize("vector", golden_vectors(), ids=lambda v: v["key"][:60])
def test_golden(vector: dict[str, Any]) -> None:
    key = golden_key(vector)
    assert type(key).__name__ == vector["type"]
    assert canonical_bytes(key).hex() == vector["canonical"]
    assert f"{key_hash(key):016x}" == vector["hash"]
    assert key_group(key, 128) == vector["group_of_128"]
    assert KeyGroups(128).group_of(key) == vector["group_of_128"]


def test_golden_covers_every_tag() -> None:
    assert {bytes.fromhex(v["canonical"])[:1] for v in golden_vectors()} == set(map(bytes, zip(b"niqpmxsbtdwzeuro")))


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_other_processes_agree(seed: str) -> None:
    """String hashes of Python differ between processes, the groups must not: neither computed nor from the cache."""
    plain = [
        v
        for v in golden_vectors()
        if not {"Point", "shop"} & set(re.findall(r"\w+", v["key"])) and v["type"] not in ("Color", "Word", "Mixed")
    ]
    names = "from datetime import *; from decimal import *; from uuid import *; from zoneinfo import *\n"
    script = (
        f"import json, sys, numpy as np, pandas as pd\n{names}"
        "from tailrace.elements.keygroups import KeyGroups\n"
        "from tailrace.elements.keygroups import key_group\n"
        "keys = [eval(text) for text in json.load(sys.stdin)]\n"
        "cache = KeyGroups(128)\n"
        "first, second = cache.groups_of(keys).tolist(), cache.groups_of(keys).tolist()\n"
        "print(json.dumps([first, second, [key_group(key, 128) for key in keys]]))\n"
    )
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    printed = json.dumps([v["key"] for v in plain])
    done = subprocess.run([sys.executable, "-c", script], input=printed, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[v["group_of_128"] for v in plain]] * 3


# --- the canonical form ---------------------------------------------------------------------------------------------

SAME = [
    [0, False, 0.0, -0.0, Decimal(0), Decimal("-0"), Decimal("0E+999999"), np.int8(0), np.float32(-0.0), np.False_],
    [1, True, 1.0, Decimal("1.000"), Color.RED, np.True_, np.uint64(1), np.float16(1)],
    [-1, -1.0, Decimal(-1), np.int64(-1), np.float64(-1)],
    [0.5, Decimal("0.5"), Decimal("0.50"), np.float16(0.5), np.float64(0.5), Mixed.HALF],
    [2**64, 2.0**64, Decimal(2**64), np.float32(2.0**64)],
    [10**400, Decimal("1e400")],
    [math.inf, Decimal("inf"), np.float32("inf")],
    [-math.inf, Decimal("-inf"), np.float16("-inf")],
    [math.nan, -math.nan, NAN, Decimal("nan"), Decimal("-nan123"), Decimal("snan"), np.nan, NAN32],
    ["a", Word.A, np.str_("a")],
    [b"a", np.bytes_(b"a")],
    [(1, ("a", math.nan)), Point(True, (Word.A, Decimal("nan"))), (1.0, Point("a", NAN32))],
    [datetime(2020, 1, 1), pd.Timestamp(2020, 1, 1), datetime(2020, 1, 1, fold=1)],
    [
        datetime(2020, 1, 1, tzinfo=UTC),
        datetime(2020, 1, 1, 1, tzinfo=BERLIN),
        datetime(2019, 12, 31, 19, tzinfo=timezone(timedelta(hours=-5))),
        pd.Timestamp("2020-01-01 01:00", tz="Europe/Berlin"),
    ],
    [timedelta(days=1), timedelta(hours=24), pd.Timedelta(days=1)],
    [Record(1), Record(True), Record(1.0), Record(np.int8(1)), Record(Color.RED)],
    [Pair(1, ("a", math.nan)), Pair(Decimal(1), (Word.A, NAN32))],
    [Slotted(1, Record("a")), Slotted(np.uint8(1), Record(np.str_("a")))],
    [Heir(1, 2)],
    [Pair(1, 2)],
    [Slotted(1, 2)],
    [Plain.A],
    [Other.A],
    [Perm.READ, Perm(1)],
]


@pytest.mark.parametrize("same", SAME, ids=lambda same: repr(same[0])[:30])
def test_same_bytes(same: list[Any]) -> None:
    assert {canonical_bytes(key) for key in same} == {canonical_bytes(same[0])}
    for one in same:  # and so in every order of arrival at a cache
        cache = KeyGroups(MAX_GROUPS)
        assert cache.group_of(one) == key_group(one, MAX_GROUPS)
        assert set(cache.groups_of(same).tolist()) == {key_group(one, MAX_GROUPS)}


def test_distinct_bytes() -> None:
    distinct = [same[0] for same in SAME] + [
        (), ((),), ((), ()), (1,), (1, 1), ((1,), 1), (1, (1,)), ((1, 1),), ("ab",), ("a", "b"), ("", "ab"), ("ab", ""),
        (1, 2), Record(None), Record((1,)), Record(Record(1)), "A", "test_keys:Plain", Perm.WRITE,
        (None,), None, "", b"", "None", 2, -2, 127, 128, -128, -129, 255, 256, -256, 0.1, Decimal("0.1"), -0.5,
        np.float32(0.1), 1.5, 2 / 3, 5e-324, "\x00", "a\x00", np.str_("a\x00\x00"), b"a\x00", np.bytes_(b"a\x00\x00"),
        "\ud800", "\udc00", "\u00e9", "e\u0301", date(2020, 1, 1), date(2020, 1, 2),
        datetime(2020, 1, 1, microsecond=1),
        timedelta(0), timedelta(microseconds=-1), UUID(int=1), UUID(int=2), str(UUID(int=1)), UUID(int=1).bytes,
    ]  # fmt: skip
    assert len(set(map(canonical_bytes, distinct))) == len(distinct)


UNSUPPORTED = {
    "list": ([1], "tuple(key)"),
    "nested list": ((1, (2, [3])), "tuple(key)"),
    "set": ({1}, "sorted"),
    "frozenset": (frozenset({1}), "sorted"),
    "dict": ({1: 2}, "items"),
    "bytearray": (bytearray(b"a"), "bytes(key)"),
    "memoryview": (memoryview(b"a"), "bytes(key)"),
    "combination of flags": (Perm.READ | Perm.WRITE, "key.value"),
    "dataclass that may be changed": (Loose(1), "@dataclass(frozen=True)"),
    "dataclass that may be changed, with a hash": (Changeable(1), "@dataclass(frozen=True)"),
    "dataclass by identity": (ByIdentity(1), "leave out eq=False"),
    "dataclass with a field that is not compared": (Noted(1), "leave 'note' out of the key"),
    "dataclass with an equality of its own": (OwnEquality(1), "leave out __eq__"),
    "dataclass with a hash of its own": (OwnHash(1), "leave out __hash__"),
    "dataclass that is a dict": (Wider(1), "a tuple of what it holds"),
    "dataclass with a slot that is no field": (Slot.__new__(Slot), "make it a field"),
    "dataclass with a field that was never set": (Unset(), "set every field"),
    "dataclass in a function": (inside(), "move it out of the function"),
    "what looks like a dataclass": (Foreign(), "frozen dataclass of these"),
    "NaN in a dataclass": (Record(math.nan), "put None there"),
    "decimal NaN in a dataclass": (Pair(1, Decimal("nan")), "its field 'y' is a NaN"),
    "list in a dataclass": (Record([1]), "tuple(key)"),
    "complex": (1j, "key.real"),
    "numpy complex": (np.complex64(1), "key.real"),
    "fraction": (Fraction(1, 3), "numerator"),
    "object": (object(), "str"),
    "class": (int, "str"),
    "array": (np.array([1]), "tolist"),
    "datetime64": (np.datetime64("2020-01-01"), "M8[us]"),
    "timedelta64": (np.timedelta64(1, "s"), "m8[us]"),
    "generic timedelta64": (np.timedelta64(1), "m8[us]"),
    "longdouble": (np.longdouble(1), "float(key)"),
    "void": (np.void(b"a"), "str"),
    "nanoseconds": (pd.Timestamp(1), "plain datetime"),
    "nanosecond span": (pd.Timedelta(1), "plain timedelta"),
    "NaT": (pd.NaT, "plain datetime"),
    "NA": (pd.NA, "str"),
    "own equality": (CaseBlind("a"), "plain str"),
    "huge decimal": (Decimal("1e99999"), "str(key)"),
    "tiny decimal": (Decimal("1e-99999"), "str(key)"),
    "time": (time.gmtime().__class__, "str"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported(name: str) -> None:
    key, advice = UNSUPPORTED[name]
    for use in (
        canonical_bytes,
        key_hash,
        lambda k: key_group(k, 8),
        KeyGroups(8).group_of,
        lambda k: KeyGroups(8).groups_of([None, k]),
    ):
        with pytest.raises(UnsupportedKey) as caught:
            use(key)
        assert advice in str(caught.value)
        assert "cannot be a key" in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, TailraceError)


def test_unsupported_names_the_type() -> None:
    with pytest.raises(UnsupportedKey, match=r"of type list cannot be a key: it has no canonical form; use a tuple"):
        canonical_bytes([1])
    with pytest.raises(UnsupportedKey, match=r"of type \S*test_keys\.Loose cannot"):
        canonical_bytes(Loose(1))


def test_a_huge_decimal_is_refused_at_once() -> None:
    with pytest.raises(UnsupportedKey):
        canonical_bytes(Decimal("1e999999999"))


def test_ends_of_the_calendar() -> None:
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    ends = [datetime.min.replace(tzinfo=east), datetime.max.replace(tzinfo=west), datetime.min, datetime.max]
    assert len(set(map(canonical_bytes, ends))) == 4


def test_the_repeated_and_the_skipped_hour() -> None:
    """Python ignores the fold between datetimes of one tzinfo, and they equal nothing elsewhere. A key is an instant."""
    first, second = (datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1))
    assert first == second
    instants = [datetime(2020, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    assert first != instants[0]  # the same instant, and yet
    assert [canonical_bytes(first), canonical_bytes(second)] == list(map(canonical_bytes, instants))
    assert (
        KeyGroups(MAX_GROUPS).groups_of([first, second]).tolist() == KeyGroups(MAX_GROUPS).groups_of(instants).tolist()
    )
    assert [plain_key(first), plain_key(second)] == instants
    assert plain_key((1, second)) == (1, instants[1])
    assert plain_key(second).hour == 2, "the wall clock stays"
    skipped = [datetime(2020, 3, 29, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1)]
    assert skipped[0] == skipped[1]
    assert canonical_bytes(skipped[0]) == canonical_bytes(datetime(2020, 3, 29, 1, 30, tzinfo=UTC))


def test_a_zone_that_is_not_shared() -> None:
    """In a repeated hour Python finds such a key unequal to its own copy. State would lose it; its group is right."""
    key = datetime(2020, 10, 25, 2, 30, tzinfo=OTHER_BERLIN)
    copy = pickle.loads(pickle.dumps(key))
    assert copy != key
    assert canonical_bytes(copy) == canonical_bytes(key)
    assert KeyGroups(MAX_GROUPS).groups_of([key, copy]).tolist() == [key_group(key, MAX_GROUPS)] * 2


# --- properties -----------------------------------------------------------------------------------------------------

NUMPY_NUMBERS = [
    np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
    np.float16, np.float32, np.float64,
]  # fmt: skip

edges = st.builds(
    lambda sign, base, step: sign * (base + step),
    st.sampled_from((1, -1)),
    st.sampled_from(
        (0, 314159, P, 2 * P, 3 * P, 2**24, 2**53, 2**62, 2**63, 2**64, 2**100, 2**128, P + 314159, 10**30)
    ),
    st.integers(-3, 3) | st.sampled_from((P, -P)),
)
rationals = st.one_of(
    st.integers(-5, 5),
    edges,
    st.integers(),
    st.integers(-(2**64), 2**64),
    st.floats(),
    st.floats(width=32),
    st.floats(width=16),
    edges.map(float),
    st.sampled_from((314159 * 2.0**610, -314159 * 2.0**122, 2.0**-1074, 0.1)),
    st.decimals(),
    st.decimals(-1000, 1000, places=2),
)


def spellings(value: Any) -> list[Any]:
    """A number in every type that takes it, rounded or not."""
    spelled = [value]
    for kind in (int, float, Decimal, *NUMPY_NUMBERS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                spelled.append(kind(value))
        except (ValueError, OverflowError, TypeError, ArithmeticError):
            continue
    return spelled


numbers = rationals.flatmap(lambda value: st.sampled_from(spellings(value)))
number_pairs = rationals.flatmap(lambda v: st.tuples(st.sampled_from(spellings(v)), st.sampled_from(spellings(v))))

# Transitions of an hour, of half an hour, backwards and forwards, and quiet days.
ZONES = [None, UTC, BERLIN, ZoneInfo("America/New_York"),
         ZoneInfo("Australia/Lord_Howe"), timezone(timedelta(hours=1)), timezone(timedelta(minutes=-150))]  # fmt: skip
MOMENTS = [datetime(2020, 3, 29, 1), datetime(2020, 10, 25, 1), datetime(2020, 3, 8, 7), datetime(2020, 11, 1, 6),
           datetime(2020, 4, 4, 15), datetime(2020, 10, 3, 15, 30), datetime(2021, 6, 1)]  # fmt: skip
wall_clocks = st.builds(
    lambda moment, quarters, micros: moment + timedelta(minutes=15 * quarters, microseconds=micros),
    st.sampled_from(MOMENTS),
    st.integers(-60, 60),
    st.sampled_from((0, 0, 0, 1)),
) | st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29))
datetimes = st.builds(
    lambda wall, zone, fold: wall.replace(tzinfo=zone, fold=fold),
    wall_clocks,
    st.sampled_from(ZONES),
    st.integers(0, 1),
)
datetime_pairs = st.builds(  # one instant in two zones, or one wall clock
    lambda one, zone, fold, shift: (
        one,
        one.astimezone(zone) if shift and zone and one.tzinfo else one.replace(tzinfo=zone, fold=fold),
    ),
    datetimes,
    st.sampled_from([*ZONES, OTHER_BERLIN]),
    st.integers(0, 1),
    st.booleans(),
)

texts = st.text(st.characters(), max_size=3) | st.text("ab", max_size=2)  # characters() includes surrogates
scalars = st.one_of(
    st.none(),
    numbers,
    texts,
    texts.filter(lambda t: not t.endswith("\0")).map(np.str_),
    st.binary(max_size=3),
    datetimes,
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from((Color.RED, Word.A, Mixed.HALF, NAN, Plain.A, Other.A, Perm.WRITE)),
)


def no_nan(key: Any) -> bool:
    return canonical_bytes(key) != b"x"


def records(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects of dataclasses. A field that is a NaN itself is refused."""
    part = inner.filter(no_nan)
    return st.builds(Record, part) | st.sampled_from((Pair, Slotted, Heir)).flatmap(lambda c: st.builds(c, part, part))


keys = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.builds(Point, inner, inner) | records(inner),
    max_leaves=5,
)
pairs = st.one_of(
    number_pairs,
    datetime_pairs,
    st.tuples(scalars, scalars),
    st.tuples(keys, keys),
    st.tuples(number_pairs, datetime_pairs).map(lambda ps: ((ps[0][0], ps[1][0]), Point(ps[0][1], ps[1][1]))),
    keys.map(lambda key: (key, pickle.loads(pickle.dumps(key)))),
    keys.map(lambda key: (key, pickle.loads(dump_keys(key)))),
    st.tuples(number_pairs, datetime_pairs)
    .filter(lambda ps: all(no_nan(one) for one in ps[0]))
    .flatmap(lambda ps: st.sampled_from((Pair, Slotted)).map(lambda c: tuple(map(c, *ps)))),
)


def ignoring_numpy(check: Any) -> Any:
    """numpy warns where a comparison overflows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return check()


def dictionary_equal(a: Any, b: Any) -> bool:
    """Whether a dictionary that holds `a` finds it by `b`."""
    try:
        return bool(ignoring_numpy(lambda: hash(a) == hash(b) and a == b))
    except (TypeError, ArithmeticError):  # a signalling NaN, a Decimal against an integer of numpy
        return False


def of_numpy(key: Any) -> bool:
    return any(map(of_numpy, parts_of(key))) or isinstance(key, np.generic)


@given(pairs)
@example((np.float64(0.5), Decimal("0.5")))
@example((datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN), datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)))
def test_equal_keys_hash_equally(pair: tuple[Any, Any]) -> None:
    a, b = pair
    if any(map(of_numpy, pair)):
        # numpy compares rounded numbers: np.float32(0.1) == 0.1. Python's own number types are the judge.
        a, b = unboxed(a), unboxed(b)
    try:
        assume(plain_key(a) == plain_key(b))
    except ArithmeticError:  # a signalling NaN
        assume(False)
    a, b = pair
    assert canonical_bytes(a) == canonical_bytes(b)
    assert key_hash(a) == key_hash(b)
    assert key_group(a, 128) == key_group(b, 128)


def unboxed(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(unboxed, key))
    if hasattr(key, "__dataclass_fields__"):
        return replace(key, **{one.name: unboxed(getattr(key, one.name)) for one in fields(key)})
    return key.item() if isinstance(key, np.number | np.bool_) else key


simple = st.one_of(
    st.none(), st.integers(), st.floats(), st.decimals(allow_nan=False), texts, st.binary(max_size=3), st.uuids(),
    st.dates(), st.datetimes(), st.datetimes(timezones=st.just(UTC)), st.timedeltas(),
)  # fmt: skip
simple = simple | st.sampled_from((Plain.A, Other.A)) | st.lists(simple, max_size=3).map(tuple)
simple = simple | records(simple)


@given(simple, simple)
def test_distinct_values_have_distinct_bytes(a: Any, b: Any) -> None:
    same = canonical_bytes(a) == canonical_bytes(b)
    assert same == (plain_key(a) == plain_key(b) or plain_key(a) is plain_key(b))


@given(keys)
def test_keys_survive_pickling(key: Any) -> None:
    assert canonical_bytes(pickle.loads(pickle.dumps(key))) == canonical_bytes(key)


@given(st.lists(keys | pairs.map(lambda p: p[0]), max_size=12), st.sampled_from((1, 3, 1 << 18)), st.data())
def test_cache_agrees_with_uncached(some: list[Any], limit: int, data: st.DataObject) -> None:
    cache = KeyGroups(32768, limit)
    for _ in range(2):
        order = data.draw(st.permutations(some))
        groups = ignoring_numpy(lambda order=order: cache.groups_of(order))
        assert groups.dtype == np.uint16
        assert groups.tolist() == [key_group(key, 32768) for key in order]
        assert [ignoring_numpy(lambda key=key: cache.group_of(key)) for key in order] == groups.tolist()
        assert len(cache) <= limit


@given(pairs)
@example((-(2.0**61), np.int64(-(2**61) - 1)))
@example((-(2**61) - 1, np.float64(-(2.0**61))))
@example((-(2**62) + 1, np.float64(-(2.0**62))))
@example((2**100 + P, np.float32(2.0**100)))
@example((314159, np.float16("inf")))
@example((-314159, np.float16("-inf")))
@example((P + 314159, np.float16("inf")))
@example((314159 * 2.0**610, np.float32("inf")))
@example((Decimal(5), np.int64(5)))
@example(((1, Decimal(5)), (np.int64(1), np.int8(5))))
def test_dictionary_equality_implies_canonical_equality(pair: tuple[Any, Any]) -> None:
    """What the cache stores for one key must not answer wrongly for another."""
    for stored, requested in (pair, pair[::-1]):
        cache = KeyGroups(MAX_GROUPS)
        cache.group_of(stored)
        for entry in cache:
            if dictionary_equal(entry, requested):
                assert canonical_bytes(entry) == canonical_bytes(requested)
        assert ignoring_numpy(lambda cache=cache, requested=requested: cache.group_of(requested)) == key_group(
            requested, MAX_GROUPS
        )


def test_the_traps_of_numpy_are_real() -> None:
    """If numpy stops rounding here, the comment in keys.py wants another word; nothing breaks."""
    assert dictionary_equal(-(2.0**61), np.int64(-(2**61) - 1))
    assert canonical_bytes(-(2.0**61)) != canonical_bytes(np.int64(-(2**61) - 1))


# --- the cache ------------------------------------------------------------------------------------------------------


def test_cache_stores_and_forgets() -> None:
    cache = KeyGroups(128, limit=4)
    cache.groups_of([1, "a", (1, "a"), None])
    assert set(cache) == {1, "a", (1, "a"), None}
    cache.group_of(True)
    assert len(cache) == 4
    cache.group_of("b")
    assert list(cache) == ["b"]


def test_cache_stores_plain_twins() -> None:
    cache = KeyGroups(128)
    cache.groups_of([np.int64(7), np.float32(0.5), Decimal(8), Point(np.int8(9), Color.RED), (1, np.int8(2))])
    assert [type(key) for key in cache] == [int, float, int, tuple, tuple]
    assert [type(item) for key in list(cache)[-2:] for item in key] == [int] * 4


def test_cache_stores_no_nan() -> None:
    cache = KeyGroups(128)
    nans = [float("nan"), (1, float("nan")), Decimal("nan"), Decimal("snan"), NAN32, ((NAN,),)]
    assert cache.groups_of(nans * 2).tolist() == [key_group(key, 128) for key in nans] * 2
    assert not cache
    assert cache[Decimal("inf")] == cache[float("inf")] == key_group(math.inf, 128)  # nor what may be mistaken
    assert not cache


def test_cache_stores_64_bit_ids() -> None:
    cache = KeyGroups(128)
    cache.groups_of([2**63 - 25, 2**64 - 59, -(2**63) + 1])
    assert len(cache) == 3


def test_cache_takes_any_iterable() -> None:
    cache = KeyGroups(MAX_GROUPS)
    expected = [key_group(key, MAX_GROUPS) for key in range(100)]
    assert cache.groups_of(range(100)).tolist() == expected
    assert cache.groups_of(iter(range(100))).tolist() == expected
    assert cache.groups_of([]).tolist() == []
    # One key without a hash sends the batch the slow way, where the keys are consumed once more.
    mixed = iter([1, Decimal("snan"), 2])
    assert cache.groups_of(mixed).tolist() == [key_group(key, MAX_GROUPS) for key in (1, Decimal("nan"), 2)]


@pytest.mark.parametrize("wrong", [(0,), (MAX_GROUPS + 1,), (128, 0)])
def test_cache_refuses_nonsense(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"need 1 <= parallelism|room for at least one"):
        KeyGroups(*wrong)


def test_groups_are_spread() -> None:
    counts = np.bincount(KeyGroups(128).groups_of(range(12_800)), minlength=128)
    assert counts.min() > 50
    assert counts.max() < 150


# --- who owns which group -------------------------------------------------------------------------------------------


def check_ownership(parallelism: int, maximum: int) -> None:
    table = owners(parallelism, maximum)
    assert table.dtype == np.uint16
    ranges = [group_range(subtask, parallelism, maximum) for subtask in range(parallelism)]
    assert [group for r in ranges for group in r] == list(range(maximum))
    assert [subtask for subtask, r in enumerate(ranges) for _ in r] == table.tolist()
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_owner_and_group_range_are_inverse() -> None:
    for maximum in (*range(1, 65), 127, 128):
        for parallelism in range(1, maximum + 1):
            check_ownership(parallelism, maximum)
            table = owners(parallelism, maximum).tolist()
            assert table == [owner(group, parallelism, maximum) for group in range(maximum)]


@given(st.integers(1, MAX_GROUPS).flatmap(lambda m: st.tuples(st.integers(1, m), st.just(m))))
@example((MAX_GROUPS, MAX_GROUPS))
def test_owner_and_group_range_are_inverse_for_large_numbers(numbers: tuple[int, int]) -> None:
    check_ownership(*numbers)


def test_ownership_refuses_nonsense() -> None:
    for parallelism, maximum in ((0, 1), (2, 1), (1, MAX_GROUPS + 1)):
        with pytest.raises(ValueError, match="parallelism"):
            owners(parallelism, maximum)
    for subtask in (-1, 2):
        with pytest.raises(ValueError, match="no subtask"):
            group_range(subtask, 2, 128)


# --- columns --------------------------------------------------------------------------------------------------------

instants = st.integers(-(2**50), 2**50) | st.sampled_from(MOMENTS).flatmap(
    lambda m: st.integers(-8, 8).map(lambda q: (q * 900 + int(m.replace(tzinfo=UTC).timestamp())) * 1_000_000)
)
TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 5)),
    (pa.int64(), st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float16(), st.floats(width=16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats() | st.sampled_from((0.0, -0.0, 1.0, math.nan))),
    (pa.string(), st.text(max_size=2)),
    (pa.large_string(), st.text(max_size=2)),
    (pa.string_view(), st.text(max_size=2)),
    (pa.binary(), st.binary(max_size=2)),
    (pa.large_binary(), st.binary(max_size=2)),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
    (pa.decimal128(38, 10), st.decimals(-1000, 1000, places=2)),
    (pa.decimal256(60, 2), st.decimals(-1000, 1000, places=2)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.timestamp("s"), st.integers(0, 2**32)),
    (pa.timestamp("ms", "Europe/Berlin"), instants.map(lambda us: us // 1000)),
    (pa.timestamp("us"), instants),
    (pa.timestamp("us", "UTC"), instants),
    (pa.timestamp("us", "Europe/Berlin"), instants),
    (pa.timestamp("us", "+05:30"), instants),
    (pa.timestamp("ns"), instants.map(lambda us: us * 1000)),
    (pa.timestamp("ns", "Europe/Berlin"), instants.map(lambda us: us * 1000)),
    (pa.duration("us"), instants),
    (pa.duration("ns"), instants.map(lambda us: us * 1000)),
    (pa.dictionary(pa.int8(), pa.string()), st.text(max_size=2)),
    (pa.dictionary(pa.int32(), pa.float64()), st.floats()),
]


@st.composite
def columns(draw: st.DrawFn, length: int | None = None) -> Any:
    """An array or a chunked array, also as a slice of a longer one, also dictionary encoded."""
    kind, values = draw(st.sampled_from(TYPES))
    size = draw(st.integers(0, 8)) if length is None else length
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    total = before + size + after
    array = pa.array(draw(st.lists(st.none() | values, min_size=total, max_size=total)), kind)
    if draw(st.booleans()) and not pa.types.is_dictionary(kind) and not pa.types.is_null(kind):
        array = array.dictionary_encode(null_encoding=draw(st.sampled_from(("mask", "encode"))))
    array = array.slice(before, size)
    if draw(st.booleans()):
        cut = draw(st.integers(0, size))
        array = pa.chunked_array([array.slice(0, cut), array.slice(cut)], array.type)
    return array


def expected(rows: list[Any]) -> list[int]:
    return [key_group(key, MAX_GROUPS) for key in rows]


@given(columns())
def test_columns_and_rows_have_the_same_groups(column: Any) -> None:
    cache = KeyGroups(MAX_GROUPS)
    for _ in range(2):
        groups = groups_of_arrow(column, cache)
        assert groups.dtype == np.uint16
        assert groups.tolist() == expected(column.to_pylist())


def repeated(column: Any, times: int) -> Any:
    """A column in which each value occurs that often, so that most tuples do."""
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([repeated(chunk, times) for chunk in column.chunks], column.type)
    if isinstance(column, pa.DictionaryArray):  # Arrow would want to unify the dictionaries, and cannot with nulls
        return pa.DictionaryArray.from_arrays(repeated(column.indices, times), column.dictionary)
    return pa.concat_arrays([column] * times)


@given(st.integers(0, 6).flatmap(lambda n: st.lists(columns(n), min_size=1, max_size=3)), st.sampled_from((1, 2, 20)))
def test_composite_keys_are_tuples(parts: list[Any], times: int) -> None:
    parts = [repeated(part, times) for part in parts]
    rows = list(zip(*(part.to_pylist() for part in parts), strict=True))
    assert groups_of_arrow(parts, KeyGroups(MAX_GROUPS)).tolist() == expected(rows)


def test_many_distinct_values_in_many_columns() -> None:
    """With 2**12 values a column (the null has a place too) seven columns need 84 bits; 64 would forget the first."""
    same = list(range(2**12 - 1)) * 3  # each tuple more than once, or they would be taken record by record
    parts = [pa.array([*same, 5])] + [pa.array([*same, 7]) for _ in range(6)]
    rows = list(zip(*(part.to_pylist() for part in parts), strict=True))
    assert groups_of_arrow(parts, KeyGroups(MAX_GROUPS)).tolist() == expected(rows)


def test_only_distinct_keys_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[Any] = []
    real = module.canonical_bytes
    monkeypatch.setattr(module, "canonical_bytes", lambda key: (requested.append(key), real(key))[1])
    groups_of_arrow(pa.array(["a", "b", "a", "b", "a"]), KeyGroups(128))
    assert sorted(k for k in requested if k is not None) == ["a", "b"]


def test_kinds_of_columns_that_arrow_cannot_encode() -> None:
    uuids = pa.array([UUID(int=i).bytes for i in (1, 2, 1)], pa.uuid()) if hasattr(pa, "uuid") else pa.array([1, 2, 1])
    assert groups_of_arrow(uuids, KeyGroups(MAX_GROUPS)).tolist() == expected(uuids.to_pylist())
    if hasattr(pa, "decimal32"):
        decimals = pa.array([Decimal("1.5"), None], pa.decimal32(5, 2))
        assert groups_of_arrow(decimals, KeyGroups(MAX_GROUPS)).tolist() == expected([Decimal("1.5"), None])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([1], pa.time64("us")),
        pa.array([1], pa.timestamp("ns")),
        pa.array([1], pa.duration("ns")),
        pa.array([2**62], pa.timestamp("s")),
    ],
    ids=lambda column: str(column.type),
)
def test_unsupported_columns(column: Any) -> None:
    for array in (column, [column], pa.chunked_array([column])):
        with pytest.raises(UnsupportedKey, match="cannot be a key"):
            groups_of_arrow(array, KeyGroups(128))


def test_unused_dictionary_values_of_views() -> None:
    array = pa.array(["a", "b", "c"], pa.string_view()).dictionary_encode().slice(1, 1)
    assert groups_of_arrow(array, KeyGroups(MAX_GROUPS)).tolist() == expected(["b"])


def test_unused_dictionary_values_do_not_matter() -> None:
    dictionary = pa.array([1, 1000, 2000], pa.timestamp("ns"))
    array = pa.DictionaryArray.from_arrays(pa.array([2, None, 1, 2], pa.int8()), dictionary)
    micro = [datetime(1970, 1, 1, microsecond=us) for us in (1, 2)]
    groups = groups_of_arrow(array, KeyGroups(MAX_GROUPS)).tolist()
    assert groups == expected([micro[1], None, micro[0], micro[1]])


def test_composite_key_needs_columns_of_one_length() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        groups_of_arrow([], KeyGroups(128))
    with pytest.raises(ValueError, match="differ in length"):
        groups_of_arrow([pa.array([1]), pa.array([1, 2])], KeyGroups(128))


# --- keys of state --------------------------------------------------------------------------------------------------


@given(keys)
def test_plain_key_finds_itself_again(key: Any) -> None:
    plain = plain_key(key)
    assert canonical_bytes(plain) == canonical_bytes(key)
    assert type(plain) is type(key) or plain is NAN or isinstance(key, np.generic)
    assert plain_key(plain) is plain
    state = {plain: 1}
    assert state.get(plain_key(pickle.loads(pickle.dumps(key)))) == 1


def test_plain_key_is_the_same_object_without_nan() -> None:
    for key in (
        1,
        "a",
        1.5,
        None,
        Decimal(1),
        (1, 2.5),
        Point(1, (2, "a")),
        ((), ((NAN,),)),
        [math.nan],
    ):
        assert plain_key(key) is key


def test_plain_key_is_the_python_value_that_a_scalar_of_numpy_stands_for() -> None:
    """numpy rounds when it compares, and its integers cannot be compared with a Decimal at all."""
    for key, plain in ((np.int64(-(2**61) - 1), -(2**61) - 1), (np.float32(1), 1.0), (np.True_, True)):
        assert (plain_key(key), type(plain_key(key))) == (plain, type(plain))
        assert plain_key((key, "a")) == (plain, "a")
        assert type(plain_key((key, "a"))[0]) is type(plain)


def test_plain_key_replaces_every_nan() -> None:
    for nan in (float("nan"), np.float64("nan"), NAN32, Decimal("nan"), Decimal("snan")):
        assert plain_key(nan) is NAN
        made = plain_key(Point(1, (nan, 2)))
        assert type(made) is Point
        assert made == Point(1, (NAN, 2))
        assert made.y[0] is NAN


class Strict(namedtuple("Strict", "a b")):
    """A named tuple with a constructor and attributes of its own, as rows of Spark have."""

    def __new__(cls, *, both: Any) -> Strict:
        return tuple.__new__(cls, (both, both))


def test_plain_key_keeps_classes_and_their_attributes() -> None:
    key = Strict(both=float("nan"))
    key.names = ["a", "b"]
    plain = plain_key(key)
    assert type(plain) is Strict
    assert plain.names == ["a", "b"]
    assert plain.a is NAN
    assert plain.b is NAN
    c_struct = time.struct_time([float("nan")] + [1.0] * 8)
    assert plain_key(c_struct)[0] is NAN
