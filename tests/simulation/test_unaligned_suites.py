"""Unaligned checkpoints from outside: jobs that are behind, fail and go on at another parallelism.

What others have of this: of a single task and of the workers of a job without a coordinator `tests/task/test_overtaking.py`
(caps, time-outs, several at once, aborted), `test_returning.py` (event time, changed chains) and `test_written.py`; random
flows and golden programs `test_overtaking.py` beside this; loops that are killed while they read what was restored, and a
thousand times as much on its way around, `test_loop_faults.py` and `test_loop_flow.py`; processes that are killed
`tests/spark/test_unaligned.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.simulation.behind import (
    ALIGNED,
    BUSY,
    FLOWS,
    NARROW,
    POLICIES,
    SETTINGS,
    SOME,
    TROUBLE,
    few,
    from_before,
    in_flight,
    in_place,
    in_splits,
    keyed,
    newest,
    progress_at_failures,
    slow,
    source_ended,
    unread_from_before,
    until,
    until_behind,
)  # fmt: skip

from tailrace.coordinator.lifecycle import JobStatus
from tailrace.task.tuning import Tuning
from tailrace.testing.stories import MS, Story

# What a user's code does wrong.

SCHEDULES: list[dict[str, list[int]]] = [
    {"map": [60, 150, 90]},
    {"snapshot": [2, 2, 1]},
    {"map": [50, 40], "restore": [1, 2]},
    {"map": [40, 100], "open": [2, 1], "snapshot": [3]},
    {"map": [30, 100], "close": [1, 2]},
]
"""Where, and how many calls after the one that failed before."""


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few records fill a frame that sources wait for whoever is slow."""
    monkeypatch.setattr("tailrace.task.outbox.FRAME_RECORDS", {"rows": 3, "columns": 3})


