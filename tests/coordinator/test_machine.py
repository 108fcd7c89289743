"""The coordinator of a job, driven by hand: events go in, actions come out."""

from typing import Any

import pytest
from driving import LIMITS, SECOND, Job, S

from tailrace.coordinator.actions import CloseLink, Kill, Launch, Send, StatusChanged, WasPublished, WorkerPrinted
from tailrace.coordinator.durability.stopping import Aim
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Never
from tailrace.protocol.deployment import (
    Deploy,
    Deployed,
    Failed,
    FailureKind,
    Hello,
    Leave,
    Peer,
    PrintedLine,
    Progress,
    Publish,
    Published,
    Start,
    SubtaskReport,
    SubtasksFinished,
    Welcome,
)

UNKNOWN = "; all, some or none of the job's output may be visible"
"""Said where a job without checkpoints fails while it publishes."""


def plain(slots: int = 2) -> Job:
    """A job that takes no checkpoints and never starts again."""
    return Job(slots=slots, checkpoints=False, restarts=Never())


def at(status: JobStatus, slots: int = 2) -> Job:
    """A job that has come to this state, with nothing left to do."""
    job = plain(slots)
    if status is not S.CREATED:
        job.start()
    if status in (S.RUNNING, S.STOPPING, S.FINISHING):
        for slot in range(slots):
            job.hello(slot)
        job.all_say(Deployed())
    if status is S.STOPPING:
        job.machine.stop("somebody", Aim(), job.now)
    if status is S.FINISHING:
        job.all_say(SubtasksFinished([("files", b"files")]))
    if status is S.FAILING:
        for slot in range(slots):
            job.hello(slot)
        job.says(0, Failed(FailureKind.USER, "it broke"))
    if status is S.CANCELLING:
        for slot in range(slots):
            job.hello(slot)
        job.machine.cancel(job.now)
    assert job.status is status
    job.actions()
    return job


def leaves(job: Job) -> list[int]:
    """The slots that are sent `Leave`."""
    return [a.slot for a in job.actions() if isinstance(a, Send) and isinstance(a.message, Leave)]


# The good course.


def test_a_job_from_its_start_to_its_end() -> None:
    job = plain(2).start()
    assert job.actions() == [StatusChanged(S.STARTING), Launch(0), Launch(1)]

    assert job.hello(1) == 1
    assert job.actions() == [Send(1, 1, Welcome(1))]
    assert job.hello(0) == 1
    peers = [Peer(0, "h0", 0, 1), Peer(1, "h1", 1, 1)]
    assert job.actions() == [Send(0, 1, Welcome(1)), *(Send(i, 1, Deploy(b"the plan", peers)) for i in range(2))]

    job.says(1, Deployed())
    assert job.actions() == []
    job.says(0, Deployed())
    assert job.actions() == [StatusChanged(S.RUNNING), Send(0, 1, Start()), Send(1, 1, Start())]

    job.says(0, SubtasksFinished([("seven", b"a"), ("nine", b"b")]))
    assert job.actions() == []
    job.says(1, SubtasksFinished([("seven", b"c")]))
    own = [
        (0, Publish([("nine", [b"b"])])),
        (0, Publish([("seven", [b"a"])], part=1)),
        (1, Publish([("seven", [b"c"])])),
    ]
    assert job.actions() == [StatusChanged(S.FINISHING), *(Send(slot, 1, message) for slot, message in own)]

    for slot, message in own:
        assert [one for one in job.actions() if isinstance(one, Send)] == [], "all of it has to be visible"
        job.says(slot, Published(part=message.part))
    assert job.actions() == [WasPublished(), *(Send(i, 1, Leave("the job has finished")) for i in range(2))]
    assert job.status is S.FINISHING
    job.ended(0)
    assert job.actions() == []
    job.ended(1)
    assert job.actions() == [StatusChanged(S.FINISHED)]
    assert job.machine.cause is None and job.machine.left_behind == []


def test_where_nothing_is_to_be_published_workers_leave_at_once() -> None:
    job = at(S.RUNNING)
    job.all_say(SubtasksFinished([]))
    assert leaves(job) == [0, 1]
    job.ended(0)
    job.ended(1)
    assert job.status is S.FINISHED


def test_publishing_is_sent_once_and_finishing_once() -> None:
    job = at(S.FINISHING)
    job.all_say(SubtasksFinished([("files", b"again")]))
    assert job.actions() == []
    job.published()
    assert leaves(job) == [0, 1]
    job.says(0, Published())
    assert job.actions() == []


@pytest.mark.parametrize("status", [S.STARTING, S.RUNNING])
def test_who_says_published_before_it_was_told_to_is_not_believed(status: JobStatus) -> None:
    job = at(status)
    if status is S.STARTING:
        job.hello(0)
        job.actions()
    job.says(0, Published())
    assert job.status is status and job.actions() == []


