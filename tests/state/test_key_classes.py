"""State under keys of classes: frozen dataclasses, Enums, named tuples, in both backends."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.elements.plainkeys import plain_key
from tailrace.errors import CheckpointCorrupt, IncompatibleState
from tailrace.state import codecs
from tailrace.state.layers import LayeredBackend
from tailrace.state.memory_backend import MemoryBackend
from tailrace.testing.backends import Files

HEAD = "from dataclasses import dataclass\nfrom enum import Enum\nfrom typing import Any, NamedTuple\n"
PLACE = "@dataclass(frozen=True)\nclass Place:\n    zone: Any\n    row: Any\n"
PAIR = "class Pair(NamedTuple):\n    x: Any\n    y: Any\n"
COLOUR = "class Colour(Enum):\n    RED = 1\n    BLUE = 2\n"
Program = Callable[[str], Any]
Make = Callable[[], LayeredBackend]
_numbers = itertools.count()


@pytest.fixture
def program() -> Iterator[Program]:
    """Runs a version of the program `shop_of_state`: its classes are those of that module from now on."""

    def run(text: str) -> Any:
        module = types.ModuleType("shop_of_state")
        sys.modules["shop_of_state"] = module
        exec(HEAD + text, vars(module))
        return module

    yield run
    del sys.modules["shop_of_state"]


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, scratch: Path) -> Iterator[Make]:
    made: list[LayeredBackend] = []

    def one() -> LayeredBackend:
        if request.param == "memory":
            made.append(MemoryBackend(uid="u", operator="op"))
        else:
            pytest.importorskip("rocksdict")
            from tailrace.storage.disk_backend import DiskBackend

            folder = scratch / str(next(_numbers))
            made.append(DiskBackend(folder, uid="u", operator="op", top_entries=20, cache_entries=7))
        made[-1].table("held")
        made[-1].table("timers:event", kind="timers", group_by=lambda entry: entry[0], in_memory=True)
        return made[-1]

    yield one
    for each in made:
        each.close()


def keys_of(module: Any, n: int = 60) -> list[Any]:
    return [module.Place(i, module.Colour.RED if i % 2 else (module.Colour.BLUE, i)) for i in range(n)]


def test_they_are_found_again_in_state_timers_and_restored_state(make: Make, program: Program) -> None:
    """Keys that were deleted are found, too, and those in another version of the program with the same classes."""
    module, files, backend = program(PLACE + COLOUR), Files(), make()
    table, timers = backend.tables["held"], backend.tables["timers:event"]
    for i, key in enumerate(keys_of(module)):
        table[plain_key(key)] = [i]
        timers[plain_key(key), i] = i
        backend.relieve()
    files.take(backend, 1)
    files.confirm(backend, 1)
    for key in keys_of(module)[:20]:  # equal ones
        assert table.pop(plain_key(key)) is not None
        backend.relieve()
    table[plain_key(module.Colour.RED)] = "red"
    files.take(backend, 2)
    module, other = program("# the next version\n" + PLACE + COLOUR), make()
    files.restore(other, 2, True)
    expected = {key: [i] for i, key in enumerate(keys_of(module)) if i >= 20} | {module.Colour.RED: "red"}
    assert dict(other.tables["held"].items()) == expected
    assert dict(other.tables["timers:event"].items()) == {(key, i): i for i, key in enumerate(keys_of(module))}
    for key, value in expected.items():
        assert other.tables["held"][plain_key(key)] == value
        assert type(next(one for one in other.tables["held"] if one == key)) is type(key)


@pytest.mark.parametrize("table", ["held", "timers:event"])
@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (PLACE + "    more: Any = 0\n" + COLOUR, r"class shop_of_state\.Place had the fields \(zone, row\) there"),
        (PLACE + COLOUR.replace("BLUE", "GREEN"), r"class shop_of_state\.Colour had a member BLUE there"),
        (COLOUR, r"class shop_of_state\.Place is gone"),
    ],
)
def test_a_class_that_was_changed_is_an_error_that_names_it(
    make: Make, program: Program, changed: str, found: str, table: str
) -> None:
    module, files, backend = program(PLACE + COLOUR), Files(), make()
    for i, key in enumerate(keys_of(module)):
        backend.tables[table][(key, i) if table != "held" else key] = i
    files.take(backend, 1)
    program(changed)
    with pytest.raises(IncompatibleState, match=rf"operator 'op' \(uid 'u'\): the keys of state '{table}' .*{found}"):
        files.restore(make(), 1, True)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_block_of_another_version_is_refused(version: int) -> None:
    data = codecs.pack(codecs.Entries([1, ("a", 2)], [1, 2], [], [], []))
    with pytest.raises(
        CheckpointCorrupt, match=rf"a block of state is of version {version}; this tailrace reads version 2"
    ):
        codecs.unpack(bytes([version]) + data[1:])
