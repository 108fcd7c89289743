"""Windows with early and late firings beside the final one."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.errors import GraphError

FORMS = ["rows", "columns"]
Record = tuple[str, float, int]
BOTH = {"early": tr.Every(records=1), "late": tr.Every(records=3), "allowed_lateness": 20}
ROWS: list[Record] = [
    ("a", 1.0, 1), ("a", 2.0, 2), ("b", 2.5, 7), ("a", 3.0, 4), ("a", 12.0, 8), ("a", 4.0, 16), ("a", 5.0, 32),
    ("a", 40.0, 64), ("a", 6.0, 128),
]  # fmt: skip


def fired(rows: list[Record], form: str, windows: Any = None, verb: Any = None, **options: Any) -> list[Any]:
    """Results of windows of ten seconds, for records of which one comes each second."""
    env = tr.Environment(parallelism=options.pop("parallelism", 1))
    rate = options.pop("rate", 1.0)
    source = tr.sources.Generator(lambda i: rows[i], rate=rate, count=len(rows))
    stream = env.from_source(source, parallelism=1).to_columns("k string, at double, x long")
    timed = (stream if form == "columns" else stream.to_rows()).assign_timestamps("at")
    windowed = timed.key_by("k").window(windows or tr.Tumbling(10), **options)
    out = verb(windowed) if verb else windowed.aggregate(n=tr.Count(), total=tr.Sum("x"))
    sink = out.map(tuple).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return sink.result()


@pytest.mark.parametrize("form", FORMS)
def test_a_window_fires_each_so_many_records_and_at_its_end(form: str) -> None:
    assert fired(ROWS[:5], form, early=tr.Every(records=2)) == [
        ("a", 0.0, 10.0, 2, 3, "early", 1),
        ("a", 0.0, 10.0, 3, 7, "final", 2),
        ("b", 0.0, 10.0, 1, 7, "final", 1),
        ("a", 10.0, 20.0, 1, 8, "final", 1),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_window_fires_so_long_after_its_first_new_record(form: str) -> None:
    assert fired(ROWS[:5], form, early=tr.Every(seconds=1.5)) == [
        ("a", 0.0, 10.0, 2, 3, "early", 1),
        ("b", 0.0, 10.0, 1, 7, "early", 1),
        ("a", 0.0, 10.0, 3, 7, "final", 2),
        ("b", 0.0, 10.0, 1, 7, "final", 2),
        ("a", 10.0, 20.0, 1, 8, "final", 1),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_with_both_intervals_the_first_one_counts(form: str) -> None:
    found = fired(ROWS[:4], form, early=tr.Every(records=2, seconds=2.5))
    assert found[:2] == [("a", 0.0, 10.0, 2, 3, "early", 1), ("a", 0.0, 10.0, 3, 7, "final", 2)]
    assert ("b", 0.0, 10.0, 1, 7, "final", 1) in found and len(found) == 3


@pytest.mark.parametrize("form", FORMS)
def test_late_records_fire_when_there_are_enough_or_when_their_window_goes(form: str) -> None:
    found = fired(ROWS, form, **BOTH)
    assert [row[3:] for row in found if row[:2] == ("a", 0.0)] == [
        (1, 1, "early", 1), (2, 3, "early", 2), (3, 7, "early", 3), (3, 7, "final", 4), (5, 55, "late", 5),
    ]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_discarding_window_gives_each_record_once(form: str) -> None:
    found = fired(ROWS, form, discarding=True, **BOTH)
    assert [row[3:] for row in found if row[:2] == ("a", 0.0)] == [
        (1, 1, "early", 1), (1, 2, "early", 2), (1, 4, "early", 3), (0, 0, "final", 4), (2, 48, "late", 5),
    ]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_window_whose_first_record_is_late_fires_the_final_time_at_once(form: str) -> None:
    rows = [("a", 15.0, 1), ("a", 3.0, 2), ("a", 4.0, 4)]
    assert fired(rows, form, late=tr.Every(records=1), allowed_lateness=60)[:2] == [
        ("a", 0.0, 10.0, 1, 2, "final", 1),
        ("a", 0.0, 10.0, 2, 6, "late", 2),
    ]


def test_a_function_of_all_records_sees_which_firing_it_is() -> None:
    def sizes(key: Any, window: tr.WindowBounds, records: list[Any], ctx: tr.Context) -> Any:
        yield key, window.start, window.firing, window.number, [record.x for record in records]

    found = fired(ROWS[:5], "rows", verb=lambda w: w.process(sizes), early=tr.Every(records=2), discarding=True)
    assert found == [
        ("a", 0.0, "early", 1, [1, 2]),
        ("a", 0.0, "final", 2, [4]),
        ("b", 0.0, "final", 1, [7]),
        ("a", 10.0, "final", 1, [8]),
    ]


def test_the_best_records_of_a_window_say_which_firing_it_is() -> None:
    found = fired(ROWS[:2], "rows", verb=lambda w: w.top(1, by="x"), early=tr.Every(records=1))
    assert [(rank, best.x, firing, number) for _, _, _, rank, best, firing, number in found] == [
        (1, 1, "early", 1), (1, 2, "early", 2), (1, 2, "final", 3),
    ]  # fmt: skip


def test_a_discarding_reduce_has_none_where_nothing_came() -> None:
    larger = lambda w: w.reduce(lambda a, b: a if a.x > b.x else b)  # noqa: E731
    found = fired(ROWS[:2], "rows", verb=larger, early=tr.Every(records=2), discarding=True)
    assert [(row[3] and row[3].x, *row[4:]) for row in found] == [(2, "early", 1), (None, "final", 2)]


def test_windows_of_the_calendar_fire_early_too() -> None:
    found = fired(ROWS[:4], "rows", tr.Tumbling("1 day", zone="Europe/Berlin"), early=tr.Every(records=2))
    assert [row[3:] for row in found if row[0] == "a"] == [(2, 3, "early", 1), (3, 7, "final", 2)]


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_firings_are_those_of_a_loop_over_all_records(form: str, data: st.DataObject) -> None:
    """A plain model: one record after the other, with event time behind the largest timestamp so far."""
    lateness, discarding = data.draw(st.sampled_from([0, 5, 40])), data.draw(st.booleans())
    early = data.draw(st.sampled_from([None, 1, 2, 3]))
    late = data.draw(st.sampled_from([1, 2, 3])) if lateness and (early is None or data.draw(st.booleans())) else None
    if early is None and late is None:
        early = 1
    rows = [
        ("ab"[i % 2], float(time), 2**i) for i, time in enumerate(data.draw(st.lists(st.integers(0, 60), max_size=25)))
    ]
    found = fired(
        rows,
        form,
        early=None if early is None else tr.Every(records=early),
        late=None if late is None else tr.Every(records=late),
        allowed_lateness=lateness,
        discarding=discarding,
    )
    assert sorted(found) == sorted(_model(rows, early, late or 1, lateness, discarding))


def _model(rows: list[Record], early: int | None, late: int, lateness: int, discarding: bool) -> list[Any]:
    out: list[Any] = []
    windows: dict[
        tuple[float, str], list[Any]
    ] = {}  # (start, key): values, new ones, number, True if the final one is out
    reached = float("-inf")

    def fire(place: tuple[float, str], kind: str) -> None:
        window = windows[place]
        values = window[0][len(window[0]) - window[1] :] if discarding else window[0]
        window[1:3] = 0, window[2] + 1
        out.append((place[1], place[0], place[0] + 10, len(values), sum(values), kind, window[2]))

    def pass_by(time: float) -> None:
        for place in sorted(windows):
            if not windows[place][3] and place[0] + 10 <= time:
                windows[place][3] = True
                fire(place, "final")
            if place[0] + 10 + lateness <= time:
                if windows[place][1]:
                    fire(place, "late")
                del windows[place]

    for key, time, value in rows:
        start = time // 10 * 10
        if start + 10 + lateness > reached:
            window = windows.setdefault((start, key), [[], 0, 0, False])
            window[0].append(value)
            window[1] += 1
            if start + 10 <= reached:
                if not window[3]:
                    window[3] = True
                    fire((start, key), "final")
                elif window[1] >= late:
                    fire((start, key), "late")
            elif early is not None and window[1] >= early:
                fire((start, key), "early")
        reached = max(reached, time)
        pass_by(reached)
    pass_by(float("inf"))
    return out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("disk", [False, True])
def test_each_record_is_in_one_discarding_result_behind_every_loss(form: str, disk: bool) -> None:
    if disk:
        pytest.importorskip("rocksdict")
    for seed in range(3):
        env = tr.Environment(
            parallelism=2,
            checkpoint=tr.CheckpointConfig("unused", interval=0.02),
            state_backend="disk" if disk else "memory",
        )
        source = tr.sources.Generator(lambda i: ("abc"[i % 3], float(i), 1), rate=1000.0, count=90)
        stream = env.from_source(source, parallelism=1).to_columns("k string, at double, x long")
        timed = (stream if form == "columns" else stream.to_rows()).assign_timestamps("at")
        early = tr.Every(records=3, seconds=0.002)
        windows = timed.key_by("k").window(
            tr.Tumbling(10), early=early, late=early, allowed_lateness=500, discarding=True
        )
        sink = windows.count().map(tuple).sink_to(tr.sinks.Collect())
        job = tr.testing.simulate(env, seed=seed, faults=[tr.testing.Fault(40 + 30 * seed, "kill")])
        job.await_termination()
        totals: dict[Any, int] = defaultdict(int)
        numbers: dict[Any, list[int]] = defaultdict(list)
        for key, start, _, count, _, number in sink.result():
            totals[key, start] += count
            numbers[key, start].append(number)
        expected: dict[Any, int] = defaultdict(int)
        for i in range(90):
            expected["abc"[i % 3], float(i // 10 * 10)] += 1
        assert totals == expected
        assert all(sorted(found) == list(range(1, len(found) + 1)) for found in numbers.values())


@pytest.mark.parametrize("form", FORMS)
def test_a_window_that_has_passed_leaves_nothing_behind(form: str) -> None:
    env = tr.Environment(parallelism=1)
    rows = [("abc"[i % 3], float(i * 7919 % 90), i) for i in range(90)]
    source = tr.sources.Generator(lambda i: rows[i], rate=100.0, count=len(rows))
    stream = env.from_source(source).to_columns("k string, at double, x long")
    timed = (stream if form == "columns" else stream.to_rows()).assign_timestamps("at", 20.0)
    every = tr.Every(records=3, seconds=0.015)
    windows = timed.key_by("k").window(tr.Sliding(20, 10), early=every, late=every, allowed_lateness=30)
    windows.count().sink_to(tr.sinks.Callback(lambda row: None))
    job = tr.testing.run(env)
    assert {report.state_entries for report in job.simulation.reports} == {0}


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_late_before_the_final_result(form: str) -> None:
    """The clock moves while event time passes many windows, a few at once."""
    env = tr.Environment(parallelism=1)
    rows = [("ab"[i % 2], float(i), i) for i in range(80)]
    stream = env.from_collection(rows).to_columns("k string, at double, x long")
    timed = (stream if form == "columns" else stream.to_rows()).assign_timestamps("at", out_of_orderness=1_000)
    windows = timed.key_by("k").window(tr.Sliding(10, 2), early=tr.Every(seconds=0.0005), allowed_lateness=50)
    sink = windows.count().map(tuple).sink_to(tr.sinks.Collect())
    few = tr.testing.Conditions(budget=(1, 3), step_cost=(50, 200))
    job = tr.testing.simulate(env, seed=1, conditions=few)
    assert job.await_termination()
    firings = defaultdict(list)
    for key, start, _, _, firing, number in sink.result():
        firings[key, start].append((number, firing))
    assert max(map(len, firings.values())) > 1
    for found in firings.values():
        last = len(found)
        assert sorted(found) == [(number, "early" if number < last else "final") for number in range(1, last + 1)]


def test_a_failed_record_leaves_no_trace_in_firings() -> None:
    def weight(record: Any) -> int:
        if record[1] == 3.0:
            raise ValueError("no weight")
        return record[2]

    env = tr.Environment(parallelism=1)
    rows = [("a", 1.0, 1), ("a", 2.0, 2), ("a", 3.0, 4), ("a", 4.0, 8)]
    timed = env.from_collection(rows).assign_timestamps(lambda r: r[1])
    windows = timed.key_by(lambda r: r[0]).window(tr.Tumbling(10), early=tr.Every(records=3))
    out = windows.sum(weight, on_error=tr.Aside("errors"))
    sink, errors = out.map(tuple).sink_to(tr.sinks.Collect()), out.side_output("errors").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sink.result() == [("a", 0.0, 10.0, 11, "early", 1), ("a", 0.0, 10.0, 11, "final", 2)]
    assert [failed.record for failed in errors.result()] == [("a", 3.0, 4)]


def test_results_may_be_windowed_again_before_their_windows_end() -> None:
    env = tr.Environment(parallelism=1)
    timed = env.from_collection(ROWS[:5]).assign_timestamps(lambda r: r[1])
    first = timed.key_by(lambda r: r[0]).window(tr.Tumbling(10), early=tr.Every(records=1), discarding=True).count()
    again = first.key_by("key").window(tr.Tumbling(20)).sum("count")
    sink, late = again.map(tuple).sink_to(tr.sinks.Collect()), again.side_output("late").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(sink.result()) == [("a", 0.0, 20.0, 4), ("b", 0.0, 20.0, 1)]
    assert late.result() == []


def _keyed() -> tr.KeyedStream:
    stream = tr.Environment(parallelism=1).from_collection([1]).assign_timestamps(lambda x: x)
    return stream.key_by(lambda x: x)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"early": 5}, "early is tr.Every"),
        ({"late": tr.Every(records=1)}, "without allowed_lateness it takes none"),
        ({"discarding": True}, "give early=tr.Every"),
        ({"discarding": 1, "early": tr.Every(records=1)}, "discarding is true or false"),
    ],
)
def test_what_windows_cannot_do_is_refused_where_it_is_written(options: dict[str, Any], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        _keyed().window(tr.Tumbling(10), **options)


def test_sessions_and_loops_do_not_fire_early() -> None:
    with pytest.raises(GraphError, match="may join two sessions of which early results are out"):
        _keyed().window(tr.Session(10), early=tr.Every(records=1))
    with pytest.raises(GraphError, match="a window of so many records has none late"):
        _keyed().window(tr.CountWindow(10), late=tr.Every(records=1))
    env = tr.Environment(parallelism=1)

    def body(stream: tr.DataStream) -> Any:
        counted = stream.key_by(lambda x: x).window(tr.Tumbling(10), early=tr.Every(records=1)).count()
        return counted, counted

    with pytest.raises(GraphError, match="early and late have no meaning in a loop"):
        env.from_collection([1]).assign_timestamps(lambda x: x).iterate(body)


@pytest.mark.parametrize("wrong", [{}, {"records": 0}, {"records": True}, {"seconds": 0}, {"seconds": "soon"}])
def test_an_interval_is_above_zero(wrong: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="Every: "):
        tr.Every(**wrong)


def test_a_column_may_not_have_the_name_of_a_label() -> None:
    with pytest.raises(GraphError, match="number"):
        _keyed().window(tr.Tumbling(10), early=tr.Every(records=1)).aggregate(number=tr.Count())
