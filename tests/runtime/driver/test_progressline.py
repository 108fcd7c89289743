"""The line that shows the progress of a job."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.runtime.driver.progressline import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(rows: int, new: int, millis: int, busy: float, watermark: str | None = None) -> dict[str, Any]:
    return {
        "inputRowsPerSecond": new * 1000 / millis if millis else 0.0,
        "batchDuration": millis,
        "tailrace": {"totalInputRows": rows, "totalOutputRows": 7, "busyShare": busy, "watermark": watermark},
    }


def told(stream: io.StringIO) -> str:
    line = ProgressLine("flights", stream)
    line(report(3_000, 3_000, 1000, 0.9), JobStatus.RUNNING)
    line(report(4_000, 1_000, 1000, 0.3, "2013-01-01T00:00:00.000Z"), JobStatus.FINISHING)
    line(report(4_000, 0, 0, 0.0, "end"), JobStatus.FINISHED)
    return stream.getvalue()


def test_without_a_terminal_each_status_is_a_line_and_the_last_one_sums_up() -> None:
    assert told(io.StringIO()).splitlines() == [
        "flights: RUNNING | in 3,000 | out 7 | 3,000/s | busy 90% | watermark none",
        "flights: FINISHING | in 4,000 | out 7 | 1,000/s | busy 30% | watermark 2013-01-01T00:00:00Z",
        "flights: FINISHED | in 4,000 | out 7 | 2,000/s | busy 60% | watermark end",
    ]


def test_without_a_terminal_there_is_a_line_each_half_minute_with_what_was_since_the_line_before() -> None:
    """A line each second fills the log of a service: 86,400 in a day."""
    stream = io.StringIO()
    line = ProgressLine("flights", stream)
    for second in range(1, 62):
        line(report(100 * second, 100 if second <= 31 else 200, 1000, 0.5 if second <= 31 else 1.0), JobStatus.RUNNING)
    line(report(7_000, 0, 1000, 0.0), JobStatus.RESTARTING)
    assert stream.getvalue().splitlines() == [
        "flights: RUNNING | in 100 | out 7 | 100/s | busy 50% | watermark none",
        "flights: RUNNING | in 3,100 | out 7 | 100/s | busy 50% | watermark none",
        "flights: RUNNING | in 6,100 | out 7 | 200/s | busy 100% | watermark none",
        "flights: RESTARTING | in 7,000 | out 7 | 0/s | busy 0% | watermark none",
    ]


def test_a_step_that_does_not_come_back_is_in_the_line() -> None:
    stream = io.StringIO()
    progress = report(0, 0, 1000, 0.5)
    progress["tailrace"]["stalled"] = [
        {"vertex": "parse", "subtask": 3, "seconds": 41.2},
        {"vertex": "parse", "subtask": 1, "seconds": 11.0},
    ]
    ProgressLine("flights", stream)(progress, JobStatus.RUNNING)
    assert stream.getvalue().endswith(" | watermark none | parse[3] stuck for 41 s\n")


@pytest.mark.parametrize(
    ("policy", "referred", "end"),
    [
        ("aligned", 0, ""),
        ("unaligned", 0, ", unaligned, 2.9 MiB in flight"),
        ("unaligned", 2_000_000, ", unaligned, 2.9 MiB in flight, 1.9 MiB of it written before"),
    ],
)
def test_a_checkpoint_that_has_overtaken_records_says_so(policy: str, referred: int, end: str) -> None:
    millis = {f"{part}Ms": 2.0 for part in ("trigger", "alignment", "freeze", "write", "duration")}
    last = {"id": 7, "bytes": 14_000, "policy": policy, "inflightBytes": 3_000_000, **millis}
    last["inflightReferredBytes"] = referred
    stream, progress = io.StringIO(), report(0, 0, 0, 0.0)
    progress["tailrace"]["checkpoints"] = {"last": last}
    ProgressLine("x", stream)(progress, JobStatus.RUNNING)
    parts = "trigger 2, alignment 2, freeze 2, write 2"
    assert stream.getvalue().endswith(f" | checkpoint 7: 13.7 KiB in 2 ms ({parts}){end}\n")


@pytest.mark.parametrize(
    ("changed", "end"),
    [
        ({}, " | standbys 1/2, 0 behind | log 13.7 KiB, kept 2.9 MiB"),
        ({"behind": None}, " | standbys 1/2 | log 13.7 KiB, kept 2.9 MiB"),
        ({"wanted": 0, "behind": None}, " | log 13.7 KiB, kept 2.9 MiB"),
        (
            {"replaced": 2, "lastFailoverMs": 1312.4},
            " | standbys 1/2, 0 behind | log 13.7 KiB, kept 2.9 MiB | replaced 2, the last in 1,312 ms",
        ),
    ],
    ids=["standbys", "that hold nothing", "none, as replicas=0", "after a loss"],
)
def test_where_lost_workers_are_replaced_alone_it_says_what_there_is_for_that(
    changed: dict[str, Any], end: str
) -> None:
    figures = {"ready": 1, "wanted": 2, "slicesHeld": 2, "behind": 0, "logBytes": 14_000, "keptBytes": 3_000_000}
    stream, progress = io.StringIO(), report(0, 0, 0, 0.0)
    progress["tailrace"]["standby"] = {**figures, "replaced": 0, "lastFailoverMs": None, **changed}
    ProgressLine("x", stream)(progress, JobStatus.RUNNING)
    assert stream.getvalue() == f"x: RUNNING | in 0 | out 7 | 0/s | busy 0% | watermark none{end}\n"


def test_on_a_terminal_it_is_rewritten_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    text = told(Terminal())
    assert text.count("\n") == 1 and text.endswith("\n")
    before, *parts = text.rstrip("\n").split("\r\x1b[2K")  # to the first column, and nothing of the line is left
    assert (before, len(parts)) == ("", 3)
    assert parts[0] == "flights: RUNNING | in 3,000 | out 7 | 3,000/s | busy 90% |…"
    assert max(map(len, parts)) < 60  # a line that wraps could not be rewritten


@pytest.mark.parametrize("why", ["no rich", "a terminal that cannot"])
def test_where_a_terminal_cannot_rewrite_a_line_there_is_plain_text(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setenv("TERM", "xterm" if why == "no rich" else "dumb")
    if why == "no rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    assert told(Terminal()) == told(io.StringIO())


def test_a_pipe_gets_no_codes_though_colours_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in told(io.StringIO())


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELLED])
def test_a_job_that_ended_before_its_first_second_can_be_reported(status: JobStatus) -> None:
    stream = io.StringIO()
    ProgressLine("x", stream)(report(0, 0, 0, 0.0), status)
    assert stream.getvalue() == f"x: {status} | in 0 | out 7 | 0/s | busy 0% | watermark none\n"


def test_a_checkpoint_that_does_not_come_is_reported_with_its_phase_and_why_others_did_not() -> None:
    stream, progress = io.StringIO(), report(0, 0, 0, 0.0)
    progress["tailrace"]["checkpoints"] = {
        "last": None,
        "underWay": [
            {"id": 8, "ageMs": 4_999.0, "phase": "encoding", "workers": [0]},
            {"id": 9, "ageMs": 61_000.0, "phase": "writing", "workers": [1, 3]},
        ],
        "failedInARow": 3,
        "lastFailure": {"id": 7, "reason": "worker 0: full", "timestamp": ""},
        "waitsFor": [{"place": "the storage of checkpoints", "reason": "full", "tries": 3, "ageMs": 7_400.0}],
    }
    ProgressLine("x", stream)(progress, JobStatus.RUNNING)
    assert stream.getvalue().endswith(
        " | checkpoint 9 under way for 61 s: writing in worker 1, 3 | 3 failed in a row, the last one 7: worker 0: full"
        " | waits for the storage of checkpoints for 7 s: full\n"
    )
