"""Warnings in the log of a program about a job that goes on in spite of something."""

from __future__ import annotations

import pytest

from tailrace.coordinator.actions import CheckpointFailed, InReach, OutOfReach
from tailrace.coordinator.output.outages import SINKS, STORAGE
from tailrace.runtime.driver.warning import warn

SECOND = 1_000_000


def test_the_first_checkpoint_that_fails_is_a_warning_with_its_number_the_reason_and_what_comes_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn("visits", CheckpointFailed(7, "it took longer than 600 s", 1, "the next one comes in 1 s"))
    assert caplog.messages == [
        "job 'visits': checkpoint 7 has failed: it took longer than 600 s; the next one comes in 1 s",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_of_many_in_a_row_each_power_of_two_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    for count in range(1, 20):
        warn("visits", CheckpointFailed(100 + count, "no", count, "on"))
    assert [one.split(": ")[1] for one in caplog.messages] == [
        "checkpoint 101 has failed",
        *(f"checkpoint {100 + n} has failed ({n} in a row)" for n in (2, 4, 8, 16)),
    ]


def test_a_place_out_of_reach_is_reported_with_pauses_that_double_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for tries in range(1, 10):
        warn("visits", OutOfReach(STORAGE, "away", tries, tries * SECOND, SECOND // 2, 600 * SECOND))
    warn("visits", InReach(STORAGE, 9 * SECOND))
    assert len(caplog.messages) == 5
    assert caplog.messages[2] == (
        "job 'visits': the storage of checkpoints is out of reach, for 4 s now: away; tried again in 0.5 s, and for 596 s "
        "more (storage_patience)"
    )
    assert caplog.messages[-1] == "job 'visits': the storage of checkpoints is in reach again, after 9.0 s"


def test_a_sink_that_is_away_is_reported_at_once_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    since, pause, tries = 0, SECOND // 2, 1
    while since < 300 * SECOND:
        warn("visits", OutOfReach(SINKS, f"at {since // SECOND}", tries, since, pause, 600 * SECOND, "publish_timeout"))
        since, pause, tries = since + pause, min(2 * pause, 10 * SECOND), tries + 1
    assert len(caplog.messages) == 5
    minutes = [int(one.partition("for ")[2].split()[0]) // 60 for one in caplog.messages]
    assert minutes == [0, 1, 2, 3, 4]
    assert caplog.messages[0] == (
        "job 'visits': the place of a sink is out of reach, for 0 s now: at 0; tried again in 0.5 s, and for 600 s more "
        "(publish_timeout)"
    )
