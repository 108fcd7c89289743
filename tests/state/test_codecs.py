"""Values as bytes: which codec a declaration gets, what comes back, and what a type may become."""

from __future__ import annotations

from dataclasses import make_dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.errors import CheckpointCorrupt, ConfigError, IncompatibleState, UserCodeError
from tailrace.state.codecs import Entries, codec_for, immutable, pack, unpack
from tailrace.state.handles import State
from tailrace.state.memory_backend import MemoryBackend
from tailrace.testing.backends import Files


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Finer(Point):
    z: int = 0


class Holder:
    current_key: Any = "k"


def kept(old: State, new: State, value: Any, *, write: str = "value") -> Any:
    """A value written under one declaration and read under another."""
    files, one, other = Files(), MemoryBackend(uid="u", operator="op"), MemoryBackend(uid="u", operator="op")
    old.name = new.name = "held"
    first = old.bind(one, Holder())
    if write == "value":
        first.value = value  # type: ignore[attr-defined]
    else:
        getattr(first, write)(value)
    files.take(one, 1)
    second: Any = new.bind(other, Holder())
    files.restore(other, 1, True)
    return second.value


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (tr.ValueState(int), "pickle"),
        (tr.ValueState(Point), "msgspec"),
        (tr.ValueState(Point, encoding="pickle"), "pickle"),
        (tr.ListState(Point), "msgspec"),
        (tr.ListState(int, encoding="msgspec"), "msgspec"),
        (tr.MapState(str, Point), "msgspec"),
        (tr.MapState(str, int), "pickle"),
        (tr.ReducingState(Point, reduce=max), "msgspec"),
    ],
)
def test_the_codec_follows_from_the_declaration(declared: State, name: str) -> None:
    declared.name = "held"
    backend = MemoryBackend()
    declared.bind(backend, Holder())
    assert backend.tables_info()[0].encoding == name


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (tr.ValueState(Point), Point(1, 2)),
        (tr.ValueState(Point), None),
        (tr.ValueState(dict), {"a": [1, {2}]}),
        (tr.ListState(Point), [Point(1), Point(2)]),
        (tr.MapState(str, Point), {"a": Point(1)}),
        (tr.MapState(int, object, encoding="msgspec"), {1: [1.5, "x", None]}),
        (tr.ValueState(tuple[int, str], encoding="msgspec"), (1, "x")),
    ],
)
def test_what_is_written_comes_back(declared: Any, value: Any) -> None:
    assert kept(declared, declared, value) == value


def test_a_new_field_with_a_default_is_no_obstacle() -> None:
    before = msgspec.defstruct("Item", [("n", int)])
    after = msgspec.defstruct("Item", [("n", int), ("note", str, "none")])
    assert kept(tr.ValueState(before), tr.ValueState(after), before(3)) == after(3, "none")
    assert kept(tr.ListState(before), tr.ListState(after), [before(3)]) == [after(3, "none")]


def test_what_cannot_be_read_any_more_names_the_state() -> None:
    before = msgspec.defstruct("Item", [("n", int)])
    after = msgspec.defstruct("Item", [("n", str)])
    with pytest.raises(IncompatibleState, match=r"'op' \(uid 'u'\).*state 'held'.*Item.*Expected `str`, got `int`"):
        kept(tr.ValueState(before), tr.ValueState(after), before(3))


def test_a_class_that_is_gone_names_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_dataclass("Gone", ["n"], namespace={"__module__": __name__})
    monkeypatch.setitem(globals(), "Gone", made)
    files, one, other = Files(), MemoryBackend(), MemoryBackend(uid="u", operator="op")
    one.table("held")["k"] = made(1)
    files.take(one, 1)
    monkeypatch.delitem(globals(), "Gone")
    other.table("held")
    with pytest.raises(IncompatibleState, match=r"state 'held'.*Gone"):
        files.restore(other, 1, True)


def test_a_pickled_state_may_be_declared_for_msgspec_later() -> None:
    assert kept(tr.ValueState(Point, encoding="pickle"), tr.ValueState(Point), Point(1)) == Point(1)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (tr.ValueState(Point), Finer(1)),
        (tr.ValueState(Point), {"x": 1}),
        (tr.ListState(Point), [Point(1), (1, 2)]),
        (tr.MapState(str, Point), {"a": Finer(1)}),
    ],
)
def test_what_is_not_as_declared_is_reported_before_it_would_be_lost(declared: Any, value: Any) -> None:
    with pytest.raises(UserCodeError, match=r"state 'held' for key 'k' cannot be saved.*declared as Point and holds"):
        kept(declared, declared, value)


def test_a_type_that_msgspec_cannot_take_is_reported_at_once() -> None:
    with pytest.raises(ConfigError, match="encoding must be"):
        tr.ValueState(int, encoding="xml")
    with pytest.raises(ConfigError, match="msgspec cannot take its type"):
        codec_for("value", dict[int, str] | dict[str, int], "msgspec", "held")


@pytest.mark.parametrize(
    "value", [None, 1, 1.5, "x", b"x", (1, ("x", None)), Decimal(1), date(2026, 1, 1), frozenset((1,)), ()]
)
def test_values_that_cannot_change(value: Any) -> None:
    assert immutable(value)


@pytest.mark.parametrize("value", [[], {}, set(), (1, []), ((1, ([],)),), Point(1), bytearray()])
def test_values_that_may_change(value: Any) -> None:
    assert not immutable(value)


def test_a_block_comes_back() -> None:
    entries = Entries(["a", None], [1, (2, "x")], ["b"], [b"\x01\x02"], [(1, 2)])
    found = unpack(pack(entries))
    assert found._replace(singles=[bytes(one) for one in found.singles]) == entries


@pytest.mark.parametrize("data", [b"", b"\x01\0\0", b"\x07" + bytes(20)])
def test_a_block_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointCorrupt):
        unpack(data)
