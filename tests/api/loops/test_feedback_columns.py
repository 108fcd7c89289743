"""Feedback of another type in columns: how a program declares it, and what is refused where the user wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tailrace as tr
from tailrace.graph.operators import FEEDBACK, Head, Tail

POINTS = pa.schema([("x", pa.int64()), ("y", pa.int64())])
x, lap = pc.field("x"), pc.field("lap")


def points(env: tr.Environment) -> tr.DataStream:
    return env.from_collection([(n, n) for n in range(5)]).to_columns(POINTS)


def counted(both: tr.ConnectedStreams) -> Any:
    """Each x goes round x times, and leaves with the number of its laps."""
    laps = both.first.select("x", lap=pc.scalar(0)).union(both.second)
    more = laps.key_by("x").with_columns(lap=lap + 1)
    return more.filter(lap < x), more.filter(lap >= x)


def result(body: Callable[[tr.ConnectedStreams], Any], **options: Any) -> list[Any]:
    env = tr.Environment(parallelism=2)
    out = points(env).iterate_with_feedback(body, **options).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return sorted(map(tuple, out.result()))


LAPS = [(0, 1), (1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("schema", [pa.schema([("x", pa.int64()), ("lap", pa.int64())]), "x long, lap long"])
def test_what_is_fed_back_stays_in_columns(schema: Any) -> None:
    seen = []

    def body(both: tr.ConnectedStreams) -> Any:
        seen.append((both.first.columns, both.second.form, both.second.columns, both.second.scope == both.scope))
        return counted(both)

    assert result(body, feedback_schema=schema) == LAPS
    assert seen == [(("x", "y"), "columns", ("x", "lap"), True)]


def test_no_record_is_a_row_on_its_way_back() -> None:
    env = tr.Environment(parallelism=2)
    points(env).iterate_with_feedback(counted, feedback_schema=pa.schema([("x", pa.int64()), ("lap", pa.int64())]))
    nodes = env._graph.nodes
    tail = next(node for node in nodes if isinstance(node.operator, Tail))
    head = next(node for node in nodes if isinstance(node.operator, Head))
    takers = [node for node in nodes for edge in node.inputs if (edge.source, edge.tag) == (head.id, FEEDBACK)]
    assert [nodes[edge.source].form for edge in tail.inputs] == ["columns", "columns"]
    assert {node.form for node in takers} == {"columns"}


def test_the_input_may_be_in_rows() -> None:
    def body(both: tr.ConnectedStreams) -> Any:
        begun = both.first.map(lambda p: (p.x, 0)).to_columns("x long, lap long")
        more = begun.union(both.second).with_columns(lap=lap + 1)
        return more.filter(lap < x), more.filter(lap >= x)

    env = tr.Environment(parallelism=2)
    loop = points(env).to_rows().iterate_with_feedback(body, feedback_schema="x long, lap long")
    out = loop.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(map(tuple, out.result())) == LAPS


def test_rounds_judge_feedback_in_columns() -> None:
    rounds = tr.Rounds(until=lambda result: all(row.lap >= 2 for row in result))
    assert result(counted, feedback_schema="x long, lap long", rounds=rounds) == LAPS[:3]


def test_what_is_fed_back_is_cast_to_the_schema_or_fails_the_job() -> None:
    def as_doubles(plus: float) -> Callable[[tr.ConnectedStreams], Any]:
        def body(both: tr.ConnectedStreams) -> Any:
            more, out = counted(both)
            return more.map_batches(lambda b: b.set_column(1, "lap", pc.add(b["lap"].cast("double"), plus))), out

        return body

    assert result(as_doubles(0.0), feedback_schema="x long, lap long") == LAPS
    with pytest.raises(tr.JobFailed, match=r"column 'lap' is declared int64, and 1\.5 does not fit: it has a fraction"):
        result(as_doubles(0.5), feedback_schema="x long, lap long")


@pytest.mark.parametrize(
    ("body", "options", "why"),
    [
        (
            lambda both: (both.second.map(tuple), both.first),
            {},
            r"the feedback is in rows, and the loop takes columns; call to_columns\(schema\) on the feedback",
        ),
        (
            lambda both: (both.second.select("lap"), both.first),
            {},
            "the feedback has the columns lap, and the loop takes x, lap; they must be the same in the same order",
        ),
        (
            lambda both: (both.second, both.first.union(both.second)),
            {},
            "union: one stream has the columns x, y, the other x, lap",
        ),
        (
            counted,
            {"combine": tr.Combine("x", max)},
            "combine merges rows, and the feedback is in columns; leave feedback_schema= out",
        ),
        (lambda both: (both.second.filter(pc.field("y") > 1), both.first), {}, "there is no column 'y'"),
    ],
)
def test_what_cannot_be_fed_back_is_refused(body: Any, options: Any, why: str) -> None:
    with pytest.raises(tr.TailraceError, match=why):
        points(tr.Environment()).iterate_with_feedback(body, feedback_schema="x long, lap long", **options)
