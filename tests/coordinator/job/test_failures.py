"""What follows from a failure, and the error that the caller gets."""

from __future__ import annotations

import pytest

from tailrace.coordinator.job.failures import HALF_PUBLISHED, REACTIONS, Cause, Reaction, reaction, storage_failure
from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, CheckpointsRemoved, Fenced
from tailrace.protocol.deployment import FailureKind


@pytest.mark.parametrize("kind", FailureKind, ids=lambda kind: kind.value)
def test_what_follows_is_what_the_table_says_of_the_kind(kind: FailureKind) -> None:
    cause = Cause("it broke", kind)
    assert reaction(cause, checkpointing=True, finishing=False) == (REACTIONS[kind], cause)
    assert reaction(cause, checkpointing=True, finishing=True) == (REACTIONS[kind], cause)


@pytest.mark.parametrize("kind", FailureKind, ids=lambda kind: kind.value)
def test_a_job_without_checkpoints_asks_its_restart_strategy_where_a_place_is_out_of_reach(kind: FailureKind) -> None:
    """A job without checkpoints would begin anew each time."""
    cause, usual = Cause("it broke", kind), REACTIONS[kind]
    what, found = reaction(cause, checkpointing=False, finishing=False)
    assert (what, found) == (Reaction.RESTART if usual is Reaction.WAIT else usual, cause)


@pytest.mark.parametrize("kind", FailureKind, ids=lambda kind: kind.value)
def test_a_job_without_checkpoints_that_is_publishing_fails_whatever_it_was_and_says_what_may_be_visible(
    kind: FailureKind,
) -> None:
    cause = Cause("it broke", kind, "map", 1, "7", slot=2)
    what, found = reaction(cause, checkpointing=False, finishing=True)
    assert (what, found) == (Reaction.FAIL, Cause(f"it broke; {HALF_PUBLISHED}", kind, "map", 1, "7", slot=2))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Fenced("run b has it"), FailureKind.FENCED),
        (CheckpointCorrupt("cut short"), FailureKind.STATE),
        (CheckpointsRemoved("gone"), FailureKind.STATE),
        (CheckpointNotFound("not seen yet"), FailureKind.STORE),
        (TimeoutError("no answer"), FailureKind.STORE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_the_storage_has_a_kind(error: Exception, kind: FailureKind) -> None:
    assert storage_failure(error) is kind


def test_who_waits_for_the_job_is_told_which_record_of_which_operator_it_was() -> None:
    error = Cause("the map raised", FailureKind.USER, "map", 1, "7").as_error("routes")
    assert str(error) == "job 'routes' failed: the map raised"
    assert (error.job, error.operator, error.subtask, error.record) == ("routes", "map", 1, "7")
