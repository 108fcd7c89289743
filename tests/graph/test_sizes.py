"""The plan that another size gives: what the program would have made with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tailrace as tr
from tailrace.errors import GraphError
from tailrace.graph.plan import Plan
from tailrace.graph.sizes import Sizes, plan_of_size


class Rules(tr.BroadcastProcessFunction):
    def process(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_broadcast(self, rule: Any, ctx: Any) -> Any:
        return ()


def plan(build: Callable[[tr.Environment], Any], parallelism: int) -> Plan:
    env = tr.Environment(parallelism=parallelism)
    build(env).sink_to(tr.sinks.Collect(), uid="sink")
    return env._plan(env._pending())


def widths(of: Plan) -> list[tuple[str, int]]:
    return [(vertex.name, vertex.parallelism) for vertex in of.vertices]


def own(env: tr.Environment) -> Any:
    one = env.from_source(tr.sources.Sequence(0, 9), parallelism=1, uid="one").map(abs, uid="behind")
    return (
        one.key_by(abs)
        .count()
        .map(lambda pair: pair[1])
        .union(env.from_source(tr.sources.Sequence(0, 9)).map(abs).filter(bool))
    )


def loop(env: tr.Environment) -> Any:
    def body(stream: Any) -> Any:
        counted = stream.key_by(abs).count().map(lambda pair: pair[1]).map(lambda n: n - 1)
        return counted.filter(lambda n: n > 0), counted

    return env.from_source(tr.sources.Sequence(0, 9)).iterate(body, uid="head").map(abs)


def narrow_loop(env: tr.Environment) -> Any:
    """The consumer of the head has the size of the head by chance: its shuffle is in front of the head at 2 only."""

    def body(stream: Any) -> Any:
        counted = stream.key_by(abs).reduce(max, parallelism=2)
        return counted.filter(lambda n: n > 99), counted

    return env.from_source(tr.sources.Sequence(0, 9)).iterate(body)


def batched(env: tr.Environment) -> Any:
    return env.from_source(tr.sources.Sequence(0, 9)).batch(3).map(len)


@pytest.mark.parametrize("build", [own, loop, narrow_loop, batched])
@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_another_size_is_what_the_program_would_have_been(build: Any, before: int, after: int) -> None:
    made, written = plan_of_size(plan(build, before), after), plan(build, after)
    assert widths(made) == widths(written)
    kinds = [[type(edge.partitioning) for edge in one.edges] for one in (made, written)]
    assert kinds[0] == kinds[1]
    assert widths(plan_of_size(plan_of_size(made, 4), before)) == widths(plan(build, before))


def test_by_uid_those_behind_follow_and_others_stay() -> None:
    found = {node.uid: node.parallelism for node in plan_of_size(plan(own, 2), {"one": 4}).graph.nodes}
    assert (found["one"], found["behind"], found["sink"]) == (4, 4, 2)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (0, "^rescale: parallelism must be a whole number of at least 1, not 0"),
        (-1, "at least 1"),
        (129, "^rescale: parallelism 129 is above the maximum of 128"),
        ({"one": 0}, "at least 1"),
        ({"nobody": 2}, "no operator of the job has the uid 'nobody'; its uids are 'one', 'behind', 'sink'"),
        ({"": 2}, "no operator of the job has the uid ''"),
        ({"one": 1 << 70}, "above the maximum"),
    ],
)
def test_what_cannot_be_is_refused(sizes: Sizes, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        plan_of_size(plan(own, 2), sizes)


def test_what_a_loop_adds_itself_has_no_size_of_its_own() -> None:
    made = plan(loop, 2)
    tail = next(node for node in made.graph.nodes if node.name.endswith(", tail"))
    with pytest.raises(GraphError, match="no operator"):
        plan_of_size(made, {tail.uid: 3})
    assert {node.parallelism for node in plan_of_size(made, {"head": 3}).graph.nodes if node.scope.level} == {3}


def test_a_broadcast_that_was_written_for_one_subtask_stays_one() -> None:
    def build(env: tr.Environment) -> Any:
        rules = env.from_source(tr.sources.Sequence(0, 3), uid="rules")
        return env.from_source(tr.sources.Sequence(0, 9)).connect(rules.broadcast()).process(Rules())

    with pytest.raises(GraphError, match="in one order"):
        plan_of_size(plan(build, 1), 3)
    assert plan_of_size(plan(build, 2), 3).slots == 3  # there it goes through one subtask
