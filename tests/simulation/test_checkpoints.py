"""How checkpoints are made, by whole jobs under the simulator: what a small story shows better than a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from search.programs.golden import PROGRAMS, Running
from search.scenarios import LIMITS, NETWORKS
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles, check_records
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.state.paths import is_of_checkpoint
from tailrace.task.contract.tuning import Tuning
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryStore
from tailrace.testing.simulator import Simulation

MS = 1_000
EVERY_MS = CheckpointSettings(interval=1 * MS, keep=1, tolerated_failures=100_000)


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    name = request.node.name
    BOOKS[name] = Book()
    yield Ledger(name)
    del BOOKS[name]


def simulation(
    program: Any,
    ledger: Ledger,
    files: WatchedFiles,
    *,
    parallelism: int = 2,
    settings: CheckpointSettings = EVERY_MS,
    n: int = 240,
    rate: float | None = 24_000,
    **options: Any,
) -> Simulation:
    env = tr.Environment(parallelism=parallelism, checkpoint=tr.CheckpointConfig(dir="memory"), restart=RESTARTS)
    program(env, n, rate).sink_to(ledger, uid="ledger")
    conditions = NETWORKS["fast"]
    chosen = {"name": "story", "conditions": conditions, "limits": LIMITS, "checkpoints": settings, "files": files}
    return prepared_simulation(env, **(chosen | options))


RESTARTS = tr.FixedDelay(1_000, 0.0)
counted = PROGRAMS["counted"]


def finished(world: Simulation) -> Simulation:
    assert world.run() is JobStatus.FINISHED
    world.drain()
    return world


def is_right(ledger: Ledger, files: WatchedFiles, expected: Counter[Any], order: Any = None) -> None:
    assert files.wrong == []
    assert check_records(ledger.book, expected, order) == []


# Inputs that have ended.


def test_checkpoints_go_on_when_some_sources_have_long_ended(ledger: Ledger) -> None:
    """One source of a union has three records, the other goes on for ten milliseconds."""

    def program(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
        long = env.from_source(tr.sources.Sequence(0, n, rate=rate))
        return long.union(env.from_collection([n, n + 1, n + 2])).key_by(lambda i: i % 13).process(Running())

    files = WatchedFiles([ledger.book])
    finished(simulation(program, ledger, files))
    assert files.ended_early >= 3
    is_right(ledger, files, counted.expected(243))


def test_the_end_of_an_input_counts_as_the_barrier_of_every_open_cut(ledger: Ledger) -> None:
    """The short source is at its end when the checkpoint has reached its consumer over the other channel."""

    def program(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
        long = env.from_source(tr.sources.Sequence(0, n, rate=rate))
        short = env.from_source(tr.sources.Sequence(n, n + 60, rate=None if rate is None else rate / 2))
        return long.union(short).key_by(lambda i: i % 13).process(Running())

    for seed in range(6):
        BOOKS[ledger.name] = Book()
        files = WatchedFiles([ledger.book])
        world = finished(simulation(program, ledger, files, seed=seed))
        assert world.covered["aborted a checkpoint"] == 0
        assert world.covered["completed a checkpoint"] > 5
        is_right(ledger, files, counted.expected(300))


def test_a_restart_from_a_checkpoint_with_ended_subtasks_does_not_run_them_again(ledger: Ledger) -> None:
    program = PROGRAMS["finished"]
    for turn in range(0, 40, 4):
        BOOKS[ledger.name] = Book()
        files = WatchedFiles([ledger.book])
        faults = [Fault(turn, "kill", turn, after="SubtasksFinished")]
        world = finished(simulation(program.build, ledger, files, n=80, faults=faults))
        assert world.covered["restarted"] >= 1
        is_right(ledger, files, program.expected(80))


def test_the_last_checkpoint_publishes_what_was_said_at_the_end(ledger: Ledger) -> None:
    """Without an interval there is only the last one."""
    program = PROGRAMS["finished"]
    files = WatchedFiles([ledger.book])
    settings = CheckpointSettings(interval=None)
    world = finished(simulation(program.build, ledger, files, n=80, settings=settings))
    assert world.covered["completed a checkpoint"] == files.commits == 1
    is_right(ledger, files, program.expected(80))


@pytest.mark.parametrize("concurrent", [1, 3])
def test_between_two_checkpoints_records_are_read_however_close_they_are(ledger: Ledger, concurrent: int) -> None:
    """Encoding takes longer than the interval, so that a cut is due whenever the one before is encoded. When the source
    has ended only the coordinator's trigger places these cuts: a task that only cut would never come to its end."""
    conditions = replace(NETWORKS["fast"], encode_limit=(1, 2), max_turns=100_000)
    settings = replace(EVERY_MS, interval=300, max_concurrent=concurrent)
    files = WatchedFiles([ledger.book])
    finished(simulation(counted.build, ledger, files, settings=settings, conditions=conditions, parallelism=1, n=400))
    is_right(ledger, files, counted.expected(400))


