"""Wall clocks that somebody sets, by hours and in both directions, while a simulated job runs: nothing changes but `now`,
and that only behind a new driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from search.drawn_faults import NEW_DRIVERS
from search.scenarios import MS, Verdict, run_scenario, scenario
from search.stories import Story
from tailrace.testing.clocks import HOURS
from tailrace.testing.faults import Fault
from tailrace.testing.world import EPOCH

BACK_AND_FORTH = [-3 * HOURS, 3 * HOURS]


def jumps(by: int, turns: range) -> tuple[Fault, ...]:
    """The clock of the driver is set, and of each worker, to and fro."""
    return tuple(
        Fault(turn, "jump-clock", which=number % 4, duration=by if number % 8 < 4 else -by)
        for number, turn in enumerate(turns)
    )


def outcome(program: str, faults: tuple[Fault, ...], **options: Any) -> Verdict:
    made = replace(scenario(7, program, faults=False), faults=faults, rate=8_000.0, network="fast", **options)
    verdict = run_scenario(made, keep_trace=True)
    assert verdict.wrong == []
    return verdict


@pytest.mark.parametrize("by", BACK_AND_FORTH, ids=["back", "forward"])
@pytest.mark.parametrize("program", ["in_processing_time", "silent_nest", "counted"])
def test_all_happens_as_if_no_clock_had_been_set(program: str, by: int) -> None:
    """Timers, sources with a pace, idleness; checkpoints, leases and pauses of the coordinator; and workers that are lost,
    whose successors begin on machines that are hours beside."""
    losses = (Fault(150, "kill", 1), Fault(400, "respawn"), Fault(700, "freeze", 1, duration=200 * MS))
    plain = outcome(program, losses)
    assert plain.scenario.checkpoints is not None
    jumped = outcome(program, (*losses, *jumps(by, range(1, 900, 35))))
    assert jumped.trace == plain.trace
    assert jumped.covered["set the clock of the driver"] and jumped.covered["set the clock of a worker"]
    assert plain.covered["restarted"], "workers began behind a jump"


@pytest.mark.parametrize("by", BACK_AND_FORTH, ids=["back", "forward"])
def test_workers_that_are_replaced_and_processes_that_stand_by_go_by_the_clock_of_their_driver(by: int) -> None:
    losses = tuple(Fault(turn, "kill", turn % 3) for turn in range(100, 900, 160))
    options = {"replaces": True, "spares": 2, "parallelism": 3}
    plain = outcome("in_processing_time", losses, **options)
    jumped = outcome("in_processing_time", (*losses, *jumps(by, range(1, 900, 23))), **options)
    assert jumped.trace == plain.trace
    assert plain.covered["replaced a worker"] and plain.covered["a standby takes a slot"]


@pytest.mark.parametrize("by", BACK_AND_FORTH, ids=["back", "forward"])
def test_a_coordinator_in_place_of_a_lost_one_goes_by_the_clock_of_its_program(by: int) -> None:
    losses = tuple(Fault(turn, "lose-coordinator", duration=turn % 7 * MS) for turn in range(60, 900, 190))
    plain = outcome("in_processing_time", losses)
    jumped = outcome("in_processing_time", (*losses, *jumps(by, range(1, 900, 23))))
    assert jumped.trace == plain.trace and plain.covered["lost the coordinator alone"] > 1


class Noting(tr.KeyedProcessFunction):
    """Adds what time it is, as far as hours go."""

    def process(self, value: int, ctx: Any) -> Iterator[Any]:
        yield value, round((ctx.now() * 1e6 - EPOCH) / HOURS)


def noting(env: tr.Environment) -> tr.DataStream:
    return env.from_source(tr.sources.Sequence(0, 60, rate=4_000)).key_by(lambda n: n % 5).process(Noting())


@pytest.mark.parametrize("kind", sorted(NEW_DRIVERS))
@pytest.mark.parametrize("by", BACK_AND_FORTH, ids=["back", "forward"])
def test_behind_a_new_driver_only_now_differs(story: Story, by: int, kind: Any) -> None:
    """The newest driver begins with the new time, and its workers go by it; each record is there once, with the old time or
    the new one."""
    faults = [Fault(20, "jump-clock", duration=by), Fault(3, kind, duration=5 * MS, after="commit 2 done")]
    world = story.simulation(noting, faults=faults, seed=3)
    story.finish(world)
    assert world.ahead == by and world.covered["a driver began behind a jump of its clock"] == 1
    published = Counter(record for record in story.ledger.book.records())
    assert Counter(value for value, _ in published.elements()) == Counter(range(60))
    assert {hours for _, hours in published} == {0, by // HOURS}
    newest = story.files.newest
    assert newest is not None and abs(newest[1].timestamp - EPOCH - by) < HOURS
