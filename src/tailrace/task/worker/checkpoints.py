"""One worker's part in checkpoints: the snapshots of all its tasks go into one file per checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tailrace.elements.frame_codec import decode
from tailrace.elements.valueclasses import Shapes, merge
from tailrace.errors import InternalError
from tailrace.protocol.snapshot import Ack, SubtaskAck, Transaction
from tailrace.state.format import ChannelLog, Index, LogPiece, Placed
from tailrace.state.manifest import InFlight
from tailrace.state.paths import state_file
from tailrace.task.channels.channel_logs import LogFrame, Recording, Referred
from tailrace.task.channels.services import Services
from tailrace.task.channels.written_records import Span
from tailrace.task.contract.actions import DropState, WriteState
from tailrace.task.inflight.continuous_recording import Ahead
from tailrace.task.subtask.machine import Task
from tailrace.task.subtask.snapshot import FileBuilder

INLINE_BYTES = 16 << 10
"""Bytes of what a sink prepared in one transaction that go into the manifest directly; more goes into the worker's file.
Messages and manifests stay small."""
INLINE_TOTAL = 256 << 10
"""Limit in bytes for what all transactions of a worker together put into the manifest directly."""
CHUNK = 256 << 10
"""Size in bytes, about, of the pieces in which encoded state is handed to the driver."""


_Edge = tuple[str, str | None, str, int]
"""(sender, its side output, receiver, port of the receiver) of an edge, by uid."""


@dataclass
class _Pending:
    builder: FileBuilder
    waiting: set[int]
    """Vertices whose task has not delivered everything."""
    acks: list[SubtaskAck] = field(default_factory=list)
    froze: dict[int, int] = field(default_factory=dict)
    prepared: list[Transaction] = field(default_factory=list)
    inline: int = 0
    """Bytes of prepared output that go into the ack."""
    logs: list[tuple[ChannelLog, Recording]] = field(default_factory=list)
    """Channels whose log of the checkpoint is not in the file yet, each with its recording."""
    inflight: int = 0
    """Bytes of these logs."""
    referred: int = 0
    """Part of `inflight` that is in files of earlier checkpoints."""
    overtaken: dict[str, int] = field(default_factory=dict)
    """Part of `inflight` on channels that barriers have overtaken, by the uid of the operator that was to receive the
    records."""
    channels: dict[_Edge, Shapes] = field(default_factory=dict)
    """Edges on which logged records were in flight, with the classes of the records."""
    sealed_at: int | None = None


class WorkerCheckpoints:
    """The checkpoints that this worker is writing.

    Invariant S2: a file is sealed exactly when every task of the worker has delivered its whole snapshot, and every log
    is complete and encoded; `Ack` is sent only when it is durable.
    """

    def __init__(
        self,
        slot: int,
        epoch: int,
        services: Services,
        tasks: list[Task],
        one_publisher: frozenset[str] = frozenset(),
    ) -> None:
        """`one_publisher`: the uids of sinks for which one worker publishes everything."""
        self._slot = slot
        self._one_publisher = one_publisher
        self._named_by = epoch
        """The epoch of the worker, which is in the names of its files."""
        self._services = services
        tuning = services.tuning
        self._chunk = CHUNK if tuning.chunk is None else tuning.chunk
        self._inline = INLINE_BYTES if tuning.inline is None else tuning.inline
        self._tasks = tasks
        self._written = services.written
        inflights = [
            task.checkpoints.inflight for task in tasks if services.ahead and task.checkpoints.inflight is not None
        ]
        self._ahead = [Ahead(inflight) for inflight in inflights]
        """Records that wait and are written before the cut of the next checkpoint."""
        self._next: int | None = None
        """Number of the next checkpoint, as far as the worker can know. None before its first checkpoint, and after a
        file that was written ahead could not be written."""
        self._pending: dict[int, _Pending] = {}
        self._classes: dict[_Edge, Shapes] = {}
        """The classes of records that were in logs, of this checkpoint or of another one to which files may refer."""
        self._durable: dict[int, frozenset[str]] = {}
        """Checkpoints whose file is durable, until they are complete or aborted -> the files that each needs, its own
        included."""

    def name(self, checkpoint: int) -> str:
        """The name of this worker's file for a checkpoint, relative to the checkpoint folder of the job."""
        return state_file(self._services.incarnation, checkpoint, self._slot, self._named_by)

    def name_by(self, epoch: int) -> None:
        """Writes files under another epoch. No file was written before."""
        self._named_by = epoch

    def knows(self, checkpoint: int) -> bool:
        """True while the checkpoint is being written."""
        return checkpoint in self._pending

    def phase_of(self, checkpoint: int) -> str:
        """The phase of a checkpoint that was triggered: one of `PHASES`."""
        pending = self._pending.get(checkpoint)
        if pending is not None and pending.sealed_at is not None:
            return "writing"
        cut = pending is not None and all(
            task.vertex.id not in pending.waiting
            or (task.checkpoints.snapshot is not None and task.checkpoints.snapshot.checkpoint == checkpoint)
            for task in self._tasks
        )
        return "encoding" if cut else "aligning"

    def collect(self, task: Task, now: int) -> list[WriteState | DropState]:
        """Takes what a task has encoded; returns what is to be written now."""
        snapshot = task.checkpoints.snapshot
        assert snapshot is not None
        drops = self._pass(snapshot.checkpoint)
        pending = self._pending.get(snapshot.checkpoint)
        if pending is None:
            pending = self._pending[snapshot.checkpoint] = self._begin(snapshot.checkpoint)
        for part, block in snapshot.blocks:
            pending.builder.add(part, block)
        snapshot.blocks = []
        if snapshot.done:
            self._take(task, pending)
        return [*drops, *self._write(snapshot.checkpoint, pending, now)]

    def _begin(self, checkpoint: int) -> _Pending:
        services = self._services
        index = Index(services.job, services.incarnation, checkpoint, self._slot, services.max_parallelism)
        builder = FileBuilder(self.name(checkpoint), index)
        return _Pending(builder, {task.vertex.id for task in self._tasks})

    def _take(self, task: Task, pending: _Pending) -> None:
        """Takes the whole snapshot of a task."""
        snapshot = task.checkpoints.snapshot
        assert snapshot is not None
        for operator, part in snapshot.operators:
            if operator.backend is None:
                pending.builder.close_part(part, [], {})
                continue
            full, changed = operator.backend.groups(snapshot.checkpoint)
            written = {block.group for block in part.blocks}
            name = pending.builder.name
            chains, whole = operator.chains.extend(snapshot.checkpoint, name, full, changed, written)
            if self._services.debug:
                operator.chains.check(name, chains, whole, written)
            pending.builder.close_part(part, whole, chains)
        pending.logs += snapshot.recordings
        pending.acks.append(snapshot.ack(task.vertex.id, self._slot))
        for uid, data, first in snapshot.prepared:
            subtask = -1 if uid in self._one_publisher else self._slot
            pending.prepared.append(Transaction(uid, self._place(pending, data), first, subtask))
        pending.waiting.discard(task.vertex.id)
        task.checkpoints.snapshot = None

    def _place(self, pending: _Pending, data: bytes) -> bytes | Placed:
        """The place of what a sink prepared: in the manifest if it is small, else in the file."""
        if len(data) > self._inline or pending.inline + len(data) > INLINE_TOTAL:
            return pending.builder.add_prepared(data)
        pending.inline += len(data)
        return data

    @property
    def idle(self) -> bool:
        """True while no file is under way or begun ahead of its cut, so that there is no log to encode."""
        return not self._pending and self._next is None

    @property
    def logs_to_encode(self) -> bool:
        """True when a log is complete, and is to be encoded."""
        return any(self._next_log(number) is not None for number in self._pending)

    @property
    def in_flight_to_encode(self) -> bool:
        """True when the log that is encoded next is of a channel that barriers have overtaken."""
        found = next((log for number in self._pending if (log := self._next_log(number)) is not None), None)
        return found is not None and found[0].overtaken

    def _next_log(self, checkpoint: int) -> tuple[ChannelLog, Recording] | None:
        """A log that is to be encoded, or None. Logs of overtaken channels are encoded one checkpoint after the other: a
        later file refers to records of a durable earlier file, and does not write them again."""
        logs, oldest = self._pending[checkpoint].logs, checkpoint == min(self._pending)
        ready = (log for log in logs if (oldest or not log[0].overtaken) and log[1].complete(checkpoint))
        return next(ready, None)

    def encode_logs(self, limit: int, now: int) -> list[WriteState | DropState]:
        """Encodes about `limit` more records of the oldest checkpoint with a complete log, from as many logs as needed."""
        found = next((number for number in self._pending if self._next_log(number) is not None), None)
        if found is None:
            return []
        pending = self._pending[found]
        self._written.writing = pending.builder.name
        while limit > 0 and (log := self._next_log(found)) is not None:
            limit -= self._encode_log(found, pending, log, limit)
        return self._write(found, pending, now)

    def _encode_log(self, checkpoint: int, pending: _Pending, found: tuple[ChannelLog, Recording], limit: int) -> int:
        """Encodes more of one log. Returns how much of the limit this used."""
        log, recording = found
        frames, done = recording.encode(checkpoint, limit)
        for frame in frames:
            size = self._into_file(pending, log, frame)
            if not frame.count:
                continue  # a marker of event time
            pending.inflight += size
            self._note(pending, log, frame)
            if log.overtaken:
                target = log.channel.target
                pending.overtaken[target] = pending.overtaken.get(target, 0) + size
        if done:
            log.shape = recording.log(checkpoint).shape
            if log.shape and not log.pieces:  # nothing but markers of waves
                pending.builder.index.logs.append(log)
            recording.discard(checkpoint)
            pending.logs.remove(found)
        return 1 + sum(frame.count for frame in frames)

    def _note(self, pending: _Pending, log: ChannelLog, frame: LogFrame | Referred) -> None:
        name = log.channel
        edge = name.source, name.tag, name.target, name.port
        known = self._classes.get(edge, ())
        if isinstance(frame, LogFrame):
            known = self._classes[edge] = merge(known, decode(frame.data).classes)
        pending.channels[edge] = known

    def note_restore(self, channels: Sequence[InFlight]) -> None:
        """Takes the channels of the restored checkpoint, which is of this run, so that logs may refer to its files."""
        for one in channels:
            self._classes[one.source, one.tag, one.target, one.port] = one.classes

    def _into_file(self, pending: _Pending, log: ChannelLog, frame: LogFrame | Referred) -> int:
        """Puts the next records of a log into the file, or a reference to them. Returns their size in bytes."""
        builder = pending.builder
        if isinstance(frame, Referred):
            file = frame.span.file
            if self._services.debug and file not in self._written.files and file != builder.name:
                raise InternalError(f"X3: {builder.name} refers to {file}", ())
            builder.add_reference(log, frame)
            pending.referred += frame.span.size if file != builder.name else 0
            return frame.span.size
        piece = builder.add_frame(log, frame)
        self._may_refer_to(builder, frame, piece)
        return piece.length

    def _may_refer_to(self, builder: FileBuilder, frame: LogFrame, piece: LogPiece) -> None:
        start = 0
        for channel, first, count in frame.holds:
            size = max(1, piece.length * count // frame.count)
            place = (builder.name, piece.offset, piece.length, piece.checksum)
            self._written.wrote(channel, first, Span(*place, start, start + count, count, size=size))
            start += count

    # What is written before the cut (`task.inflight.continuous_recording`).

    @property
    def ahead_to_encode(self) -> bool:
        """True when records wait that go into the file of the next checkpoint before its cut. A checkpoint that is being
        written comes first: its records are not written again."""
        written_in_turn = self._next is not None and all(number == self._next for number in self._pending)
        return written_in_turn and any(one.waits for one in self._ahead)

    def encode_ahead(self, limit: int, now: int) -> list[WriteState | DropState]:
        """Encodes about `limit` more of the records that wait."""
        number = self._next
        if number is None:
            return []
        pending = self._pending.get(number)
        if pending is None:
            pending = self._pending[number] = self._begin(number)
        self._written.writing = pending.builder.name
        waiting = next(one for one in self._ahead if one.waits)
        for frame in waiting.encode(limit):
            self._may_refer_to(pending.builder, frame, pending.builder.place(frame))
        return self._write(number, pending, now)

    def _pass(self, checkpoint: int) -> list[DropState]:
        """Notes that a checkpoint was cut or given up, so that the next one is the one behind it. Drops what was written
        ahead for an earlier checkpoint that was never taken."""
        if not self._ahead or (self._next is not None and self._next > checkpoint):
            return []
        drops = self.drop_ahead() if self._next is not None and self._next < checkpoint else []
        self._next = checkpoint + 1
        return drops

    def is_ahead(self, checkpoint: int) -> bool:
        """True while the file of a checkpoint is written ahead of its cut."""
        return checkpoint == self._next and checkpoint in self._pending

    def drop_ahead(self) -> list[DropState]:
        """Gives up what was written before a cut: nothing may refer to it. Nothing more is written ahead until the next
        checkpoint is cut."""
        number, self._next = self._next, None
        if number is None or self._pending.pop(number, None) is None:
            return []
        for one in self._ahead:
            one.forget()
        return [DropState(number, self.name(number))]

    def _write(self, checkpoint: int, pending: _Pending, now: int) -> list[WriteState | DropState]:
        last = not pending.waiting and not pending.logs
        if last:
            pending.builder.finish()
            pending.sealed_at = now
        data = pending.builder.fresh
        if not last and sum(map(len, data)) < self._chunk:
            return []
        pending.builder.fresh = []
        return [WriteState(checkpoint, pending.builder.name, data, last)]

    def froze(self, task: Task, micros: int) -> None:
        """Notes how long the last cut of a task took, in microseconds."""
        for checkpoint in reversed(self._pending):
            self._pending[checkpoint].froze.setdefault(task.vertex.id, micros)
            return

    def file_written(self, checkpoint: int, now: int) -> Ack | None:
        """The ack of a checkpoint whose file is durable; None if the worker has given the checkpoint up."""
        pending = self._pending.pop(checkpoint, None)
        if pending is None or pending.sealed_at is None:
            return None
        acks = [msgspec.structs.replace(ack, freeze_micros=pending.froze.get(ack.vertex, 0)) for ack in pending.acks]
        builder = pending.builder
        self._durable[checkpoint] = frozenset((builder.name, *builder.older()))
        self._written.files.add(builder.name)
        took = max(0, now - pending.sealed_at)
        return Ack(
            checkpoint,
            builder.name,
            builder.offset,
            builder.older(),
            acks,
            pending.prepared,
            took,
            pending.inflight,
            pending.overtaken,
            pending.referred,
            [InFlight(*edge, classes) for edge, classes in pending.channels.items()],
        )

    def complete(self, checkpoint: int) -> None:
        """Notes that a checkpoint is complete. Earlier ones will never be; the coordinator aborts them next."""
        needed = self._durable.pop(checkpoint, None)
        if needed is not None:
            self._written.keep({*needed, *(self.name(later) for later in self._durable if later > checkpoint)})

    def abort(self, checkpoint: int) -> list[DropState]:
        """Gives up a checkpoint that will never be complete. A file that was acked stays: a later file may refer to it,
        and the coordinator knows whether one does."""
        self._written.files.discard(self.name(checkpoint))
        for one in self._ahead:
            one.forget()
        drops = self._pass(checkpoint)
        if self._durable.pop(checkpoint, None) is not None:
            return drops
        self._pending.pop(checkpoint, None)
        return [*drops, DropState(checkpoint, self.name(checkpoint))]

    def drop_all(self) -> list[DropState]:
        """Gives up everything that the worker is writing."""
        return [drop for checkpoint in list(self._pending) for drop in self.abort(checkpoint)]
