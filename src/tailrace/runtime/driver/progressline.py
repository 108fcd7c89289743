"""One line with the progress of a job, rewritten in place on a terminal."""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

from tailrace.elements.byte_texts import size_text

SLOW_MS = 5_000
"""Milliseconds after which a checkpoint that is under way is shown."""
APART_MILLIS = 30_000
"""Milliseconds between two lines of one status, where they are not rewritten in place: logs that keep them are to stay
short."""


class _Sums:
    """Sums over some reports, each of which is for a part of the time."""

    def __init__(self) -> None:
        self.millis = 0
        self._rows = self._busy = 0.0

    def add(self, rate: float, busy: float, millis: int) -> None:
        """Adds a report."""
        self.millis += millis
        self._rows += rate * millis
        self._busy += busy * millis

    @property
    def rate(self) -> float:
        return self._rows / self.millis

    @property
    def busy(self) -> float:
        return self._busy / self.millis


class ProgressLine:
    """A writer of progress reports to a stream, standard error by default: in place on a terminal where rich is there, else
    a line each half minute and wherever the status has changed. Rate and busy share are since the line before; in the last
    line they are those of the whole job."""

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self.name = name
        self.stream = stream if stream is not None else sys.stderr
        self._terminal = _terminal_line(self.stream) if self.stream.isatty() else None
        self._shown_checkpoint = ""
        """The status in the line before."""
        self._whole, self._since = _Sums(), _Sums()
        """Sums over the whole job, and since the line before."""

    def __call__(self, progress: dict[str, Any], status: Any) -> None:
        figures = progress["tailrace"]
        rate, busy, millis = progress["inputRowsPerSecond"], figures["busyShare"], progress["batchDuration"]
        self._whole.add(rate, busy, millis)
        self._since.add(rate, busy, millis)
        if (
            self._terminal is None
            and str(status) == self._shown_checkpoint
            and self._since.millis < APART_MILLIS
            and not status.final
        ):
            return
        if self._since.millis:
            rate, busy = self._since.rate, self._since.busy
        if status.final and self._whole.millis:
            rate, busy = figures["totalInputRows"] * 1000 / self._whole.millis, self._whole.busy
        self._shown_checkpoint, self._since = str(status), _Sums()
        line = f"{self.name}: {' | '.join([*line_of(str(status), figures, rate, busy), *_stalled_steps(figures)])}"
        if self._terminal is not None:
            self._terminal.write(line, last=status.final)
            return
        self.stream.write(f"{line}\n")
        self.stream.flush()


def line_of(status: str, figures: dict[str, Any], rate: float, busy: float) -> list[str]:
    """The progress of a job, from the Tailrace part of a progress report: records, event time, the last checkpoint,
    standbys, the size of
    an elastic job or one that changes its size, restarts."""
    parts = [
        f"{status} | in {figures['totalInputRows']:,} | out {figures['totalOutputRows']:,} | {rate:,.0f}/s | "
        f"busy {busy:.0%} | watermark {_seconds(figures['watermark'])}",
        *_checkpoints(figures.get("checkpoints")),
        *_troubles(figures.get("checkpoints")),
        *_standbys(figures.get("standby")),
        *_size(figures.get("size")),
    ]
    return [*parts, f"restarts {figures['restarts']}"] if figures.get("restarts") else parts


def _stalled_steps(figures: dict[str, Any]) -> list[str]:
    """The step that has been under way for longest, if there is a stalled one."""
    return [
        f"{one['vertex']}[{one['subtask']}] stuck for {one['seconds']:.0f} s" for one in figures.get("stalled", ())[:1]
    ]


def _checkpoints(figures: dict[str, Any] | None) -> list[str]:
    """The last checkpoint: its number, bytes, and duration with its parts."""
    last = figures["last"] if figures else None
    if last is None:
        return []
    parts = ", ".join(f"{name} {last[f'{name}Ms']:,.0f}" for name in ("trigger", "alignment", "freeze", "write"))
    text = f"checkpoint {last['id']}: {size_text(last['bytes'])} in {last['durationMs']:,.0f} ms ({parts})"
    if last["policy"] != "aligned":
        text += f", {last['policy']}, {size_text(last['inflightBytes'])} in flight"
        if last["inflightReferredBytes"]:
            text += f", {size_text(last['inflightReferredBytes'])} of it written before"
    return [text]


def _troubles(figures: dict[str, Any] | None) -> list[str]:
    """A checkpoint that takes long, checkpoints that have failed since the last complete one, and what the job waits for."""
    if figures is None:
        return []
    parts = []
    for one in figures.get("underWay", ()):
        if one["ageMs"] >= SLOW_MS:
            whose = f" in worker {', '.join(map(str, one['workers']))}" if one["workers"] else ""
            parts.append(f"checkpoint {one['id']} under way for {one['ageMs'] / 1000:,.0f} s: {one['phase']}{whose}")
    if figures.get("failedInARow"):
        failed = figures["lastFailure"]
        parts.append(f"{figures['failedInARow']} failed in a row, the last one {failed['id']}: {failed['reason']}")
    for one in figures.get("waitsFor", ()):
        parts.append(f"waits for {one['place']} for {one['ageMs'] / 1000:,.0f} s: {one['reason']}")
    return parts


def _standbys(figures: dict[str, Any] | None) -> list[str]:
    """Standbys, how many checkpoints they are behind, what a replacement would have to replay, and the last replacement."""
    if figures is None:
        return []
    parts = []
    if figures["wanted"]:
        behind = "" if figures["behind"] is None else f", {figures['behind']} behind"
        parts.append(f"standbys {figures['ready']}/{figures['wanted']}{behind}")
    parts.append(f"log {size_text(figures['logBytes'])}, kept {size_text(figures['keptBytes'])}")
    if figures["replaced"]:
        parts.append(f"replaced {figures['replaced']}, the last in {figures['lastFailoverMs']:,.0f} ms")
    return parts


def _size(figures: dict[str, Any] | None) -> list[str]:
    """A change of the job's size, and the bounds of an elastic job."""
    if figures is None or (figures["to"] is None and "least" not in figures):
        return []
    text = f"workers {figures['workers']}"
    if figures["to"] is not None:
        text += f" -> {figures['to']}, {figures['stage']}"
    return [text if "least" not in figures else f"{text} (of {figures['least']}-{figures['most']})"]


def _seconds(watermark: str | None) -> str:
    """A watermark without fractions of a second."""
    return re.sub(r"\.\d+", "", watermark) if watermark is not None else "none"


class _TerminalLine:
    """A line on a terminal that is rewritten in place."""

    def __init__(self, console: Any) -> None:
        from rich.control import Control, ControlType

        self._console = console
        self._erase = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))

    def write(self, line: str, *, last: bool) -> None:
        """Writes the line, as much of it as there is room for: one that wraps could not be rewritten."""
        console = self._console
        console.control(self._erase)
        width = console.width - 1
        console.print(line, end="\n" if last else "", width=width, no_wrap=True, overflow="ellipsis")


def _terminal_line(stream: TextIO) -> _TerminalLine | None:
    """The line of a terminal, where rich is there and the terminal can rewrite one; else None."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(file=stream, markup=False, emoji=False, highlight=False)
    return _TerminalLine(console) if console.is_terminal and not console.is_dumb_terminal else None
