"""Records that user code logs in a worker: what goes to the driver, and what stays."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from tailrace.protocol.deployment import PrintedLine, Progress
from tailrace.runtime.worker.logs import PAUSE, WorkerLog
from tailrace.runtime.worker.printing import LINE_CHARACTERS, LINES, Place, WorkerOutput

own = logging.getLogger("visits.scores")


class Logged:
    """A worker that takes a step of a task, or of none."""

    def __init__(self) -> None:
        self.step: Place | None = (2, 1)
        self.now = 100.0
        self.output = WorkerOutput(io.StringIO(), lambda: self.step)
        self.log = WorkerLog(1, lambda: self.step, self.output.add, lambda: self.now)

    @property
    def lines(self) -> list[PrintedLine]:
        return self.output.report(Progress([], 0)).printed

    def warn(self, text: str) -> None:
        own.warning(text)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logged]:
    monkeypatch.setattr(own, "level", logging.INFO)
    found = Logged()
    with found.log.in_place():
        yield found


def test_records_of_a_step_go_to_the_driver_with_level_logger_and_task(worker: Logged) -> None:
    own.info("scored %d", 7)
    own.debug("not at this level")
    print("printed", file=worker.output)
    assert worker.lines == [PrintedLine(2, 1, "scored 7", logging.INFO, "visits.scores"), PrintedLine(2, 1, "printed")]
    try:
        raise ValueError("no")
    except ValueError:
        own.exception("it failed for redis://me:secret@host")
    [line] = worker.lines
    assert line.text.startswith("it failed for redis://me:***@host\nTraceback") and line.text.endswith("ValueError: no")


def test_of_a_kind_one_record_in_a_second_goes_with_the_number_of_the_others(worker: Logged) -> None:
    for number in range(1_000):
        worker.warn(f"bad record {number}")
    own.warning("another line of the program")
    assert [line.text for line in worker.lines] == ["bad record 0", "another line of the program"]
    worker.now += PAUSE
    for number in range(2):
        worker.warn(f"bad record {number}")
    assert [line.text for line in worker.lines] == ["bad record 0 (999 more of this kind since the last one)"]
    worker.now += PAUSE
    worker.warn("bad record")
    worker.now += PAUSE
    worker.warn("bad record")
    assert [line.text for line in worker.lines] == [
        "bad record (1 more of this kind since the last one)",
        "bad record",
    ]


def test_outside_of_steps_and_in_other_threads_only_warnings_of_tailrace_go(worker: Logged) -> None:
    thread = threading.Thread(target=own.warning, args=("of another thread",))
    thread.start()
    thread.join()
    worker.step = None
    own.warning("repeated by a replay")
    logging.getLogger("tailrace").info("nothing of this")
    logging.getLogger("tailrace").warning("the lag is not known")
    assert worker.lines == [PrintedLine(-1, 1, "the lag is not known", logging.WARNING, "tailrace")]


def test_a_report_has_so_many_lines_at_most_and_a_line_so_many_characters(worker: Logged) -> None:
    own.info("x" * 2 * LINE_CHARACTERS)
    assert len(worker.lines[0].text) == LINE_CHARACTERS
    for number in range(LINES + 5):
        worker.now += PAUSE
        own.info("%d", number)
    found = worker.output.report(Progress([], 0))
    assert (len(found.printed), found.lines_left_out) == (LINES, 5)


def test_a_wrong_call_of_logging_and_half_a_character_fail_nothing(worker: Logged) -> None:
    for line, text in enumerate(("%d of %d", "\ud800%s")):
        worker.log.emit(logging.LogRecord("visits", logging.INFO, "visits.py", line, text, ("x",), None))
    first, second = worker.lines
    assert first.text.startswith("'%d of %d' (TypeError") and second.text == "\\ud800x"


def test_warnings_still_go_to_standard_error_where_nothing_else_handles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    first, second = Logged(), Logged()
    with first.log.in_place(), second.log.in_place():
        own.warning("seen once")
        own.info("not shown")
    assert stream.getvalue() == "seen once\n" and logging.getLogger().handlers == []
