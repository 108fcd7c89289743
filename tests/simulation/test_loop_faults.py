"""Loops and checkpoints: what is on its way around is in each of them once, whatever comes when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from search.planted.loops import given_up
from search.programs.golden import PROGRAMS, Running
from search.scenarios import NETWORKS, run_scenario, scenario
from search.stories import EVERY_MS, MS, Story, until_feedback_is_held
from tailrace.testing.faults import Fault

visited = PROGRAMS["visited"]


def golden(name: str, n: int, rate: float | None = None) -> Any:
    return lambda env: PROGRAMS[name].build(env, n, rate)


# The test that FLIP-16 names.


class Balance(tr.KeyedProcessFunction):
    """What comes from the source is worth two, what comes back is worth one less each time."""

    count = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        left = value[1]
        self.count.value += 1
        yield value[0], left, self.count.value


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_the_source_adds_two_the_loop_takes_one_and_a_failure_changes_nothing(story: Story, parallelism: int) -> None:
    """Fails once after the first checkpoint that has feedback in it: what the source counted, what the loop's state has
    and what is in the sink is the same, with shuffled feedback."""
    n = 120

    def program(env: tr.Environment) -> tr.DataStream:
        def body(stream: tr.DataStream) -> Any:
            counted = stream.key_by(lambda r: r[0] % 5).process(Balance())
            going = counted.filter(lambda r: r[1] > 1).map(lambda r: (r[0], r[1] - 1)).shuffle()
            return going, counted.map(lambda r: (r[0] % 5, r[2]))

        return env.from_source(tr.sources.Sequence(0, n, rate=8_000)).map(lambda i: (i, 2)).iterate(body)

    world = story.simulation(program, parallelism=parallelism)
    until_feedback_is_held(story, world)
    world.kill(next(iter(world.processes.values())))
    story.finish(world)
    assert world.covered["restarted"] >= 1 and world.covered["records of feedback restored"] >= 1
    totals = Counter(i % 5 for i in range(n) for _ in range(2))
    story.is_right(Counter((key, i) for key, total in totals.items() for i in range(1, total + 1)))


# Markers that come early, and that overlap.


@pytest.mark.parametrize("program", ["visited", "wandered", "entered", "in_sequence"])
def test_the_marker_of_one_head_may_be_late(story: Story, program: str) -> None:
    """T5: one head has its barrier from the source long after the others, and feedback from behind their cuts may come to
    it before. Workers die; nothing is there twice."""
    for seed in range(3):
        story = Story.begin(story.ledger.name)
        faults = [Fault(turn, "delay", turn // 20 + seed, duration=3 * MS) for turn in range(30, 1_500, 60)]
        faults += [Fault(6, "kill", number, after=f"commit {number} done") for number in (2, 4, 6)]
        world = story.simulation(golden(program, 60, 4_000), parallelism=3, faults=faults, seed=seed, keep_trace=False)
        story.finish(world)
        assert world.covered["restarted"] >= 2
        story.is_right(PROGRAMS[program].expected(60), PROGRAMS[program].order)


def test_feedback_may_come_only_from_a_stream_that_entered(story: Story) -> None:
    """T5: the tail depends on its head by nothing but the head's markers."""

    def program(env: tr.Environment) -> tr.DataStream:
        seeds = env.from_source(tr.sources.Sequence(0, 40, rate=8_000)).map(lambda i: ("seed", i, 3))

        def body(stream: tr.DataStream) -> Any:
            sown = seeds.enter(stream.scope).rebalance().map(tuple)
            return sown, stream.map(lambda r: r[:2])

        return env.from_source(tr.sources.Sequence(0, 40, rate=4_000)).map(lambda i: ("own", i, 0)).iterate(body)

    held = 0
    for seed in range(4):
        story = Story.begin(story.ledger.name)
        faults = [Fault(turn, "delay", turn // 20 + seed, duration=4 * MS) for turn in range(30, 900, 40)]
        faults += [Fault(6, "kill", number, after=f"commit {number} done") for number in (2, 4, 6)]
        story.finish(story.simulation(program, parallelism=3, faults=faults, seed=seed, keep_trace=False))
        held += sum(1 for one in story.files.feedback if one)
        story.is_right(Counter([("seed", i) for i in range(40)] + [("own", i) for i in range(40)]))
    assert held, "some of it was on its way when a checkpoint was made"


@pytest.mark.parametrize("moment", ["commit 3 done", "commit 5 done", "commit 8 done"])
def test_checkpoints_overlap_and_each_has_its_own_log(story: Story, moment: str) -> None:
    """T6: the barrier of the next checkpoint comes before the marker of the last one. The job goes on from either."""
    settings = replace(EVERY_MS, interval=500, max_concurrent=4)
    overlaps = 0
    for seed in range(4):
        story = Story.begin(story.ledger.name)
        faults = [Fault(0, "kill", seed, after=moment), Fault(1, "kill", seed + 1, after=moment)]
        world = story.simulation(
            golden("visited", 60, 2_000),
            parallelism=3,
            conditions=NETWORKS["slow"],
            checkpoints=settings,
            faults=faults,
            seed=seed,
        )
        story.finish(world)
        overlaps += world.covered["several checkpoints under way"]
        story.is_right(visited.expected(60), visited.order)
    assert overlaps > 10


def test_aborted_checkpoints_leave_the_logs_of_the_others_alone(story: Story) -> None:
    """Every fifth operation on the storage fails, so checkpoints are given up at any moment of their logs."""
    settings = replace(EVERY_MS, interval=500, max_concurrent=3)
    aborted = 0
    for seed in range(3):
        story = Story.begin(story.ledger.name)
        faults = [Fault(10, "storage", duration=4_000, chance=0.2, outcome="error")]
        faults += [Fault(3, "kill", number, after=f"commit {number} done") for number in range(3, 12, 4)]
        world = story.simulation(
            golden("visited", 80, 8_000), parallelism=2, checkpoints=settings, faults=faults, seed=seed
        )
        story.finish(world)
        aborted += world.covered["aborted a checkpoint"]
        story.is_right(visited.expected(80), visited.order)
    assert aborted > 10


# What was restored is restored again.


@pytest.mark.parametrize("overtakes", [-1, 0], ids=["aligned", "unaligned"])
def test_killed_again_and_again_while_it_reads_what_was_restored_it_gets_ahead(story: Story, overtakes: int) -> None:
    """T7: workers die a little after every start. Each checkpoint takes what is still unread with it, so that work once
    done behind a checkpoint is not done again: the job ends after a bounded number of restarts."""
    program = PROGRAMS["amplified"]
    settings = replace(EVERY_MS, overtakes_after=overtakes)
    small = NETWORKS["in small steps"]
    world = story.simulation(golden("amplified", 6), conditions=small, checkpoints=settings, keep_trace=False)
    until_feedback_is_held(story, world, least=400)
    kills, pending = 0, []
    while not world.coordinator.status.final and kills < 60:
        commits = len(story.files.feedback)
        while not world.coordinator.status.final and len(story.files.feedback) == commits:
            world.turn()
        if world.processes and not world.coordinator.status.final:
            pending.append(story.held_count())
            world.kill(next(iter(world.processes.values())))
            kills += 1
    assert 3 <= kills < 60, f"feedback in checkpoints, in turn: {pending}"
    story.finish(world)
    story.is_right(program.expected(6))


def test_a_checkpoint_takes_with_it_what_was_restored_and_not_read_yet(story: Story) -> None:
    """Of two checkpoints in a row the second one is made while what the first one held still waits."""
    program = PROGRAMS["amplified"]
    world = story.simulation(golden("amplified", 6), conditions=NETWORKS["in small steps"], keep_trace=False)
    until_feedback_is_held(story, world, least=400)
    slow = replace(NETWORKS["in small steps"], budget=(1, 1), delay=(0, 1))
    soon = replace(EVERY_MS, interval=20)
    again = story.again(golden("amplified", 6), conditions=slow, checkpoints=soon, keep_trace=False)
    unread = _unread_at_cuts(again)
    until_feedback_is_held(story, again)
    assert max(unread) > 0
    story.finish(story.again(golden("amplified", 6), parallelism=3, keep_trace=False))
    story.is_right(program.expected(6))


def _unread_at_cuts(world: Any) -> list[int]:
    """How much of what was restored had not been read, at each cut of a head."""
    found: list[int] = []
    before = world.turn

    def turn() -> None:
        cuts = {id(queue): queue.logs.newest_cut for queue in _queues(world)}
        before()
        for queue in _queues(world):
            if queue.logs.newest_cut > cuts.get(id(queue), queue.logs.newest_cut):
                found.append(max(0, queue.returned - queue.taken))

    world.turn = turn
    return found


def _queues(world: Any) -> list[Any]:
    slices = [worker.slice for worker in world.workers() if worker.slice is not None]
    return [queue for one in slices for queue in one.services.feedback.values()]


# Other sizes.


def _many(stream: tr.DataStream) -> Any:
    """Nothing is partitioned by key: what is on its way goes to some subtask or other."""
    down = stream.map(lambda r: (r[0], r[1] - 1)).rebalance().map(tuple)
    return down.filter(lambda r: r[1] > 0), down.filter(lambda r: r[1] <= 0).map(lambda r: r[0])


def forward(env: tr.Environment) -> tr.DataStream:
    """A loop whose feedback belongs to no key, and then a count."""
    source = env.from_source(tr.sources.Sequence(0, 90, rate=9_000))
    return source.map(lambda i: (i, i % 9 + 1)).iterate(_many).key_by(lambda i: i % 7).process(Running())


FORWARD = Counter((key, i) for key in range(7) for i in range(1, len(range(key, 90, 7)) + 1))

LIVES = [(2, 3), (3, 1), (1, 2), (2, 3, 1), (1, 3, 2), (3, 2, 3, 1)]


@pytest.mark.parametrize("sizes", LIVES, ids=str)
@pytest.mark.parametrize("program", ["visited", "forward", "in_sequence", "separate", "in_batches"])
def test_it_goes_on_at_another_parallelism_with_what_was_on_its_way(
    story: Story, program: str, sizes: tuple[int, ...]
) -> None:
    """Each life but the last is left at a checkpoint that holds feedback."""
    _lives(story, program, sizes)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2, 1)], ids=str)
