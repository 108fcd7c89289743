"""The join of two tables that change: its changes add up to the join of what is there."""

import random
from collections import Counter
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.api.joins.changes import ChangeJoin
from tailrace.graph.operators import How

HOWS: tuple[Any, ...] = get_args(How)
Table = list[tuple[str, int]]
"""Records of a table: (key, value)."""
Change = tuple[str, tuple[str, int]]


def key_of(change: Change) -> str:
    return change[1][0]


def joined(how: str, first: Table, second: Table) -> Counter[Any]:
    """The join of two tables, by a look at all pairs."""
    pairs = [(a, b) for a in first for b in second if a[0] == b[0]]
    keys = {a[0] for a in first}, {b[0] for b in second}
    if how in ("semi", "anti"):
        return Counter(a for a in first if (a[0] in keys[1]) is (how == "semi"))
    found: list[Any] = list(pairs)
    if how in ("left", "full"):
        found += [(a, None) for a in first if a[0] not in keys[1]]
    if how in ("right", "full"):
        found += [(None, b) for b in second if b[0] not in keys[0]]
    return Counter(found)


def apply(table: Counter[Any], changes: list[Any]) -> None:
    """Applies changes to a table. None takes back what is not there."""
    for op, record in changes:
        table[record] += 1 if op == "+" else -1
        assert table[record] >= 0, f"{record} is taken back and was not there"


def changes_of(random: random.Random, steps: int) -> list[tuple[int, Change]]:
    """Changes of two tables: (input, change). Only what is there is taken back."""
    tables: tuple[Table, Table] = ([], [])
    made: list[tuple[int, Change]] = []
    for _ in range(steps):
        port = random.randrange(2)
        if tables[port] and random.random() < 0.45:
            record = tables[port].pop(random.randrange(len(tables[port])))
            made.append((port, ("-", record)))
        else:
            record = random.choice("ab"), random.randrange(3)
            tables[port].append(record)
            made.append((port, ("+", record)))
    return made


