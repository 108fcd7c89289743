"""The rules of the house, also those that import-linter cannot check: bans on modules of the standard library, on pyspark,
and on rooms that do not exist yet; no circles of imports, and none of types; no file that is too long for one subject. Each
breach is reported with its file, and its line where it has one, and what to do instead."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tailrace"

# `api` counts, because the functions and handles it defines run inside tasks.
BELOW_THE_WATERLINE = ("api", "coordinator", "elements", "graph", "protocol", "state", "task")

CLOCK = "use the injected clock: the time is in the event"
WAITING = "nothing waits below the waterline: return an action, its completion comes back as an event"
CHANCE = "use the injected seed or id: chance is an event, so that a replay sees the same"
OUTSIDE = "return an action, the driver above the waterline does it"
CONFIG = "take it as a setting: the driver above the waterline reads the machine it is on"
ABOVE = "is above the waterline: define the contract here, and let it be implemented there"

BANNED_MODULES = {
    "asyncio": WAITING,
    "concurrent": WAITING,
    "multiprocessing": WAITING,
    "queue": WAITING,
    "select": WAITING,
    "selectors": WAITING,
    "signal": WAITING,
    "threading": WAITING,
    "sched": CLOCK,
    "time": CLOCK,
    "random": CHANCE,
    "numpy.random": CHANCE,
    "secrets": CHANCE,
    "uuid.uuid1": CHANCE,
    "uuid.uuid4": CHANCE,
    "http": OUTSIDE,
    "shutil": OUTSIDE,
    "socket": OUTSIDE,
    "ssl": OUTSIDE,
    "subprocess": OUTSIDE,
    "tempfile": OUTSIDE,
    "urllib": OUTSIDE,
    "os": CONFIG,
    "platform": CONFIG,
    "pyspark": "only tailrace.spark knows Spark: a launcher is reached through a contract, by name",
    **{
        f"tailrace.{room}": ABOVE
        for room in ("cli", "connectors", "runtime", "server", "spark", "statedata", "storage", "testing", "ui")
    },
}

BANNED_CALLS = {
    "date.today": CLOCK,
    "datetime.now": CLOCK,
    "datetime.today": CLOCK,
    "datetime.utcnow": CLOCK,
    "np.random": CHANCE,
    "open": OUTSIDE,
    "uuid.uuid1": CHANCE,
    "uuid.uuid4": CHANCE,
}


class Breach(NamedTuple):
    line: int
    what: str
    instead: str


def breaches(code: str, modules: dict[str, str], calls: dict[str, str]) -> list[Breach]:
    """What a file has that it must not. Imports for type checkers only are no imports."""
    found = set()
    for node in _running(code):
        for name in _imported(node):
            for module, instead in modules.items():
                if name == module or name.startswith(f"{module}."):
                    found.add(Breach(node.lineno, f"imports {module}", instead))
        if isinstance(node, ast.ImportFrom) and node.level:
            found.add(Breach(node.lineno, "imports by a relative path", "write the full name"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = ast.unparse(node.func)
            for name, instead in calls.items():
                if called == name or ("." in name and f".{name}." in f".{called}."):
                    found.add(Breach(node.lineno, f"calls {called}()", instead))
    return sorted(found)


_parsed = functools.cache(ast.parse)
"""Each file is parsed once, for all rules."""


@functools.cache
def _running(code: str) -> list[Any]:
    return list(_nodes_that_run(_parsed(code)))


def _nodes_that_run(node: ast.AST) -> Iterator[Any]:
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for other in node.orelse:
            yield from _nodes_that_run(other)
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _nodes_that_run(child)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]  # each may be a module: from tailrace import cli
    return []


def files_of(*rooms: str) -> list[Path]:
    return sorted(file for room in rooms for file in (SOURCE / room).rglob("*.py"))


def report(files: list[Path], modules: dict[str, str], calls: dict[str, str]) -> str:
    assert files, "no file was checked: have the packages moved?"
    return "\n".join(
        f"{file.relative_to(SOURCE.parents[1])}:{breach.line}: {breach.what}; {breach.instead}"
        for file in files
        for breach in breaches(file.read_text(encoding="utf-8"), modules, calls)
    )


def test_below_the_waterline_nothing_waits_guesses_or_touches_the_world() -> None:
    breaches_ = report(files_of(*BELOW_THE_WATERLINE), BANNED_MODULES, BANNED_CALLS)
    assert not breaches_, f"below the waterline:\n{breaches_}"


def test_only_the_spark_room_imports_pyspark() -> None:
    """And graphs, which are DataFrames."""
    theirs = {SOURCE / "spark", SOURCE / "graphs"}
    elsewhere = [file for file in sorted(SOURCE.rglob("*.py")) if not theirs & {*file.parents}]
    breaches_ = report(elsewhere, {"pyspark": "only tailrace.spark knows Spark"}, {})
    assert not breaches_, f"outside tailrace.spark:\n{breaches_}"


def test_storage_does_not_know_the_protocol() -> None:
    breaches_ = report(files_of("storage"), {"tailrace.protocol": "facts go in, decisions come out"}, {})
    assert not breaches_, breaches_


WALL = "what waits, waits by time.monotonic or runtime.clock: people set wall clocks"
WALL_CLOCKS = {
    "connectors/segments/readers.py": "when a query began that has read nothing",
    "runtime/eventloop/clock.py": "the clock of a job begins with it",
    "runtime/network/tls.py": "certificates expire by it",
    "spark/start/start_checkpoint.py": "how old a checkpoint is, in words",
    "spark/data/savepoints.py": "when a checkpoint was written",
    "spark/slots/slot_reservations.py": "whether there is a warning: how old a session is, Spark says by its own wall clock",
}
"""The files that read a wall clock, and for what. Nothing waits there by it."""


def test_nobody_else_reads_a_wall_clock() -> None:
    calls = dict.fromkeys(
        (*(name for name, why in BANNED_CALLS.items() if why == CLOCK), "time.time", "time.time_ns"), WALL
    )
    imports = dict.fromkeys(("time.time", "time.time_ns", "tailrace.runtime.eventloop.clock.unix_micros"), WALL)
    files = {file: str(file.relative_to(SOURCE)) for file in sorted(SOURCE.rglob("*.py"))}
    breaches_ = report([file for file, name in files.items() if name not in WALL_CLOCKS], imports, calls)
    assert not breaches_, f"a wall clock:\n{breaches_}"
    for name in WALL_CLOCKS:
        assert breaches((SOURCE / name).read_text(encoding="utf-8"), imports, calls), f"{name} reads none any more"


@pytest.mark.parametrize(
    ("code", "line", "what"),
    [
        ("import time", 1, "imports time"),
        ("import os.path as p", 1, "imports os"),
        ("from os import path", 1, "imports os"),
        ("from asyncio.events import get_event_loop", 1, "imports asyncio"),
        ("def f():\n    from threading import Lock", 2, "imports threading"),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import random", 4, "imports random"),
        ("from tailrace import storage", 1, "imports tailrace.storage"),
        ("from tailrace.runtime.eventloop.selector import Loop", 1, "imports tailrace.runtime"),
        ("import datetime\ndatetime.datetime.now()", 2, "calls datetime.datetime.now()"),
        ("from datetime import datetime\ndatetime.now(UTC)", 2, "calls datetime.now()"),
        ("import numpy as np\nnp.random.default_rng()", 2, "calls np.random.default_rng()"),
        ("from uuid import uuid4", 1, "imports uuid.uuid4"),
        ("import uuid\nuuid.uuid4()", 2, "calls uuid.uuid4()"),
        ("from numpy import random", 1, "imports numpy.random"),
        ("from ..runtime import loop", 1, "imports by a relative path"),
        ("open('x')", 1, "calls open()"),
    ],
)
def test_a_breach_is_seen(code: str, line: int, what: str) -> None:
    assert [(breach.line, breach.what) for breach in breaches(code, BANNED_MODULES, BANNED_CALLS)] == [(line, what)]


@pytest.mark.parametrize(
    "code",
    [
        "import datetime, timeit_of_ours",
        "from tailrace import errors",
        "from tailrace.elements import timestamps",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pyspark.sql import DataFrame",
        "import uuid\nuuid.UUID(int=1)",
        "backend.open()",
        "timedelta.total_seconds(x)",
    ],
)
def test_what_is_allowed_is_not_seen(code: str) -> None:
    assert breaches(code, BANNED_MODULES, BANNED_CALLS) == []


# Circles.


def imports_of(files: list[Path], *, types: bool) -> dict[str, set[str]]:
    """The modules of ours that each module imports, in functions as well; `types`: also for type checkers only."""
    modules = {_module(file): file for file in files}
    found: dict[str, set[str]] = {}
    for module, file in modules.items():
        code = file.read_text(encoding="utf-8")
        names = [name for node in (ast.walk(_parsed(code)) if types else _running(code)) for name in _imported(node)]
        # `from tailrace.task import chain` is of a module, `from tailrace.task.subtask.chain import Chain` of what is in
        # one.
        found[module] = {name if name in modules else name.rpartition(".")[0] for name in names} & modules.keys()
    return found


def _module(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Modules that reach each other by way of their imports."""
    reached: dict[str, set[str]] = {}
    for module in imports:
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            new = imports[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[module] = seen
    found = {
        frozenset(other for other in reached[one] if one in reached[other]) for one in imports if one in reached[one]
    }
    return sorted(map(set, found), key=sorted)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(imports_of(files_of("."), types=False)) == []


def test_the_types_of_modules_need_each_other_in_no_circle() -> None:
    """A circle of types is one of subjects: who reads one of the modules has to read them all. Say what is needed as a
    `Protocol`, or move what both need into a module of its own."""
    assert circles(imports_of(files_of("."), types=True)) == []


def test_of_testing_there_is_what_users_have_and_nothing_for_the_searches_alone() -> None:
    """What a user imports (`run`, `simulate`, faults, `harness`, `check_backend`), and what that needs."""
    imports = imports_of(files_of("testing"), types=False)
    audits = "tailrace.testing.auditagain"  # a program that `audit` starts
    waiting, reached = ["tailrace.testing", "tailrace.testing.backends", audits], set[str]()
    while waiting:
        one = waiting.pop()
        reached.add(one)
        waiting += imports[one] - reached
    assert imports.keys() - reached == set(), "move it to search"


def test_a_circle_is_seen() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a", "f"}, "f": {"f"}}
    assert circles(imports) == [{"b", "c"}, {"f"}]


# Limits.

FIELDS, IMPORTS, FILES = 20, 25, 22
"""Fields of a class, modules of ours that a module imports, files of a room: with more of them nobody sees what it is
about."""
FIELDS_TODAY = {
    "Services": 28,
    "Checkpoints": 29,
    "SourceTask": 25,
    "LayeredBackend": 27,
    "FeedbackQueue": 22,
    "JobSpec": 21,
}
IMPORTS_TODAY = {
    "__init__.py": 32,  # the public names, for type checkers
    "runtime/worker/main_loop.py": 32,
    "coordinator/machine.py": 27,
    "task/operators/aggregates/running.py": 27,
}
FILES_TODAY = {"connectors": 26, "elements": 28, "state": 27, "testing": 28}
"""What is beyond a limit today, and how far. It may only fall."""
NO_PACKAGE = "spark/daemon"
"""A folder on the path of Spark's Python workers, which holds one module."""


class Size(NamedTuple):
    """What is counted of one file or room."""

    where: str
    count: int


def fields_of(tree: ast.Module) -> dict[str, int]:
    """How many fields each class of a file has: declared ones, and those that its methods set."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            declared = {
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            }
            assigned = {
                one.attr
                for one in ast.walk(node)
                if isinstance(one, ast.Attribute)
                and isinstance(one.ctx, ast.Store)
                and ast.unparse(one.value) == "self"
            }
            found[node.name] = len(declared | assigned)
    return found


def imports_in(tree: ast.Module) -> int:
    """How many modules of ours a file imports from."""
    return len(
        {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tailrace")
        }
    )


def beyond(sizes: list[Size], limit: int, today: dict[str, int]) -> list[str]:
    """What is larger than its limit, or smaller than what is written down of it: that may only fall."""
    found = [f"{one.where}: {one.count}, at most {limit}" for one in sizes if one.count > today.get(one.where, limit)]
    counts = {one.where: one.count for one in sizes}
    return [
        *found,
        *(
            f"{name}: {counts.get(name, 0)} today, write that down in place of {most}, or leave it out"
            for name, most in today.items()
            if counts.get(name, 0) < most
        ),
    ]


def test_no_class_has_more_fields_than_one_subject_needs() -> None:
    sizes = [
        Size(name, count)
        for file in files_of(".")
        for name, count in fields_of(_parsed(file.read_text(encoding="utf-8"))).items()
    ]
    assert beyond(sizes, FIELDS, FIELDS_TODAY) == [], "part the class by subject"


def test_no_module_imports_more_than_one_subject_needs() -> None:
    sizes = [
        Size(file.relative_to(SOURCE).as_posix(), imports_in(_parsed(file.read_text(encoding="utf-8"))))
        for file in files_of(".")
    ]
    assert beyond(sizes, IMPORTS, IMPORTS_TODAY) == [], "part the module by subject"


def test_no_room_has_more_files_than_one_can_see() -> None:
    folders = {file.parent for file in files_of(".")}
    sizes = [
        Size(one.relative_to(SOURCE).as_posix(), sum(file.name != "__init__.py" for file in one.glob("*.py")))
        for one in sorted(folders)
    ]
    assert beyond(sizes, FILES, FILES_TODAY) == [], "make a room of some of them, with a first page"


def test_a_room_has_a_first_page() -> None:
    """The docstring of its `__init__.py`: what is in it."""
    for folder in {file.parent for file in files_of(".")} - {SOURCE / NO_PACKAGE}:
        page = ast.get_docstring(_parsed((folder / "__init__.py").read_text(encoding="utf-8")))
        assert page, f"{folder.relative_to(SOURCE)} has no first page"


def unnamed_in(folder: Path, page: str) -> set[str]:
    """The modules and rooms of a folder that a first page does not name, between backticks."""
    modules = {file.stem for file in folder.glob("*.py") if file.name != "__init__.py"}
    return (modules | {one.parent.name for one in folder.glob("*/__init__.py")}) - set(re.findall(r"`(\w+)`", page))


def test_a_first_page_names_what_is_in_its_room() -> None:
    """A first page says which module to open for what. The rooms of the house are in ARCHITECTURE."""
    found = {}
    for folder in {file.parent for file in files_of(".")} - {SOURCE, SOURCE / NO_PACKAGE}:
        page = ast.get_docstring(_parsed((folder / "__init__.py").read_text(encoding="utf-8")))
        if unnamed := unnamed_in(folder, page or ""):
            found[folder.relative_to(SOURCE).as_posix()] = unnamed
    assert not found, f"say in its `__init__.py` what each is for: {found}"


@pytest.mark.parametrize("floor", ["task", "coordinator", "spark", "runtime"])
def test_a_first_page_says_what_goes_in_and_out(floor: str) -> None:
    rooms = sorted({page.parent for page in (SOURCE / floor).glob("*/__init__.py")})
    assert rooms, "no room was read: have they moved?"
    for room in rooms:
        page = ast.get_docstring(_parsed((room / "__init__.py").read_text(encoding="utf-8"))) or ""
        assert re.search(r"^In:\s.+?\bOut:\s", page, re.M | re.S), f"{room.relative_to(SOURCE)}: In: ... Out: ..."


def test_a_module_that_no_first_page_names_is_seen(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    for name in ("__init__.py", "one.py", "two.py", "room/__init__.py"):
        (tmp_path / name).touch()
    assert unnamed_in(tmp_path, "Rooms. `one`: the first of `one.two`, two.") == {"two", "room"}


def test_what_is_beyond_a_limit_is_seen() -> None:
    assert beyond([Size("a", 20), Size("b", 21)], 20, {}) == ["b: 21, at most 20"]
    assert beyond([Size("a", 30)], 20, {"a": 31}) == ["a: 30 today, write that down in place of 31, or leave it out"]
    assert fields_of(ast.parse("class A:\n  x: int\n  def f(self):\n    self.y = self.z")) == {"A": 2}
    assert imports_in(ast.parse("import os\nfrom tailrace.a import b\nfrom tailrace.a import c\nfrom x import y")) == 1


# Failover.

FAILOVER = re.compile(
    r"failover|replay|replaces|replacement|replace_?peer|stand_?by|take_?over|took_over|history|(do|cut|make|goes)_again|"
    r"mirror|(?<![a-z])hot(?![a-z])|^_?follow$",
    re.I,
)
FAILOVER_ROOMS = (
    "task/failover/",
    "task/journal/",
    "task/worker/",
    "protocol/replay.py",
    "protocol/standby.py",
    "protocol/hot_standby.py",
    "coordinator/workers/",
    "coordinator/succession/",
    "coordinator/view/",  # what users see of all rooms
)
FAILOVER_NAMED = {
    "elements/frame_codec.py": "the frame that carries a history",
    "protocol/message_codec.py": "the unions of messages",
    "task/contract/jobspec.py": "a setting",
    "task/contract/tuning.py": "a setting",
    "coordinator/actions.py": "actions that report it",
    "coordinator/machine.py": "which event is handed to which bookkeeper",
    "coordinator/course.py": "what follows from a loss",
    "runtime/driver/warning.py": "warnings in words",
    "runtime/driver/progressline.py": "a part of the line",
    "runtime/worker/stepping.py": "a standby that follows a worker has no turns of its own",
    "runtime/eventloop/clock.py": "no failover: a clock follows that of the driver",
    "runtime/outpost/job_follower.py": "no failover: a program follows its job",
    "runtime/worker/heartbeat.py": "no failover: signs of life follow the coordinator to another address",
}
"""Files of other rooms that name something of failover, and why. No other one may: a room states what it needs without
it (`services.exact`, `AwaitPeer`), or has a method that the recorded variant overrides."""


def failover_in(tree: ast.Module) -> set[str]:
    """The names in a file, given or imported there, that are of failover."""
    imported = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import) for alias in node.names
    }
    given = {name for _, name in names_given(tree)}
    return {name for name in given | imported if FAILOVER.search(name)}


def test_no_room_but_its_own_knows_failover() -> None:
    found = {
        where: names
        for file in files_of("task", "elements", "protocol", "coordinator", "runtime", "state", "graph")
        if not (where := file.relative_to(SOURCE).as_posix()).startswith(FAILOVER_ROOMS)
        and (names := failover_in(_parsed(file.read_text(encoding="utf-8"))))
    }
    assert set(found) == set(FAILOVER_NAMED), f"chosen when a slice is made (`task.failover.replayable_slice`): {found}"


def test_what_knows_failover_is_seen() -> None:
    code = "from a import Follow, ReplayDone, Shot\ndef goes_again(self): self.replaces = is_hot = 1\ndef again(self): pass"
    assert failover_in(ast.parse(code)) == {"Follow", "ReplayDone", "goes_again", "replaces", "is_hot"}


# Language.

ANAPHORA = re.compile(
    r"(The same|That of|That which|Those|These|This one|Of these|Of those|Such|Likewise|Others?|The others?|Its|Their|"
    r"Somebody|Who|It|They|Them|Again|As above|As that|So many|Also)\b"
)
"""Words that refer to something else: a docstring that begins with one cannot be read alone, as in a hover."""
SHARED = {
    "Kafka",
    "Failed",
    "Nats",
    "Csv",
    "Json",
    "Parquet",
    "Postgres",
    "RedisHash",
    "RedisStream",
    "Rounds",
    "Sink",
    "Source",
    "Table",
    "TextFiles",
}
"""Names that users have, of which each is in two places of theirs, or has a counterpart in the graph
or the protocol."""


def first_words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of a file: of the module, classes, functions, and those below a field."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, one in zip([None, *body], body, strict=False):
            is_text = (
                isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)
            )
            if is_text and (before is None or isinstance(before, ast.Assign | ast.AnnAssign)):
                yield one.lineno, one.value.value.strip()


def anaphors(code: str) -> list[tuple[int, str]]:
    """The docstrings of a file that refer to something else, each with its line. Most files have no text that begins so,
    and are not parsed."""
    if not re.search(rf'"""\s*{ANAPHORA.pattern}', code):
        return []
    return [(line, text) for line, text in first_words(_parsed(code)) if ANAPHORA.match(text)]


@pytest.mark.parametrize("folder", ["src", "tests", "search", "benchmarks"])
def test_a_docstring_begins_with_what_it_is_about(folder: str) -> None:
    root = SOURCE.parents[1]
    files = sorted((root / folder).rglob("*.py"))
    assert len(files) > 20, "no file was read: has the folder moved?"
    found = [
        f"{file.relative_to(root)}:{line}: {text.splitlines()[0]}"
        for file in files
        for line, text in anaphors(file.read_text(encoding="utf-8"))
    ]
    assert not found, "name the thing with a noun:\n" + "\n".join(found)


def test_a_docstring_that_refers_to_something_else_is_seen() -> None:
    text = '"""A file."""\nx = 1\n"""The same, at a time."""\n\n\ndef f():\n    """That of a process."""\n'
    assert [line for line, _ in anaphors(text)] == [3, 7]
    assert anaphors('x = """The same."""\n') == [], "a text that is no docstring"


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, set[str]] = {}
    for file in files_of("."):
        for node in ast.walk(_parsed(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(file.relative_to(SOURCE).as_posix())
    assert {name for name, where in places.items() if len(where) > 1} <= SHARED, {
        name: where for name, where in places.items() if len(where) > 1 and name not in SHARED
    }


# Names.

PARTICIPLES = """begun born bought bound broken brought built caught chosen come dealt done drawn driven fallen fed felt
    flown forbidden forgotten found frozen given gone grown heard held hidden hung kept known laid led left lent lost made
    meant met misled outgrown overtaken paid rebuilt ridden risen said seen sent shaken shown slept sold sought spent
    spoken stolen struck swept taken taught thought thrown told undone understood withdrawn woken won worn wound written"""
"""Participles that do not end in -ed."""
NO_PARTICIPLES = {"feed", "need", "seed", "shed"}
PROMISED = {"completed", "ended", "published", "settled", "stamped"}
"""Participles that users write or call: methods of sources, sinks and contexts."""
HEARSAY = {"asked", "heard", "said", "told", "wanted"}
ON_THE_WIRE = {
    ("protocol/replay.py", "heard"),
    ("runtime/outpost/mailbox.py", "heard"),
    ("runtime/outpost/mailbox.py", "said"),
    ("task/journal/history.py", "heard"),
}
"""Fields of messages, of which each is part of a format."""
SPEAKING = re.compile(r"\b(told|tells?|says|said|asks?|asked|hears?|heard|wants?|wanted)\b(?! apart)")


def is_participle(name: str) -> bool:
    """True if the name of a function is a participle alone: it does not show whether the function acts or was acted
    on."""
    word = name.strip("_")
    if "_" in word or word in NO_PARTICIPLES:
        return False
    return word in PARTICIPLES.split() or (len(word) > 3 and word.endswith("ed"))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file that are no properties: a property may be a state, such as `finished`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not any("property" in ast.unparse(one) or ".setter" in ast.unparse(one) for one in node.decorator_list):
                yield node


def names_given(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The names of functions, parameters, variables and fields that a file gives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, without the names in backticks."""
    return re.sub(r"`[^`]*`", "", re.split(r"[.:](?:\s|$)", text, maxsplit=1)[0])


def test_no_function_is_named_by_a_participle_alone() -> None:
    found = [
        f"{file.relative_to(SOURCE.parents[1])}:{node.lineno}: {node.name}"
        for file in files_of(".")
        for node in functions(_parsed(file.read_text(encoding="utf-8")))
        if is_participle(node.name) and node.name not in PROMISED
    ]
    assert not found, "name it by a verb, or by what it returns:\n" + "\n".join(found)


def test_no_name_is_a_verb_of_hearsay() -> None:
    found = [
        f"{file.relative_to(SOURCE.parents[1])}:{line}: {name}"
        for file in files_of(".")
        for line, name in names_given(_parsed(file.read_text(encoding="utf-8")))
        if name.strip("_") in HEARSAY and (file.relative_to(SOURCE).as_posix(), name) not in ON_THE_WIRE
    ]
    assert not found, "use reported, sent, received, requested, required, or a noun:\n" + "\n".join(found)


def test_no_first_sentence_tells_what_somebody_says() -> None:
    found = [
        f"{file.relative_to(SOURCE.parents[1])}:{line}: {text.splitlines()[0]}"
        for file in files_of(".")
        for line, text in first_words(_parsed(file.read_text(encoding="utf-8")))
        if SPEAKING.search(first_sentence(text))
    ]
    assert not found, "send, report, receive, request, require:\n" + "\n".join(found)


def test_what_is_wrong_with_a_name_is_seen() -> None:
    assert [
        name for name in ("_told", "settled", "kept", "settle", "note_end", "seed", "_made") if is_participle(name)
    ] == [
        "_told",
        "settled",
        "kept",
        "_made",
    ]
    text = "def f(told):\n    self.said = heard = 1\n"
    assert sorted(name for _, name in names_given(ast.parse(text))) == ["f", "heard", "said", "told"]
    assert SPEAKING.search(first_sentence("What a worker is told. More.")), "a verb of hearsay"
    assert not SPEAKING.search(first_sentence("The parts of `told`. What is said.")), "a name, and a later sentence"
