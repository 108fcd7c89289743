"""One line that says how a job goes, rewritten in place on a terminal."""

from __future__ import annotations

import sys
from typing import Any, TextIO


class ProgressLine:
    """Writes progress reports to a stream, standard error by default: in place on a terminal, else a line each."""

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self.name = name
        self.stream = stream if stream is not None else sys.stderr
        self._width = 0

    def __call__(self, progress: dict[str, Any], status: Any) -> None:
        figures = progress["tailrace"]
        watermark = figures["watermark"] or "none"
        line = (
            f"{self.name}: {status} | in {figures['totalInputRows']:,} | out {figures['totalOutputRows']:,} | "
            f"{progress['inputRowsPerSecond']:,.0f}/s | watermark {watermark} | busy {figures['busyShare']:.0%}"
        )
        if self.stream.isatty():
            self.stream.write(f"\r{line.ljust(self._width)}")
            self._width = len(line)
            if status.final:
                self.stream.write("\n")
        else:
            self.stream.write(f"{line}\n")
        self.stream.flush()
