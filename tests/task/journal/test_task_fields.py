"""A replacement has every field of a lost worker's tasks as it was, or does not need it. A field is one of these:

- *state at the cut*: declared beside its class (`task.contract.cut_state`), and in the history;
- *constant*: set when the object is made, and never changed. No list is needed: the code is looked at;
- *restored*: in the checkpoint, or in what the senders of the task's records have kept;
- *made anew*: the replacement finds it out, or nothing that it does depends on it.

The last two are listed here. A new field that is none of them would silently be different in a replacement.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

import pytest

import tailrace
from search.scenarios import run_scenario, scenario
from tailrace.task.channels.services import Services
from tailrace.task.channels.spilling import Shelf
from tailrace.task.contract.cut_state import CutState, cut_fields
from tailrace.task.contract.outside import Outside
from tailrace.task.inflight.overtaken_records import InFlightRecording
from tailrace.task.journal.facts import Facts
from tailrace.task.journal.sent_log import Keeping, SentLog
from tailrace.task.slice.machine import Slice
from tailrace.testing.simulator import Simulation
from tailrace.testing.world import Observer

SOURCE = Path(tailrace.__file__).parent
WALKED = ("tailrace.task.", "tailrace.protocol.")
"""Rooms whose objects are looked into. Objects of other rooms are values, or a constant holds them."""
DOORS = Services, Outside, Facts, SentLog, Keeping, Shelf, InFlightRecording
"""Classes whose objects are not a task's own: its worker has them, or they are the recording itself."""

