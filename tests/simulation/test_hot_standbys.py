"""Hot standbys do what the workers of their slices do, and go on where these were: without them nobody notices, with them
the output is as if nothing had happened."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from search.__main__ import search
from search.campaigns.replacements import following
from search.programs.golden import LOOPS, PROGRAMS
from search.scenarios import MS, Scenario, run_scenario, scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.task.failover.replacement import Resumed
from tailrace.task.journal.compared_values import ReceivedValues
from tailrace.task.journal.replayable_outbox import outbox_of
from tailrace.task.operators.sink import SinkTask
from tailrace.testing.faults import Fault

pytestmark = pytest.mark.search
WENT_ON = "a hot standby went on"
GAVE_UP = "a hot standby gave up"
N = 1_200


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_golden_programs_are_right_though_workers_with_hot_standbys_are_lost(program: str, exhaustive: bool) -> None:
    def once(made: Scenario) -> Scenario:
        return following(replace(made, started_again=0))

    seeds = range(3_000, 3_003) if exhaustive else range(3_000, 3_001 if program in LOOPS else 3_002)
    _, failed = search(seeds, program, tune=once)
    assert [one.wrong for one in failed] == []


def test_a_hot_standby_goes_on_where_its_worker_was() -> None:
    covered, failed = search([0, 3_002, 3_028], "counted", tune=following)
    assert [one.wrong for one in failed] == []
    assert covered[WENT_ON] > 1


class Total(tr.KeyedProcessFunction):
    total = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.total.value += value
        yield value, self.total.value


CALLS = itertools.count()


class NotAgain(tr.KeyedProcessFunction):
    """Never emits the same value again."""

    def process(self, value: int, ctx: Any) -> Any:
        yield value, next(CALLS)


def environment(mode: str = "hot") -> tr.Environment:
    return tr.Environment(
        parallelism=2,
        checkpoint=tr.CheckpointConfig("in memory", interval=0.02),
        standby=tr.StandbyConfig(mode=mode),
        restart=tr.FixedDelay(attempts=5, delay=0.01),
    )


def numbers(env: tr.Environment) -> Any:
    return env.from_source(tr.sources.Sequence(0, N, rate=5_000), uid="numbers").key_by(lambda n: n % 7)


def wrong(pairs: list[tuple[int, int]]) -> list[int]:
    """The numbers that are not there exactly once, or whose total is not that of the ones before and their own."""
    found = [number for number, count in Counter(number for number, _ in pairs).items() if count != 1]
    found += set(range(N)) - {number for number, _ in pairs}
    for key in range(7):
        before = 0
        for total, number in sorted((total, number) for number, total in pairs if number % 7 == key):
            found += [] if total - before == number else [number]
            before = total
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_output_is_exact_behind_the_loss_of_a_worker(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, note = list[Any](), ReceivedValues.note_sealed

    def noted(self: ReceivedValues, *args: Any) -> None:
        ahead.extend(one for one in gone_on if self is one and one.ahead is not None)
        note(self, *args)

    gone_on, go_on = list[ReceivedValues](), Resumed._gone_on

    def going_on(self: Resumed) -> Any:
        actions = go_on(self)
        gone_on.extend(outbox_of(task).received for task in self.slice.tasks)
        return actions

    monkeypatch.setattr(ReceivedValues, "note_sealed", noted)
    monkeypatch.setattr(Resumed, "_gone_on", going_on)
    env = environment()
    out = numbers(env).process(Total(), uid="total").key_by(lambda pair: pair[1] % 3).map(lambda pair: pair)
    result = out.sink_to(tr.sinks.Collect())
    lost = [
        Fault(300, "kill", seed % 2, after="commit 4 done"),
        Fault(300, "kill", 1 - seed % 2, after="commit 9 done"),
    ]
    job = tr.testing.simulate(env, seed=seed, faults=lost)
    assert job.simulation.covered[WENT_ON] > 0
    assert job.simulation.covered["restarted"] == 0
    assert wrong(result.result()) == []
    assert ahead == [], "nothing is kept of what is sealed once nobody is followed any more"


@pytest.mark.parametrize("seed", [0, 2])
def test_behind_a_takeover_each_worker_is_followed_again(seed: int) -> None:
    """The worker that has taken a slot is followed, too. All processes are in one executor, and a checkpoint is complete
    before the next standby is there: the standby of the other worker got the slice of the one that was lost, and the next
    standby got the slice that was followed already."""
    lost = (Fault(40, "kill", 0, after="commit 3 done"),)
    settings = CheckpointSettings(interval=2 * MS, tolerated_failures=1_000)
    made = Scenario(seed, "counted", 300, 2, 16, "fast", 5_000, settings, faults=lost, replaces=True)
    verdict = run_scenario(replace(made, spares=2, depth=1, hot=True, executor_slots=8), keep_trace=True)
    assert verdict.wrong == []
    [killed] = [at for at, line in enumerate(verdict.trace) if line.endswith(" killed")]
    follow = [at for at, line in enumerate(verdict.trace) if "coordinator => " in line and line.endswith(" Follow")]
    assert [at > killed for at in follow] == [False, False, True]


def test_a_standby_that_answers_seldom_takes_several_windows_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one answer to the next much more comes to its worker than the standby may have unread, and it does not fall
    behind: it grants room as it reads, before it may answer."""
    monkeypatch.setattr("tailrace.task.failover.slice_choice.LEAST_FED", 0)
    made = replace(following(scenario(3_002, "counted")), pace=10 * MS, network="fast", parallelism=2, spares=2)
    settings = CheckpointSettings(interval=20 * MS, tolerated_failures=1_000)
    kill = (Fault(800, "kill", 0, after="commit 5 done"),)
    made = replace(made, window=60, n=1_200, rate=10_000, depth=1, checkpoints=settings, started_again=0, faults=kill)
    verdict = run_scenario(made)
    assert verdict.wrong == []
    assert verdict.covered[WENT_ON] == 1
    assert verdict.covered[GAVE_UP] == 0


