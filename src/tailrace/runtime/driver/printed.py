"""Lines that user code has printed in workers, at the terminal or in the notebook of the program."""

from __future__ import annotations

import sys
from typing import TextIO

from tailrace.coordinator.actions import WorkerPrinted
from tailrace.graph.plan import Plan


def show_printed(news: WorkerPrinted, plan: Plan, stream: TextIO | None = None) -> None:
    """Prints these lines, each behind its operator and subtask, to standard output if no other stream is given. A stream
    that is closed or gone shows nothing, which changes nothing about the job."""
    names = {vertex.id: vertex.name for vertex in plan.vertices}
    lines = [f"[{names.get(line.vertex, line.vertex)} {line.subtask}] {line.text}\n" for line in news.lines]
    if news.left_out:
        lines.append(f"[worker {news.slot}] {news.left_out:,} more lines are in its own output\n")
    stream = sys.stdout if stream is None else stream
    try:
        stream.write("".join(lines))
        stream.flush()
    except (OSError, ValueError):
        return
