"""Five minutes without a place that a job needs: it lives, nothing is lost, it reports what it waits for, and it can be
cancelled. For real, and for seconds: `tests/runtime/test_outages.py`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.connectors.filesinks import FileSink, FileWriter
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Never
from tailrace.coordinator.output.outages import SINKS, STORAGE
from tailrace.coordinator.view.view_makers import Books, books_of
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.simulator import Simulation
from tailrace.testing.storing import Trouble
from tailrace.testing.world import Conditions

SECOND = 1_000_000
BEGINS, LASTS, N = 20, 300, 380
EVER = 1 << 60
WRITES = "create|writer|append|close|rename|delete"
TROUBLES: dict[str, Callable[[int], Trouble]] = {
    "away": lambda second: Trouble(EVER, 1.0),
    "read-only": lambda second: Trouble(EVER, 1.0, only=WRITES),
    "full": lambda second: Trouble(EVER, 1.0, only="append|create"),
    "slow": lambda second: Trouble(EVER, slow=4 * SECOND),
    "hanging": lambda second: Trouble(),
    "flapping": lambda second: Trouble(EVER, 1.0, "any") if second % 20 < 13 else Trouble(),
}
"""By how the storage is: what is wrong with it, so many seconds after its trouble began."""


class Job:
    """A job that takes a checkpoint every five seconds, tolerates no failure of one, and is never restarted."""

    def __init__(self, folder: Path, how: str = "") -> None:
        self.how, self.out = how, folder / "out"
        self.seen: list[int] = []
        env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("memory", interval=5, tolerated_failures=0))
        numbers = env.from_source(tr.sources.Sequence(0, N, rate=1.0))
        kept = numbers.key_by(lambda n: n % 7).map(lambda n: self.seen.append(n) or n)  # type: ignore[func-returns-value]
        kept.sink_to(tr.sinks.TextFiles(str(self.out)), uid="lines")
        calm = Conditions(delay=(1, 50_000), zombie=(0, SECOND))
        self.world: Simulation = prepared_simulation(
            env, name="job", seed=len(how), conditions=calm, keep_trace=False, restarts=Never, pickled=False
        )
        self.began = self.world.now
        self.world.start()

    @property
    def second(self) -> int:
        return (self.world.now - self.began) // SECOND

    @property
    def books(self) -> Books:
        found = books_of(self.world.coordinator, self.world.now)
        assert found is not None
        return found

    @property
    def completed(self) -> int:
        return self.world.coordinator.checkpoints.completed

    def until(self, second: int) -> Iterator[int]:
        """Each turn until that second of the job."""
        while not self.world.coordinator.status.final and self.second < second:
            self.world.turn()
            yield self.second

    def trouble(self, second: int) -> None:
        """The storage is in trouble until that second."""
        if self.how == "hanging":
            self.world.strike(Fault(0, "hang", duration=(second - self.second) * SECOND))
        begins = self.second
        for now in self.until(second):
            self.world.storage.trouble = TROUBLES[self.how](now - begins)
        self.world.storage.trouble = Trouble()

    def ends(self) -> None:
        """Waits for the end of the job, without a restart: each record is there once."""
        for _ in self.until(10 * N):
            pass
        assert self.world.coordinator.status is JobStatus.FINISHED, self.world.coordinator.cause
        found = [int(line) for file in self.out.glob("part-*") for line in file.read_text().splitlines()]
        assert sorted(found) == list(range(N))


@pytest.mark.parametrize("how", TROUBLES)
def test_five_minutes_without_the_storage_of_checkpoints_cost_a_job_nothing(tmp_path: Path, how: str) -> None:
    job = Job(tmp_path, how)
    for _ in job.until(BEGINS):
        pass
    before, completed = len(job.seen), job.completed
    job.trouble(BEGINS + LASTS)
    assert len(job.seen) - before > 0.95 * LASTS, "records go on"
    [*waits], [*pending] = job.books.waits, job.books.pending
    if how == "slow":
        assert completed < job.completed < completed + LASTS / 8
    elif how == "hanging":
        assert job.completed == completed and pending[0].age > (LASTS - 10) * SECOND
    elif how != "flapping":  # it may be in reach just now
        assert job.completed == completed
        assert [one.place for one in waits] == [STORAGE] and "refused by a fault" in waits[0].reason
        assert waits[0].age > (LASTS - 10) * SECOND
    completed = job.completed
    for _ in job.until(job.second + 25):
        pass
    assert job.completed > completed and job.books.waits == (), "it is back"
    job.ends()
    assert job.world.causes == []
    assert job.seen.count(N - 1) == 1, "nothing was done twice"


@pytest.mark.parametrize("how", TROUBLES)
def test_a_job_without_its_storage_is_cancelled_within_seconds(tmp_path: Path, how: str) -> None:
    job = Job(tmp_path, how)
    for _ in job.until(BEGINS):
        pass
    job.trouble(BEGINS + 60)
    job.how, requested = how, job.world.now
    job.world.storage.trouble = TROUBLES[how](0)
    job.world.coordinator.cancel(job.world.now)
    job.world.coordinate(job.world.driver)
    for _ in job.until(10 * N):
        pass
    assert job.world.coordinator.status is JobStatus.CANCELLED
    assert job.world.now - requested < 6 * SECOND


def no_room(*args: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("full", ["writer", "publisher", "disk"])
def test_five_minutes_without_room_for_output_cost_no_record_and_no_restart_of_the_strategy(
    tmp_path: Path, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none: `Never`. A writer has lost its place in the attempt, so the job starts again after pauses that grow;
    output that is prepared is published when there is room, while records go on."""
    job = Job(tmp_path)
    for _ in job.until(BEGINS):
        pass
    before = len(job.seen)
    with monkeypatch.context() as patched:
        if full != "publisher":
            patched.setattr(FileWriter, "_begin", no_room)
        if full != "writer":
            patched.setattr(FileSink, "_make_visible", no_room)
        for _ in job.until(BEGINS + LASTS):
            pass
        [waits] = job.books.waits
        assert (waits.place, waits.age > (LASTS - 20) * SECOND) == (SINKS, True)
        assert "the sink 'sink: text files'" in waits.reason and "No space left on device" in waits.reason
    if full == "publisher":
        assert job.world.causes == [] and len(job.seen) - before > 0.95 * LASTS
    else:
        assert len(job.world.causes) > 20
    restarts = len(job.world.causes)
    for _ in job.until(job.second + 25):
        pass
    assert job.books.waits == () and len(job.world.causes) <= restarts + 1, "there is room"
    job.ends()
