"""Joins where they are written: what they need, and what they have."""

from collections.abc import Callable
from typing import Any

import pytest

import tailrace as tr


def same(value: Any) -> Any:
    return value


def timed(env: tr.Environment) -> tr.DataStream:
    return env.from_collection([1, 2]).assign_timestamps(same)


def keyed(env: tr.Environment) -> tr.KeyedStream:
    return timed(env).key_by(same)


def columns(env: tr.Environment, name: str = "x") -> tr.KeyedStream:
    return env.from_collection([(1,)]).to_columns(f"{name} long").assign_timestamps(name).key_by(name)


def in_a_loop(stream: Any) -> Any:
    joined = stream.key_by(same).join(stream.key_by(same), within=(0, 1))
    return joined, joined


REFUSED: dict[str, tuple[Callable[[tr.Environment], Any], str]] = {
    "no key": (
        lambda env: keyed(env).join(timed(env), within=(0, 1)),  # type: ignore[arg-type]
        "join: the other stream has no key; call key_by",
    ),
    "no key at all": (
        lambda env: timed(env).join(keyed(env), within=(0, 1)),
        "join: the stream has no key; call key_by",
    ),
    "no event time": (
        lambda env: keyed(env).join(env.from_collection([1]).key_by(same), within=(0, 1)),
        "join: a join is by event time, and the second stream has none; call assign_timestamps before key_by",
    ),
    "no interval": (
        lambda env: keyed(env).join(keyed(env), within=5),  # type: ignore[arg-type]
        r"join: within=\(before, after\) are the least and the largest time",
    ),
    "bounds out of order": (
        lambda env: keyed(env).join(keyed(env), within=(5, -5)),
        r"join: within=\(5, -5\) is empty: the first bound is above the second",
    ),
    "no duration": (
        lambda env: keyed(env).join(keyed(env), within=("x", 5)),
        "join: within: a duration must be seconds",
    ),
    "too large": (lambda env: keyed(env).join(keyed(env), within=(0, 5e12)), "is larger than timestamps are"),
    "how": (
        lambda env: keyed(env).join(keyed(env), within=(0, 1), how="outer"),  # type: ignore[arg-type]
        "join: how is one of inner, left, right, full, semi, anti, not 'outer'",
    ),
    "select without pairs": (
        lambda env: keyed(env).join(keyed(env), within=(0, 1), how="semi", select=lambda a, b: a),
        'join: how="semi" gives records of the first stream, without partners; leave select out, and call map',
    ),
    "select of one": (
        lambda env: keyed(env).join(keyed(env), within=(0, 1), select=same),  # type: ignore[arg-type]
        "join: select: same",
    ),
    "on_error without code": (
        lambda env: keyed(env).join(keyed(env), within=(0, 1), on_error=tr.Aside("bad")),
        "join: takes no on_error, because it runs no code of yours",
    ),
    "keys that are never equal": (
        lambda env: columns(env).join(columns(env).key_by("x", "x"), within=(0, 1)),
        "join: one stream is keyed by a single column, the other by a list of 2",
    ),
    "another side output": (
        lambda env: keyed(env).join(keyed(env), within=(0, 1)).side_output("other"),
        "side_output: join 'join' has the side output 'late' only, not 'other'",
    ),
    "a loop": (
        lambda env: timed(env).iterate(in_a_loop),
        "join: in loop 'iterate: in_a_loop' a record that comes around may be older",
    ),
    "an unknown option": (
        lambda env: keyed(env).join(keyed(env), within=(0, 1), on="x"),
        "join: unknown option on; the options are within, window, how",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_right_result_is_refused_where_it_is_written(name: str) -> None:
    write, why = REFUSED[name]
    with pytest.raises((tr.GraphError, AttributeError), match=why):
        write(tr.Environment(parallelism=1))


def unknown(env: tr.Environment) -> tr.KeyedStream:
    """A stream in columns whose schema is not known before its first record."""
    return env.from_collection([(1,)]).to_columns("x long").map_batches(same).assign_timestamps("x").key_by("x")


def texts(env: tr.Environment) -> tr.KeyedStream:
    stream = env.from_collection([("a", 1, 2)]).to_columns("k string, x long, x_x long")
    return stream.assign_timestamps("x").key_by("k")


IN_COLUMNS: dict[str, tuple[Callable[[tr.Environment], Any], str]] = {
    "two forms": (
        lambda env: columns(env).join(keyed(env), within=(0, 1)),
        r"join: the first stream is in columns; call to_rows\(\) before key_by",
    ),
    "select": (
        lambda env: columns(env).join(columns(env), within=(0, 1), select=lambda a, b: a),
        r"join: select is a function in Python of each result, and the streams are in columns; call select\(...\) or",
    ),
    "a key by function": (
        lambda env: columns(env).join(columns(env).key_by(lambda r: r.x), within=(0, 1)),
        "join: the second stream is in columns, and its key is a function; name a column in key_by",
    ),
    "columns that may be missing": (
        lambda env: columns(env).join(unknown(env), within=(0, 1), how="left"),
        r"join: a result may have no record of the second stream, whose columns are not.*declare them with to_columns\(",
    ),
    "keys of two kinds": (
        lambda env: columns(env).join(texts(env), within=(0, 1)),
        "join: the keys of the first stream are of int64, those of the second of large_string, and are never compared",
    ),
    "two columns of one name": (
        lambda env: texts(env).join(texts(env), within=(0, 1), suffixes=("", "_x")),
        "join: the results would have two columns 'x_x'",
    ),
    "suffixes": (
        lambda env: columns(env).join(columns(env), within=(0, 1), suffixes="_x"),  # type: ignore[arg-type]
        r"join: suffixes=\(first, second\) are put behind names of columns that both streams have",
    ),
    "suffixes in rows": (
        lambda env: keyed(env).join(keyed(env), within=(0, 1), suffixes=("", "_r")),
        "join: suffixes are for joins of two streams in columns; its results are pairs here",
    ),
    "sessions by a function": (
        lambda env: columns(env).join(columns(env), window=tr.Session(lambda row: 5)),
        "join: the gap of tr.Session is a function of a record, and the streams are in columns; give the gap of all",
    ),
    "sessions by a column that is not there": (
        lambda env: columns(env).join(columns(env), window=tr.Session("gap")),
        "join: the gap of tr.Session: .*gap",
    ),
    "windows without time": (
        lambda env: columns(env).join(columns(env), window=tr.CountWindow(5)),
        r"join: the window is one of event time, such as",
    ),
    "lists in two forms": (
        lambda env: columns(env).co_group(keyed(env), window=tr.Tumbling(5)),
        r"co_group: the first stream is in columns; call to_rows\(\) before key_by",
    ),
    "lists through a function": (
        lambda env: columns(env).co_group(columns(env), window=tr.Tumbling(5), select=lambda a, b: len(a)),
        "co_group: select is a function in Python of each result",
    ),
    "lists whose columns are not known": (
        lambda env: columns(env).co_group(unknown(env), window=tr.Tumbling(5)),
        "co_group: a result may have no record of the second stream",
    ),
    "lists beside a key of their name": (
        lambda env: columns(env, "first").co_group(columns(env, "first"), window=tr.Tumbling(5)),
        "co_group: the records of the first stream are in a column 'first'; rename that of the key before",
    ),
    "versions of two forms": (
        lambda env: columns(env).join_as_of(keyed(env)),
        r"join_as_of: the first stream is in columns; call to_rows\(\) before key_by",
    ),
    "select of versions": (
        lambda env: columns(env).join_as_of(columns(env), select=lambda a, b: a),
        "join_as_of: select is a function in Python of each result, and the streams are in columns",
    ),
    "versions that may be missing": (
        lambda env: columns(env).join_as_of(unknown(env), how="left"),
        "join_as_of: a result may have no record of the second stream",
    ),
    "suffixes of versions in rows": (
        lambda env: keyed(env).join_as_of(keyed(env), suffixes=("", "_r")),
        "join_as_of: suffixes are for joins of two streams in columns",
    ),
}


@pytest.mark.parametrize("name", IN_COLUMNS)
def test_what_is_not_there_in_columns_is_refused_in_words_that_say_what_to_do(name: str) -> None:
    write, why = IN_COLUMNS[name]
    with pytest.raises((tr.TypeMismatch, tr.GraphError), match=why):
        write(tr.Environment(parallelism=1))


def test_a_row_of_a_join_in_columns_has_each_key_once_and_suffixes_behind_other_names() -> None:
    env = tr.Environment(parallelism=2)
    made = env.from_collection([("o1", 0, 5.0), ("o2", 3, 6.0)]).to_columns("id string, at long, worth double")
    paid = env.from_collection([("o1", 2, "card")]).to_columns("id string, at long, by string")
    orders, payments = (stream.assign_timestamps("at").key_by("id") for stream in (made, paid))
    joined = orders.join(payments, within=(0, 9), how="left", suffixes=("", "_paid"))
    assert joined.columns == ("id", "at", "worth", "at_paid", "by")
    results = joined.sink_to(tr.sinks.Collect())
    behind = (
        joined.key_by("id").join(payments, within=(0, 9), how="semi").select("id", "by").sink_to(tr.sinks.Collect())
    )
    tr.testing.run(env)
    assert sorted(results.result()) == [("o1", 0, 5.0, 2, "card"), ("o2", 3, 6.0, None, None)]
    assert behind.result() == [("o1", "card")]


def test_a_stream_of_another_loop_or_environment_is_refused() -> None:
    env = tr.Environment(parallelism=1)
    with pytest.raises(tr.GraphError, match="belong to two environments"):
        keyed(env).join(keyed(tr.Environment(parallelism=1)), within=(0, 1))
    outside = keyed(env)
    with pytest.raises(tr.ScopeError, match="enter"):
        timed(env).iterate(lambda inside: (inside, inside.key_by(same).join(outside, within=(0, 1))))


def test_select_makes_the_results_and_failed_ones_go_aside() -> None:
    env = tr.Environment(parallelism=2)
    first = env.from_collection([("a", 1), ("b", 2), ("c", 3)]).assign_timestamps(lambda r: r[1])
    second = env.from_collection([("a", 2), ("b", 0)]).assign_timestamps(lambda r: r[1], 5)
    joined = first.key_by(lambda r: r[0]).join(
        second.key_by(lambda r: r[0]),
        within=("0 s", "5 s"),
        how="left",
        select=lambda a, b: (a[0], b[1]),
        on_error=tr.Aside("alone"),
        uid="paid",
    )
    results = joined.sink_to(tr.sinks.Collect())
    alone = joined.side_output("alone").map(lambda failed: failed.record).sink_to(tr.sinks.Collect())
    late = joined.side_output("late").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert results.result() == [("a", 2)] and late.result() == []
    assert sorted(alone.result()) == [(("b", 2), None), (("c", 3), None)]


def test_a_stream_can_be_joined_with_itself() -> None:
    env = tr.Environment(parallelism=2)
    stream = (
        env.from_collection([("a", 1), ("a", 3), ("b", 9)]).assign_timestamps(lambda r: r[1]).key_by(lambda r: r[0])
    )
    results = stream.join(stream, within=(1, 5)).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert results.result() == [(("a", 1), ("a", 3))]
