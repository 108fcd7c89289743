"""Windows of so many records, and of all records of a key."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.errors import GraphError


def counted(windows: Any, records: list[Any], *, rate: float | None = None, parallelism: int = 2) -> list[Any]:
    env = tr.Environment(parallelism=parallelism)
    source = tr.sources.Generator(lambda i: records[i], rate=rate, count=len(records))
    keyed = env.from_source(source, parallelism=1).key_by(lambda r: r[0])
    out = keyed.window(windows).aggregate(n=tr.Count(), total=tr.Sum(lambda r: r[1])).map(tuple)
    sink = out.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return sink.result()


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_each_window_has_so_many_records_in_the_order_in_which_they_came(data: st.DataObject) -> None:
    records = data.draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-9, 9)), max_size=40))
    size, partial = data.draw(st.integers(1, 7)), data.draw(st.booleans())
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, value in records:
        by_key[key].append(value)
    expected = [
        (key, len(part), sum(part))
        for key, values in by_key.items()
        for at in range(0, len(values), size)
        if partial or len(values[at : at + size]) == size
        for part in [values[at : at + size]]
    ]
    assert sorted(counted(tr.CountWindow(size, partial_at_end=partial), records)) == sorted(expected)


def test_a_window_is_over_when_its_time_is_over() -> None:
    # One record a second: the window of the first one is over after two and a half seconds, with three records.
    records = [("a", 1), ("a", 2), ("a", 4), ("a", 8), ("b", 16), ("b", 32), ("a", 64)]
    found = counted(tr.CountWindow(5, timeout=2.5), records, rate=1.0, parallelism=1)
    assert sorted(found) == [("a", 1, 8), ("a", 1, 64), ("a", 3, 7), ("b", 2, 48)]


def test_a_full_window_leaves_no_timeout_behind() -> None:
    found = counted(tr.CountWindow(2, timeout="1500 ms"), [("a", n) for n in range(7)], rate=1.0, parallelism=1)
    assert found == [("a", 2, 1), ("a", 2, 5), ("a", 2, 9), ("a", 1, 6)]


def test_the_global_window_has_all_records_of_a_key() -> None:
    assert sorted(counted(tr.Global(), [("a", 1), ("b", 2), ("a", 4)])) == [("a", 2, 5), ("b", 1, 2)]


def test_every_verb_of_count_windows_in_rows_and_columns() -> None:
    env = tr.Environment(parallelism=1)
    table = env.from_collection([("a", 1, 5), ("a", 1, 6), ("a", 2, 7)]).to_columns("k string, j int, x int")
    keyed = table.key_by("k", "j")
    found = {
        "count": keyed.window(tr.CountWindow(2)).count(),
        "sum": keyed.window(tr.CountWindow(2)).sum("x"),
        "reduce": table.key_by("k").window(tr.Global()).reduce(lambda a, b: a if a.x > b.x else b),
    }
    sinks = {name: stream.sink_to(tr.sinks.Collect()) for name, stream in found.items()}
    tr.testing.run(env)
    assert [row._asdict() for row in sinks["count"].result()] == [
        {"k": "a", "j": 1, "count": 2},
        {"k": "a", "j": 2, "count": 1},
    ]
    assert [tuple(row) for row in sinks["sum"].result()] == [("a", 1, 11), ("a", 2, 7)]
    [row] = sinks["reduce"].result()
    assert (row.k, row.value.x) == ("a", 7)


def early(windows: Any, discarding: bool, every: Any, verb: Any) -> list[Any]:
    env = tr.Environment(parallelism=1)
    records = [("a", 1), ("a", 2), ("b", 4), ("a", 8), ("a", 16)]
    keyed = env.from_source(tr.sources.Generator(lambda i: records[i], rate=1.0, count=5)).key_by(lambda r: r[0])
    out = verb(keyed.window(windows, early=every, discarding=discarding)).map(tuple)
    sink = out.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return sink.result()


def test_windows_that_do_not_depend_on_time_fire_early() -> None:
    def total(w: tr.WindowedStream) -> tr.DataStream:
        return w.sum(lambda r: r[1])

    two = tr.Every(records=2)
    assert early(tr.CountWindow(3), False, two, total) == [
        ("a", 3, "early", 1), ("a", 11, "final", 2), ("b", 4, "final", 1), ("a", 16, "final", 1),
    ]  # fmt: skip
    assert early(tr.CountWindow(3), True, two, total) == [
        ("a", 3, "early", 1), ("a", 8, "final", 2), ("b", 4, "final", 1), ("a", 16, "final", 1),
    ]  # fmt: skip
    assert early(tr.Global(), False, tr.Every(seconds=1.5), total) == [
        ("a", 3, "early", 1), ("b", 4, "early", 1), ("a", 27, "final", 2), ("b", 4, "final", 2),
    ]  # fmt: skip


def test_an_early_result_leaves_the_timeout_of_its_window() -> None:
    """Both are due at one time, and the early result comes before, for its number of records."""
    windows, every = tr.CountWindow(9, timeout=2.5), tr.Every(records=2, seconds=2.5)
    assert early(windows, False, every, lambda w: w.sum(lambda r: r[1]))[:2] == [
        ("a", 3, "early", 1), ("a", 3, "final", 2),
    ]  # fmt: skip


def test_a_discarded_window_begins_anew() -> None:
    def larger(w: tr.WindowedStream) -> tr.DataStream:
        return w.reduce(max).map(lambda r: (r.value and r.value[1], r.firing, r.number))

    found = early(tr.Global(), True, tr.Every(records=2), larger)
    assert found == [(2, "early", 1), (16, "early", 2), (None, "final", 3), (4, "final", 1)]

    def listed(w: tr.WindowedStream) -> tr.DataStream:
        return w.process(lambda key, window, records, ctx: [(key, [r[1] for r in records], window.firing)])

    assert early(tr.Global(), True, tr.Every(records=3), listed) == [
        ("a", [1, 2, 8], "early"), ("a", [16], "final"), ("b", [4], "final"),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_windows_go_on_behind_every_loss(seed: int) -> None:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("unused", interval=0.02))
    records = [("abc"[n % 3], n) for n in range(90)]
    source = tr.sources.Generator(lambda i: records[i], rate=1000.0, count=90)
    keyed = env.from_source(source, parallelism=1).key_by(lambda r: r[0])
    sink = keyed.window(tr.CountWindow(7)).sum(lambda r: r[1]).map(tuple).sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=seed, faults=[tr.testing.Fault(40 + 30 * seed, "kill")])
    job.await_termination()
    parts = [records[at::3] for at in range(3)]
    expected = [(part[0][0], sum(n for _, n in part[at : at + 7])) for part in parts for at in range(0, 30, 7)]
    assert sorted(sink.result()) == sorted(expected)


def test_what_count_windows_cannot_do_is_refused_where_it_is_written() -> None:
    for size in (0, -1, 1.5, True, "3"):
        with pytest.raises(GraphError, match="the size is a number of records"):
            tr.CountWindow(size)  # type: ignore[arg-type]
    for timeout in (0, -1, "soon"):
        with pytest.raises(GraphError, match=r"CountWindow: .*timeout"):
            tr.CountWindow(1, timeout=timeout)
    keyed = tr.Environment(parallelism=1).from_collection([1]).key_by(lambda x: x)
    with pytest.raises(GraphError, match="allowed_lateness is for windows of event time"):
        keyed.window(tr.CountWindow(1), allowed_lateness=1)
    with pytest.raises(GraphError, match="has no late records"):
        keyed.window(tr.Global()).count().side_output("late")


def test_in_a_loop_a_window_may_not_wait_for_the_end() -> None:
    def body(windows: Any) -> Any:
        def write(stream: tr.DataStream) -> Any:
            found = stream.key_by(lambda n: n % 2).window(windows).reduce(max).map(lambda r: r.value - 2)
            return found.filter(lambda n: n > 0), found.filter(lambda n: n <= 0)

        return write

    numbers = tr.Environment(parallelism=1).from_collection([4, 3])
    for windows in (tr.Global(), tr.CountWindow(2)):
        with pytest.raises(GraphError, match="the end of the input is not the end of the records"):
            numbers.iterate(body(windows))
    env = tr.Environment(parallelism=1)
    out = env.from_collection([4, 3]).iterate(body(tr.CountWindow(1, partial_at_end=False)))
    sink = out.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(sink.result()) == [-1, 0]
