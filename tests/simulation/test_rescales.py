"""A few seeds of the search through jobs that change their size while they run, and what a size does to a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr
from search.__main__ import search, text_of
from search.campaigns.rescales import (
    autoscaled,
    elastic,
    elastic_with_standbys,
    rescaled,
    rescaled_with_standbys,
)
from search.programs.golden import PROGRAMS
from search.scenarios import scenario
from tailrace.coordinator.actions import RescaleEnded
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.testing.inprocess import prepared_simulation

pytestmark = pytest.mark.search
START = 1_700_000_000
"""Start of the clock of a simulation, in seconds."""
END = START + 10


def test_jobs_that_change_their_size_have_every_result_once(exhaustive: bool) -> None:
    covered, failed = search(range(300 if exhaustive else 12), tune=rescaled, stop=False)
    assert [text_of(one) for one in failed] == []
    assert covered["changed the size"] and covered["moved to another size"]


def test_so_do_those_whose_lost_workers_are_replaced(exhaustive: bool) -> None:
    covered, failed = search(range(20, 320 if exhaustive else 24), tune=rescaled_with_standbys, stop=False)
    assert [text_of(one) for one in failed] == []
    assert covered["changed the size"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_each_golden_program_changes_its_size(program: str) -> None:
    for seed in range(3):
        _, failed = search([seed], program, tune=rescaled)
        assert [text_of(one) for one in failed] == []


def test_the_search_draws_each_fault_and_each_size() -> None:
    drawn = [fault for seed in range(300) for fault in rescaled(scenario(seed)).faults]
    assert {fault.which for fault in drawn if fault.kind == "rescale"} == {1, 2, 3, 4}
    assert {"kill", "raise", "storage", "crash-driver", "freeze", "cut-link"} <= {fault.kind for fault in drawn}


class Running(tr.KeyedProcessFunction):
    total = tr.ValueState(int, default=0)

    def process(self, value, ctx):  # type: ignore[no-untyped-def]
        self.total.value += 1
        yield ctx.key, self.total.value


def test_some_operators_alone_get_another_size_and_those_behind_them_follow() -> None:
    sink = tr.sinks.Collect()
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig(dir="memory", interval=None))
    numbers = env.from_source(tr.sources.Sequence(0, 300), uid="numbers")
    numbers.key_by(lambda n: n % 7).process(Running(), uid="totals").map(lambda one: one).sink_to(sink, uid="sink")
    world, answers = prepared_simulation(env, name="sizes", seed=3), list[RescaleEnded]()
    assert world.run_until("read")
    world.rescale({"totals": 3}, answers.append)
    assert world.run_until("size 3: done")
    attempts = [process.machine.attempt for process in world.processes.values()]
    plan = next(one.slice.plan for one in attempts if one is not None)
    assert {node.uid: node.parallelism for node in plan.graph.nodes if node.uid_given} == {
        "numbers": 2,
        "totals": 3,
        "sink": 3,
    }
    while not world.coordinator.status.final:
        world.turn()
    assert world.coordinator.status is JobStatus.FINISHED and [one.reason for one in answers] == [""]
    assert sorted(sink.result()) == sorted((n % 7, n // 7 + 1) for n in range(300))


class Given(tr.Source):
    """One split, found by an enumerator, with records at these times: (seconds after the start, timestamp). Then it is
    silent, until ten seconds after the start."""

    def __init__(self, *records: tuple[float, float]) -> None:
        self.records = records

    def enumerator(self, parallelism: int, position: Any = None) -> tr.Enumerator:
        return OneSplit(position or 0)

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return GivenReader(self.records, position or 0)


class OneSplit(tr.Enumerator):
    def __init__(self, position: int) -> None:
        self._found = position

    @property
    def position(self) -> int:
        return self._found

    def discover(self, now: float) -> list[int] | None:
        found, self._found = [0] * (1 - self._found), 1
        return found or (None if now >= END else [])

    def next_at(self, now: float) -> float:
        return END


class GivenReader(tr.Reader):
    def __init__(self, records: tuple[tuple[float, float], ...], position: int) -> None:
        self.records, self.read_up_to = records, position

    @property
    def position(self) -> int:
        return self.read_up_to

    def read(self, limit: int, now: float) -> list[float] | None:
        found = [time for at, time in self.records[self.read_up_to :] if START + at <= now]
        self.read_up_to += len(found)
        return found or (None if now >= END else [])

    def next_at(self, now: float) -> float:
        return now + 0.1


class When(tr.ProcessFunction):
    """The start of a window, and how many seconds after the start of the job it came."""

    def process(self, window: Any, ctx: tr.Context) -> Iterator[Any]:
        yield window.start, ctx.now() - START


@pytest.mark.parametrize("size", [1, 3])
def test_a_source_that_is_silent_keeps_its_event_time_at_another_size(size: int) -> None:
    """One of its two subtasks has no split. At another size event time went back to that of this subtask, until the next
    record of the other one; meanwhile windows behind it and an input that goes on did not come out."""
    sink = tr.sinks.Collect()
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig(dir="memory", interval=None))
    silent = env.from_source(Given((0, 100)), uid="silent").assign_timestamps(lambda time: time, 0, uid="one")
    going = env.from_source(Given((0, 1), (2, 200)), uid="going").assign_timestamps(lambda time: time, 0, uid="other")
    windows = silent.union(going).key_by(lambda time: 0, uid="keys").window(tr.Tumbling(10)).count(uid="windows")
    windows.process(When(), uid="when").sink_to(sink, uid="sink")
    world = prepared_simulation(env, name="silent", seed=1)
    world.start()
    while world.now < (START + 1) * 1_000_000:
        world.turn()
    world.rescale(size)
    assert world.run_until(f"size {size}: done")
    while not world.coordinator.status.final:
        world.turn()
    found = dict(sink.result())
    assert sorted(found) == [0.0, 100.0, 200.0]
    assert 2 <= found[0.0] < 3, "when the input that goes on has come that far, and not when the silence is over"


def test_elastic_jobs_have_every_result_once(exhaustive: bool) -> None:
    """On a cluster that loses task slots and gets them back, with faults meanwhile."""
    covered, failed = search(range(400 if exhaustive else 8), tune=elastic, stop=False)
    assert [text_of(one) for one in failed] == []
    assert covered["went on with fewer workers"] and covered["changed the size"]


def test_jobs_that_are_sized_by_their_load_have_every_result_once(exhaustive: bool) -> None:
    covered, failed = search(range(200) if exhaustive else (6, 15), tune=autoscaled, stop=False)
    assert [text_of(one) for one in failed] == []
    assert covered["was sized by the load"] and covered["changed the size"]


@pytest.mark.exhaustive
def test_so_do_elastic_jobs_with_standbys() -> None:
    covered, failed = search(range(200), tune=elastic_with_standbys, stop=False)
    assert [text_of(one) for one in failed] == []
    assert covered["went on with fewer workers"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_each_golden_program_is_elastic(program: str) -> None:
    for seed in range(3):
        _, failed = search([seed], program, tune=elastic)
        assert [text_of(one) for one in failed] == []
