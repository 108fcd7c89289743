"""A loop ends when nothing is left in it, and not before: the ways in which others went wrong, with our tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr
from search.programs.golden import PROGRAMS
from search.stories import MS, Story
from tailrace.testing.faults import Fault


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waves begin at any time: they alone must find the end, not the counts that usually call for them."""
    monkeypatch.setattr("tailrace.coordinator.loops.termination._Nest.balanced", True)
    monkeypatch.setattr("tailrace.coordinator.loops.termination.PAUSE", 100)
    monkeypatch.setattr("tailrace.coordinator.loops.termination.LONGEST_PAUSE", 1 * MS)


def _down(stream: tr.DataStream) -> Any:
    moved = stream.map(lambda r: (r[0], r[1] - 1)).rebalance().map(lambda r: r)
    return moved.filter(lambda r: r[1] > 0), moved.filter(lambda r: r[1] <= 0).map(lambda r: r[0])


# Two heads: one has a record on its way when the other one is clean.


@pytest.mark.parametrize("which", range(0, 24, 2))
@pytest.mark.usefixtures("eager")
def test_a_record_on_a_slow_channel_to_one_head_keeps_the_other_one(story: Story, which: int) -> None:
    """Counterexample 1: of two heads one has nothing to do. A link is slow while the last records go round."""

    def program(env: tr.Environment) -> tr.DataStream:
        return env.from_collection([(i, 6) for i in range(3)], parallelism=1).iterate(_down)

    faults = [Fault(turn, "delay", which, duration=6 * MS, after="Advance") for turn in (0, 9, 23)]
    faults += [Fault(turn, "delay", which + 1, duration=3 * MS) for turn in (60, 110)]
    story.finish(story.simulation(program, checkpoints=None, files=None, faults=faults, seed=which))
    story.ledger.book.committed = None
    assert Counter(story.ledger.book.records()) == Counter(range(3))