SAME = {
    "AggregateTask": "table",
    "AtRandom": "count",
    "BatchesTask": "_work",
    "ByFunction": "count reader",
    "ByKey": "count reader",
    "Chain": "operators",
    "CompleteReports": "called",
    "EmptyInputs": "_source",
    "FieldReader": "written",
    "Finder": "_source",
    "FusedRows": "_checked _plain _timed",
    "Gate": "channels",
    "HeadTask": "_today channel held queue redistribution",
    "InOrderTask": "_calls _floors waiting",
    "TimedTask": "copies keys processing_timers",
    "LoopPlace": "channels",
    "MapAsyncTask": "_pending spec",
    "OperatorContext": "name processing_timers",
    "OperatorTask": "chains out side_out",
    "Outbox": "channels",
    "OutputChannel": "flow",
    "OutputEdge": "channels",
    "ReplayableOutbox": "compared logs received",
    "RoundRobin": "count",
    "SelectTask": "spec",
    "SourceTask": "_shared too_far",
    "StatefulTask": "keys table",
    "TailTask": "queue",
    "Task": "_due cuts",
    "TaskCheckpoints": "cuts inflight",
    "TaskLoop": "channels place rests",
    "TimestampsTask": "reader spec",
    "WindowTask": "_times keys spec table",
    "Work": "_plan cuts seed",
}
"""Constants, set once when a task is made, though a field of that name is changed somewhere."""
RESTORED = {
    "AggregateTask": "_grouping _in_columns _state",  # the columns of the table
    "Alignment": "done live",  # `task_state` has them
    "Finder": "is_there position",  # with the enumerator's messages
    "FeedbackQueue": "_front _later _ready _round _start over records returned waiting",  # its log; and with its head
    "Floors": "ranges",
    "GroupChains": "confirmed",
    "InputChannel": "expected flow queue reading taken",  # the position, and what its sender or the checkpoint has
    "JudgeTask": "_feedback _output verdict",
    "TimedTask": "_touches touched",  # a table
    "Metrics": "counters gauges",  # with the state of its context
    "OperatorTask": "one_schema side_schemas",
    "PendingRecords": "_table _top by_number number",  # of a table, and the number is in the state of its operator
    "RecordBuffer": "_came _heap _table _top",  # of a table
    "ReplayableGate": "_digests _numbered front values",
    "ReplayableOutbox": "kept_since",
    "SinkTask": "_state",
    "SourceTask": "splits _unopened events",
    "StatefulTask": "table",
    "TaskLoop": "rests",
    "Timers": "_count _heap _top order table",  # of a table
    "WindowTask": "_grouping _in_columns _nulls _windows reached table",
}
"""In the checkpoint, in the state of another object, or with those that send to the task."""
ANEW = {
    "AggregateTask": "_careful _merge",  # how, and not what
    "Alignment": "_aborted _aligning_since blocked current declined due known made unstamped",  # cuts under way are given up
    "BatchesTask": "_frames",
    "FeedbackQueue": "_combined _ended _stopped_after appended dropped logs merged taken",
    "Completions": "_called _cuts _due _ended",  # calls for later checkpoints begin with later cuts
    "CompleteReports": "opened",
    "Finder": "_enumerator",
    "FieldReader": "_for_type _getter",  # found out with each kind of records
    "FunctionTask": "_tried input",
    "FusedRows": "_untried",
    "Lags": "_looked _warned",
    "Gate": "_lowest _turn",  # of the channels; which one is read is in the history
    "GroupChains": "_pending",
    "HeadTask": "_held_logs _held_redistribution _logs",  # while restoring
    "InputChannel": "blocked charge counted number returning",
    "JudgeTask": "_classes _ending",  # of one call
    "MapAsyncTask": "_order _to_begin _turns _under_way reported",  # of the pending records; calls are made again
    "TimedTask": "_round_keys dropping",
    # of a call, or of an epoch:
    "OperatorContext": "_epoch _random all_keys answers current_key current_time side stamping time_domain",
    "OperatorTask": "encoded",  # figures
    "Outbox": "barriers_sent blocked now oldest sends",  # of output that waits, which goes once more
    "OutputChannel": "before buffer buffered flow queue",
    "ComparedValues": "_reported reasons writer",  # what is reported once more, the coordinator ignores
    "ReceivedValues": "_received differ _compared ahead",  # of the replacement itself
    "Redistribution": "_held _old",  # while restoring
    "RowsLoop": "_compiled",
    "SelectTask": "_given _made",
    "SinkTask": "_ended _over _restored unconfirmed writer withheld",
    "SourceTask": "_classes _restored empty_splits",
    "StatefulTask": "_looked",
    "Task": "_order _sleeps_until did idle",  # what is due, and figures
    "TaskCheckpoints": "held_by in_line just_cut snapshot worked",  # cuts under way are given up
    "WindowTask": "_closed_until _types",
    "Work": "_today _turns been_round brought_in grants last_count only_looked story",  # of one step, and figures
    "ReplayableGate": "on_arrival",  # of a hot standby
}
"""Found out anew by a replacement, or of no effect on what it does."""

CHANGES = frozenset(
    (
        "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft",
        "insert", "pop", "popitem", "popleft", "remove", "reverse", "setdefault", "sort",
        "update",
    )
)  # fmt: skip


@functools.cache
def changed() -> frozenset[str]:
    """Names of fields that are set outside of `__init__`, or whose contents are changed anywhere, by whatever class."""
    found: set[str] = set()
    for room in ("task", "state", "protocol"):
        for file in sorted((SOURCE / room).rglob("*.py")):
            for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(function, ast.FunctionDef):
                    found |= set(changes_in(function))
    return frozenset(found)


def changes_in(function: ast.FunctionDef) -> Iterator[str]:
    """Names of fields that a function changes, also by another name that it gives to their values."""
    making = function.name == "__init__"
    aliases: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for name, value in pairs:
                    if isinstance(name, ast.Name) and isinstance(value, ast.Attribute):
                        aliases[name.id] = value.attr

    def field(node: ast.AST) -> str | None:
        return node.attr if isinstance(node, ast.Attribute) else aliases.get(getattr(node, "id", ""))

    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and not making:
            yield node.attr
        within: ast.AST | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            within = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            within = node.func.value
        elif isinstance(node, ast.AugAssign):
            within = node.target
        if within is not None and not making and (name := field(within)) is not None:
            yield name


