"""The log of a job in the program that has started it: what Tailrace logs of the job there, and what user code logs and
prints in workers, with the job, the attempt, the worker and the operator of each. The page shows the last ones."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from tailrace.coordinator.actions import WorkerPrinted
from tailrace.graph.plan import Plan
from tailrace.log import KeepingHandler, fields, log
from tailrace.passwords import hide_passwords
from tailrace.protocol.deployment import PrintedLine

KEPT = 500
"""Lines of a job's log that are kept, at most."""
CHARACTERS = 4_000
"""Characters of a line, at most."""


class JobLog(KeepingHandler):
    """The log of one job, from its making until `close`. `attempt` gives the number of restarts until now."""

    def __init__(
        self,
        job: str,
        run: str,
        plan: Plan,
        attempt: Callable[[], int] = lambda: 0,
        now: Callable[[], int] = lambda: 0,
    ) -> None:
        """`now` gives the time (int64 microseconds since 1970)."""
        super().__init__()
        self._job, self._run, self.plan, self._attempt, self._now = job, run, plan, attempt, now
        self._uids = {node.name: node.uid for node in plan.graph.nodes}
        self._lines = deque[dict[str, Any]](maxlen=KEPT)
        self._guard = threading.Lock()
        log.addHandler(self)

    def close(self) -> None:
        log.removeHandler(self)
        super().close()

    def fields(self, slot: int | None = None, operator: str | None = None, *, paced: bool = False) -> dict[str, Any]:
        """`extra` of a record on this job, on a worker or an operator of it (by its name)."""
        uid = None if operator is None else self._uids.get(operator)
        return fields(job=self._job, run=self._run, attempt=self._attempt(), slot=slot, uid=uid, paced=paced)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The last lines, the oldest first."""
        with self._guard:
            return list(self._lines)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record of the logger `tailrace`, if it is on this job."""
        run, job = getattr(record, "run", None), getattr(record, "job", None)
        own = run == self._run or (run is None and job == self._job)
        if own and not getattr(record, "from_worker", False):
            text = record.getMessage() + (f"\n{record.exc_text}" if record.exc_text else "")
            known = {name: getattr(record, name, None) for name in ("attempt", "slot", "uid")}
            self._keep(record.created, record.levelname, record.name, text, known)

    def show(self, news: WorkerPrinted, stream: TextIO | None = None) -> None:
        """Prints what workers have printed, each line behind its operator and subtask, to standard output if no other stream
        is given, and logs what they have logged. A stream that is closed or gone shows nothing, which changes nothing about
        the job."""
        printed = []
        for line in news.lines:
            vertex = self.plan.vertices[line.vertex] if 0 <= line.vertex < len(self.plan.vertices) else None
            uid = None if vertex is None else self.plan.graph.node(vertex.nodes[0]).uid
            known = fields(job=self._job, run=self._run, attempt=self._attempt(), slot=line.subtask, uid=uid)
            if line.level:
                _log(line, {**known, "from_worker": True})
            else:
                name = line.vertex if vertex is None else vertex.name
                printed.append(f"[{name} {line.subtask}] {line.text}\n")
            level, logger = (logging.getLevelName(line.level), line.logger) if line.level else ("PRINT", "")
            self._keep(None, level, logger, line.text, known)
        if news.left_out:
            printed.append(f"[worker {news.slot}] {news.left_out:,} more lines are in its own output\n")
        stream = sys.stdout if stream is None else stream
        try:
            stream.write("".join(printed))
            stream.flush()
        except (OSError, ValueError):
            return

    def _keep(self, at: float | None, level: str, logger: str, text: str, known: dict[str, Any]) -> None:
        names = {name: known.get(name) for name in ("attempt", "slot", "uid")}
        line = {"at": self._now() / 1e6 if at is None else at, "level": level, "logger": logger}
        with self._guard:
            self._lines.append({**line, "text": hide_passwords(text)[:CHARACTERS], **names})


def _log(line: PrintedLine, extra: dict[str, Any]) -> None:
    """Logs a record of a worker under the name of its own logger."""
    logger = logging.getLogger(line.logger)
    if logger.isEnabledFor(line.level):
        what = f"worker {extra['slot']}: {line.text}"
        logger.handle(logger.makeRecord(line.logger, line.level, "(worker)", 0, what, (), None, extra=extra))
