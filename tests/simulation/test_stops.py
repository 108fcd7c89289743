"""Stops of simulated jobs: at any moment, with loops, under every policy, among faults, and gone on from.

Between them a job that is stopped and the ones that go on from there have each result once, as one undisturbed run has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from search.programs.golden import PROGRAMS
from search.scenarios import Scenario, build
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles
from tailrace.coordinator.actions import StopEnded
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.durability.stopping import Aim, Stage
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.state.manifest import decode_manifest
from tailrace.testing.faults import Fault
from tailrace.testing.memorystore import MemoryFiles
from tailrace.testing.simulator import Simulation

SETTINGS = CheckpointSettings(interval=40_000, keep=2)
LOOPS = ["visited", "wandered"]
POLICIES = {"aligned": -1, "unaligned": 0, "with a timeout": 3_000}


@pytest.fixture
def book() -> Iterator[Book]:
    BOOKS["stopped"] = Book()
    yield BOOKS["stopped"]
    del BOOKS["stopped"]


def world_of(what: Scenario, files: WatchedFiles, **options: Any) -> Simulation:
    return build(what, PROGRAMS[what.program], Ledger("stopped"), files, True, **options)


def what_for(program: str, seed: int, policy: int = -1, **settings: Any) -> Scenario:
    checkpoints = replace(SETTINGS, overtakes_after=policy, **settings)
    return Scenario(seed, program, 240, parallelism=2, rate=12_000, checkpoints=checkpoints)


def ask(world: Simulation, aim: Aim, received: list[StopEnded]) -> None:
    world.coordinator.stop(received.append, aim, world.now)
    world.coordinate(world.driver)


def stopped(world: Simulation, turns: int, aim: Aim) -> StopEnded:
    """Lets a job run for so many turns, stops it, and waits for its end."""
    received: list[StopEnded] = []
    assert world.run_until("v1[0] read")
    for _ in range(turns):
        world.turn()
    ask(world, aim, received)
    while not world.coordinator.status.final:
        world.turn()
    world.drain()
    [ended] = received
    return ended


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("program", ["toggled", "summed" if "summed" in PROGRAMS else "toggled", *LOOPS])
def test_a_job_that_was_suspended_goes_on_as_if_it_had_not_been(book: Book, program: str, policy: int) -> None:
    """Twice, and each time at another parallelism. Nothing is read again, and nothing visible again."""
    files = WatchedFiles([book])
    what = what_for(program, 3, policy)
    world = world_of(what, files)
    read = []
    for run, parallelism in enumerate((2, 3, 1)):
        what = replace(what, parallelism=parallelism)
        if run:
            world = world_of(what, files, origin="latest", run_id=f"again{run}")
        if run < 2:
            ended = stopped(world, 80 + 40 * run, Aim())
            assert ended.reason == "" and ended.stats is not None and not ended.stats.final
            manifest = files.newest[1]  # type: ignore[index]
            assert manifest.stopped and manifest.checkpoint == ended.stats.id
            read.append(len(book.records()))
        else:
            assert world.run() is JobStatus.FINISHED
        assert world.causes == []
    assert Counter(book.records()) == PROGRAMS[program].expected(what.n)
    assert book.wrong == [] and files.wrong == []


@pytest.mark.parametrize("program", ["toggled", *LOOPS])
def test_a_job_that_is_drained_comes_to_its_end_with_what_it_has_read(book: Book, program: str) -> None:
    files = WatchedFiles([book])
    ended = stopped(world_of(what_for(program, 4), files), 60, Aim(drain=True))
    assert ended.reason == "" and ended.stats is not None and ended.stats.final
    manifest = files.newest[1]  # type: ignore[index]
    assert all(all(one.finished) for one in manifest.operators) and manifest.stopped


@pytest.mark.parametrize("drain", [False, True])
def test_a_stop_leaves_a_savepoint_from_which_a_job_goes_on(book: Book, drain: bool) -> None:
    files = WatchedFiles([book])
    world = world_of(what_for("toggled", 5), files)
    ended = stopped(world, 60, Aim(drain, "memory:backup"))
    assert ended.savepoint is not None and ended.savepoint.path == "memory:backup"
    there = world.storage.savepoints["memory:backup"].contents
    manifest = decode_manifest(bytes(there["savepoint.manifest"]), "it")
    assert manifest.final is drain and {file.name for file in manifest.files} == set(there) - {"savepoint.manifest"}


@pytest.mark.parametrize("settings", [None, "never"])
def test_where_nothing_is_retained_all_that_was_read_is_visible_and_nothing_is_left(
    book: Book, settings: str | None
) -> None:
    files = WatchedFiles([book])
    what = what_for("toggled", 6, retain="never")
    if settings is None:
        what = replace(what, checkpoints=None)
    world = world_of(what, files)
    ended = stopped(world, 60, Aim())
    assert (ended.reason, ended.stats) == ("", None)
    given_up = world.coordinator.give_up(crashed=False)
    assert (given_up is None) if settings is None else given_up


def test_behind_the_cut_of_a_stop_no_task_does_anything(book: Book) -> None:
    world = world_of(what_for("wandered", 7), WatchedFiles([book]))
    assert world.run_until("v1[0] read")
    for _ in range(60):
        world.turn()
    ask(world, Aim(), [])
    before: dict[Any, tuple[int, int]] = {}
    while not world.coordinator.status.final:
        world.turn()
        for process in world.processes.values():
            for task in process.machine.tasks():
                if task.checkpoints.held_by is not None:
                    done = task.work.records_in, task.outbox.records
                    assert before.setdefault((process.party, task.id), done) == done
    assert before


def state_of(world: Simulation) -> tuple[object, ...]:
    """Where a job is on its way from the command to its end, as far as its driver knows."""
    coordinator = world.coordinator
    durability = coordinator.durability
    copying, pending = bool(durability.savepoints.under_way), bool(durability.output.pending)
    committing = any(one.committing for one in durability.checkpoints.pending.values())
    return coordinator.status, coordinator.stopping.stage, committing, pending, copying


def states_of(world: Simulation, aim: Aim, crash_in: int | None = None) -> list[tuple[object, ...]]:
    """The states that a job goes through when it is stopped, each once. In the one of this number its driver is killed."""
    assert world.run_until("v1[0] read")
    for _ in range(60):
        world.turn()
    ask(world, aim, [])
    seen = [state_of(world)]
    while not world.coordinator.status.final:
        if crash_in == len(seen) - 1:
            world.strike(Fault(0, "crash-driver"))
            return seen
        world.turn()
        if state_of(world) not in seen:
            seen.append(state_of(world))
    return seen


@pytest.mark.parametrize("program", ["toggled", "visited"])
@pytest.mark.parametrize("aim", [Aim(), Aim(drain=True), Aim(savepoint="memory:backup")], ids=str)
def test_a_driver_may_be_killed_in_every_state_of_a_stop(book: Book, program: str, aim: Aim) -> None:
    """The next start does not know what there was: it finds a stop's checkpoint, or an earlier one, and publishes what that
    has. A savepoint is there whole, or there is none."""
    what = what_for(program, 8)
    states = states_of(world_of(what, WatchedFiles([book])), aim)
    assert {state[1] for state in states} >= {Stage.SEALED, Stage.DRAINING if aim.drain else Stage.SUSPENDING}
    assert any(state[2] for state in states) and any(state[3] for state in states)
    sealed = []
    for number in range(len(states) - 1):
        mine = BOOKS["stopped"] = Book()
        files = WatchedFiles([mine])
        world = world_of(what, files)
        assert states_of(world, aim, number) == states[: number + 1]
        sealed.append(files.newest is not None and files.newest[1].stopped)
        while not world.coordinator.status.final:
            world.turn()
        world.drain()
        assert world.coordinator.status is JobStatus.FINISHED, states[number]
        assert mine.wrong == [] and files.wrong == [], states[number]
        assert set().union(*files.lineage.values()) == set(mine.published), "all that is in checkpoints is visible"
        if not (aim.drain and sealed[-1]):
            assert Counter(mine.records()) == PROGRAMS[program].expected(what.n), states[number]
        there = set(world.storage.savepoints.get("memory:backup", MemoryFiles()).contents)
        assert not there or there >= {"savepoint.manifest"}
    assert sealed == sorted(sealed) and sealed[-1] and not sealed[0], "once the manifest is there, it is"


def answers_of(world: Simulation, aim: Aim, kill_in: int) -> list[StopEnded]:
    """The answers to a stop of a job that has a checkpoint, and loses a worker in the stop's state of this number. Empty
    where it has fewer states."""
    received: list[StopEnded] = []
    assert world.run_until("commit 1 done")
    ask(world, aim, received)
    seen = [state_of(world)]
    while not world.coordinator.status.final:
        if kill_in == len(seen) - 1:
            world.strike(Fault(0, "kill", 1))
            kill_in = -1
        world.turn()
        if state_of(world) not in seen:
            seen.append(state_of(world))
    world.drain()
    return received if kill_in == -1 else []


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("program", ["toggled", "visited"])
@pytest.mark.parametrize("aim", [Aim(), Aim(drain=True), Aim(savepoint="memory:backup")], ids=str)
def test_a_stop_goes_on_whatever_its_state_is_when_a_worker_is_lost(
    book: Book, program: str, aim: Aim, replaces: bool
) -> None:
    """The caller gets one answer, at the end of the attempt that is not disturbed: the job has stopped. What is visible then
    and what a start from there adds are each result once."""
    what = replace(what_for(program, 9, interval=4_000), replaces=replaces, spares=int(replaces))
    for number in range(40):
        mine = BOOKS["stopped"] = Book()
        files = WatchedFiles([mine])
        world = world_of(what, files)
        received = answers_of(world, aim, number)
        if not received:
            break
        [ended] = received
        assert ended.reason == "" and ended.stats is not None, (number, ended.reason)
        assert files.newest is not None and files.newest[1].stopped and files.newest[1].checkpoint == ended.stats.id
        if aim.savepoint is not None:
            assert (
                ended.savepoint is not None
                and "savepoint.manifest" in world.storage.savepoints["memory:backup"].contents
            )
        if not aim.drain:
            again = world_of(what, files, origin="latest", run_id="again")
            assert again.run() is JobStatus.FINISHED
            assert Counter(mine.records()) == PROGRAMS[program].expected(what.n), number
        assert mine.wrong == [] and files.wrong == [], number
    assert number > 4


@pytest.mark.parametrize("program", ["toggled", *LOOPS])
@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("kind", ["kill", "storage", "crash-driver", "lose-coordinator", "freeze-driver", "cut-link"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (2, 3))])
def test_a_stop_among_faults_has_every_result_once(book: Book, program: str, drain: bool, kind: str, seed: int) -> None:
    """The fault comes at any moment of the stop. Whatever becomes of the stop, a start from the newest checkpoint has
    the rest; and a caller that got a checkpoint finds that its run has taken none behind it. (What a drained job has
    not read is not there.)"""
    chance = random.Random(seed)
    files = WatchedFiles([book])
    world = world_of(what_for(program, seed, chance.choice([-1, 0, 3_000])), files)
    received: list[StopEnded] = []
    assert world.run_until("v1[0] read")
    for _ in range(chance.randint(10, 160)):
        world.turn()
    ask(world, Aim(drain), received)
    turns, fault = chance.randint(0, 120), Fault(0, kind, chance.randint(0, 5), duration=60, chance=0.6, outcome="any")
    while turns and not world.coordinator.status.final:
        world.turn()
        turns -= 1
    if not world.coordinator.status.final:
        world.strike(fault)
    while not world.coordinator.status.final:
        world.turn()
    world.drain()
    assert len(received) <= 1 and (received or world.driver.run_id != "run" or kind == "lose-coordinator")
    if received and not received[0].reason and received[0].stats is not None:
        assert files.newest is not None
        newest = files.newest[1]  # of another run, where its driver was taken for dead
        assert (
            newest.checkpoint == received[0].stats.id
            if newest.run_id == "run"
            else newest.checkpoint > received[0].stats.id
        )
    if drain and files.newest is not None and files.newest[1].stopped:
        assert not (Counter(book.records()) - PROGRAMS[program].expected(240)) or program in LOOPS
    else:
        again = world_of(what_for(program, seed), files, origin="latest", run_id="again")
        assert again.run() is JobStatus.FINISHED
        assert Counter(book.records()) == PROGRAMS[program].expected(240)
    assert book.wrong == [] and files.wrong == []
