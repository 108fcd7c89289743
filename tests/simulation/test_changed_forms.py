"""A dataflow that was in rows goes on in columns, or the other way around, with what was on its way at the cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pytest

import tailrace as tr
from search.scenarios import NETWORKS
from search.stories import EVERY_MS, Story, until_feedback_is_held
from tailrace.coordinator.job.failures import FailureKind
from tailrace.coordinator.job.restarts import Never
from tailrace.task.contract.tuning import Tuning
from tailrace.testing.simulator import Simulation

N, KEYS = 400, 4
UNALIGNED = replace(EVERY_MS, interval=200, overtakes_after=0)
Program = Callable[[tr.Environment], tr.DataStream]


def pairs(env: tr.Environment, form: str, declared: bool = True) -> tr.DataStream:
    numbers = env.from_source(tr.sources.Sequence(0, N), uid="numbers", parallelism=1)
    rows = numbers.map(lambda i: (i % KEYS, i), uid="pairs", parallelism=1)
    if form == "rows":
        return rows.map(lambda pair: pair, uid="formed", parallelism=1)
    if declared:
        return rows.to_columns("k long, x long", uid="formed", parallelism=1)
    columns = rows.to_columns("k long, x long", uid="declared", parallelism=1)
    return columns.map_batches(lambda batch: batch, uid="formed", parallelism=1)


def doubled(form: str, declared: bool = True) -> Program:
    def build(env: tr.Environment) -> tr.DataStream:
        dealt = pairs(env, form, declared).rebalance()
        if form == "rows":
            return dealt.map(lambda pair: (pair[0], 2 * pair[1]), uid="doubled")
        return dealt.with_columns(x=pc.field("x") * 2, uid="doubled").map(tuple, uid="tuples")

    return build


def batched(form: str) -> Program:
    def build(env: tr.Environment) -> tr.DataStream:
        dealt = pairs(env, form).rebalance()
        if form == "rows":
            return dealt.map(lambda pair: (pair[0], 2 * pair[1]), uid="doubled")
        double: Any = lambda b: b.set_column(1, "x", pc.multiply(b["x"], 2))  # noqa: E731
        return dealt.map_batches(double, uid="doubled").map(tuple, uid="tuples")

    return build


def summed(form: str) -> Program:
    """The sum of each key when all of it is there."""

    def build(env: tr.Environment) -> tr.DataStream:
        key: Any = "k" if form == "columns" else lambda pair: pair[0]
        of: Any = "x" if form == "columns" else lambda pair: pair[1]
        sums = pairs(env, form).key_by(key).aggregate(n=tr.Count(), s=tr.Sum(of), uid="sums")
        last = (
            sums.filter(pc.field("n") == N // KEYS) if form == "columns" else sums.filter(lambda r: r[1] == N // KEYS)
        )
        return last.map(lambda r: (r[0], r[2]), uid="tuples")

    return build


DOUBLED = Counter((i % KEYS, 2 * i) for i in range(N))
PROGRAMS: dict[str, tuple[Callable[[str], Program], Counter[Any]]] = {
    "expressions": (doubled, DOUBLED),
    "batches": (batched, DOUBLED),
    "aggregates": (summed, Counter((k, sum(range(k, N, KEYS))) for k in range(KEYS))),
}


def left_with_records_in_flight(story: Story, program: Program) -> None:
    world = story.simulation(
        program,
        checkpoints=UNALIGNED,
        conditions=NETWORKS["in small steps"],
        tuning=Tuning(window=200),
        restarts=Never,
    )
    world.start()
    while not story.files.overtaken:
        assert not world.coordinator.status.final, world.coordinator.cause
        world.turn()


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize(("before", "after"), [("rows", "columns"), ("columns", "rows")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_barriers_have_overtaken_comes_in_the_form_of_today(
    story: Story, name: str, before: str, after: str, parallelism: int
) -> None:
    """Operators in columns were given rows, which was an error of ours."""
    program, expected = PROGRAMS[name]
    left_with_records_in_flight(story, program(before))
    story.finish(story.again(program(after), parallelism=parallelism, restarts=Never))
    story.is_right(expected)


def failed(world: Simulation) -> str:
    world.start()
    while not world.coordinator.status.final:
        world.turn()
    cause = world.coordinator.cause
    assert cause is not None and cause.kind is FailureKind.STATE
    return cause.message


def test_rows_that_come_back_to_columns_of_no_declared_schema_are_refused(story: Story) -> None:
    left_with_records_in_flight(story, doubled("rows"))
    message = failed(story.again(doubled("columns", declared=False), restarts=Never))
    assert message == (
        "operator 'with_columns' (uid 'doubled'): the checkpoint holds records on their way to it in rows, and they come in "
        "columns now; declare their schema, with to_columns(schema) in front of it"
    )


def looped(form: str, declared: bool = True) -> Program:
    """Each number goes around as often as its key is."""

    def body(stream: tr.DataStream) -> Any:
        if form == "rows":
            less = stream.map(lambda pair: (pair[0] - 1, pair[1]), uid="less")
            return less.filter(lambda pair: pair[0] >= 0, uid="more"), less.filter(lambda pair: pair[0] < 0, uid="done")
        less = stream.with_columns(k=pc.field("k") - 1, uid="less")
        return less.filter(pc.field("k") >= 0, uid="more"), less.filter(pc.field("k") < 0, uid="done")

    return lambda env: pairs(env, form, declared).iterate(body, uid="loop").map(lambda pair: pair[1], uid="numbers out")


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize(("before", "after"), [("rows", "columns"), ("columns", "rows")])
def test_feedback_comes_back_in_the_form_of_today(story: Story, before: str, after: str, parallelism: int) -> None:
    world = story.simulation(looped(before), conditions=NETWORKS["slow"], restarts=Never)
    until_feedback_is_held(story, world)
    story.finish(story.again(looped(after), parallelism=parallelism, restarts=Never))
    story.is_right(Counter(range(N)))


def test_feedback_in_rows_is_refused_where_nobody_declares_its_columns(story: Story) -> None:
    world = story.simulation(looped("rows"), conditions=NETWORKS["slow"], restarts=Never)
    until_feedback_is_held(story, world)
    message = failed(story.again(looped("columns", declared=False), restarts=Never))
    assert "operator 'iterate: body' (uid 'loop'): the checkpoint holds records on their way to it in rows" in message
