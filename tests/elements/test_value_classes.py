"""Objects of one version of a class come back as those of the next: by the names of their fields and members, or not at
all."""

from __future__ import annotations

import pickle
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from tailrace.elements.valueclasses import ChangedClass, class_named, misfits, pickled_shape
from tailrace.elements.valuepickling import ClassNotes, dump_described, load_described, loader, shapes_in

HEAD = """
import attr, msgspec
from datetime import timedelta
from decimal import Decimal
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum
from typing import NamedTuple
"""
MODULE = "tailrace_versions"


@pytest.fixture
def version() -> Iterator[Any]:
    """Defines a class `C` in a module, in the place of the one before."""
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module

    def define(text: str) -> Any:
        for name in [name for name in vars(module) if not name.startswith("__")]:
            delattr(module, name)
        exec(HEAD + text, vars(module))
        return getattr(module, "C", None)

    yield define
    del sys.modules[MODULE]


KINDS = {
    "dataclass": "@dataclass\nclass C:\n",
    "slots": "@dataclass(slots=True)\nclass C:\n",
    "frozen": "@dataclass(frozen=True)\nclass C:\n",
    "frozen slots": "@dataclass(frozen=True, slots=True)\nclass C:\n",
    "named tuple": "class C(NamedTuple):\n",
    "struct": "import msgspec\nclass C(msgspec.Struct):\n",
    "array-like struct": "class C(msgspec.Struct, array_like=True):\n",
    "frozen struct": "class C(msgspec.Struct, frozen=True):\n",
    "struct with keywords": "class C(msgspec.Struct, kw_only=True):\n",
    "attrs": "@attr.s(auto_attribs=True)\nclass C:\n",
    "attrs with slots": "@attr.s(auto_attribs=True, slots=True)\nclass C:\n",
    "inherited": (
        "@dataclass(frozen=True, slots=True)\nclass B:\n    first: int = 1\n"
        "@dataclass(frozen=True, slots=True)\nclass C(B):\n"
    ),
}


def fields(*names: str, defaults: bool = True) -> str:
    return "".join(f"    {name}: str{' = ' + repr('new ' + name) if defaults else ''}\n" for name in names)


def kept(value: Any) -> tuple[bytes, Any]:
    notes = ClassNotes()
    data = notes.dumps(value)
    assert data == pickle.dumps(value, 5), "an older tailrace reads it as well"
    return data, notes.listed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("now", [("b", "a"), ("a",), ("a", "x", "b"), ("x", "b", "a"), ("b", "x", "a", "y")])
def test_each_value_is_in_the_field_that_it_was_given_to(version: Any, kind: str, now: tuple[str, ...]) -> None:
    old = version(KINDS[kind] + fields("a", "b"))
    one = old(a="A", b="B")
    data, shapes = kept({"nested": [one, (one, {"deep": old(a="1", b="2")})]})
    new = version(KINDS[kind] + fields(*now))
    found = loader(shapes)(data)["nested"]
    assert found[0] is found[1][0], "one object is still one"
    for back, was in ((found[0], {"a": "A", "b": "B"}), (found[1][1]["deep"], {"a": "1", "b": "2"})):
        assert type(back) is new
        assert {name: getattr(back, name) for name in now} == {name: was.get(name, "new " + name) for name in now}
        assert pickle.loads(pickle.dumps(back, 5)) == back


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_mapping_by_name_is_refused(version: Any, kind: str) -> None:
    old = version(KINDS[kind] + fields("a", "b"))
    data, shapes = kept(old(a="A", b="B"))
    version(KINDS[kind] + fields("a", "c"))
    with pytest.raises(ChangedClass, match=r"'b' is gone and 'c' is new, which may be one field under another name"):
        loader(shapes)(data)
    if kind != "inherited":  # whose base has a default, so that Python wants more
        version(KINDS[kind] + fields("a", "b", "c", defaults=False))
        with pytest.raises(ChangedClass, match=r"had no field 'c' there, and it has no default"):
            loader(shapes)(data)
    version("C = 3")
    with pytest.raises(ChangedClass, match="that name is a int now"):
        loader(shapes)
    version("")
    assert "class tailrace_versions.C is gone" in misfits(shapes)[0]


def test_a_class_of_another_script_is_told_to_be_one() -> None:
    """State outlives scripts, and the module of each is `__main__`."""
    with pytest.raises(ChangedClass, match=r"class __main__\.Visit is gone.*it is a class of the script that ran then"):
        class_named("__main__:Visit")


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_has_not_changed_is_unpickled_as_ever(version: Any, kind: str) -> None:
    old = version(KINDS[kind] + fields("a", "b"))
    shapes = kept(old(a="A", b="B"))[1]
    assert loader(shapes) is pickle.loads
    version(KINDS[kind] + fields("a", "b"))
    assert loader(shapes) is pickle.loads, "another class of the same shape"
    assert misfits(shapes) == []


