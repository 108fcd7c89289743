"""The join of two tables that change: streams of changes in, changes of the joined table out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

from tailrace.api.checks.arguments import title_of
from tailrace.api.checks.event_time import check_lifetimes
from tailrace.api.functions import Context, CoProcessFunction
from tailrace.api.joins.writing import check_how, check_select, check_sides, part_options
from tailrace.api.nodes import add_node
from tailrace.api.restore.kinds import Shaped
from tailrace.errors import ConfigError, GraphError, short_repr
from tailrace.graph import operators as ops
from tailrace.graph.operators import How
from tailrace.state.handles import Declaring, MapState, State, ValueState
from tailrace.state.ttl import Ttl, check_ttl

PADDED = {"left": (True, False), "right": (False, True), "full": (True, True)}
"""Kind of a join -> for each input, whether its records without a partner are in the joined table."""


def write_changes(stream: Any, other: Any, how: Any, ttl: Any, select: Any, options: dict[str, Any]) -> Any:
    """The stream of changes of the join of two tables that change. Raises what `KeyedStream.join_changes` does."""
    verb = title_of("join_changes", options)
    how = check_how(how, get_args(How), verb)
    check_select(select, how, verb)
    try:
        lifetime = check_ttl(ttl, "join")
    except ConfigError as error:
        raise GraphError(f"{verb}: {error}") from None
    if lifetime is not None and lifetime.refresh == "read":
        raise GraphError(
            f'{verb}: ttl counts from the time at which a record came; leave refresh="read" out: a record whose partners '
            f"come now and then would stay for ever"
        )
    edges = check_sides(stream, other, verb)
    fn = ChangeJoin(how, lifetime)
    check_lifetimes(fn, [stream, other], edges, verb)
    operator = ops.CoProcess(fn, (stream.key, other.key), "drop", False)
    node = add_node(stream, operator, (*edges[0], *edges[1]), "join_changes", options, "rows", None)
    joined = stream._of(node)
    if select is None:
        return joined
    own = part_options(options, "select") | {"on_error": options.get("on_error")}
    return joined._add(ops.Map(SelectChange(select)), "join_changes.select", own)


class ChangeJoin(CoProcessFunction, Shaped, Declaring):
    """Changes of the join of two tables, each of which comes as changes ("+" or "-", record).

    Each record that is there has a number. `marks` of an input are the numbers of the records that stand alone in the joined
    table now: without a partner where `how` pads them, and by themselves in a semi or an anti join. So what is taken back
    is what was emitted, also where a time to live has removed partners meanwhile.
    """

    number: ValueState
    rows: tuple[MapState, MapState]
    marks: tuple[MapState, MapState]

    def __init__(self, how: How, ttl: Ttl | None) -> None:
        self.how = how
        self.ttl = ttl
        self.pads = PADDED.get(how, (False, False))

    def declared_states(self) -> dict[str, State]:
        kinds = ("first", "second", "first_alone", "second_alone")
        return {
            "number": ValueState(int, default=0, ttl=self.ttl),
            **{name: MapState(int, object, ttl=self.ttl) for name in kinds},
        }

    def shape(self) -> list[str]:
        return [f"{self.how} join of changes"]

    def open(self, ctx: Any) -> None:
        bound: Any = self
        self.rows = bound.first, bound.second
        self.marks = bound.first_alone, bound.second_alone

    def process1(self, change: Any, ctx: Context) -> Iterator[Any]:
        return self._join(0, change, ctx)

    def process2(self, change: Any, ctx: Context) -> Iterator[Any]:
        return self._join(1, change, ctx)

    def _join(self, port: int, change: Any, ctx: Context) -> Iterator[Any]:
        op, record = parts_of(change)
        if op == "+":
            number = self._insert(port, record)
            return self._filter_in(port, number, record) if self._filters else self._add_pairs(port, number, record)
        gone = self._delete(port, record)
        if gone is None:
            ctx.metrics.inc("unknown_records")
            return iter(())
        return self._filter_out(port, gone, record) if self._filters else self._drop_pairs(port, gone, record)

    @property
    def _filters(self) -> bool:
        return self.how in ("semi", "anti")

    # The tables.

    def _insert(self, port: int, record: Any) -> int:
        number: int = self.number.value
        self.number.value = number + 1
        self.rows[port][number] = record
        return number

    def _delete(self, port: int, record: Any) -> int | None:
        """Removes the oldest record that is equal, and returns its number. None if there is none and a time to live may be
        the reason; raises `ValueError` otherwise."""
        number: int
        for number, held in self.rows[port].items():
            if held == record:
                del self.rows[port][number]
                return number
        if self.ttl is None:
            raise ValueError(
                f"{short_repr(record, 200)} is taken back, and is not there: each ('-', record) needs an equal "
                f"('+', record) before it, of the same key"
            )
        return None

    def _mark(self, port: int, number: int) -> None:
        self.number.value = self.number.value  # it outlives all marks, so that no record gets the number of an old one
        self.marks[port][number] = True

    def _unmark(self, port: int, number: int) -> bool:
        """Removes a mark; returns True if it was there."""
        marked = number in self.marks[port]
        if marked:
            del self.marks[port][number]
        return marked

    # Joins with pairs.

    def _add_pairs(self, port: int, number: int, record: Any) -> Iterator[Any]:
        partners = self.rows[1 - port].items()
        if not partners and self.pads[port]:
            self._mark(port, number)
            yield "+", pair(port, record, None)
        for other, partner in partners:
            if self._unmark(1 - port, other):
                yield "-", pair(port, None, partner)
            yield "+", pair(port, record, partner)

    def _drop_pairs(self, port: int, number: int, record: Any) -> Iterator[Any]:
        if self._unmark(port, number):
            yield "-", pair(port, record, None)
            return
        alone = self.pads[1 - port] and not self.rows[port]
        for other, partner in self.rows[1 - port].items():
            yield "-", pair(port, record, partner)
            if alone:
                self._mark(1 - port, other)
                yield "+", pair(port, None, partner)

    # Semi and anti joins.

    def _filter_in(self, port: int, number: int, record: Any) -> Iterator[Any]:
        if port == 0:
            if bool(self.rows[1]) is (self.how == "semi"):
                self._mark(0, number)
                yield "+", record
            return
        for other, first in self.rows[0].items():
            marked = self._unmark(0, other)
            if self.how == "semi":
                self._mark(0, other)
                if not marked:
                    yield "+", first
            elif marked:
                yield "-", first

    def _filter_out(self, port: int, number: int, record: Any) -> Iterator[Any]:
        if port == 0:
            if self._unmark(0, number):
                yield "-", record
            return
        if self.rows[1]:
            return
        for other, first in self.rows[0].items():
            marked = self._unmark(0, other)
            if self.how == "anti":
                self._mark(0, other)
                if not marked:
                    yield "+", first
            elif marked:
                yield "-", first


class SelectChange:
    """Calls of the user's function of two records with the pair of a change."""

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        self.fn = fn

    def __call__(self, change: Any) -> Any:
        op, records = change
        return op, self.fn(*records)


def pair(port: int, own: Any, other: Any) -> tuple[Any, Any]:
    """The pair of a record of input `port` and one of the other input, the first stream's in front."""
    return (own, other) if port == 0 else (other, own)


def parts_of(change: Any) -> tuple[str, Any]:
    """The parts of a change. Raises `TypeError` for what is none."""
    if not (isinstance(change, tuple) and len(change) == 2 and change[0] in ("+", "-")):
        raise TypeError(
            f"a change is ('+', record) or ('-', record), not {short_repr(change, 200)}; for a stream of records that only "
            f"come, call map(lambda record: ('+', record)) before key_by"
        )
    return change
