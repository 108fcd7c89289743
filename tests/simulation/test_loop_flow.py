"""Loops under pressure: nobody waits forever, whatever comes back; and how much the end costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from search.scenarios import LIMITS
from search.stories import EVERY_MS, Story
from search.watchers.loops import LoopWatch
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.task.contract.tuning import Tuning
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.world import Conditions

# Nobody starves.


@pytest.mark.parametrize("priority", ["feedback-first", "adaptive"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_where_feedback_never_runs_dry_checkpoints_are_made_all_the_same(
    story: Story, priority: Any, parallelism: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records run around a small loop all the time, so many that every frame is full at once, as it is to the machines
    here; each checkpoint is there within a bounded number of turns."""
    monkeypatch.setattr("tailrace.task.channels.outbox.FRAME_RECORDS", {"rows": 1, "columns": 1})

    def program(env: tr.Environment) -> tr.DataStream:
        def body(hops: tr.DataStream) -> Any:
            down = hops.map(lambda left: left - 1).rebalance().map(lambda left: left)
            return down.filter(lambda left: left > 0), down.filter(lambda left: left <= 0)

        numbers = env.from_source(tr.sources.Sequence(0, None, rate=100))
        return numbers.rebalance().map(lambda i: 3_000).rebalance().iterate(body, priority=priority)

    files = story.files
    world = story.simulation(program, parallelism=parallelism, keep_trace=False)
    world.start()
    while files.commits < 12:
        before, commits = world.turns, files.commits
        while files.commits == commits:
            world.turn()
            assert not world.coordinator.status.final, world.coordinator.cause
            assert world.turns - before < 3_000, f"{files.commits} checkpoints were made, and then none any more"
    assert all(files.feedback[4:]), "the loop was busy at every one of them"


def test_a_source_that_always_has_records_leaves_others_their_turn(story: Story) -> None:
    """Two pipelines in one worker, with sources that never pause. One of them was stepped again and again: the other one
    read nothing, and did not cut, so that no checkpoint was complete either."""

    def program(env: tr.Environment) -> tr.DataStream:
        one, other = (env.from_source(tr.sources.Sequence(0, None)).filter(lambda i: i < 0) for _ in range(2))
        one.sink_to(tr.sinks.Callback(lambda i: None))
        return other

    files = story.files
    world = story.simulation(program, parallelism=1, keep_trace=False)
    world.start()
    for commits in range(1, 6):
        before = world.turns
        while files.commits < commits:
            world.turn()
            assert not world.coordinator.status.final, world.coordinator.cause
            assert world.turns - before < 3_000, f"{files.commits} checkpoints were made, and then none any more"
    [worker] = world.workers()
    assert worker.slice is not None
    read = sorted(task.work.records_in for task in worker.slice.tasks if task.chain.source is not None)
    assert read[0] > 0 and read[1] < 3 * read[0]


# Much comes back.

HOPS = 2


@pytest.mark.parametrize("overtakes", [-1, 0], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_thousand_times_as_much_comes_back_through_windows_of_one_frame(
    story: Story, parallelism: int, overtakes: int
) -> None:
    """Nobody waits for anybody in a circle, checkpoints are made meanwhile, and memory stays within its bound."""
    memory = 2_000

    def program(env: tr.Environment) -> tr.DataStream:
        def body(stream: tr.DataStream) -> Any:
            more = stream.partition_by(lambda r: r[0] + r[1]).flat_map(_thousandfold).rebalance().map(lambda r: r)
            return more.filter(lambda r: r[1] >= 0), more.filter(lambda r: r[1] < 0)

        hops = env.from_source(tr.sources.Sequence(0, HOPS, rate=500)).map(lambda i: (i, -1))
        return hops.iterate(body, spill=tr.Spill(memory_bytes=memory))

    settings = replace(EVERY_MS, overtakes_after=overtakes)
    world = story.simulation(
        program, parallelism=parallelism, checkpoints=settings, keep_trace=False, tuning=Tuning(window=1)
    )
    most, before = 0, world.turn

    def turn() -> None:
        nonlocal most
        before()
        for worker in world.workers():
            for queue in worker.slice.services.feedback.values() if worker.slice is not None else ():
                most = max(most, queue.memory)

    world.turn = turn  # type: ignore[method-assign]
    story.finish(world)
    assert 0 < most <= memory
    assert world.covered["records of feedback spilled"] > 1_000
    assert sum(1 for held in story.files.feedback if sum(held.values()) > 100) >= 2
    story.is_right(Counter((i, -2 - part) for i in range(HOPS) for part in range(1_000)))


def _thousandfold(r: Any) -> Any:
    return [(r[0], part) for part in range(1_000)] if r[1] == -1 else [(r[0], -2 - r[1])]


# What the end costs.


def test_the_end_is_found_at_the_same_cost_after_one_lap_and_after_ten_thousand(story: Story) -> None:
    """From the last record on: so many waves, and so many turns."""
    costs = [_cost_of_the_end(laps) for laps in (1, 100, 10_000)]
    waves, turns = zip(*costs, strict=True)
    assert len(set(waves)) == 1, "waves are not begun while the loop is busy, nor more of them afterwards"
    assert max(turns) <= 2 * min(turns)


def _cost_of_the_end(laps: int) -> tuple[int, int]:
    env = tr.Environment(parallelism=2)

    def body(stream: tr.DataStream) -> Any:
        down = stream.map(lambda left: left - 1).rebalance().map(lambda left: left)
        return down.filter(lambda left: left > 0), down.filter(lambda left: left <= 0)

    out = env.from_collection([laps], parallelism=1).iterate(body).map(lambda left: left).sink_to(tr.sinks.Collect())
    conditions = Conditions(delay=(50, 50), step_cost=(1, 1), budget=(64, 64))
    world = prepared_simulation(env, name="laps", conditions=conditions, limits=LIMITS)
    watch = LoopWatch(world)
    world.start()
    last = 0
    while not world.coordinator.status.final:
        read = sum(
            task.work.records_in
            for worker in world.workers()
            for task in worker.tasks()
            if task.loop.place.nest is not None
        )
        world.turn()
        now = sum(
            task.work.records_in
            for worker in world.workers()
            for task in worker.tasks()
            if task.loop.place.nest is not None
        )
        if now > read:
            last = world.turns
    assert watch.wrong == [] and world.coordinator.status is JobStatus.FINISHED
    assert out is not None
    return world.covered["began a wave"], world.turns - last
