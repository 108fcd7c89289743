"""Keys of classes in checkpoints: read by the next version of a program they are the same keys, or an error names what
has changed in their class. Plain pickle gives another key without an error."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tailrace.elements.keypickling import ChangedKeyClass, dump_keys
from tailrace.elements.keys import canonical_bytes
from tailrace.elements.plainkeys import plain_key

HEAD = """
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum, Flag, IntEnum, StrEnum
from functools import cached_property
from typing import Any, NamedTuple
"""
Program = Callable[[str], Any]


@pytest.fixture
def program() -> Iterator[Program]:
    """Runs a version of the program `shop`: its classes are those of that module from now on."""
    before = sys.modules.pop("shop", None)

    def run(text: str) -> Any:
        module = types.ModuleType("shop")
        sys.modules["shop"] = module
        exec(HEAD + text, vars(module))
        return module

    yield run
    del sys.modules["shop"]
    if before is not None:
        sys.modules["shop"] = before


def written(key: Any) -> bytes:
    canonical_bytes(key)  # what is in state has a key group, so its class is known
    return dump_keys([key])


PLACE = "@dataclass(frozen=True)\nclass Place:\n    zone: Any\n    row: Any = 0\n"
SLOTS = "@dataclass(frozen=True, slots=True)\nclass Place:\n    zone: Any\n    row: Any\n"
COLOUR = "class Colour(Enum):\n    RED = 1\n    BLUE = 2\n"
PAIR = "class Pair(NamedTuple):\n    x: Any\n    y: Any\n"
NUMBER = "class Number(IntEnum):\n    ONE = 1\n    TWO = 2\n"

SAME = [
    (PLACE, "Place('north', 3)"),
    (PLACE, "Place(('a', Place(1, None)), 2.5)"),
    (SLOTS, "Place(1, 'x')"),
    ("@dataclass(frozen=True)\nclass Nothing:\n    pass\n", "Nothing()"),
    (PLACE + "class Seat(Place):\n    pass\n", "Seat(1, 2)"),
    (COLOUR, "Colour.BLUE"),
    ("class Perm(Flag):\n    READ = 1\n    WRITE = 2\n", "Perm.WRITE"),
    (PLACE + COLOUR, "(Place(Colour.RED, Colour.BLUE), Colour.RED)"),
    (PAIR, "Pair(1, Pair('a', None))"),
    ("Pair = namedtuple('Pair', 'x y')", "Pair(1, 2)"),
    (NUMBER, "Number.TWO"),
    ("class Word(StrEnum):\n    A = 'a'\n", "Word.A"),
    ("class Outer:\n    @dataclass(frozen=True)\n    class Place:\n        zone: Any\n", "Outer.Place(1)"),
]


@pytest.mark.parametrize(("text", "key"), SAME, ids=[key for _, key in SAME])
def test_the_same_program_reads_the_same_key(text: str, key: str, program: Program) -> None:
    first = eval(key, vars(program(text)))
    data = written(first)
    expected = eval(key, vars(program(text + "# another version of it\n")))
    [found] = pickle.loads(data)
    assert found == expected
    assert hash(found) == hash(expected)
    assert type(found) is type(expected)
    assert canonical_bytes(found) == canonical_bytes(first)
    assert plain_key(found) is found


CHANGED = {
    "a field is new, with a default": (
        PLACE,
        "Place(1, 2)",
        PLACE + "    more: Any = 0\n",
        r"class shop\.Place had the fields \(zone, row\) there, and has \(zone, row, more\) now",
    ),
    "a field is gone": (
        PLACE,
        "Place(1, 2)",
        "@dataclass(frozen=True)\nclass Place:\n    zone: Any\n",
        r"has \(zone\) now",
    ),
    "fields change places": (
        SLOTS,
        "Place(1, 2)",
        "@dataclass(frozen=True, slots=True)\nclass Place:\n    row: Any\n    zone: Any\n",
        r"has \(row, zone\) now",
    ),
    "a field has another name": (PLACE, "Place(1, 2)", PLACE.replace("row", "seat"), r"has \(zone, seat\) now"),
    "inside a tuple": (PLACE, "(7, Place(1, 2))", PLACE.replace("row", "seat"), r"has \(zone, seat\) now"),
    "it may be changed now": (
        PLACE,
        "Place(1)",
        PLACE.replace("(frozen=True)", ""),
        r"was a frozen dataclass there, and is now not a key: it is mutable; declare its class with",
    ),
    "it has another equality now": (
        PLACE,
        "Place(1)",
        PLACE + "    def __eq__(self, other): return True\n    def __hash__(self): return 1\n",
        r"now not a key: its class defines its own ==; leave out __eq__",
    ),
    "it is gone": (PLACE, "Place(1)", "", r"class shop\.Place is gone, or nothing in the dataflow refers to it"),
    "it is a function": (PLACE, "Place(1)", "def Place(): ...", r"that name is a function now"),
    "it is a plain class": (PLACE, "Place(1)", "class Place: ...", r"neither a dataclass nor an Enum"),
    "it has moved": (PLACE, "Place(1)", PLACE.replace("Place", "Spot") + "Place = Spot\n", r"the class shop\.Spot"),
    "a member is gone": (
        COLOUR,
        "Colour.RED",
        COLOUR.replace("RED", "GREEN"),
        r"class shop\.Colour had a member RED there, and has none now",
    ),
    "a member is another name of one": (
        COLOUR,
        "Colour.BLUE",
        "class Colour(Enum):\n    NAVY = 2\n    BLUE = 2\n",
        r"BLUE is another name of NAVY now",
    ),
    "the Enum is its value now": (COLOUR, "Colour.RED", COLOUR.replace("(Enum)", "(IntEnum)"), r"was an Enum there"),
    "a value is gone": (NUMBER, "Number.TWO", NUMBER.replace("2", "3"), r"no member has its value now"),
    "a named tuple has a field more": (PAIR, "Pair(1, 2)", PAIR + "    z: Any = 0\n", r"has \(x, y, z\) now"),
    "a named tuple has its fields in another order": (
        PAIR,
        "Pair(1, 2)",
        "class Pair(NamedTuple):\n    y: Any\n    x: Any\n",
        r"has \(y, x\) now",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_class_that_is_another_one_now_is_named(name: str, program: Program) -> None:
    text, key, changed, found = CHANGED[name]
    data = written(eval(key, vars(program(text))))
    program(changed)
    with pytest.raises(ChangedKeyClass, match=found):
        pickle.loads(data)


def test_the_members_of_an_enum_are_found_by_their_names(program: Program) -> None:
    """Pickle writes a member as its value: with the values given out anew, RED would come back as BLUE."""
    data = written(program(COLOUR).Colour.RED)
    now = program("class Colour(Enum):\n    BLUE = 1\n    RED = 2\n")
    assert pickle.loads(data) == [now.Colour.RED]


def test_the_members_of_an_enum_that_is_its_value_are_found_by_that(program: Program) -> None:
    """`Number.ONE == 1`: the key is 1, whatever name that has."""
    data = written(program(NUMBER).Number.ONE)
    now = program("class Number(IntEnum):\n    TWO = 1\n    ONE = 2\n")
    assert pickle.loads(data) == [now.Number.TWO]


def test_attributes_that_are_no_fields_stay_with_the_key(program: Program) -> None:
    perm = "class Perm(Flag):\n    READ = 1\n    WRITE = 2\n"
    text = perm + PLACE + "    @cached_property\n    def name(self): return [self.zone, Perm.READ | Perm.WRITE]\n"
    module = program(text)
    key = module.Place("a", 1)
    assert key.name == ["a", module.Perm(3)]
    [found] = pickle.loads(written(key))
    assert vars(found) == {"zone": "a", "row": 1, "name": ["a", module.Perm(3)]}


def test_a_class_is_written_once_for_all_keys_of_a_block(program: Program) -> None:
    place = program(PLACE).Place
    one, many = ([plain_key(place(i, i)) for i in range(n)] for n in (1, 1001))
    assert len(dump_keys(many)) - len(dump_keys(one)) < 25 * 1000


def test_plain_keys_are_pickled_as_ever() -> None:
    keys = [1, "a", b"b", None, 2.5, True]
    assert dump_keys(keys) == pickle.dumps(keys, 5)
    mixed = [(1, "a"), ("b", (2, None))]
    assert pickle.loads(dump_keys(mixed)) == mixed
    assert b"tailrace" not in dump_keys(mixed)
