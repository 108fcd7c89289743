"""Results of joins in whole jobs, compared with SQL and pandas over random data."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import duckdb
import pandas as pd
import pytest

import tailrace as tr
from tailrace.graph.operators import How

HOWS: tuple[How, ...] = get_args(How)
Event = tuple[str, int, int]
"""(key, time in seconds, number)."""


def events(seed: int, count: int = 120, keys: str = "abcdefgh") -> list[Event]:
    chance = random.Random(seed)
    return [(chance.choice(keys), max(0, i // 2 - chance.randint(0, 9)), i) for i in range(count)]


def keyed(env: tr.Environment, some: list[Event]) -> tr.KeyedStream:
    return env.from_collection(some).assign_timestamps(lambda e: e[1], 10).key_by(lambda e: e[0])


def results(
    join: Callable[[tr.KeyedStream, tr.KeyedStream], tr.DataStream], first: list[Event], second: list[Event]
) -> list[Any]:
    """The records that a join gives, without any that is late."""
    env = tr.Environment(parallelism=2)
    joined = join(keyed(env, first), keyed(env, second))
    found = joined.sink_to(tr.sinks.Collect())
    late = joined.side_output("late").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert late.result() == []
    return found.result()


def numbers(found: list[Any], how: How) -> Counter[Any]:
    if how in ("semi", "anti"):
        return Counter((a[2], None) for a in found)
    return Counter((a and a[2], b and b[2]) for a, b in found)


def in_sql(how: How, condition: str, first: list[Event], second: list[Event]) -> Counter[Any]:
    """The numbers of the records of each result of the join, by SQLite."""
    base = sqlite3.connect(":memory:")
    for name, some in (("a", first), ("b", second)):
        base.execute(f"create table {name} (k text, t integer, n integer)")
        base.executemany(f"insert into {name} values (?, ?, ?)", some)
    on = f"a.k = b.k and {condition}"
    if how in ("semi", "anti"):
        no = "not" if how == "anti" else ""
        query = f"select a.n, null from a where {no} exists (select 1 from b where {on})"
    else:
        query = f"select a.n, b.n from a {how} join b on {on}"
    return Counter(base.execute(query).fetchall())


@pytest.mark.parametrize("how", HOWS)
def test_a_join_within_an_interval_is_that_of_sql(how: How) -> None:
    first, second = events(1), events(2)
    found = results(lambda a, b: a.join(b, within=(-2, 5), how=how), first, second)
    assert numbers(found, how) == in_sql(how, "b.t - a.t between -2 and 5", first, second)


def in_columns(env: tr.Environment, some: list[Event]) -> tr.KeyedStream:
    stream = env.from_collection(some).to_columns("k string, t long, n long")
    return stream.assign_timestamps("t", 10).key_by("k")


@pytest.mark.parametrize("how", HOWS)
def test_a_join_in_columns_is_that_in_rows_and_that_of_sql(how: How) -> None:
    """Results and their times are those in rows, and the results those of SQL."""
    first, second = events(11, 400), events(12, 400)
    env = tr.Environment(parallelism=2)
    joined = [
        make(env, first).join(make(env, second), within=(-2, 5), how=how)  # type: ignore[operator]
        for make in (keyed, in_columns)
    ]
    found = [one.process(lambda value, ctx: [(value, ctx.timestamp)]).sink_to(tr.sinks.Collect()) for one in joined]
    late = [one.side_output("late").sink_to(tr.sinks.Collect()) for one in joined]
    tr.testing.run(env)
    assert [one.result() for one in late] == [[], []]
    rows, columns = (one.result() for one in found)
    pairs = [(row if how in ("semi", "anti") else as_pair(row), time) for row, time in columns]
    assert Counter(pairs) == Counter(rows)
    assert numbers([pair for pair, _ in pairs], how) == in_sql(how, "b.t - a.t between -2 and 5", first, second)


@pytest.mark.parametrize("parallelism", [1, 5])
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_versions_in_columns_are_those_in_rows_and_those_of_pandas(how: How, parallelism: int) -> None:
    first, versions = events(15, 400), events(16, 200)
    env = tr.Environment(parallelism=parallelism)
    joined = [
        make(env, first).join_as_of(make(env, versions), how=how, keep=4)  # type: ignore[operator]
        for make in (keyed, in_columns)
    ]
    found = [one.process(lambda value, ctx: [(value, ctx.timestamp)]).sink_to(tr.sinks.Collect()) for one in joined]
    tr.testing.run(env)
    rows, columns = (one.result() for one in found)
    pairs = [(row if how in ("semi", "anti") else as_pair(row), time) for row, time in columns]
    assert Counter(pairs) == Counter(rows) != Counter()
    frames = [pd.DataFrame(sorted(some, key=lambda e: e[1]), columns=["k", "t", "n"]) for some in (first, versions)]
    merged = pd.merge_asof(*frames, on="t", by="k", tolerance=4)
    has = merged["n_y"].notna()
    chosen = merged[~has if how == "anti" else has] if how != "left" else merged
    assert sorted(chosen["n_x"]) == sorted((pair if how in ("semi", "anti") else pair[0])[2] for pair, _ in pairs)


@pytest.mark.parametrize("how", HOWS)
def test_a_join_by_windows_in_columns_is_that_in_rows_and_that_of_sql(how: How) -> None:
    keys = "abcdefghijklmno"
    first, second = events(17, keys=keys), events(18, keys=keys)
    for window in (tr.Tumbling(6), tr.Sliding(6, 2)):
        env = tr.Environment(parallelism=2)
        joined = [
            make(env, first).join(make(env, second), window=window, how=how)  # type: ignore[operator]
            for make in (keyed, in_columns)
        ]
        found = [one.process(lambda value, ctx: [(value, ctx.timestamp)]).sink_to(tr.sinks.Collect()) for one in joined]
        tr.testing.run(env)
        rows, columns = (one.result() for one in found)
        pairs = [(row if how in ("semi", "anti") else as_pair(row), time) for row, time in columns]
        assert Counter(pairs) == Counter(rows)
        if window == tr.Tumbling(6):
            assert numbers([pair for pair, _ in pairs], how) == in_sql(how, "a.t / 6 = b.t / 6", first, second)


@pytest.mark.parametrize("how", [*HOWS, None])
def test_sessions_in_columns_are_those_in_rows_and_those_of_duckdb(how: How | None) -> None:
    """With `how` None the lists of each session."""
    first, second = events(21, keys="abcdefghijklmno"), events(22, keys="abcdefghijklmno")
    env = tr.Environment(parallelism=2)
    found = []
    for make in (keyed, in_columns):
        a, b = make(env, first), make(env, second)  # type: ignore[operator]
        joined = a.co_group(b, window=tr.Session(3)) if how is None else a.join(b, window=tr.Session(3), how=how)
        found.append(joined.process(lambda value, ctx: [(value, ctx.timestamp)]).sink_to(tr.sinks.Collect()))
    tr.testing.run(env)
    rows, columns = (one.result() for one in found)
    if how is None:
        sides = [([[tuple(one.values()) for one in side] for side in (row.first, row.second)], t) for row, t in columns]
        lists = [(tuple(map(sorted, pair)), time) for pair, time in sides]
        assert sorted(lists, key=str) == sorted(((tuple(map(sorted, pair)), time) for pair, time in rows), key=str)
        return
    pairs = [(row if how in ("semi", "anti") else as_pair(row), time) for row, time in columns]
    assert Counter(pairs) == Counter(rows) != Counter()
    assert numbers([pair for pair, _ in pairs], how) == sessions_in_duckdb(how, 3, first, second)


def sessions_in_duckdb(how: How, gap: int, first: list[Event], second: list[Event]) -> Counter[Any]:
    """The numbers of the records of each result of the join by sessions over both, by DuckDB."""
    base = duckdb.connect()
    for name, some in (("a", first), ("b", second)):
        base.execute(f"create table {name} (k text, t integer, n integer)")
        base.executemany(f"insert into {name} values (?, ?, ?)", some)
    base.execute(f"""
        create table session as select distinct k, t, sum(new) over (partition by k order by t) as s from (
            select k, t, case when t - lag(t) over (partition by k order by t) <= {gap} then 0 else 1 end as new
            from (select k, t from a union select k, t from b))""")
    for name in "ab":
        base.execute(f"create view of_{name} as select n, k, s from {name} join session using (k, t)")
    kinds = {"left": "left join", "right": "right join", "full": "full join", "inner": "join"}
    if how in kinds:
        query = f"select x.n, y.n from of_a x {kinds[how]} of_b y on x.k = y.k and x.s = y.s"
    else:
        query = f"select n, null from of_a x {how} join of_b y on x.k = y.k and x.s = y.s"
    return Counter(base.execute(query).fetchall())


@pytest.mark.parametrize("seed", range(3))
def test_versions_in_columns_are_those_of_duckdb(seed: int) -> None:
    chance = random.Random(seed)
    first = [(chance.choice("abcde"), chance.randint(-50, 50), i) for i in range(300)]
    versions = [
        (*place, i) for i, place in enumerate({(chance.choice("abcdf"), chance.randint(-60, 40)) for _ in range(99)})
    ]
    env = tr.Environment(parallelism=3)
    a, b = (
        env.from_collection(some).to_columns("k string, t long, n long").assign_timestamps("t", 200).key_by("k")
        for some in (first, versions)
    )
    found = a.join_as_of(b, how="left").select("n_x", "n_y").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    base = duckdb.connect()
    for name, some in (("a", first), ("b", versions)):
        base.execute(f"create table {name} (k text, t integer, n integer)")
        base.executemany(f"insert into {name} values (?, ?, ?)", some)
    query = "select a.n, b.n from a asof left join b on a.k = b.k and a.t >= b.t"
    assert Counter(map(tuple, found.result())) == Counter(base.execute(query).fetchall())


def as_pair(row: Any) -> Any:
    sides = [(row.k, row["t" + suffix], row["n" + suffix]) for suffix in ("_x", "_y")]
    return tuple(None if side[2] is None else side for side in sides)


@pytest.mark.parametrize("how", HOWS)
def test_a_join_by_windows_is_that_of_sql(how: How) -> None:
    first, second = events(3, keys="abcdefghijklmno"), events(4, keys="abcdefghijklmno")
    found = results(lambda a, b: a.join(b, window=tr.Tumbling(6), how=how), first, second)
    assert numbers(found, how) == in_sql(how, "a.t / 6 = b.t / 6", first, second)


@pytest.mark.parametrize("keep", [None, 4])
def test_versions_are_those_of_pandas(keep: int | None) -> None:
    first = sorted(events(5), key=lambda e: e[1])
    versions = sorted({event[:2]: event for event in events(6, 60)}.values(), key=lambda e: e[1])
    frames = [pd.DataFrame(some, columns=["k", "t", "n"]) for some in (first, versions)]
    merged = pd.merge_asof(*frames, on="t", by="k", tolerance=keep)
    expected = Counter((a, None if pd.isna(b) else int(b)) for a, b in zip(merged["n_x"], merged["n_y"], strict=True))
    shuffled = [*versions]
    found = results(lambda a, b: a.join_as_of(b, keep=keep, how="left"), events(5), shuffled)
    assert numbers(found, "left") == expected
    assert numbers(results(lambda a, b: a.join_as_of(b, keep=keep), events(5), versions), "inner") == Counter(
        {pair: count for pair, count in expected.items() if pair[1] is not None}
    )
    for how in ("semi", "anti"):
        found = results(lambda a, b, how=how: a.join_as_of(b, keep=keep, how=how), events(5), versions)
        assert numbers(found, how) == Counter({(a, None): 1 for a, b in expected if (b is None) is (how == "anti")})


@pytest.mark.parametrize("kept", [200_000, 1, 333_333, 2_200_000])
def test_a_version_counts_to_the_microsecond(kept: int) -> None:
    """A sum of two floats may be above the float of the time that is meant."""
    chance = random.Random(kept)
    begins = [chance.randrange(2_000_000_000) for _ in range(200)]
    versions = [(n, timedelta(microseconds=begin), n) for n, begin in enumerate(begins)]
    ends = [begin + kept for begin in begins]
    first = [(n, timedelta(microseconds=end + more), more) for n, end in enumerate(ends) for more in (0, 1)]
    env = tr.Environment(parallelism=1)
    keyed = [
        env.from_collection(some).assign_timestamps(lambda e: e[1], 10_000).key_by(lambda e: e[0])
        for some in (first, versions)
    ]
    found = keyed[0].join_as_of(keyed[1], keep=kept / 1e6, how="left").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert Counter((a[2], b is not None) for a, b in found.result()) == {(0, True): 200, (1, False): 200}


def test_a_record_before_all_versions_are_loaded_has_the_version_as_of_then() -> None:
    first = [("a", 1, 1), ("a", 20, 2), ("b", 3, 3), ("a", 10, 4)]
    versions = [("a", 5, 10), ("a", 9, 11), ("a", 15, 12), ("b", 11, 13)]
    for until in (10, datetime.fromtimestamp(10, UTC)):
        found = results(lambda a, b, until=until: a.join_as_of(b, how="left", load_until=until), first, versions)
        assert numbers(found, "left") == Counter([(1, 11), (2, 12), (3, None), (4, 11)])


def test_a_session_goes_over_both_streams() -> None:
    """Records between which there is no gap in either stream alone, but none in both together."""
    first, second = [("a", 0, 1), ("a", 8, 2), ("a", 30, 3)], [("a", 4, 4), ("a", 41, 5)]
    for gap in (5, lambda event: 5):
        found = results(lambda a, b, gap=gap: a.join(b, window=tr.Session(gap), how="full"), first, second)
        assert numbers(found, "full") == Counter([(1, 4), (2, 4), (3, None), (None, 5)])


def test_co_group_gives_the_lists_of_each_window() -> None:
    first, second = [("a", 1, 1), ("a", 2, 2), ("b", 3, 3)], [("a", 4, 4), ("c", 5, 5)]
    found = results(lambda a, b: a.co_group(b, window=tr.Tumbling(10)), first, second)
    assert sorted(found, key=str) == [
        ([("a", 1, 1), ("a", 2, 2)], [("a", 4, 4)]),
        ([("b", 3, 3)], []),
        ([], [("c", 5, 5)]),
    ]
    sizes = results(
        lambda a, b: a.co_group(b, window=tr.Tumbling(10), select=lambda x, y: (len(x), len(y))), first, second
    )
    assert sorted(sizes) == [(0, 1), (1, 0), (2, 1)]


def test_late_records_of_each_join_come_as_they_were() -> None:
    joins: list[Callable[[Any, Any], tr.DataStream]] = [
        lambda a, b: a.join(b, within=(0, 5), select=lambda x, y: x),
        lambda a, b: a.join(b, window=tr.Tumbling(2), select=lambda x, y: x),
        lambda a, b: a.co_group(b, window=tr.Tumbling(2)),
        lambda a, b: a.join_as_of(b, select=lambda x, y: x),
    ]
    some = [("a", 1, 1), ("a", 50, 2), ("a", 3, 3)]
    for join in joins:
        env = tr.Environment(parallelism=1)
        first = env.from_source(tr.sources.Generator(lambda: iter(some), rate=1)).assign_timestamps(lambda e: e[1])
        late = join(first.key_by(lambda e: e[0]), first.filter(lambda e: e[2] < 3).key_by(lambda e: e[0])).side_output(
            "late"
        )
        found = late.sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        assert found.result() == [("a", 3, 3)]


def test_a_silent_stream_does_not_hold_records_without_a_partner() -> None:
    """The second stream has one record, and then nothing for an hour."""
    env = tr.Environment(parallelism=1)
    ticks = env.from_source(tr.sources.Sequence(0, 40, rate=1)).assign_timestamps(lambda i: float(i))
    silent = env.from_source(tr.sources.Generator(lambda: iter([0, 3_600]), rate=1 / 3_600))
    other = silent.assign_timestamps(lambda i: float(i), idle_after=2)
    joined = ticks.key_by(lambda i: i % 2).join(other.key_by(lambda i: i % 2), within=(0, 5), how="left")
    seen = joined.process(lambda pair, ctx: [(pair, ctx.now())]).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    begun = min(now for _, now in seen.result())
    assert ((30, None)) in {pair for pair, now in seen.result() if now < begun + 60}


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "both": (lambda a, b: a.join(b, within=(0, 1), window=tr.Tumbling(1)), "join: give either within="),
    "none": (lambda a, b: a.join(b), "join: give either within="),
    "windows without time": (lambda a, b: a.join(b, window=tr.CountWindow(2)), "join: the window is one of event time"),
    "versions of the right": (lambda a, b: a.join_as_of(b, how="right"), "join_as_of: a version that no record needed"),
    "keep": (lambda a, b: a.join_as_of(b, keep=-1), "join_as_of: a duration must not be negative"),
    "load_until": (lambda a, b: a.join_as_of(b, load_until="noon"), "join_as_of: load_until: a time must be a number"),
    "on_error": (lambda a, b: a.join_as_of(b, on_error=tr.Aside("x")), "join_as_of: takes no on_error"),
    "on_error of windows": (
        lambda a, b: a.co_group(b, window=tr.Tumbling(1), on_error=tr.Aside("x")),
        "co_group: takes no on_error",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused_where_it_is_written(name: str) -> None:
    write, why = REFUSED[name]
    env = tr.Environment(parallelism=1)
    with pytest.raises(tr.GraphError, match=why):
        write(keyed(env, []), keyed(env, []))
