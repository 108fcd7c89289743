"""From a graph to vertices, slices and channels."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.elements.frame_codec import ChannelId, ChannelName
from tailrace.elements.keygroups import group_range, owners
from tailrace.graph.explain import as_mermaid, as_text
from tailrace.graph.operators import Forward, Hash, Rebalance, Rescale
from tailrace.graph.plan import Plan, PlanEdge, make_plan


def plan_of(env: tr.Environment) -> Plan:
    return make_plan(env._graph.subgraph({node.id for node in env._graph.nodes}))


def names(plan: Plan) -> list[list[str]]:
    """The names of the operators of each vertex."""
    return [[plan.graph.node(ident).name for ident in vertex.nodes] for vertex in plan.vertices]


def channels_of(plan: Plan, edge: PlanEdge) -> list[ChannelId]:
    senders = range(plan.vertices[edge.source].parallelism)
    return [ChannelId(edge.id, source, target) for source in senders for target in plan.targets(edge, source)]


def environment(parallelism: int = 2, **settings: Any) -> tr.Environment:
    return tr.Environment(parallelism=parallelism, **settings)


# Chains.


def test_operators_that_forward_at_one_parallelism_are_one_vertex() -> None:
    env = environment()
    numbers = env.from_collection([1]).map(abs, name="m").filter(bool, name="f").flat_map(lambda x: [x], name="fm")
    numbers.sink_to(tr.sinks.Print(), name="p")
    assert names(plan_of(env)) == [["from_collection", "m", "f", "fm", "p"]]
    assert plan_of(env).edges == ()


def test_a_key_ends_a_chain() -> None:
    env = environment()
    env.from_collection([1]).key_by(abs).count(name="count").map(str, name="after")
    plan = plan_of(env)
    assert names(plan) == [["from_collection"], ["count", "after"]]
    assert isinstance(plan.edges[0].partitioning, Hash)


def test_another_parallelism_ends_a_chain_and_forwarding_becomes_a_rebalance() -> None:
    env = environment()
    env.from_collection([1]).map(abs, name="wide", parallelism=3).map(abs, name="also wide")
    plan = plan_of(env)
    assert names(plan) == [["from_collection"], ["wide", "also wide"]]
    assert isinstance(plan.edges[0].partitioning, Rebalance)


@pytest.mark.parametrize("verb", ["rebalance", "shuffle", "rescale", "broadcast"])
def test_every_partitioning_ends_a_chain(verb: str) -> None:
    env = environment(parallelism=1)
    getattr(env.from_collection([1]), verb)().map(abs, name="next")
    assert names(plan_of(env)) == [["from_collection"], ["next"]]


def test_an_operator_with_several_inputs_starts_a_vertex() -> None:
    env = environment()
    a, b = env.from_collection([1], name="a"), env.from_collection([2], name="b")
    a.union(b).map(abs, name="both")
    plan = plan_of(env)
    assert names(plan) == [["a"], ["b"], ["both"]]
    assert [type(edge.partitioning) for edge in plan.edges] == [Forward, Forward]


def test_a_vertex_may_branch() -> None:
    env = environment()
    numbers = env.from_collection([1], name="numbers")
    numbers.map(abs, name="left").sink_to(tr.sinks.Print(), name="l")
    numbers.map(abs, name="right").sink_to(tr.sinks.Print(), name="r")
    plan = plan_of(env)
    assert names(plan) == [["numbers", "left", "l", "right", "r"]]
    assert [(link.source, link.target) for link in plan.vertices[0].links] == [(0, 1), (1, 2), (0, 3), (3, 4)]


def test_a_side_output_is_chained_by_its_tag() -> None:
    env = environment()
    made = env.from_collection([1]).process(lambda value, ctx: ctx.emit("odd", value), name="p")
    made.side_output("odd").map(abs, name="odd ones")
    links = plan_of(env).vertices[0].links
    assert [(link.source, link.tag, link.target) for link in links] == [(0, None, 1), (1, "odd", 2)]


def test_a_channel_has_a_name_that_means_the_same_in_another_plan() -> None:
    """Edges have other numbers once something is written before them; the operators at their two ends have their uids."""

    def channels(before: bool) -> list[ChannelName]:
        env = environment()
        if before:
            env.from_collection([0], uid="other").rebalance().map(abs, uid="more")
        numbers = env.from_collection([1], uid="numbers")
        split = numbers.process(lambda value, ctx: ctx.emit("odd", value), uid="split")
        split.side_output("odd").rebalance().map(abs, uid="odd ones")
        split.key_by("x").union(split.key_by("x")).count(uid="counted")
        made = plan_of(env)
        return [made.name_of(channel) for edge in made.edges for channel in channels_of(made, edge)]

    alone, beside = channels(False), channels(True)
    assert len(set(alone)) == len(alone) == 12
    assert set(alone) < set(beside)
    assert ChannelName("split", "odd", "odd ones", 0, 0, 1, 0) in alone
    assert {ChannelName("split", None, "counted", 0, number, 0, 1) for number in (0, 1)} <= set(alone)


def test_equal_programs_give_equal_plans() -> None:
    def program() -> Plan:
        env = environment()
        env.from_collection([1]).key_by("x").count().sink_to(tr.sinks.Print())
        return plan_of(env)

    a, b = program(), program()
    assert (a.edges, a.vertices) == (b.edges, b.vertices)
    assert [node.uid for node in a.graph.nodes] == [node.uid for node in b.graph.nodes]


# Slices and channels.


def test_a_plan_needs_as_many_slots_as_its_widest_vertex() -> None:
    env = environment(parallelism=2)
    env.from_collection([1], parallelism=1).map(abs, parallelism=5).key_by(abs).count(parallelism=3)
    plan = plan_of(env)
    assert (plan.slots, plan.subtasks) == (5, 9)


def test_a_forward_edge_has_a_channel_per_subtask_and_a_hash_edge_all_of_them() -> None:
    env = environment(parallelism=3)
    a = env.from_collection([1])
    a.union(a).map(abs)
    a.key_by(abs).count(parallelism=2)
    plan = plan_of(env)
    assert [len(channels_of(plan, edge)) for edge in plan.edges] == [3, 3, 6]


@given(senders=st.integers(1, 40), receivers=st.integers(1, 40))
def test_rescaling_serves_every_receiver_and_uses_every_sender(senders: int, receivers: int) -> None:
    env = environment(max_parallelism=40)
    env.from_collection([1], parallelism=senders).rescale().map(abs, parallelism=receivers)
    plan = plan_of(env)
    edge = plan.edges[0]
    assert isinstance(edge.partitioning, Rescale)
    shares = [plan.targets(edge, sender) for sender in range(senders)]
    assert all(len(share) >= 1 for share in shares)
    assert sorted({target for share in shares for target in share}) == list(range(receivers))
    # As even as can be: shares differ by one at most, and so do the numbers of senders of the receivers.
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    senders_of = [len(plan.sources(edge, target)) for target in range(receivers)]
    assert max(senders_of) - min(senders_of) <= 1


@given(
    st.lists(st.integers(1, 7), min_size=2, max_size=5),
    st.lists(st.sampled_from(["rebalance", "shuffle", "rescale", "broadcast", "forward"]), min_size=4, max_size=4),
)
def test_channels_are_counted_as_if_each_were_looked_at(widths: list[int], verbs: list[str]) -> None:
    env = environment(max_parallelism=40)
    stream = env.from_collection([1], parallelism=widths[0])
    for width, verb in zip(widths[1:], verbs, strict=False):
        stream = (stream if verb == "forward" else getattr(stream, verb)()).map(abs, parallelism=width)
    plan = plan_of(env)
    channels = [channel for edge in plan.edges for channel in channels_of(plan, edge)]
    assert [plan.channel_count(edge) for edge in plan.edges] == [len(channels_of(plan, edge)) for edge in plan.edges]
    into = [sum(channel.target == slot for channel in channels) for slot in range(plan.slots)]
    assert plan.most_channels == max(into)
    for slot in range(plan.slots):
        ends = {(c.source, c.target) for c in channels if slot in (c.source, c.target)}
        assert plan.peers(slot) == {one for pair in ends for one in pair} - {slot}
        for edge in plan.edges:
            from_whom = [channel.source for channel in channels_of(plan, edge) if channel.target == slot]
            assert slot >= plan.vertices[edge.target].parallelism or list(plan.sources(edge, slot)) == from_whom


@given(st.data(), st.integers(1, 300))
def test_every_key_group_has_one_owner_and_owners_have_ranges(data: st.DataObject, groups: int) -> None:
    parallelism = data.draw(st.integers(1, groups))
    ranges = [group_range(subtask, parallelism, groups) for subtask in range(parallelism)]
    assert [group for one in ranges for group in one] == list(range(groups))
    owner_of = owners(parallelism, groups).tolist()
    assert all(owner_of[group] == subtask for subtask, one in enumerate(ranges) for group in one)
    assert all(len(one) for one in ranges)


# Explanations.


def explained() -> tr.Environment:
    env = environment(parallelism=2)
    words = env.from_collection(["a"], name="words", uid="the words")
    counted = words.map(str.upper, name='upper "A" & <b>').key_by("word").process(lambda v, c: [v], name="count")
    counted.side_output("late").sink_to(tr.sinks.Print(), name="late ones", parallelism=1)
    return env


def test_explain_tells_the_plan_as_text() -> None:
    assert explained().explain() == (
        "2 slot(s), 3 vertices, 5 subtasks, 6 channels, 128 key groups\n"
        "[0] x2\n"
        "      words  (rows)  uid=the words\n"
        '      upper "A" & <b>  (rows)\n'
        "[1] x2\n"
        "      count  (rows)\n"
        '    <- [0] upper "A" & <b>  hash(word), 4 channel(s)\n'
        "[2] x1\n"
        "      late ones  (rows)\n"
        "    <- [1] count  side output late, rebalance, 2 channel(s)\n"
    )


def test_explain_tells_the_plan_as_a_mermaid_flowchart() -> None:
    assert explained().explain("mermaid") == (
        "flowchart LR\n"
        '  v0["words<br/>upper &quot;A&quot; &amp; &lt;b&gt;<br/>x2"]\n'
        '  v1["count<br/>x2"]\n'
        '  v2["late ones<br/>x1"]\n'
        '  v0 -->|"hash(word)"| v1\n'
        '  v1 -->|"side output late, rebalance"| v2\n'
    )


def test_text_and_mermaid_are_two_views_of_one_plan() -> None:
    plan = plan_of(explained())
    assert as_text(plan) == explained().explain("text")
    assert as_mermaid(plan) == explained().explain("mermaid")


def test_another_format_is_refused() -> None:
    with pytest.raises(tr.ConfigError, match="explain: format must be 'text' or 'mermaid', not 'html'"):
        explained().explain("html")


def test_an_empty_environment_has_nothing_to_explain() -> None:
    with pytest.raises(tr.GraphError, match="nothing to run"):
        environment().explain()