def test_loops_in_loops_go_on_at_another_parallelism(story: Story, sizes: tuple[int, ...]) -> None:
    _lives(story, "nested", sizes)


def _lives(story: Story, program: str, sizes: tuple[int, ...]) -> None:
    n = 24 if program == "nested" else 60
    build = forward if program == "forward" else golden(program, n, 6_000)
    expected = FORWARD if program == "forward" else PROGRAMS[program].expected(n)
    world = story.simulation(build, parallelism=sizes[0], keep_trace=False)
    for size in sizes[1:]:
        until_feedback_is_held(story, world)
        assert story.held_count() >= 1
        world = story.again(build, parallelism=size, seed=size, keep_trace=False)
    story.finish(world)
    assert world.covered["records of feedback restored"] >= 1
    story.is_right(expected, None if program == "forward" else PROGRAMS[program].order)


@pytest.mark.search
@pytest.mark.parametrize("seed", range(9, 13))
def test_a_loop_ends_while_checkpoints_are_given_up(seed: int) -> None:
    """The worker had a barrier to pass on at any time, so it never rested, and did not report the nests that had:
    neither when it had nothing else to do nor when a checkpoint was durable, since none was. The loop did not end
    meanwhile."""
    verdict = run_scenario(given_up(scenario(seed, "nested")))
    assert not verdict.wrong, (verdict.wrong, verdict.waits)
    assert verdict.covered["aborted a checkpoint"] > 20
