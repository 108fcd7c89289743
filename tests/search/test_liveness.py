"""Once the last fault of a simulated job is over, it must end within so many turns. Otherwise the
error lists what each task waits for. Observers are called for everything, and change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from search.planted.patches import method
from search.scenarios import run_scenario, scenario
from tailrace.coordinator.actions import Send
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.protocol.deployment import Deploy
from tailrace.task.contract.events import Event, Step
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.simulator import Simulation, SimulationStalled
from tailrace.testing.workers import Workers
from tailrace.testing.world import Driver, FrameItem, Observer, SimulatedProcess


def world(n: int | None, **options: Any) -> Simulation:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig(dir="memory"))
    counted = env.from_source(tr.sources.Sequence(0, n)).key_by(lambda i: i % 5).count()
    counted.sink_to(tr.sinks.Callback(lambda record: None))
    return prepared_simulation(env, name="lives", seed=3, run_id="run", **options)


def test_a_job_that_nothing_disturbs_and_that_does_not_end_is_reported() -> None:
    endless = world(None, patience=400)
    with pytest.raises(SimulationStalled, match="did not end within 400 turns behind the last fault") as found:
        endless.run()
    assert endless.turns == 401
    assert found.value.story[0].startswith("the job is RUNNING, checkpoints under way:")
    assert any(
        line.startswith("worker 1, v0[1] (from_source: sequence): has something to do") for line in found.value.story
    )


def test_turns_are_counted_from_the_last_fault_on_and_as_long_as_it_lasts() -> None:
    faults = (Fault(500, "storage", duration=300), Fault(900, "kill"))
    endless = world(None, patience=400, faults=faults)
    with pytest.raises(SimulationStalled):
        endless.run()
    assert endless.covered["killed"] == 1 and 1_300 <= endless.turns <= 1_302


def test_turns_in_which_a_standby_reads_ahead_do_not_count() -> None:
    """The limit is on what the job does itself. A job that does not end is reported although its standbys read on."""
    settings = CheckpointSettings(interval=200, tolerated_failures=1_000)
    endless = world(None, patience=4_000, checkpoints=settings, replaces=True, spares=3)
    with pytest.raises(SimulationStalled, match="did not end within 4000 turns"):
        endless.run()
    ahead = sum("a part was read" in line for line in endless.trace)
    assert ahead > 300 and endless.turns == 4_001 + ahead


def test_a_job_that_ends_has_as_much_patience_as_it_needs() -> None:
    ends = world(60, patience=5_000, faults=(Fault(30, "kill"),))
    assert ends.run() is JobStatus.FINISHED
    ends.drain()
    assert ends.processes == {}


def test_the_search_tells_what_everybody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a grant or a frame is lost, so nobody notices, and all wait for ever: the world is quiet long before the
    limit on all turns has passed."""

    def make(deliver: Any) -> Any:
        def losing(self: Workers, process: SimulatedProcess, item: Any) -> None:
            if not isinstance(item, FrameItem):
                deliver(self, process, item)

        return losing

    with method(Workers, "deliver", make):
        verdict = run_scenario(replace(scenario(3, "counted"), patience=5_000))
    assert verdict.wrong[0] == "the job did not end within 5000 turns behind the last fault"
    assert verdict.turns < 20_000
    assert any("no input" in line for line in verdict.waits)


class Listening(Observer):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.deployed: set[int] = set()
        self.steps = 0
        self.left: list[int] = []

    def on_line(self, line: str) -> None:
        self.lines.append(line)

    def on_message(self, driver: Driver, action: Send) -> None:
        if isinstance(action.message, Deploy):
            self.deployed.add(action.slot)

    def on_event(self, process: SimulatedProcess, event: Event) -> None:
        self.steps += isinstance(event, Step)

    def dies(self, process: SimulatedProcess) -> None:
        self.left.append(process.slot)


def test_those_who_look_on_hear_of_everything_and_change_nothing() -> None:
    alone, watched, listening = world(60), world(60), Listening()
    watched.watch(listening)
    for one in (alone, watched):
        one.run()
        one.drain()
    assert watched.digest == alone.digest
    assert [line.split(maxsplit=1)[1] for line in watched.trace] == listening.lines
    assert listening.deployed == {0, 1} and sorted(listening.left) == [0, 1] and listening.steps > 20