@pytest.mark.parametrize("how", HOWS)
@given(random=st.randoms(use_true_random=False), steps=st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_after_each_change_the_results_are_the_join_of_what_is_there(
    how: Any, random: random.Random, steps: int
) -> None:
    h = tr.testing.harness(ChangeJoin(how, None), key=key_of, key2=key_of)
    tables: tuple[Table, Table] = ([], [])
    results: Counter[Any] = Counter()
    for port, (op, record) in changes_of(random, steps):
        tables[port].append(record) if op == "+" else tables[port].remove(record)
        apply(results, h.push((op, record), input=port + 1))
        assert +results == joined(how, *tables)


@pytest.mark.parametrize("how", HOWS)
@given(random=st.randoms(use_true_random=False), steps=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_with_a_time_to_live_nothing_is_taken_back_that_was_not_emitted(
    how: Any, random: random.Random, steps: int
) -> None:
    h = tr.testing.harness(ChangeJoin(how, tr.Ttl(10)), key=key_of, key2=key_of)
    results: Counter[Any] = Counter()
    now = 0.0
    for port, change in changes_of(random, steps):
        now += random.choice([0, 1, 4, 11])
        h.advance_clock(now)
        apply(results, h.push(change, input=port + 1))


def test_a_record_that_is_over_goes_without_a_change() -> None:
    h = tr.testing.harness(ChangeJoin("left", tr.Ttl(10)), key=key_of, key2=key_of)
    assert h.push(("+", ("a", 1))) == [("+", (("a", 1), None))]
    assert h.push(("+", ("a", 2)), input=2) == [("-", (("a", 1), None)), ("+", (("a", 1), ("a", 2)))]
    h.advance_clock(10)
    assert h.push(("-", ("a", 1))) == []  # its pair stays
    assert h.push(("+", ("a", 3))) == [("+", (("a", 3), None))]


class Ages:
    """Changes of the names and of the ages of 20 people, in the order of numbers."""

    def __init__(self, seed: int) -> None:
        random_ = random.Random(seed)
        made: tuple[list[Any], list[Any]] = ([], [])
        tables: tuple[Table, Table] = ([], [])
        for _ in range(300):
            port = random_.randrange(2)
            table = tables[port]
            if table and random_.random() < 0.4:
                record = table.pop(random_.randrange(len(table)))
                made[port].append(("-", record))
            else:
                record = f"k{random_.randrange(20)}", random_.randrange(5)
                table.append(record)
                made[port].append(("+", record))
        self.changes, self.tables = made, tables


@pytest.mark.parametrize(("how", "backend"), [("inner", "memory"), ("full", "disk"), ("anti", "memory")])
def test_a_killed_job_ends_with_the_join_of_both_tables(how: Any, backend: Any) -> None:
    ages = Ages(seed=len(how))
    env = tr.Environment(parallelism=2, state_backend=backend, checkpoint=tr.CheckpointConfig("unused", interval=0.02))

    def keyed(changes: list[Any]) -> tr.KeyedStream:
        source = tr.sources.Generator(changes.__getitem__, rate=1_000.0, count=len(changes))
        return env.from_source(source, parallelism=1).key_by(key_of)

    first, second = map(keyed, ages.changes)
    sink = first.join_changes(second, how=how).sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=3, faults=[tr.testing.Fault(60, "kill"), tr.testing.Fault(200, "kill")])
    job.await_termination()
    assert job.metrics()["restarts"] == 2
    results: Counter[Any] = Counter()
    for op, record in sink.result():
        results[record] += 1 if op == "+" else -1
    assert +results == joined(how, *ages.tables)
    assert not -results


def test_a_loop_joins_what_it_finds_with_a_table() -> None:
    """Nodes that can be reached from each other, by one arrow or more."""
    arrows = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]
    env = tr.Environment(parallelism=2)
    ways = env.from_collection(arrows)

    def extend(found: tr.DataStream) -> Any:
        new = found.key_by(lambda way: way).drop_duplicates()
        ends = new.map(lambda way: ("+", way)).key_by(lambda change: change[1][1])
        table = ways.map(lambda arrow: ("+", arrow)).enter(found.scope).key_by(lambda change: change[1][0])
        longer = ends.join_changes(table, select=lambda way, arrow: (way[0], arrow[1]))
        return longer.map(lambda change: change[1]), new

    sink = ways.iterate(extend).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    everywhere = {(a, b) for a in "abc" for b in "abc"}
    assert sorted(sink.result()) == sorted(everywhere | {("d", b) for b in "abc"})


def keyed(env: tr.Environment) -> tr.KeyedStream:
    return env.from_collection([("+", ("a", 1))]).key_by(key_of)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "outer"}, "join_changes: how is one of inner, left"),
        ({"ttl": 5}, r"join_changes: join state: ttl must be a tr.Ttl, such as ttl=tr.Ttl\(5\)"),
        ({"ttl": tr.Ttl(5, refresh="read")}, "join_changes: ttl counts from the time at which a record came"),
        ({"ttl": tr.Ttl(5, clock="event")}, "by event time, and the first stream has none; call assign_timestamps"),
        ({"how": "semi", "select": lambda a, b: a}, "leave select out"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(options: dict[str, Any], message: str) -> None:
    env = tr.Environment()
    with pytest.raises(tr.GraphError, match=message):
        keyed(env).join_changes(keyed(env), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("a", 1), r"a change is \('\+', record\) or \('-', record\)"),
        (("-", ("a", 1)), r"\('a', 1\) is taken back, and is not there"),
    ],
)
def test_a_record_that_is_no_change_is_an_error(change: Any, message: str) -> None:
    h = tr.testing.harness(ChangeJoin("inner", None), key=lambda change: "a", key2=key_of)
    with pytest.raises(tr.UserCodeError, match=message):
        h.push(change)