@pytest.mark.usefixtures("eager")
def test_with_several_feedback_edges_all_must_be_empty(story: Story) -> None:
    """Counterexample 2: one way back is short, the other one leads over three workers."""

    def program(env: tr.Environment) -> tr.DataStream:
        def body(stream: tr.DataStream) -> Any:
            down = stream.map(lambda r: (r[0], r[1] - 1))
            near = down.filter(lambda r: r[1] > 0 and r[1] % 2)
            far = down.filter(lambda r: r[1] > 0 and not r[1] % 2).rebalance().map(tuple).shuffle().map(tuple)
            return [near, far.rebalance()], down.filter(lambda r: r[1] <= 0).map(lambda r: r[0])

        return env.from_collection([(i, i % 9) for i in range(30)]).iterate(body)

    for seed in range(6):
        story = Story.begin(story.ledger.name)
        faults = [Fault(turn, "delay", turn // 7 + seed, duration=4 * MS) for turn in range(40, 700, 35)]
        story.finish(story.simulation(program, parallelism=3, faults=faults, seed=seed))
        story.is_right(Counter(range(30)))


@pytest.mark.usefixtures("eager")
def test_a_record_parked_in_the_inner_loop_keeps_the_outer_one(story: Story) -> None:
    """Counterexample 3: the outer loop has nothing left of its own while something still runs around the inner one."""

    def program(env: tr.Environment) -> tr.DataStream:
        def outer(stream: tr.DataStream) -> Any:
            inside = stream.map(lambda r: (r[0], 9, r[1])).iterate(_inner)
            return inside.filter(lambda r: r[1] > 0), inside.filter(lambda r: r[1] <= 0).map(lambda r: r[0])

        return env.from_collection([(i, i % 2) for i in range(6)]).iterate(outer)

    for seed in range(6):
        story = Story.begin(story.ledger.name)
        faults = [Fault(turn, "delay", turn // 7 + seed, duration=5 * MS) for turn in range(40, 900, 30)]
        world = story.finish(story.simulation(program, faults=faults, seed=seed))
        assert world.covered["began a wave"] > 3
        story.is_right(Counter(range(6)))


def _inner(stream: tr.DataStream) -> Any:
    """Nine laps, then the outer record with one lap less."""
    down = stream.map(lambda r: (r[0], r[1] - 1, r[2])).rebalance().map(tuple)
    return down.filter(lambda r: r[1] > 0), down.filter(lambda r: r[1] <= 0).map(lambda r: (r[0], r[2] - 1))


# What is idle and still has something to do.


class OneLast(tr.KeyedProcessFunction):
    """Half a second after everything is idle it sends its record round once more."""

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        if value:
            ctx.set_timer(processing_time=ctx.now() + 0.5)
        else:
            yield 0

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield "again"


@pytest.mark.parametrize("hurried", [False, True])
def test_a_timer_half_a_second_after_everything_is_idle_is_waited_for(
    story: Story, hurried: bool, request: pytest.FixtureRequest
) -> None:
    """Counterexample 4: a queue that is empty is no loop that has ended."""
    if hurried:
        request.getfixturevalue("eager")

    def program(env: tr.Environment) -> tr.DataStream:
        def body(stream: tr.DataStream) -> Any:
            out = stream.key_by(lambda value: 1).process(OneLast())
            return out.filter(lambda r: r == "again").map(lambda r: 0), out.filter(lambda r: r == 0)

        return env.from_collection([1], parallelism=1).iterate(body)

    world = story.finish(story.simulation(program))
    story.is_right(Counter([0]))
    assert world.now - 1_700_000_000_000_000 > 500 * MS


@pytest.mark.usefixtures("eager")
def test_what_has_no_room_in_memory_counts_as_well(story: Story) -> None:
    """Counterexample 4 and 5: spilled feedback, and markers that must not pass it."""

    def program(env: tr.Environment) -> tr.DataStream:
        stream = env.from_collection([(i, 5) for i in range(40)])
        return stream.iterate(_down, spill=tr.Spill(memory_bytes=0))

    world = story.finish(story.simulation(program))
    assert world.covered["records of feedback spilled"] > 100
    story.is_right(Counter(range(40)))


# What was found before a restart.


@pytest.mark.parametrize("moment", ["StartWave", "WaveReport", "Advance", "CallFinish", "EndLoop"])
def test_what_an_attempt_found_does_not_count_in_the_next_one(story: Story, moment: str) -> None:
    """Counterexample 7: workers die in the middle of an attempt to end, and the checkpoint is from before."""
    program = PROGRAMS["visited"]
    for after in range(0, 24, 3):
        story = Story.begin(story.ledger.name)
        faults = [Fault(after, "kill", after, after=moment), Fault(after + 4, "delay", after, 4 * MS, after=moment)]
        world = story.finish(
            story.simulation(lambda env: program.build(env, 40, None), faults=faults, seed=after, keep_trace=False)
        )
        assert world.covered["restarted"] >= 1
        story.is_right(program.expected(40), program.order)


# After the end.


@pytest.mark.parametrize("program", ["visited", "in_sequence", "hoarded", "called_last", "entered", "separate"])
def test_once_a_loop_has_ended_no_checkpoint_holds_feedback_of_it(story: Story, program: str) -> None:
    """One is requested at that very moment. (The files know when a loop has ended, and complain.)"""
    golden = PROGRAMS[program]
    for seed in range(3):
        story = Story.begin(story.ledger.name)
        faults = [Fault(turn, "checkpoint", after="EndLoop") for turn in (0, 2, 9)]
        world = story.finish(
            story.simulation(
                lambda env: golden.build(env, 16, None),
                faults=faults,
                seed=seed,
                parallelism=1 + seed % 3,
                keep_trace=False,
            )
        )
        assert world.covered["ended a loop"] == len(world.plan.nests) and story.files.over
        ended = max(story.files.over.values())
        assert story.files.newest is not None and story.files.newest[1].checkpoint > ended
        story.is_right(golden.expected(16), golden.order)
