"""Functions of all records of a window."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import tailrace as tr
from tailrace.errors import GraphError

CLICKS = [("ann", 1.0), ("bob", 2.0), ("ann", 4.0), ("ann", 11.0), ("bob", 30.0)]


def keyed(env: tr.Environment, form: str = "rows", late: bool = False) -> tr.KeyedStream:
    records = [*CLICKS, ("ann", 3.0)] if late else CLICKS
    source = tr.sources.Generator(lambda i: records[i], rate=1.0, count=len(records))
    stream = env.from_source(source, parallelism=1).to_columns("user string, at double")
    return (stream if form == "columns" else stream.to_rows()).assign_timestamps("at").key_by("user")


def times(key: Any, window: Any, records: list[Any], ctx: tr.Context) -> Any:
    yield key, window.start, window.end, [record.at for record in records]


EXPECTED = {
    tr.Tumbling(10): [
        ("ann", 0.0, 10.0, [1.0, 4.0]), ("ann", 10.0, 20.0, [11.0]), ("bob", 0.0, 10.0, [2.0]),
        ("bob", 30.0, 40.0, [30.0]),
    ],
    tr.Session(5): [
        ("ann", 1.0, 9.0, [1.0, 4.0]), ("ann", 11.0, 16.0, [11.0]), ("bob", 2.0, 7.0, [2.0]), ("bob", 30.0, 35.0, [30.0]),
    ],
    tr.CountWindow(2): [
        ("ann", None, None, [1.0, 4.0]), ("ann", None, None, [11.0]), ("bob", None, None, [2.0, 30.0]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("windows", EXPECTED, ids=["tumbling", "session", "count"])
def test_a_function_gets_all_records_of_each_window(windows: Any, form: str) -> None:
    env = tr.Environment(parallelism=2)
    sink = keyed(env, form).window(windows).process(times).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(sink.result(), key=lambda one: (one[0], one[3])) == EXPECTED[windows]


class Largest(tr.WindowFunction):
    def open(self, ctx: tr.Context) -> None:
        self.opened = True

    def process(self, key: Any, window: Any, records: list[Any], ctx: tr.Context) -> Any:
        ctx.emit("sizes", len(records))
        return [(key, ctx.timestamp, self.opened)]


def test_an_object_is_opened_and_may_emit_to_side_outputs() -> None:
    env = tr.Environment(parallelism=1)
    stream = keyed(env).window(tr.Tumbling(10)).process(Largest(), uid="largest")
    out, sizes = stream.sink_to(tr.sinks.Collect()), stream.side_output("sizes").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert ("ann", 9.999999, True) in out.result()
    assert sorted(sizes.result()) == [1, 1, 1, 2]


def test_a_key_of_columns_is_a_tuple() -> None:
    env = tr.Environment(parallelism=1)
    stream = env.from_collection([("a", 1, 5.0)]).to_columns("k string, j int, at double").assign_timestamps("at")
    sink = stream.key_by("k", "j").window(tr.Tumbling(10)).process(lambda key, *_: [key]).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sink.result() == [("a", 1)]


def test_late_records_are_those_of_the_window() -> None:
    env = tr.Environment(parallelism=1)
    stream = keyed(env, late=True).window(tr.Tumbling(10)).process(times)
    stream.sink_to(tr.sinks.Collect())
    late = stream.side_output("late").map(tuple).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert late.result() == [("ann", 3.0)]


def test_with_an_allowed_lateness_the_function_gets_all_records_again() -> None:
    env = tr.Environment(parallelism=1)
    stream = keyed(env, late=True).window(tr.Tumbling(10), allowed_lateness=100).process(times)
    sink = stream.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [one for one in sink.result() if one[:2] == ("ann", 0.0)] == [
        ("ann", 0.0, 10.0, [1.0, 4.0]),
        ("ann", 0.0, 10.0, [1.0, 4.0, 3.0]),
    ]


class Counting(Largest):
    """Numbers of the records that are new since the result before, and how many results there were."""

    seen = tr.ValueState(int, default=0)
    sizes = tr.ListState(int)

    def process(self, key: Any, window: Any, records: list[Any], ctx: tr.Context) -> Any:
        yield key, window.start, window.firing, len(records) - self.seen.value, list(self.sizes.get())
        self.seen.value = len(records)
        self.sizes.add(len(records))


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_state_belongs_to_a_window_and_goes_with_it(form: str, parallelism: int) -> None:
    env = tr.Environment(parallelism=parallelism)
    windows = keyed(env, form, late=True).window(tr.Tumbling(10), early=tr.Every(records=1), allowed_lateness=1_000)
    sink = windows.process(Counting(), uid="count").sink_to(tr.sinks.Collect())
    job = tr.testing.run(env)
    # The results of one window are in order.
    assert sorted((one[1:] for one in sink.result() if one[0] == "ann"), key=lambda one: one[0]) == [
        (0.0, "early", 1, []), (0.0, "early", 1, [1]), (0.0, "final", 0, [1, 2]), (0.0, "late", 1, [1, 2, 2]),
        (10.0, "early", 1, []), (10.0, "final", 0, [1]),
    ]  # fmt: skip
    assert {report.state_entries for report in job.simulation.reports} == {0}


def test_state_without_lateness_goes_with_the_final_result() -> None:
    env = tr.Environment(parallelism=1)
    sink = keyed(env).window(tr.Tumbling(10), early=tr.Every(records=1)).process(Counting()).sink_to(tr.sinks.Collect())
    counts = keyed(env).window(tr.CountWindow(2), early=tr.Every(records=1)).process(Counting())
    counted = counts.sink_to(tr.sinks.Collect())
    job = tr.testing.run(env)
    assert [one[1:] for one in sink.result() if one[0] == "ann"] == [
        (0.0, "early", 1, []), (0.0, "early", 1, [1]), (10.0, "early", 1, []), (0.0, "final", 0, [1, 2]),
        (10.0, "final", 0, [1]),
    ]  # fmt: skip
    assert [one[2:] for one in counted.result() if one[0] == "ann"] == [
        ("early", 1, []), ("final", 1, [1]), ("early", 1, []), ("final", 0, [1]),
    ]  # fmt: skip
    assert {report.state_entries for report in job.simulation.reports} == {0}


@pytest.mark.parametrize("bounds", ["seconds", "datetime"])
@pytest.mark.parametrize("day", [datetime(2024, 3, 30), datetime(2024, 10, 26)])
def test_state_stays_for_the_allowed_lateness_where_a_clock_is_changed(day: datetime, bounds: str) -> None:
    """In the night behind these days the clock of the zone goes an hour ahead, or back: three hours stay three hours."""
    start = day.replace(tzinfo=ZoneInfo("Europe/Berlin")).astimezone(UTC)
    moments = [1.0, 24.0 + 2.5, 2.0, 24.0 + 3.5, 3.0]
    records = [start + timedelta(hours=hours) for hours in moments]
    env = tr.Environment(parallelism=1)
    source = env.from_source(tr.sources.Generator(lambda i: records[i], rate=1.0, count=len(records)))
    keyed = source.assign_timestamps(lambda at: at).key_by(lambda at: "a")
    windows = keyed.window(
        tr.Tumbling("1 day", zone="Europe/Berlin"), late=tr.Every(records=1), allowed_lateness="3h", bounds=bounds
    )
    counted = windows.process(Counting())
    sink, late = counted.sink_to(tr.sinks.Collect()), windows.count().side_output("late").sink_to(tr.sinks.Collect())
    job = tr.testing.run(env)
    assert [one[2:] for one in sink.result()][:2] == [("final", 1, []), ("late", 1, [1])]
    assert late.result() == [records[4]]
    assert {report.state_entries for report in job.simulation.reports} == {0}


def test_records_of_sessions_that_become_one_are_those_of_the_earlier_one_first() -> None:
    env = tr.Environment(parallelism=1)
    records = [("b", 100), ("a", 0), ("c", 50), ("d", 101)]
    timed = env.from_collection(records).assign_timestamps(lambda r: r[1], 1_000).key_by(lambda r: 0)
    names = timed.window(tr.Session(60)).process(lambda key, window, records, ctx: ["".join(r[0] for r in records)])
    sides = timed.co_group(timed, window=tr.Session(60), select=lambda a, b: [r[0] for r in a])
    found, grouped = names.sink_to(tr.sinks.Collect()), sides.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert found.result() == ["abcd"]
    assert grouped.result() == [["a", "b", "c", "d"]]


@pytest.mark.parametrize("seed", range(3))
def test_state_of_windows_is_kept_behind_every_loss(seed: int) -> None:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("unused", interval=0.02))
    records = [("abc"[n % 3], float(n)) for n in range(90)]
    source = tr.sources.Generator(lambda i: records[i], rate=1000.0, count=90)
    timed = env.from_source(source, parallelism=1).assign_timestamps(lambda r: r[1]).key_by(lambda r: r[0])
    windows = timed.window(tr.Tumbling(10), early=tr.Every(records=1), allowed_lateness=20)
    sink = windows.process(Counting()).sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=seed, faults=[tr.testing.Fault(40 + 30 * seed, "kill")])
    job.await_termination()
    found: dict[Any, int] = {}
    for key, start, _, new, _ in sink.result():
        found[key, start] = found.get((key, start), 0) + new
    expected: dict[Any, int] = {}
    for key, time in records:
        start = time // 10 * 10
        expected[key, start] = expected.get((key, start), 0) + 1
    assert found == expected


def test_what_a_window_function_cannot_be_is_refused_where_it_is_written() -> None:
    windows = keyed(tr.Environment(parallelism=1)).window(tr.Tumbling(10))
    with pytest.raises(GraphError, match="a session gives one result, so there is nothing to keep"):
        keyed(tr.Environment(parallelism=1)).window(tr.Session(10)).process(Counting())
    with pytest.raises(GraphError, match=r"expected a tr\.WindowFunction or a function"):
        windows.process(tr.MapFunction())  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"window\.process"):
        windows.process(lambda key, records: [])  # type: ignore[arg-type, misc]
    with pytest.raises(GraphError, match="has no method process"):
        windows.process(tr.WindowFunction())
