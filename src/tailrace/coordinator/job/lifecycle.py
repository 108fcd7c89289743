"""The states of a job and every legal edge between them.

    CREATED -> STARTING -> RUNNING <-> STOPPING
                   |        ^ |  |        |
                   |        | |  +--------+-> FINISHING -> FINISHED
                   |        | v           v   ^  |
                   +-> RESTARTING <-------+---+--+
                   |          |           |      |
                   +----------+-----------+------+--> FAILING ----> FAILED
                   +----------+-----------+------+--> CANCELLING -> CANCELLED

STOPPING lasts from the beginning of a stop (`stopping`) until its checkpoint is complete; where that fails, the job is
RUNNING again. RESTARTING lasts from a failure until every worker runs again from the last checkpoint, or the strategy gives
up. Behind the checkpoint of a stop no worker runs again: a restart only publishes, and leads to FINISHING. FINISHING,
FAILING and CANCELLING last until every worker has left, or did not leave in time. Only then a final state is reached.
"""

from __future__ import annotations

from enum import StrEnum

from tailrace.errors import InternalError


class JobStatus(StrEnum):
    """The states of a job. Each is equal to its name as a text."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    RESTARTING = "RESTARTING"
    FINISHING = "FINISHING"
    FINISHED = "FINISHED"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """True if no state comes after it."""
        return not EDGES[self]


EDGES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.CREATED: frozenset({JobStatus.STARTING, JobStatus.CANCELLING}),
    JobStatus.STARTING: frozenset({JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.CANCELLING}),
    JobStatus.RUNNING: frozenset(
        {JobStatus.STOPPING, JobStatus.FINISHING, JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.CANCELLING}
    ),
    JobStatus.STOPPING: frozenset(
        {JobStatus.RUNNING, JobStatus.FINISHING, JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.CANCELLING}
    ),
    JobStatus.RESTARTING: frozenset({JobStatus.RUNNING, JobStatus.FINISHING, JobStatus.FAILING, JobStatus.CANCELLING}),
    JobStatus.FINISHING: frozenset({JobStatus.FINISHED, JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.CANCELLING}),
    JobStatus.FAILING: frozenset({JobStatus.FAILED}),
    JobStatus.CANCELLING: frozenset({JobStatus.CANCELLED}),
    JobStatus.FINISHED: frozenset(),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELLED: frozenset(),
}

ENDS: dict[JobStatus, JobStatus] = {
    JobStatus.FAILING: JobStatus.FAILED,
    JobStatus.CANCELLING: JobStatus.CANCELLED,
}
"""The states in which the job only waits for its workers to leave, with the final state after each. FINISHING joins them
once sinks have published."""


def next_status(start: JobStatus, finish: JobStatus) -> JobStatus:
    """`finish`, if the edge is legal. Raises `InternalError` otherwise."""
    if finish not in EDGES[start]:
        raise InternalError(f"a job cannot go from {start} to {finish}")
    return finish
