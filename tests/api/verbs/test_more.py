"""Verbs for parts of a stream, records beside each other and a look at them, beside pandas and plain models."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.api.verbs.everyday import head
from tailrace.elements.timestamps import micros
from tailrace.errors import GraphError, JobFailed, TypeMismatch
from tailrace.task.operators.zonetimes import column_in, instant_in

RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5), st.integers(0, 60).map(float)), max_size=40)
SCHEMA = "k string, n long, t double"
FORMS = pytest.mark.parametrize("form", ["rows", "columns"])


def collected(write: Callable[[tr.Environment], Any], parallelism: int = 1, **settings: Any) -> Any:
    """The records of a stream, or of each of several."""
    env = tr.Environment(parallelism=parallelism, **settings)
    streams = write(env)
    several = isinstance(streams, tuple)
    sinks = [stream.sink_to(tr.sinks.Collect()) for stream in (streams if several else (streams,))]
    tr.testing.run(env)
    found = [list(sink.result()) for sink in sinks]
    return found if several else found[0]


def stream_of(env: tr.Environment, records: list[Any], form: str = "rows", schema: str = SCHEMA) -> tr.DataStream:
    stream = env.from_source(tr.sources.Generator(lambda i: records[i], count=len(records)), parallelism=1)
    return stream.to_columns(schema) if form == "columns" else stream


# lag.


@FORMS
@given(records=RECORDS, n=st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_the_record_some_places_before_is_that_of_pandas(form: str, records: list[Any], n: int) -> None:
    def write(env: tr.Environment) -> tr.DataStream:
        keyed = stream_of(env, records, form).key_by("k" if form == "columns" else lambda r: r[0])
        return keyed.lag(n, of="n" if form == "columns" else lambda r: r[1])

    frame = pd.DataFrame(records, columns=["k", "n", "t"])
    shifted = frame.groupby("k")["n"].shift(n).astype(object)
    expected = [(record, None if pd.isna(one) else one) for record, one in zip(records, shifted, strict=True)]
    assert [(tuple(record), one) for record, one in collected(write)] == expected


def test_in_order_the_earlier_record_is_the_one_before_it_in_time() -> None:
    records = [("a", 1, 5.0), ("a", 2, 3.0), ("a", 3, 9.0)]

    def write(env: tr.Environment) -> tr.DataStream:
        timed = stream_of(env, records).assign_timestamps(lambda r: r[2], 100)
        return timed.key_by(lambda r: r[0]).lag(in_order=True)

    assert collected(write) == [(records[1], None), (records[0], records[1]), (records[2], records[0])]


# sample.


@FORMS
def test_a_sample_by_a_key_is_the_same_in_every_run_and_for_every_stream(form: str) -> None:
    records = [("abcdefgh"[n % 8], n, 0.0) for n in range(400)]

    def write(env: tr.Environment, seed: int = 0) -> tr.DataStream:
        return (
            stream_of(env, records, form)
            .rebalance()
            .sample(0.5, by="n" if form == "columns" else lambda r: r[1], seed=seed)
        )

    found = sorted(tuple(one) for one in collected(write, 1))
    assert found == sorted(tuple(one) for one in collected(write, 3))
    assert found != sorted(tuple(one) for one in collected(lambda env: write(env, 7)))
    assert 150 < len(found) < 250
    keys = {n for _, n, _ in found}
    other = collected(lambda env: env.from_collection(range(400)).sample(0.5, by=lambda n: n))
    assert set(other) == keys


@FORMS
def test_a_sample_has_about_its_share_and_keeps_timestamps(form: str) -> None:
    records = [("a", n, float(n)) for n in range(1_000)]

    def write(env: tr.Environment) -> tr.DataStream:
        timed = stream_of(env, records, form).assign_timestamps("t" if form == "columns" else lambda r: r[2])
        return timed.sample(0.3).process(lambda r, ctx: [(r[2], ctx.timestamp)])

    found = collected(write)
    assert 230 < len(found) < 370
    assert all(time == timestamp for time, timestamp in found)


@FORMS
@pytest.mark.parametrize("seed", range(2))
def test_a_sample_is_of_all_records_behind_a_loss(form: str, seed: int) -> None:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("unused", interval=0.02))
    source = env.from_source(tr.sources.Generator(lambda i: (i,), rate=1000.0, count=200), parallelism=1)
    rows = source.to_columns("n long") if form == "columns" else source
    whole, some, none = (rows.sample(share).sink_to(tr.sinks.Collect()) for share in (1, 0.5, 0))
    tr.testing.simulate(env, seed=seed, faults=[tr.testing.Fault(60 + 40 * seed, "kill")]).await_termination()
    found = [row[0] for row in some.result()]
    assert len(whole.result()) == 200 and none.result() == []
    assert len(set(found)) == len(found) and 60 < len(found) < 140


# rate_limit.


def test_so_many_records_of_a_key_pass_in_a_time_and_others_go_aside() -> None:
    records = [("ab"[n % 3 == 0], n, 0.0) for n in range(20)]

    def write(env: tr.Environment) -> Any:
        source = tr.sources.Generator(lambda i: records[i], rate=1.0, count=20)
        passed = env.from_source(source, parallelism=1).key_by(lambda r: r[0]).rate_limit(2, per=6.5)
        return passed, passed.side_output("over")

    passed, over = collected(write)
    expected: list[int] = []
    spans: dict[str, tuple[float, int]] = {}
    for key, n, _ in records:
        end, count = spans.get(key, (0.0, 0))
        if n >= end:
            end, count = n + 6.5, 0
        if count < 2:
            expected.append(n)
        spans[key] = end, min(2, count + 1)
    assert [n for _, n, _ in passed] == expected
    assert sorted(n for _, n, _ in [*passed, *over]) == list(range(20))


# split.


def test_a_stream_is_split_in_two_or_more() -> None:
    even, odd = collected(lambda env: env.from_collection(range(6)).split(lambda n: n % 2 == 0))
    assert (even, odd) == ([0, 2, 4], [1, 3, 5])
    names = ("small", "large", "none")
    three = collected(lambda env: env.from_collection(range(6)).split(lambda n: names[n > 1], into=names))
    assert three == [[0, 1], [2, 3, 4, 5], []]
    with pytest.raises(JobFailed, match="the function gave 'huge', which is none of 'small', 'large'"):
        collected(lambda env: env.from_collection([1]).split(lambda n: "huge", into=["small", "large"]))


@pytest.mark.parametrize("condition", ["b", pc.field("b")])
def test_a_record_for_which_it_is_not_known_is_in_the_other_half(condition: Any) -> None:
    rows = [(1, True), (2, False), (3, None)]
    halves = collected(lambda env: stream_of(env, rows, "columns", "n long, b boolean").split(condition))
    assert [[row.n for row in half] for half in halves] == [[1], [2, 3]]


# explode.


@pytest.mark.parametrize("outer", [False, True])
@given(lists=st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=4), max_size=20))
@settings(max_examples=15, deadline=None)
def test_a_list_becomes_records_as_in_pandas(outer: bool, lists: list[Any]) -> None:
    rows = [(n, one, float(n)) for n, one in enumerate(lists)]

    def write(env: tr.Environment) -> tr.DataStream:
        stream = stream_of(env, rows, "columns", "n long, x array<long>, t double").assign_timestamps("t")
        return stream.explode("x", outer=outer).process(lambda r, ctx: [(r.n, r.x, r.t, ctx.timestamp)])

    frame = pd.DataFrame(rows, columns=["n", "x", "t"]).astype({"x": object})
    if not outer:
        frame = frame[frame["x"].map(bool).astype(bool)] if len(frame) else frame
    expected = [(n, None if pd.isna(x) else x, t, t) for n, x, t in frame.explode("x").values.tolist()]
    assert collected(write) == expected


# describe.


@FORMS
def test_values_are_described_by_key_and_by_window(form: str) -> None:
    records = [("a", 4, 1.0), ("a", 1, 2.0), ("b", 3, 3.0), ("a", 7, 70.0)]

    def write(env: tr.Environment) -> Any:
        keyed = stream_of(env, records, form).assign_timestamps("t" if form == "columns" else lambda r: r[2])
        keyed = keyed.key_by("k" if form == "columns" else lambda r: r[0])
        of = "n" if form == "columns" else (lambda r: r[1])
        return keyed.describe(of), keyed.window(tr.Tumbling(60)).describe(of)

    running, windows = collected(write)
    assert {row[0]: tuple(row[1:]) for row in running} == {"a": (3, 4.0, 1, 7), "b": (1, 3.0, 3, 3)}
    assert sorted(tuple(row) for row in windows) == [
        ("a", 0.0, 60.0, 2, 2.5, 1, 4),
        ("a", 60.0, 120.0, 1, 7.0, 7, 7),
        ("b", 0.0, 60.0, 1, 3.0, 3, 3),
    ]
    several = collected(lambda env: stream_of(env, records, "columns").key_by("k").describe("n", "t"))
    assert several[0]._fields == ("k", "count", "n_mean", "n_min", "n_max", "t_mean", "t_min", "t_max")


# Verbs of a keyed stream that need no state.


def test_a_verb_without_state_has_the_records_of_a_key_in_one_subtask() -> None:
    def write(env: tr.Environment) -> tr.DataStream:
        keyed = env.from_collection(range(40)).key_by(lambda n: n % 5)
        return keyed.map(lambda n: n + 100).process(lambda n, ctx: [(n, ctx.subtask)])

    by_key: dict[int, set[int]] = {}
    for n, subtask in collected(write, 3):
        by_key.setdefault(n % 5, set()).add(subtask)
    assert all(len(subtasks) == 1 for subtasks in by_key.values()) and len(by_key) == 5


# Wall clock times.

BERLIN = ZoneInfo("Europe/Berlin")


@given(
    st.lists(
        st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1)) | st.just(datetime(2026, 10, 25, 2, 30)), max_size=9
    )
)
@settings(max_examples=50, deadline=None)
def test_times_of_a_zone_are_the_same_instants_in_rows_and_columns(times: list[datetime]) -> None:
    def instants() -> list[int]:
        return [micros(instant_in(one, BERLIN)) for one in times]

    column = pa.array(times, pa.timestamp("us"))
    try:
        expected = column_in(column, BERLIN).cast(pa.int64()).to_pylist()
    except pa.ArrowInvalid:
        with pytest.raises(OverflowError, match="never was in Europe/Berlin"):
            instants()
    else:
        assert instants() == expected


@FORMS
def test_timestamps_without_a_zone_are_wall_clock_times_of_the_one_that_is_given(form: str) -> None:
    times = [datetime(2026, 7, 1, 12), datetime(2026, 1, 1, 12)]

    def write(env: tr.Environment) -> tr.DataStream:
        stream = stream_of(env, [(one,) for one in times], form, "at timestamp_ntz")
        timed = stream.assign_timestamps(
            "at" if form == "columns" else lambda r: r[0], timedelta(365), zone="Europe/Berlin"
        )
        return timed.process(lambda r, ctx: [ctx.timestamp])

    expected = [datetime(2026, 7, 1, 10, tzinfo=UTC), datetime(2026, 1, 1, 11, tzinfo=UTC)]
    assert collected(write) == [one.timestamp() for one in expected]


def test_dates_are_midnights_there_and_instants_stay_what_they_are() -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert instant_in(date(2026, 7, 1), BERLIN).astimezone(UTC) == datetime(2026, 6, 30, 22, tzinfo=UTC)
    assert column_in(pa.array([date(2026, 7, 1)]), BERLIN).cast(pa.int64()).to_pylist() == [1782856800]
    assert instant_in(noon, BERLIN) is noon and instant_in(3.5, BERLIN) == 3.5 and instant_in(None, BERLIN) is None
    for column in (pa.array([1.5]), pa.array([noon], pa.timestamp("us", "UTC"))):
        assert column_in(column, BERLIN) is column


def test_a_time_that_a_zone_skips_fails_where_it_came() -> None:
    skipped = datetime(2026, 3, 29, 2, 30)
    for form in ("rows", "columns"):
        with pytest.raises(JobFailed, match="cannot be used"):
            collected(
                lambda env, form=form: stream_of(env, [(skipped,)], form, "at timestamp_ntz").assign_timestamps(
                    "at" if form == "columns" else lambda r: r[0], zone="Europe/Berlin"
                )
            )


def test_what_these_verbs_cannot_do_is_refused_where_it_is_written() -> None:
    numbers = tr.Environment(parallelism=1).from_collection([1])
    keyed, columns = numbers.key_by(abs), numbers.to_columns("x long")
    for wrong, match in (
        (lambda: keyed.lag(0), "n is a number of records"),
        (lambda: keyed.lag(in_order=True), "assign_timestamps"),
        (lambda: keyed.rate_limit(1, per=0), "per must be above zero"),
        (lambda: numbers.sample(1.5), "a number from 0 to 1"),
        (lambda: numbers.sample(0.5, by=abs, seed=-1), "the seed is a whole number"),
        (lambda: numbers.split(abs, into=["a", "a"]), "each once"),
        (lambda: columns.explode("x"), "column 'x' is int64, and no list"),
        (lambda: columns.explode("y"), "no column 'y'"),
        (lambda: keyed.describe(), "give a function, a column"),
        (lambda: numbers.assign_timestamps(abs, zone="Berlin"), "there is no time zone 'Berlin'"),
    ):
        with pytest.raises(GraphError, match=match):
            wrong()
    with pytest.raises(TypeMismatch, match="flat_map"):
        numbers.explode("x")
    with pytest.raises(TypeMismatch, match=r"call to_rows\(\) before"):
        columns.split(abs)


# peek and show.


@FORMS
def test_a_peek_prints_the_first_records_and_changes_nothing(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    records = [("a", n, float(n)) for n in range(50)]

    def write(env: tr.Environment) -> tr.DataStream:
        timed = stream_of(env, records, form).assign_timestamps("t" if form == "columns" else lambda r: r[2])
        peeked = timed.peek(n=2).peek(lambda r: f"n is {r[1]}", n=3).peek(lambda r: None)
        return peeked.process(lambda r, ctx: [(tuple(r), ctx.timestamp)])

    assert collected(write) == [(record, record[2]) for record in records]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 5 and [line for line in printed if line.startswith("n is")] == ["n is 0", "n is 1", "n is 2"]


@FORMS
def test_the_head_of_a_stream_has_so_many_records(form: str) -> None:
    records = [("a", n, float(n)) for n in range(50)]
    found = collected(lambda env: head(stream_of(env, records, form).rebalance(), 7), 3)
    assert len(found) == 7 and {tuple(one) for one in found} <= set(records)
    assert len(collected(lambda env: head(stream_of(env, records, form), 70))) == 50


def test_show_refuses_what_has_no_end() -> None:
    env = tr.Environment(parallelism=1)
    with pytest.raises(GraphError, match=r"show: source .* is unbounded"):
        env.from_source(tr.sources.Sequence(0, None)).show()
    with pytest.raises(GraphError, match="n is a number of records"):
        env.from_collection([1]).show(0)
