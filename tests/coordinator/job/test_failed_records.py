"""A restart says which record has failed, how often, and what would set it aside."""

from dataclasses import replace

import pytest

import tailrace as tr
from tailrace.coordinator.actions import Restarting
from tailrace.coordinator.job.failures import Cause, FailedRecords
from tailrace.protocol.deployment import Failed, FailureKind
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.worker.attribution import with_policy
from tests.coordinator.driving import Job

BAD = Cause("it broke", FailureKind.USER, "parse", 0, "'x'", error="ValueError", takes_policy=True)


def test_a_record_that_fails_again_is_counted() -> None:
    records = FailedRecords()
    assert records.advice(BAD) == (
        "record 'x' has failed once in operator 'parse', and comes again after a restart; "
        "on_error=tr.Aside(\"errors\") of operator 'parse' would set it aside, and the job would go on"
    )
    assert "has failed 2 times" in records.advice(BAD)
    assert "has failed once" in records.advice(replace(BAD, record="'y'"))
    assert "has failed 3 times" in records.advice(BAD)


def test_an_operator_that_takes_no_policy_has_its_records_checked_before_it() -> None:
    advice = FailedRecords().advice(replace(BAD, takes_policy=False))
    assert 'on_error=tr.Aside("errors") of a map before it, which checks the records, would set it aside' in advice


@pytest.mark.parametrize("cause", [replace(BAD, record=None), replace(BAD, kind=FailureKind.WORKER)])
def test_a_failure_without_a_record_has_no_advice(cause: Cause) -> None:
    assert FailedRecords().advice(cause) == ""


def test_only_so_many_records_are_remembered() -> None:
    records = FailedRecords()
    for n in range(150):
        records.advice(replace(BAD, record=str(n)))
        assert "once" not in records.advice(BAD) or n == 0
    assert "has failed once" in records.advice(replace(BAD, record="0"))
    assert "has failed 2 times" in records.advice(replace(BAD, record="149"))


def test_the_restart_of_a_job_has_the_advice() -> None:
    job = Job().run()
    job.says(1, Failed(FailureKind.USER, "it broke", "parse", 0, "'x'", takes_policy=True))
    assert job.actions(Restarting)[-1].advice.startswith("record 'x' has failed once in operator 'parse'")


@pytest.mark.parametrize(("verb", "takes"), [("map", True), ("sink: collect", False)])
def test_a_worker_marks_failures_of_operators_that_take_a_policy(verb: str, takes: bool) -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).map(str, name="map").sink_to(tr.sinks.Collect(), name="sink: collect")
    spec = JobSpec("job", 1, env._plan(env._pending()), 1 << 20)
    assert with_policy(Failed(FailureKind.USER, "it broke", verb), spec).takes_policy == takes