def test_a_standby_that_makes_other_values_gives_up_and_the_job_goes_on() -> None:
    env = environment()
    drawn = numbers(env).process(NotAgain(), uid="draws").key_by(lambda pair: pair[1] % 3)
    result = drawn.map(lambda pair: pair[0]).sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=1)
    assert job.simulation.covered[GAVE_UP] > 0
    assert job.simulation.covered["restarted"] == 0
    assert any("sent other values" in line or "is not done the same again" in line for line in job.simulation.trace)
    assert Counter(result.result()) == Counter(range(N))


def test_sinks_of_a_hot_standby_open_and_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, open_writer = list[int](), SinkTask.open_writer

    def noted(self: SinkTask) -> None:
        opened.append(self.ctx.subtask)
        open_writer(self)

    monkeypatch.setattr(SinkTask, "open_writer", noted)
    env = environment()
    numbers(env).process(Total(), uid="total").sink_to(tr.sinks.Collect(), uid="sink")
    job = tr.testing.simulate(env, seed=2)
    assert any("Follow" in line for line in job.simulation.trace)
    assert sorted(opened) == [0, 1]


class HoldsBack(tr.SinkWriter):
    """Keeps records back in state, which has no value as long as there are none."""

    held = tr.OperatorState(list)

    def __init__(self) -> None:
        self.fresh: list[int] = []
        self.over = False

    def write(self, batch: list[int]) -> None:
        self.fresh += batch

    def finish(self) -> None:
        self.over = True

    def prepare(self) -> bytes | None:
        found = [*(self.held.value if self.held.exists() else ()), *self.fresh]
        self.fresh = []
        if not found or (len(found) < 100 and not self.over):
            if found:
                self.held.value = found
            return None
        self.held.clear()
        return json.dumps(found).encode()


class Numbers(tr.Sink):
    """Writes each prepared transaction into a file of its own: twice is harmless."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
        return HoldsBack()

    def publish(self, prepared: Sequence[bytes]) -> None:
        for one in prepared:
            (Path(self.folder) / hashlib.sha256(one).hexdigest()).write_bytes(one)


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_a_sink_that_holds_back_its_first_records_is_not_followed(seed: int, tmp_path: Path) -> None:
    """The sink's state has no value in the first checkpoints, from which standbys would follow. What it holds back in a
    later one is in no standby, and in front of the cut."""
    env = environment()
    late = env.from_source(tr.sources.Sequence(0, N, rate=2_500)).rebalance().filter(lambda n: n >= N // 3)
    late.sink_to(Numbers(str(tmp_path)))
    faults = [Fault(20 + 90 * seed, "kill", seed, after="commit 10 done")]
    job = tr.testing.simulate(env, seed=seed, faults=faults)
    assert job.status == tr.JobStatus.FINISHED
    assert any("has state, which follows from what it writes" in line for line in job.simulation.trace)
    assert Counter(n for one in tmp_path.iterdir() for n in json.loads(one.read_bytes())) == Counter(range(N // 3, N))


@pytest.mark.parametrize(
    ("program", "by_task"), [("visited", True), ("amplified", True), ("lingered", False), ("judged", False)]
)
def test_a_hot_standby_of_a_loop_goes_on_where_its_worker_was(
    program: str, by_task: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Task by task where records are passed on only, and in one order where waves go around, or rounds. The loop ends behind
    that, and the same worker or another one is lost once more."""
    ways, take_place = list[bool](), Resumed.take_place

    def noted(self: Resumed, *args: Any) -> None:
        ways.append(self.again.by_task)
        take_place(self, *args)

    monkeypatch.setattr(Resumed, "take_place", noted)
    settings = CheckpointSettings(interval=10 * MS, tolerated_failures=1_000)
    lost = (Fault(150, "kill", 0, after="commit 2 done"), Fault(40, "kill", 1, after="commit 4 done"))
    n = PROGRAMS[program].n
    made = Scenario(1, program, n, 2, 16, "fast", n / 0.06, settings, faults=lost, replaces=True)
    verdict = run_scenario(replace(made, spares=2, depth=1, hot=True))
    assert verdict.wrong == []
    assert (verdict.covered[WENT_ON], verdict.covered["restarted"]) == (len(ways), 0)
    assert ways and (True in ways) is by_task
