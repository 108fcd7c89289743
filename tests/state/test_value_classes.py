"""State of classes that changed: read by names or refused, wherever the objects are, with both backends; and types that are
declared anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace, new_class
from typing import Annotated, Any, Generic, NamedTuple, NewType, TypedDict, TypeVar
from uuid import uuid4

import msgspec
import pytest

import tailrace as tr
from tailrace.elements.valueclasses import Shapes
from tailrace.errors import IncompatibleState
from tailrace.state.backend import MetaPart
from tailrace.state.declarations import goes_on, type_name
from tailrace.state.memory_backend import MemoryBackend
from tailrace.state.operator_state import OperatorStates
from tailrace.storage.disk_backend import DiskBackend
from tailrace.testing.backends import Files

MODULE = "tailrace_stateful"


@pytest.fixture
def define() -> Iterator[Callable[..., Any]]:
    """Defines the named tuple `C` of a version: the values of another order would be taken without an error."""
    module: Any = ModuleType(MODULE)
    sys.modules[MODULE] = module

    def made(*fields: str) -> Any:
        module.C = NamedTuple("C", [(one, str) for one in fields])  # type: ignore[misc]
        module.C.__module__ = MODULE
        return module.C

    yield made
    del sys.modules[MODULE]


@pytest.fixture(params=["memory", "disk"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(**options: Any) -> Any:
        if request.param == "memory":
            return MemoryBackend(uid="u", operator="op", **options)
        made.append(DiskBackend(tmp_path / str(len(made)), uid="u", operator="op", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


DECLARED = {
    "value": (tr.ValueState(), lambda one: {"nested": [one]}, lambda found: found["nested"][0]),
    "list": (tr.ListState(), lambda one: [1, (one,)], lambda found: found[1][0]),
    "map": (tr.MapState(str, object), lambda one: {"k": [one]}, lambda found: found["k"][0]),
    "reducing": (tr.ReducingState(object, reduce=max), lambda one: one, lambda found: found),
    "aggregate": (None, lambda one: ("key", {"accumulator": one}), lambda found: found[1]["accumulator"]),
}


def table_of(backend: Any, state: Any) -> Any:
    if state is None:
        return backend.table("aggregate", kind="aggregate")
    return backend.table("held", kind=state.kind, type=state.type, encoding=state.encoding)


@pytest.mark.parametrize("place", DECLARED)
def test_objects_come_back_by_the_names_of_their_fields(place: str, define: Any, backend: Any) -> None:
    state, into, out_of = DECLARED[place]
    one = backend()
    files, table = Files(), table_of(one, state)
    table["k"] = into(define("paid", "owed")("1000", "1"))
    files.take(one, 1)
    assert [[shape.fields for shape in info.classes] for info in one.tables_info()] == [[("paid", "owed")]]
    new = define("owed", "paid")
    two = backend()
    back = table_of(two, state)
    files.restore(two, 1, False)
    assert out_of(back["k"]) == new(owed="1", paid="1000")
    files.take(two, 2)
    if place == "value":  # a state on disk writes again what it has not decoded
        define("paid", "owed")
        three = backend()
        last = table_of(three, state)
        files.restore(three, 2, False)
        assert out_of(last["k"]) == ("1000", "1")


def test_a_class_of_which_nobody_can_tell_is_refused_or_left_behind(define: Any, backend: Any) -> None:
    one = backend()
    files = Files()
    table_of(one, DECLARED["value"][0])["k"] = [define("paid", "owed")("1000", "1")]
    files.take(one, 1)
    define("paid", "due")
    two = backend()
    table_of(two, DECLARED["value"][0])
    with pytest.raises(IncompatibleState, match=r"state 'held'.*had the fields \(paid, owed\).*\['u'\]"):
        files.restore(two, 1, False)
    three = backend(allow_dropped=True)
    table = table_of(three, DECLARED["value"][0])
    files.restore(three, 1, False)
    assert len(table) == 0


def test_what_a_later_checkpoint_refers_to_keeps_its_classes(define: Any, backend: Any) -> None:
    """A run that goes on from its own checkpoint does not encode again what is in its files."""
    one, two = backend(small=0), backend(small=0)
    files = Files()
    table_of(one, DECLARED["value"][0])["k"] = [define("paid", "owed")("1000", "1")]
    files.take(one, 1)
    table_of(two, DECLARED["value"][0])
    files.restore(two, 1, True)
    [info] = two.tables_info()
    assert [shape.fields for shape in info.classes] == [("paid", "owed")]


class _Where:
    name, uid, subtask, parallelism = "op", "u", 0, 1


def test_operator_state_is_guarded_as_well(define: Any) -> None:
    class Holding(tr.ProcessFunction):
        held = tr.OperatorState(dict)

    function: Any = Holding()
    states = OperatorStates(function, _Where())
    function.held.value = {"one": define("paid", "owed")("1000", "1")}
    [info] = states.tables() if states.snapshot() else []
    assert [shape.fields for shape in info.classes] == [("paid", "owed")]
    part = MetaPart(0, 1, False, states.snapshot())
    new = define("owed", "paid")
    again: Any = Holding()
    OperatorStates(again, _Where()).restore([part])
    assert again.held.value == {"one": new(owed="1", paid="1000")}
    define("owed", "due")
    with pytest.raises(IncompatibleState, match=r"operator 'op' \(uid 'u'\).*'held'.*another name"):
        OperatorStates(Holding(), _Where()).restore([part])
    left: Any = Holding()
    OperatorStates(left, _Where(), allow_dropped=True).restore([part])
    assert not left.held.exists()


# What msgspec encodes.


def shapes_of(type_: Any, kind: str = "value") -> Shapes:
    backend = MemoryBackend()
    backend.table("held", kind=kind, type=type_, encoding="msgspec")
    return backend.tables_info()[0].classes


def restored(before: Any, after: Any, value: Any) -> Any:
    files, one, two = Files(), MemoryBackend(), MemoryBackend(uid="u", operator="op")
    one.table("held", type=before, encoding="msgspec")["k"] = value
    files.take(one, 1)
    table = two.table("held", type=after, encoding="msgspec")
    files.restore(two, 1, False)
    return table["k"]


def test_arrays_of_msgspec_take_new_fields_at_their_end_only() -> None:
    def item(*fields: Any) -> Any:
        return msgspec.defstruct("Item", fields, array_like=True)

    before = item("a", "b")
    after = item("a", "b", ("c", int, 7))
    assert restored(before, after, before(1, 2)) == after(1, 2, 7)
    for other in (item("b", "a"), item("a", ("x", int, 9), ("b", int, 0)), item("b"), item("a")):
        with pytest.raises(IncompatibleState, match=r"class .*Item had the fields \(a, b\) there, in this order"):
            restored(before, other, before(1, 2))


def test_classes_are_found_wherever_a_declared_type_has_them() -> None:
    inner = msgspec.defstruct("Inner", ["a", "b"], array_like=True)
    outer = msgspec.defstruct("Outer", [("of", dict[str, list[inner | None]])])  # type: ignore[valid-type]
    assert [shape.fields for shape in shapes_of(outer)] == [("of",), ("a", "b")]
    assert [shape.form for shape in shapes_of((str, inner), "map")] == ["array"]
    swapped = msgspec.defstruct("Inner", ["b", "a"], array_like=True)
    other = msgspec.defstruct("Outer", [("of", dict[str, list[swapped | None]])])  # type: ignore[valid-type]
    with pytest.raises(IncompatibleState, match="Inner had the fields"):
        restored(outer, other, outer({"k": [inner(1, 2)]}))


def test_a_class_that_msgspec_encodes_may_have_another_name() -> None:
    """The fields of the class are known, and the declared type names the class in its place."""
    before, after = msgspec.defstruct("Item", ["a", "b"]), msgspec.defstruct("Thing", ["a", "b"])
    assert restored(before, after, before(1, 2)) == after(1, 2)
    arrays = [msgspec.defstruct(*one, array_like=True) for one in (("Item", ["a", "b"]), ("Thing", ["b", "a"]))]
    with pytest.raises(IncompatibleState, match=r"in this order, and has \(b, a\) now"):
        restored(arrays[0], arrays[1], arrays[0](1, 2))


def test_maps_of_msgspec_refuse_what_may_be_another_name() -> None:
    before, after = msgspec.defstruct("Item", ["a", "b"]), msgspec.defstruct("Item", ["a", ("c", int, 0)])
    with pytest.raises(IncompatibleState, match=r"'b' is gone and 'c' is new"):
        restored(before, after, before(1, 2))
    strict = msgspec.defstruct("Item", ["a"], forbid_unknown_fields=True)
    with pytest.raises(IncompatibleState, match=r"forbids others than \(a\)"):
        restored(before, strict, before(1, 2))


# Declared types.


@pytest.mark.parametrize("exact", [False, True])
def test_a_default_is_that_of_the_version_that_had_it_first(backend: Any, exact: bool) -> None:
    """A default stays where another worker may go on from a checkpoint, too, and values go on as they were encoded."""
    files = Files()
    versions = [
        msgspec.defstruct("Item", ["a", *more], array_like=True) for more in ([], [("b", int, 7)], [("b", int, 9)])
    ]
    for number, version in enumerate(versions):
        one = backend()
        one.on_inexact = (lambda: None) if exact else None
        table = one.table("held", type=version, encoding="msgspec")
        if number:
            files.restore(one, number, False)
        else:
            table["k"] = version(1)
        files.take(one, number + 1)
    assert table["k"] == versions[2](1, 7)


def _item(default: int = 5, **options: Any) -> Any:
    return msgspec.defstruct("Item", [("a", int, 1), ("b", int, default)], **options)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"tag": 1}, {"tag": 2}),
        ({"tag": 1, "array_like": True}, {"array_like": True}),
        ({"array_like": True}, {"tag": 1, "array_like": True}),
        ({"tag": 1}, {"tag": 1, "tag_field": "b2"}),
    ],
)
def test_a_struct_keeps_its_tag(first: dict[str, Any], second: dict[str, Any]) -> None:
    before, after, again = _item(**first), _item(**second), _item(**first)
    with pytest.raises(IncompatibleState, match="by which msgspec knows its objects"):
        restored(before, after, before(1, 5))
    assert restored(before, again, before(1, 7)) == again(1, 7)


def test_a_default_that_was_left_out_stays_what_it_was() -> None:
    before = _item(omit_defaults=True)
    for after in (_item(6, omit_defaults=True), _item(6)):
        with pytest.raises(IncompatibleState, match=r"left out 'b' where it had its default there \(omit_defaults\)"):
            restored(before, after, before(2, 5))
    after = _item()
    assert restored(before, after, before(2, 5)) == after(2, 5)
    made = [
        msgspec.defstruct("Item", [("a", str, msgspec.field(default_factory=lambda: uuid4().hex))], omit_defaults=True)
        for _ in range(2)
    ]
    assert restored(*made, made[0]("x")) == made[1]("x"), "what a factory of yours makes is never left out"


def _annotated(fields: tuple[str, ...], type_: Any) -> dict[str, Any]:
    return {"__annotations__": dict.fromkeys(fields, type_), "__module__": __name__, "__qualname__": "Item"}


def test_fields_of_a_typed_dict_are_known_by_their_names() -> None:
    def item(*fields: str) -> Any:
        return new_class("Item", (TypedDict,), {"total": False}, lambda names: names.update(_annotated(fields, int)))

    before, other, later = item("a"), item("b"), item("a", "b")
    with pytest.raises(IncompatibleState, match="'a' is gone and 'b' is new"):
        restored(list[before], list[other], [{"a": 1}])
    assert restored(list[before], list[later], [{"a": 1}]) == [{"a": 1}]


_ITEM = TypeVar("_ITEM")


def _generic(*fields: str) -> Any:
    bases = (msgspec.Struct, Generic[_ITEM])
    return new_class("Item", bases, {"array_like": True}, lambda names: names.update(_annotated(fields, _ITEM)))


@pytest.mark.parametrize(
    "declared",
    [
        lambda item: item[int],
        lambda item: Annotated[NewType("N", item[int]), 1],
        lambda item: dict[str, item[int] | None],
        lambda item: list[NewType("N", item[int])],  # type: ignore[misc]
    ],
)
def test_classes_are_found_behind_what_stands_for_them(declared: Any) -> None:
    assert [shape.fields for shape in shapes_of(declared(_generic("a", "b")))] == [("a", "b")]


def test_two_classes_of_one_name_are_reported_from_each_other() -> None:
    def pair(*fields: str) -> Any:
        one, two = (
            msgspec.defstruct("Item", names, array_like=True, module=m) for m, names in (("x", fields), ("y", "c"))
        )
        return tuple[one, two], (one(1, 2), two(3))  # type: ignore[valid-type]

    (before, value), (after, same), (swapped, _) = pair("a", "b"), pair("a", "b"), pair("b", "a")
    back = restored(before, after, value)
    assert back == same
    with pytest.raises(IncompatibleState, match=r"x.Item had the fields \(a, b\)"):
        restored(before, swapped, value)


def test_a_declared_type_goes_on_where_it_takes_each_value() -> None:
    class Profile: ...

    yes = [
        (int, int), (int, object), (object, dict), (int, int | None), (bool, int), (int, float), (list[int], list),
        (list, list[int]), (Profile, Profile | None), (dict[str, int], dict[str, float]), (int | None, None | int | str),
        ((str, int), (str, float)), ((object, object), (str, int)), (object, (str, int)),
    ]  # fmt: skip
    no = [
        (int, dict), (int, str), (int | None, int), (float, int), (list[int], list[str]), (list, tuple), (Profile, dict),
        ((str, int), (int, int)), (dict[str, int], dict[str, str]),
    ]  # fmt: skip
    assert [pair for pair in yes if not goes_on(type_name(pair[0]), type_name(pair[1]))] == []
    assert [pair for pair in no if goes_on(type_name(pair[0]), type_name(pair[1]))] == []


def test_state_of_another_declared_type_is_refused_or_left_behind(backend: Any) -> None:
    one, two, three = backend(), backend(), backend(allow_dropped=True)
    files = Files()
    one.table("count", type=int)["k"] = 3
    files.take(one, 1)
    two.table("count", type=dict)
    with pytest.raises(IncompatibleState, match=r"'count' was declared as int and is declared as dict now"):
        files.restore(two, 1, False)
    table = three.table("count", type=dict)
    files.restore(three, 1, False)
    assert len(table) == 0


def test_a_namespace_is_a_value_like_any_other(backend: Any) -> None:
    """A class of Python itself is not looked at."""
    one, two = backend(), backend()
    files = Files()
    one.table("held")["k"] = SimpleNamespace(a=1)
    files.take(one, 1)
    table = two.table("held")
    files.restore(two, 1, False)
    assert table["k"] == SimpleNamespace(a=1) and one.tables_info()[0].classes == ()