# Aborts.


def test_a_thousand_aborts_in_a_row_leave_nothing_behind(ledger: Ledger) -> None:
    """The storage refuses to end a file. Meanwhile the program sets the same few keys again and again."""
    files = WatchedFiles([ledger.book])
    settings = replace(EVERY_MS, max_concurrent=2)
    world = simulation(counted.build, ledger, files, settings=settings, n=60_000, rate=400, keep_trace=False)
    files.fail = lambda operation, name: "error" if operation == "close" else None
    world.driver.store.folder._fail = None  # type: ignore[union-attr, attr-defined]
    world.start()
    sizes = []
    for aborts in (100, 1_000):
        while world.covered["aborted a checkpoint"] < aborts:
            world.turn()
        sizes.append(_sizes(world, files))
    assert files.commits == 0
    assert sizes[1]["files"] <= 6
    for what, size in sizes[1].items():
        assert size <= sizes[0][what] + 12, f"{what} grew from {sizes[0][what]} to {size}"


def _sizes(world: Simulation, files: WatchedFiles) -> dict[str, int]:
    """How much of everything that is kept by checkpoint there is."""
    checkpoints = world.coordinator.checkpoints
    found = {
        "files": sum(1 for name in files.contents if is_of_checkpoint(name)),
        "pending": len(checkpoints.pending),
        "names": len(checkpoints._sizes),
        "unpublished": len(world.coordinator.durability.output.carried_output()),
        "marks": len(world.coordinator.durability.output._manifests),
        "links": len(world.links),
        "writers": sum(len(process.writers) for process in world.processes.values()),
    }
    for worker in world.workers():
        assert worker._attempt is not None
        found["being written"] = found.get("being written", 0) + len(worker._attempt.checkpoints._pending)
        for task in worker.tasks():
            found["due"] = found.get("due", 0) + len(task.cuts.due) + len(task.cuts.declined)
            for name in ("_aborted", "known", "blocked"):
                found[name] = found.get(name, 0) + len(getattr(task.cuts, name))
            for operator in task.chain.operators:
                found["chains"] = found.get("chains", 0) + len(operator.chains._pending)
                backend: Any = operator.backend
                if backend is not None:
                    found["generations"] = found.get("generations", 0) + len(backend.generations)
                    found["keys"] = found.get("keys", 0) + sum(one.size() for one in backend.generations)
                cuts = getattr(operator, "_cuts", None)
                if cuts is not None:
                    found["cuts"] = found.get("cuts", 0) + len(cuts.open) + len(cuts._aborted)
    return found


# A crash between the manifest and what follows from it.


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("moment", ["commit 2", "commit 2 done", "Publish"])
def test_who_starts_from_a_manifest_publishes_what_it_has_at_any_parallelism(
    ledger: Ledger, moment: str, parallelism: int
) -> None:
    """Driver and workers are gone at that very moment; another start goes on from the newest checkpoint."""
    files = WatchedFiles([ledger.book])
    world = simulation(counted.build, ledger, files)
    assert world.run_until(moment)
    was_published = len(ledger.book.records())
    again = simulation(
        counted.build, ledger, files, parallelism=parallelism, origin="latest", run_id="again", seed=parallelism
    )
    finished(again)
    assert len(ledger.book.records()) > was_published
    assert files.newest is not None and files.newest[1].run_id == "again"
    is_right(ledger, files, counted.expected(240))


