"""What becomes of output, and of the files of checkpoints, where the end of a job, another driver or the next commit
overtakes what is on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from driving import Job, S

import tailrace as tr
from tailrace.coordinator.actions import Delete, Restarting
from tailrace.coordinator.job.restarts import Fixed
from tailrace.protocol.deployment import Deployed, Failed, FailureKind, Publish, Published, SubtasksFinished
from tailrace.runtime.driver.coordinator import JobRunner
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.config import WorkerConfig
from tailrace.state.manifest import Manifest, Prepared
from tailrace.testing.memorystore import MemoryStore


def opened(**options: Any) -> Job:
    """A job whose workers have joined. A failure starts it again at once."""
    job = Job(restarts=Fixed(3, 0), **options).start()
    for slot in range(2):
        assert job.hello(slot) == 1
    return job


def manifest(*prepared: Prepared) -> Manifest:
    return Manifest("job", "earlier", 1, 5, 0, 128, 2, [], prepared=list(prepared), root="here")


# A cancelled job whose restored output is still being published.


@pytest.mark.parametrize("end", ["cancel", "fail"])
def test_a_job_that_ends_while_the_output_of_its_checkpoint_is_published_does_not_start(end: str) -> None:
    """The job was started from a checkpoint with output that may not be published. It has the worker publish it, and is
    cancelled (or fails) meanwhile. The worker answers all the same: that is no reason to run."""
    job = opened(start_from=manifest(Prepared("sink", b"file")), folder="here")
    job.all_say(Deployed())
    assert job.said(Publish) == [Publish([("sink", [b"file"])], 0, ["earlier"], "here")]
    if end == "cancel":
        job.machine.cancel(job.now)
    else:
        job.says(1, Failed(FailureKind.STATE, "it is damaged"))
    job.says(0, Published(0))
    assert job.machine.status is (S.CANCELLING if end == "cancel" else S.FAILING)
    for slot in range(2):
        job.machine.slot_ended(slot, None, job.now)
    assert job.machine.status is (S.CANCELLED if end == "cancel" else S.FAILED)


# Without checkpoints: publishing is the last thing, and cannot be done again by doing everything again.


def test_without_checkpoints_a_loss_while_output_is_published_does_not_write_it_twice() -> None:
    """All slices have ended and worker 0 publishes what the sinks have prepared; it is lost before it reports that. A
    restart would begin from nothing and publish all output once more, under other names."""
    job = opened(checkpoints=False).deployed()
    job.all_say(SubtasksFinished([("sink", b"file")]))
    assert [slot for slot, _ in job.sent(Publish)] == [0, 1]
    job.machine.link_lost(0, 1, "it died", job.now)
    assert not any(isinstance(action, Restarting) for action in job.actions())
    assert job.machine.status is S.FAILING
    assert job.machine.cause is not None and "visible" in job.machine.cause.message


# Files of checkpoints that a job's end has overtaken.


def test_what_was_acked_and_is_in_no_checkpoint_goes_when_the_job_ends() -> None:
    """Worker 0 has acked, and thinks no more of its file; worker 1 acks when the job was cancelled already, before it
    knows that. Where checkpoints are kept no job would ever delete the two files."""
    job = opened().deployed()
    number = job.trigger()
    job.ack(0, number)
    job.actions()
    job.machine.cancel(job.now)
    assert [a for a in job.actions() if isinstance(a, Delete)] == [Delete([f"1/chk-{number}/w0-1.state"])]
    job.ack(1, number)
    assert job.actions() == [Delete([f"1/chk-{number}/w1-1.state"])]


def test_the_files_of_a_checkpoint_whose_manifest_is_on_its_way_stay() -> None:
    """The manifest may be committed: then whoever starts from it needs the files."""
    job = opened().deployed()
    job.acked()
    job.machine.cancel(job.now)
    assert not any(isinstance(action, Delete) for action in job.actions())


# What is left under cover at the end of a job, and belongs to a checkpoint that stays.


class NoWorkers:
    """Gives no workers."""

    def watch(self, leaving: Any, room: Any = None) -> None: ...

    def executor(self, slot: int, launch: int) -> str | None: ...

    def listen_at(self) -> Binding:
        return Binding("127.0.0.1")

    def launch(self, config: WorkerConfig, ended: Callable[[int, str | None, bool], None]) -> None: ...

    def kill(self, slot: int, launch: int, pid: int | None) -> None: ...

    def close(self, timeout: float) -> None: ...


def ended(job: Job, store: Any, retain: str = "on-cancellation") -> list[Any]:
    """The end of a job's thread: what is requested to stay under cover, by the uid of the sink; nothing where no sink
    is requested to remove anything."""
    env = tr.Environment(parallelism=2)
    env.from_source(tr.sources.Sequence(0, 1)).sink_to(tr.sinks.Callback(print))
    found: list[Any] = []
    plan = env._plan(env._pending())
    monitor = ProgramMonitor("job", "id", plan, on_end=lambda status, kept: found.append(kept))
    runner = JobRunner(job.machine, NoWorkers(), monitor, store)
    job.machine.checkpoints.settings = replace(job.machine.checkpoints.settings, retain=retain)
    runner._carry_out()
    runner._finish()
    return found


def test_output_of_the_last_checkpoint_stays_under_cover_where_its_job_is_cancelled_before_it_is_published() -> None:
    """The checkpoint is complete and worker 0 was requested to publish what it holds, when the job is cancelled. The
    checkpoint is kept: a job that starts from it publishes its output, and must find it."""
    store = MemoryStore("job")
    job = opened().deployed()
    store.claim("run")
    commit = job.acked()
    job.machine.commit_done(commit.checkpoint, store.commit(1, 0, 1, commit.data), "url", job.now)
    assert len(job.said(Publish)) == 1
    job.machine.cancel(job.now)
    job.actions()
    assert ended(job, store) == [{"sink": [b"of 0", b"of 1"]}]


def test_output_of_a_checkpoint_that_is_committed_when_the_job_is_over_already_stays_under_cover() -> None:
    """The manifest is on its way when the job is cancelled, and is created after that."""
    store = MemoryStore("job")
    job = opened().deployed()
    store.claim("run")
    commit = job.acked()
    job.machine.cancel(job.now)
    job.actions()
    store.commit(1, 0, 1, commit.data)
    assert ended(job, store) == [{"sink": [b"of 0", b"of 1"]}]


def test_an_old_driver_leaves_what_its_successor_is_about_to_publish() -> None:
    """Another driver has taken over and starts from the newest checkpoint, which is ours; we learn of it at our next
    commit and end. What that checkpoint holds is the other one's to publish, and it may not have: nothing is removed."""
    store = MemoryStore("job")
    job = opened().deployed()
    store.claim("run")
    commit = job.acked()
    job.machine.commit_done(commit.checkpoint, store.commit(1, 0, 1, commit.data), "url", job.now)
    MemoryStore("job", store.memory).claim("another", takeover=True)
    later = job.acked()
    job.machine.not_committed(later.checkpoint, "another start has taken over", FailureKind.FENCED, job.now)
    assert job.machine.status is S.FAILING
    job.actions()
    assert ended(job, store, retain="never") == []


