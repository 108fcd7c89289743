"""A few seeds of the search through jobs that change their size while they run, and what a size does to a plan."""

from __future__ import annotations

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
