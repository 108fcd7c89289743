"""Unaligned checkpoints from outside: jobs that are behind, fail and go on at another parallelism.

What others have of this: of a single task and of the workers of a job without a coordinator
`tests/task/inflight/test_overtaking.py` (caps, time-outs, several at once, aborted), `test_returning.py` (event time,
changed chains) and `test_written.py`; random flows and golden programs `test_overtaking.py` beside this; loops that are
killed while they read what was restored, and a thousand times as much on its way around, `test_loop_faults.py` and
`test_loop_flow.py`; processes that are killed `tests/spark/test_unaligned.py`.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from search.stories import MS, Story
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.task.contract.tuning import Tuning
from tailrace.testing.faults import Fault
from tailrace.testing.simulator import Simulation
from tailrace.testing.storing import Trouble
from tests.simulation.behind import (
    ALIGNED,
    BEHIND,
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
    paced,
    progress_at_failures,
    slow,
    source_ended,
    thousandfold,
    unread_from_before,
    until,
    until_behind,
)  # fmt: skip

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
    monkeypatch.setattr("tailrace.task.channels.outbox.FRAME_RECORDS", {"rows": 3, "columns": 3})


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
    world = story.finish(story.simulation(in_splits, **options))
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
    story.finish(world)
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
        story.finish(world)
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
    story.finish(world)
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
        story.finish(world)
        story.is_right(FLOWS["by key"].expected, FLOWS["by key"].order)
    assert exceeded


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_input_ends_while_what_was_in_flight_is_read(story: Story, policy: str) -> None:
    """A4: the sources have ended, and end again in each start: what is still unread does not end with them. Workers die in
    the middle of it."""
    settings = replace(SETTINGS, interval=60, **POLICIES[policy])
    ended = 0
    for seed in range(8):
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
        story.finish(world)
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
    story.finish(world)
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


# At every moment.

IN_A_CHECKPOINT = ("Trigger 3", "chk-3/", "Ack 3", "commit 3", "commit 3 done", "Complete 3", "Publish", "delete")
IN_A_RECOVERY = (
    "claim",
    "Reset",
    "Welcome",
    "read state",
    "read state done",
    "Deployed",
    "Start",
    "RUNNING",
    "encoded",
)


@pytest.mark.parametrize("kind", ["kill", "respawn", "cut-link", "crash-driver", "storage"])
@pytest.mark.parametrize("moment", IN_A_CHECKPOINT)
def test_it_may_fail_at_every_step_of_a_checkpoint(story: Story, moment: str, kind: Any) -> None:
    """A1: the third one, when there are records in flight."""
    fault = Fault(0, kind, which=1, duration=6, after=moment, chance=1.0, outcome="any")
    settings = replace(SETTINGS, overtakes_after=0)
    for seed in range(2):
        story = Story.begin(story.ledger.name)
        options = {**NARROW, "keep_trace": True, "checkpoints": settings, "seed": seed}
        world = story.finish(story.simulation(keyed, parallelism=3, faults=[fault], **options))
        assert struck(world) and story.files.overtaken
        story.is_right(FLOWS["by key"].expected, FLOWS["by key"].order)


@pytest.mark.parametrize("kind", ["kill", "respawn", "cut-link", "crash-driver", "storage"])
@pytest.mark.parametrize("moment", IN_A_RECOVERY)
def test_it_may_fail_at_every_step_of_a_recovery(story: Story, moment: str, kind: Any) -> None:
    """A1: from a checkpoint with records in flight."""
    settings = replace(SETTINGS, overtakes_after=0)
    for seed in range(2):
        story = Story.begin(story.ledger.name)
        options = {**NARROW, "keep_trace": True, "checkpoints": settings, "seed": seed}
        world = story.simulation(keyed, parallelism=3, **options)
        assert until_behind(story, world, 1_000)
        world.kill(next(iter(world.processes.values())))
        assert world.run_until(moment)
        world.strike(Fault(0, kind, which=1, duration=6, chance=1.0, outcome="any"))
        story.finish(world)
        assert world.covered["restarted"] or world.covered["crashed the driver"]
        story.is_right(FLOWS["by key"].expected, FLOWS["by key"].order)


def struck(world: Simulation) -> bool:
    """Whether a fault has come."""
    return any(
        world.covered[what]
        for what in ("killed", "respawned", "cut a link", "crashed the driver", "storage in trouble")
    )


# Long runs.


@pytest.mark.parametrize("seed", range(12))
def test_a_job_that_fails_every_few_checkpoints_is_exactly_once(
    story: Story, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3: a dataflow, a policy, a network and channels of some width; up to three checkpoints under way at once; a failure
    of some kind after two to ten checkpoints, and now and then another size."""
    chance = random.Random(f"stress {seed}")
    rows = chance.choice([1, 3, 20])
    monkeypatch.setattr("tailrace.task.channels.outbox.FRAME_RECORDS", {"rows": rows, "columns": rows})
    made = FLOWS[chance.choice(sorted(FLOWS))]
    policy = chance.choice(sorted(POLICIES))
    commit = chance.randint(2, 4)
    faults = [Fault(0, "kill", after=f"commit {commit} done")]
    while commit < 60:
        commit += chance.randint(2, 10)
        kind: Any = chance.choice(["kill", "kill", "respawn", "cut-link", "crash-driver", "move", "freeze", "delay"])
        chosen = chance.randrange(6), chance.randrange(6)
        faults.append(Fault(chance.randint(0, 60), kind, *chosen, duration=2 * MS, after=f"commit {commit} done"))
    sizes = [chance.choice([1, 2, 3]) for _ in range(3)]
    failures = 0
    for life, size in enumerate(sizes):
        conditions = replace(BEHIND, delay=chance.choice([(0, 20), (20, 400), (100, 900)]))
        options: dict[str, Any] = {
            "conditions": conditions,
            "checkpoints": replace(SETTINGS, interval=MS // 5, max_concurrent=3, **POLICIES[policy]),
            "tuning": Tuning(window=chance.choice([1, 100, 400])),
            "faults": faults,
            "patience": 60_000,
            "seed": 10 * seed + life,
        }
        start = story.again if life else story.simulation
        world = start(lambda env, life=life: made.build(env, life), parallelism=size, **options)
        if life < 2:
            until(world, lambda stop=story.files.commits + chance.randint(4, 20): story.files.commits >= stop)
        else:
            story.finish(world)
        failures += struck(world)
    story.is_right(made.expected, made.order)
    assert story.files.overtaken and failures


# Several at once, and those that come to nothing.


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_of_several_checkpoints_under_way_each_has_all_that_was_in_flight_at_its_cut(story: Story, policy: str) -> None:
    """Files are slow, so several are under way, and a failure finds now this one complete, now that one."""
    settings = replace(SETTINGS, interval=40, max_concurrent=3, **POLICIES[policy])
    kills = [Fault(number, "kill", number, after=f"commit {4 * number} done") for number in range(1, 8)]
    world = story.finish(story.simulation(keyed, parallelism=3, checkpoints=settings, faults=kills, seed=1, **NARROW))
    assert world.covered["several checkpoints under way"] >= 5 and story.files.overtaken >= 5
    story.is_right(FLOWS["by key"].expected, FLOWS["by key"].order)


def test_checkpoints_that_come_to_nothing_leave_no_records_behind(story: Story) -> None:
    """The storage refuses to end a file, again and again: each of these checkpoints had records in flight, and lets go of
    them. Those that are complete afterwards have all they need."""
    settings = replace(SETTINGS, interval=60, max_concurrent=2, overtakes_after=0)
    world = story.simulation(slow, parallelism=3, checkpoints=settings, **NARROW)
    assert until(world, lambda: story.files.commits >= 2)
    world.strike(Fault(0, "storage", duration=20_000, chance=1.0, only="close"))
    held = []
    for aborts in (30, 60, 90):
        assert until(world, lambda aborts=aborts: world.covered["aborted a checkpoint"] >= aborts)
        found = [task.checkpoints.inflight for worker in world.workers() for task in worker.tasks()]
        shelves = [one for one in found if one is not None]
        logs = sum(len(one.open) for inflight in shelves for one in inflight._received.values())
        held.append((logs, sum(inflight._shelf.memory for inflight in shelves)))
    assert held[-1][1] <= 2 * max(size for _, size in held[:-1]) and held[-1][0] <= 10
    world.storage.trouble = Trouble()
    commits = story.files.commits
    assert until(world, lambda: story.files.commits >= commits + 3)
    world.kill(next(iter(world.processes.values())))
    assert until(world, lambda: story.files.commits >= commits + 6)
    assert story.files.wrong == []


# Much comes of little.


@pytest.mark.parametrize("policy", ["unaligned", "after a time-out"])
@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_thousand_records_of_each_go_through_windows_of_one_frame(
    story: Story, parallelism: int, policy: str, small_frames: None
) -> None:
    """T8: nobody waits for anybody in a circle, and checkpoints are made all the time, also when a worker has died. (With a
    cap below what one step emits they wait for that.)"""
    settings = replace(SETTINGS, **POLICIES[policy])
    options = {**NARROW, "tuning": Tuning(window=1), "parallelism": parallelism, "checkpoints": settings}
    world = story.simulation(thousandfold, **options)
    for commits in range(1, 40):
        before = world.turns
        assert until(world, lambda commits=commits: story.files.commits >= commits)
        assert world.turns - before < 4_000, f"{story.files.commits} checkpoints were made, and then none any more"
        if commits in (5, 20) and world.processes:
            world.kill(next(iter(world.processes.values())))
    assert story.files.overtaken >= 20
    story.finish(world)
    story.is_right(Counter((x, i) for x in range(4) for i in range(1_000)))


# The cap and the time-out.


def test_no_more_is_in_flight_than_the_cap_allows_each_subtask(story: Story) -> None:
    """As far as nothing has come back. Without a cap the same job has more."""
    most = {}
    for cap in (-1, 500):
        story = Story.begin(story.ledger.name)
        settings = replace(SETTINGS, interval=100, overtakes_after=0, most_inflight=cap)
        world = story.simulation(keyed, parallelism=2, checkpoints=settings, **NARROW)
        sizes: list[int] = []

        def committed(story: Story = story, sizes: list[int] = sizes) -> bool:
            if story.files.commits > len(sizes):
                sizes.append(max(newest(story).in_flight.values(), default=0))
            return False

        until(world, committed)
        story.finish(world)
        most[cap] = max(sizes)
    subtasks = 2 * 2  # readers, and those who send to them
    assert 0 < most[500] <= 500 * subtasks < most[-1]


def test_with_a_time_out_only_a_job_that_is_behind_overtakes(story: Story) -> None:
    settings = replace(SETTINGS, overtakes_after=3 * MS)
    for rate, policies in ((1_000, {"aligned"}), (None, {"aligned", "unaligned"})):
        world = Story.begin(story.ledger.name).simulation(paced(rate), parallelism=2, checkpoints=settings, **NARROW)
        until(world, lambda world=world: world.turns > 6_000)
        found = {one.policy for one in world.coordinator.checkpoints.past}
        assert found <= policies and ("unaligned" in found) == ("unaligned" in policies)
