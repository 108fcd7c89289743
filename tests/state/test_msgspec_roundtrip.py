"""A value that msgspec would bring back as another one is refused when it is written, with the place, not at a restore."""

from __future__ import annotations

import enum
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.elements.cuts import CutRequest
from tailrace.errors import UserCodeError
from tailrace.state.codecs import codec_for
from tailrace.state.memory_backend import MemoryBackend
from tailrace.state.msgspec_roundtrip import same


class Grade(enum.IntEnum):
    GOOD = 1


class Named(NamedTuple):
    x: int


@dataclass
class Pair:
    a: int
    b: Any


class Held(msgspec.Struct):
    n: int
    more: Any = None
    price: float = 0.0


NOON = datetime(2026, 1, 1, 12)
PLUS_TWO = timezone(timedelta(hours=2))


def came_back(declared: Any, value: Any, kind: str = "value") -> Any:
    codec = codec_for(kind, declared, "msgspec", "s")
    return codec.decode(codec.encode(value))


@pytest.mark.parametrize(
    ("declared", "value", "where"),
    [
        (object, (1, 2), "it is the tuple"),
        (list, [(1, 2)], r"at \[0\] it holds the tuple"),
        (dict, {"a": {1, 2}}, r"at \['a'\] it holds the set"),
        (object, Decimal("1.10"), "it is the Decimal"),
        (object, NOON, "it is the datetime"),
        (dict, {"u": UUID(int=5)}, r"at \['u'\] it holds the UUID"),
        (dict, {date(2026, 1, 1): 1}, "at key it holds the date"),
        (str, Decimal("1"), "it is the Decimal"),
        (Decimal, "1", "it is the str"),
        (str, NOON, "it is the datetime"),
        (int, Grade.GOOD, "it is the Grade"),
        (list[int], (1, 2), "it is the tuple"),
        (list[int], [1, Grade.GOOD], r"at \[1\] it holds the Grade"),
        (tuple, Named(1), "it is the Named"),
        (dict, Counter("aab"), "it is the Counter"),
        (dict[str, int], OrderedDict(a=1), "it is the OrderedDict"),
        (bytes, bytearray(b"x"), "it is the bytearray"),
        (set[int], frozenset((1,)), "it is the frozenset"),
        (set, {Grade.GOOD}, "it is the set"),
        (float, 2**60 + 1, "it is the int"),
        (datetime, datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")), "it is the datetime"),
        (datetime, NOON.replace(tzinfo=PLUS_TWO), "it is the datetime"),
        (Held, Held(1, (1, 2)), r"at \.more it holds the tuple"),
        (list[Held], [Held(1, [1]), Held(2, [{1}])], r"at \[1\]\.more\[0\] it holds the set"),
        (Pair, Pair(1, {"x": (1,)}), r"at \.b\['x'\] it holds the tuple"),
        (list, [[1, 2], [(), 2]], r"at \[1\]\[0\] it holds the tuple"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(declared: Any, value: Any, where: str) -> None:
    """All of these were taken, and came back as lists, texts, integers and plain dictionaries, without an error."""
    with pytest.raises(TypeError, match=where + r'.*would come back from msgspec as.*or encoding="pickle"'):
        came_back(declared, value)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (object, [1, 2.5, "x", b"x", None, True, {"a": [1]}, {1: 2, None: 3, (1, 2): 4}]),
        (object, NOON.replace(tzinfo=UTC)),
        (tuple[int, ...], (1, 2)),
        (list[tuple[int, str]], [(1, "a"), (2, "b")]),
        (dict[str, set[int]], {"a": {1, 2}, "b": set()}),
        (set[tuple[int, int]], {(1, 2)}),
        (frozenset[str], frozenset("ab")),
        (Decimal, Decimal("1.10")),
        (datetime, NOON),
        (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
        (date, date(2026, 1, 1)),
        (time, time(1, 2, tzinfo=PLUS_TWO)),
        (timedelta, timedelta(microseconds=1)),
        (UUID, UUID(int=5)),
        (bytearray, bytearray(b"x")),
        (Grade, Grade.GOOD),
        (Named, Named(1)),
        (float, -0.0),
        (list[float], [1.5, math.inf]),
        (Held, Held(1, [{"a": 1}], 2.5)),
        (list[Held], [Held(1), Held(2, [1], 3.0)]),
        (Pair, Pair(1, None)),
        (int | None, None),
        (int | str | list[int], [1]),
    ],
)
def test_what_comes_back_as_it_was_is_taken(declared: Any, value: Any) -> None:
    back = came_back(declared, value)
    assert back == value and type(back) is type(value)


def test_not_a_number_comes_back_as_one() -> None:
    assert math.isnan(came_back(float, math.nan))
    assert math.isnan(came_back(list[float], [1.0, math.nan])[1])
    assert math.isnan(came_back(Held, Held(1, None, math.nan)).price)


def test_an_int_may_be_held_where_a_float_is_declared() -> None:
    assert came_back(float, 3) == 3.0
    assert came_back(Held, Held(1, None, 3)).price == 3.0
    assert came_back(float, [1, 2.5], "list") == [1.0, 2.5]


_plain = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=2), st.binary(max_size=2)
)
_values = st.recursive(
    _plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(
            st.one_of(st.integers(0, 3), st.text(max_size=1), st.tuples(st.integers(0, 2))), inner, max_size=3
        ),
        st.builds(Held, st.integers(0, 2), inner, st.floats(0, 2)),
        st.frozensets(st.integers(0, 3), max_size=2),
    ),
    max_leaves=12,
)


