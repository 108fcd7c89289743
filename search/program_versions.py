"""Versions of programs for `search.changes`: operators that may have a uid, and classes of objects that are defined anew
for each version. Each program gives every number of its source once, as (number, error in the object beside it)."""

from __future__ import annotations

import enum
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

import tailrace as tr
from search.watchers.checker import Ledger

_MODULE = "tailrace_changing"
"""Name of the module of the class that versions define: it is there while a change is checked."""
NEW = "new"
"""The default of each field."""
_RATE = 60_000


# Classes.


def _dataclass(fields: tuple[str, ...], **options: Any) -> type:
    made = type("Held", (), {"__annotations__": dict.fromkeys(fields, str), **dict.fromkeys(fields, NEW), **_HERE})
    return dataclass(**options)(made)


def _with_factories(fields: tuple[str, ...]) -> type:
    defaults = {one: field(default_factory=lambda: NEW) for one in fields}
    return dataclass(type("Held", (), {"__annotations__": dict.fromkeys(fields, str), **defaults, **_HERE}))


def _without_defaults(fields: tuple[str, ...]) -> type:
    return dataclass(slots=True)(type("Held", (), {"__annotations__": dict.fromkeys(fields, str), **_HERE}))


def _named_tuple(fields: tuple[str, ...]) -> type:
    made: Any = NamedTuple("Held", [(one, str) for one in fields])  # type: ignore[misc]
    made.__new__.__defaults__ = (NEW,) * len(fields)
    made._field_defaults = dict.fromkeys(fields, NEW)
    made.__module__ = _MODULE
    return made  # type: ignore[no-any-return]


def _struct(fields: tuple[str, ...], **options: Any) -> type:
    return msgspec.defstruct("Held", [(one, str, NEW) for one in fields], module=_MODULE, **options)


def _enum(fields: tuple[str, ...]) -> type:
    """An Enum whose values are the positions of its members: members have other values when they change places."""
    return _enum_of(fields, int)


def _enum_of(fields: tuple[str, ...], value: Callable[[int], Any]) -> type:
    members = {one: value(i) for i, one in enumerate(fields)}
    made: Any = enum.Enum("Held", members, module=_MODULE)  # type: ignore[misc]
    return made  # type: ignore[no-any-return]


_HERE = {"__module__": _MODULE, "__qualname__": "Held"}
_FORMS: dict[str, Callable[[tuple[str, ...]], type]] = {
    "dataclass": _dataclass,
    "slots": lambda fields: _dataclass(fields, slots=True),
    "frozen slots": lambda fields: _dataclass(fields, slots=True, frozen=True),
    "factories": _with_factories,
    "no defaults": _without_defaults,
    "named tuple": _named_tuple,
    "enum": _enum,
    "enum of decimals": lambda fields: _enum_of(fields, Decimal),
    "struct": _struct,
    "array": lambda fields: _struct(fields, array_like=True),
    "kw_only": lambda fields: _struct(fields, kw_only=True),
}
FORMS = tuple(_FORMS)


def define(form: str, fields: tuple[str, ...]) -> None:
    """Defines the class of a version."""
    module: Any = sys.modules.setdefault(_MODULE, ModuleType(_MODULE))
    module.Held = _FORMS[form](fields or ("a",))


def forget() -> None:
    """Removes the class of the last version."""
    sys.modules.pop(_MODULE, None)


def _kind() -> Any:
    return sys.modules[_MODULE].Held  # type: ignore[attr-defined]


def make(n: int) -> Any:
    """An object that has its own name in each field; for an Enum, a member."""
    kind = _kind()
    if issubclass(kind, enum.Enum):
        members = list(kind)
        return members[n % len(members)]
    return kind(**{one: one for one in _fields(kind)})


def _fields(kind: Any) -> list[str]:
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    return list(names or kind.__dataclass_fields__)


def misplacement(held: Any, n: int) -> str:
    """Description of what an object made by `made` has in the wrong place; empty where all is right, and for an Enum,
    whose member `judged` checks."""
    kind = _kind()
    if type(held) is not kind:
        return f"is {held!r}"
    if isinstance(held, enum.Enum):
        return ""
    wrong = [one for one in _fields(kind) if getattr(held, one, None) not in (one, NEW)]
    return f"has {[getattr(held, one, None) for one in wrong]} in {wrong}" if wrong else ""


def pair(n: int) -> Any:
    """A record of a nested object, the name of its member where it is of an Enum, and its class."""
    held = make(n)
    return {"held": [held], "said": held.name if isinstance(held, enum.Enum) else "", "of": type(held)}


