"""The states of a job, and which may follow which."""

import pytest

from tailrace.coordinator.job.lifecycle import EDGES, ENDS, JobStatus, next_status
from tailrace.errors import InternalError

S = JobStatus


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(EDGES) == set(S)
    reached, open_ = {S.CREATED}, [S.CREATED]
    while open_:
        for after in EDGES[open_.pop()] - reached:
            reached.add(after)
            open_.append(after)
    assert reached == set(S)


def test_three_states_are_final_and_every_other_leads_to_one() -> None:
    assert {status for status in S if status.final} == {S.FINISHED, S.FAILED, S.CANCELLED}
    for status in S:
        at, steps = status, 0
        while not at.final:
            at = sorted(EDGES[at], key=lambda s: s.value)[0]
            steps += 1
            assert steps < len(S), "there is a loop"


def test_only_restarts_lead_back_and_stops_that_are_given_up() -> None:
    def forward(status: S) -> set[S]:
        back = {S.RESTARTING} | ({S.RUNNING} if status is S.STOPPING else set())
        return set(EDGES[status]) - back

    def below(status: S) -> set[S]:
        return {status} | {s for after in forward(status) for s in below(after)}

    for status in S:
        assert all(status not in below(after) for after in forward(status))


def test_a_job_restarts_from_wherever_workers_may_fail_and_comes_back_to_running_or_has_only_to_publish() -> None:
    failing = {S.STARTING, S.RUNNING, S.STOPPING, S.FINISHING}
    assert {status for status in S if S.RESTARTING in EDGES[status]} == failing
    assert EDGES[S.RESTARTING] == {S.RUNNING, S.FINISHING, S.FAILING, S.CANCELLING}


@pytest.mark.parametrize("start", S)
@pytest.mark.parametrize("finish", S)
def test_only_what_is_in_the_table_is_legal(start: JobStatus, finish: JobStatus) -> None:
    if finish in EDGES[start]:
        assert next_status(start, finish) is finish
        return
    with pytest.raises(InternalError, match=f"a job cannot go from {start} to {finish} .this is a bug in tailrace"):
        next_status(start, finish)


@pytest.mark.parametrize("status", [s for s in S if not s.final])
def test_a_job_may_be_cancelled_in_every_state_that_is_not_ending_already(status: JobStatus) -> None:
    assert (S.CANCELLING in EDGES[status]) == (status not in (S.FAILING, S.CANCELLING))


def test_what_comes_when_all_have_left() -> None:
    assert ENDS == {S.FAILING: S.FAILED, S.CANCELLING: S.CANCELLED}
    assert all(EDGES[ending] == {end} for ending, end in ENDS.items())


def test_a_state_reads_as_its_name() -> None:
    assert f"{S.RUNNING}" == "RUNNING"


def test_a_status_is_compared_with_its_name() -> None:
    """A program that waits while `job.status == "RUNNING"` would never wait."""
    assert JobStatus.RUNNING == "RUNNING" != JobStatus.FAILED
    assert f"{JobStatus.RUNNING} {JobStatus.RUNNING!s}" == "RUNNING RUNNING"
