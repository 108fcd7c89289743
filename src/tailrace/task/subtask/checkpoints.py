"""The part of one task in checkpoints: when it makes a cut that is due, the snapshot of the cut, which barriers overtake
records, and the hold of a stop. The worker's part is `task.worker.checkpoints`."""

from __future__ import annotations

from tailrace.elements.cuts import CutRequest
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.outbox import Outbox
from tailrace.task.inflight.overtaken_records import InFlightRecording, Logged
from tailrace.task.subtask.alignment import Alignment, TaskCut
from tailrace.task.subtask.chain import Chain
from tailrace.task.subtask.loop import TaskLoop
from tailrace.task.subtask.snapshot import TaskSnapshot


class TaskCheckpoints:
    """The checkpoints that one task takes part in: it cuts, and freezes its state for one of them at a time."""

    def __init__(
        self,
        cuts: Alignment,
        gate: Gate,
        chain: Chain,
        loop: TaskLoop,
        outbox: Outbox,
        inflight: InFlightRecording | None,
    ) -> None:
        """`inflight`: the recording of records that unaligned cuts overtake, if the job makes such cuts."""
        self.cuts, self.inflight = cuts, inflight
        self._gate, self._chain, self._loop, self._outbox = gate, chain, loop, outbox
        self.snapshot: TaskSnapshot | None = None
        """The snapshot that is being encoded, or that the worker has not taken completely."""
        self.just_cut: CutRequest | None = None
        """The cut that the last step made."""
        self.worked = True
        """True once the task has done a step of work since its last cut, or need not. A cut that only the coordinator's
        trigger requests waits for it. Else, if cuts came faster than they are encoded, the task would do nothing but cut."""
        self.held_by: int | None = None
        """Invariant S3: the checkpoint of a stop, from this task's cut for it until it is aborted: the task does nothing
        but inform functions of complete checkpoints. So nothing that follows from what is behind the cut is done."""
        self.in_line: dict[int, int] = {}
        """Checkpoints whose barriers wait behind records of this task, with the times at which they may overtake them."""

    def may_cut(self, now: int) -> bool:
        """True if a cut is due and can be encoded, or may be due once the task has looked at the clock."""
        if self.snapshot is not None:
            return False
        cuts = self.cuts
        return bool(cuts.due) or (self.inflight is not None and (cuts.unstamped or cuts.is_due(now)))

    @property
    def cut_is_next(self) -> bool:
        """True if a cut that is due has its place here: where a barrier gives it, and else behind a step of work."""
        return not self.must_drain and (bool(self.cuts.live) or (self.worked and self.snapshot is None))

    @property
    def must_drain(self) -> bool:
        """True if a cut would lose what was in flight at the restored cut. An aligned cut does not record it; and a cut
        that may refer to no other file must have it in memory."""
        if not self._gate.front:
            return False
        return self.inflight is None or (self.cuts.next_is_whole and self._gate.holds_parked)

    def is_struck(self, now: int) -> bool:
        """True if an unaligned cut is to be made, and has its place here: behind a step of work."""
        return self.worked and self.snapshot is None and self.cuts.is_due(now)

    def cut_waits(self, now: int) -> bool:
        """True if a cut waits for nothing but a step of work."""
        return (bool(self.cuts.due) and not self.must_drain) or (self.inflight is not None and self.cuts.is_due(now))

    def take_time(self, now: int) -> None:
        """Gives the clock to what became known since the last step, and lets barriers overtake whose time has come."""
        self.cuts.stamp(now)
        for number, at in list(self.in_line.items()):
            assert self.inflight is not None
            if now >= at or number not in self.inflight.in_line:
                del self.in_line[number]
                self.inflight.overtake_output(number)

    def cut(self, now: int, sends: bool) -> CutRequest:
        """Makes a cut: state is frozen, and the barrier goes behind what was emitted, or past it, where it may overtake.
        `sends`: whether the channels have not ended."""
        due = self.cuts.make(now) if self.cuts.due else self.cuts.overtake(now)
        cut = self.just_cut = due.request
        self.worked = False
        rounds = self._loop.rounds
        loop = self._loop.rests.numbers.done, rounds.numbers.done, rounds.next
        self.snapshot = TaskSnapshot(due, self._chain, *loop, self._inputs_overtaken(due))
        if cut.hold:
            self.held_by = cut.number
        if sends:
            self._outbox.barrier(cut)
            self.snapshot.recordings += self._outputs_overtaken(due)
        self._chain.begin_epoch(cut.number)
        return cut

    def encode(self, now: int, limit: int) -> None:
        """Encodes about `limit` more entries of the current snapshot, if there is one."""
        snapshot = self.snapshot
        if snapshot is not None and not snapshot.done:
            snapshot.encode(limit)
            snapshot.encoded_at = now

    def abort(self, checkpoint: int) -> None:
        """Gives up a checkpoint that will never be complete: nothing of it stays."""
        self.cuts.abort(checkpoint)
        if self.held_by == checkpoint:
            self.held_by = None
        if self.snapshot is not None and self.snapshot.checkpoint == checkpoint:
            self.snapshot = None
        if self.inflight is not None:
            self.inflight.abort(checkpoint)
        for operator in self._chain.operators:
            operator.abort(checkpoint)
            if operator.backend is not None:
                operator.backend.abort(checkpoint)
                operator.chains.abort(checkpoint)

    def confirm(self, checkpoint: int) -> None:
        """Notes that a checkpoint is complete."""
        for operator in self._chain.operators:
            operator.confirm(checkpoint)
            if operator.backend is not None:
                operator.backend.confirm(checkpoint)
                operator.chains.confirm(checkpoint)

    def close(self) -> None:
        """Gives up the snapshot that is being encoded: it and the state of the whole operator refer to each other, and
        Python would free them much later."""
        snapshot, self.snapshot = self.snapshot, None
        for operator, _ in snapshot.operators if snapshot is not None else ():
            if operator.backend is not None and snapshot is not None:
                operator.backend.abort(snapshot.checkpoint)
        if self.inflight is not None:
            self.inflight.close()

    # Unaligned cuts.

    def _inputs_overtaken(self, due: TaskCut) -> Logged:
        if self.inflight is None or not (due.request.may_overtake or self._gate.front):
            return []
        return self.inflight.cut_input(due.request.number, due.missing, due.request.kind.whole)

    def _outputs_overtaken(self, due: TaskCut) -> Logged:
        """Lets the barrier go past what waits for credit on some channels, now or at its time. Returns what it overtakes."""
        overtakes_at = due.overtakes_at
        if self.inflight is None or overtakes_at is None:
            return []
        number, most = due.request.number, due.request.most_inflight
        if most >= 0:
            most = max(0, most - (self.inflight.found if due.missing else 0))
        logged = self.inflight.cut_output(number, most, due.request.kind.whole)
        if due.made_at >= overtakes_at:
            self.inflight.overtake_output(number)
        elif logged:
            self.in_line[number] = overtakes_at
        return logged

    def barriers_left(self) -> None:
        """Notes which barriers have left since the last call."""
        if self.inflight is None:
            self._outbox.barriers_sent.clear()
        else:
            self.inflight.complete_sent()

    def next_strike(self, now: int) -> int | None:
        """The earliest time after `now` at which the clock alone makes a cut an unaligned one, or lets a barrier overtake
        what it waits behind; None: never."""
        if self.inflight is None:
            return None
        return min((at for at in (self.cuts.strikes_at(now), *self.in_line.values()) if at is not None), default=None)