def judge(found: Any, n: int) -> str:
    """Description of what is wrong with a record that was `pair(n)`; empty where it is right."""
    [held] = found["held"]
    if found["of"] is not _kind():
        return f"refers to {found['of']!r}"
    if isinstance(held, enum.Enum) and held.name != found["said"]:
        return f"is {held.name} and was {found['said']}"
    return misplacement(held, n)


# Operators that hold objects.


class _Value(tr.KeyedProcessFunction):
    state = tr.ValueState()

    def process(self, n: int, ctx: tr.Context) -> Iterator[Any]:
        found = self.state.value
        if found is None:
            self.state.value = pair(n)
        yield n, "" if found is None else judge(found, n)


class _List(tr.KeyedProcessFunction):
    state = tr.ListState()

    def process(self, n: int, ctx: tr.Context) -> Iterator[Any]:
        found = list(self.state.get())
        if len(found) < 3:
            self.state.append(pair(n))
        yield n, "".join(judge(one, n) for one in found)


class _Map(tr.KeyedProcessFunction):
    state = tr.MapState(str, object)

    def process(self, n: int, ctx: tr.Context) -> Iterator[Any]:
        found = self.state.get("first")
        if found is None:
            self.state["first"] = pair(n)
        yield n, "" if found is None else judge(found, n)


class _Operator(tr.ProcessFunction):
    state = tr.OperatorState(list, default=[])

    def process(self, n: int, ctx: tr.Context) -> Iterator[Any]:
        found = self.state.value
        if len(found) < 3:
            self.state.value = [*found, pair(n)]
        yield n, "".join(judge(one, n) for one in found)


