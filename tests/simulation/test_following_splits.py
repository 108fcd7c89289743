"""Splits that follow one another in simulated jobs: the event time that they hold, and reports to their enumerator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import tailrace as tr
from tailrace.testing.faults import Fault
from tests.simulation.rounds import COMMITTED, LANES, ROUNDS, Rounds, everything

WAYS = ["restarted", "replaced", "hot"]


class Seen(tr.ProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        yield value, ctx.watermark


def run(
    seed: int,
    way: str = "restarted",
    faults: Sequence[Fault] = (),
    parallelism: int = 2,
    max_drift: float | None = None,
    **options: Any,
) -> tuple[Any, list[int], list[Any]]:
    """A job that reads rounds; what was committed, and its records, each with the watermark in front of it."""
    standby = None
    if way != "restarted":
        standby = tr.StandbyConfig(replicas=0) if way == "replaced" else tr.StandbyConfig(mode="hot")
    checkpoint = tr.CheckpointConfig("memory", interval=0.003)
    env = tr.Environment(parallelism=parallelism, checkpoint=checkpoint, standby=standby, restart=tr.FixedDelay(100, 0))
    source = Rounds(**options)
    timed = env.from_source(source, uid="rounds").assign_timestamps(lambda record: record[1], max_drift=max_drift)
    out = timed.rebalance().process(Seen(), parallelism=1).sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=seed, faults=faults)
    assert job.await_termination()
    return job, COMMITTED[source.number], list(out.result())


def late(found: list[Any]) -> int:
    return sum(watermark >= record[1] for record, watermark in found)


@pytest.mark.parametrize("way", WAYS)
def test_no_lane_is_late_however_far_the_others_were_in_the_round_before(way: str) -> None:
    """The fastest lane is nine times as far as the slowest one at the end of each round. Each is read in a subtask of its
    own, or with another one, and workers are lost."""
    lost = 0
    for seed in range(2):
        for parallelism in (LANES, 2):
            faults = [Fault(120 + 90 * seed, "kill", which=seed)]
            job, _, found = run(seed, way, faults, parallelism)
            assert sorted(record for record, _ in found) == everything()
            assert late(found) == 0, (seed, parallelism)
            lost += job.simulation.covered["restarted"] + job.simulation.coordinator.takeovers.count
    assert lost >= 2


def test_without_that_lanes_are_late() -> None:
    assert sum(late(run(seed, parallelism=LANES, follow=False)[2]) for seed in range(4)) > 0


@pytest.mark.parametrize("way", WAYS)
def test_an_enumerator_is_informed_of_what_complete_checkpoints_have(way: str) -> None:
    for seed in range(2):
        _, committed, found = run(seed, way, [Fault(150 + 60 * seed, "kill", which=seed)])
        assert sorted(record for record, _ in found) == everything()
        assert committed == sorted(committed) and committed[-1] == ROUNDS, seed


def test_an_enumerator_whose_completed_raises_fails_no_job() -> None:
    job, committed, _ = run(1, failing=True)
    assert committed[-1] == ROUNDS
    assert any("failed_completions" in str(one) for one in [job.metrics()])


def test_a_lane_that_waits_for_the_next_round_holds_no_other_one_that_is_far_ahead() -> None:
    for parallelism in (1, LANES):
        _, _, found = run(1, parallelism=parallelism, max_drift=20)
        assert sorted(record for record, _ in found) == everything()


class FiredAt(tr.KeyedProcessFunction):
    """Sets a timer at the time of each record plus ten seconds, and gives how long it took by the clock."""

    began = tr.ValueState(float)

    def process(self, value: Any, ctx: tr.Context) -> None:
        self.began.value = ctx.now()
        ctx.set_timer(event_time=ctx.timestamp + 10)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield timestamp, ctx.now() - self.began.value


@pytest.mark.parametrize("parallelism", [1, 2])
def test_lanes_without_another_round_are_silent_in_the_end(parallelism: int) -> None:
    """Event time goes on by the clock then, long before the source ends."""
    env = tr.Environment(parallelism=parallelism)
    timed = env.from_source(Rounds(pause=200.0)).assign_timestamps(
        lambda record: record[1], idle_after=4, when_all_idle="advance"
    )
    out = timed.key_by(lambda record: record[0]).process(FiredAt(), parallelism=1).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=1).await_termination()
    newest = max(out.result())
    assert newest[0] == max(time for _, time in everything()) + 10 and 13.9 < newest[1] < 17
