"""What the body of a loop may do and return; each job runs inside this process."""

from typing import Any

import pytest

import tailrace as tr
from tailrace.testing import run


def environment(parallelism: int = 2) -> tr.Environment:
    return tr.Environment(parallelism=parallelism)


def numbers(env: tr.Environment) -> tr.DataStream:
    return env.from_collection(list(range(6)), name="numbers")


def down(s: tr.DataStream) -> Any:
    less = s.map(lambda x: x - 1)
    return less.filter(lambda x: x > 0), less.filter(lambda x: x <= 0)


# Running what is not written to its end.


def test_a_body_cannot_run_the_loop_that_it_writes() -> None:
    env = environment()

    def body(s: tr.DataStream) -> Any:
        s.sink_to(tr.sinks.Collect())
        run(env)
        return down(s)

    with pytest.raises(tr.GraphError, match="loop 'l' cannot run while its body is being written; run it, or collect"):
        numbers(env).iterate(body, name="l")


def test_a_body_cannot_collect_from_a_loop_around_it_either() -> None:
    env = environment()

    def outer(s: tr.DataStream) -> Any:
        s.iterate(down, name="inner").collect()
        return down(s)

    with pytest.raises(tr.GraphError, match="loop 'outer' cannot run while"):
        numbers(env).iterate(outer, name="outer")
    out = numbers(env).iterate(down).sink_to(tr.sinks.Collect())
    run(env)
    assert sorted(out.result()) == [-1, 0, 0, 0, 0, 0]


def test_a_body_may_run_what_is_outside_and_look_at_the_plan() -> None:
    env = environment()
    before = numbers(env).sink_to(tr.sinks.Collect())
    message: list[str] = []

    def body(s: tr.DataStream) -> Any:
        run(env)
        message.append(env.explain())
        return down(s)

    out = numbers(env).iterate(body, name="l").sink_to(tr.sinks.Collect())
    assert sorted(before.result()) == list(range(6))
    assert "loop l" in message[0]
    run(env)
    assert sorted(out.result()) == [-1, 0, 0, 0, 0, 0]


# Streams of the body outside of it.


def test_a_stream_of_the_body_that_was_kept_runs_with_the_whole_loop() -> None:
    env, kept = environment(), []

    def body(s: tr.DataStream) -> Any:
        less = s.map(lambda x: x - 1)
        kept.append(less)
        return less.filter(lambda x: x > 0), less.filter(lambda x: x <= 0)

    numbers(env).iterate(body)
    all_of_it = kept[0].map(str).sink_to(tr.sinks.Collect())
    run(env)
    assert sorted(map(int, all_of_it.result())) == [-1, *[0] * 5, *[1] * 4, *[2] * 3, *[3] * 2, 4]


# Shapes, as they run.


def test_a_body_that_returns_the_stream_itself() -> None:
    env = environment()
    same = numbers(env).iterate(lambda s: (None, s)).sink_to(tr.sinks.Collect())
    twice = numbers(env).iterate_with_feedback(lambda both: (both.first, both.second)).sink_to(tr.sinks.Collect())
    run(env)
    assert sorted(same.result()) == sorted(twice.result()) == list(range(6))


def test_keys_of_a_dict_that_look_alike_and_one_stream_twice() -> None:
    env = environment()
    out = numbers(env).iterate(lambda s: (None, {1: s, "1": s.map(lambda x: -x)}))
    pair = numbers(env).iterate(lambda s: ([], (s, s)))
    sinks = [stream.sink_to(tr.sinks.Collect()) for stream in (out[1], out["1"], *pair)]
    run(env)
    assert [sum(sink.result()) for sink in sinks] == [15, -15, 15, 15]


def test_one_body_in_three_loops_and_no_input_at_all() -> None:
    env = environment()
    out = numbers(env).iterate(down).union(numbers(env).iterate(down)).iterate(down).sink_to(tr.sinks.Collect())
    none = env.from_collection([]).iterate(down, rounds=tr.Rounds(until=lambda result: result.output[0]))
    nothing = env.from_collection([]).iterate(down).sink_to(tr.sinks.Collect())
    assert len({node.uid for node in env._graph.nodes}) == len(env._graph.nodes)
    run(env)
    assert sorted(out.result()) == [-2, -2, *[-1] * 10]
    assert nothing.result() == []
    assert none.scope.level == 0


def test_feedback_of_one_kind_in_a_loop_of_the_other_and_the_other_way_round() -> None:
    env = environment()

    def co_inner(both: tr.ConnectedStreams) -> Any:
        left = both.first.map(lambda x: ("left", x)).union(both.second).map(lambda r: (r[0], r[1] - 1))
        return left.filter(lambda r: r[1] > 0), left.filter(lambda r: r[1] <= 0).map(lambda r: r[1])

    def co_outer(both: tr.ConnectedStreams) -> Any:
        less = both.first.iterate(down).map(lambda x: 3).union(both.second).map(lambda x: x - 1)
        return less.filter(lambda x: x > 0), less.filter(lambda x: x <= 0)

    plain = numbers(env).iterate(lambda s: (None, s.iterate_with_feedback(co_inner))).sink_to(tr.sinks.Collect())
    co = numbers(env).iterate_with_feedback(co_outer).sink_to(tr.sinks.Collect())
    run(env)
    assert sorted(plain.result()) == [-1, 0, 0, 0, 0, 0]
    assert co.result() == [0] * 6


class Rules(tr.CoProcessFunction):
    def process1(self, x: int, ctx: tr.Context) -> Any:
        yield x - 1

    def process2(self, rule: int, ctx: tr.Context) -> Any:
        yield -100


def test_a_stream_enters_two_loops_at_once_and_keeps_its_partitioning() -> None:
    env = environment()
    rules = env.from_collection([7])

    def inner(s: tr.DataStream) -> Any:
        ruled = s.connect(rules.broadcast().enter(s.scope)).process(Rules())
        return ruled.filter(lambda x: x > 0), ruled.filter(lambda x: x <= 0)

    out = numbers(env).iterate(lambda s: (None, s.iterate(inner))).sink_to(tr.sinks.Collect())
    run(env)
    assert sorted(out.result()) == [-100, -100, -1, 0, 0, 0, 0, 0]


# The plan, for people.


def test_the_plan_of_loops_in_and_after_each_other_has_a_box_for_each() -> None:
    env = environment()

    def outer(s: tr.DataStream) -> Any:
        one = s.iterate(down, name="inner <1>")
        return one.filter(lambda x: x > 9), one.iterate(down, name="inner 2")

    out = numbers(env).iterate(outer, name="outer").iterate(down, name="after", rounds=tr.Rounds(max=3))
    out.sink_to(tr.sinks.Print())
    text, mermaid = env.explain(), env.explain("mermaid")
    boxes = [line for line in text.splitlines() if line.strip().startswith("loop ")]
    assert boxes == ["loop outer", "  loop inner <1>", "  loop inner 2", "loop after, in rounds, at most 3"]
    assert text.count("feedback ->") == mermaid.count("-.->|feedback|") == 4
    assert mermaid.count("subgraph ") == mermaid.count("  end\n") == 4
    assert "inner &lt;1&gt;" in mermaid and "inner <1>" not in mermaid
