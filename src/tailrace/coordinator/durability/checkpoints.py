"""The checkpoints of one job, as its coordinator sees them: pending ones, complete ones, and the files they need."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tailrace.coordinator.actions import CheckpointEnded, Commit, Delete
from tailrace.coordinator.checkpoint_stats import Books, CheckpointStats, FailedCheckpoint, parts_of, policy_of
from tailrace.coordinator.durability.manifest_entries import channels, in_flight, operator_records
from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.protocol.snapshot import Ack
from tailrace.state.end_mark import Dataflow
from tailrace.state.format import Placed
from tailrace.state.manifest import Manifest, Prepared, StateFile, encode_manifest
from tailrace.state.paths import manifest_name, published_mark

REMEMBERED = 100
FAILED = 50
"""Checkpoints that were given up, of which the reasons are kept."""


@dataclass(frozen=True)
class CheckpointSettings:
    """The settings of a job's checkpoints. Times are int64 microseconds."""

    taken: bool = True
    """False if the job takes no checkpoints."""
    interval: int | None = None
    """Time from one trigger to the next; None: only on request."""
    timeout: int = 600_000_000
    min_pause: int = 0
    """Time from the end of one checkpoint to the trigger of the next."""
    max_concurrent: int = 1
    tolerated_failures: int = 10
    """The number of checkpoints in a row that may fail before the job does."""
    keep: int = 1
    keep_runs: int = 0
    """`keep`: the number of complete checkpoints that are kept. `keep_runs`: the number of earlier runs that keep what they
    have left when the job starts (0: all)."""
    overtakes_after: int = -1
    most_inflight: int = -1
    """The time after which barriers overtake records, and the most bytes that they overtake: see
    `elements.cuts.CutRequest`."""
    ahead: bool = False
    """True if workers write records that wait before a checkpoint finds them."""
    origin: str = ""
    """The URL of the checkpoint folder, for the manifest."""
    retain: str = "on-cancellation"
    """The lifetime of checkpoints: "never" (deleted with the job), "on-cancellation" (kept after a cancellation or a
    failure) or "always"."""
    dataflow: Dataflow = ()
    """The dataflow that the job runs, for the mark of its end."""

    def given_up(self, well: bool) -> bool:
        """True if no checkpoint outlives a job that has ended, well or not."""
        return self.taken and (self.retain == "never" or (self.retain == "on-cancellation" and well))


NO_CHECKPOINTS = CheckpointSettings(taken=False)
"""The settings of a job that takes no checkpoints."""


@dataclass
class PendingCheckpoint:
    """A checkpoint that was triggered and is neither complete nor aborted."""

    id: int
    triggered_at: int
    """The time of the trigger, by the coordinator's clock."""
    timestamp: int
    """The time of the trigger, in microseconds since 1970."""
    cut: CutRequest
    """The cut that its workers were requested to make."""
    waiting: list[Any]
    """The parties that requested it, as the driver knows them."""
    base: set[str]
    """Files that it may refer to: the files of the newest complete checkpoint when it was triggered, and of all since."""
    acks: dict[int, Ack] = field(default_factory=dict)
    committing: bool = False
    resizes: bool = False
    """True if the job changes its size behind it: its tasks do nothing behind it, and the job goes on."""
    fresh: list[Prepared] = field(default_factory=list)
    """Output in its manifest that no earlier manifest has. Output that sinks prepared for an earlier complete checkpoint is
    in that one's manifest, and is published with it."""

    @property
    def final(self) -> bool:
        """True if it is the last one of the job."""
        return self.cut.kind.final

    @property
    def ends(self) -> bool:
        """True if the job ends behind it."""
        return self.final or self.stops

    @property
    def stops(self) -> bool:
        """True if it is the checkpoint of a stop that suspends."""
        return self.cut.hold and not self.resizes

    @property
    def alone(self) -> bool:
        """True if no other checkpoint may be triggered beside it: that would overtake it and be all that is left of it."""
        return self.ends or self.resizes or self.cut.kind.whole

    @property
    def requested(self) -> bool:
        """True if a party that waits for it is informed when it fails: that is no failure of the job."""
        return self.cut.hold or self.cut.kind is CutKind.SAVEPOINT

    def needs(self) -> set[str]:
        """Files that it may refer to, or does refer to. A worker that had not yet received `Complete` for a newer
        checkpoint has built on files of an older one, which `base` may not have."""
        return self.base.union(*(ack.older for ack in self.acks.values()))


