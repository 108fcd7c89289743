"""The recording of records in flight in a task whose worker may be replaced: it notes their shape on the channel."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.elements.frame_codec import Element
from tailrace.graph.plan import Plan, Vertex
from tailrace.task.channels.channel_logs import Log
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.lazy_records import Parked
from tailrace.task.channels.outbox import Outbox
from tailrace.task.channels.written_records import WrittenRecords
from tailrace.task.inflight.overtaken_records import InFlightRecording
from tailrace.task.journal.shapes import shape_of


class ReplayableInFlight(InFlightRecording):
    """A recording whose logs have the shape of what was in flight, so that a replacement has it in the same frames."""

    def __init__(
        self,
        plan: Plan,
        vertex: Vertex,
        subtask: int,
        gate: Gate,
        outbox: Outbox,
        copy: bool,
        written: WrittenRecords | None = None,
        *,
        on_inexact: Callable[[], None],
    ) -> None:
        """`on_inexact`: see `Shelf`."""
        super().__init__(plan, vertex, subtask, gate, outbox, copy, written)
        self._shelf.on_inexact = on_inexact

    def _note(self, what: Element | Parked | int, *logs: Log) -> None:
        shape = what if isinstance(what, int) else shape_of(what)
        for log in logs:
            log.shape.append(shape)
