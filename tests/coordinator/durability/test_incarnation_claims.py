"""Looks at the claim of a job: a coordinator that another start has overtaken gives up slots for which that one waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from driving import LIMITS, SECOND, Job, S

from tailrace.coordinator.actions import CheckClaim, Claim
from tailrace.protocol.deployment import FailureKind, Leave, SubtasksFinished
from tailrace.protocol.snapshot import Trigger


def looks(job: Job, seconds: int) -> list[int]:
    """The seconds after which the job looks at its claim, each look with nothing new."""
    found = []
    for second in range(1, seconds + 1):
        job.now += SECOND
        for slot, epoch in enumerate(job.epochs):
            if epoch:
                job.machine.heartbeat(slot, 10 + slot, job.now)
        job.machine.tick(job.now)
        for look in job.actions(CheckClaim):
            found.append(second)
            job.machine.claim_checked(look.incarnation, job.now)
    return found


def fenced(job: Job, incarnation: int = 1) -> None:
    what = "a newer start of job 'job' (run other) has taken over with incarnation 2: this one ends"
    job.machine.claim_checked(incarnation, job.now, what, FailureKind.FENCED)


def test_a_job_that_waits_for_slots_looks_at_growing_intervals_and_gives_them_up_when_fenced() -> None:
    job = Job().start()
    job.hello(0)
    job.actions()
    assert looks(job, 50) == [2, 6, 14, 29, 44]
    fenced(job)
    assert job.status is S.FAILING and job.machine.cause is not None
    assert job.machine.cause.kind is FailureKind.FENCED and "has taken over" in job.machine.cause.message
    assert job.said(Leave) != [], "the worker gives its slot to the other start"
    assert job.machine.give_up(crashed=False) is None, "that start goes on from these checkpoints"


def waiting_again(job: Job) -> None:
    """A restart, whose claim is answered, waits for a lost worker."""
    job.lose(1)
    assert job.actions(Claim) == [Claim()]
    job.machine.claim_done(2, None, "", job.now)


def replacing(job: Job) -> None:
    """A lost worker is replaced, and nobody takes its place."""
    job.lose(1)


def restoring(job: Job) -> None:
    """Workers read their state, and do not come to an end."""
    waiting_again(job)
    job.hello(1)


def finishing(job: Job) -> None:
    """The output of the last checkpoint is being published."""
    job.all_say(SubtasksFinished([]))
    [(_, trigger), _] = job.sent(Trigger)
    for slot in range(2):
        job.ack(slot, trigger.checkpoint, b"output")
    job.commit()


@pytest.mark.parametrize("wait", [waiting_again, replacing, restoring, finishing])
def test_whatever_the_job_waits_for_it_looks_at_its_claim(wait: Callable[[Job], None]) -> None:
    job = Job(standbys=0 if wait is replacing else None).run()
    job.commit(job.acked())
    wait(job)
    job.actions()
    assert looks(job, 20) == [2, 6, 14]
    fenced(job, job.machine.incarnation)
    assert job.status is S.FAILING


def test_a_job_that_runs_is_told_by_its_commits_and_looks_where_none_comes() -> None:
    job = Job().run()
    most = LIMITS.slots * 3 // 4 // SECOND
    assert looks(job, most - 1) == []
    job.commit(job.acked())
    assert looks(job, most) == [most]
    fenced(job)
    assert job.status is S.FAILING


def test_a_look_that_cannot_be_made_changes_nothing_and_comes_again() -> None:
    job = Job().start()
    job.wait(2)
    [look] = job.actions(CheckClaim)
    job.wait(10)
    assert job.actions(CheckClaim) == [], "one at a time"
    job.machine.claim_checked(look.incarnation, job.now, "OSError: no answer", FailureKind.STORE)
    assert job.status is S.STARTING
    job.wait(4)
    assert job.actions(CheckClaim) == [look]


def test_an_answer_about_an_incarnation_that_is_over_counts_for_nothing() -> None:
    job = Job().run()
    job.lose(1)
    fenced(job)
    assert job.status is S.RESTARTING, "the claim under way will find that out itself"
    job.machine.claim_done(3, None, "", job.now)
    fenced(job)
    assert job.status is S.RESTARTING


def test_a_short_wait_for_slots_has_shorter_pauses() -> None:
    short = replace(LIMITS, slots=2 * SECOND)
    assert [short.checked_within(n, runs=False) for n in (0, 1, 60)] == [SECOND // 2] * 3
    assert short.checked_within(0, runs=True) < short.slots


def test_a_job_without_checkpoints_has_no_claim_to_look_at() -> None:
    job = Job(checkpoints=False).start()
    job.wait(50)
    assert job.actions(CheckClaim) == []
