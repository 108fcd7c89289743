"""The output of a hot standby's sinks, which is not written before the standby takes the place of its worker: the worker
itself writes it, and publishes it with its checkpoints."""

from __future__ import annotations

from tailrace.elements.batches import Batch
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import decode
from tailrace.elements.markers import Barrier, EndOfInput
from tailrace.errors import GraphError
from tailrace.task.channels.spilling import frame_of
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.journal.sent_log import Keeping, SentLog
from tailrace.task.operators.sink import SinkTask


class WithheldOutput:
    """What one sink would have written since the newest complete checkpoint, as bytes: nobody can change it meanwhile."""

    def __init__(self, sink: SinkTask, keeping: Keeping, checkpoint: int) -> None:
        """`checkpoint`: the restored one."""
        self._sink = sink
        self._log = SentLog(keeping)
        self._confirmed = checkpoint

    def write(self, batch: Batch) -> None:
        """Keeps a batch."""
        sink = self._sink
        data = frame_of(batch, sink.node.name, sink.ctx.subtask, "are kept by a hot standby")
        self._log.add(0, len(batch), data)

    def cut(self, checkpoint: int) -> None:
        """Keeps the place of the cut for a checkpoint."""
        self._log.add(0, 0, Barrier(CutRequest(checkpoint)))

    def finish(self) -> None:
        """Keeps that the input has ended."""
        self._log.add(0, 0, EndOfInput())

    def confirm(self, checkpoint: int) -> None:
        """Drops what is in front of the cut for a checkpoint."""
        if checkpoint > self._confirmed:
            self._confirmed = checkpoint
            self._log.complete(checkpoint)

    def release(self) -> None:
        """Opens the writer, and writes what was withheld."""
        sink = self._sink
        sink.withheld = None
        sink.open_writer()
        for _, one in self._log.elements():
            if isinstance(one, Barrier):
                sink.snapshot(one.checkpoint)
            elif isinstance(one, EndOfInput):
                sink.finish()
            else:
                assert isinstance(one, bytes)
                batch = decode(one).batch()
                sink.records -= len(batch)  # they were counted before
                sink.process(batch, 0)
        self._log.clear()


def withhold(slice: ReplayableSlice, checkpoint: int) -> None:
    """Makes the sinks of a slice write nothing. `checkpoint`: the restored one."""
    for sink in sinks_of(slice):
        sink.withheld = WithheldOutput(sink, slice.keeping, checkpoint)


def check_withheld(slice: ReplayableSlice) -> None:
    """Raises `GraphError` for a sink whose writer declares state, as the restored checkpoint shows: that follows from what
    it writes, and it writes nothing here."""
    for sink in sinks_of(slice):
        if sink.has_state:
            raise GraphError(
                f"the writer of sink {sink.node.name!r} has state, which follows from what it writes, and a hot standby "
                f"writes nothing"
            )


def release(slice: ReplayableSlice, checkpoint: int) -> None:
    """Writes what the sinks of a slice have withheld behind a complete checkpoint."""
    for sink in sinks_of(slice):
        if isinstance(sink.withheld, WithheldOutput):
            sink.withheld.confirm(checkpoint)
            sink.withheld.release()


def sinks_of(slice: ReplayableSlice) -> list[SinkTask]:
    """The sinks of a slice."""
    return [one for task in slice.tasks for one in task.chain.operators if isinstance(one, SinkTask)]