def fields(one: object) -> dict[str, Any]:
    """Values of all fields of an object."""
    slots = (name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ()))
    found = {name: getattr(one, name) for name in slots if name in dir(one)}
    return found | getattr(one, "__dict__", {})


class Fields(Observer):
    """An observer that looks at the fields of all tasks of a simulated job, now and then."""

    def __init__(self, every: int = 400) -> None:
        self.wrong: list[str] = []
        self.undeclared: dict[str, set[str]] = defaultdict(set)
        self.seen: set[tuple[str, str]] = set()
        """Fields that were found, by the names of their classes."""
        self._every = every

    def over(self, world: Simulation) -> None:
        self._world, self._turn = world, 0
        world.watch(self)

    def on_line(self, line: str) -> None:
        if self._world.turns >= self._turn:
            self._turn = self._world.turns + self._every
            for process in self._world.processes.values():
                if process.machine.slice is not None:
                    self.look(process.machine.slice)

    def look(self, slice: Slice) -> None:
        """Walks from the tasks of a slice to the objects that they hold."""
        known: set[int] = set()
        waiting: list[object] = list(slice.tasks)
        while waiting:
            one = waiting.pop()
            if id(one) in known:
                continue
            known.add(id(one))
            for name, value in fields(one).items():
                waiting += self._of_field(type(one), name, value)

    def _of_field(self, kind: type, name: str, value: Any) -> Iterator[object]:
        listed = same = False
        for base in kind.__mro__:
            self.seen.add((base.__name__, name))
            listed = listed or any(name in table.get(base.__name__, "").split() for table in (RESTORED, ANEW))
            same = same or name in SAME.get(base.__name__, "").split()
        if listed or (issubclass(kind, CutState) and name in cut_fields(kind)):
            return
        if name in changed() and not same:
            self.undeclared[kind.__name__].add(name)
        else:
            yield from held(value)


def held(value: Any) -> Iterator[object]:
    """Objects of a constant that have fields of their own."""
    if isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from held(one)
    elif isinstance(value, dict | MappingProxyType):
        for one in value.values():
            yield from held(one)
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            yield from held(cell.cell_contents)
    elif isinstance(value, MethodType):
        yield from held(value.__self__)
    elif type(value).__module__.startswith(WALKED) and not isinstance(value, (type, *DOORS)):
        yield value


PROGRAM = (
    "counted", "aggregated", "windowed", "in_columns", "in_splits", "scattered", "joined", "visited",
    "judged", "merged", "set_aside", "windowed_behind", "in_order",
    "called",
)  # fmt: skip
"""Programs that have every kind of object between them."""


@pytest.fixture(scope="module")
def found() -> Fields:
    fields = Fields()
    for program in PROGRAM:
        what = replace(scenario(0, program), depth=1, replaces=True, n=40)
        assert run_scenario(what, shadows=fields).wrong == []  # type: ignore[arg-type]
    return fields


def test_each_field_of_a_task_is_declared(found: Fields) -> None:
    assert not found.undeclared, "say beside the class that it is state at a cut, or list here why a replacement has it"


def test_each_field_that_is_listed_is_there(found: Fields) -> None:
    listed = {
        (kind, name) for table in (SAME, RESTORED, ANEW) for kind, names in table.items() for name in names.split()
    }
    assert listed <= found.seen


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def __init__(self):\n    self.a = self.b = 0", set()),
        ("def step(self):\n    self.a = other.b", {"a"}),
        ("def step(self):\n    self.a += 1", {"a"}),
        ("def step(self):\n    self.a.b.append(1)", {"b"}),
        ("def step(self):\n    one.a[3] = 4", {"a"}),
        ("def step(self):\n    del self.a", {"a"}),
        ("def step(self):\n    queue, b = self.a, 3\n    queue.popleft()", {"a"}),
        ("def step(self):\n    return self.a.b(self.c)", set()),
    ],
)
def test_a_change_of_a_field_is_seen(code: str, names: set[str]) -> None:
    (function,) = ast.parse(code).body
    assert isinstance(function, ast.FunctionDef)
    assert set(changes_in(function)) == names
