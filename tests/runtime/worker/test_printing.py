"""Standard output of a worker: what a step prints goes to the driver, within bounds; all else stays."""

import io
import sys

import pytest

from tailrace.protocol.deployment import PrintedLine, Progress
from tailrace.runtime.worker.printing import LINE_CHARACTERS, LINES, Place, WorkerOutput


class Working:
    """A worker that takes a step of a task, or of none."""

    def __init__(self) -> None:
        self.step: Place | None = None
        self.own = io.StringIO()
        self.output = WorkerOutput(self.own, lambda: self.step)

    def prints(self, *texts: str, end: str = "\n") -> None:
        for text in texts:
            print(text, end=end, file=self.output)

    def lines(self) -> list[PrintedLine]:
        return self.output.report(Progress([], 0)).printed


def test_lines_of_a_step_have_its_operator_and_subtask() -> None:
    working = Working()
    working.step = (2, 1)
    working.prints("one", "two\nthree")
    working.step = (3, 0)
    working.prints("four")
    lines = [PrintedLine(2, 1, text) for text in ("one", "two", "three")]
    figures = Progress([], 7)
    assert working.output.report(figures) == Progress([], 7, printed=[*lines, PrintedLine(3, 0, "four")])
    assert working.output.report(figures) is figures
    assert working.own.getvalue() == ""


def test_a_line_is_reported_when_it_has_ended_whoever_prints_between() -> None:
    working = Working()
    working.step = (0, 0)
    working.prints("half ", end="")
    working.step = (1, 0)
    working.prints("other")
    assert working.lines() == [PrintedLine(1, 0, "other")]
    working.step = (0, 0)
    working.prints("whole")
    assert working.lines() == [PrintedLine(0, 0, "half whole")]


def test_what_no_step_of_the_worker_prints_stays_in_its_own_output() -> None:
    """Replays and hot standbys repeat calls outside of steps: nothing reaches the driver twice."""
    working = Working()
    working.prints("repeated")
    assert working.own.getvalue() == "repeated\n"
    assert working.lines() == []


def test_lines_beyond_the_bound_are_counted_and_stay() -> None:
    working = Working()
    working.step = (0, 0)
    working.prints(*map(str, range(LINES - 1)), "x" * 5_000)
    working.prints("over", "a\nb")
    found = working.output.report(Progress([], 0))
    assert len(found.printed) == LINES and found.lines_left_out == 3
    assert found.printed[-1].text == "x" * LINE_CHARACTERS
    assert working.own.getvalue() == "over\na\nb\n"
    working.prints("next")
    assert working.lines() == [PrintedLine(0, 0, "next")]


def test_one_text_of_many_lines_is_cut_at_the_bound() -> None:
    working = Working()
    working.step = (0, 0)
    working.prints("\n".join(map(str, range(LINES + 5))))
    found = working.output.report(Progress([], 0))
    assert [line.text for line in found.printed] == list(map(str, range(LINES)))
    assert found.lines_left_out == 5
    assert working.own.getvalue().split() == list(map(str, range(LINES, LINES + 5)))


def test_it_stands_in_for_standard_output_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working()
    monkeypatch.setattr(sys, "stdout", working.own)
    with working.output.in_place():
        assert sys.stdout is working.output and not sys.stdout.isatty()
        print("here")
    assert sys.stdout is working.own and working.own.getvalue() == "here\n"


def test_a_worker_that_has_failed_reports_all_that_was_printed_with_its_last_figures() -> None:
    working = Working()
    assert working.output.last_report() is None
    working.output.report(Progress([], 7))
    working.step = (0, 0)
    working.prints("whole")
    working.prints("begun", end="")
    lines = [PrintedLine(0, 0, "whole"), PrintedLine(0, 0, "begun")]
    assert working.output.last_report() == Progress([], 7, printed=lines)
    assert working.output.last_report() is None
