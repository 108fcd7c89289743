"""Sessions: which records belong to one, when it is over, and which records come too late for it."""

import itertools
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.errors import GraphError

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.float64()), ("x", pa.int64()), ("gap", pa.float64())])
Record = tuple[str, float, int, float]
FORMS = ["rows", "columns"]


def ran(
    rows: list[Record],
    gap: Any,
    verb: Callable[[tr.WindowedStream], tr.DataStream] | None = None,
    form: str = "rows",
    *,
    rate: float | None = 1.0,
    out_of_orderness: float = 0.0,
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    """Results and late records. At a rate of one a second each record is seen before the next one comes, and so is its
    watermark."""
    env = tr.Environment(parallelism=2, **options)
    source = tr.sources.Generator(lambda i: rows[i], rate=rate, count=len(rows))
    stream = env.from_source(source, parallelism=1).to_columns(SCHEMA)
    stream = (stream if form == "columns" else stream.to_rows()).assign_timestamps("at", out_of_orderness)
    fired = (verb or summed)(stream.key_by("k").window(tr.Session(gap)))
    out = fired.map(tuple).sink_to(tr.sinks.Collect())
    late = fired.side_output("late").map(tuple).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return sorted(out.result()), late.result()


def summed(stream: tr.WindowedStream) -> tr.DataStream:
    return stream.aggregate(n=tr.Count(), total=tr.Sum("x"))


def at(*times: float, key: str = "a") -> list[Record]:
    return [(key, float(time), 1, 1.0) for time in times]


def model(rows: list[Record], gap: Callable[[Record], float]) -> list[Any]:
    """Sessions by a loop over all records."""
    found: list[list[Any]] = []
    for row in sorted(rows, key=lambda row: row[:2]):
        key, time, x, _ = row
        if found and found[-1][0] == key and time <= found[-1][2]:
            last = found[-1]
            last[2:] = [max(last[2], time + gap(row)), last[3] + 1, last[4] + x]
        else:
            found.append([key, time, time + gap(row), 1, x])
    return sorted(map(tuple, found))


@pytest.mark.parametrize("form", FORMS)
def test_a_session_ends_a_gap_behind_its_last_record(form: str) -> None:
    found, late = ran(at(0, 4, 8, 20), 5, form=form)
    assert found == [("a", 0.0, 13.0, 3, 3), ("a", 20.0, 25.0, 1, 1)]
    assert late == []


@pytest.mark.parametrize("form", FORMS)
def test_two_sessions_that_touch_are_one(form: str) -> None:
    assert ran(at(0, 5), 5, form=form)[0] == [("a", 0.0, 10.0, 2, 2)]
    assert len(ran(at(0, 5.000001), 5, form=form)[0]) == 2


@pytest.mark.parametrize("form", FORMS)
def test_a_record_between_two_sessions_makes_them_one(form: str) -> None:
    for times in ([0, 8, 4], [8, 0, 4], [8, 4, 0]):
        found, late = ran(at(*times), 5, form=form, out_of_orderness=20)
        assert found == [("a", 0.0, 13.0, 3, 3)]
        assert late == []


@pytest.mark.parametrize("form", FORMS)
def test_keys_have_sessions_of_their_own(form: str) -> None:
    rows = at(0, 4) + at(2, 6, 30, key="b")
    found, _ = ran(rows, 5, form=form, out_of_orderness=10)
    assert found == [("a", 0.0, 9.0, 2, 2), ("b", 2.0, 11.0, 2, 2), ("b", 30.0, 35.0, 1, 1)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_sessions_are_those_of_a_loop_over_all_records_in_whatever_order_they_come(
    form: str, own: bool, seed: int
) -> None:
    chance = random.Random(seed)
    rows = [
        (chance.choice("abc"), chance.randrange(120) / 2, chance.randrange(100), chance.choice([0.5, 1, 3, 12]))
        for _ in range(chance.choice([1, 20, 80]))
    ]
    gap = (lambda row: row[3]) if own else (lambda row: 1.5)
    expected = model(rows, gap)
    for _ in range(3):
        chance.shuffle(rows)
        rate = chance.choice([None, 1.0])
        found, late = ran(rows, "gap" if own else 1.5, form=form, rate=rate, out_of_orderness=60)
        assert found == expected
        assert late == []


def test_a_gap_may_be_a_span_of_any_form_or_a_function() -> None:
    rows = at(0, 4, 20)
    expected = ran(rows, 5)[0]
    for gap in (5.0, timedelta(seconds=5), "5 seconds", " 5s", lambda row: 5, lambda row: timedelta(seconds=5)):
        assert ran(rows, gap)[0] == expected
    assert ran(rows, lambda row: 5, form="columns")[0] == expected


# Late records.


@pytest.mark.parametrize("form", FORMS)
def test_a_record_behind_the_watermark_joins_the_session_that_is_open_at_its_time(form: str) -> None:
    found, late = ran(at(0, 4, 8, 12, 1), 5, form=form)
    assert (found, late) == ([("a", 0.0, 17.0, 5, 5)], [])


@pytest.mark.parametrize("form", FORMS)
def test_a_record_whose_own_session_is_open_opens_it(form: str) -> None:
    rows = at(100, key="b") + at(97)
    found, late = ran(rows, 5, form=form)
    assert (found, late) == ([("a", 97.0, 102.0, 1, 1), ("b", 100.0, 105.0, 1, 1)], [])


@pytest.mark.parametrize("form", FORMS)
def test_a_record_that_would_overlap_an_emitted_session_is_late(form: str) -> None:
    # The session [0, 5] is out at 6. A second one, [4, 9], would not be over.
    rows = at(0) + at(6.5, key="b") + at(4)
    found, late = ran(rows, 5, form=form)
    assert found == [("a", 0.0, 5.0, 1, 1), ("b", 6.5, 11.5, 1, 1)]
    assert [row[:2] for row in late] == [("a", 4.0)]


@pytest.mark.parametrize("form", FORMS)
def test_a_record_that_would_join_an_open_session_to_an_emitted_one_is_late(form: str) -> None:
    # [0, 5] is out, [7.5, 12.5] is open; [4, 9] touches both.
    rows = at(0) + at(6.5, key="b") + at(7.5) + at(4, 5.5)
    found, late = ran(rows, 5, form=form)
    assert found == [("a", 0.0, 5.0, 1, 1), ("a", 5.5, 12.5, 2, 2), ("b", 6.5, 11.5, 1, 1)]
    assert [row[:2] for row in late] == [("a", 4.0)]


@pytest.mark.parametrize("form", FORMS)
def test_a_record_whose_own_session_is_over_is_late(form: str) -> None:
    found, late = ran(at(100, key="b") + at(94), 5, form=form)
    assert found == [("b", 100.0, 105.0, 1, 1)]
    assert [row[:2] for row in late] == [("a", 94.0)]


@pytest.mark.parametrize("form", FORMS)
def test_with_a_gap_of_its_own_a_record_behind_the_watermark_opens_no_session(form: str) -> None:
    rows = [("a", 100.0, 1, 50.0), ("a", 90.0, 1, 50.0), ("a", 120.0, 1, 1.0), ("a", 110.0, 1, 1.0)]
    found, late = ran(rows, "gap", form=form)
    assert found == [("a", 100.0, 150.0, 3, 3)]
    assert [row[1] for row in late] == [90.0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(8))
def test_no_two_results_of_a_key_overlap_however_late_records_are(form: str, seed: int) -> None:
    chance = random.Random(seed)
    rows = [("ab"[chance.randrange(2)], i + chance.randrange(-12, 3) / 1.0, 1, 1.0) for i in range(60)]
    found, late = ran(rows, chance.choice([1, 2, 4]), form=form, rate=chance.choice([None, 1.0, 1.0]))
    for (key, _, end, *_), (following, start, *_) in itertools.pairwise(found):
        assert key != following or end < start
    assert sum(row[3] for row in found) + len(late) == len(rows)


# Results.


def test_every_verb_of_sessions() -> None:
    rows = [("a", 1.0, 5, 1.0), ("a", 2.0, 7, 1.0), ("b", 3.0, 1, 1.0)]

    def given(verb: Callable[[tr.WindowedStream], tr.DataStream]) -> list[Any]:
        return ran(rows, 3, verb)[0]

    assert given(lambda w: w.count()) == [("a", 1.0, 5.0, 2), ("b", 3.0, 6.0, 1)]
    assert given(lambda w: w.sum("x")) == [("a", 1.0, 5.0, 12), ("b", 3.0, 6.0, 1)]
    largest = given(lambda w: w.reduce(lambda p, q: max(p, q, key=lambda r: r.x)))
    assert [(key, value.x) for key, _, _, value in largest] == [("a", 7), ("b", 1)]


class Gather(tr.AggregateFunction):
    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        return [*accumulator, value.x]

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return sorted(accumulator)

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        return a + b


def test_an_aggregate_of_the_users_own_is_merged() -> None:
    rows = [("a", float(time), time, 1.0) for time in (0, 8, 4)]
    assert ran(rows, 5, lambda w: w.aggregate(Gather()), out_of_orderness=20)[0] == [("a", 0.0, 13.0, [0, 4, 8])]


def test_the_time_of_a_result_is_the_end_of_the_session() -> None:
    env = tr.Environment(parallelism=1)
    sessions = env.from_collection([5]).assign_timestamps(lambda x: x).key_by(lambda x: "k").window(tr.Session(10))
    out = sessions.count().process(lambda row, ctx: [(row._fields, ctx.timestamp)]).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [(("key", "start", "end", "count"), 15.0)]


def test_in_columns_results_are_in_columns() -> None:
    env = tr.Environment(parallelism=1)
    stream = env.from_collection(at(1)).to_columns(SCHEMA).assign_timestamps("at")
    sessions = stream.key_by("k").window(tr.Session(10)).aggregate(n=tr.Count(), mean=tr.Mean("x"))
    assert (sessions.form, sessions.columns) == ("columns", ("k", "start", "end", "n", "mean"))
    out = sessions.to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [row._asdict() for row in out.result()] == [{"k": "a", "start": 1.0, "end": 11.0, "n": 1, "mean": 1.0}]


# What is refused.


def keyed() -> tr.KeyedStream:
    return tr.Environment(parallelism=1).from_collection([1]).assign_timestamps(lambda x: x).key_by(lambda x: x)


class Lonely(Gather):
    merge = tr.AggregateFunction.merge


def test_what_sessions_cannot_do_is_refused_where_it_is_written() -> None:
    for gap in (0, -1, timedelta(), "0 s", 4e12):
        with pytest.raises(GraphError, match="the gap must be above zero"):
            tr.Session(gap)
    with pytest.raises(GraphError, match="or the name of a column, or a function"):
        tr.Session("5 parsecs")
    with pytest.raises(GraphError, match="allowed_lateness does not go with"):
        keyed().window(tr.Session(1), allowed_lateness=1)
    with pytest.raises(GraphError, match=r"Lonely does not say how .* define merge"):
        keyed().window(tr.Session(1)).aggregate(Lonely())
    stream = tr.Environment(parallelism=1).from_collection(at(1)).to_columns(SCHEMA).assign_timestamps("at")
    with pytest.raises(GraphError, match=r"there is no column 'pause'; the stream has k, at, x, gap"):
        stream.key_by("k").window(tr.Session("pause"))


def test_sessions_in_a_loop_are_refused() -> None:
    def body(stream: tr.DataStream) -> Any:
        return None, stream.key_by(lambda x: x).window(tr.Session(1)).count()

    with pytest.raises(GraphError, match="no session is ever over in a loop"):
        tr.Environment(parallelism=1).from_collection([1]).assign_timestamps(lambda x: x).iterate(body)


@pytest.mark.parametrize("gap", [0.0, -1.0, None, "soon", float("nan")])
def test_a_record_with_a_wrong_gap_fails_the_job_with_the_record(gap: Any) -> None:
    env = tr.Environment(parallelism=1, restart=tr.NoRestart())
    stream = env.from_collection([("k", 1.0, gap)]).assign_timestamps(lambda r: r[1]).key_by(lambda r: r[0])
    stream.window(tr.Session(lambda r: r[2])).count().sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"record \('k', 1\.0, .*: the gap of a session"):
        tr.testing.run(env)


def test_a_record_that_fails_goes_aside_and_leaves_no_trace() -> None:
    class Picky(Gather):
        def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
            if value.x < 0:
                raise ValueError("negative")
            return super().add(value, accumulator)

    env = tr.Environment(parallelism=1)
    rows = [("a", 0.0, 1, 1.0), ("a", 4.0, -1, 1.0), ("a", 8.0, 2, 1.0), ("a", 12.0, 3, 1.0)]
    stream = env.from_collection(rows).to_columns(SCHEMA).to_rows().assign_timestamps("at")
    sessions = stream.key_by("k").window(tr.Session(5)).aggregate(Picky(), on_error=tr.Aside("wrong"))
    out, wrong = (
        sessions.map(tuple).sink_to(tr.sinks.Collect()),
        sessions.side_output("wrong").sink_to(tr.sinks.Collect()),
    )
    tr.testing.run(env)
    assert out.result() == [("a", 0.0, 5.0, [1]), ("a", 8.0, 17.0, [2, 3])]
    assert [one.record.x for one in wrong.result()] == [-1]