def test_a_default_may_come_from_a_factory(version: Any) -> None:
    """Pickle leaves an object without the attribute, which raises where somebody reads it much later."""
    for kind in ("dataclass", "slots", "frozen slots"):
        old = version(KINDS[kind] + fields("a"))
        data, shapes = kept([old(a="A"), old(a="A")])
        version(KINDS[kind] + fields("a") + "    tags: list = field(default_factory=list)\n")
        one, other = loader(shapes)(data)
        assert one.tags == [] == other.tags and one.tags is not other.tags


def test_fields_may_go_into_slots_and_out_of_them(version: Any) -> None:
    forms = ["dataclass", "slots", "frozen slots"]
    for before in forms:
        for after in forms:
            data, shapes = kept(version(KINDS[before] + fields("a", "b"))(a="A", b="B"))
            new = version(KINDS[after] + fields("b", "a"))
            assert loader(shapes)(data) == new(a="A", b="B"), (before, after)


def test_another_form_is_refused(version: Any) -> None:
    shapes = kept(version(KINDS["dataclass"] + fields("a"))(a="A"))[1]
    version(KINDS["named tuple"] + fields("a"))
    with pytest.raises(ChangedClass, match="was a class with fields there, and is a named tuple now"):
        loader(shapes)


ENUM = "class C({base}):\n    PAID = 1\n    OWED = 2\n"


@pytest.mark.parametrize("base", ["Enum", "IntEnum", "str, Enum"])
def test_a_member_is_known_by_its_name(version: Any, base: str) -> None:
    text = ENUM.format(base=base) if base != "str, Enum" else "class C(str, Enum):\n    PAID = '1'\n    OWED = '2'\n"
    old = version(text)
    data, shapes = kept([old.PAID, {"by": old.OWED}])
    new = version(text.replace("PAID", "x").replace("OWED", "PAID").replace("x", "OWED"))
    assert loader(shapes)(data) == [new.PAID, {"by": new.OWED}]
    version(text + ("    LATER = '3'\n" if base == "str, Enum" else "    LATER = 3\n"))
    assert loader(shapes) is pickle.loads
    version(text.replace("OWED", "DUE"))
    with pytest.raises(
        ChangedClass, match=r"had a member OWED there, and has none now; members are known by their names"
    ):
        loader(shapes)


@pytest.mark.parametrize(
    ("paid", "owed"),
    [
        ("Decimal(1)", "Decimal(2)"),
        ("timedelta(1)", "timedelta(2)"),
        ("frozenset(['a', 'b'])", "frozenset(['c'])"),
        ("(1, None)", "(2, Decimal(1))"),
        ("V(1)", "V(2)"),
        ("{'a': [1]}", "{'a': [2]}"),
    ],
)
def test_members_with_values_of_any_type_are_known_by_their_names(version: Any, paid: str, owed: str) -> None:
    head = "@dataclass(frozen=True)\nclass V:\n    v: int\n"
    old = version(f"{head}class C(Enum):\n    PAID = {paid}\n    OWED = {owed}\n")
    data, shapes = kept([old.PAID, old.OWED])
    assert loader(shapes) is pickle.loads
    new = version(f"{head}class C(Enum):\n    PAID = {owed}\n    OWED = {paid}\n")
    assert loader(shapes)(data) == [new.PAID, new.OWED]


def test_a_member_with_several_names_is_known_by_its_own(version: Any) -> None:
    old = version("class C(Enum):\n    PAID = 1\n    SETTLED = 1\n    OWED = 3\n")
    data, shapes = kept([old.SETTLED, old.OWED])
    for text in ("PAID = 1\n    SETTLED = 2", "SETTLED = 1\n    PAID = 2", "PAID = 7", "LATER = 9\n    PAID = 9"):
        new = version(f"class C(Enum):\n    {text}\n    OWED = 3\n")
        assert loader(shapes)(data) == [new.PAID, new.OWED]


def test_an_enum_may_be_pickled_by_name(version: Any) -> None:
    text = "import enum\nclass C(Enum):\n    PAID = {}\n    OWED = {}\n    __reduce_ex__ = enum.pickle_by_enum_name\n"
    data, shapes = kept(version(text.format(1, 2)).PAID)
    new = version(text.format(2, 1))
    assert loader(shapes)(data) is new.PAID


