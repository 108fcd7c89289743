"""Windows of event time: which records belong to one, when it fires, and what becomes of those that come late."""

from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.task.operators.windows import aggregates

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.float64()), ("x", pa.int64())])
Record = tuple[str, float, int]
FORMS = ["rows", "columns"]


def one_a_second(rows: list[Any]) -> tr.Source:
    """The clock goes on between two records, so each is seen before the next one comes, and so is its watermark."""
    return tr.sources.Generator(lambda i: rows[i], rate=1.0, count=len(rows))


class Ran:
    """A windowed stream that ran on records that come one a second: its results, its late records, and its figures."""

    def __init__(
        self,
        rows: list[Record],
        windows: Any,
        verb: Callable[[tr.WindowedStream], tr.DataStream],
        form: str = "rows",
        *,
        parallelism: int = 1,
        out_of_orderness: float = 0.0,
        **options: Any,
    ) -> None:
        env = tr.Environment(parallelism=parallelism)
        stream = env.from_source(one_a_second(rows), parallelism=1).to_columns(SCHEMA)
        stream = (stream if form == "columns" else stream.to_rows()).assign_timestamps("at", out_of_orderness)
        fired = verb(stream.key_by("k").window(windows, **options))
        out = fired.map(tuple).sink_to(tr.sinks.Collect())
        late = fired.side_output("late").map(tuple).sink_to(tr.sinks.Collect())
        job = tr.testing.run(env)
        self.results, self.late = out.result(), late.result()
        self.late_records = sum(
            value
            for one in job.metrics()["subtasks"]
            for name, value in one["custom"].items()
            if name.endswith("late_records")
        )


def summed(stream: tr.WindowedStream) -> tr.DataStream:
    return stream.aggregate(n=tr.Count(), total=tr.Sum("x"))


def at(*times: float, key: str = "a") -> list[Record]:
    return [(key, float(time), 1) for time in times]


# Which window.


@pytest.mark.parametrize("form", FORMS)
def test_a_tumbling_window_is_from_its_start_up_to_its_end(form: str) -> None:
    found = Ran(at(0, 9.999999, 10, 25), tr.Tumbling(10), summed, form).results
    assert found == [("a", 0.0, 10.0, 2, 2), ("a", 10.0, 20.0, 1, 1), ("a", 20.0, 30.0, 1, 1)]


