"""Event time: per split, the minimum over splits and inputs, never backwards, and not held back by an input or split
that has nothing."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.graph.operators import AssignTimestamps
from tailrace.protocol.deployment import Deploy, Start, Welcome
from tailrace.task.contract.events import CoordinatorSaid, PeersConnected, ReportDue, Step
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.worker.machine import Worker

INF = float("inf")


class Script(tr.Source):
    """Each split follows a list: a number is a record with this timestamp, and ("wait", seconds) is silence."""

    def __init__(self, *splits: list[Any]) -> None:
        self.scripts = splits

    def splits(self, parallelism: int) -> list[int]:
        return list(range(len(self.scripts)))

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return Actor(split, self.scripts[split])


class Actor(tr.Reader):
    position = None

    def __init__(self, split: int, script: list[Any]) -> None:
        self.split, self.script = split, list(script)
        self.until = 0.0

    def read(self, limit: int, now: float) -> Any:
        if now < self.until:
            return []
        taken: list[tuple[int, float]] = []
        while self.script and len(taken) < limit and not isinstance(self.script[0], tuple):
            taken.append((self.split, self.script.pop(0)))
        if taken:
            return taken
        if not self.script:
            return None
        self.until = now + self.script.pop(0)[1]
        return []

    def next_at(self, now: float) -> float:
        return self.until


def time_of(record: tuple[int, float]) -> float:
    return record[1]


class Seen(tr.ProcessFunction):
    """What the watermark was at each record, and at the end."""

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        yield value, ctx.watermark

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        yield "end", ctx.watermark


ONE_BY_ONE = tr.testing.Conditions(delay=(0, 0), step_cost=(1, 1), budget=(1, 1))
HOW = ["run", "one by one", 1, 2, 3]


def records(build: Callable[[tr.Environment], Any], how: Any = "run", parallelism: int = 1) -> list[Any]:
    env = tr.Environment(parallelism=parallelism)
    out = build(env).sink_to(tr.sinks.Collect())
    if how == "run":
        job = tr.testing.run(env)
    elif how == "one by one":
        job = tr.testing.simulate(env, conditions=ONE_BY_ONE)
    else:
        job = tr.testing.simulate(env, seed=how)
    job.await_termination()
    return list(out.result())


def seen(source: tr.Source, how: Any = "one by one", between: Any = None, **options: Any) -> list[Any]:
    """The watermark behind `assign_timestamps` at each record of a source with one subtask."""

    def program(env: tr.Environment) -> tr.DataStream:
        stream = env.from_source(source)
        if between is not None:
            stream = between(stream)
        # A union starts a new task, so what is seen is what travels in a channel.
        return stream.assign_timestamps(time_of, **options).rebalance().process(Seen())

    return records(program, how)


def test_every_function_of_a_chain_sees_the_watermark() -> None:
    class Telling(tr.MapFunction):
        def open(self, ctx: tr.Context) -> None:
            self.ctx = ctx

        def map(self, value: Any) -> Any:
            return (*value, self.ctx.watermark)

    def program(env: tr.Environment) -> tr.DataStream:
        timed = env.from_source(Script([10, ("wait", 1), 20])).assign_timestamps(time_of)
        return timed.rebalance().map(Telling()).map(Telling())

    assert records(program) == [(0, 10, -INF, -INF), (0, 20, 9.999999, 9.999999)]


# Of one subtask.


def test_the_watermark_follows_the_largest_timestamp() -> None:
    assert seen(Script([10, ("wait", 1), 5, ("wait", 1), 20, ("wait", 1), 15])) == [
        ((0, 10), -INF),
        ((0, 5), 9.999999),
        ((0, 20), 9.999999),
        ((0, 15), 19.999999),
        ("end", INF),
    ]


def test_it_stays_behind_by_the_out_of_orderness() -> None:
    found = dict(seen(Script([100, ("wait", 1), 50, ("wait", 1), 101]), out_of_orderness=30.0))
    assert found == {(0, 100): -INF, (0, 50): 69.999999, (0, 101): 69.999999, "end": INF}


def test_a_record_on_the_watermark_is_not_late_and_the_watermark_is_just_below_the_largest() -> None:
    found = dict(seen(Script([100, ("wait", 1), 100.000001])))
    assert found[(0, 100.000001)] == 99.999999


def test_it_is_the_minimum_over_the_splits_of_a_subtask() -> None:
    ahead, behind = [1000, 2000, 3000], [("wait", 1), 10, ("wait", 1), 20, ("wait", 1), 30]
    found = dict(seen(Script(ahead, behind)))
    assert found[(1, 10)] == -INF
    assert found[(1, 20)] == 9.999999
    assert found[(1, 30)] == 19.999999


def test_a_split_that_has_ended_holds_nothing_back() -> None:
    found = dict(seen(Script([1000, ("wait", 5), 2000], [10])))
    assert found[(0, 2000)] == 999.999999


def test_a_split_that_never_spoke_holds_everything_back() -> None:
    found = dict(seen(Script([1000, ("wait", 5), 2000], [("wait", 60)])))
    assert found[(0, 2000)] == -INF


BETWEEN: dict[str, Callable[[tr.DataStream], tr.DataStream]] = {
    "map": lambda s: s.map(lambda r: r),
    "filter": lambda s: s.filter(lambda r: True),
    "flat_map": lambda s: s.flat_map(lambda r: [r]),
    "process": lambda s: s.process(lambda r, ctx: [r]),
    "side output": lambda s: s.process(lambda r, ctx: ctx.emit("aside", r)).side_output("aside"),
    "another clock": lambda s: s.assign_timestamps(lambda r: 0),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_what_is_between_the_source_and_the_clock_keeps_the_splits_apart(between: str) -> None:
    script = Script([1000, ("wait", 2), 2000], [("wait", 1), 10, ("wait", 2), 20])
    found = dict(seen(script, between=BETWEEN[between]))
    assert found[(1, 10)] == -INF
    assert found[(0, 2000)] == 9.999999
    assert found[(1, 20)] == 9.999999


@given(st.lists(st.lists(st.integers(-50, 50), max_size=12), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_the_watermark_never_goes_back(scripts: list[list[int]], seed: int) -> None:
    marks = [mark for _, mark in seen(Script(*scripts), how=seed)]
    assert marks == sorted(marks)
    assert marks[-1] == INF


# Idleness.


TALKATIVE = [1000, ("wait", 6), 1001, ("wait", 6), 1002, ("wait", 6), 2000]
"""Never silent for ten seconds."""


def test_a_split_silent_for_long_enough_no_longer_holds_the_watermark_back() -> None:
    script = Script(TALKATIVE, [10, ("wait", 100)])
    assert dict(seen(script, idle_after=10))[(0, 2000)] == 1001.999999
    assert dict(seen(script, idle_after=60))[(0, 2000)] == 9.999999
    assert dict(seen(script))[(0, 2000)] == 9.999999


def test_a_split_that_never_spoke_is_idle_in_the_end() -> None:
    assert dict(seen(Script(TALKATIVE, [("wait", 100)]), idle_after=10))[(0, 2000)] == 1001.999999


def test_with_all_splits_silent_the_watermark_stays_where_it_is() -> None:
    found = dict(seen(Script([1000, ("wait", 30), 2000, ("wait", 1), 3000], [10, ("wait", 100)]), idle_after=10))
    assert found[(0, 2000)] == 9.999999
    assert found[(0, 3000)] == 1999.999999


def test_a_split_that_wakes_up_counts_again_and_the_watermark_stays_where_it_is() -> None:
    awake = [("wait", 18.5), 20, ("wait", 9)]
    found = dict(seen(Script([*TALKATIVE, ("wait", 1), 3000, ("wait", 1), 4000], awake), idle_after=10))
    assert found[(1, 20)] == 1999.999999  # late: that is what idleness means
    assert found[(0, 3000)] == found[(0, 4000)] == 1999.999999  # held by the split that woke up


def two_subtasks(env: tr.Environment, *scripts: list[Any], **options: Any) -> tr.DataStream:
    """Two subtasks with a split each, and one that sees what comes from both."""
    timed = env.from_source(Script(*scripts), parallelism=2).assign_timestamps(time_of, **options)
    return timed.rebalance().process(Seen(), parallelism=1)


@pytest.mark.parametrize("how", HOW)
def test_an_idle_subtask_does_not_hold_back_the_next_operator(how: Any) -> None:
    scripts = ([*TALKATIVE, ("wait", 1)], [10, ("wait", 100)])
    with_idleness = dict(records(lambda env: two_subtasks(env, *scripts, idle_after=10), how, 2))
    assert with_idleness[(0, 2000)] == 1001.999999
    without = dict(records(lambda env: two_subtasks(env, *scripts), how, 2))
    assert without[(0, 2000)] == 9.999999


@pytest.mark.parametrize("how", HOW)
def test_idleness_is_passed_on_when_the_last_input_that_was_not_idle_ends(how: Any) -> None:
    # The operator "quiet" has two inputs: one falls idle, the other ends. Then it has no watermark either.
    def program(env: tr.Environment) -> tr.DataStream:
        scripts = Script([5, ("wait", 100)], [10, ("wait", 6), 11, ("wait", 6), 12])
        quiet = env.from_source(scripts, parallelism=2).assign_timestamps(time_of, idle_after=10)
        loud = env.from_source(Script([1000, ("wait", 50), 2000]), parallelism=1).assign_timestamps(time_of)
        passed = quiet.rebalance().map(lambda r: ("quiet", *r), parallelism=1)
        return loud.union(passed).process(Seen(), parallelism=1)

    assert dict(records(program, how, 2))[(0, 2000)] == 999.999999


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("apart", [True, False])
def test_a_task_that_wakes_and_passes_nothing_on_wakes_those_behind_it(how: Any, apart: bool) -> None:
    """The first record after the silence is no newer than what was there before, and a filter keeps it, in a task of its own
    or in that of the clock. Event time behind the filter went on without its input, so that the record after it came too
    late."""

    def program(env: tr.Environment) -> tr.DataStream:
        quiet = env.from_source(Script([5, ("wait", 100), 3, ("wait", 8), 5.5]))
        timed = quiet.assign_timestamps(time_of, idle_after=10)
        kept = (timed.rebalance() if apart else timed).filter(lambda record: record[1] >= 5)
        loud = env.from_source(Script([1, ("wait", 104), 2000])).assign_timestamps(time_of)
        return loud.union(kept).process(Seen())

    assert dict(records(program, how))[(0, 5.5)] == 4.999999


class SeenByKey(tr.KeyedProcessFunction):
    """What the watermark was at each record."""

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        yield value, ctx.watermark


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("waking", "abcd")
def test_a_record_after_a_silence_wakes_every_channel_and_not_only_its_own(how: Any, waking: str) -> None:
    keys = {3: waking, 5.5: "e"}

    def program(env: tr.Environment) -> tr.DataStream:
        quiet = env.from_source(Script([5, ("wait", 100), 3, ("wait", 8), 5.5]), parallelism=1)
        loud = env.from_source(Script([1, ("wait", 104), 2000]), parallelism=1).assign_timestamps(time_of)
        both = loud.union(quiet.assign_timestamps(time_of, idle_after=10))
        return both.key_by(lambda record: keys.get(record[1], "e")).process(SeenByKey())

    assert dict(records(program, how, 2))[(0, 5.5)] == 4.999999


class Found(tr.Enumerator):
    """Finds a split after 50 seconds."""

    position = None

    def __init__(self) -> None:
        self.looks = 0
        self.due = 0.0

    def discover(self, now: float) -> Any:
        self.looks += 1
        if self.looks == 1:
            self.due = now + 50
        return [] if now < self.due else [0] if self.looks == 2 else None

    def next_at(self, now: float) -> float:
        return self.due


class FoundLater(Script):
    def splits(self, parallelism: int) -> list[int]:
        return []

    def enumerator(self, parallelism: int, position: Any = None) -> tr.Enumerator:
        return Found()


@pytest.mark.parametrize("how", HOW)
def test_a_split_that_is_found_holds_the_watermark_before_its_first_record(how: Any) -> None:
    """The subtask had none before, and was idle. It was waited for again only once the split had a record."""

    def program(env: tr.Environment) -> tr.DataStream:
        quiet = env.from_source(FoundLater([("wait", 5), 10])).assign_timestamps(time_of)
        loud = env.from_source(Script([1, ("wait", 51), 5, ("wait", 2), 2000, ("wait", 1)])).assign_timestamps(time_of)
        return loud.map(lambda record: ("loud", record[1])).union(quiet.map(lambda r: ("quiet", r[1]))).process(Seen())

    assert dict(records(program, how))[("quiet", 10)] < 10


@pytest.mark.parametrize("how", HOW)
def test_a_clock_behind_an_idle_input_still_speaks_for_itself(how: Any) -> None:
    # The second clock has no `idle_after`, so it holds its watermark.
    def program(env: tr.Environment) -> tr.DataStream:
        quiet = env.from_source(Script([5, ("wait", 100)])).assign_timestamps(time_of, idle_after=10)
        again = quiet.rebalance().assign_timestamps(time_of)
        loud = env.from_source(Script([1000, ("wait", 50), 2000])).assign_timestamps(time_of)
        return loud.union(again.map(lambda r: ("quiet", *r))).process(Seen())

    assert dict(records(program, how))[(0, 2000)] == 4.999999


# Several inputs.


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("verb", ["union", "connect"])
def test_two_inputs_have_the_lower_watermark_of_both(how: Any, verb: str) -> None:
    class Both(tr.CoProcessFunction):
        def process1(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
            yield value, ctx.watermark

        process2 = process1

        def finish(self, ctx: tr.Context) -> Iterator[Any]:
            yield "end", ctx.watermark

    def program(env: tr.Environment) -> tr.DataStream:
        a = env.from_source(Script([1000, ("wait", 10), 2000, ("wait", 10), 3000])).assign_timestamps(time_of)
        b = env.from_source(Script([("wait", 5), 10, ("wait", 10), 20])).assign_timestamps(time_of)
        b = b.map(lambda r: ("b", r[1]))
        return a.union(b).process(Seen()) if verb == "union" else a.connect(b).process(Both())

    found = dict(records(program, how))
    assert found[(0, 2000)] == 9.999999  # b stands at 10
    assert found[("b", 20)] == 9.999999
    assert found[(0, 3000)] == 1999.999999  # b has ended
    assert found["end"] == INF


# Lateness is by the clock, not by how things interleave.


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_records_in_order_within_their_splits_are_never_late(data: st.DataObject) -> None:
    scripts = data.draw(st.lists(st.lists(st.integers(-30, 200), max_size=20).map(sorted), min_size=1, max_size=6))
    parallelism = data.draw(st.integers(1, 3))
    how = data.draw(st.sampled_from(HOW))
    env = tr.Environment(parallelism=parallelism)
    timed = env.from_source(Script(*scripts)).assign_timestamps(time_of)
    windows = timed.key_by(lambda r: r[1] % 3).window(tr.Tumbling(10)).count()
    out, late = windows.sink_to(tr.sinks.Collect()), windows.side_output("late").sink_to(tr.sinks.Collect())
    job = tr.testing.run(env) if how == "run" else tr.testing.simulate(env, seed=hash(how) % 1000)
    job.await_termination()
    assert late.result() == []
    expected = Counter((time % 3, float(time // 10 * 10)) for script in scripts for time in script)
    assert {(row.key, row.start): row.count for row in out.result()} == expected


def test_a_record_behind_the_watermark_of_its_split_is_late() -> None:
    env = tr.Environment(parallelism=1)
    timed = env.from_source(Script([5, ("wait", 1), 25, ("wait", 1), 6])).assign_timestamps(time_of)
    windows = timed.key_by(lambda r: 0).window(tr.Tumbling(10)).count()
    out, late = windows.sink_to(tr.sinks.Collect()), windows.side_output("late").sink_to(tr.sinks.Collect())
    figures = tr.testing.run(env).metrics()
    assert [(row.start, row.count) for row in out.result()] == [(0.0, 1), (20.0, 1)]
    assert late.result() == [(0, 6)]
    assert sum(one["custom"].get("window.count.late_records", 0) for one in figures["subtasks"]) == 1


class Marked(tr.Source):
    """A batch of a streaming query as lanes give it: records out of order, one by one, and a mark with the latest time."""

    form = "columns"
    TIMES = (50, 60, 30, 10, 40, 20)

    def splits(self, parallelism: int) -> list[int]:
        return [0, 1]

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return MarkedReader([*self.TIMES[split::2], max(self.TIMES)])


class MarkedReader(tr.Reader):
    position = None

    def __init__(self, times: list[int]) -> None:
        self.times = times

    def read(self, limit: int, now: float) -> pa.RecordBatch | None:
        if not self.times:
            return None
        mark = len(self.times) == 1
        return pa.RecordBatch.from_pydict({"at": [self.times.pop(0)], "mark": [mark]})


@pytest.mark.parametrize("parallelism", [1, 2])
def test_where_marks_move_event_time_no_record_in_front_of_one_makes_another_late(parallelism: int) -> None:
    """Spark moves the watermark of a streaming query between batches. Records of a batch came late where a reader was given
    it in several portions."""
    env = tr.Environment(parallelism=parallelism)
    stream = env.from_source(Marked(), uid="in")
    clock = AssignTimestamps("at", 0, None, marks="mark")
    timed = stream._add(clock, "assign_timestamps", {}, form="columns", columns=("at", "mark"))
    records = timed.filter(~pc.field("mark")).to_rows()
    windows = records.key_by(lambda r: 0).window(tr.Tumbling(10)).count()
    out, late = windows.sink_to(tr.sinks.Collect()), windows.side_output("late").sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=parallelism)
    assert sorted(row.start for row in out.result()) == sorted(map(float, Marked.TIMES)) and late.result() == []


def test_the_watermark_that_is_reported_is_that_of_the_clock_also_in_the_chain_of_a_source() -> None:
    env = tr.Environment(parallelism=1)
    stream = env.from_source(Script([10, 20, ("wait", 100)])).map(lambda r: r).assign_timestamps(time_of)
    stream.map(lambda r: r).sink_to(tr.sinks.Callback(lambda record: None))
    plan = env._plan(env._pending())
    spec = JobSpec("job", 1, plan, env.memory)
    worker = Worker(0, lambda data: spec, random.Random)
    for message in (Welcome(1), Deploy(b"", [])):
        worker.handle(CoordinatorSaid(message))
    worker.handle(PeersConnected())
    worker.handle(CoordinatorSaid(Start()))
    worker.handle(Step(worker.tasks()[0].id.vertex, 0, 100))
    worker.handle(ReportDue({}, 0, {}))
    [report] = worker.actions[-1].message.subtasks
    assert (report.timed, report.watermark) == (True, 19_999_999)