# Who joins.


def test_the_newest_hello_of_a_slot_holds_it() -> None:
    job = plain(2).start()
    assert job.hello(0) == 1
    job.actions()
    assert job.hello(0, pid=99) == 2
    assert job.actions() == [CloseLink(0, 1), Send(0, 2, Welcome(2))]
    # Messages of the older one are ignored, and so is its end.
    job.says(0, Failed(FailureKind.USER, "from the dead"), epoch=1)
    job.machine.link_lost(0, 1, "reset", job.now)
    assert job.status is S.STARTING and job.actions() == []
    # The peers get the address of the newer one.
    job.hello(1)
    deploys = [a for a in job.actions() if isinstance(a, Send) and isinstance(a.message, Deploy)]
    assert [a.epoch for a in deploys] == [2, 1]
    assert deploys[0].message.peers[0].epoch == 2


def test_a_worker_replaced_after_the_deployment_fails_the_job() -> None:
    job = plain(2).start()
    job.hello(0)
    job.hello(1)
    job.actions()
    job.hello(0, pid=99)
    assert job.status is S.FAILING
    assert job.machine.cause is not None
    assert job.machine.cause.message == "Spark replaced the process of worker 0"


@pytest.mark.parametrize("status", [S.RUNNING, S.FINISHING])
def test_a_worker_that_spark_started_again_by_itself_has_lost_what_it_held(status: JobStatus) -> None:
    job = at(status)
    assert job.hello(0, pid=99) == 2
    assert job.status is S.FAILING
    assert leaves(job) == [0, 1]
    found = UNKNOWN if status is S.FINISHING else ""
    assert (
        job.machine.cause is not None and job.machine.cause.message == f"Spark replaced the process of worker 0{found}"
    )


def test_a_worker_is_known_by_its_start_and_not_by_the_incarnation_it_was_started_under() -> None:
    # The coordinator may have claimed a newer one while Spark looked for a place for the worker.
    job = plain(1).start()
    job.machine.claim_done(2, None, "", job.now)
    assert job.hello(0, incarnation=1) == 1


@pytest.mark.parametrize(
    "other",
    [{"job": "another"}, {"launch": 2}, {"launch": 0}, {"incarnation": 0}, {"slot": 2}, {"slot": -1}],
    ids=lambda other: str(other),
)
def test_who_does_not_belong_here_is_sent_away(other: dict[str, Any]) -> None:
    job = plain(2).start()
    job.actions()
    slot = other.pop("slot", 0)
    message = Hello(slot, "h", 1, 10, **{"job": "job", "incarnation": 1, **other})
    assert job.machine.hello(message, job.now) is None
    assert job.actions() == [] and job.status is S.STARTING


@pytest.mark.parametrize("status", [S.CREATED, S.FAILING, S.CANCELLING])
def test_who_comes_too_late_or_too_early_is_sent_away(status: JobStatus) -> None:
    job = at(status)
    assert job.hello(0, pid=99) is None
    assert job.actions() == [] and job.status is status


def test_a_message_that_no_worker_of_a_slot_may_send_fails_the_job() -> None:
    job = at(S.RUNNING)
    job.says(1, Failed(FailureKind.FENCED, "overtaken"))
    assert job.status is S.FAILING
    assert job.machine.cause is not None
    assert job.machine.cause.message == "worker 1 sent Failed, which no worker of a slot may send"


# Failures.


@pytest.mark.parametrize("status", [S.STARTING, S.RUNNING, S.FINISHING])
def test_the_first_failure_is_the_cause_and_everybody_leaves(status: JobStatus) -> None:
    job = at(status)
    if status is S.STARTING:
        job.hello(0)
        job.hello(1)
        job.actions()
    job.says(1, Failed(FailureKind.USER, "it broke", operator="map", subtask=1, record="[1]"))
    assert job.status is S.FAILING
    assert leaves(job) == [0, 1]
    cause = job.machine.cause
    assert cause is not None
    assert (cause.message, cause.kind, cause.operator, cause.subtask, cause.record) == (
        f"it broke{UNKNOWN if status is S.FINISHING else ''}",
        "user",
        "map",
        1,
        "[1]",
    )
    job.says(0, Failed(FailureKind.PEER, "so did I"))
    job.machine.link_lost(0, job.epochs[0], "closed", job.now)
    job.machine.cancel(job.now)
    assert job.machine.cause == cause and job.actions() == []
    job.ended(0)
    job.ended(1)
    assert job.status is S.FAILED


def test_a_lost_worker_fails_the_job_and_the_others_leave() -> None:
    job = at(S.RUNNING)
    job.machine.link_lost(0, job.epochs[0], "connection reset", job.now)
    assert job.status is S.FAILING
    assert leaves(job) == [1]
    assert job.machine.cause is not None and job.machine.cause.message == "worker 0 was lost: connection reset"
    job.ended(0, "the Python worker was killed")
    assert job.machine.cause.message == "worker 0 was lost: connection reset; Spark says: the Python worker was killed"


