"""Everyday verbs, beside pandas and plain models over random data, in rows and in columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.errors import GraphError, JobFailed, TypeMismatch

Record = tuple[str, int, float]
RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5), st.integers(0, 60).map(float)), max_size=40)
SCHEMA = "k string, n long, t double"


def stream_of(env: tr.Environment, records: list[Record], form: str = "rows", timed: bool = True) -> tr.DataStream:
    """The records, at one subtask, with event time that holds until the end; so none is late."""
    stream = env.from_source(tr.sources.Generator(lambda i: records[i], count=len(records)), parallelism=1)
    if form == "columns":
        stream = stream.to_columns(SCHEMA)
    return stream.assign_timestamps("t" if form == "columns" else lambda r: r[2], 1_000) if timed else stream


def collected(write: Callable[[tr.Environment], tr.DataStream], parallelism: int = 2) -> list[Any]:
    env = tr.Environment(parallelism=parallelism)
    sink = write(env).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return list(sink.result())


def key_in(form: str) -> Any:
    return "k" if form == "columns" else lambda r: r[0]


FORMS = pytest.mark.parametrize("form", ["rows", "columns"])


# drop_duplicates.


@FORMS
@pytest.mark.parametrize("keep", ["first", "last"])
@given(records=RECORDS)
@settings(max_examples=10, deadline=None)
def test_one_record_of_each_key_is_the_one_of_pandas(form: str, keep: Any, records: list[Record]) -> None:
    def write(env: tr.Environment) -> tr.DataStream:
        return stream_of(env, records, form, timed=False).key_by(key_in(form)).drop_duplicates(keep=keep)

    frame = pd.DataFrame(records, columns=["k", "n", "t"]).drop_duplicates("k", keep=keep)
    assert sorted(map(tuple, collected(write))) == sorted(map(tuple, frame.values.tolist()))


@FORMS
@given(records=RECORDS, within=st.integers(1, 40))
@settings(max_examples=10, deadline=None)
def test_the_first_record_of_a_span_is_kept(form: str, records: list[Record], within: int) -> None:
    def write(env: tr.Environment) -> tr.DataStream:
        return stream_of(env, records, form).key_by(key_in(form)).drop_duplicates(within)

    kept: dict[str, list[float]] = defaultdict(list)
    expected = []
    for record in records:
        if all(abs(record[2] - other) > within for other in kept[record[0]]):
            kept[record[0]].append(record[2])
            expected.append(record)
    assert sorted(map(tuple, collected(write))) == sorted(expected)


@FORMS
@given(records=RECORDS, within=st.integers(1, 40))
@settings(max_examples=10, deadline=None)
def test_the_last_record_of_a_span_is_kept(form: str, records: list[Record], within: int) -> None:
    def write(env: tr.Environment) -> tr.DataStream:
        return stream_of(env, records, form).key_by(key_in(form)).drop_duplicates(within, keep="last")

    expected, open_spans = [], dict[str, tuple[float, Record]]()
    for record in sorted(records, key=lambda r: r[2]):
        begin, last = open_spans.get(record[0], (record[2], record))
        if record[2] > begin + within:
            expected.append(last)
            begin = record[2]
        open_spans[record[0]] = begin, record
    expected += [last for _, last in open_spans.values()]
    assert sorted(map(tuple, collected(write))) == sorted(expected)


def paced(env: tr.Environment, records: list[Record]) -> tr.DataStream:
    """One record a second, each in a batch of its own."""
    return env.from_source(tr.sources.Generator(lambda i: records[i], rate=1.0, count=len(records)), parallelism=1)


@pytest.mark.parametrize("keep", ["first", "last"])
def test_late_records_go_aside(keep: Any) -> None:
    env = tr.Environment(parallelism=1)
    records = [("a", 1, 10.0), ("a", 2, 90.0), ("b", 3, 11.0), ("a", 4, 91.0)]
    timed = paced(env, records).assign_timestamps(lambda r: r[2])
    kept = timed.key_by(lambda r: r[0]).drop_duplicates(within=5, keep=keep)
    sinks = kept.sink_to(tr.sinks.Collect()), kept.side_output("late").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sinks[0].result() == [records[0], records[1 if keep == "first" else 3]]
    assert sinks[1].result() == [records[2]]


@pytest.mark.parametrize("keep", ["first", "last"])
def test_without_timestamps_a_span_is_of_the_clock(keep: Any) -> None:
    records = [("a", n, 0.0) for n in range(7)]
    found = collected(lambda env: paced(env, records).key_by(lambda r: r[0]).drop_duplicates("2.5 s", keep=keep), 1)
    assert [n for _, n, _ in found] == ([0, 3, 6] if keep == "first" else [2, 5, 6])


def test_windows_behind_the_last_records_have_all_of_them() -> None:
    """The end of a span is the timestamp of its last record: no earlier one would be in time."""
    records = [("a", n, float(n)) for n in range(40)]

    def write(env: tr.Environment) -> tr.DataStream:
        last = paced(env, records).assign_timestamps(lambda r: r[2]).key_by(lambda r: r[0])
        return last.drop_duplicates(within=4, keep="last").key_by(lambda r: r[0]).window(tr.Tumbling(10)).count()

    assert sum(row.count for row in collected(write)) == 8


def test_in_a_loop_each_key_is_visited_once() -> None:
    env = tr.Environment(parallelism=2)

    def body(stream: tr.DataStream) -> Any:
        new = stream.key_by(lambda n: n).drop_duplicates()
        return new.flat_map(lambda n: [n * 2 % 101, n * 3 % 101]), new

    sink = env.from_collection([1]).iterate(body).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(sink.result()) == list(range(1, 101))
    for wrong in ({"within": 3}, {"keep": "last"}):
        with pytest.raises(GraphError, match=r"only drop_duplicates\(\) without more"):
            env.from_collection([1]).iterate(lambda s, w=wrong: (s.key_by(abs).drop_duplicates(**w), None))


# top and rank.


def after(changes: list[Any], n: int) -> dict[str, list[Any]]:
    """The best records of each key after these changes; each change must fit those before it."""
    best: dict[str, list[Any]] = defaultdict(list)
    for key, op, rank, value in changes:
        if op == "-":
            assert best[key].pop(rank - 1) == value
        else:
            best[key].insert(rank - 1, value)
        assert len(best[key]) <= n
    return best


@FORMS
@given(records=RECORDS, n=st.integers(1, 5), ascending=st.booleans())
@settings(max_examples=10, deadline=None)
def test_changes_of_the_best_records_lead_to_those_of_pandas(
    form: str, records: list[Record], n: int, ascending: bool
) -> None:
    def write(env: tr.Environment) -> tr.DataStream:
        by = "n" if form == "columns" else lambda r: r[1]
        return stream_of(env, records, form).key_by(key_in(form)).top(n, by=by, ascending=ascending)

    frame = pd.DataFrame(records, columns=["k", "n", "t"])
    best = after(list(map(tuple, collected(write))), n)
    for key, part in frame.groupby("k"):
        expected = part.nsmallest(n, "n", keep="first") if ascending else part.nlargest(n, "n", keep="first")
        assert list(map(tuple, best[key])) == list(map(tuple, expected.values.tolist()))


@FORMS
@given(records=RECORDS, n=st.integers(1, 5))
@settings(max_examples=10, deadline=None)
def test_the_best_records_of_each_window_are_those_of_pandas(form: str, records: list[Record], n: int) -> None:
    def write(env: tr.Environment) -> tr.DataStream:
        keyed = stream_of(env, records, form).key_by(key_in(form))
        return keyed.window(tr.Tumbling(20)).top(n, by="n" if form == "columns" else lambda r: r[1])

    frame = pd.DataFrame(records, columns=["k", "n", "t"])
    frame["start"] = frame["t"] // 20 * 20
    expected = [
        (key, start, start + 20, rank, tuple(value))
        for (key, start), part in frame.groupby(["k", "start"])
        for rank, value in enumerate(part.nlargest(n, "n", keep="first")[["k", "n", "t"]].values.tolist(), 1)
    ]
    found = collected(write)
    assert sorted((*row[:-1], tuple(row.value)) for row in found) == sorted(expected)


@given(records=RECORDS, ascending=st.booleans())
@settings(max_examples=10, deadline=None)
def test_ranks_in_windows_are_those_of_pandas(records: list[Record], ascending: bool) -> None:
    def write(env: tr.Environment) -> tr.DataStream:
        keyed = stream_of(env, records).key_by(lambda r: r[0])
        return keyed.window(tr.Tumbling(1_000)).rank(by=lambda r: r[1], ascending=ascending)

    frame = pd.DataFrame(records, columns=["k", "n", "t"])
    frame["rank"] = frame.groupby("k")["n"].rank("min", ascending=ascending).astype(int)
    found = [(row.rank, tuple(row.value)) for row in collected(write)]
    assert sorted(found) == sorted((rank, (k, n, t)) for k, n, t, rank in frame.values.tolist())


def test_the_best_of_windows_that_do_not_depend_on_time_have_no_bounds() -> None:
    records = [("a", n, 0.0) for n in (3, 9, 4)]
    found = collected(
        lambda env: stream_of(env, records).key_by(lambda r: r[0]).window(tr.Global()).top(2, by=lambda r: r[1])
    )
    assert [row._asdict() for row in found] == [
        {"key": "a", "rank": 1, "value": records[1]},
        {"key": "a", "rank": 2, "value": records[2]},
    ]


def test_the_late_records_of_a_window_with_ranks_are_those_of_the_window() -> None:
    env = tr.Environment(parallelism=1)
    timed = paced(env, [("a", 1, 90.0), ("a", 2, 1.0)]).assign_timestamps(lambda r: r[2])
    best = timed.key_by(lambda r: r[0]).window(tr.Tumbling(10)).top(1, by=lambda r: r[1], uid="best")
    sinks = best.sink_to(tr.sinks.Collect()), best.side_output("late").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [tuple(row) for row in sinks[0].result()] == [("a", 90.0, 100.0, 1, ("a", 1, 90.0))]
    assert sinks[1].result() == [("a", 2, 1.0)]


@pytest.mark.parametrize("wrong", [None, float("nan")])
def test_a_value_without_a_place_fails(wrong: Any) -> None:
    for verb in (lambda k: k.top(2, by=lambda r: wrong), lambda k: k.window(tr.Global()).top(2, by=lambda r: wrong)):
        with pytest.raises(JobFailed, match="has no place in an order"):
            collected(lambda env, verb=verb: verb(env.from_collection([1, 2]).key_by(abs)))


# batch.


@given(records=RECORDS, n=st.integers(1, 7), parallelism=st.integers(1, 3))
@settings(max_examples=10, deadline=None)
def test_lists_have_so_many_records_of_a_subtask_in_their_order(
    records: list[Record], n: int, parallelism: int
) -> None:
    lists = collected(lambda env: stream_of(env, records).batch(n), parallelism)
    # One source feeds one subtask, and its records stay there.
    assert [len(one) for one in lists] == [len(records[at : at + n]) for at in range(0, len(records), n)]
    assert [record for one in lists for record in one] == records


def test_the_records_of_a_subtask_stay_in_it() -> None:
    lists = collected(lambda env: env.from_source(tr.sources.Sequence(0, 30)).batch(4), 3)
    assert sorted(n for one in lists for n in one) == list(range(30))
    assert all(len({n % 3 for n in one}) == 1 for one in lists) and max(map(len, lists)) == 4


def test_a_list_is_over_when_its_time_is_over() -> None:
    records = [("a", n, 0.0) for n in range(5)]
    lists = collected(lambda env: paced(env, records).batch(100, timeout=1.5), 1)
    assert [[n for _, n, _ in one] for one in lists] == [[0, 1], [2, 3], [4]]


def test_lists_of_a_keyed_stream_have_one_key() -> None:
    records = [("ab"[n % 2], n, 0.0) for n in range(7)]
    lists = collected(lambda env: stream_of(env, records).key_by(lambda r: r[0]).batch(3))
    assert sorted([n for _, n, _ in one] for one in lists) == [[0, 2, 4], [1, 3, 5], [6]]


def test_a_window_behind_lists_refuses_those_that_have_no_time() -> None:
    records = [("a", n, float(n)) for n in range(5)]

    def write(env: tr.Environment) -> tr.DataStream:
        return stream_of(env, records).batch(3).key_by(len).window(tr.Tumbling(10)).count()

    with pytest.raises(JobFailed, match="a record without a timestamp reached a window"):
        collected(write)


# All of them.


@pytest.mark.parametrize("seed", range(3))
def test_verbs_with_state_go_on_behind_every_loss(seed: int) -> None:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("unused", interval=0.02))
    records = [("abc"[n % 3], n * 7 % 31, n / 10) for n in range(120)]
    source = env.from_source(tr.sources.Generator(lambda i: records[i], rate=1000.0, count=120), parallelism=1)
    keyed = source.assign_timestamps(lambda r: r[2], 1).key_by(lambda r: r[0])
    sinks = {
        name: stream.sink_to(tr.sinks.Collect())
        for name, stream in {
            "first": keyed.drop_duplicates(within=3),
            "last": keyed.drop_duplicates(within=3, keep="last"),
            "top": keyed.top(3, by=lambda r: r[1]),
            "batch": source.batch(7),
        }.items()
    }
    job = tr.testing.simulate(env, seed=seed, faults=[tr.testing.Fault(60 + 40 * seed, "kill")])
    job.await_termination()
    parts = [records[at::3] for at in range(3)]
    assert sorted(sinks["first"].result()) == sorted(record for part in parts for record in part[::11])
    ends = [10, 21, 32, 39]
    assert sorted(sinks["last"].result()) == sorted(part[end] for part in parts for end in ends)
    best = after(list(map(tuple, sinks["top"].result())), 3)
    for key, part in zip("abc", parts, strict=True):
        assert best[key] == sorted(part, key=lambda r: -r[1])[:3]
    assert sorted(r for one in sinks["batch"].result() for r in one) == sorted(records)


def test_what_verbs_cannot_do_is_refused_where_it_is_written() -> None:
    numbers = tr.Environment(parallelism=1).from_collection([1])
    keyed = numbers.key_by(abs)
    for wrong, match in (
        (lambda: keyed.drop_duplicates(keep="any"), "keep must be 'first' or 'last'"),  # type: ignore[arg-type]
        (lambda: keyed.drop_duplicates(0), "within must be above zero"),
        (lambda: keyed.drop_duplicates(on_error=tr.Aside("x")), "takes no on_error"),
        (lambda: keyed.drop_duplicates(3).side_output("late"), "has no late records"),
        (lambda: keyed.top(0, by=abs), "n is a number of records"),
        (lambda: keyed.top(1, by=abs, ascending=1), "ascending must be True or False"),  # type: ignore[arg-type]
        (lambda: numbers.to_columns("x long").key_by("x").top(1, by="y"), "no column 'y'"),
        (lambda: numbers.batch(0), "the size is a number of records"),
    ):
        with pytest.raises(GraphError, match=match):
            wrong()
    with pytest.raises(TypeMismatch, match=r"call to_rows\(\) before"):
        numbers.to_columns("x long").batch(3)
