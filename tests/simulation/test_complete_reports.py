"""Functions that are informed of complete checkpoints: they acknowledge records at a broker, which gives none of those out
again. Whatever is lost, no record is acknowledged that comes again, and in the end all are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import tailrace as tr
from search.campaigns.replacements import following, replacing
from search.campaigns.rescales import elastic, rescaled
from search.drawn_faults import calm_clocks
from search.programs.golden import PROGRAMS, Program
from search.scenarios import Scenario, run_scenario, scenario
from tailrace.task.failover.replay import Again
from tailrace.task.subtask import machine
from tailrace.task.subtask.complete_reports import CompleteReports
from tailrace.task.subtask.machine import Task
from tailrace.testing.faults import Fault
from tests.simulation.brokers import (
    BROKER,
    SEEN,
    Batching,
    Broker,
    ByKey,
    Emitting,
    Filtering,
    Informed,
    Joining,
    Kept,
    Larger,
    Mapping,
    N,
    Processing,
    Windowed,
    acknowledged,
)
from tests.simulation.test_stops import Aim, WatchedFiles, ask, world_of
from tests.simulation.test_stops import book as book

KINDS = {"kill", "respawn", "raise", "storage", "hang", "checkpoint", "delay", "lose-coordinator"}
"""Faults behind which nobody works on who only seemed to be lost."""


@pytest.fixture(autouse=True)
def broker() -> Iterator[Broker]:
    BROKER.__init__()  # type: ignore[misc]
    yield BROKER


PROGRAM = Program(
    acknowledged, lambda n: Counter((key, i) for key in range(7) for i in range(1, len(range(key, n, 7)) + 1)), n=N
)


def restarting(made: Scenario) -> Scenario:
    return replace(made, faults=tuple(fault for fault in made.faults if fault.kind in KINDS))


def resizing(made: Scenario) -> Scenario:
    """The job changes its size: on request, or with the task slots that there are."""
    made = (rescaled, elastic)[made.seed % 2](made)
    return replace(made, faults=tuple(fault for fault in made.faults if fault.kind in {*KINDS, "rescale", "slots"}))


WAYS: dict[str, Callable[[Scenario], Scenario]] = {
    "restarted": restarting, "replaced": replacing, "hot": following, "resized": resizing,
}  # fmt: skip


def carry_out(seed: int, way: str, kinds: Counter[str] | None = None) -> list[str]:
    """What is wrong with a run of a drawn scenario."""
    BROKER.__init__()  # type: ignore[misc]
    with mock.patch.dict(PROGRAMS, {"acknowledged": PROGRAM}):
        made = scenario(seed, "acknowledged")
        if made.checkpoints is None:
            return []
        made = replace(WAYS[way](made), started_again=0)
        made = replace(made, faults=calm_clocks(made.faults))  # else it is run again without them
        verdict = run_scenario(made)
    lacking = set(range(N)) - set(BROKER.acknowledged)
    found = [*verdict.wrong, *BROKER.wrong]
    if lacking and not made.faults:
        found.append(f"{sorted(lacking)} were never acknowledged")
    if kinds is not None:
        kinds.update(verdict.covered)
        kinds["acknowledged before the end"] += len(set(BROKER.numbers)) > 1
        kinds["all acknowledged"] += not lacking
        kinds["runs"] += 1
    return found


@pytest.mark.search
@pytest.mark.parametrize("way", WAYS)
def test_no_record_is_acknowledged_that_comes_again_whoever_is_lost(way: str, exhaustive: bool) -> None:
    covered: Counter[str] = Counter()
    for seed in range(400, 600 if exhaustive else 405):
        assert carry_out(seed, way, covered) == [], seed
    assert covered["acknowledged before the end"] > covered["runs"] / 2
    assert covered["all acknowledged"] > covered["runs"] * 0.8, covered


def _at_the_cut() -> Any:
    """Bug: functions are informed of a checkpoint when their subtask has made its cut."""
    cut = Task._cut

    def informing(self: Task, now: int, budget: int) -> None:
        cut(self, now, budget)
        assert self.checkpoints.just_cut is not None
        self.reports.note(self.checkpoints.just_cut.number)

    order = tuple(turn._replace(act=informing) if turn.act is cut else turn for turn in machine.ORDER)
    return mock.patch.multiple(machine, ORDER=order)


def _not_in_a_replay() -> Any:
    """Bug: a replay does not inform functions."""
    call = CompleteReports.call

    def silent(self: CompleteReports) -> None:
        if self.called[0].ctx.services.outside.repeats:
            self.due = 0
        else:
            call(self)

    return mock.patch.object(CompleteReports, "call", silent)


def _once_more_behind_a_replay() -> Any:
    """Bug: what the lost worker was informed of its replacement is informed of once more."""
    go_on = Again.go_on

    def going_on(self: Again) -> bool:
        over = go_on(self)
        for task in self.slice.tasks if over else ():
            task.reports.due = task.reports.reported
        return over

    return mock.patch.object(Again, "go_on", going_on)


PLANTED = {
    "at the cut": (_at_the_cut, "restarted"),
    "not in a replay": (_not_in_a_replay, "replaced"),
    "once more behind a replay": (_once_more_behind_a_replay, "replaced"),
}


@pytest.mark.search
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_of_the_reports_is_found(bug: str) -> None:
    plant, way = PLANTED[bug]
    with plant():
        assert any(carry_out(seed, way) for seed in range(400, 440))


def test_at_a_stop_each_subtask_is_informed_before_the_job_has_finished(book: Any) -> None:
    for turns in (0, 40, 90):
        BROKER.__init__()  # type: ignore[misc]
        book.__init__()
        with mock.patch.dict(PROGRAMS, {"acknowledged": PROGRAM}):
            made = Scenario(turns, "acknowledged", 240, 2, rate=12_000, checkpoints=scenario(3, "counted").checkpoints)
            world = world_of(made, WatchedFiles([book]))
            assert world.run_until("v1[0] read")
            for _ in range(turns):
                world.turn()
            ask(world, Aim(), [])
            while not world.coordinator.status.final:
                world.turn()
        assert BROKER.numbers.count(max(BROKER.numbers)) == 2, "each subtask once"
        assert 0 < len(BROKER.acknowledged) == len(book.records()) < 240
        assert set(BROKER.acknowledged.values()) == {1} and BROKER.wrong == []


def test_each_kind_of_function_is_informed_of_each_complete_checkpoint() -> None:
    SEEN.clear()
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("memory", interval=0.01))
    numbers = env.from_source(tr.sources.Sequence(0, 300, rate=3_000))
    few = env.from_collection([1, 2])
    keyed = numbers.map(Mapping()).filter(Filtering()).process(Processing()).key_by(lambda n: n % 5)
    columns = numbers.map(lambda n: (n,)).to_columns(pa.schema({"n": pa.int64()})).map_batches(Batching())
    timed = numbers.assign_timestamps(lambda n: n).key_by(lambda n: n % 5)
    streams = [
        columns.to_rows(),
        keyed.reduce(Larger()),
        keyed.aggregate(Kept()),
        numbers.connect(few).process(Joining()),
        numbers.connect(few.broadcast()).process(Informed()),
        timed.window(tr.Tumbling(20)).process(Windowed()),
        timed.window(tr.CountWindow(7)).aggregate(Kept()),
    ]
    for stream in streams:
        stream.sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=4)
    assert job.await_termination()
    assert SEEN.pop("prepared") == [0, 0]
    last = job.simulation.coordinator.checkpoints.completed
    assert last > 5
    kept = SEEN.pop("Kept")  # of two operators
    assert Counter(kept) == Counter(kept[: len(kept) // 2] * 2) or len(kept) > 2 * last
    assert len(SEEN) == 8 and {max(numbers) for numbers in SEEN.values()} == {max(kept)}
    for name, found in SEEN.items():
        assert set(Counter(found).values()) <= {1, 2}, (name, found)


def test_a_call_that_raises_is_a_warning_and_the_next_one_makes_up_for_it(broker: Broker) -> None:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("memory", interval=0.005))
    acknowledged(env, N, 3_000).sink_to(tr.sinks.Collect())
    broker.failing = 3
    job = tr.testing.simulate(env, seed=1)
    assert job.await_termination()
    assert set(broker.acknowledged) == set(range(N)) and broker.wrong == []
    custom = [
        one["custom"] for one in job.metrics()["subtasks"] if any("failed_comp" in name for name in one["custom"])
    ]
    assert sum(value for one in custom for name, value in one.items() if "failed_comp" in name) == 3


@pytest.mark.parametrize(
    ("fn", "message"), [(ByKey(), "keyed state was used where there is no key"), (Emitting(), "emits nothing")]
)
def test_what_it_must_not_do_fails_the_job(fn: Any, message: str) -> None:
    env = tr.Environment(parallelism=1, checkpoint=tr.CheckpointConfig("memory", interval=0.005))
    stream = env.from_source(tr.sources.Sequence(0, N, rate=3_000)).key_by(lambda n: n % 3).process(fn)
    stream.sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=message):
        tr.testing.simulate(env, seed=1).await_termination()


def test_where_it_is_not_called_it_is_refused() -> None:
    class Asked(tr.AsyncFunction):
        async def call(self, value: int) -> int:
            return value

        def checkpoint_complete(self, number: int) -> None: ...

    class Lazy(Mapping):
        def checkpoint_complete(self, number: int) -> Iterator[int]:  # type: ignore[override]
            yield number

    stream = tr.Environment(parallelism=1).from_collection([1])
    with pytest.raises(tr.GraphError, match="define it in a process function behind map_async"):
        stream.map_async(Asked())
    with pytest.raises(tr.GraphError, match="checkpoint_complete"):
        stream.map(Lazy())


def test_a_worker_that_is_lost_behind_a_complete_checkpoint_leaves_nothing_unacknowledged(broker: Broker) -> None:
    """The replacement of the worker is informed of the checkpoint."""
    for seed in range(8):
        BROKER.__init__()  # type: ignore[misc]
        standby = tr.StandbyConfig(replicas=0)
        checkpoint = tr.CheckpointConfig("memory", interval=0.004)
        env = tr.Environment(parallelism=2, checkpoint=checkpoint, standby=standby)
        acknowledged(env, N, 6_000).sink_to(tr.sinks.Collect())
        fault = Fault(seed, "kill", which=seed, after="commit 1 done")
        job = tr.testing.simulate(env, seed=seed, faults=[fault])
        assert job.await_termination()
        assert set(BROKER.acknowledged) == set(range(N)) and BROKER.wrong == []
