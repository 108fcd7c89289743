"""Loops that go on from a checkpoint in another dataflow, or at another size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc
import pytest

import tailrace as tr
from search.programs.loops import Hoard
from search.stories import Story, until_feedback_is_held
from tailrace.coordinator.job.lifecycle import JobStatus


def entering(more: bool, kind: str) -> Any:
    """A loop that counts down; with `more` another stream enters its body."""

    def down(stream: tr.DataStream, uid: str) -> Any:
        moved = stream.map(lambda r: (r[0], r[1] - 1), uid=f"{uid} down")
        kept = moved.process(Hoard(), uid=f"{uid} hoard") if kind == "finish" else moved
        return kept.filter(lambda r: r[1] > 0, uid=f"{uid} on"), kept.filter(lambda r: r[1] <= 0, uid=f"{uid} out")

    def program(env: tr.Environment) -> tr.DataStream:
        numbers = env.from_collection([(i, 3) for i in range(10)], uid="numbers")
        others = env.from_collection([(100 + i, 3) for i in range(10)], uid="others") if more else None

        def body(stream: tr.DataStream) -> Any:
            both = stream.map(tuple, uid="in")
            if others is not None:
                both = both.union(others.enter(stream.scope))
            if kind == "nested":
                both = both.iterate(lambda inner: down(inner, "inner"), uid="inner").map(
                    lambda r: (r[0], 2 + r[1]), uid="wound"
                )
                moved = both.map(lambda r: (r[0], r[1] - 2), uid="moved")
                return moved.filter(lambda r: r[1] > 0, uid="again"), moved.filter(lambda r: r[1] <= 0, uid="over")
            return down(both, "outer")

        rounds = {"rounds": tr.Rounds()} if kind == "rounds" else {}
        return numbers.iterate(body, uid="loop", **rounds).map(lambda r: r[0], uid="ids")

    return program


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("kind", ["plain", "finish", "nested", "rounds"])
def test_a_stream_may_enter_a_loop_that_had_ended(story: Story, kind: str, parallelism: int) -> None:
    """The head's own input ended in the job before, but its tail is fed by what enters now: the loop begins again."""
    story.finish(story.simulation(entering(False, kind)))
    story.finish(story.again(entering(True, kind), parallelism=parallelism))
    story.is_right(Counter([*range(10), *range(100, 110)]))


class Place(tr.ProcessFunction):
    """Fails where a record that came back is not where the function sends it."""

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        assert hop[2] or hop[0] % ctx.parallelism == ctx.subtask, (hop, ctx.subtask)
        yield hop[0], hop[1], False


def placed(env: tr.Environment) -> tr.DataStream:
    def body(hops: tr.DataStream) -> Any:
        seen = hops.process(Place(), uid="place").map(lambda hop: (hop[0], hop[1] - 1, False), uid="down")
        going = seen.filter(lambda hop: hop[1] > 0, uid="on")
        return going.partition_by(lambda hop: hop[0]), seen.filter(lambda hop: hop[1] <= 0, uid="out")

    source = env.from_source(tr.sources.Sequence(0, 90, rate=9_000), uid="numbers")
    return (
        source.map(lambda i: (i, i % 9 + 1, True), uid="hops")
        .iterate(body, uid="loop")
        .map(lambda hop: hop[0], uid="id")
    )


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2), (2, 1)], ids=str)
def test_what_is_fed_back_by_a_function_is_where_it_says_at_another_parallelism(
    story: Story, sizes: tuple[int, int]
) -> None:
    world = story.simulation(placed, parallelism=sizes[0])
    until_feedback_is_held(story, world, 2)
    story.finish(story.again(placed, parallelism=sizes[1]))
    story.is_right(Counter(range(90)))


def shouted(env: tr.Environment) -> tr.DataStream:
    """Subtask 0 sends each record round to all, so long as it has laps left."""

    def body(hops: tr.DataStream) -> Any:
        seen = hops.process(Where(), uid="where")
        going = seen.filter(lambda r: r[2] == 0 and r[1] > 0, uid="on").map(lambda r: (r[0], r[1] - 1), uid="down")
        return going.broadcast(), seen.filter(lambda r: r[2] == 0, uid="first").map(lambda r: r[:2], uid="out")

    numbers = env.from_source(tr.sources.Sequence(0, 40), uid="numbers").map(lambda i: (i, 5), uid="hops")
    return numbers.partition_by(lambda r: 0).iterate(body, uid="loop")


class Where(tr.ProcessFunction):
    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        yield hop[0], hop[1], ctx.subtask


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_broadcast_feedback_is_exact_or_refused(story: Story, seed: int, parallelism: int) -> None:
    """At another parallelism there is no right answer where some had read their copies and others had not."""
    world = story.simulation(shouted, parallelism=2, seed=seed)
    until_feedback_is_held(story, world, 2)
    again = story.again(shouted, parallelism=parallelism, seed=seed)
    status = again.run()
    cause = again.coordinator.cause
    if status is JobStatus.FAILED:
        assert cause is not None and "start it at parallelism 2, at which the checkpoint was taken" in cause.message
        assert parallelism != 2
        again = story.again(shouted, parallelism=2, seed=seed)
    story.finish(again) if again.coordinator.status is JobStatus.CREATED else again.drain()
    story.is_right(Counter((i, left) for i in range(40) for left in range(6)))


FORMS = {
    "rows": (None, "k long, left long"),
    "narrow": ("k long, left int", None),
    "wide": ("k long, left long", None),
}


def formed(form: str) -> Any:
    """A loop that counts down, with its feedback in rows, or in columns of some type."""
    schema, given = FORMS[form]

    def program(env: tr.Environment) -> tr.DataStream:
        def body(both: tr.ConnectedStreams) -> Any:
            second = both.second if given is None else both.second.to_columns(given, uid="given")
            started = both.first.union(second.to_columns("k long, left long", uid="both"))
            down = started.with_columns(left=pc.field("left") - 1, uid="down")
            going = down.filter(pc.field("left") > 0, uid="on")
            return going.to_columns(schema or "k long, left long", uid="back"), down.filter(
                pc.field("left") <= 0, uid="out"
            )

        numbers = env.from_source(tr.sources.Sequence(0, 90, rate=9_000), uid="numbers")
        hops = numbers.map(lambda i: (i, i % 9 + 1), uid="hops").to_columns("k long, left long", uid="columns")
        return hops.iterate_with_feedback(body, uid="loop", feedback_schema=schema).map(lambda r: r.k, uid="id")

    return program


@pytest.mark.parametrize("forms", [("rows", "wide"), ("wide", "rows"), ("narrow", "wide"), ("wide", "narrow")], ids=str)
def test_feedback_on_its_way_goes_on_in_another_form(story: Story, forms: tuple[str, str]) -> None:
    world = story.simulation(formed(forms[0]), parallelism=2)
    until_feedback_is_held(story, world, 2)
    story.finish(story.again(formed(forms[1]), parallelism=3))
    story.is_right(Counter(range(90)))
