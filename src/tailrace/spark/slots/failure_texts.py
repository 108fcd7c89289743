"""Failures of Spark jobs in words."""

from __future__ import annotations

import re

from tailrace.errors import OWN_FOLDER
from tailrace.task.contract.usercode import FUSED

MEMORY = "spark.executor.pyspark.memory"
_CANCELLED = ("[SPARK_JOB_CANCELLED]", "[OPERATION_CANCELED]")
"""Marks in the error of a cancelled Spark job: of a classic session, and of Spark Connect."""


def was_cancelled(error: str) -> bool:
    """True where the error of a Spark job shows that it was cancelled."""
    return any(mark in error for mark in _CANCELLED)


def too_little_memory(error: str, limit: str) -> str:
    """Addition to the error of a worker that had no room under this limit of its address space; empty for other errors.
    The error of a library that cannot be loaded does not mention memory."""
    if not re.search(r"MemoryError|failed to map segment|[Cc]annot allocate memory", error):
        return ""
    return (
        f"; {MEMORY} is {limit}, which bounds the address space of each Python process, libraries included: raise it, or "
        f"unset it"
    )


def shortened_failure(failure: BaseException) -> str:
    """The useful part of a Spark failure: the crash with the user's own frames, else the Python exception, else the first
    line with a message."""
    text = str(failure)
    crash = re.search(r"Python worker exited unexpectedly \(crashed\):(.*?)(?=\n\s+at |\Z)", text, re.DOTALL)
    if crash is not None:
        return f"the Python worker's process crashed{_user_frames(crash[1])}"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", text)
    if raised:
        return str(raised[-1])
    lines = [line.lstrip(": ") for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith("An error occurred while calling")]
    return re.sub(r"^org\.apache\.spark\.\w+: ", "", kept[0])[:500] if kept else type(failure).__name__


def _user_frames(story: str) -> str:
    """Python's report of a crash (spark.python.worker.faulthandler.enabled), up to the frame in which Tailrace called the
    user's code."""
    kept = []
    what, _, stack = story.strip().partition("\n")
    for line in [what, *stack[max(0, stack.find("Current thread")) :].splitlines()]:  # not the frames of our own thread
        if f'"{OWN_FOLDER}' in line or FUSED in line or "Extension modules:" in line:
            break
        kept.append(line)
    return ":\n" + "\n".join(kept).rstrip() if what else " and left no trace of why (killed, out of memory, os._exit)"