def test_after_the_last_commit_a_crash_loses_nothing_and_repeats_nothing(ledger: Ledger) -> None:
    files = WatchedFiles([ledger.book])
    world = simulation(counted.build, ledger, files)
    assert world.run_until("FINISHING")
    again = simulation(counted.build, ledger, files, parallelism=3, origin="latest", run_id="again")
    finished(again)
    is_right(ledger, files, counted.expected(240))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_state_of_objects_and_members_of_enums_is_found_at_any_parallelism(ledger: Ledger, parallelism: int) -> None:
    program, files = PROGRAMS["by_classes"], WatchedFiles([ledger.book])
    world = simulation(program.build, ledger, files)
    assert world.run_until("commit 4 done")
    again = {"parallelism": parallelism, "origin": "latest", "run_id": "again", "seed": parallelism}
    finished(simulation(program.build, ledger, files, **again))
    is_right(ledger, files, program.expected(240), program.order)


# Two drivers.


def test_what_a_driver_prepared_that_died_before_its_first_checkpoint_is_removed(ledger: Ledger) -> None:
    """The second driver dies when its sinks have prepared and nothing is committed: no manifest names its run. The
    third one goes on from the first one's checkpoint, and only the second one's claim shows whose the hidden output
    is."""

    def run_of(token: bytes) -> str:
        return token.decode().split("|")[1]

    died = 0
    for seed in range(6):
        BOOKS[ledger.name] = Book()
        files = WatchedFiles([ledger.book])
        faults = [Fault(0, "crash-driver", after="commit 1 done"), Fault(seed, "crash-driver", after="Ack 2")]
        world = finished(simulation(counted.build, ledger, files, seed=seed, faults=faults, run_id="run"))
        drivers = [driver.run_id for driver in world.cluster.drivers.values()]
        assert len(drivers) == 3
        died += sum(run_of(token) == drivers[1] for token in ledger.book.removed)
        assert [token for token in ledger.book.prepared if run_of(token) != drivers[2]] == []
    assert died


class _Removed(WatchedFiles):
    """Files of which all are deleted when there have been three checkpoints."""

    def _make(self, name: str, data: bytes) -> None:
        super()._make(name, data)
        if self.commits == 3:
            self.contents.clear()


@pytest.mark.parametrize("then", ["the next checkpoint", "a restart"])
def test_a_job_whose_checkpoints_are_deleted_fails_and_publishes_nothing_twice(ledger: Ledger, then: str) -> None:
    """A restart in the emptied folder found no checkpoint: the job began anew, and published everything once more."""
    files = _Removed([ledger.book])
    faults = [Fault(0, "kill", after="commit 3 done")] if then == "a restart" else []
    world = simulation(counted.build, ledger, files, faults=faults)
    assert world.run() is JobStatus.FAILED
    cause = world.coordinator.cause
    assert cause is not None and cause.kind == "state" and "CheckpointsRemoved" in cause.message
    assert "was removed, or a part of it, while job 'story' ran" in cause.message
    assert check_records(ledger.book, counted.expected(240), counted.order, partly=True) == []
    assert files.commits == 3


def test_of_two_drivers_only_the_newer_one_commits(ledger: Ledger) -> None:
    """The old one was asleep, wakes up with all its workers, and goes on as if nothing had happened."""
    for seed in range(8):
        BOOKS[ledger.name] = Book()
        files = WatchedFiles([ledger.book])
        faults = [Fault(10 * seed, "freeze-driver", duration=2 * MS, after="Complete 2")]
        world = finished(simulation(counted.build, ledger, files, seed=seed, faults=faults))
        old, new = world.cluster.drivers.values()
        assert new.coordinator.status is JobStatus.FINISHED
        assert old.coordinator.status is JobStatus.FAILED
        assert old.coordinator.cause is not None and old.coordinator.cause.kind == "fenced"
        is_right(ledger, files, counted.expected(240), counted.order)


def test_an_old_driver_that_must_restart_is_told_that_it_was_overtaken(ledger: Ledger) -> None:
    """The driver once requested a new incarnation again and again: that it was refused one counted as a fault of the
    storage. It is the search that found it (seed 14 of its first version)."""
    files = WatchedFiles([ledger.book])
    faults = [
        Fault(0, "freeze-driver", duration=3 * MS, after="Complete 2"),
        Fault(40, "kill", 0, after="froze the driver"),
        Fault(41, "kill", 0, after="froze the driver"),
    ]
    world = finished(simulation(counted.build, ledger, files, faults=faults))
    old = next(iter(world.cluster.drivers.values()))
    assert old.coordinator.status is JobStatus.FAILED
    assert old.coordinator.cause is not None and old.coordinator.cause.kind == "fenced"
    assert old.coordinator.attempts.restarts == 1
    is_right(ledger, files, counted.expected(240), counted.order)