@pytest.mark.parametrize("form", FORMS)
def test_times_before_1970_have_windows_too(form: str) -> None:
    found = Ran(at(-10.000001, -10, -0.000001, 0), tr.Tumbling(10), summed, form).results
    assert found == [("a", -20.0, -10.0, 1, 1), ("a", -10.0, 0.0, 2, 2), ("a", 0.0, 10.0, 1, 1)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("offset", [3, -7, 13, timedelta(seconds=3)])
def test_windows_may_be_shifted(form: str, offset: Any) -> None:
    found = Ran(at(2, 3, 12.5, 13), tr.Tumbling(10, offset=offset), summed, form).results
    assert found == [("a", -7.0, 3.0, 1, 1), ("a", 3.0, 13.0, 2, 2), ("a", 13.0, 23.0, 1, 1)]


@pytest.mark.parametrize("form", FORMS)
def test_a_record_is_in_every_sliding_window_that_holds_it(form: str) -> None:
    found = Ran(at(7), tr.Sliding(10, 5), summed, form).results
    assert found == [("a", 0.0, 10.0, 1, 1), ("a", 5.0, 15.0, 1, 1)]


@pytest.mark.parametrize("form", FORMS)
def test_a_slide_need_not_divide_the_size(form: str) -> None:
    found = Ran(at(0, 6), tr.Sliding(7, 3), summed, form).results
    assert found == [
        ("a", -6.0, 1.0, 1, 1),
        ("a", -3.0, 4.0, 1, 1),
        ("a", 0.0, 7.0, 2, 2),
        ("a", 3.0, 10.0, 1, 1),
        ("a", 6.0, 13.0, 1, 1),
    ]


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_windows_hold_what_a_loop_over_all_records_puts_there(form: str, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    slide = data.draw(st.integers(1, size))
    offset = data.draw(st.integers(-5, 5))
    times = data.draw(st.lists(st.integers(-40, 40), max_size=30).map(sorted))
    rows = [("ab"[time % 2], float(time), time) for time in times]
    expected: dict[tuple[str, float], list[int]] = defaultdict(list)
    for key, _, time in rows:
        for start in range(-60, 60):
            if (start - offset) % slide == 0 and start <= time < start + size:
                expected[key, float(start)].append(time)
    found = Ran(rows, tr.Sliding(size, slide, offset=offset), summed, form, parallelism=2)
    assert found.late == []
    assert {(key, start): (n, total, end - start) for key, start, end, n, total in found.results} == {
        key: (len(values), sum(values), size) for key, values in expected.items()
    }


# What a window gives.


def test_every_verb_of_a_window_in_rows() -> None:
    rows = [("a", 1.0, 5), ("a", 2.0, 7), ("b", 3.0, 1)]

    def run(verb: Callable[[tr.WindowedStream], tr.DataStream]) -> list[Any]:
        return Ran(rows, tr.Tumbling(10), verb).results

    assert run(lambda w: w.count()) == [("a", 0.0, 10.0, 2), ("b", 0.0, 10.0, 1)]
    assert run(lambda w: w.sum("x")) == [("a", 0.0, 10.0, 12), ("b", 0.0, 10.0, 1)]
    assert run(lambda w: w.sum(lambda r: -r.x)) == [("a", 0.0, 10.0, -12), ("b", 0.0, 10.0, -1)]
    assert run(lambda w: w.aggregate(tr.Mean("x"))) == [("a", 0.0, 10.0, 6.0), ("b", 0.0, 10.0, 1.0)]
    largest = run(lambda w: w.reduce(lambda p, q: max(p, q, key=lambda r: r.x)))
    assert [(key, value.x) for key, _, _, value in largest] == [("a", 7), ("b", 1)]


def test_a_result_is_a_named_tuple_with_the_time_of_the_windows_last_moment() -> None:
    env = tr.Environment(parallelism=1)
    windows = env.from_collection([5]).assign_timestamps(lambda x: x).key_by(lambda x: "k").window(tr.Tumbling(10))
    out = windows.aggregate(total=tr.Sum()).process(lambda row, ctx: [(row._fields, row.total, ctx.timestamp)])
    sink = out.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sink.result() == [(("key", "start", "end", "total"), 5, 9.999999)]


def test_in_columns_a_result_has_the_names_of_the_key_columns() -> None:
    env = tr.Environment(parallelism=1)
    stream = env.from_collection(at(1)).to_columns(SCHEMA).assign_timestamps("at")
    windows = stream.key_by(("k", "x")).window(tr.Tumbling(10)).aggregate(n=tr.Count(), mean=tr.Mean("x"))
    assert (windows.form, windows.columns) == ("columns", ("k", "x", "start", "end", "n", "mean"))
    out = windows.to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [row._asdict() for row in out.result()] == [
        {"k": "a", "x": 1, "start": 0.0, "end": 10.0, "n": 1, "mean": 1.0}
    ]


class Gather(tr.AggregateFunction):
    """Changes its accumulator in place, as one does in Python."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value.x)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return list(accumulator)


def test_every_window_has_an_accumulator_of_its_own() -> None:
    rows = [("a", 1.0, 1), ("b", 1.0, 2), ("a", 6.0, 3)]
    assert Ran(rows, tr.Sliding(10, 5), lambda w: w.aggregate(Gather())).results == [
        ("a", -5.0, 5.0, [1]),
        ("b", -5.0, 5.0, [2]),
        ("a", 0.0, 10.0, [1, 3]),
        ("b", 0.0, 10.0, [2]),
        ("a", 5.0, 15.0, [3]),
    ]


# When it fires.


@pytest.mark.parametrize("form", FORMS)
def test_a_window_fires_once_its_last_moment_has_passed(form: str) -> None:
    class Order(tr.CoProcessFunction):
        """Records as they come, and windows as they fire."""

        def process1(self, value: Any, ctx: tr.Context) -> list[Any]:
            return [value.at]

        def process2(self, value: Any, ctx: tr.Context) -> list[Any]:
            return [("window", value.start)]

    env = tr.Environment(parallelism=1)
    stream = env.from_source(one_a_second(at(0, 9.999999, 10, 10.000001, 30))).to_columns(SCHEMA)
    stream = (stream if form == "columns" else stream.to_rows()).assign_timestamps("at")
    fired = stream.key_by("k").window(tr.Tumbling(10)).count()
    out = stream.connect(fired).process(Order()).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    found = out.result()
    # The watermark is one microsecond behind: 10 means that nothing before 10 comes any more.
    assert found.index(("window", 0.0)) > found.index(10.0)
    assert [one for one in found if isinstance(one, tuple)] == [("window", 0.0), ("window", 10.0), ("window", 30.0)]


# Late records.


@pytest.mark.parametrize("form", FORMS)
def test_a_late_record_goes_aside_and_is_counted(form: str) -> None:
    ran = Ran(at(5, 20, 5, 19.999999, 20, 10), tr.Tumbling(10), summed, form)
    assert ran.results == [("a", 0.0, 10.0, 1, 1), ("a", 20.0, 30.0, 2, 2)]
    assert ran.late == [("a", 5.0, 1), ("a", 19.999999, 1), ("a", 10.0, 1)]
    assert ran.late_records == 3


@pytest.mark.parametrize("form", FORMS)
def test_a_record_that_one_of_its_windows_still_takes_is_not_late(form: str) -> None:
    ran = Ran(at(12, 15, 8), tr.Sliding(10, 5), summed, form)
    # When 8 comes, [0, 10) has fired, and [5, 15) has too: its last moment passed when 15 came.
    assert ran.late == [("a", 8.0, 1)]
    ran = Ran(at(12, 8), tr.Sliding(10, 5), summed, form)
    assert ran.late == []
    assert ("a", 5.0, 15.0, 2, 2) in ran.results


@pytest.mark.parametrize("form", FORMS)
def test_out_of_orderness_gives_records_time(form: str) -> None:
    ran = Ran(at(5, 20, 5, 19, 10), tr.Tumbling(10), summed, form, out_of_orderness=15.0)
    assert ran.late == []
    assert ran.results == [("a", 0.0, 10.0, 2, 2), ("a", 10.0, 20.0, 2, 2), ("a", 20.0, 30.0, 1, 1)]


@pytest.mark.parametrize("form", FORMS)
def test_within_the_allowed_lateness_a_window_fires_again_for_each_record(form: str) -> None:
    ran = Ran(at(5, 12, 6, 7, 14.999999, 8, 15, 9), tr.Tumbling(10), summed, form, allowed_lateness=5.0)
    assert ran.results == [
        ("a", 0.0, 10.0, 1, 1),  # 12 passed its end
        ("a", 0.0, 10.0, 2, 2),  # 6
        ("a", 0.0, 10.0, 3, 3),  # 7
        ("a", 0.0, 10.0, 4, 4),  # 8: the watermark is just below 15
        ("a", 10.0, 20.0, 3, 3),
    ]
    assert ran.late == [("a", 9.0, 1)]
    assert ran.late_records == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_window_that_opens_late_but_within_the_lateness_fires_at_once(form: str) -> None:
    ran = Ran([*at(12), *at(5, 6, key="b")], tr.Tumbling(10), summed, form, allowed_lateness=5.0)
    assert ran.results == [("b", 0.0, 10.0, 1, 1), ("b", 0.0, 10.0, 2, 2), ("a", 10.0, 20.0, 1, 1)]


def test_in_rows_a_window_fires_for_each_record_also_of_those_that_come_together() -> None:
    # Three records within the lateness come in one batch.
    batches = [at(5, 12), at(6, 7, 8)]

    def give() -> Any:
        yield from batches

    env = tr.Environment(parallelism=1)
    stream = env.from_source(tr.sources.Generator(give, rate=1.0)).flat_map(lambda batch: batch)
    windows = (
        stream.assign_timestamps(lambda r: r[1]).key_by(lambda r: r[0]).window(tr.Tumbling(10), allowed_lateness=5)
    )
    out = windows.count().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [(row.start, row.count) for row in out.result()] == [(0.0, 1), (0.0, 2), (0.0, 3), (0.0, 4), (10.0, 1)]


def test_a_late_record_keeps_its_timestamp() -> None:
    env = tr.Environment(parallelism=1)
    stream = env.from_source(one_a_second([5, 20, 6])).assign_timestamps(lambda x: x).key_by(lambda x: 0)
    late = stream.window(tr.Tumbling(10)).count().side_output("late").process(lambda x, ctx: [(x, ctx.timestamp)])
    out = late.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [(6, 6.0)]


def test_a_window_that_has_passed_leaves_no_state_behind() -> None:
    env = tr.Environment(parallelism=1)
    stream = env.from_source(tr.sources.Sequence(0, 5_000)).assign_timestamps(lambda x: x)
    stream.key_by(lambda x: x % 100).window(tr.Sliding(20, 10), allowed_lateness=30).count().sink_to(
        tr.sinks.Callback(lambda row: None)
    )
    job = tr.testing.run(env)
    assert [report.state_entries for report in job.simulation.reports] == [0, 0]


# Both forms.


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_rows_and_columns_give_the_same_windows(data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(-30, 60), max_size=40))
    rows = [("abc"[i % 3], float(time), i) for i, time in enumerate(times)]
    lateness = data.draw(st.sampled_from([0.0, 4.0]))
    size = data.draw(st.integers(1, 15))
    windows = tr.Sliding(size, data.draw(st.integers(1, size)))
    everything = lambda w: w.aggregate(  # noqa: E731
        n=tr.Count(), total=tr.Sum("x"), low=tr.Min("x"), high=tr.Max("x"), mean=tr.Mean("x")
    )
    in_rows = Ran(rows, windows, everything, "rows", allowed_lateness=lateness)
    in_columns = Ran(rows, windows, everything, "columns", allowed_lateness=lateness)
    assert in_columns.results == in_rows.results
    assert in_columns.late == in_rows.late
    assert in_columns.late_records == in_rows.late_records


# At the edges of time.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("offset", [-9.2233e12, 9.2233e12])
def test_a_huge_offset_shifts_windows_as_a_small_one_does(form: str, offset: float) -> None:
    found = Ran(at(1.7e9), tr.Tumbling(10, offset=offset), summed, form).results
    assert found == [("a", 1.7e9, 1.7e9 + 10, 1, 1)]


@pytest.mark.parametrize("form", FORMS)
def test_a_time_at_the_ends_of_time_is_refused(form: str) -> None:
    for time, why in ((9.22337203685e12, "after the year 9999"), (-9.22337203685e12, "too near the end of the range")):
        with pytest.raises(tr.JobFailed, match=why):
            Ran(at(time), tr.Tumbling(1000), summed, form)


@pytest.mark.parametrize("form", FORMS)
def test_nanoseconds_before_1970_belong_to_the_window_before(form: str) -> None:
    batch = pa.record_batch({"k": ["a"], "t": pa.array([-1], pa.timestamp("ns"))})
    env = tr.Environment(parallelism=1)
    stream = env.from_collection([0]).map_batches(lambda _: batch, schema="n long")
    timed = (stream if form == "columns" else stream.to_rows()).assign_timestamps("t")
    sink = timed.key_by("k").window(tr.Tumbling(10)).count().map(tuple).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sink.result() == [("a", -10.0, 0.0, 1)]


def test_in_columns_a_sliding_window_fires_again_once_for_a_batch() -> None:
    """Records of one batch reach a window by several ways: as its first part, and as its second."""
    batches = [[("a", 4.0, 1), ("a", 40.0, 1)], [("a", 6.0, 1), ("a", 9.0, 1)]]

    class Two(tr.Reader):
        def __init__(self, done: int) -> None:
            self.position_, self.waited = done, False

        def read(self, limit: int, now: float) -> Any:
            if self.position_ == 2:
                return None
            if self.position_ and not self.waited:
                self.waited = True
                return pa.RecordBatch.from_pylist([], SCHEMA)
            self.position_ += 1
            rows = batches[self.position_ - 1]
            return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)

        @property
        def position(self) -> int:
            return self.position_

    class Source(tr.Source):
        form = "columns"

        def splits(self, parallelism: int) -> list[int]:
            return [0]

        def reader(self, split: int, position: int | None = None) -> tr.Reader:
            return Two(position or 0)

    env = tr.Environment(parallelism=1)
    stream = env.from_source(Source()).assign_timestamps("at")
    windows = stream.key_by("k").window(tr.Sliding(10, 5), allowed_lateness=100)
    sink = windows.count().map(tuple).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [row for row in sink.result() if row[1] == 0.0] == [("a", 0.0, 10.0, 1), ("a", 0.0, 10.0, 3)]


@pytest.mark.parametrize(
    ("key", "names"), [("user", ("user",)), (("user", "at"), ("user", "at")), (lambda row: row.user, ("key",))]
)
def test_results_have_the_same_names_in_rows_and_in_columns(key: Any, names: tuple[str, ...]) -> None:
    found = []
    for form in ("rows", "columns"):
        env = tr.Environment(parallelism=2)
        table = env.from_collection([("ann", 1.0), ("bob", 2.0), ("ann", 70.0)]).to_columns("user string, at double")
        stream: Any = table.to_rows() if form == "rows" else table
        windows = (
            stream.assign_timestamps("at").key_by(*key if isinstance(key, tuple) else (key,)).window(tr.Tumbling(60))
        )
        counts = windows.count()
        assert counts.columns == (*names, "start", "end", "count")
        out = (counts.to_rows() if counts.form == "columns" else counts).sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        assert {row.__fields__ for row in out.result()} == {counts.columns}
        found.append(sorted(map(tuple, out.result())))
    assert found[0] == found[1] and len(found[0]) == 3


def test_a_key_of_columns_may_not_have_a_name_of_the_result_in_rows_either() -> None:
    rows = tr.Environment().from_collection([(1, 2)]).to_columns("start long, x long").to_rows()
    with pytest.raises(tr.GraphError, match="two columns 'start'"):
        rows.assign_timestamps("x").key_by("start").window(tr.Tumbling(60)).count()


class Letters(tr.AggregateFunction):
    """Texts one behind the other: which one they make depends on the order of records."""

    def create_accumulator(self) -> str:
        return ""

    def add(self, value: Any, accumulator: str) -> str:
        return accumulator + value.k

    def get_result(self, accumulator: str) -> str:
        return accumulator

    def merge(self, a: str, b: str) -> str:
        return a + b


VERBS: dict[str, Callable[[tr.WindowedStream], tr.DataStream]] = {
    "process": lambda w: w.process(lambda key, window, records, ctx: [(window.start, "".join(r.k for r in records))]),
    "aggregate": lambda w: w.aggregate(text=Letters()).map(lambda one: (one.start, one.text)),
    "reduce": lambda w: w.reduce(lambda a, b: a._replace(k=a.k + b.k)).map(lambda one: (one.start, one.value.k)),
    "top": lambda w: w.top(1_000, by="x").map(lambda one: (one.start, one.value.k)),
}


@pytest.mark.parametrize("pairs", [5, 65_536])
@pytest.mark.parametrize(("form", "verb"), [(f, v) for f in FORMS for v in VERBS if (f, v) != ("columns", "reduce")])
def test_a_sliding_window_has_its_records_in_the_order_in_which_they_came(
    form: str, verb: str, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is right where many records come in one batch, and lie in the window at different places, too."""
    monkeypatch.setattr(aggregates, "PAIRS", pairs)
    rows = [(chr(97 + i % 26), float(i * 7 % 23), 1) for i in range(60)]
    stream = tr.Environment(parallelism=1).from_collection(rows).to_columns(SCHEMA)
    timed = (stream if form == "columns" else stream.to_rows()).assign_timestamps("at", 30)
    out = VERBS[verb](timed.key_by("x").window(tr.Sliding(10, 2))).sink_to(tr.sinks.Collect())
    tr.testing.run(stream.env)
    wanted = {start: "".join(k for k, at, _ in rows if start <= at < start + 10) for start in range(-8, 24, 2)}
    found: dict[float, str] = defaultdict(str)
    for start, text in out.result():
        found[start] += text
    assert found == {start: text for start, text in wanted.items() if text}
