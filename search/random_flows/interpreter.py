"""The result of a random flow, by plain Python that goes through it record by record. It shares only the description with
Tailrace's dataflow.

Where a loop may do things in several orders, only what is common to all of them is expected: how often a key was visited,
not by which record; the sum of a window's results, where it may have several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from search.random_flows import script
from search.random_flows.description import LEVELS, Do, Events, Flow, Fork, Loop, Step
from tailrace.graph.operators import How

MODULUS, KEYS, HOLD, WINDOW, GAP, COUNT, BEST, LAG, LIVES = 10_007, 5, 3, 8, 2, (1, 3), 3, 2, (1, 3, 8)
HOWS: tuple[How, ...] = ("inner", "left", "right", "full", "semi", "anti")
WITHIN = ((-2, 3), (0, 4), (-5, -1), (2, 2))
VALID = 2
"""How long a version counts, in seconds."""
RULES = 5
"""A record is broadcast where its id is a multiple of this."""


@dataclass(frozen=True)
class Moving:
    """A record on its way."""

    id: int
    left: tuple[int, ...]
    value: int
    time: int
    passes: int = 0
    """Number of times that a function has held it until `finish`, in its outermost loop."""

    def enter(self, loop: Loop) -> Moving:
        """The record as it comes into a loop."""
        digit = (self.id * 7 + loop.number * 3) % (loop.laps + 1)
        wound = self._with_left(loop.level, digit)
        return wound if loop.level else replace(wound, passes=0)

    def lap(self, loop: Loop) -> Moving:
        """The record as it comes back."""
        again = self._with_left(loop.level, self.left[loop.level] - 1)
        return again.worth((self.value + 1) % MODULUS)

    def worth(self, value: int) -> Moving:
        """The record with another value."""
        return replace(self, value=value)

    def _with_left(self, level: int, digit: int) -> Moving:
        return replace(self, left=(*self.left[:level], digit, *self.left[level + 1 :]))


@dataclass
class Result:
    """The records that are published in the end."""

    exactly: Counter[Any] = field(default_factory=Counter)
    sums: dict[Any, list[int]] = field(default_factory=dict)
    """Sums of several results of a window."""
    most: dict[Any, int] = field(default_factory=dict)
    """Maxima of several results."""

    def add(self, record: Any) -> None:
        """Adds one more published record."""
        if record[0] == "sum":
            _, number, key, start, count, worth = record
            have = self.sums.setdefault((number, key, start), [0, 0])
            have[0] += count
            have[1] += worth
        elif record[0] == "most":
            *place, value = record[1:]
            self.most[tuple(place)] = max(value, self.most.get(tuple(place), value))
        elif record[0] == "out":
            self.exactly[record[:-1]] += record[-1]
        else:
            self.exactly[record] += 1

    def differences(self, found: Result) -> Iterator[str]:
        """Descriptions of how the result that was found differs from this one, which was expected."""
        lost, more = self.exactly - found.exactly, found.exactly - self.exactly
        if lost:
            yield f"{lost.total()} records of {self.exactly.total()} were lost, as {_some(lost)}"
        if more:
            yield f"{more.total()} records are too many, as {_some(more)}"
        for what, mine, theirs in (("sum", self.sums, found.sums), ("largest", self.most, found.most)):
            wrong = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]  # type: ignore[attr-defined]
            for key in wrong[:3]:
                yield f"the {what} of {key} is {theirs.get(key)}, not {mine.get(key)}"  # type: ignore[attr-defined]

    def beyond(self, expected: Result) -> Iterator[str]:
        """Descriptions of records in this result, found before a job had ended, that are not expected at all."""
        more = self.exactly - expected.exactly
        if more:
            yield f"{more.total()} records are too many, as {_some(more)}"


def _some(records: Counter[Any]) -> str:
    return ", ".join(map(repr, list(records)[:3]))


def gather(records: Iterable[Any]) -> Result:
    """The result of these published records."""
    found = Result()
    for record in records:
        found.add(record)
    return found


def expected_result(flow: Flow) -> Result:
    """The result that must be published."""
    return _Interpreter(flow).result()


def rests(flow: Flow) -> Counter[int]:
    """Upper bound of the times that each outermost loop comes to rest and has `finish` called. Each rest brings all
    records past at least one function that holds them until then. Another rest follows only if something was fed back
    after it."""
    interpreter = _Interpreter(flow)
    interpreter.result()
    return interpreter.rests


class _Interpreter:
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.found = Result()
        self.visits: Counter[Any] = Counter()
        """(report, operator, key): number of reports."""
        self.windows: dict[Any, list[int]] = {}
        """(in a loop, operator, key, start): number and total value of records."""
        self.fired: dict[Any, list[int]] = {}
        """(operator, key, start) of windows that fire early and late: number and total value of records."""
        self.sessions: dict[Any, list[tuple[int, int, int]]] = {}
        """(operator, key): (time, gap, value) of each record."""
        self.joined: dict[tuple[str, int], tuple[list[Moving], list[Moving]]] = {}
        """(kind, operator): the records of each input of a join."""
        self.tables: dict[int, tuple[list[int], list[int]]] = {}
        """Operator: the ids of the records of each input of a join of changes."""
        self.counted: Counter[Any] = Counter()
        """(operator, key): number of records."""
        self.passed: Counter[Any] = Counter()
        """(operator, key): number of records so far."""
        self.best: dict[Any, list[int]] = {}
        """(operator, key): the values of its records."""
        self.ruled: dict[int, tuple[set[int], Counter[int]]] = {}
        """Operator: the keys of its records, and the ids of those that are broadcast."""
        self.in_time: dict[int, list[tuple[int, int, int]]] = {}
        """Operator: (time, id, key) of its records."""
        self.sets: Counter[Any] = Counter()
        """(operator, key): number of visits of a set."""
        self.seconds: dict[Any, Counter[int]] = {}
        """(operator, key): number of records in each second."""
        self.lives: dict[Any, Counter[int]] = {}
        """(operator, key): the same, where state has a time to live."""
        self.brought: set[int] = set()
        """Operators that have brought more records in."""
        self.around: list[Loop] = []
        self.rests: Counter[int] = Counter()
        """Upper bound of the rests of each outermost loop."""
        self.rounds: Counter[int] = Counter()
        """Current round of each loop in rounds."""

    def result(self) -> Result:
        for i in range(self.flow.source.n):
            if script.is_ahead(self.flow.source, i):
                self.found.exactly["ahead", self.flow.source.first, i] += 1
        for record in self.steps(self.flow.steps, list(_records(self.flow.source))):
            self.found.exactly["out", record.id, record.left, record.value] += 1
        self.visited()
        for number, key in self.sets:
            self.members(number, key)
        for (number, key), seconds in self.seconds.items():
            for rank, second in enumerate(sorted(seconds), 1):
                self.found.exactly["second", number, key, rank, second, seconds[second]] += 1
        for (number, key), seconds in self.lives.items():
            for report in _left(LIVES[number % len(LIVES)], seconds):
                self.found.exactly["lived", number, key, *report] += 1
        for (inside, number, key, begin), (count, worth) in self.windows.items():
            what = "sum" if inside else "window"
            self.found.add((what, number, key, begin, count, worth))
        for (number, key, begin), (count, worth) in self.fired.items():
            self.found.add(("final", number, key, begin))
            if number % 2:
                self.found.add(("sum", number, key, begin, count, worth))
            else:
                self.found.add(("most", number, key, begin, "n", count))
                self.found.add(("most", number, key, begin, "worth", worth))
        for (number, key), total in self.counted.items():
            full, rest = divmod(total, COUNT[number % 2])
            self.found.exactly["counted", number, key, COUNT[number % 2]] += full
            self.found.exactly["counted", number, key, rest] += bool(rest)
        for number, records in self.in_time.items():
            for time, ident, _ in records:
                come = sum(at <= time and one % RULES == 0 for at, one, _ in records)
                self.found.exactly["until then", number, ident, come] += 1
                for before in {one for at, _, one in records if at < time} if ident % RULES == 0 else ():
                    self.found.exactly["ruled", number, before, ident] += 1
        for number, (keys, rules) in self.ruled.items():
            for key in keys:
                for rule in rules:
                    self.found.exactly["ruled", number, key, rule] += rules[rule]
        for (number, key), values in self.best.items():
            best = sorted(values)[-BEST:]
            self.found.add(("sum", number, key, 0, len(best), sum(best)))
        for (kind, number), sides in self.joined.items():
            for row in _JOINS[kind](number, *sides):
                self.found.exactly["version" if kind.startswith("version") else "joined", number, *row] += 1
        for number, ids in self.tables.items():
            for key in range(KEYS):
                left, right = [[one for one in some if one % KEYS == key and script.stays(one)] for some in ids]
                for a, b in _pairs(interval_of(number)[0], left, right):
                    self.found.add(("sum", number, key, 0, 1, script.worth_of_pair(a, b)))
        for (number, key), visits in self.sessions.items():
            for session in _sessions(visits):
                self.found.add(("window", number, key, *session))
        return self.found

    def steps(self, steps: tuple[Step, ...], records: list[Moving]) -> list[Moving]:
        for step in steps:
            if isinstance(step, Loop):
                records = self.loop(step, records)
            elif isinstance(step, Fork):
                even, odd = [r for r in records if r.id % 2 == 0], [r for r in records if r.id % 2]
                records = self.steps(step.left, even) + self.steps(step.right, odd)
            else:
                records = self.operator(step, records)
        return records

    def visited(self, within: Collection[int] | None = None) -> None:
        """Numbers the visits of operators, of these or of all, that have begun without state."""
        for what, number, key in [one for one in self.visits if within is None or one[1] in within]:
            for i in range(self.visits.pop((what, number, key))):
                self.found.exactly[what, number, key, i % 7 + 1 if what == "log" else i + 1] += 1

    def loop(self, loop: Loop, records: list[Moving]) -> list[Moving]:
        """The records behind a loop. By spans, all of a span leave it with the time of its last moment."""
        if loop.span is None:
            return self.turns(loop, records)
        out, inside = [], {do.number for do in replace(self.flow, steps=loop.body).operators()}
        for span in sorted({record.time // loop.span for record in records}):
            last = (span + 1) * loop.span - 1
            found = [replace(record, time=last) for record in records if record.time // loop.span == span]
            out += self.turns(loop, found)
            self.visited(inside)
        return out

    def turns(self, loop: Loop, records: list[Moving]) -> list[Moving]:
        """The records behind a loop, or behind a span of its input."""
        todo, out = [record.enter(loop) for record in records], []
        self.around.append(loop)
        self.rounds[loop.number] = 0
        while True:
            done = self.steps(loop.body, todo)
            out += [record for record in done if record.left[loop.level] <= 0]
            todo = [record.lap(loop) for record in done if record.left[loop.level] > 0]
            outermost = self.around[0].number
            self.rests[outermost] = max(1, self.rests[outermost], *(record.passes + 1 for record in todo))
            self.rounds[loop.number] += 1
            last = loop.rounds in ("at most", "until") and self.rounds[loop.number] == loop.limit
            if last or not todo:
                break
        self.around.pop()
        return out

    def operator(self, do: Do, records: list[Moving]) -> list[Moving]:
        """The records behind an operator, by its kind."""
        number, kind = do.number, do.kind
        if kind in ("map", "batches", "called"):
            return [record.worth((record.value * 31 + number) % MODULUS) for record in records]
        if kind == "twin":
            return [record for record in records for _ in range(2)]
        if kind == "join":
            first = self.flow.table.first
            table = {(first + i) % KEYS: first + i for i in range(self.flow.table.n)}
            return [record.worth((record.value + 7 * table[record.id % KEYS] + 1) % MODULUS) for record in records]
        if kind == "held":
            return [replace(record, time=record.time + HOLD) for record in records]
        if kind == "times":
            return [replace(record, time=script.anew(record.id)) for record in records]
        if kind == "hoard":
            return [replace(record, passes=record.passes + 1) for record in records]
        if kind == "more":
            return records + self.more(do)
        for record in records:
            self.tell(kind, number, record)
        if kind == "to the round's end":
            counts = Counter(record.id % KEYS for record in records)
            round = self.rounds[self.around[-1].number]
            for key, count in counts.items():
                self.found.exactly["round", number, key, round, count] += 1
        return records

    def members(self, number: int, key: int) -> None:
        """Counts the members of a set at each visit: it grows three times, and shrinks to three members the fourth
        time."""
        members: list[int] = []
        for visit in range(1, self.sets[number, key] + 1):
            if visit % 4:
                members = sorted({*members, *((visit * 31 + i * 17) % 257 for i in range(3))})
            else:
                members = members[:3]
            for one in members:
                self.found.exactly["member", number, key, visit, one] += 1

    def more(self, do: Do) -> list[Moving]:
        """Records that come in beside the others, once."""
        if do.number in self.brought:
            return []
        assert do.events is not None
        self.brought.add(do.number)
        entering = list(_records(do.events))
        for loop in self.around:
            entering = [record.enter(loop) for record in entering]
        return self.steps(do.inside, entering)

    def tell(self, kind: str, number: int, record: Moving) -> None:
        """Counts the reports of an operator on a record that it lets pass."""
        key = record.id % KEYS
        if kind == "count":
            self.visits["visit", number, key] += 1
        elif kind == "bags":
            for what in ("bag", f"shelf {record.id % 3}", "log"):
                self.visits[what, number, key] += 1
        elif kind == "failing" and (record.id + number) % 3 == 0:
            self.found.exactly["failed", number, record.id] += 1
        elif kind == "failing" and number % 6 == 2:
            self.found.most[number, key, "n"] = self.found.most.get((number, key, "n"), 0) + 1
        elif kind == "failing" and number % 3 != 1:
            self.tell("bags", number, record)
        elif kind in ("sets", "sets in flight"):
            self.sets[number, key] += 1
        elif kind == "lived":
            self.lives.setdefault((number, key), Counter())[record.time] += 1
        elif kind in ("in order", "both in order"):
            self.seconds.setdefault((number, key), Counter())[record.time] += 1
        elif kind == "readings":
            self.visits["pair", number, key] += 1
        elif kind == "together":
            group = record.id // 6 % 3
            self.visits["together", number, group] += 1
            self.visits["pair", number, key] += 1
            self.found.add(("sum", number, group, 0, 1, 0))
        elif kind == "ties":
            self.found.exactly["tie", number, record.id] = 1
        elif kind == "reducing":
            self.visits["reduced", number, key] += 1
            self.visits["aggregated", number, key] += 1
        elif kind in ("running", "running in columns"):
            self.found.most[number, key, "n"] = self.found.most.get((number, key, "n"), 0) + 1
            self.found.add(("most", number, key, "low", -record.value))
            self.found.add(("most", number, key, "high", record.value))
        elif kind in ("fired", "fired of columns"):
            late = kind == "fired" and number % 3 == 0 and not self.flow.endless
            time = script.anew(record.id) if late else record.time
            begin = time - time % WINDOW
            window = self.fired.setdefault((number, key, begin), [0, 0])
            window[0] += 1
            window[1] += record.value
        elif kind in _JOINS:
            self.joined.setdefault((kind, number), ([], []))[record.id % 2].append(record)
        elif kind == "whole":
            self.found.add(("sum", number, key, 0, 1, record.value))
        elif kind == "changes joined":
            self.tables.setdefault(number, ([], []))[record.id % 2].append(record.id)
            self.found.add(("sum", number, key, 0, 1, 0))
        elif kind == "counted":
            self.counted[number, key] += 1
        elif kind == "ruled in order":
            self.in_time.setdefault(number, []).append((record.time, record.id, key))
        elif kind == "ruled":
            keys, rules = self.ruled.setdefault(number, (set(), Counter()))
            keys.add(key)
            rules[record.id] += record.id % RULES == 0
        elif kind in ("distinct", "distinct in columns", "distinct within", "last of each"):
            self.found.exactly["distinct", number, record.id] = 1
        elif kind == "best":
            self.best.setdefault((number, key), []).append(record.value)
        elif kind == "lagged":
            self.passed[number, key] += 1
            self.found.add(("sum", number, key, 0, 1, int(self.passed[number, key] <= LAG)))
        elif kind == "limited":
            self.found.add(("sum", number, key, 0, 1, record.value))
        elif kind == "looked up":
            self.found.add(("sum", number, key, 0, 1, 3 * key + 1 if key % 5 else 0))
        elif kind == "batched":
            self.found.add(("sum", number, 0, 0, 1, record.value))
        elif kind in ("sessions", "sessions of columns"):
            own = record.id % 3 if kind == "sessions" else key
            gap = own + 1 if number % 3 == 0 else GAP
            self.sessions.setdefault((number, key), []).append((record.time, gap, record.value))
        elif kind in ("tumbling", "windows of columns", "sliding"):
            first = record.time - record.time % WINDOW
            begins = [first]
            if kind == "sliding":
                half = WINDOW // 2
                latest = record.time - record.time % half
                begins = [latest, latest - half]
            for begin in begins:
                window = self.windows.setdefault((bool(self.around), number, key, begin), [0, 0])
                window[0] += 1
                window[1] += record.value


def interval_of(number: int) -> tuple[How, tuple[int, int]]:
    """The kind of an interval join with this number, and its bounds in seconds."""
    return HOWS[number % len(HOWS)], WITHIN[number // len(HOWS) % len(WITHIN)]


def _interval_join(number: int, first: list[Moving], second: list[Moving]) -> Iterator[tuple[Any, ...]]:
    """The key, both ids and the time of each result of an interval join."""
    how, (before, after) = interval_of(number)
    partners: tuple[set[int], set[int]] = set(), set()
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            if a.id % KEYS == b.id % KEYS and before <= b.time - a.time <= after:
                partners[0].add(i)
                partners[1].add(j)
                if how not in ("semi", "anti"):
                    yield a.id % KEYS, a.id, b.id, max(a.time, b.time)
    for i, a in enumerate(first):
        if (how in ("left", "full", "anti") and i not in partners[0]) or (how == "semi" and i in partners[0]):
            yield a.id % KEYS, a.id, None, a.time + max(0, after)
    for j, b in enumerate(second):
        if how in ("right", "full") and j not in partners[1]:
            yield b.id % KEYS, None, b.id, b.time + max(0, -before)


def _window_join(
    number: int, first: list[Moving], second: list[Moving], sessions: bool, how: How | None = None
) -> Iterator[tuple[Any, ...]]:
    """The key and both ids of each result of a join by windows."""
    how = how or interval_of(number)[0]
    for key in range(KEYS):
        sides = [[one for one in some if one.id % KEYS == key] for some in (first, second)]
        times = sorted(one.time for some in sides for one in some)
        for window in _window_times(sessions, times):
            here = [[one for one in some if one.time in window] for some in sides]
            yield from ((key, a, b, 0) for a, b in _pairs(how, *[[one.id for one in some] for some in here]))


def _window_times(sessions: bool, times: list[int]) -> Iterator[set[int]]:
    """The times of the records of each window."""
    if not sessions:
        for first in sorted({time - time % WINDOW for time in times}):
            yield {*range(first, first + WINDOW)}
        return
    window: set[int] = set()
    for time in times:
        if window and time > max(window) + GAP:
            yield window
            window = set()
        window.add(time)
    yield window


def _pairs(how: How, first: list[int], second: list[int]) -> Iterator[tuple[int | None, int | None]]:
    """The ids of each result of a join of these records, of which each fits each."""
    if how in ("semi", "anti"):
        yield from ((a, None) for a in first if bool(second) is (how == "semi"))
        return
    yield from ((a, b) for a in first for b in second)
    if not second and how in ("left", "full"):
        yield from ((a, None) for a in first)
    if not first and how in ("right", "full"):
        yield from ((None, b) for b in second)


def _version_join(number: int, first: list[Moving], second: list[Moving]) -> Iterator[tuple[Any, ...]]:
    """The key, the id, whether there is a version, by its key, and the time of each record of the first input."""
    for a in first:
        key = a.id % KEYS
        newest = max((b.time for b in second if b.id % KEYS == key and b.time <= a.time), default=None)
        there = newest is not None and (number % 2 == 0 or newest + VALID >= a.time)
        yield key, a.id, key if there else None, a.time


_JOINS: dict[str, Callable[[int, list[Moving], list[Moving]], Iterator[tuple[Any, ...]]]] = {
    "interval join": _interval_join,
    "interval join of columns": _interval_join,
    "window join": lambda number, a, b: _window_join(number, a, b, number % 2 == 1),
    "window join of columns": lambda number, a, b: _window_join(number, a, b, False),
    "session join of columns": lambda number, a, b: _window_join(number, a, b, True),
    "lists of columns": lambda number, a, b: _window_join(number, a, b, number % 2 == 1, "full"),
    "version join": _version_join,
    "version join of columns": _version_join,
}
"""Kind of a join -> its results."""


def _left(lifetime: int, seconds: Counter[int]) -> Iterator[tuple[Any, ...]]:
    """What is left of state with a time to live at the end of each second: records, seconds in a row, newest seconds."""
    streak = total = 0
    before: int | None = None
    newest: dict[int, int] = {}
    for second in sorted(seconds):
        streak = 1 if before is None or second - before >= lifetime else streak + 1
        before, newest[second % 3] = second, second
        total += seconds[second]
        weight = sum(n for at, n in seconds.items() if second - lifetime < at <= second)
        yield second, weight, streak, tuple(sorted(at for at in newest.values() if at > second - lifetime)), total


def _sessions(visits: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """The start, the number of records and their total value, for each session of a key."""
    begin = end = count = worth = 0
    for time, gap, value in sorted(visits):
        if count and time > end:
            yield begin, count, worth
            count = worth = 0
        begin, end = (begin, max(end, time + gap)) if count else (time, time + gap)
        count, worth = count + 1, worth + value
    yield begin, count, worth


def _records(events: Events) -> Iterator[Moving]:
    for i in range(events.n):
        if script.is_ahead(events, i):
            continue
        number = events.first + i % events.distinct
        yield Moving(number, (0,) * LEVELS, number, script.at(events, i))
