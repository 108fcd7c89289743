"""Rounds that end by aggregates of what they fed back and emitted, of which each subtask adds up its part."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import tailrace as tr
from search.campaigns.replacements import replacing
from search.programs.golden import PROGRAMS, Program
from search.programs.rounds import LITTLE, _body
from search.scenarios import run_scenario, scenario
from tailrace.api.loops.options import merge_parts


class Least(tr.AggregateFunction):
    """The least of what places received; None in a round in which none received anything."""

    def create_accumulator(self) -> None:
        return None

    def add(self, value: Any, accumulator: int | None) -> int:
        return value[2] if accumulator is None else min(accumulator, value[2])

    def merge(self, a: int, b: int) -> int:
        return min(a, b)

    def get_result(self, accumulator: int | None) -> int:
        return 0 if accumulator is None else accumulator


def figured(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """The rounds of `judged`, which end by aggregates."""
    gifts = env.from_source(tr.sources.Sequence(0, n, rate=rate)).map(lambda i: (i % 11, 640 + i))

    def until(figures: tr.RoundFigures) -> bool:
        assert figures.feedback >= 0
        return figures.output < LITTLE  # type: ignore[no-any-return]

    rounds = tr.Rounds(until=until, feedback=tr.Count(), output=Least())
    return gifts.iterate(_body, rounds=rounds)


JUDGED = PROGRAMS["judged"]


@pytest.mark.search
def test_rounds_end_where_they_do_by_records_whoever_is_lost(exhaustive: bool) -> None:
    assert JUDGED.build.__name__ == "judged"
    program = Program(figured, JUDGED.expected, n=JUDGED.n)
    covered: Counter[str] = Counter()
    with mock.patch.dict(PROGRAMS, {"figured": program}):
        for seed in range(500, 560 if exhaustive else 506):
            made = scenario(seed, "figured")
            for way in (lambda one: one, replacing):
                verdict = run_scenario(replace(way(made)))
                assert verdict.wrong == [], (seed, way)
                covered.update(verdict.covered)
    assert covered["restarted"] and covered["committed"], covered


@pytest.mark.parametrize("parallelism", [1, 3])
def test_feedback_and_output_are_aggregated_by_round_in_rows_and_columns(parallelism: int) -> None:
    figures: list[tuple[int, Any, Any]] = []

    def until(result: tr.RoundFigures) -> bool:
        figures.append((result.round, result.feedback, result.output))
        return False

    def halve(numbers: tr.DataStream) -> Any:
        halves = numbers.map(lambda n: n // 2)
        return halves.filter(lambda n: n > 0), {
            "odd": halves.filter(lambda n: n % 2),
            "even": numbers.filter(lambda n: not n % 2),
        }

    env = tr.Environment(parallelism=parallelism)
    rounds = tr.Rounds(until=until, feedback=tr.Sum(), output=tr.Count())
    outputs = env.from_collection([3, 8, 5]).iterate(halve, rounds=rounds)
    for stream in outputs.values():
        stream.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    # 3 8 5 -> 1 4 2 -> 2 1 -> 1; odd halves and even numbers leave
    assert figures == [(0, 7, 2), (1, 3, 3), (2, 1, 2), (3, 0, 0)]
    figures.clear()
    schema = pa.schema({"n": pa.int64()})

    def one_less(numbers: tr.DataStream) -> Any:
        less = numbers.with_columns(n=pa.compute.field("n") - 1)
        return less.filter(pa.compute.field("n") > 0), less

    env = tr.Environment(parallelism=parallelism)
    columns = env.from_collection([(1,), (3,)]).to_columns(schema)
    largest = tr.Rounds(until=until, output=tr.Max("n"))
    columns.iterate(one_less, rounds=largest).to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert figures == [(0, None, 2), (1, None, 1), (2, None, 0)]


def test_nothing_at_all_is_the_result_of_an_empty_aggregate() -> None:
    assert merge_parts(tr.Count(), []) == 0 and merge_parts(tr.Max(), []) is None and merge_parts(None, [1]) is None
    assert merge_parts(tr.Mean(), [m.add(3, m.create_accumulator()) for m in [tr.Mean()]] * 2) == 3


class WithoutMerge(Least):
    merge = tr.AggregateFunction.merge


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": tr.Count()}, "output is an aggregate for until; give until="),
        ({"until": bool, "feedback": WithoutMerge()}, "define merge"),
        ({"until": bool, "output": tr.Count}, "pass an object, not the class"),
        ({"until": bool, "output": max}, "expected a tr.AggregateFunction"),
    ],
)
def test_what_cannot_be_merged_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tr.ConfigError, match=message):
        tr.Rounds(**options)


class Where(tr.ProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> Any:
        if value[1] < 2:
            yield value[0], value[1] + 1, ctx.loop, ctx.scope.level


def test_a_function_knows_its_loop_and_its_scope() -> None:
    scopes = []

    def inner(stream: tr.DataStream) -> Any:
        scopes.append(stream.scope)
        out = stream.process(Where())
        return out, out

    def outer(stream: tr.DataStream) -> Any:
        scopes.append(stream.scope)
        return None, stream.process(Where()).iterate(inner, name="inner")

    class Outside(tr.MapFunction):
        def open(self, ctx: tr.Context) -> None:
            self.place = ctx.loop, ctx.scope

        def map(self, value: Any) -> Any:
            assert self.place == (None, tr.StreamScope())
            return value

    env = tr.Environment(parallelism=2)
    found = env.from_collection([("a", 0)]).map(Outside()).iterate(outer, name="outer").map(Outside())
    out = found.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [one[2:] for one in out.result()] == [("inner", 2)]
    assert scopes[1].is_inner_of(scopes[0])
