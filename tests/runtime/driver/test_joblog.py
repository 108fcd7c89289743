"""The log of a job: what workers have printed and logged, and what is logged of the job itself."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

import tailrace as tr
from tailrace.coordinator.actions import Restarting, WorkerPrinted
from tailrace.coordinator.job.failures import Cause
from tailrace.graph.plan import Plan, make_plan
from tailrace.log import log, sparing
from tailrace.protocol.deployment import FailureKind, PrintedLine
from tailrace.runtime.driver.joblog import KEPT, JobLog
from tailrace.runtime.driver.warning import warn


def plan_of_two() -> Plan:
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, 9), name="numbers <9>")
    numbers.key_by(lambda n: n).count(name="counted", uid="counts").sink_to(tr.sinks.Print())
    return make_plan(env._graph.subgraph(env._graph.sinks()))


@pytest.fixture
def kept() -> Iterator[JobLog]:
    sparing.forget()
    one = JobLog("visits", "run-1", plan_of_two(), lambda: 3)
    yield one
    one.close()


def test_lines_are_shown_behind_their_operator_and_subtask(kept: JobLog) -> None:
    stream = io.StringIO()
    name = plan_of_two().vertices[1].name
    kept.show(WorkerPrinted(0, [PrintedLine(1, 1, "a"), PrintedLine(99, 0, "b")], 1_200), stream)
    assert stream.getvalue().splitlines() == [
        f"[{name} 1] a",
        "[99 0] b",
        "[worker 0] 1,200 more lines are in its own output",
    ]
    assert [(one["level"], one["text"], one["slot"], one["uid"], one["attempt"]) for one in kept.lines] == [
        ("PRINT", "a", 1, "counts", 3),
        ("PRINT", "b", 0, None, 3),
    ]


def test_a_stream_that_is_closed_shows_nothing(kept: JobLog) -> None:
    stream = io.StringIO()
    stream.close()
    kept.show(WorkerPrinted(0, [PrintedLine(0, 0, "a")], 0), stream)


def test_what_a_worker_logs_is_logged_here_under_its_own_logger(
    kept: JobLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("visits.scores"), "level", logging.INFO)
    stream = io.StringIO()
    levels = (logging.INFO, logging.DEBUG, logging.ERROR)
    kept.show(WorkerPrinted(1, [PrintedLine(1, 1, f"at {one}", one, "visits.scores") for one in levels], 0), stream)
    assert stream.getvalue() == ""
    found = [(one.name, one.levelname, one.getMessage()) for one in caplog.records]
    assert found == [("visits.scores", "INFO", "worker 1: at 20"), ("visits.scores", "ERROR", "worker 1: at 40")]
    fields = {name: getattr(caplog.records[0], name) for name in ("job", "run", "attempt", "slot", "uid")}
    assert fields == {"job": "visits", "run": "run-1", "attempt": 3, "slot": 1, "uid": "counts"}
    assert [one["level"] for one in kept.lines] == ["INFO", "DEBUG", "ERROR"], "the page shows what the worker has sent"


def test_a_warning_of_tailrace_in_a_worker_is_kept_once(kept: JobLog) -> None:
    kept.show(WorkerPrinted(1, [PrintedLine(-1, 1, "sink 'a': no", logging.WARNING, "tailrace")], 0), io.StringIO())
    assert [(one["text"], one["slot"], one["uid"]) for one in kept.lines] == [("sink 'a': no", 1, None)]


def test_warnings_of_the_job_have_its_fields_and_no_other_job_has_them(
    kept: JobLog, caplog: pytest.LogCaptureFixture
) -> None:
    other = JobLog("visits", "run-2", plan_of_two())
    warn("visits", Restarting(1, Cause("ValueError: no", FailureKind.USER, "counted", slot=1)), kept.fields)
    log.warning("of nobody")
    other.close()
    [record, _] = caplog.records
    assert (record.job, record.run, record.slot, record.uid) == ("visits", "run-1", 1, "counts")  # type: ignore[attr-defined]
    assert [(one["level"], one["uid"]) for one in kept.lines] == [("WARNING", "counts")] and other.lines == []
    warn("visits", Restarting(2, Cause("ValueError: no", FailureKind.USER)), kept.fields)
    assert len(caplog.records) == 2, "one of a kind in a minute"


def test_the_last_lines_are_kept_without_passwords(kept: JobLog) -> None:
    lines = [PrintedLine(0, 0, f"redis://me:secret@host/{number}") for number in range(KEPT + 9)]
    kept.show(WorkerPrinted(0, lines, 0), io.StringIO())
    assert len(kept.lines) == KEPT and kept.lines[-1]["text"] == f"redis://me:***@host/{KEPT + 8}"
    kept.close()
    log.warning("later", extra={"run": "run-1"})
    assert kept.lines[-1]["level"] == "PRINT", "the job has ended"