@pytest.mark.parametrize("status", [S.STARTING, S.RUNNING, S.FINISHING])
@pytest.mark.parametrize("error", [None, "out of memory"])
def test_a_slot_that_ends_early_fails_the_job(status: JobStatus, error: str | None) -> None:
    job = at(status)
    job.ended(1, error)
    assert job.status is S.FAILING
    found = f"with an error: {error}" if error is not None else "before the job, and without an error"
    found += UNKNOWN if status is S.FINISHING else ""
    assert job.machine.cause is not None and job.machine.cause.message == f"the Spark task of worker 1 ended {found}"
    job.ended(0)
    assert job.status is S.FAILED


def test_the_only_slot_that_ends_early_ends_the_job_at_once() -> None:
    job = at(S.RUNNING, slots=1)
    job.ended(0, "gone")
    assert [a for a in job.actions() if isinstance(a, StatusChanged)] == [
        StatusChanged(S.FAILING),
        StatusChanged(S.FAILED),
    ]


def test_slots_that_do_not_come_in_time_fail_the_job_with_the_numbers() -> None:
    job = plain(3).start()
    job.hello(0)
    for _ in range(11):
        job.silence(5)
        job.machine.heartbeat(0, 10, job.now)
    assert job.status is S.STARTING
    job.silence(5)
    assert job.status is S.FAILING
    cause = job.machine.cause
    assert cause is not None and cause.kind == "slots"
    assert cause.message == (
        "the job needs 3 task slots, and Spark gave it 1 within 60 s; give Spark more free cores, lower the "
        "parallelism, or raise slot_timeout"
    )


# Signs of life.


def test_a_worker_without_a_sign_of_life_is_lost_after_its_lease() -> None:
    job = at(S.RUNNING)
    for _ in range(5):
        job.silence(6)
        job.machine.heartbeat(0, 10, job.now)  # one by its heartbeat
        job.says(1, Progress([], 0))  # the other by its message
    job.silence(6)
    job.machine.heartbeat(0, 10, job.now)
    assert job.status is S.RUNNING
    job.silence(4)
    assert job.status is S.FAILING
    assert job.machine.cause is not None and job.machine.cause.message == "worker 1 has given no sign of life for 10 s"


def test_the_heartbeat_of_another_process_is_no_sign_of_life() -> None:
    job = at(S.RUNNING)
    job.silence(6)
    for slot, pid in [(0, 99), (1, 10), (2, 12), (-1, 11)]:
        job.machine.heartbeat(slot, pid, job.now)
    job.silence(4)
    assert job.status is S.FAILING


def test_who_has_not_joined_cannot_be_silent() -> None:
    job = plain(2).start()
    job.hello(0)
    for _ in range(9):
        job.silence(6)
        job.machine.heartbeat(0, 10, job.now)
    assert job.status is S.STARTING


def test_progress_is_kept_by_slot() -> None:
    job = at(S.RUNNING)
    job.says(1, Progress([SubtaskReport(0, 1, records_in=5)], 77, {"bad token": 2}))
    slot = job.machine.roster.slots[1]
    assert (slot.reports[0].records_in, slot.elapsed, slot.refused) == (5, 77, {"bad token": 2})
    assert job.actions() == []


# Cancelling.


def test_a_job_that_was_not_started_is_cancelled_at_once() -> None:
    job = plain()
    job.machine.cancel(job.now)
    assert job.actions() == [StatusChanged(S.CANCELLING), StatusChanged(S.CANCELLED)]


@pytest.mark.parametrize("status", [S.STARTING, S.RUNNING, S.FINISHING])
def test_a_job_may_be_cancelled_until_its_outcome_is_decided(status: JobStatus) -> None:
    job = at(status)
    job.machine.cancel(job.now)
    assert job.status is S.CANCELLING
    assert leaves(job) == ([] if status is S.STARTING else [0, 1])
    job.machine.cancel(job.now)
    job.all_say(Failed(FailureKind.PEER, "lost a peer that was told to leave"))
    assert job.machine.cause is None and job.actions() == []
    job.ended(0)
    job.ended(1, "killed")
    assert job.status is S.CANCELLED and job.machine.cause is None


def test_once_sinks_have_published_it_is_too_late_to_cancel_or_to_fail() -> None:
    job = at(S.FINISHING)
    job.published()
    job.actions()
    job.machine.cancel(job.now)
    job.says(1, Failed(FailureKind.USER, "close raised"))
    job.machine.link_lost(1, job.epochs[1], "closed", job.now)
    assert job.status is S.FINISHING and job.actions() == []
    job.ended(0)
    job.ended(1)
    assert job.status is S.FINISHED