def test_what_lists_its_subclasses_sees_no_other_class(version: Any) -> None:
    """A registry by `__init_subclass__`, or by a metaclass, has the classes of the program."""
    text = (
        "known = {{}}\nclass M(type):\n    def __init__(cls, *given): known['M', cls.__name__] = cls\n"
        "class B(metaclass=M):\n    def __init_subclass__(cls): known[cls.__name__] = cls\n"
        "@dataclass\nclass C(B):\n    a: int\n{}"
    )
    data, shapes = kept(version(text.format(""))(3))
    new = version(text.format("    b: int = 4\n"))
    back = loader(shapes)(data)
    assert type(back) is new and back == new(3, 4)
    known = sys.modules[MODULE].known
    assert known["C"] is known["M", "C"] is new


def test_flags_whose_values_changed_are_refused(version: Any) -> None:
    text = "class C(Flag):\n    R = 1\n    W = 2\n"
    old = version(text)
    data, shapes = kept(old.R | old.W)
    new = version(text + "    X = 4\n")
    assert loader(shapes)(data) == new.R | new.W
    version("class C(Flag):\n    W = 1\n    R = 2\n")
    with pytest.raises(ChangedClass, match="has another value for R now"):
        loader(shapes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_refers_to_a_class_refers_to_that_of_today(version: Any, kind: str) -> None:
    """The factory of a `defaultdict` made objects of what stands in for the class, which nothing could pickle."""
    old = version(KINDS[kind] + fields("a", "b"))
    held = defaultdict(old, {"x": old(a="A", b="B")})
    data, shapes = kept([held, partial(old, b="B"), old])
    new = version(KINDS[kind] + fields("b", "x", "a"))
    back, made, itself = loader(shapes)(data)
    assert back["x"] == new(a="A", b="B", x="new x") and type(back["x"]) is type(back["y"]) is new
    assert back["y"] == new() and made() == new(b="B") and itself is new
    assert kept([back, made])[1] == (pickled_shape(new),)


def test_a_value_that_refers_to_an_enum_refers_to_that_of_today(version: Any) -> None:
    old = version("class C(Enum):\n    A = 1\n    B = 2\n")
    data, shapes = kept({old.A: old, "again": old.A})
    new = version("class C(Enum):\n    B = 1\n    A = 2\n")
    assert loader(shapes)(data) == {new.A: new, "again": new.A}


def test_an_object_of_which_no_attribute_was_written_is_one_of_todays_class(version: Any) -> None:
    data, shapes = kept([version("class C:\n    __slots__ = ()\n")()])
    new = version(KINDS["dataclass"] + fields("a"))
    assert loader(shapes)(data) == [new()]


def test_two_classes_that_are_one_now_are_refused_where_a_value_refers_to_it(version: Any) -> None:
    text = KINDS["frozen slots"] + fields("a", "b")
    version(text + text.replace("class C", "class D"))
    module = sys.modules[MODULE]
    data, shapes = kept([module.C("1", "2"), module.D("3", "4")])
    named, more = kept([module.C("1", "2"), module.D("3", "4"), module.D])
    new = version(KINDS["frozen slots"] + fields("b", "a") + "D = C\n")
    assert loader(shapes)(data) == [new("2", "1"), new("4", "3")]
    with pytest.raises(ChangedClass, match="are one class now, and a value refers to it"):
        loader(more)(named)


def test_a_class_that_says_itself_what_is_pickled_reads_it_itself(version: Any) -> None:
    """`__setstate__` is how one migrates by hand: nothing is compared."""
    own = "class C:\n    def __getstate__(self): return 'one'\n    def __setstate__(self, state): self.got = state\n"
    data, shapes = kept(version(own)())
    version(own.replace("self.got", "self.other"))
    assert loader(shapes)(data).other == "one"
    data, shapes = kept(version(KINDS["dataclass"] + fields("a"))(a="A"))
    version(KINDS["dataclass"] + fields("b") + "    def __setstate__(self, state): self.b = state['a']\n")
    assert loader(shapes)(data).b == "A"
    data, shapes = kept(version(own)())
    version(KINDS["dataclass"] + fields("a"))
    with pytest.raises(ChangedClass, match="was a class with pickling of its own there"):
        loader(shapes)


def test_a_plain_class_may_become_one_with_fields(version: Any) -> None:
    plain = "class C:\n    def __init__(self): self.a, self.b = 'A', 'B'\n"
    data, shapes = kept(version(plain)())
    new = version(KINDS["slots"] + fields("b", "x", "a"))
    assert loader(shapes)(data) == new(a="A", b="B", x="new x")
    version(KINDS["slots"] + fields("b", "x", "a", defaults=False))
    with pytest.raises(ChangedClass, match="had no 'x', and it has no default"):
        loader(shapes)(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_loses_its_fields_keeps_its_attributes(version: Any, kind: str) -> None:
    """A plain class has the attributes that are set."""
    data, shapes = kept(version(KINDS[kind] + fields("a", "b"))(a="A", b="B"))
    version("class C:\n    b = 'of the class'\n")
    if kind == "named tuple" or "struct" in kind:
        with pytest.raises(ChangedClass, match="and is a plain class now"):
            loader(shapes)
        return
    back = loader(shapes)(data)
    assert (type(back).__name__, back.a, back.b) == ("C", "A", "B")
    version("class C:\n    __slots__ = ('b',)\n")
    assert loader(shapes)(data).b == "B"


def test_slots_of_a_plain_class_become_attributes(version: Any) -> None:
    data, shapes = kept(version("class C:\n    __slots__ = ('a',)\n    def __init__(self): self.a = 'A'\n")())
    version("class C:\n    a = 'of the class'\n")
    assert loader(shapes)(data).a == "A"


POSITIONS = {
    "named tuple": "class P(NamedTuple):\n{}class C(P):\n    def __getnewargs__(self): return tuple(self)\n",
    "struct": "class C(msgspec.Struct):\n{}    def __reduce__(self): return C, (self.a, self.b)\n",
    "frozen slots": (
        "@dataclass(frozen=True, slots=True)\nclass C:\n{}    def __reduce__(self): return C, (self.a, self.b)\n"
    ),
}


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_class_that_says_itself_now_how_it_is_pickled_gets_no_values_of_other_fields(version: Any, kind: str) -> None:
    """What was written are values in the order of the fields of then."""
    data, shapes = kept(version(KINDS[kind] + fields("a", "b"))(a="A", b="B"))
    version(POSITIONS[kind].format(fields("b", "a")))
    with pytest.raises(ChangedClass, match=r"fields \(a, b\) there, written in this order.* the fields \(b, a\)"):
        loader(shapes)
    new = version(POSITIONS[kind].format(fields("a", "b", "c")))
    if kind != "frozen slots":
        assert loader(shapes)(data) == new("A", "B")


def test_a_named_tuple_with_arguments_of_its_own_reads_them_itself(version: Any) -> None:
    own = (
        "class P(NamedTuple):\n    a: int\n    b: int\nclass C(P):\n"
        "    def __new__(cls, a, b=0): return super().__new__(cls, a, 10 * b)\n"
        "    def __getnewargs__(self): return self.a, self.b // 10\n"
    )
    data, shapes = kept(version(own)(1, 2))
    version(own.replace("    b: int\n", "    b: int\n    c: int = 3\n"))
    assert tuple(loader(shapes)(data)) == (1, 20, 3)


def test_classes_of_python_and_of_functions_of_a_library_are_not_looked_at() -> None:
    from datetime import datetime
    from decimal import Decimal
    from uuid import UUID

    import numpy as np

    kinds = (int, Decimal, datetime, UUID, np.ndarray, np.int64, type(np.dtype("int8")))
    assert [pickled_shape(kind) for kind in kinds] == [None] * len(kinds)


def test_a_value_that_is_alone_says_its_classes_itself(version: Any) -> None:
    assert dump_described({"a": 1}) == pickle.dumps({"a": 1}, 5), "where there are none"
    data = dump_described(version(KINDS["frozen slots"] + fields("a", "b"))(a="A", b="B"))
    new = version(KINDS["frozen slots"] + fields("b", "a"))
    assert load_described(data) == new(a="A", b="B")
    assert [shape.fields for shape in shapes_in(data)] == [("a", "b")]
    assert load_described(pickle.dumps(7, 5)) == 7


def test_random_versions_of_a_class(version: Any) -> None:
    """Whatever becomes of the fields: a value is in the field of its name, or nothing is read."""
    chance = random.Random("versions of classes")
    mapped = refused = 0
    for _ in range(600):
        before, after = (chance.sample("abcde", chance.randint(1, 5)) for _ in "12")
        kind = chance.choice(sorted(KINDS))
        other = kind if chance.random() < 0.7 else chance.choice(sorted(KINDS))
        one = version(KINDS[kind] + fields(*before))(**{name: name.upper() for name in before})
        data, shapes = kept([one])
        version(KINDS[other] + fields(*after))
        try:
            [back] = loader(shapes)(data)
        except ChangedClass:
            refused += 1
            continue
        mapped += 1
        assert all(getattr(back, name) in (name.upper(), "new " + name) for name in after), (kind, before, other, after)
        assert all(getattr(back, name) == name.upper() for name in after if name in before)
    assert mapped > 100 and refused > 100
