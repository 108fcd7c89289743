"""How loops are written: shapes, scopes, and every error for a loop that cannot be."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.graph.operators import FEEDBACK, Head, Judge, Loop, Tail
from tests.api.refusals import refusal

POINTS = pa.schema([("x", pa.int64()), ("y", pa.int64())])


def environment(**settings: Any) -> tr.Environment:
    return tr.Environment(parallelism=2, **settings)


def numbers(env: tr.Environment) -> tr.DataStream:
    return env.from_collection([1, 2, 3], name="numbers")


def points(env: tr.Environment) -> tr.DataStream:
    return env.from_collection([(1, 2)]).to_columns(POINTS)


def loop_of(env: tr.Environment) -> Loop:
    """The last loop that was written."""
    return [node.operator.loop for node in env._graph.nodes if isinstance(node.operator, Head)][-1]


def plain(s: tr.DataStream) -> Any:
    return s.map(abs), s.map(abs)


class Together(tr.CoProcessFunction):
    def process1(self, value: Any, ctx: tr.Context) -> None: ...
    def process2(self, value: Any, ctx: tr.Context) -> None: ...


# Shapes.


def test_an_output_comes_back_as_a_stream_outside_of_the_loop() -> None:
    env = environment()
    seen: list[tr.DataStream] = []

    def body(s: tr.DataStream) -> Any:
        seen.append(s)
        return s, s

    out = numbers(env).iterate(body)
    assert isinstance(out, tr.DataStream)
    assert len(seen) == 1
    assert (seen[0].scope.level, out.scope.level) == (1, 0)
    assert seen[0].scope.unnest() is out.scope


class Named(NamedTuple):
    near: Any
    far: Any


@pytest.mark.parametrize(
    "shape",
    [
        lambda s: (s.map(abs), s.map(abs)),
        lambda s: [s.map(abs)],
        lambda s: {"near": s.map(abs), "far": s.map(abs)},
        lambda s: Named(s.map(abs), s.map(abs)),
        lambda s: (),
        lambda s: {},
    ],
)
def test_several_outputs_come_back_in_their_shape(shape: Callable[[tr.DataStream], Any]) -> None:
    inside: list[Any] = []

    def body(s: tr.DataStream) -> Any:
        inside.append(shape(s))
        return s, inside[0]

    out = numbers(environment()).iterate(body)
    assert type(out) is type(inside[0])
    assert len(out) == len(inside[0])
    if isinstance(out, dict):
        assert list(out) == list(inside[0])
    assert all(stream.scope.level == 0 for stream in (out.values() if isinstance(out, dict) else out))


def test_an_output_keeps_form_and_columns() -> None:
    out = points(environment()).iterate(lambda s: (s, s))
    assert (out.form, out.columns) == ("columns", ("x", "y"))


@pytest.mark.parametrize(
    ("feedback", "tails"),
    [
        (lambda s: s.map(abs), 1),
        (lambda s: [s.map(abs), s.map(abs)], 1),
        (lambda s: (s.map(abs), s.map(abs)), 1),
        (lambda s: None, 0),
        (lambda s: [], 0),
    ],
)
def test_feedback_is_a_stream_or_several_or_none(feedback: Callable[[tr.DataStream], Any], tails: int) -> None:
    env = environment()
    numbers(env).iterate(lambda s: (feedback(s), s))
    assert sum(isinstance(node.operator, Tail) for node in env._graph.nodes) == tails


def test_a_body_may_be_an_object() -> None:
    class Relax(tr.LoopFunction):
        def loop(self, stream: tr.DataStream) -> Any:
            return stream.map(abs), stream

    class CoRelax(tr.CoLoopFunction):
        def loop(self, connected: tr.ConnectedStreams) -> Any:
            return connected.second, connected.first

    env = environment()
    assert isinstance(numbers(env).iterate(Relax()).iterate_with_feedback(CoRelax()), tr.DataStream)
    heads = [node.name for node in env._graph.nodes if isinstance(node.operator, Head)]
    assert heads == ["iterate: Relax", "iterate_with_feedback: CoRelax"]


def test_a_loop_is_called_after_its_body_or_as_it_was_named() -> None:
    env = environment()
    numbers(env).iterate(plain)
    assert loop_of(env).name == "iterate: plain"
    numbers(env).iterate(lambda s: (s, s))
    assert loop_of(env).name == "iterate"
    numbers(env).iterate(plain, name="mine", uid="its id")
    assert loop_of(env).name == "mine"
    assert [node.name for node in env._graph.nodes if node.uid == "its id"] == ["mine"]


# Feedback of another type.


def test_input_and_feedback_come_apart() -> None:
    env = environment()

    def body(both: tr.ConnectedStreams) -> Any:
        assert both.first.form == "columns"
        assert both.first.columns == ("x", "y")
        assert both.second.form == "rows"
        assert both.second._upstreams[0][1] == FEEDBACK
        assert both.first.scope == both.second.scope == both.scope
        return both.second.map(abs), both.first

    assert points(env).iterate_with_feedback(body).form == "columns"
    assert loop_of(env).separate


def test_both_may_be_keyed_and_worked_on_together() -> None:
    env = environment()

    def body(both: tr.ConnectedStreams) -> Any:
        worked = both.key_by(lambda x: x, lambda y: y).process(Together())
        return worked, worked

    out = numbers(env).iterate_with_feedback(body)
    assert out.scope.level == 0


def test_feedback_in_columns_becomes_rows() -> None:
    env = environment()
    numbers(env).iterate_with_feedback(lambda both: (both.second.to_columns(POINTS).rebalance(), both.first), name="l")
    tail = next(node for node in env._graph.nodes if isinstance(node.operator, Tail))
    fed = env._graph.nodes[tail.inputs[0].source]
    assert (fed.form, fed.name) == ("rows", "to_rows")


# Scopes.


def test_a_loop_in_a_loop_is_one_level_deeper() -> None:
    env = environment()
    levels: list[int] = []

    def inner(s: tr.DataStream) -> Any:
        levels.append(s.scope.level)
        return s, s

    def outer(s: tr.DataStream) -> Any:
        levels.append(s.scope.level)
        out = s.iterate(inner)
        levels.append(out.scope.level)
        return out, out

    levels.append(numbers(env).iterate(outer).scope.level)
    assert levels == [1, 2, 1, 0]


def test_each_call_of_iterate_is_another_scope() -> None:
    env = environment()
    scopes: list[tr.StreamScope] = []

    def body(s: tr.DataStream) -> Any:
        scopes.append(s.scope)
        return s, s

    numbers(env).iterate(body).iterate(body)
    assert scopes[0] != scopes[1]
    assert not scopes[0] < scopes[1] and not scopes[0] > scopes[1]


def test_streams_of_all_kinds_have_a_scope() -> None:
    def body(s: tr.DataStream) -> Any:
        keyed = s.key_by("x")
        kinds: list[Any] = [
            s,
            keyed,
            keyed.window(tr.Tumbling(1)),
            s.connect(s),
            keyed.count(),
            s.rebalance(),
            s.union(s),
        ]
        assert {kind.scope for kind in kinds} == {s.scope}
        assert s.scope.level == 1
        return s, s

    numbers(environment()).iterate(body)


def test_a_stream_from_around_a_loop_enters_it() -> None:
    env = environment()
    rules = numbers(env)

    def body(s: tr.DataStream) -> Any:
        assert rules.enter(s.scope).scope == s.scope
        assert s.enter(s.scope) is s
        shuffled = rules.rebalance().enter(s.scope)
        assert shuffled._partitioning == rules.rebalance()._partitioning
        keyed = rules.key_by(lambda x: x)
        entered = keyed.enter(s.scope)
        assert isinstance(entered, tr.KeyedStream)
        assert (entered.key, entered.scope) == (keyed.key, s.scope)
        assert entered.enter(s.scope) is entered
        worked = s.key_by(lambda x: x).connect(entered).process(Together())
        return worked, worked.union(rules.enter(s.scope))

    numbers(env).iterate(body)
    assert rules.enter(rules.scope) is rules


def test_a_stream_that_enters_keeps_form_and_columns_and_is_as_wide_as_the_loop() -> None:
    env = environment()
    rules = env.from_collection([(1, 2)], parallelism=1).to_columns(POINTS)

    def body(s: tr.DataStream) -> Any:
        entered = rules.enter(s.scope)
        assert (entered.form, entered.columns) == ("columns", ("x", "y"))
        assert entered._default_parallelism() == 3
        return s, s

    numbers(env).iterate(body, parallelism=3)


# Parallelism.


def test_in_a_loop_operators_are_as_wide_as_the_loop() -> None:
    env = environment()

    def body(s: tr.DataStream) -> Any:
        s.map(abs, name="forward")
        s.key_by(lambda x: x).count(name="count")
        s.rebalance().map(abs, name="rebalanced")
        narrow = s.map(abs, parallelism=1, name="narrow")
        s.union(narrow).map(abs, name="union")
        return s, s

    numbers(env).iterate(body, parallelism=3, name="loop").rebalance().map(abs, name="after")
    width = {node.name: node.parallelism for node in env._graph.nodes}
    assert {name: width[name] for name in ("loop", "loop, tail", "loop, leave", "forward", "count", "rebalanced")} == {
        "loop": 3,
        "loop, tail": 3,
        "loop, leave": 3,
        "forward": 3,
        "count": 3,
        "rebalanced": 3,
    }
    assert (width["narrow"], width["union"], width["after"]) == (1, 3, 2)


def test_a_loop_is_as_wide_as_its_stream() -> None:
    env = environment()
    env.from_collection([1], parallelism=1).iterate(plain, name="narrow")
    env.from_collection([1], parallelism=1).rebalance().iterate(plain, name="usual")
    width = {node.name: node.parallelism for node in env._graph.nodes}
    assert (width["narrow"], width["usual"]) == (1, 2)


# Options.


def test_a_loop_holds_what_was_requested() -> None:
    env = environment()

    def until(result: Any) -> bool:
        return True

    numbers(env).iterate(
        plain,
        rounds=tr.Rounds(max=4, until=until),
        priority="feedback-first",
        combine=tr.Combine(key=abs, merge=min),
        spill=tr.Spill(memory_bytes=0, dir="/some/where"),
    )
    loop = loop_of(env)
    assert (loop.priority, loop.combine_key, loop.combine_merge) == ("feedback-first", abs, min)
    assert (loop.spill_bytes, loop.spill_dir) == (0, "/some/where")
    assert loop.rounds is not None
    assert (loop.rounds.max, loop.rounds.until) == (4, until)
    assert sum(isinstance(node.operator, Judge) for node in env._graph.nodes) == 1


def test_a_loop_that_was_requested_nothing_special() -> None:
    env = environment()
    numbers(env).iterate(plain)
    loop = loop_of(env)
    assert (loop.priority, loop.combine_key, loop.combine_merge, loop.rounds) == ("adaptive", None, None, None)
    assert (loop.spill_bytes, loop.spill_dir, loop.separate) == (64 << 20, None, False)


def test_feedback_may_be_combined_by_columns_of_rows() -> None:
    env = environment()
    points(env).to_rows().iterate(lambda s: (s, s), combine=tr.Combine(key=["x", "y"], merge=min))
    assert loop_of(env).combine_key == ("x", "y")


def test_a_folder_to_spill_to_may_be_a_path() -> None:
    assert tr.Spill(dir=Path("/some/where")).dir == "/some/where"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tr.Rounds(max=0), "Rounds: max must be a whole number of at least 1 or None, not 0"),
        (lambda: tr.Rounds(max=True), "Rounds: max must be a whole number of at least 1 or None, not True"),
        (lambda: tr.Rounds(max=2.5), "Rounds: max must be a whole number of at least 1 or None, not 2.5"),
        (lambda: tr.Rounds(until=3), "Rounds: until: expected a function, got int 3"),
        (lambda: tr.Rounds(until=lambda a, b: a), "Rounds: until: <lambda>(a, b) is called with 1 argument(s)"),
        (
            lambda: tr.Combine(key=3, merge=min),
            "Combine: key must be a function, a column name or several of them, not 3",
        ),
        (
            lambda: tr.Combine(key=(), merge=min),
            "Combine: key must be a function, a column name or several of them, not ()",
        ),
        (
            lambda: tr.Combine(key="", merge=min),
            "Combine: key must be a function, a column name or several of them, not ''",
        ),
        (lambda: tr.Combine(key=lambda: 1, merge=min), "Combine: key: <lambda>() is called with 1 argument(s)"),
        (lambda: tr.Combine(key="x", merge="min"), "Combine: merge: expected a function, got str 'min'"),
        (lambda: tr.Combine(key="x", merge=lambda a: a), "Combine: merge: <lambda>(a) is called with 2 argument(s)"),
        (lambda: tr.Spill(memory_bytes=-1), "Spill: memory_bytes must be a number of bytes, not -1"),
        (lambda: tr.Spill(memory_bytes="1g"), "Spill: memory_bytes must be a number of bytes, not '1g'"),
        (lambda: tr.Spill(dir=""), "Spill: dir must be the path of a folder or None, not ''"),
        (lambda: tr.Spill(dir=3), "Spill: dir must be the path of a folder or None, not 3"),
    ],
)
def test_settings_of_loops_are_checked_when_they_are_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(tr.ConfigError, match=re.escape(message)):
        make()


# What cannot be.


class NoBody(tr.LoopFunction):
    pass


class NarrowBody(tr.LoopFunction):
    def loop(self) -> Any: ...  # type: ignore[override]


class Body(tr.LoopFunction):
    def loop(self, stream: tr.DataStream) -> Any:
        return stream, stream


class CoBody(tr.CoLoopFunction):
    def loop(self, connected: tr.ConnectedStreams) -> Any:
        return connected.second, connected.first


OTHER = numbers(environment())
ENDLESS = tr.sources.Sequence(0, None)


def leaked(env: tr.Environment) -> tr.DataStream:
    """A stream that a body has let out by another way than by returning it."""
    out: list[tr.DataStream] = []

    def body(s: tr.DataStream) -> Any:
        out.append(s.map(abs))
        return s, s

    numbers(env).iterate(body, name="first")
    return out[0]


def nested(inner: Callable[[tr.DataStream, tr.DataStream], Any]) -> Callable[[tr.Environment], Any]:
    """Writes a loop in a loop; `inner` gets the streams of both."""

    def build(env: tr.Environment) -> Any:
        def body(s: tr.DataStream) -> Any:
            out = s.iterate(lambda x: inner(s, x), name="inner")
            return out, out

        return numbers(env).iterate(body, name="outer")

    return build


def inside(body: Callable[[tr.Environment, tr.DataStream], Any]) -> Callable[[tr.Environment], Any]:
    """Writes a loop whose body also gets the environment."""
    return lambda env: numbers(env).iterate(lambda s: body(env, s), name="l")


Build = Callable[[tr.Environment], Any]
REFUSED: dict[str, tuple[Build, str] | tuple[Build, type[Exception], str]] = {
    # what is written, its error where that is no `GraphError`, and the sentence
    # Bodies.
    "no function": (lambda env: numbers(env).iterate(3), tr.GraphError, "iterate: expected a function, got int 3"),
    "a body of two arguments": (
        lambda env: numbers(env).iterate(lambda a, b: a, name="l"),
        "iterate 'l': <lambda>(a, b) is called with 1 argument(s), which it does not accept; change its parameters",
    ),
    "a class": (lambda env: numbers(env).iterate(Body), "iterate: pass an object, not the class: Body()"),
    "a body without loop": (
        lambda env: numbers(env).iterate(NoBody()),
        "iterate: NoBody has no method loop; a tr.LoopFunction must define it",
    ),
    "a loop without arguments": (
        lambda env: numbers(env).iterate(NarrowBody()),
        "iterate: NarrowBody.loop() -> Any is called with 1 argument(s), which it does not accept",
    ),
    "a body for feedback of another type": (
        lambda env: numbers(env).iterate(CoBody()),
        "iterate: a CoBody is not a tr.LoopFunction; use iterate_with_feedback",
    ),
    "a body for feedback of the same type": (
        lambda env: numbers(env).iterate_with_feedback(Body()),
        "iterate_with_feedback: a Body is not a tr.CoLoopFunction; use iterate",
    ),
    "a rich function of another kind": (
        lambda env: numbers(env).iterate(Together()),
        "iterate: expected a function, got a Together object; use the verb that takes it",
    ),
    # What it returns.
    "one stream": (
        lambda env: numbers(env).iterate(lambda s: s),
        "iterate: the body must return (feedback, output), not DataStream",
    ),
    "nothing": (
        lambda env: numbers(env).iterate(lambda s: None, name="l"),
        "iterate 'l': the body must return (feedback, output), not None",
    ),
    "three streams": (
        lambda env: numbers(env).iterate(lambda s: (s, s, s)),
        "iterate: the body must return (feedback, output), not a tuple of 3",
    ),
    "feedback that is no stream": (
        lambda env: numbers(env).iterate(lambda s: (3, s)),
        "iterate: the feedback must be a stream, a list of streams or None, not int",
    ),
    "feedback in a dict": (
        lambda env: numbers(env).iterate(lambda s: ({"a": s}, s)),
        "iterate: the feedback must be a stream, a list of streams or None, not dict",
    ),
    "no output": (
        lambda env: numbers(env).iterate(lambda s: (s, None)),
        "iterate: the output must be a stream, or a tuple or dict of streams, not None",
    ),
    "an output that is no stream": (
        lambda env: numbers(env).iterate(lambda s: (s, (s, 3))),
        "iterate: the output must be a stream, or a tuple or dict of streams, not int",
    ),
    "a window": (
        lambda env: numbers(env).iterate(lambda s: (s, s.key_by("x").window(tr.Tumbling(1)))),
        "iterate: the output must be a stream, or a tuple or dict of streams, not WindowedStream",
    ),
    "keyed feedback": (
        lambda env: numbers(env).iterate(lambda s: (s.key_by("x"), s)),
        tr.TypeMismatch,
        "iterate: the feedback is a keyed stream; call process on it, or return the stream before key_by",
    ),
    "a keyed output": (
        lambda env: numbers(env).iterate(lambda s: (s, {"a": s.key_by("x")})),
        tr.TypeMismatch,
        "iterate: the output is a keyed stream; call process on it, or return the stream before key_by",
    ),
    "a stream of another environment": (
        lambda env: numbers(env).iterate(lambda s: (OTHER, s)),
        "iterate: the feedback belongs to another environment; make it from the stream the body is given",
    ),
    "an output from around the loop": (
        inside(lambda env, s: (s, numbers(env))),
        tr.ScopeError,
        "iterate 'l': the output is outside of any loop, not in loop 'l'; bring it in with enter(stream.scope)",
    ),
    "feedback of a loop inside": (
        inside(lambda env, s: (leaked(env), s)),
        tr.ScopeError,
        "iterate 'l': the feedback is in loop 'first', not in loop 'l'; return it as an output of the loop it is in",
    ),
    "feedback of the loop around": (
        nested(lambda outer, inner: (outer, inner)),
        tr.ScopeError,
        "iterate 'inner': the feedback is in loop 'outer', not in loop 'inner'; bring it in with enter(stream.scope)",
    ),
    # Forms.
    "feedback in columns": (
        lambda env: numbers(env).iterate(lambda s: (s.to_columns(POINTS), s)),
        tr.TypeMismatch,
        "iterate: the feedback is in columns, and the loop takes rows; call to_rows() on the feedback",
    ),
    "feedback in rows": (
        lambda env: points(env).iterate(lambda s: ([s, s.to_rows()], s)),
        tr.TypeMismatch,
        "iterate: the feedback is in rows, and the loop takes columns; call to_columns(schema) on the feedback",
    ),
    "feedback of other columns": (
        lambda env: points(env).iterate(lambda s: (s.to_rows().to_columns(pa.schema([("z", pa.int64())])), s)),
        tr.TypeMismatch,
        "iterate: the feedback has the columns z, and the loop takes x, y; they must be the same in the same order",
    ),
    # Options.
    "a priority of its own": (
        lambda env: numbers(env).iterate(plain, priority="fair"),
        tr.ConfigError,
        "iterate: priority must be 'adaptive' or 'feedback-first', not 'fair'",
    ),
    "rounds as a number": (
        lambda env: numbers(env).iterate(plain, rounds=3, name="l"),
        tr.ConfigError,
        "iterate 'l': rounds must be a tr.Rounds(...), not 3",
    ),
    "combine as a function": (
        lambda env: numbers(env).iterate(plain, combine=abs),
        tr.ConfigError,
        "iterate: combine must be a tr.Combine(...), not <built-in function abs>",
    ),
    "spill as a number": (
        lambda env: numbers(env).iterate_with_feedback(plain, spill=5),
        tr.ConfigError,
        "iterate_with_feedback: spill must be a tr.Spill(...), not 5",
    ),
    "spill into checkpoints": (
        lambda env: numbers(env).iterate(plain, spill=tr.Spill(dir="checkpoint")),
        tr.ConfigError,
        "iterate: tr.Spill(dir='checkpoint') is for tr.StandbyConfig; feedback waits in a folder of its machine, and one of "
        "this name is './checkpoint'",
    ),
    "combine in columns": (
        lambda env: points(env).iterate(plain, combine=tr.Combine("x", min)),
        tr.TypeMismatch,
        "iterate: combine merges rows, and the loop is in columns; call to_rows() before it",
    ),
    "combine by a column that is none": (
        lambda env: points(env).to_rows().iterate(plain, combine=tr.Combine("z", min)),
        "iterate: combine: there is no column 'z'; the stream has x, y",
    ),
    "no name": (lambda env: numbers(env).iterate(plain, name=""), "iterate: name must be a non-empty string, not ''"),
    "no parallelism": (
        lambda env: numbers(env).iterate(plain, parallelism=0),
        "operator 'iterate: plain': parallelism must be a whole number of at least 1, not 0",
    ),
    # Rounds.
    "rounds on an endless source": (
        lambda env: env.from_source(ENDLESS, name="ticks").map(abs).iterate(plain, rounds=tr.Rounds(), name="l"),
        "loop 'l': source 'ticks' is unbounded, so the first round would never end; leave rounds= out, or use bounded "
        "sources",
    ),
    "an endless source enters a loop in rounds": (
        lambda env: numbers(env).iterate(
            lambda s: (s, env.from_source(ENDLESS, name="ticks").enter(s.scope)), rounds=tr.Rounds(), name="l"
        ),
        "loop 'l': source 'ticks' is unbounded, so the first round would never end",
    ),
    "rounds in a loop": (
        lambda env: numbers(env).iterate(
            lambda s: (s, s.iterate(plain, rounds=tr.Rounds(), name="inner")), name="outer"
        ),
        "loop 'inner' is inside loop 'outer', and a loop with rounds can neither be in a loop nor contain one; leave "
        "rounds= out, or write the loops one after the other",
    ),
    "a loop in rounds": (
        lambda env: numbers(env).iterate(lambda s: (s, s.iterate(plain)), rounds=tr.Rounds(), name="outer"),
        "loop 'iterate' is inside loop 'outer', and a loop with rounds can neither be in a loop nor contain one",
    ),
    # Two scopes.
    "a union with the outside": (
        inside(lambda env, s: s.union(numbers(env))),
        tr.ScopeError,
        "union: one stream is in loop 'l', the other outside of any loop; bring the other one in: "
        "other.enter(stream.scope)",
    ),
    "a union of the outside": (
        inside(lambda env, s: numbers(env).union(s)),
        tr.ScopeError,
        "union: one stream is outside of any loop, the other in loop 'l'; bring the first one in, "
        "stream.enter(other.scope), or return the other one as an output of its loop",
    ),
    "connected with the outside": (
        inside(lambda env, s: s.connect(numbers(env))),
        tr.ScopeError,
        "connect: one stream is in loop 'l', the other outside of any loop; bring the other one in",
    ),
    "connected keys": (
        inside(lambda env, s: numbers(env).key_by("x").connect(s.key_by("x"))),
        tr.ScopeError,
        "connect: one stream is outside of any loop, the other in loop 'l'; bring the first one in",
    ),
    "a union of the third": (
        inside(lambda env, s: s.union(s, numbers(env))),
        tr.ScopeError,
        "union: one stream is in loop 'l', the other outside of any loop",
    ),
    "a union of two levels": (
        nested(lambda outer, inner: (inner, inner.union(outer))),
        tr.ScopeError,
        "union: one stream is in loop 'inner', the other in loop 'outer'; bring the other one in",
    ),
    "a union of neighbours": (
        inside(lambda env, s: s.union(leaked(env))),
        tr.ScopeError,
        "union: one stream is in loop 'l', the other in loop 'first'; return one as an output of its loop, and bring it "
        "into the loop of the other with enter(scope)",
    ),
    "streams connected by hand": (
        inside(lambda env, s: tr.ConnectedStreams(s, numbers(env)).process(Together())),
        tr.ScopeError,
        "process: one stream is in loop 'l', the other outside of any loop",
    ),
    # Entering.
    "entering nothing": (
        lambda env: numbers(env).enter(None),
        tr.ScopeError,
        "enter: expected the scope of a stream, stream.scope, not None",
    ),
    "entering a stream": (
        inside(lambda env, s: numbers(env).enter(s)),
        tr.ScopeError,
        "enter: expected the scope of a stream, stream.scope, not DataStream",
    ),
    "entering a scope of no loop": (
        lambda env: numbers(env).enter(numbers(env).scope.nest()),
        tr.ScopeError,
        "enter: no loop of this environment has the scope StreamScope(0); take it from a stream: stream.scope",
    ),
    "entering the loop of another environment": (
        inside(lambda env, s: OTHER.enter(s.scope)),
        tr.ScopeError,
        "enter: no loop of this environment has the scope StreamScope(0)",
    ),
    "entering the outside": (
        inside(lambda env, s: s.enter(numbers(env).scope)),
        tr.ScopeError,
        "enter: the stream is in loop 'l', and the outside of loops is not inside it; return the stream as an output "
        "of its loop",
    ),
    "entering a neighbour": (
        inside(lambda env, s: leaked(env).key_by("x").enter(s.scope)),
        tr.ScopeError,
        "enter: the stream is in loop 'first', and loop 'l' is not inside it; return the stream as an output of its "
        "loop",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_when_it_is_written(what: str) -> None:
    assert REFUSED[what][-1] in refusal(REFUSED[what], environment())


def test_a_loop_that_begins_with_a_key_gets_the_records_by_key() -> None:
    env = environment()
    keyed = env.from_collection([(n % 3, n) for n in range(12)]).key_by(lambda r: r[0])
    out = keyed.iterate(lambda s: (s.filter(lambda r: r[1] > 5).map(lambda r: (r[0], r[1] - 6)), s))
    collected = out.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(collected.result()) == sorted(
        [(n % 3, n) for n in range(12)] + [(n % 3, n - 6) for n in range(6, 12)]
    )


# A body that raises.


def test_an_error_of_the_body_passes_through() -> None:
    error = KeyError("mine")

    def body(s: tr.DataStream) -> Any:
        raise error

    with pytest.raises(KeyError) as raised:
        numbers(environment()).iterate(body)
    assert raised.value is error


def fails_late(s: tr.DataStream) -> Any:
    s.map(abs, uid="mine", name="lost").sink_to(tr.sinks.Print(), name="lost, too")
    s.iterate(plain)
    raise KeyError


def test_what_a_body_wrote_before_it_raised_is_void() -> None:
    env, clean = environment(), environment()
    source = numbers(env)
    with pytest.raises(KeyError):
        source.iterate(fails_late, uid="the loop")
    for stream in (source, numbers(clean)):
        stream.iterate(lambda s: (s.map(abs, uid="mine"), s), uid="the loop").sink_to(tr.sinks.Print(), name="p")
    assert [(n.name, n.uid) for n in env._graph.valid()] == [(n.name, n.uid) for n in clean._graph.valid()]
    assert env.explain() == clean.explain()
    assert [env._graph.nodes[ident].name for ident in env._pending()] == ["p"]


def test_nothing_can_be_built_on_what_a_body_wrote_before_it_raised() -> None:
    env = environment()
    out: list[tr.DataStream] = []

    def body(s: tr.DataStream) -> Any:
        out.append(s.map(abs, name="lost"))
        raise KeyError

    with pytest.raises(KeyError):
        numbers(env).iterate(body)
    with pytest.raises(
        tr.GraphError, match="operator 'map: abs': its input 'lost' was written in the body of a loop that"
    ):
        out[0].map(abs)
    with pytest.raises(tr.ScopeError, match="no loop of this environment has the scope"):
        numbers(env).enter(out[0].scope)


def test_a_body_may_catch_what_an_inner_body_raised() -> None:
    env = environment()

    def outer(s: tr.DataStream) -> Any:
        with pytest.raises(KeyError):
            s.iterate(fails_late)
        return s.map(abs), s.iterate(plain)

    numbers(env).iterate(outer).sink_to(tr.sinks.Print())
    assert "lost" not in env.explain()


# Batches by key, and ends.


def test_batches_by_key_hold_the_keys_of_a_subtask() -> None:
    env = environment()

    def seen(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"keys": [sorted(set(batch["x"].to_pylist()))]})

    rows = env.from_collection([(x % 20, x) for x in range(200)])
    by_rows = rows.key_by(lambda r: r[0]).map_batches(seen, schema=POINTS, name="m").sink_to(tr.sinks.Collect())
    by_name = rows.to_columns(POINTS).key_by("x").map_batches(seen).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    for result in (by_rows.result(), by_name.result()):
        owners: dict[int, set[int]] = {}
        batches = [set(row.keys) for row in result]
        for keys in batches:
            for key in keys:
                owners.setdefault(key, set()).update(keys)
        assert set(owners) == set(range(20))
        assert len({frozenset(together) for together in owners.values()}) == 2


def test_batches_by_key_take_the_options_of_every_verb() -> None:
    env = environment()
    numbers(env).key_by(lambda x: x).map_batches(lambda b: b, schema=POINTS, name="m", uid="u", parallelism=3)
    made = [(node.name, node.parallelism, node.form) for node in env._graph.nodes]
    assert made == [("numbers", 2, "rows"), ("to_columns", 3, "columns"), ("m", 3, "columns")]


def test_batches_by_key_of_rows_need_a_schema() -> None:
    with pytest.raises(
        tr.TypeMismatch, match=re.escape("map_batches: the stream is in rows; give schema= or call to_")
    ):
        numbers(environment()).key_by(lambda x: x).map_batches(lambda b: b)


class NarrowRound(tr.ProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> None: ...
    def on_round_end(self, round: int) -> None: ...  # type: ignore[override]


class NarrowCoRound(Together):
    def on_round_end(self, ctx: tr.Context) -> None: ...  # type: ignore[override]


class WideFinish(tr.MapBatchesFunction):
    def map_batches(self, batch: Any) -> Any: ...
    def finish(self, ctx: tr.Context) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.process(NarrowRound()), "process: NarrowRound.on_round_end(round: int) -> None is called with 2"),
        (
            lambda s: s.connect(s).process(NarrowCoRound()),
            "NarrowCoRound.on_round_end(ctx: tailrace.api.functions.Context)",
        ),
        (
            lambda s: s.map_batches(WideFinish(), schema=POINTS),
            "is called with 0 argument(s), which it does not accept",
        ),
    ],
)
def test_what_is_called_at_ends_is_checked(build: Callable[[tr.DataStream], Any], message: str) -> None:
    with pytest.raises(tr.GraphError, match=re.escape(message)):
        build(numbers(environment()))


def test_functions_do_nothing_at_ends_unless_they_say_so() -> None:
    ctx: Any = None
    assert tr.ProcessFunction().on_round_end(0, ctx) is None
    assert tr.KeyedProcessFunction().on_round_end(0, ctx) is None
    assert Together().on_round_end(0, ctx) is None
    assert tr.MapBatchesFunction().on_round_end(0) is None
    assert tr.MapBatchesFunction().finish() is None