@pytest.fixture
def trouble() -> Iterator[dict[str, list[int]]]:
    yield TROUBLE
    TROUBLE.clear()


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("parallelism", [1, 3], ids=["within a worker", "between workers"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: " ".join(one))
def test_wherever_a_function_fails_each_split_comes_whole_once_and_in_order(
    story: Story,
    trouble: dict[str, list[int]],
    schedule: dict[str, list[int]],
    parallelism: int,
    policy: str,
    small_frames: None,
) -> None:
    """A1: functions fail in the middle of records, at a cut, at a restore, when they open and when they close; a frame
    fills a channel."""
    trouble.update({where: list(times) for where, times in schedule.items()})
    settings = replace(SETTINGS, interval=MS // 10, **POLICIES[policy])
    options = {**NARROW, "tuning": Tuning(window=1), "parallelism": parallelism, "checkpoints": settings}
    world = story.finished(story.simulation(in_splits, **options))
    assert not any(trouble.values()), "everything failed that was to"
    assert world.covered["restarted"] >= 2
    assert story.files.commits >= 5 and story.files.overtaken >= 2
    story.is_right(in_place(SOME), lambda record: record[:2])


# Other sizes, again and again.

LIVES = [(2, 3, 2), (3, 1, 2), (1, 3, 2), (2, 2, 3, 1)]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("flow", sorted(FLOWS))
def test_a_job_goes_on_at_other_sizes_before_it_has_read_what_was_in_flight(
    story: Story, flow: str, policy: str
) -> None:
    """A2: each life but the last one is left at a checkpoint with records in flight; of those in between, some had been in
    flight at the one before, too."""
    twice = 0
    for seed, sizes in enumerate(LIVES):
        twice += _lives(Story.begin(story.ledger.name), flow, policy, sizes, seed)
    assert twice, "some job was left twice before it had read what was in flight"


def _lives(story: Story, flow: str, policy: str, sizes: tuple[int, ...], seed: int) -> int:
    """How many records two checkpoints in a row had in flight, both of which a job went on from."""
    made, twice, settings = FLOWS[flow], 0, replace(SETTINGS, **POLICIES[policy])
    for life, size in enumerate(sizes):
        start, last = story.again if life else story.simulation, life == len(sizes) - 1
        soon = {
            **BUSY,
            "checkpoints": replace(settings, interval=50),
        }  # functions that take long have read little by then
        options = soon if life and not last else {**NARROW, "checkpoints": settings}
        world = start(lambda env, life=life: made.build(env, life), parallelism=size, seed=10 * seed + life, **options)
        if not last:
            assert until_behind(story, world)
            twice += from_before(story)
    story.finished(world)
    story.is_right(made.expected, made.order)
    return twice


def test_each_policy_goes_on_from_each_other(story: Story) -> None:
    """A4: also one with aligned checkpoints, whose first one waits until all that was in flight is read."""
    policies = {**POLICIES, "aligned": ALIGNED}
    for seed, (before, after) in enumerate(itertools.product(policies, policies)):
        story = Story.begin(story.ledger.name)
        world = story.simulation(keyed, checkpoints=replace(SETTINGS, **policies[before]), seed=seed, **NARROW)
        assert until_behind(story, world, 0 if before == "aligned" else 1)
        origin = newest(story).checkpoint
        world = story.again(
            keyed, checkpoints=replace(SETTINGS, **policies[after]), seed=seed, parallelism=1 + seed % 3, **NARROW
        )
        commits = story.files.commits
        assert until(world, lambda commits=commits, story=story: story.files.commits > commits)
        assert newest(story).checkpoint > origin
        assert after != "aligned" or not newest(story).in_flight
        story.finished(world)
        story.is_right(FLOWS["by key"].expected, FLOWS["by key"].order)


# While it recovers.


@pytest.mark.parametrize("flow", sorted(set(FLOWS) - {"broadcast"}))
def test_a_checkpoint_is_complete_before_what_was_in_flight_is_read(story: Story, flow: str) -> None:
    """A4: it has what is left of that, and the next start goes on from there; nobody waits until all of it is read."""
    made, settings = FLOWS[flow], replace(SETTINGS, overtakes_after=0)
    world = story.simulation(lambda env: made.build(env, 0), checkpoints=settings, **NARROW)
    assert until_behind(story, world, 1_000)
    early = 0
    for life in range(1, 5):
        origin, commits = newest(story).checkpoint, story.files.commits
        world = story.again(
            lambda env: made.build(env, 0), checkpoints=replace(settings, interval=20), seed=life, **BUSY
        )
        assert until(world, lambda commits=commits: story.files.commits > commits)
        assert newest(story).checkpoint > origin
        early += unread_from_before(world) > 0
    story.finished(world)
    story.is_right(made.expected, made.order)
    assert early >= 2


def test_what_came_back_does_not_count_for_the_cap(story: Story) -> None:
    """A4: one subtask has to read what was in flight to three, more than the cap allows it; its checkpoints do not wait."""
    settings, exceeded = replace(SETTINGS, overtakes_after=0, most_inflight=700), 0
    for seed in range(4):
        story = Story.begin(story.ledger.name)
        world = story.simulation(keyed, checkpoints=settings, parallelism=3, seed=seed, **NARROW)
        if until_behind(story, world, 1_400):
            world = story.again(keyed, checkpoints=replace(settings, interval=20), parallelism=1, seed=seed, **BUSY)
            commits = story.files.commits
            assert until(world, lambda commits=commits, story=story: story.files.commits > commits)
            exceeded += unread_from_before(world) > 0 and in_flight(story) > 700
        story.finished(world)
        story.is_right(FLOWS["by key"].expected, FLOWS["by key"].order)
    assert exceeded


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_input_ends_while_what_was_in_flight_is_read(story: Story, policy: str) -> None:
    """A4: the sources have ended, and end again in each start: what is still unread does not end with them. Workers die in
    the middle of it."""
    settings = replace(SETTINGS, interval=60, **POLICIES[policy])
    ended = 0
    for seed in range(4):
        story = Story.begin(story.ledger.name)
        world = story.simulation(few, checkpoints=settings, seed=seed, parallelism=3, **NARROW)
        sizes = [2, 3, 2]
        if not until(world, lambda story=story: story.files.newest and in_flight(story) and source_ended(story)):
            sizes = []
        for life, size in enumerate(sizes):
            world = story.again(few, checkpoints=settings, seed=10 * seed + life, parallelism=size, **BUSY)
            if until(world, lambda world=world: unread_from_before(world)):
                world.kill(next(iter(world.processes.values())))
                until(world, lambda world=world: world.coordinator.status is JobStatus.RUNNING)
                ended += unread_from_before(world) > 0 and source_ended(story)
        story.finished(world)
        story.is_right(in_place(SOME), FLOWS["by key"].order)
    assert ended, "something was unread again when the job had started once more"


# Again and again.


@pytest.mark.parametrize("flow", ["by key", "rebalance", "two inputs", "union"])
def test_killed_whenever_a_checkpoint_is_complete_it_gets_ahead_all_the_same(
    story: Story, flow: str, small_frames: None
) -> None:
    """T7: workers die at the first checkpoint after each start, mostly before they have read what was in flight at the one
    before. What is published only grows, and the job ends."""
    made, settings = FLOWS[flow], replace(SETTINGS, interval=50, overtakes_after=0)
    world = story.simulation(lambda env: made.build(env, 0), checkpoints=settings, **BUSY)
    kills = early = 0
    published, numbers = [0], [0]
    while kills < 40:
        commits = story.files.commits
        assert until(world, lambda commits=commits: story.files.commits > commits)
        early += from_before(story) > 0
        published.append(len(story.ledger.book.records()))
        numbers.append(newest(story).checkpoint)
        if world.processes:
            world.kill(list(world.processes.values())[kills % len(world.processes)])
            kills += 1
    assert published == sorted(published) and numbers == sorted(set(numbers))
    assert early >= 10 and all(before < after for before, after in zip(published, published[10:], strict=False))
    story.finished(world)
    story.is_right(made.expected, made.order)


PERIOD = 12 * MS
"""From one failure to the next: to start anew takes a part of it, and to read what is on its way about half."""


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_crashing_job_that_is_behind_makes_progress_all_the_time(
    story: Story, policy: str, small_frames: None
) -> None:
    """A failure every few milliseconds, where each message takes some tenths of one, of a job that makes many records of
    each behind a source that never waits: the source is farther in the newest checkpoint each time, and what is in flight
    does not grow. It had grown with each start: checkpoints became slow, and with a cap there were none any more."""
    settings = replace(SETTINGS, interval=MS // 2, **POLICIES[policy])
    world = story.simulation(slow, checkpoints=settings, parallelism=3, **NARROW)
    reached, sizes = progress_at_failures(story, world, PERIOD, 25)
    assert all(before < after for before, after in itertools.pairwise(reached))
    assert max(sizes[12:]) <= 2 * max(sizes[:5])


def test_with_aligned_checkpoints_the_same_job_makes_none(story: Story, small_frames: None) -> None:
    """So that the test above has something to show."""
    world = story.simulation(slow, checkpoints=replace(SETTINGS, interval=MS // 2), parallelism=3, **NARROW)
    reached, _ = progress_at_failures(story, world, PERIOD, 20)
    assert set(reached) == {0}