class _First(tr.AggregateFunction):
    """The first number with its object, and the last number."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return (value, pair(value)) if accumulator is None else (value, accumulator[1])

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0], judge(accumulator[1], accumulator[0])

    def merge(self, a: Any, b: Any) -> Any:
        return a


def _numbers(env: tr.Environment, n: int, uid: str = "numbers") -> tr.DataStream:
    return env.from_source(tr.sources.Sequence(0, n, rate=_RATE), uid=uid)


def _key_numbers(env: tr.Environment, n: int) -> tr.KeyedStream:
    return _numbers(env, n).key_by(lambda v: v % 7)


def _declare(kind: type) -> type:
    """A function whose state is declared as a class. msgspec encodes the state where the class is a struct."""

    class Declared(tr.KeyedProcessFunction):
        state = tr.ValueState(kind)

        def process(self, n: int, ctx: tr.Context) -> Iterator[Any]:
            found = self.state.value
            if found is None:
                self.state.value = make(0)
            yield n, "" if found is None else misplacement(found, 0)

    return Declared


def _round_trip(n: int) -> tuple[int, int, Any]:
    return n, n % 4, pair(n)


def _lap(record: tuple[int, int, Any]) -> tuple[int, int, Any]:
    return record[0], record[1] - 1, record[2]


def _loop(env: tr.Environment, n: int) -> Any:
    def body(records: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        fed = records.map(_lap, uid="lap")
        return fed.filter(lambda r: r[1] > 0, uid="back"), fed.filter(lambda r: r[1] <= 0, uid="out of it")

    out = _numbers(env, n).map(_round_trip, uid="objects").rebalance().iterate(body, uid="X")
    return out.map(lambda r: (r[0], judge(r[2], r[0])), uid="judged")


def _in_flight(env: tr.Environment, n: int) -> Any:
    paired = _numbers(env, n).map(lambda v: (v, pair(v)), uid="objects")
    return paired.rebalance().map(lambda r: (r[0], judge(r[1], r[0])), uid="X")


PLACES: dict[str, Callable[[tr.Environment, int], Any]] = {
    "object in a value": lambda env, n: _key_numbers(env, n).process(_Value(), uid="X"),
    "object in a list": lambda env, n: _key_numbers(env, n).process(_List(), uid="X"),
    "object in a map": lambda env, n: _key_numbers(env, n).process(_Map(), uid="X"),
    "object in an operator state": lambda env, n: _numbers(env, n).rebalance().process(_Operator(), uid="X"),
    "object in an accumulator": lambda env, n: (
        _key_numbers(env, n).aggregate(_First(), uid="X").map(lambda r: r[1], uid="unkeyed")
    ),
    "object that is declared": lambda env, n: _key_numbers(env, n).process(_declare(_kind())(), uid="X"),
    "object in flight": _in_flight,
    "object in a loop": _loop,
}
"""Programs that hold an object of the class, by the place where they hold it."""


# Operators of other kinds.


class _Hold(tr.ProcessFunction):
    kept = tr.OperatorState(list, default=[])

    def process(self, n: int, ctx: tr.Context) -> None:
        self.kept.value.append(n)

    def finish(self, ctx: tr.Context) -> Iterator[int]:
        kept, self.kept.value = self.kept.value, []
        yield from kept


class _HoldElsewhere(tr.ProcessFunction):
    held = tr.OperatorState(list, default=[])

    def process(self, n: int, ctx: tr.Context) -> None:
        self.held.value.append(n)

    def finish(self, ctx: tr.Context) -> Iterator[int]:
        held, self.held.value = self.held.value, []
        yield from held


class _Single(tr.ProcessFunction):
    seen = tr.OperatorState(int, default=0)

    def process(self, n: int, ctx: tr.Context) -> Iterator[int]:
        self.seen.value += 1
        yield n


class _Int(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)

    def process(self, n: int, ctx: tr.Context) -> Iterator[int]:
        self.count.value += 1
        yield n


class _Dict(tr.KeyedProcessFunction):
    count = tr.ValueState(dict, default={})

    def process(self, n: int, ctx: tr.Context) -> Iterator[int]:
        self.count.value = {**self.count.value, n: 1}
        yield n


class _Either(tr.KeyedProcessFunction):
    count = tr.ValueState(int | dict, default=0)  # type: ignore[arg-type]

    def process(self, n: int, ctx: tr.Context) -> Iterator[int]:
        yield n


class _Listing(tr.KeyedProcessFunction):
    count = tr.ListState(int)

    def process(self, n: int, ctx: tr.Context) -> Iterator[int]:
        self.count.append(n)
        yield n


class _Timed(tr.KeyedProcessFunction):
    """Emits each number when its timer fires, at the end of event time."""

    count = tr.ValueState(int, default=0)

    def process(self, n: int, ctx: tr.Context) -> None:
        ctx.set_timer(event_time=10_000 + n)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[int]:
        yield round(timestamp) - 10_000


class _Both(tr.CoProcessFunction):
    count = tr.ValueState(int, default=0)

    def process1(self, n: int, ctx: tr.Context) -> Iterator[Any]:
        self.count.value += 1
        yield n, "" if not n % 2 else "is odd, and came to the even ones"

    def process2(self, n: int, ctx: tr.Context) -> Iterator[Any]:
        self.count.value += 1
        yield n, "" if n % 2 else "is even, and came to the odd ones"


class _BothSwapped(tr.CoProcessFunction):
    count = tr.ValueState(int, default=0)

    def process1(self, n: int, ctx: tr.Context) -> Iterator[Any]:
        yield n, "" if n % 2 else "is even, and came to the odd ones"

    def process2(self, n: int, ctx: tr.Context) -> Iterator[Any]:
        yield n, "" if not n % 2 else "is odd, and came to the even ones"


def _connect(swapped: bool) -> Callable[[tr.Environment, int], Any]:
    def build(env: tr.Environment, n: int) -> Any:
        even = _numbers(env, (n + 1) // 2, "evens").map(lambda v: 2 * v, uid="even")
        odd = _numbers(env, n // 2, "odds").map(lambda v: 2 * v + 1, uid="odd")
        one, other = (odd, even) if swapped else (even, odd)
        both = one.connect(other).key_by(lambda v: v % 5, lambda v: v % 5)
        return both.process(_BothSwapped() if swapped else _Both(), uid="X")

    return build


def _passing(env: tr.Environment, n: int, fn: Any) -> Any:
    return _key_numbers(env, n).process(fn, uid="X")


def _in_columns(env: tr.Environment, n: int) -> Any:
    import pyarrow as pa

    columns = (
        _numbers(env, n).map(lambda v: (v,), uid="as tuples").to_columns(pa.schema([("n", pa.int64())]), uid="columns")
    )
    return columns.map_batches(lambda batch: batch, uid="X").to_rows(uid="rows").map(lambda row: row.n, uid="number")


def _aggregate(env: tr.Environment, n: int, aggregate: str) -> Any:
    """The numbers of each key, recovered from an aggregate: 1, 2, … from a count, and the number itself from a sum or a
    maximum."""
    keyed = _numbers(env, n).key_by(lambda v: v)
    if aggregate == "count":
        return keyed.count(uid="X").map(lambda r: r[0] + r[1] - 1, uid="number")
    if aggregate == "sum":
        return keyed.sum(lambda v: v, uid="X").map(lambda r: r[1], uid="number")
    return keyed.reduce(max, uid="X")


def _window(env: tr.Environment, n: int, size: int) -> Any:
    stamped = _numbers(env, n).assign_timestamps(lambda v: v, 5.0, uid="times")
    return (
        stamped.key_by(lambda v: v).window(tr.Tumbling(size)).reduce(max, uid="X").map(lambda r: r.value, uid="number")
    )


def _counting_down(env: tr.Environment, n: int, rounds: tr.Rounds | None) -> Any:
    def body(records: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        fed = records.map(lambda r: (r[0], r[1] - 1), uid="lap")
        return fed.filter(lambda r: r[1] > 0, uid="back"), fed.filter(lambda r: r[1] <= 0, uid="out of it")

    out = _numbers(env, n).map(lambda v: (v, v % 4), uid="pairs").rebalance().iterate(body, rounds=rounds, uid="X")
    return out.map(lambda r: r[0], uid="number")


def _iterate() -> Iterator[int]:
    return itertools.count()


OPERATORS: dict[str, Callable[[tr.Environment, int], Any]] = {
    "source": lambda env, n: _numbers(env, n, "X").map(lambda v: v, uid="m"),
    "generator": lambda env, n: env.from_source(tr.sources.Generator(lambda i: i, count=n, rate=_RATE), uid="X").map(
        lambda v: v, uid="m"
    ),
    "iterator": lambda env, n: env.from_source(tr.sources.Generator(_iterate, count=n, rate=_RATE), uid="X").map(
        lambda v: v, uid="m"
    ),
    "collection": lambda env, n: env.from_collection(range(n), uid="X").map(lambda v: v, uid="m"),
    "map": lambda env, n: _numbers(env, n).map(lambda v: v, uid="X"),
    "map behind a shuffle": lambda env, n: _numbers(env, n).rebalance().map(lambda v: v, uid="X"),
    "filter": lambda env, n: _numbers(env, n).rebalance().filter(lambda v: True, uid="X"),
    "flat_map": lambda env, n: _numbers(env, n).rebalance().flat_map(lambda v: [v], uid="X"),
    "map_batches": _in_columns,
    "timestamps": lambda env, n: (
        _numbers(env, n).assign_timestamps(lambda v: v, 5.0, uid="X").map(lambda v: v, uid="m")
    ),
    "hold": lambda env, n: _numbers(env, n).rebalance().process(_Hold(), uid="X"),
    "hold elsewhere": lambda env, n: _numbers(env, n).rebalance().process(_HoldElsewhere(), uid="X"),
    "single": lambda env, n: _numbers(env, n).rebalance().process(_Single(), uid="X"),
    "value of int": lambda env, n: _passing(env, n, _Int()),
    "value of dict": lambda env, n: _passing(env, n, _Dict()),
    "value of either": lambda env, n: _passing(env, n, _Either()),
    "list": lambda env, n: _passing(env, n, _Listing()),
    "timers": lambda env, n: _passing(env, n, _Timed()),
    "plain function": lambda env, n: _passing(env, n, lambda v, ctx: [v]),
    "connected": _connect(False),
    "connected, swapped": _connect(True),
    "count": lambda env, n: _aggregate(env, n, "count"),
    "sum": lambda env, n: _aggregate(env, n, "sum"),
    "reduce": lambda env, n: _aggregate(env, n, "reduce"),
    "windows of 50": lambda env, n: _window(env, n, 50),
    "windows of 20": lambda env, n: _window(env, n, 20),
    "loop": lambda env, n: _counting_down(env, n, None),
    "loop in rounds": lambda env, n: _counting_down(env, n, tr.Rounds()),
}
"""Programs by the kind of operator that has the uid X."""
ALIKE = (
    ("source", "generator", "iterator", "collection"),
    ("hold", "hold elsewhere", "single"),
    ("value of int", "value of dict", "value of either"),
    ("list", "timers", "plain function"),
    ("connected", "connected, swapped"),
    ("count", "sum", "reduce"),
    ("windows of 50", "windows of 20"),
    ("loop", "loop in rounds"),
)
"""Groups of operators that are most easily taken for each other."""


def build(env: tr.Environment, operator: str, n: int, book: str) -> None:
    """Builds a program whose numbers go to the book of this name."""
    found = PLACES[operator](env, n) if operator in PLACES else OPERATORS[operator](env, n)
    found.map(lambda r: r if isinstance(r, tuple) else (r, ""), uid="told").sink_to(Ledger(book), uid="out")