@pytest.mark.parametrize("final", [S.FINISHED, S.FAILED, S.CANCELLED])
def test_after_the_end_nothing_changes_any_more(final: JobStatus) -> None:
    job = at({S.FINISHED: S.FINISHING, S.FAILED: S.FAILING, S.CANCELLED: S.CANCELLING}[final])
    if final is S.FINISHED:
        job.published()
    job.ended(0)
    job.ended(1)
    job.actions()
    assert job.status is final
    job.machine.cancel(job.now)
    job.says(0, Failed(FailureKind.USER, "late"))
    job.ended(0, "again")
    job.machine.link_lost(1, job.epochs[1], "closed", job.now)
    job.silence(1000)
    assert job.hello(0) is None
    assert (job.status, job.actions(), job.machine.next_tick(job.now)) == (final, [], None)


# Leaving.


@pytest.mark.parametrize("status", [S.FAILING, S.CANCELLING])
def test_who_does_not_leave_is_killed_and_after_that_left_behind(status: JobStatus) -> None:
    job = at(status)
    job.ended(0)
    job.silence(2.9)
    assert job.actions() == []
    job.silence(0.1)
    assert job.actions() == [Kill(1)]
    job.silence(8.9)
    assert job.actions() == [] and job.status is status
    job.silence(0.1)
    assert job.status.final and job.machine.left_behind == [1]
    assert [type(a) for a in job.actions()] == [StatusChanged]


@pytest.mark.parametrize("status", [S.FAILING, S.CANCELLING])
def test_who_was_killed_and_is_gone_ends_the_job(status: JobStatus) -> None:
    job = at(status)
    job.silence(3)
    assert job.actions() == [Kill(0), Kill(1)]
    job.ended(1, "cancelled")
    job.ended(0, "cancelled")
    assert job.status.final and job.machine.left_behind == []


def test_a_job_that_has_published_ends_as_finished_though_somebody_stays() -> None:
    job = at(S.FINISHING)
    job.published()
    job.ended(0)
    job.silence(29)  # after a good end users' functions may take their time to close
    assert Kill(1) not in job.actions()
    job.silence(1)
    assert Kill(1) in job.actions()
    job.silence(9)
    assert job.status is S.FINISHED and job.machine.left_behind == [1]


# The clock.


def test_the_next_tick_is_when_the_clock_alone_gives_something_to_do() -> None:
    job = plain(2)
    assert job.machine.next_tick(job.now) is None
    job.start()
    assert job.machine.next_tick(job.now) == job.now + LIMITS.slots
    job.hello(0)
    assert job.machine.next_tick(job.now) == job.now + LIMITS.lease
    job.hello(1)
    job.all_say(Deployed())
    job.now += 4 * SECOND
    job.says(0, Progress([], 0))
    assert job.machine.next_tick(job.now) == job.now + LIMITS.lease - 4 * SECOND
    job.machine.cancel(job.now)
    assert job.machine.next_tick(job.now) == job.now + LIMITS.leave
    job.silence(3)
    assert job.machine.next_tick(job.now) == job.now + LIMITS.gone


@pytest.mark.parametrize("status", [s for s in S if not s.final and s is not S.RESTARTING])
def test_a_tick_when_it_is_due_changes_something(status: JobStatus) -> None:
    job = at(status)
    for _ in range(10):
        tick = job.machine.next_tick(job.now)
        if tick is None:
            break
        assert tick > job.now, "the driver would spin"
        job.now = tick
        job.machine.tick(job.now)
    assert job.status.final or status is S.CREATED


def test_what_was_prepared_may_come_in_parts() -> None:
    for alone in ([], ["sink"]):
        job = at(S.RUNNING)
        job.says(0, SubtasksFinished([("sink", b"a")], True, alone))
        job.says(0, SubtasksFinished([("sink", b"b")], True, alone))
        job.says(1, SubtasksFinished([("sink", b"d")], False, alone))
        assert job.status is S.RUNNING, "the first one has not said all"
        job.says(0, SubtasksFinished([("sink", b"c")], False, alone))
        assert job.status is S.FINISHING
        found = [(one.slot, one.message.prepared) for one in job.actions(Send)]
        first, second = [b"a", b"b", b"c"], [b"d"]
        each = [(0, [("sink", first)]), (1, [("sink", second)])]
        assert found == ([(0, [("sink", first + second)])] if alone else each)


def test_what_a_worker_has_printed_goes_to_the_watchers_and_a_report_without_lines_does_not() -> None:
    job = at(S.RUNNING)
    lines = [PrintedLine(0, 1, "here")]
    job.says(1, Progress([], 1))
    assert job.actions() == []
    job.says(1, Progress([], 2, printed=lines, lines_left_out=3))
    assert job.actions() == [WorkerPrinted(1, lines, 3)]
