"""The construction of the dataflow of a random flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pyarrow.compute as pc

import tailrace as tr
from search.random_flows import functions as fn
from search.random_flows import script
from search.random_flows.description import LEVELS, Do, Events, Flow, Fork, Loop, Step
from search.random_flows.interpreter import VALID, interval_of, rests

WINDOW = 8
"""The size of windows, in seconds of event time; some slide by half of it."""
COUNT = (1, 3)
"""Numbers of records of windows that do not depend on time."""
TIMEOUT = 0.002
"""Seconds of the clock after which a window of so many records is over."""
GAP = 2
"""The gap of sessions, in seconds of event time."""
WITHIN = 300.0
"""Seconds of event time for which a key is kept: longer than all events of a flow last."""
LAG = 2
"""Number of places by which a record is before another one."""
BEST = 3
"""Number of the best records."""
LATENESS = 50_000
"""Lateness, in seconds of event time, that no record has before the end of its input."""

BESIDE = (
    "running", "running in columns", "tumbling", "sliding", "windows of columns", "in order", "both in order",
    "interval join", "interval join of columns", "window join", "window join of columns", "version join",
    "version join of columns", "session join of columns", "lists of columns", "lived",
    "sessions", "sessions of columns", "counted", "distinct", "distinct in columns", "distinct within", "best", "batched",
    "fired", "fired of columns",
    "ruled", "ruled in order",
    "last of each", "lagged", "limited", "looked up", "together", "whole", "changes joined",
)  # fmt: skip
"""Kinds of operators that emit to an output of their own, beside which the stream goes on."""


def start(loop: Loop) -> Callable[[Any], Any]:
    """A function that sets the digit of a record that comes into a loop."""
    level, outermost = loop.level, loop.level == 0
    return lambda r: (
        r[0],
        (*r[1][:level], digit(r[0], loop.number, loop.laps), *r[1][level + 1 :]),
        r[2],
        r[3],
        0 if outermost else r[4],
    )


def digit(number: int, loop: int, laps: int) -> int:
    """Number of laps of a record in a loop."""
    return (number * 7 + loop * 3) % (laps + 1)


class Building:
    """A builder that writes a flow into an environment."""

    def __init__(self, flow: Flow, env: tr.Environment, phase: int = 0, counting: bool = True) -> None:
        self.flow, self.env, self.phase, self.counting = flow, env, phase, counting
        self.rests = rests(flow)
        self.around: list[Loop] = []
        self.reports: list[list[tr.DataStream]] = [[]]
        """Reports of operators, for each loop around the current place."""
        self.records: dict[Events, tr.DataStream] = {}
        self.origin = flow.source
        """The source whose event time bounds the event time at the current place."""

    def everything(self) -> tr.DataStream:
        """All records that come out, and all reports of operators."""
        out = self.steps(self.flow.steps, self.of(self.flow.source, "source"))
        out = out.map(lambda r: ("out", *r[:3], r[3]), uid="out")
        return out.union(*self.reports[0])

    def of(self, events: Events, uid: str) -> tr.DataStream:
        """The records of a source, outside of any loop."""
        if events in self.records:
            return self.records[events]
        width = {"parallelism": events.parallelism}
        source = fn.SharedScript(events) if events.shared else fn.Script(events)
        stream = self.env.from_source(source, uid=uid, **width)
        if events.timed and not events.stamped_inside:
            silent = (script.longest_pause(events) + 1) / 1e6 if events.falls_silent else None
            stream = stream.assign_timestamps(
                lambda i: script.stamp(events, i),
                float(events.disorder),
                idle_after=silent,
                when_all_idle="advance" if events.goes_on else "wait",
                max_drift=events.drift,
                most_ahead="1 hour" if events.ahead else None,
                uid=f"{uid}-times",
            )
            if events.ahead:
                aside = stream.side_output("ahead")
                self.reports[0].append(aside.map(lambda i: ("ahead", events.first, i), uid=f"{uid}-ahead"))
        kept = stream.filter(lambda i: i < events.n, uid=f"{uid}-kept")
        found = self.records[events] = kept.map(lambda i: _record(events, i), uid=f"{uid}-records")
        return found

    def steps(self, steps: tuple[Step, ...], stream: tr.DataStream) -> tr.DataStream:
        """The stream behind these steps."""
        for step in steps:
            if isinstance(step, Loop):
                stream = self.loop(step, stream)
            elif isinstance(step, Fork):
                left = self.steps(step.left, stream.filter(lambda r: r[0] % 2 == 0, uid=f"left{step.number}"))
                right = self.steps(step.right, stream.filter(lambda r: r[0] % 2 == 1, uid=f"right{step.number}"))
                stream = left.union(right)
            else:
                stream = self.operator(step, stream)
        return stream

    # Operators.

    def operator(self, do: Do, stream: tr.DataStream) -> tr.DataStream:
        """The stream behind one operator."""
        make: Any = getattr(self, "_" + do.kind.replace(" ", "_").replace("'", ""))
        out = make(do, _by_way(do, stream), {"uid": f"op{do.number}", "parallelism": do.parallelism})
        return stream if do.kind in BESIDE else out  # type: ignore[no-any-return]

    def tell(self, stream: tr.DataStream) -> None:
        """Adds a stream to the reports, in the current loop or outside."""
        self.reports[-1].append(stream)

    def _numbering(self, kind: Any, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        out = stream.key_by(fn.key_of).process(kind, **options)
        self.tell(out.side_output("told"))
        return out

    def _map(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        return stream.map(fn.Moved(number) if number % 2 else lambda r: fn.move(r, number), **options)

    def _called(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        orders: tuple[Literal[True, False, "key"], ...] = (True, False, "key")
        number, order = do.number, orders[do.number % 3]
        called = stream.key_by(fn.key_of) if order == "key" else stream
        batch = 3 if number % 2 and order != "key" else None
        again = tr.Retry(2, wait=0.0002)
        return called.map_async(
            fn.Called(number), capacity=3 + number % 5, ordered=order, batch=batch, retry=again, **options
        )

    def _twin(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return stream.flat_map(lambda r: [r, r], **options)

    def _count(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return self._numbering(fn.Count(do.number), do, stream, options)

    def _bags(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return self._numbering(fn.Bags(do.number), do, stream, options)

    def _reducing(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return self._numbering(fn.Reducing(do.number), do, stream, options)

    def _to_the_rounds_end(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return self._numbering(fn.ToTheRoundsEnd(do.number), do, stream, options)

    def _extra(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        """An operator with state and without reports: it may come and go between two runs."""
        return stream.key_by(fn.key_of).process(fn.Count(do.number), **options) if self.phase in do.phases else stream

    def _running(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        running = stream.key_by(fn.key_of).aggregate(
            n=tr.Sum(lambda r: r[3]), low=tr.Min(lambda r: r[2]), high=tr.Max(lambda r: r[2]), **options
        )
        self.tell(running.flat_map(lambda r: _most(number, *r), uid=f"most{number}"))
        return stream

    def _running_in_columns(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        columns = stream.map(fn.as_columns, uid=f"as{number}").to_columns(fn.COLUMNS, uid=f"columns{number}")
        running = columns.key_by(_key_of(do)).aggregate(
            n=tr.Sum("weight"), low=tr.Min("value"), high=tr.Max("value"), **options
        )
        self.tell(running.flat_map(lambda r: _most(number, *r), uid=f"most{number}"))
        return stream

    def _batches(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        columns = stream.map(fn.as_columns, uid=f"as{number}").to_columns(fn.COLUMNS, uid=f"columns{number}")
        return columns.map_batches(fn.MovedBatches(number), **options).map(fn.as_record, uid=f"rows{number}")

    def _join(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        """A join with a table whose stream has an operator of its own, maybe at another parallelism."""
        table = self.of(self.flow.table, "table").enter(stream.scope)
        table = table.map(tuple, uid=f"table{do.number}", parallelism=do.parallelism)
        return stream.connect(table).key_by(fn.key_of, fn.key_of).process(_Joined(), uid=options["uid"])

    def _drawn(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        """An operator whose numbers no replay gives again, with two readers. They meet behind it: a record passes where
        both have received one number."""
        drawn = stream.map(fn.drawn, **options)
        other = drawn.key_by(lambda pair: fn.key_of(pair[0]) + 1).map(lambda pair: pair, uid=f"other{do.number}")
        by_key = lambda pair: fn.key_of(pair[0])  # noqa: E731
        return drawn.connect(other).key_by(by_key, by_key).process(fn.Met(), uid=f"met{do.number}")

    def _owner(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return stream.broadcast().process(fn.Owner(), **options)

    def _hoard(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        if not self.counting:
            return stream.process(fn.Uncounted(), **options)
        most = self.rests[self.around[0].number] if self.around else 1
        out = stream.process(fn.Hoard(do.number, most), **options)
        self.tell(out.side_output("told"))
        return out

    def _later(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return stream.key_by(fn.key_of).process(fn.Later(), **options)

    def _held(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return self._numbering(fn.Held(do.number, self.origin), do, stream, options)

    def _last_call(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return stream.key_by(fn.key_of).process(fn.LastCall(), **options)

    def _at_the_end(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return stream.key_by(fn.key_of).process(fn.LastCall(fn.THE_END), **options)

    def _times(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        """Times that are assigned anew, so far out of order that nothing is late however often it comes around."""
        return stream.assign_timestamps(lambda r: script.anew(r[0]), float(script.SPREAD), **options)

    def _more(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        assert do.events is not None
        if do.phases and self.phase not in do.phases:
            return stream
        more = self.of(do.events, f"more{do.number}").enter(stream.scope)
        around, origin, events = tuple(self.around), self.origin, do.events
        self.origin = events
        wound = more.map(lambda r: _entering(around, r), **options)
        if events.stamped_inside:
            wound = wound.assign_timestamps(
                lambda r: script.at(events, r[0] - events.first),
                float(script.disorder_inside(events)),
                uid=f"stamped{do.number}",
            )
        entering = self.steps(do.inside, wound)
        self.origin = origin
        return stream.union(entering)

    def _sets(self, do: Do, stream: tr.DataStream, options: Any, whole: bool = False) -> tr.DataStream:
        """An operator with sets. Its reports go to the next subtasks in turn and by no key, so that the share of each
        subtask depends on their order."""
        out = stream.key_by(fn.key_of).process(fn.Sets(do.number, whole), **options)
        reports = out.side_output("told")
        if whole:
            reports = reports.rebalance().flat_map(fn.each_member, uid=f"each{do.number}")
        self.tell(reports.rebalance().map(lambda r: r, uid=f"dealt{do.number}"))
        return out

    def _sets_in_flight(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return self._sets(do, stream, options, whole=True)

    def _ties(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        out = stream.key_by(lambda r: r[0]).process(fn.Ties(do.number), **options)
        self.tell(out.side_output("told").rebalance().map(lambda r: r, uid=f"dealt{do.number}"))
        return out

    def _readings(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        """An operator that gives each record something that it has read of a clock, or drawn at random. It goes to two
        readers, and where they come together each has to find that of the other."""
        read = fn.READINGS[do.number % len(fn.READINGS)]
        marked = stream.map(lambda r: (r, read()), **options)
        one = marked.rebalance().map(lambda both: both, uid=f"one{do.number}")
        other = marked.partition_by(lambda both: both[0][0]).map(lambda both: both, uid=f"other{do.number}")
        pairs = one.union(other).key_by(lambda both: fn.key_of(both[0]))
        self.tell(pairs.process(fn.Pairs(do.number), uid=f"pairs{do.number}").side_output("told"))
        return marked.map(lambda both: both[0], uid=f"unmarked{do.number}")

    def _together(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        """An operator whose function sees which records come together. What it says of each goes to two readers, as in
        "readings". Of odd ones several records have one timestamp; but not in a loop whose input never ends, where no record
        would bring such times to their end, and event time leaves a loop only as far as all of it has come."""
        number, odd = do.number, bool(do.number % 2) and not (self.flow.endless and self.around)
        if odd:
            stream = stream.assign_timestamps(fn.seconds_of_group, LATENESS, uid=f"seconds{number}")
        by_the_clock = number % 4 == 0 or self.flow.endless
        marked = stream.key_by(fn.group_of).process(fn.Together(number, by_the_clock), **options)
        self.tell(marked.side_output("told"))
        one = marked.rebalance().map(lambda both: both, uid=f"one{number}")
        other = marked.partition_by(lambda both: both[0][0]).map(lambda both: both, uid=f"other{number}")
        pairs = one.union(other).key_by(lambda both: fn.key_of(both[0]))
        self.tell(pairs.process(fn.Pairs(number), uid=f"pairs{number}").side_output("told"))
        return stream

    # Functions in the order of time: a stream goes on beside them.

    def _in_order(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        key: Any = fn.key_of
        if number % 2:
            stream, key = (
                stream.map(fn.as_columns, uid=f"as{number}").to_columns(fn.COLUMNS, uid=f"columns{number}"),
                "key",
            )
        return self._ordered(number, stream.key_by(key).process(fn.InOrder(number), in_order=True, **options))

    def _lived(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        out = stream.key_by(fn.key_of).process(fn.lived(do.number), in_order=True, **options)
        return self._ordered(do.number, out)

    def _both_in_order(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        left = stream.filter(lambda r: r[0] % 2 == 0, uid=f"left{number}")
        both = left.connect(stream.filter(lambda r: r[0] % 2 == 1, uid=f"right{number}")).key_by(fn.key_of, fn.key_of)
        return self._ordered(number, both.process(fn.BothInOrder(number), in_order=True, **options))

    def _ordered(self, number: int, out: tr.DataStream) -> tr.DataStream:
        self.tell(out.side_output("told"))
        self.tell(out.side_output("late").map(lambda r: ("late", number, *r), uid=f"late{number}"))
        return out

    def _failing(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        """An operator that fails for some records: a process function, a function without state or of batches, a key, or
        an aggregate beside which the stream goes on. These records come back from its side output, and are reported."""
        number = do.number
        aside = tr.Aside("failed")
        policy = aside if number % 2 else tr.Retry(2, then=aside)
        options |= {"on_error": policy}
        record = lambda one: one.record  # noqa: E731
        if number % 3 == 0:
            out = guarded = stream.key_by(fn.key_of).process(fn.Failing(number), **options)
            self.tell(guarded.side_output("told"))
        elif number % 6 == 1:
            out = guarded = stream.flat_map(lambda r: fn.record_then_error(r, number), **options)
        elif number % 6 == 4:
            columns = stream.map(fn.as_columns, uid=f"as{number}").to_columns(fn.COLUMNS, uid=f"columns{number}")
            guarded = columns.map_batches(lambda batch: fn.batch_or_error(batch, number), **options)
            out, record = guarded.map(fn.as_record, uid=f"rows{number}"), lambda one: fn.as_record(one.record)
        elif number % 6 == 5:
            guarded = stream.key_by(lambda r: fn.key_or_error(r, number), on_error=policy, uid=f"key{number}")
            out = guarded.process(fn.Bags(number), uid=options["uid"], parallelism=do.parallelism)
            self.tell(out.side_output("told"))
        else:
            out = stream
            of = tr.Sum(lambda r: fn.weight_or_error(r, number))
            guarded = stream.key_by(fn.key_of).aggregate(n=of, **options)
            self.tell(guarded.map(lambda r: ("most", number, r[0], "n", r[1]), uid=f"most{number}"))
        failed = guarded.side_output("failed").map(record, uid=f"failed{number}")
        self.tell(failed.flat_map(lambda r: [("failed", number, r[0])] * r[3], uid=f"reported{number}"))
        return out if out is stream else out.union(failed)

    def _ruled(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        """A function to which some of the records are broadcast: a stream goes on beside it."""
        rules = stream.filter(fn.is_rule, uid=f"rules{do.number}")
        ruled = stream.key_by(fn.key_of).connect(rules.broadcast()).process(fn.Ruled(do.number), **options)
        self.tell(ruled.side_output("told"))
        return stream

    def _ruled_in_order(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        rules = stream.filter(fn.is_rule, uid=f"rules{do.number}")
        both = stream.key_by(fn.key_of).connect(rules.broadcast())
        return self._ordered(do.number, both.process(fn.RuledInOrder(do.number), ordered=True, **options))

    # Windows: a stream goes on beside them.

    def _windows(self, do: Do, windows: Any, stream: tr.DataStream) -> tr.DataStream:
        number = do.number
        late = windows.side_output("late")
        self.tell(late.map(lambda r: ("late", number, *r), uid=f"late{number}"))
        what = "sum" if self.around else "window"
        self.tell(windows.process(fn.NotTooEarly(what, number, self.origin), uid=f"checked{number}"))
        return stream

    def _tumbling(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        windows = stream.key_by(fn.key_of).window(tr.Tumbling(WINDOW))
        counted = windows.aggregate(n=tr.Sum(lambda r: r[3]), worth=tr.Sum(lambda r: r[2] * r[3]), **options)
        return self._windows(do, counted, stream)

    def _sliding(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        worth = stream.map(lambda r: (r[0], r[3], r[2] * r[3]), uid=f"worth{do.number}")
        windows = worth.key_by(fn.key_of).window(tr.Sliding(WINDOW, WINDOW // 2))
        counted = windows.aggregate(n=tr.Sum(lambda r: r[1]), worth=tr.Sum(lambda r: r[2]), **options)
        return self._windows(do, counted, stream)

    def _windows_of_columns(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        columns = stream.map(fn.as_columns, uid=f"as{do.number}").to_columns(fn.COLUMNS, uid=f"columns{do.number}")
        windows = columns.key_by(_key_of(do)).window(tr.Tumbling(WINDOW))
        return self._windows(do, windows.aggregate(n=tr.Sum("weight"), worth=tr.Sum("worth"), **options), stream)

    def _sessions(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        longer = self._longer
        windows = stream.key_by(fn.key_of).window(tr.Session(self._gap(do, lambda r: 1 + r[0] % 3 + longer)))
        counted = windows.aggregate(n=tr.Sum(lambda r: r[3]), worth=tr.Sum(lambda r: r[2] * r[3]), **options)
        return self._windows(do, counted, stream)

    def _sessions_of_columns(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        columns = stream.map(fn.as_columns, uid=f"as{do.number}").to_columns(fn.COLUMNS, uid=f"columns{do.number}")
        gap = self._gap(do, "gap")
        if gap == "gap":
            columns = columns.with_columns(gap=pc.add(pc.field("key"), 1 + self._longer), uid=f"gap{do.number}")
        windows = columns.key_by(_key_of(do)).window(tr.Session(gap))
        return self._windows(do, windows.aggregate(n=tr.Sum("weight"), worth=tr.Sum("worth"), **options), stream)

    def _fired(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        if do.number % 3 == 0 and not self.flow.endless:  # many of these records are late
            stream = stream.assign_timestamps(lambda r: script.anew(r[0]), uid=f"late{do.number}")
        windows = stream.key_by(fn.key_of).window(tr.Tumbling(WINDOW), **_firings(do))
        fired = windows.aggregate(n=tr.Sum(lambda r: r[3]), worth=tr.Sum(lambda r: r[2] * r[3]), **options)
        return self._firings(do, fired, stream)

    def _fired_of_columns(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        columns = stream.map(fn.as_columns, uid=f"as{do.number}").to_columns(fn.COLUMNS, uid=f"columns{do.number}")
        windows = columns.key_by(_key_of(do)).window(tr.Tumbling(WINDOW), **_firings(do))
        return self._firings(do, windows.aggregate(n=tr.Sum("weight"), worth=tr.Sum("worth"), **options), stream)

    def _firings(self, do: Do, fired: tr.DataStream, stream: tr.DataStream) -> tr.DataStream:
        timed = None if do.kind == "fired" and do.number % 3 == 0 else self.origin
        self.tell(fired.process(fn.Firings(do.number, timed), uid=f"checked{do.number}"))
        return stream

    def _gap(self, do: Do, own: Any) -> Any:
        """The gap of sessions: one for all, or that of each record."""
        return own if do.number % 3 == 0 else GAP + self._longer

    @property
    def _longer(self) -> float:
        """Seconds by which gaps are longer where records are held for fractions of a second, which the interpreter does
        not follow: none of these may decide whether two records touch."""
        return 0.5 if any(step.kind == "held" for step in self.flow.operators()) else 0

    def _counted(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number, size = do.number, COUNT[do.number % 2]
        counted = stream.key_by(fn.key_of).window(tr.CountWindow(size)).process(fn.sizes, **options)
        self.tell(counted.map(lambda r: ("counted", number, *r), uid=f"counted{number}"))
        return stream

    def _whole(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        windows = tr.CountWindow(COUNT[1], timeout=TIMEOUT) if number % 2 else tr.Global()
        early = tr.Every(records=2, seconds=TIMEOUT / 2) if number % 3 else None
        parts = stream.key_by(fn.key_of).window(windows, early=early, discarding=early is not None)
        sums = parts.aggregate(n=tr.Count(), worth=tr.Sum(lambda r: r[2]), **options)
        self.tell(sums.map(lambda r: ("sum", number, r.key, 0, r.n, r.worth), uid=f"whole{number}"))
        return stream

    def _distinct(self, do: Do, stream: tr.DataStream, options: Any, within: float | None = None) -> tr.DataStream:
        number = do.number
        distinct = stream.key_by(lambda r: r[0]).drop_duplicates(within, **options)
        self.tell(distinct.map(lambda r: ("distinct", number, r[0]), uid=f"distinct{number}"))
        return stream

    def _distinct_within(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        return self._distinct(do, stream, options, WITHIN)

    def _distinct_in_columns(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        columns = stream.map(fn.as_columns, uid=f"as{number}").to_columns(fn.COLUMNS, uid=f"columns{number}")
        distinct = columns.key_by("id").drop_duplicates(**options)
        self.tell(distinct.map(lambda r: ("distinct", number, r.id), uid=f"distinct{number}"))
        return stream

    def _best(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        changes = stream.key_by(fn.key_of).top(BEST, by=lambda r: r[2], **options)
        self.tell(changes.map(lambda r: ("sum", number, r.key, 0, *_signed(r)), uid=f"best{number}"))
        return stream

    def _batched(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        lists = stream.batch(3, **options)
        self.tell(lists.map(lambda r: ("sum", number, 0, 0, len(r), sum(one[2] for one in r)), uid=f"batched{number}"))
        return stream

    # Joins of even ids with odd ones: the stream goes on beside them.

    def _changes_joined(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number, (how, _) = do.number, interval_of(do.number)
        sides = [
            half.flat_map(fn.as_changes, uid=f"changes{i}of{number}").key_by(lambda change: fn.key_of(change[1]))
            for i, half in enumerate(self._halves(do, stream))
        ]
        joined = sides[0].join_changes(sides[1], how=how, **options)
        self.tell(joined.map(lambda change: fn.joined_change(number, how, change), uid=f"joined{number}"))
        self.tell(stream.map(lambda r: ("sum", number, fn.key_of(r), 0, 1, 0), uid=f"there{number}"))
        return stream

    def _interval_join(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        how, within = interval_of(do.number)
        left, right = self._halves(do, stream)
        joined = left.key_by(fn.key_of).join(right.key_by(fn.key_of), within=within, how=how, **options)
        return self._joined(do, joined, stream)

    def _interval_join_of_columns(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        how, within = interval_of(number)
        left, right = self._halves_in_columns(do, stream)
        return self._joined_in_columns(do, left.join(right, within=within, how=how, **options), stream)

    def _window_join(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        how, _ = interval_of(do.number)
        left, right = self._halves(do, stream)
        window = tr.Session(GAP) if do.number % 2 else tr.Tumbling(WINDOW)
        joined = left.key_by(fn.key_of).join(right.key_by(fn.key_of), window=window, how=how, **options)
        return self._joined(do, joined, stream, timed=False)

    def _window_join_of_columns(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        how, _ = interval_of(do.number)
        left, right = self._halves_in_columns(do, stream)
        joined = left.join(right, window=tr.Tumbling(WINDOW), how=how, **options)
        return self._joined_in_columns(do, joined, stream, timed=False)

    def _session_join_of_columns(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        how, _ = interval_of(do.number)
        left, right = self._halves_in_columns(do, stream)
        joined = left.join(right, window=tr.Session(GAP), how=how, **options)
        return self._joined_in_columns(do, joined, stream, timed=False)

    def _lists_of_columns(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        left, right = self._halves_in_columns(do, stream)
        windows = tr.Session(GAP) if number % 2 else tr.Tumbling(WINDOW)
        lists = left.co_group(right, window=windows, **options)
        self.tell(lists.process(lambda row, ctx: fn.listed_rows(number, row, ctx), uid=f"joined{number}"))
        self.tell(lists.side_output("late").map(lambda r: ("late", number, *fn.as_record(r)), uid=f"late{number}"))
        return stream

    def _version_join_of_columns(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        left, right = self._halves_in_columns(do, stream)
        keep = VALID if number % 2 else None
        joined = left.join_as_of(right, how="left", keep=keep, **options)
        self.tell(
            joined.process(
                lambda row, ctx: fn.version_rows(number, fn.pair_of(row), ctx),
                uid=f"joined{number}",
            )
        )
        self.tell(joined.side_output("late").map(lambda r: ("late", number, *fn.as_record(r)), uid=f"late{number}"))
        return stream

    def _version_join(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        left, right = self._halves(do, stream)
        keep = VALID if do.number % 2 else None
        joined = left.key_by(fn.key_of).join_as_of(right.key_by(fn.key_of), how="left", keep=keep, **options)
        late = joined.side_output("late")
        self.tell(late.map(lambda r: ("late", do.number, *r), uid=f"late{do.number}"))
        number = do.number
        self.tell(joined.process(lambda pair, ctx: fn.version_rows(number, pair, ctx), uid=f"joined{number}"))
        return stream

    def _halves(self, do: Do, stream: tr.DataStream) -> list[tr.DataStream]:
        return [
            stream.filter(lambda r: r[0] % 2 == 0, uid=f"left{do.number}"),
            stream.filter(lambda r: r[0] % 2 == 1, uid=f"right{do.number}"),
        ]

    def _halves_in_columns(self, do: Do, stream: tr.DataStream) -> list[tr.KeyedStream]:
        number = do.number
        return [
            half.map(fn.as_columns, uid=f"as{i}of{number}")
            .to_columns(fn.COLUMNS, uid=f"columns{i}of{number}")
            .key_by("key")
            for i, half in enumerate(self._halves(do, stream))
        ]

    def _joined_in_columns(
        self, do: Do, joined: tr.DataStream, stream: tr.DataStream, timed: bool = True
    ) -> tr.DataStream:
        number = do.number
        self.tell(
            joined.process(
                lambda row, ctx: fn.joined_rows(number, fn.pair_of(row), ctx, timed),
                uid=f"joined{number}",
            )
        )
        self.tell(joined.side_output("late").map(lambda r: ("late", number, *fn.as_record(r)), uid=f"late{number}"))
        return stream

    def _joined(self, do: Do, joined: tr.DataStream, stream: tr.DataStream, timed: bool = True) -> tr.DataStream:
        number = do.number
        self.tell(joined.process(lambda value, ctx: fn.joined_rows(number, value, ctx, timed), uid=f"joined{number}"))
        self.tell(joined.side_output("late").map(lambda r: ("late", number, *r), uid=f"late{number}"))
        return stream

    def _last_of_each(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        last = stream.key_by(lambda r: r[0]).drop_duplicates(keep="last", **options)
        self.tell(last.map(lambda r: ("distinct", number, r[0]), uid=f"distinct{number}"))
        return stream

    def _lagged(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        pairs = stream.key_by(fn.key_of).lag(LAG, of=lambda r: r[0], **options)
        firsts = pairs.map(lambda r: ("sum", number, fn.key_of(r[0]), 0, 1, int(r[1] is None)), uid=f"lagged{number}")
        self.tell(firsts)
        return stream

    def _limited(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        passed = stream.key_by(fn.key_of).rate_limit(1, per=0.001, **options)
        for name, part in (("passed", passed), ("over", passed.side_output("over"))):
            self.tell(part.map(lambda r: ("sum", number, fn.key_of(r), 0, 1, r[2]), uid=f"{name}{number}"))
        return stream

    def _looked_up(self, do: Do, stream: tr.DataStream, options: Any) -> tr.DataStream:
        number = do.number
        columns = stream.map(fn.as_columns, uid=f"as{number}").to_columns(fn.COLUMNS, uid=f"columns{number}")
        given = columns if number % 2 else columns.to_rows(uid=f"rows{number}")
        found = given.lookup(fn.table_of_keys, on="key", refresh=0.002, **options)
        rows = found.to_rows(uid=f"found{number}") if number % 2 else found
        self.tell(rows.map(lambda one: fn.found_in_table(one, number), uid=f"told{number}"))
        return stream

    # Loops.

    def loop(self, loop: Loop, stream: tr.DataStream) -> tr.DataStream:
        """The stream behind one loop. Reports of operators inside leave the loop beside its output."""
        stream = stream.map(start(loop), uid=f"start{loop.number}")
        in_columns = loop.feedback == "columns" and not loop.separate
        if in_columns:
            stream = stream.map(fn.as_columns, uid=f"as{loop.number}").to_columns(
                fn.COLUMNS, uid=f"columns{loop.number}"
            )

        if loop.feedback == "broadcast" and not loop.separate:
            stream = stream.broadcast()

        def body(given: Any) -> Any:
            self.around.append(loop)
            self.reports.append([])
            inside = self._inside(loop, given)
            if in_columns:
                inside = inside.map(fn.as_record, uid=f"rows{loop.number}")
            out = self.steps(loop.body, inside)
            self.around.pop()
            reports = self.reports.pop()
            return _fed_back(loop, out, in_columns), (_finish(loop, out), *_together(reports))

        out, *reports = (stream.iterate_with_feedback if loop.separate else stream.iterate)(body, **_options(loop))
        for one in reports:
            self.tell(one)
        return out

    def _inside(self, loop: Loop, given: Any) -> tr.DataStream:
        """The input of a body: input and feedback of the loop, each record once."""
        number = loop.number
        if loop.feedback == "broadcast" and not loop.separate:
            return given.process(fn.Owner(), uid=f"owner{number}")  # type: ignore[no-any-return]
        if not loop.separate:
            return given  # type: ignore[no-any-return]
        back = given.second
        if loop.feedback == "broadcast":
            back = back.process(fn.Owner(), uid=f"owner{number}")
        elif loop.feedback == "partition_by":
            back = back.process(fn.Placed(number), uid=f"placed{number}")
            self.tell(back.side_output("told"))
        return given.first.union(back)  # type: ignore[no-any-return]


def _together(streams: list[tr.DataStream]) -> list[tr.DataStream]:
    return [streams[0].union(*streams[1:])] if streams else []


def _record(events: Events, i: int) -> Any:
    number = events.first + i % events.distinct
    return number, (0,) * LEVELS, number, 1, 0


def _entering(around: tuple[Loop, ...], r: Any) -> Any:
    """A record that comes into the innermost of these loops beside its head."""
    for loop in around:
        r = start(loop)(r)
    return r


class _Joined(fn.Join):
    def process2(self, record: Any, ctx: tr.Context) -> Any:
        return super().process2(record[2], ctx)


def _firings(do: Do) -> dict[str, Any]:
    """Options of windows that fire early and late. They take every record, however late."""
    often = tr.Every(records=2), tr.Every(seconds=0.001), tr.Every(records=3, seconds=0.002), None
    early, late = often[do.number // 2 % 4], often[do.number // 8 % 4]
    if early is None and late is None:
        late = tr.Every(records=1)
    return {"early": early, "late": late, "allowed_lateness": LATENESS, "discarding": bool(do.number % 2)}


def _key_of(do: Do) -> str | tuple[str, ...]:
    """The key of an operator in columns: a name, or a list of one name, whose key is a tuple."""
    return "key" if do.number % 2 else ("key",)


def _most(number: int, key: Any, n: int, low: int, high: int) -> list[Any]:
    return [("most", number, key, "n", n), ("most", number, key, "low", -low), ("most", number, key, "high", high)]


def _by_way(do: Do, stream: tr.DataStream) -> tr.DataStream:
    if do.way == "partition_by":
        return stream.partition_by(lambda r: r[0] * 5 + r[2])
    return stream if do.way == "forward" else getattr(stream, do.way)()  # type: ignore[no-any-return]


def _finish(loop: Loop, out: tr.DataStream) -> tr.DataStream:
    level = loop.level
    return out.filter(lambda r: r[1][level] <= 0, uid=f"done{loop.number}")


def _fed_back(loop: Loop, out: tr.DataStream, in_columns: bool) -> Any:
    """The feedback: records that have laps left, with one less."""
    level, number = loop.level, loop.number
    going = out.filter(lambda r: r[1][level] > 0, uid=f"going{number}").map(
        lambda r: (r[0], (*r[1][:level], r[1][level] - 1, *r[1][level + 1 :]), (r[2] + 1) % fn.MODULUS, *r[3:]),
        uid=f"lap{number}",
    )
    if in_columns:
        return going.map(fn.as_columns, uid=f"as-fed{number}").to_columns(fn.COLUMNS, uid=f"columns-fed{number}")
    if loop.feedback == "two":
        odd = going.filter(lambda r: r[0] % 2 == 1, uid=f"odd{number}")
        return [going.filter(lambda r: r[0] % 2 == 0, uid=f"even{number}"), odd]
    if loop.feedback == "mixed":
        odd = going.filter(lambda r: r[0] % 2 == 1, uid=f"odd{number}")
        even = going.filter(lambda r: r[0] % 2 == 0, uid=f"even{number}")
        return [even.partition_by(lambda r: r[0]), odd.rebalance()]
    if loop.feedback == "partition_by":
        return going.partition_by(lambda r: r[0])
    return going if loop.feedback in ("plain", "columns") else getattr(going, loop.feedback)()


def _options(loop: Loop) -> dict[str, Any]:
    options: dict[str, Any] = {
        "priority": loop.priority,
        "parallelism": loop.parallelism,
        "uid": f"loop{loop.number}",
    }
    if loop.spill is not None:
        options["spill"] = tr.Spill(memory_bytes=loop.spill)
    if loop.combine:
        options["combine"] = tr.Combine(key=lambda r: r[:3], merge=_astray if loop.astray else _merge)
    if loop.rounds == "until dry":
        options["rounds"] = tr.Rounds(span=loop.span)
    elif loop.rounds == "at most":
        options["rounds"] = tr.Rounds(max=loop.limit, span=loop.span)
    elif loop.rounds == "until":
        last = loop.limit - 1
        options["rounds"] = tr.Rounds(until=lambda result: result.round >= last, span=loop.span)
    return options


def _merge(waiting: Any, new: Any) -> Any:
    return (*waiting[:3], waiting[3] + new[3], max(waiting[4], new[4]))


def _astray(waiting: Any, new: Any) -> Any:
    return (waiting[0] + 1, *_merge(waiting, new)[1:])


def _signed(change: Any) -> tuple[int, int]:
    """The number of records and the value that a change of the best records adds."""
    sign = 1 if change.op == "+" else -1
    return sign, sign * change.value[2]