def exact(value: Any) -> Any:
    """A text that shows types and values."""
    if isinstance(value, list | tuple):
        return type(value).__name__, [exact(one) for one in value]
    if isinstance(value, dict):
        return "dict", [(exact(key), exact(one)) for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(map(exact, value))
    if isinstance(value, Held):
        return "Held", [exact(value.n), exact(value.more), exact(value.price)]
    return type(value).__name__, repr(value)


@settings(deadline=None, max_examples=200)
@given(_values)
def test_whatever_is_taken_comes_back_the_same(value: Any) -> None:
    codec = codec_for("value", object, "msgspec", "s")
    plain = codec.decode(msgspec.msgpack.encode(value))
    assert same(value, plain) == (exact(value) == exact(plain))
    try:
        data = codec.encode(value)
    except TypeError:
        return
    assert exact(codec.decode(data)) == exact(value)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_error_names_operator_subtask_state_and_key(where: str, tmp_path: Path) -> None:
    """On disk it comes within the run, as soon as the entry leaves memory: there a value changed without any checkpoint."""
    backend: Any
    if where == "memory":
        backend = MemoryBackend(uid="u", operator="op", subtask=3)
    else:
        pytest.importorskip("rocksdict")
        from tailrace.storage.disk_backend import DiskBackend

        backend = DiskBackend(tmp_path / "state", uid="u", operator="op", subtask=3, top_entries=1)
    table = backend.table("seen", type=dict, encoding="msgspec")
    with pytest.raises(UserCodeError) as caught:
        for key in ("k", "l"):
            table[key] = {"last": (1, 1)}
        backend.relieve()
        backend.freeze(CutRequest(1))
        backend.encode(100)
    text = str(caught.value)
    assert "state 'seen' for key 'k' cannot be saved" in text and "'op'" in text
    assert "at ['last'] it holds the tuple (1, 1), which would come back from msgspec as the list [1, 1]" in text
    assert caught.value.operator == "op" and caught.value.subtask == 3
    backend.close()


def test_state_of_an_operator_is_refused_as_well() -> None:
    state = tr.OperatorState(list, default=[], encoding="msgspec").bind()
    state.value = [{1, 2}]
    with pytest.raises(TypeError, match=r"at \[0\] it holds the set"):
        state.encode()