@dataclass(frozen=True)
class Completed:
    """A decision: a checkpoint is complete."""

    ended: CheckpointEnded
    stats: CheckpointStats
    fresh: list[Prepared]
    """Output to publish with it."""
    ends: bool
    """True if the job ends behind it."""
    resizes: bool
    """True if the job changes its size behind it."""


@dataclass(frozen=True)
class Aborted:
    """A decision: a checkpoint will never be complete."""

    ended: CheckpointEnded
    final: bool
    stops: bool
    """True if it was the checkpoint of a stop that suspends."""
    resizes: bool
    """True if the job was to change its size behind it."""
    too_many: bool
    """True if that is one failure more than the job tolerates in a row."""
    gone: list[str]
    """Files that no checkpoint needs."""


@dataclass
class _Kept:
    checkpoint: int
    path: str
    """The manifest, relative to the checkpoint folder of the job."""
    names: frozenset[str]


class Checkpoints:
    """The bookkeeping of one job's checkpoints; the coordinator carries out what follows. It stays empty where the job takes
    none.

    Invariant P1: a manifest is made only when every worker has acked, and for one checkpoint at a time.
    Invariant P2: a file is not deleted while a kept manifest names it, while a pending checkpoint may refer to it, or while
    the acks of a pending checkpoint refer to it. Nor is a file deleted that this run has not written. A checkpoint that
    refers to a file which was deleted before the ack came is aborted (`gone`).
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        job: str,
        run_id: str,
        slots: int,
        max_parallelism: int,
        origin: Manifest | None = None,
    ) -> None:
        self.settings = settings
        self.job, self.run_id, self.slots, self.max_parallelism = job, run_id, slots, max_parallelism
        self.clock_offset = 0
        """The difference from the coordinator's clock to microseconds since 1970. The driver sets it."""
        self.next_id = 1 if origin is None else origin.checkpoint + 1
        self.last = 0
        """The newest checkpoint that was committed under this incarnation; 0: none."""
        self.committing: Manifest | None = None
        """The manifest that the storage was requested to create, and has not answered for."""
        self.commit_sent_at: int | None = None
        """The time of that request."""
        self.pending: dict[int, PendingCheckpoint] = {}
        self._unanswered: set[str] = set()
        """Files of a manifest that was on its way when its attempt was over. They are needed until a claim has found it, or
        not."""
        self.requests: list[Any] = []
        """The parties that wait for a checkpoint that has not been triggered yet."""
        self.past: deque[CheckpointStats] = deque(maxlen=REMEMBERED)
        self.aborted = 0
        self.completed = 0
        self.failures = 0
        """The number of failures in a row that count against `tolerated_failures`. Checkpoints that are `requested`, or that
        could not be written because the storage was out of reach, do not count."""
        self.in_a_row = 0
        """The number of all failures in a row."""
        self.failed: deque[FailedCheckpoint] = deque(maxlen=FAILED)
        self.not_before = 0
        """The time before which no checkpoint is triggered: the storage is out of reach until then, as far as is known."""
        self.final_again = False
        """True if the last checkpoint of the job has failed, and is to be taken once more."""
        self.newest = 0
        """The newest complete checkpoint of this run."""
        self.stopping = False
        """True if the job is drained: its last checkpoint is the one of a stop."""
        self.pinned: Collection[str] = ()
        """Files that are still being copied."""
        self._next_at: int | None = None
        self._ended_at: int | None = None
        """The time at which the last checkpoint was complete or aborted."""
        self._kept: list[_Kept] = []
        self._sizes: dict[str, int] = {}
        """The size of every file that this run has written and that was not deleted."""
        self._found: set[str] = set()
        """Files that a complete checkpoint refers to, whichever process or run wrote them. Files that are not in `_sizes`
        are never deleted by this run."""

    def inherit(self, books: Books) -> None:
        """Takes the figures of an earlier coordinator of this run: its users go on reading them. What restores and
        deletions need is in the storage."""
        self.past.extend(books.past)
        self.completed, self.aborted = books.completed, books.aborted
        self.in_a_row = books.in_a_row
        self.failed.extend(books.failed)

    # When.

    def start(self, now: int) -> None:
        """Begins the schedule anew: the job runs, for the first time or again, or a checkpoint is triggered."""
        self._next_at = None if self.settings.interval is None else now + self.settings.interval

    def hurry(self, now: int) -> int:
        """Makes a checkpoint due now, whatever the schedule. Returns its number."""
        self._next_at = now
        return self.next_id

    def due_at(self, requested: bool = False) -> int | None:
        """The time at which the next checkpoint is to be triggered, as far as the clock decides; None while other
        checkpoints must go first. `requested`: a savepoint is requested."""
        if len(self.pending) >= self.settings.max_concurrent or any(p.alone for p in self.pending.values()):
            return None
        ended = 0 if self._ended_at is None else self._ended_at + self.settings.min_pause
        earliest = max(ended, self.not_before)
        if self.requests or requested:
            return earliest
        return None if self._next_at is None else max(self._next_at, earliest)

    def timeout_at(self) -> int | None:
        """The time at which the oldest pending checkpoint times out."""
        return min((at for _, at in self._timeouts()), default=None)

    def timed_out(self, now: int) -> list[int]:
        """Pending checkpoints whose time is over."""
        return [number for number, at in self._timeouts() if at <= now]

    def _timeouts(self) -> list[tuple[int, int]]:
        """Pending checkpoints, each with the time at which it times out. A checkpoint whose manifest is on its way does not
        time out: only its storage knows of it."""
        return [(p.id, p.triggered_at + self.settings.timeout) for p in self.pending.values() if not p.committing]

    def trigger_due(self, now: int, requested: bool = False) -> bool:
        """True if the next checkpoint is to be triggered now."""
        due = self.due_at(requested)
        return due is not None and due <= now

    # What.

    def claim_done(self, manifest: Manifest | None, path: str) -> None:
        """Begins a new incarnation of the job. `manifest` is the newest of this run, if there is any."""
        self._unanswered = set()
        if manifest is not None:
            self.adopt(manifest, path, read=True)
            self.next_id = max(self.next_id, manifest.checkpoint + 1)
        self.last = 0

    def go_on(self, manifest: Manifest | None) -> None:
        """Begins to commit under another incarnation, while the attempt goes on. `manifest` is the newest that is there: a
        commit under way that has not made it never will."""
        made = self.committing
        found = None if manifest is None else (manifest.run_id, manifest.checkpoint)
        if made is not None and found != (self.run_id, made.checkpoint):
            self.pending[made.checkpoint].committing = False
            self.committing = None
        self.commit_sent_at, self.last = None, 0

    @property
    def final_pending(self) -> bool:
        """True if the last checkpoint of the job is under way."""
        return any(pending.final for pending in self.pending.values())

    def trigger(
        self,
        now: int,
        kind: CutKind = CutKind.CHECKPOINT,
        hold: bool = False,
        resizes: bool = False,
        unaligned: bool = False,
    ) -> CutRequest:
        """Begins a checkpoint. Returns the cut that its workers are requested to make. `resizes`: the job changes its size
        behind it. `unaligned`: its barriers overtake at once; else as the settings have it, in a checkpoint that is neither
        a savepoint nor the last one."""
        number = self.next_id
        self.next_id += 1
        self.final_again = self.final_again and not kind.final
        cut = CutRequest(number, kind, hold)
        if kind is CutKind.CHECKPOINT and not hold:
            cut = CutRequest(number, kind, hold, self.settings.overtakes_after, self.settings.most_inflight)
        elif unaligned:
            cut = CutRequest(number, kind, hold, 0, self.settings.most_inflight)
        base = set(self._kept[-1].names) if self._kept else set()
        begun = PendingCheckpoint(number, now, now + self.clock_offset, cut, self.requests, base, resizes=resizes)
        self.pending[number] = begun
        self.requests = []
        self.start(now)
        return cut

    def ack(self, slot: int, ack: Ack) -> bool:
        """Takes a worker's ack. Returns True when it was the last one that was awaited."""
        pending = self.pending.get(ack.checkpoint)
        if pending is None or pending.committing:
            return False
        pending.acks[slot] = ack
        return len(pending.acks) == self.slots

    def refusal(self, slot: int, ack: Ack) -> str | None:
        """The reason why an ack does not count; None where it does. Either the worker refers to a file where it must not,
        or to a deleted file. The latter happens when a peer's barrier overtook our `Complete`, so the worker did not know
        of the newest complete checkpoint when it encoded."""
        pending = self.pending.get(ack.checkpoint)
        if pending is not None and pending.cut.kind.whole and ack.older:
            return f"the file of worker {slot} refers to {ack.older[0]}, and that of a savepoint must be whole"
        if pending is None:
            return None
        gone = [name for name in ack.older if name not in self._sizes and name not in self._found]
        return f"the file of worker {slot} refers to {gone[0]}, which is deleted" if gone else None

    def commit(
        self, pending: PendingCheckpoint, carried: list[Prepared], incarnation: int, now: int, deployed: int = 0
    ) -> Commit:
        """The request to the storage for the manifest of a checkpoint that all workers have acked. `carried`: output that
        complete checkpoints have prepared, and that may not be visible. `deployed`: the incarnation under which the workers
        were deployed, where it is another one."""
        pending.committing = True
        self.commit_sent_at = now
        made = self.committing = self.manifest(pending, carried, incarnation, deployed)
        needs = [*(file.name for file in made.files), *made.older]
        return Commit(pending.id, incarnation, self.last, encode_manifest(made), needs)

    def commit_answered(self) -> Manifest | None:
        """Takes the storage's answer for a manifest. Returns the manifest, or None where the answer is not awaited any
        more."""
        manifest, self.committing, self.commit_sent_at = self.committing, None, None
        return manifest

    def ready(self) -> PendingCheckpoint | None:
        """The checkpoint whose manifest is to be committed next; None while one is on its way."""
        if any(p.committing for p in self.pending.values()):
            return None
        complete = [p for p in self.pending.values() if len(p.acks) == self.slots]
        return min(complete, key=lambda p: p.id, default=None)

    def manifest(
        self, pending: PendingCheckpoint, carried: list[Prepared], incarnation: int, deployed: int = 0
    ) -> Manifest:
        """The manifest of a checkpoint that all workers have acked."""
        acks = [pending.acks[slot] for slot in sorted(pending.acks)]
        pending.fresh = [
            Prepared(one.uid, one.data, one.subtask)
            for ack in acks
            for one in ack.prepared
            if not 0 < one.first <= self.newest
        ]
        prepared = carried + pending.fresh
        written = {ack.file for ack in acks}
        older = {name for ack in acks for name in ack.older}
        older |= {one.data.file for one in prepared if isinstance(one.data, Placed)} - written
        return Manifest(
            job=self.job,
            run_id=self.run_id,
            incarnation=incarnation,
            checkpoint=pending.id,
            timestamp=pending.timestamp,
            max_parallelism=self.max_parallelism,
            slots=self.slots,
            files=[StateFile(slot, pending.acks[slot].file, pending.acks[slot].size) for slot in sorted(pending.acks)],
            older=sorted(older),
            operators=operator_records(acks),
            prepared=prepared,
            final=pending.final,
            size=sum(ack.size for ack in acks),
            stopped=pending.stops or (pending.final and self.stopping),
            in_flight=in_flight(acks),
            channels=channels(acks),
            root=self.settings.origin,
            deployed=0 if deployed == incarnation else deployed,
        )

    def earlier_pending(self, number: int) -> list[int]:
        """Pending checkpoints before this one, which is complete: they will never be complete."""
        return [other for other in self.pending if other < number]

    def complete(self, number: int, manifest: Manifest, path: str, url: str, now: int) -> Completed:
        """Completes a checkpoint whose manifest exists."""
        pending = self.pending.pop(number)
        following = self.last + 1 if self.last else 0
        if following != number:  # that slot holds a pointer, which is not needed behind a manifest
            self._sizes[manifest_name(manifest.incarnation, following)] = 0
        self.last = number
        self.completed += 1
        self.failures = self.in_a_row = self.not_before = 0
        self._ended_at = now
        self._sizes.update({file.name: file.size for file in manifest.files})
        self.adopt(manifest, path)
        stats = self._stats(pending, manifest, url, now)
        self.past.append(stats)
        ended = CheckpointEnded(number, tuple(pending.waiting), stats, None)
        return Completed(ended, stats, pending.fresh, pending.ends, pending.resizes)

    def adopt(self, manifest: Manifest, path: str, read: bool = False) -> None:
        """Keeps a complete checkpoint of this run. A manifest that is `read` from its file, and is marked as published,
        seems to have prepared nothing; its mark is needed all the same."""
        self.newest = max(self.newest, manifest.checkpoint)
        if any(kept.checkpoint == manifest.checkpoint for kept in self._kept):
            return
        own = [path, published_mark(path)] if manifest.prepared or read else [path]
        names = frozenset([*own, *[file.name for file in manifest.files], *manifest.older])
        self._kept.append(_Kept(manifest.checkpoint, path, names))
        for name in own:
            self._sizes.setdefault(name, 0)
        for file in manifest.files:
            self._sizes.setdefault(file.name, file.size)
        self._found.update(manifest.older)
        for pending in self.pending.values():
            pending.base |= names

    def attempt_over(self, reason: str, now: int) -> list[CheckpointEnded | Delete]:
        """Ends every checkpoint of the attempt. One whose manifest is on its way may yet be complete: it is not awaited any
        more, and the next claim finds it."""
        actions: list[CheckpointEnded | Delete] = []
        self.committing, self.commit_sent_at = None, None
        self.final_again = False
        for pending in list(self.pending.values()):
            away = " (its manifest was on its way, and may be found there)" if pending.committing else ""
            self._drop(pending.id, f"{reason}{away}", now)
            if pending.committing:
                self._unanswered |= pending.needs()
            else:  # a worker forgets its file after the ack: this run deletes it, unless the manifest on its way needs it
                self._sizes.update({ack.file: ack.size for ack in pending.acks.values()})
            actions.append(CheckpointEnded(pending.id, tuple(pending.waiting), None, reason))
        gone = self._unneeded_names()
        if gone:
            actions.append(Delete(gone))
        return actions

    def storage_away(self, until: int) -> None:
        """Notes that the storage is tried again at `until`: the next checkpoint is due then."""
        self.not_before, self._next_at = until, self._next_at and until

    def is_open(self, number: int) -> bool:
        """True if a checkpoint is under way, and its manifest is not yet."""
        return number in self.pending and not self.pending[number].committing

    def abort(self, number: int, reason: str, now: int, failure: bool = True, counts: bool = True) -> Aborted | None:
        """Aborts a pending checkpoint; None where it is not pending, or its manifest is on its way. `failure`: it is
        reported as a failure. `counts`: it counts among the failures that the job tolerates."""
        if not self.is_open(number):
            return None
        pending = self._drop(number, reason, now, failure)
        self.in_a_row += int(failure)
        failure = failure and counts and not pending.requested
        self.failures += int(failure)
        too_many = failure and self.failures > self.settings.tolerated_failures
        if too_many:
            self.failures = 0
        for ack in pending.acks.values():
            self._keep_file(number, ack)
        ended = CheckpointEnded(number, tuple(pending.waiting), None, reason)
        what = pending.final, pending.stops, pending.resizes
        return Aborted(ended, *what, too_many, self._unneeded_names())

    def unneeded_files(self, ack: Ack) -> list[str]:
        """The files to delete after an ack of a checkpoint that was aborted meanwhile. Other unneeded files were deleted as
        soon as no checkpoint needed them."""
        self._keep_file(ack.checkpoint, ack)
        if self._is_needed(ack.file):
            return []
        del self._sizes[ack.file]
        self._found.discard(ack.file)
        return [ack.file]

    def _is_needed(self, name: str) -> bool:
        if name in self._unanswered or name in self.pinned or any(name in kept.names for kept in self._kept):
            return True
        return any(name in pending.base or name in pending.needs() for pending in self.pending.values())

    def _keep_file(self, number: int, ack: Ack) -> None:
        """Notes the file of an ack whose checkpoint will never be complete. Checkpoints that were triggered behind it may
        refer to the file."""
        self._sizes[ack.file] = ack.size
        for later in self.pending.values():
            if later.id > number:
                later.base.add(ack.file)

    def _drop(self, number: int, reason: str, now: int, failure: bool = False) -> PendingCheckpoint:
        self.aborted += 1
        self.failed.append(FailedCheckpoint(number, reason, now + self.clock_offset, failure))
        self._ended_at = now
        return self.pending.pop(number)

    # Files.

    def surplus(self, unmarked: Collection[str]) -> list[str]:
        """Names (relative to the checkpoint folder of the job) that no checkpoint needs any more; forgets them. A manifest
        that has output and is not marked as published stays, however many there are. Nobody knows when it is really
        deleted, and until then a job can start from it, and publishes its output."""
        while len(self._kept) > self.settings.keep and self._kept[0].path not in unmarked:
            self._kept.pop(0)
        return self._unneeded_names()

    def _unneeded_names(self) -> list[str]:
        needed = self._unanswered.union(self.pinned, *(kept.names for kept in self._kept))
        for pending in self.pending.values():
            needed |= pending.needs()
        names = sorted(name for name in self._sizes if name not in needed)
        for name in names:
            del self._sizes[name]
        self._found.difference_update(names)
        return names

    def give_up_all(self) -> list[str]:
        """The names of all files of this run's checkpoints, none of which is kept from now on."""
        self._kept, self.pinned = [], ()
        self.pending, self._unanswered = {}, set()
        return self._unneeded_names()

    @property
    def kept_paths(self) -> list[str]:
        """The manifests that are kept, the oldest first."""
        return [kept.path for kept in self._kept]

    @property
    def needed(self) -> list[str]:
        """Every file that a kept checkpoint names."""
        return sorted({name for kept in self._kept for name in kept.names})

    def _stats(self, pending: PendingCheckpoint, manifest: Manifest, url: str, now: int) -> CheckpointStats:
        duration = now - pending.triggered_at
        freeze, alignment, write = parts_of(list(pending.acks.values()), duration)
        older = sum(self._sizes.get(name, 0) for name in manifest.older)
        return CheckpointStats(
            id=pending.id,
            path=url,
            timestamp=pending.timestamp,
            duration=duration,
            size=manifest.size,
            trigger=duration - alignment - freeze - write,
            alignment=alignment,
            freeze=freeze,
            write=write,
            full_size=manifest.size + older,
            final=pending.final,
            inflight=sum(ack.inflight for ack in pending.acks.values()),
            inflight_by=dict(manifest.in_flight),
            referred=sum(ack.referred for ack in pending.acks.values()),
            policy=policy_of(list(pending.acks.values())),
        )


def what_follows(aborted: Aborted, counts: bool, left: int) -> str:
    """The sentence on what comes after a checkpoint that has failed."""
    if aborted.too_many:
        return "that is more than tolerated_failures: the job fails, or starts again"
    if aborted.stops:
        return "the stop has come to nothing, and the job goes on"
    if aborted.resizes:
        return "the job goes on in the size that it has"
    if not counts:
        return "the job goes on, and the next one is taken when the storage is tried again"
    if aborted.final:
        return "the job cannot end without it: it is taken once more"
    return f"the job goes on, and the next one is taken as ever; {left} more may fail in a row (tolerated_failures)"
