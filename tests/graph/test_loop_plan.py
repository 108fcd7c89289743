"""What a plan makes of loops."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from tailrace.graph.graph import Edge, Graph
from tailrace.graph.operators import (
    FEEDBACK,
    MARKERS,
    Forward,
    Hash,
    Head,
    Judge,
    LeaveLoop,
    Loop,
    Partitioning,
    Rebalance,
)
from tailrace.graph.operators import Rounds as RoundsOfLoop
from tailrace.graph.plan import Plan, PlanEdge, make_plan


def environment(parallelism: int = 2, **settings: Any) -> tr.Environment:
    return tr.Environment(parallelism=parallelism, **settings)


def plan_of(env: tr.Environment) -> Plan:
    return make_plan(env._graph.subgraph({node.id for node in env._graph.valid()}))


def names(plan: Plan) -> list[list[str]]:
    return [[plan.graph.node(ident).name for ident in vertex.nodes] for vertex in plan.vertices]


def vertex_of(plan: Plan, name: str) -> int:
    """The vertex of the operator with this name."""
    return next(v.id for v in plan.vertices for n in v.nodes if plan.graph.node(n).name == name)


def edges(plan: Plan, target: str, port: int = 0) -> list[PlanEdge]:
    return [edge for edge in plan.edges_into(vertex_of(plan, target)) if edge.port == port]


def ways(plan: Plan, target: str, port: int = 0) -> list[type[Partitioning]]:
    return [type(edge.partitioning) for edge in edges(plan, target, port)]


def keep(value: Any, ctx: tr.Context) -> list[Any]:
    return [value]


def by_key(stream: tr.DataStream) -> Any:
    worked = stream.key_by("k").process(keep, name="work")
    return worked, worked


def plain(stream: tr.DataStream) -> Any:
    worked = stream.map(abs, name="work")
    return worked, worked


class Together(tr.CoProcessFunction):
    def process1(self, value: Any, ctx: tr.Context) -> None: ...
    def process2(self, value: Any, ctx: tr.Context) -> None: ...


# The parts of a loop.


def test_a_loop_has_a_head_a_tail_and_a_way_out() -> None:
    env = environment()
    env.from_collection([1], name="in").iterate(plain, name="loop").map(abs, name="after")
    plan = plan_of(env)
    assert names(plan) == [["in"], ["loop", "work"], ["loop, tail"], ["loop, leave", "after"]]
    assert [vertex.scope.level for vertex in plan.vertices] == [0, 1, 1, 0]


def test_a_tail_gets_the_feedback_and_behind_it_the_markers_of_its_head() -> None:
    env = environment()
    env.from_collection([1]).iterate(lambda s: ([s.map(abs, name="a"), s.map(abs, name="b")], s), name="loop")
    plan = plan_of(env)
    found = [(plan.graph.node(edge.source_node).name, edge.port, edge.tag) for edge in plan.edges_into(2)]
    assert names(plan)[2] == ["loop, tail"]
    assert found == [("a", 0, None), ("b", 0, None), ("loop", 1, MARKERS)]
    assert isinstance(plan.edges_into(2)[-1].partitioning, Forward)


def test_a_loop_without_feedback_has_no_tail() -> None:
    env = environment()
    env.from_collection([1], name="in").iterate(lambda s: (None, s.map(abs, name="work")), name="loop")
    assert names(plan_of(env)) == [["in"], ["loop", "work"], ["loop, leave"]]


def test_a_loop_is_as_wide_as_its_head_and_its_tail_with_it() -> None:
    env = environment(parallelism=2)
    s = env.from_collection([1], parallelism=1)
    s.iterate(
        lambda s: (s.rebalance().map(abs, parallelism=1), s.rebalance().map(abs, name="wide")), name="l", parallelism=3
    )
    plan = plan_of(env)
    wide = {plan.vertices[vertex_of(plan, name)].parallelism for name in ("l", "l, tail", "wide", "l, leave")}
    assert wide == {3}
    assert ways(plan, "l, tail") == [Rebalance]
    assert plan.nests[0].slots == 3


def test_the_judge_of_rounds_sees_all_feedback_and_all_outputs_in_one_place() -> None:
    env = environment()
    rounds = tr.Rounds(until=lambda result: not result.output)
    env.from_collection([1]).iterate(lambda s: (s.map(abs), (s.map(abs), s.map(abs))), name="l", rounds=rounds)
    plan = plan_of(env)
    judge = plan.vertices[vertex_of(plan, "l, judge")]
    assert judge.parallelism == 1
    assert judge.scope.level == 1
    assert (ways(plan, "l, judge"), ways(plan, "l, judge", 1)) == ([Rebalance], [Rebalance, Rebalance])
    assert isinstance(plan.graph.node(judge.nodes[0]).operator, Judge)


def test_rounds_without_a_test_have_no_judge() -> None:
    env = environment()
    env.from_collection([1]).iterate(plain, rounds=tr.Rounds(max=3))
    assert not any(isinstance(node.operator, Judge) for node in plan_of(env).graph.nodes)


# Chains.


def test_nothing_is_chained_across_the_border_of_a_loop() -> None:
    env = environment()
    rules = env.from_collection([1], name="rules")
    env.from_collection([1], name="in").iterate(
        lambda s: (None, s.union(rules.enter(s.scope).map(abs, name="inside"))), name="l"
    )
    assert names(plan_of(env)) == [["rules"], ["in"], ["l"], ["enter l", "inside"], ["l, leave"]]


def test_a_way_out_is_chained_with_what_is_behind_it() -> None:
    env = environment()
    env.from_collection([1]).iterate(plain, name="a").map(abs, name="m").iterate(plain, name="b")
    assert ["a, leave", "m"] in names(plan_of(env))


# One shuffle a lap.


def test_where_the_head_has_a_keyed_consumer_only_the_shuffle_moves_before_the_head() -> None:
    env = environment()
    env.from_collection([1], name="in").iterate(by_key, name="l")
    plan = plan_of(env)
    assert names(plan)[1] == ["l", "work"]
    assert [str(edge.partitioning) for edge in edges(plan, "l")] == ["hash(k)"]
    assert [str(edge.partitioning) for edge in edges(plan, "l, tail")] == ["hash(k)"]
    assert ways(plan, "l, tail", 1) == [Forward]


def test_the_shuffle_by_key_is_stronger_than_one_that_was_requested() -> None:
    env = environment()

    def body(s: tr.DataStream) -> Any:
        worked = s.key_by("k").process(keep)
        return worked.rebalance(), worked

    env.from_collection([1]).rebalance().iterate(body, name="l")
    plan = plan_of(env)
    assert (ways(plan, "l"), ways(plan, "l, tail")) == ([Hash], [Hash])


def test_what_is_sent_to_all_subtasks_is_not_sent_by_key() -> None:
    env = environment()
    env.from_collection([1]).broadcast().iterate(by_key, name="l")
    plan = plan_of(env)
    assert str(edges(plan, "l")[0].partitioning) == "broadcast"
    assert (ways(plan, "work"), ways(plan, "l, tail")) == ([Hash], [Forward])


def test_a_consumer_with_another_input_is_no_part_of_the_head_and_gets_it_straight() -> None:
    env = environment()
    other = env.from_collection([1])

    def body(s: tr.DataStream) -> Any:
        both = s.key_by("k").connect(other.enter(s.scope).key_by("k")).process(Together(), name="work")
        return both, both

    env.from_collection([1]).iterate(body, name="l")
    plan = plan_of(env)
    assert (ways(plan, "l"), ways(plan, "work"), ways(plan, "work", 1)) == ([Hash], [Forward], [Hash])


@pytest.mark.parametrize(
    "body",
    [
        lambda s: (s.key_by("k").process(keep, name="work"), s),  # the output is a consumer, too
        lambda s: (s.key_by("k").process(keep, name="work"), s.key_by("k").count()),
        lambda s: (s.key_by("k").process(keep, name="work", parallelism=1), ()),
        lambda s: (s.map(abs).key_by("k").process(keep, name="work"), ()),
    ],
)
def test_else_the_shuffle_stays_where_it_is(body: Any) -> None:
    env = environment()
    env.from_collection([1]).iterate(body, name="l")
    plan = plan_of(env)
    assert ways(plan, "l") == [Forward]
    assert ways(plan, "work") == [Hash]
    assert Hash not in ways(plan, "l, tail")


def test_feedback_of_another_type_is_shuffled_by_its_own_key() -> None:
    env = environment()

    def body(both: tr.ConnectedStreams) -> Any:
        worked = both.key_by("a", "b").process(Together(), name="work")
        return worked, worked

    env.from_collection([1]).iterate_with_feedback(body, name="l")
    plan = plan_of(env)
    assert [str(edge.partitioning) for edge in edges(plan, "l")] == ["hash(a)"]
    assert [str(edge.partitioning) for edge in edges(plan, "l, tail")] == ["hash(b)"]
    assert [(edge.tag, type(edge.partitioning)) for edge in plan.edges_into(vertex_of(plan, "work"))] == [
        (None, Forward),
        (FEEDBACK, Forward),
    ]


def test_with_a_key_on_one_side_only_nothing_moves() -> None:
    env = environment()

    def body(both: tr.ConnectedStreams) -> Any:
        worked = both.first.key_by("a").connect(both.second).process(Together(), name="work")
        return worked, worked

    env.from_collection([1]).iterate_with_feedback(body, name="l")
    plan = plan_of(env)
    assert (ways(plan, "l"), ways(plan, "work"), ways(plan, "work", 1)) == ([Forward], [Hash], [Forward])


def test_a_plan_of_a_plans_graph_is_the_same_plan() -> None:
    env = environment()
    env.from_collection([1]).iterate(by_key, name="l").iterate(plain)
    plan = plan_of(env)
    assert make_plan(plan.graph) == plan


# Nests.


def nest_names(plan: Plan) -> list[tuple[set[str], set[str]]]:
    """The first operators of the vertices and of the entries of each nest."""
    first = {vertex.id: plan.graph.node(vertex.nodes[0]).name for vertex in plan.vertices}
    return [({first[i] for i in nest.vertices}, {first[i] for i in nest.entries}) for nest in plan.nests]


def test_a_plan_without_loops_has_no_nests() -> None:
    env = environment()
    env.from_collection([1]).map(abs)
    plan = plan_of(env)
    assert plan.nests == ()
    assert plan.nest_of(0) is None


def test_loops_one_after_the_other_are_two_nests() -> None:
    env = environment()
    env.from_collection([1]).iterate(by_key, name="a").iterate(by_key, name="b")
    plan = plan_of(env)
    assert nest_names(plan) == [({"a", "a, tail"}, {"a"}), ({"b", "b, tail"}, {"b"})]
    assert [nest.id for nest in plan.nests] == [0, 1]
    assert plan.nest_of(vertex_of(plan, "b, tail")) is plan.nests[1]
    assert plan.nest_of(vertex_of(plan, "a, leave")) is None


def test_a_nest_is_entered_where_streams_come_in() -> None:
    env = environment()
    other = env.from_collection([1])
    env.from_collection([1]).iterate(lambda s: (None, s.union(other.enter(s.scope)).map(abs, name="both")), name="l")
    assert nest_names(plan_of(env)) == [({"l", "enter l", "both"}, {"l", "enter l"})]


def test_four_loops_in_each_other_are_one_nest() -> None:
    env = environment()

    def body(level: int) -> Any:
        def loop(s: tr.DataStream) -> Any:
            inside = s if level == 4 else s.iterate(body(level + 1), name=f"loop {level + 1}")
            worked = inside.map(abs, name=f"work {level}")
            return worked, worked

        return loop

    env.from_collection([1]).iterate(body(1), name="loop 1")
    plan = plan_of(env)
    assert len(plan.nests) == 1
    nest = plan.nests[0]
    assert (nest.scope.level, nest.slots, nest.rounds) == (1, 2, None)
    assert nest.entries == {vertex_of(plan, "loop 1")}
    levels = {plan.graph.node(v.nodes[0]).name: v.scope.level for v in plan.vertices if v.id in nest.vertices}
    assert levels == {
        **{f"loop {n}": n for n in (1, 2, 3, 4)},
        **{f"loop {n}, tail": n for n in (1, 2, 3, 4)},
        **{f"loop {n}, leave": n - 1 for n in (2, 3, 4)},
    }
    assert {
        node.scope for node in plan.graph.nodes if isinstance(node.operator, LeaveLoop) and node.name == "loop 1, leave"
    } == {env._graph.root}


def test_a_stream_that_goes_two_loops_deep_enters_both() -> None:
    env = environment()
    other = env.from_collection([1], name="other")

    def inner(s: tr.DataStream) -> Any:
        both = s.union(other.enter(s.scope))
        return both, both

    env.from_collection([1]).iterate(lambda s: (None, s.iterate(inner, name="b")), name="a")
    plan = plan_of(env)
    assert plan.nests[0].entries == {vertex_of(plan, "a"), vertex_of(plan, "enter a")}
    assert [edge.source for edge in edges(plan, "enter b")] == [vertex_of(plan, "enter a")]


def test_the_rounds_of_a_nest_are_those_of_its_loop() -> None:
    env = environment()
    env.from_collection([1]).iterate(plain, rounds=tr.Rounds(max=3))
    assert plan_of(env).nests[0].rounds == RoundsOfLoop(3)


def test_equal_programs_with_loops_give_equal_plans() -> None:
    def program() -> Plan:
        env = environment()
        env.from_collection([1]).iterate(by_key).iterate(by_key).sink_to(tr.sinks.Print())
        return plan_of(env)

    a, b = program(), program()
    assert (a.edges, a.vertices, a.nests) == (b.edges, b.vertices, b.nests)
    assert [node.uid for node in a.graph.nodes] == [node.uid for node in b.graph.nodes]


def test_a_plan_with_loops_can_be_pickled() -> None:
    env = environment()
    env.from_collection([1]).iterate(lambda s: (s.key_by("k").count(), s), name="l")
    plan = plan_of(env)
    again = pickle.loads(pickle.dumps((plan.vertices, plan.edges, plan.nests)))
    assert again == (plan.vertices, plan.edges, plan.nests)


# Which loops run.


def run(env: tr.Environment) -> list[str]:
    """The names of what runs."""
    return [node.name for node in env._graph.subgraph(env._graph.sinks()).nodes]


def test_a_loop_runs_as_a_whole() -> None:
    env = environment()
    rounds = tr.Rounds(until=lambda result: False)

    def body(s: tr.DataStream) -> Any:
        return s.map(abs, name="back"), (s.map(abs, name="out"), s.map(abs, name="other"))

    first, _ = env.from_collection([1], name="in").iterate(body, name="l", rounds=rounds)
    first.sink_to(tr.sinks.Print(), name="p")
    assert run(env) == ["in", "l", "back", "out", "other", "l, tail", "l, judge", "l, leave: 0", "p"]


def test_a_loop_whose_output_nobody_uses_does_not_run() -> None:
    env = environment()
    numbers = env.from_collection([1], name="in")
    numbers.iterate(plain, name="l")
    numbers.sink_to(tr.sinks.Print(), name="p")
    assert run(env) == ["in", "p"]


def test_a_loop_with_a_sink_inside_runs() -> None:
    env = environment()

    def body(s: tr.DataStream) -> Any:
        s.sink_to(tr.sinks.Print(), name="p")
        return s.map(abs, name="back"), ()

    env.from_collection([1], name="in").iterate(body, name="l")
    assert run(env) == ["in", "l", "p", "back", "l, tail"]


def test_an_inner_loop_with_a_sink_brings_the_outer_loop() -> None:
    env = environment()

    def inner(s: tr.DataStream) -> Any:
        s.sink_to(tr.sinks.Print(), name="p")
        return s, ()

    def outer(s: tr.DataStream) -> Any:
        s.iterate(inner, name="b")
        return s.map(abs, name="back"), ()

    env.from_collection([1], name="in").iterate(outer, name="a")
    assert run(env) == ["in", "a", "b", "p", "b, tail", "back", "a, tail"]


def test_what_only_entered_a_loop_brings_the_loop() -> None:
    env = environment()
    other = env.from_collection([1], name="other")
    out = env.from_collection([1], name="in").iterate(lambda s: (s, other.enter(s.scope)), name="l")
    out.sink_to(tr.sinks.Print(), name="p")
    assert run(env) == ["other", "in", "l", "enter l", "l, tail", "l, leave", "p"]


# Identities.


def test_what_closes_a_loop_keeps_its_uid_when_the_body_changes() -> None:
    def uids(body: Any) -> dict[str, str]:
        env = environment()
        env.from_collection([1]).iterate(body, name="l", uid="the loop")
        return {node.name: node.uid for node in env._graph.nodes if node.name.startswith("l")}

    assert uids(by_key) == uids(plain)
    assert uids(plain)["l"] == "the loop"
    assert len(set(uids(plain).values())) == 3


def test_loops_and_scopes_do_not_change_other_uids() -> None:
    def uid(before: bool) -> str:
        env = environment()
        numbers = env.from_collection([1])
        if before:
            numbers.iterate(plain)
        numbers.key_by("k").count(name="count")
        return next(node.uid for node in env._graph.nodes if node.name == "count")

    assert uid(False) == uid(True)


# Checks of a graph that was not written with `iterate`.


def with_rounds(plan: Plan, scope: tr.StreamScope) -> Graph:
    """The graph with the loop of this scope in rounds."""

    def changed(operator: Any) -> Any:
        if isinstance(operator, Head) and operator.loop.scope == scope:
            loop: Loop = replace(operator.loop, rounds=RoundsOfLoop(None))
            return replace(operator, loop=loop)
        return operator

    nodes = tuple(replace(node, operator=changed(node.operator)) for node in plan.graph.nodes)
    return Graph(nodes, plan.graph.max_parallelism)


@pytest.mark.parametrize("level", [1, 2])
def test_a_plan_has_no_rounds_with_loops_in_each_other(level: int) -> None:
    env = environment()
    env.from_collection([1]).iterate(lambda s: (None, s.iterate(plain, name="inner")), name="outer")
    plan = plan_of(env)
    scope = next(v.scope for v in plan.vertices if v.scope.level == level)
    with pytest.raises(tr.GraphError, match="loop 'inner' is inside loop 'outer', and a loop with rounds can"):
        make_plan(with_rounds(plan, scope))


def test_a_plan_has_no_rounds_on_a_source_that_never_ends() -> None:
    env = environment()
    env.from_source(tr.sources.Sequence(0, None), name="ticks").iterate(plain, name="l")
    plan = plan_of(env)
    with pytest.raises(
        tr.GraphError, match="loop 'l': source 'ticks' is unbounded, so the first round would never end"
    ):
        make_plan(with_rounds(plan, plan.nests[0].scope))


def test_an_edge_of_markers_is_like_any_other_edge_in_a_plan() -> None:
    env = environment()
    env.from_collection([1]).iterate(plain, name="l")
    plan = plan_of(env)
    head = next(node for node in plan.graph.nodes if isinstance(node.operator, Head))
    tail = plan.graph.node(plan.vertices[vertex_of(plan, "l, tail")].nodes[0])
    assert tail.inputs[-1] == Edge(head.id, 1, Forward(), MARKERS)
    assert sum(1 for edge in plan.edges if edge.tag == MARKERS) == 1


# Explanations.


def explained() -> tr.Environment:
    env = environment()
    rules = env.from_collection([1], name="rules")

    def outer(s: tr.DataStream) -> Any:
        improved = s.key_by("k").process(keep, name="improve")
        settled = improved.iterate(
            lambda x: (x.filter(bool, name="again").rebalance(), x.map(abs, name="out")), name="settle"
        )
        both = settled.union(rules.enter(s.scope))
        return both.map(abs, name="next"), {"best": improved}

    env.from_collection([1], name="in").iterate(outer, name="relax")["best"].sink_to(tr.sinks.Print(), name="print")
    return env


def test_explain_tells_loops_as_indented_text() -> None:
    assert explained().explain() == (
        "2 slot(s), 10 vertices, 20 subtasks, 24 channels, 128 key groups\n"
        "[0] x2\n"
        "      rules  (rows)\n"
        "[1] x2\n"
        "      in  (rows)\n"
        "loop relax\n"
        "  [2] x2\n"
        "        relax  (rows)\n"
        "        improve  (rows)\n"
        "      <- [1] in  hash(k), 4 channel(s)\n"
        "  loop settle\n"
        "    [3] x2\n"
        "          settle  (rows)\n"
        "          again  (rows)\n"
        "          out  (rows)\n"
        "        <- [2] improve  forward, 2 channel(s)\n"
        "    [4] x2\n"
        "          settle, tail  (rows)\n"
        "        <- [3] again  rebalance, 4 channel(s)\n"
        "        feedback -> [3]\n"
        "  [5] x2\n"
        "        settle, leave  (rows)\n"
        "      <- [3] out  forward, 2 channel(s)\n"
        "  [6] x2\n"
        "        enter relax  (rows)\n"
        "      <- [0] rules  forward, 2 channel(s)\n"
        "  [7] x2\n"
        "        next  (rows)\n"
        "      <- [5] settle, leave  forward, 2 channel(s)\n"
        "      <- [6] enter relax  forward, 2 channel(s)\n"
        "  [8] x2\n"
        "        relax, tail  (rows)\n"
        "      <- [7] next  hash(k), 4 channel(s)\n"
        "      feedback -> [2]\n"
        "[9] x2\n"
        "      relax, leave: best  (rows)\n"
        "      print  (rows)\n"
        "    <- [2] improve  forward, 2 channel(s)\n"
    )


def test_explain_tells_loops_as_boxes_of_a_flowchart() -> None:
    assert explained().explain("mermaid") == (
        "flowchart LR\n"
        '  v0["rules<br/>x2"]\n'
        '  v1["in<br/>x2"]\n'
        '  subgraph l1v2["loop relax"]\n'
        '    v2["relax<br/>improve<br/>x2"]\n'
        '    subgraph l2v3["loop settle"]\n'
        '      v3["settle<br/>again<br/>out<br/>x2"]\n'
        '      v4["settle, tail<br/>x2"]\n'
        "    end\n"
        '    v5["settle, leave<br/>x2"]\n'
        '    v6["enter relax<br/>x2"]\n'
        '    v7["next<br/>x2"]\n'
        '    v8["relax, tail<br/>x2"]\n'
        "  end\n"
        '  v9["relax, leave: best<br/>print<br/>x2"]\n'
        '  v1 -->|"hash(k)"| v2\n'
        '  v2 -->|"forward"| v3\n'
        '  v3 -->|"rebalance"| v4\n'
        '  v3 -->|"forward"| v5\n'
        '  v0 -->|"forward"| v6\n'
        '  v5 -->|"forward"| v7\n'
        '  v6 -->|"forward"| v7\n'
        '  v7 -->|"hash(k)"| v8\n'
        '  v2 -->|"forward"| v9\n'
        "  v4 -.->|feedback| v3\n"
        "  v8 -.->|feedback| v2\n"
    )


@pytest.mark.parametrize(
    ("rounds", "message"), [(tr.Rounds(max=7), "loop l, in rounds, at most 7\n"), (tr.Rounds(), "loop l, in rounds\n")]
)
def test_explain_tells_rounds(rounds: tr.Rounds, message: str) -> None:
    env = environment()
    env.from_collection([1]).iterate(plain, name="l", rounds=rounds)
    assert message in env.explain()