# Crashes of the driver at every step of a checkpoint.


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_the_driver_may_die_between_any_two_steps(ledger: Ledger, first: int) -> None:
    for turn in range(first, first + 40, 2):
        BOOKS[ledger.name] = Book()
        files = WatchedFiles([ledger.book])
        world = finished(
            simulation(counted.build, ledger, files, n=60, faults=[Fault(turn, "crash-driver")], keep_trace=False)
        )
        assert world.covered["crashed the driver"] == 1
        is_right(ledger, files, counted.expected(60))


# Overlaps, requests, and the same story again.


def test_several_checkpoints_are_under_way_at_once(ledger: Ledger) -> None:
    files = WatchedFiles([ledger.book])
    settings = replace(EVERY_MS, max_concurrent=3)
    world = finished(
        simulation(counted.build, ledger, files, settings=settings, conditions=NETWORKS["slow"], rate=6_000)
    )
    assert world.covered["several checkpoints under way"] >= 5
    is_right(ledger, files, counted.expected(240), counted.order)


def test_a_checkpoint_may_be_requested(ledger: Ledger) -> None:
    files = WatchedFiles([ledger.book])
    settings = CheckpointSettings(interval=None)
    faults = [Fault(turn, "checkpoint") for turn in (100, 300, 500)]
    world = finished(simulation(counted.build, ledger, files, settings=settings, faults=faults))
    assert world.covered["completed a checkpoint"] == 4
    is_right(ledger, files, counted.expected(240))


def test_the_same_seed_and_faults_give_the_same_history(ledger: Ledger) -> None:
    def told(seed: int) -> str:
        BOOKS[ledger.name] = Book()
        faults = [Fault(300, "kill", 1), Fault(900, "crash-driver")]
        return finished(simulation(counted.build, ledger, WatchedFiles([ledger.book]), seed=seed, faults=faults)).digest

    assert told(5) == told(5)
    assert told(5) != told(6)


# From an older one.


def test_who_went_back_too_far_finds_the_later_checkpoints_whole(ledger: Ledger) -> None:
    """The driver dies between a commit and its publication. The user starts from an older checkpoint, sees that it was
    wrong, ends that, and starts from the newest. What that had prepared is still there: every record is published, once."""
    files = WatchedFiles([ledger.book])
    first = simulation(counted.build, ledger, files, run_id="first", settings=replace(EVERY_MS, keep=5))
    first.start()
    while files.commits < 4:
        first.turn()
    store = MemoryStore("story", files)
    incarnation = store.incarnations()[-1]
    older, newest = (f"{incarnation}/{n}.manifest" for n in (2, 4))
    hidden = set(ledger.book.prepared)
    assert store.manifest(newest).prepared, "it died before it had published what the newest has"

    back = simulation(
        counted.build,
        ledger,
        files,
        run_id="back",
        settings=replace(EVERY_MS, keep=5),
        origin=(files, older),
    )
    assert back.run_until("RUNNING") and back.coordinator.status is JobStatus.RUNNING
    assert hidden <= {*ledger.book.prepared, *ledger.book.published}, "nothing of the first run was removed"

    after_all = simulation(
        counted.build,
        ledger,
        files,
        run_id="after all",
        settings=replace(EVERY_MS, keep=5),
        origin=(files, newest),
    )
    assert after_all.run() is JobStatus.FINISHED
    after_all.drain()
    assert check_records(ledger.book, counted.expected(240), counted.order) == []


# Much that sinks prepare.


def test_what_sinks_prepare_goes_through_the_files_where_it_is_much(ledger: Ledger) -> None:
    """More than a message may hold, as it were. The driver dies between a commit and its publication, and the next one has
    the publisher read it from the files of a checkpoint that it did not write."""
    files = WatchedFiles([ledger.book])
    read = "read output that sinks have prepared"
    faults = [Fault(0, "crash-driver", after="commit 3 done"), Fault(9, "crash-driver", after=f"{read} done")]
    world = finished(simulation(counted.build, ledger, files, faults=faults, tuning=Tuning(inline=4)))
    assert files.wrong == [] and check_records(ledger.book, counted.expected(240), counted.order) == []
    assert world.covered["crashed the driver"] == 2
    assert world.covered[read] > 3