@pytest.mark.parametrize("overtaken", [False, True])
def test_an_old_driver_does_not_delete_what_its_successor_starts_from(overtaken: bool) -> None:
    """The job keeps no checkpoints when it ends. It is cancelled before it could notice that another driver has taken over,
    and has started from our newest checkpoint."""
    store = MemoryStore("job")
    job = opened().deployed()
    store.claim("run")
    commit = job.acked()
    job.machine.commit_done(commit.checkpoint, store.commit(1, 0, 1, commit.data), "url", job.now)
    successor = MemoryStore("job", store.memory)
    if overtaken:
        successor.claim("another", takeover=True)
    job.machine.cancel(job.now)
    job.actions()
    assert ended(job, store, retain="never") == ([] if overtaken else [{}])
    assert (successor.latest() is not None) is overtaken


def test_nothing_is_removed_where_the_last_checkpoint_cannot_be_read() -> None:
    """The output of that checkpoint may be waiting to be published."""
    store = MemoryStore("job", fail=lambda operation, name: "error")
    job = opened().deployed()
    job.machine.cancel(job.now)
    job.actions()
    assert ended(job, store) == []


# What is published while the next manifest is on its way.


def test_what_was_published_while_the_next_manifest_was_made_is_not_published_again() -> None:
    """The second manifest names the output of the first checkpoint, because it was not known to be published. It is, before
    the second one exists. Whoever reads the output may have moved the files since: publishing them again would fail."""
    job = opened().deployed()
    first = job.acked()
    job.machine.commit_done(first.checkpoint, "1/1.manifest", "url", job.now)
    assert job.said(Publish) == [Publish([("sink", [b"of 0", b"of 1"])], 1)]
    second = job.trigger()
    job.ack(0, second, b"later")
    job.ack(1, second)
    job.says(0, Published(1))
    job.machine.commit_done(second, "1/2.manifest", "url", job.now)
    assert job.said(Publish) == [Publish([("sink", [b"later"])], 2)]
    assert [one.data for one in job.machine.durability.output.carried_output()] == [b"later"]
