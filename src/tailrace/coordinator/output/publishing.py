"""The publishing of a job's output: behind a checkpoint what sinks prepared is sent to the workers that publish it. When it
is visible, its manifest is marked, and sinks may forget it.

`JobOutput` keeps the state of one run's output, and carries out what `publish_decision` makes of it. `lanes` has the
messages to the workers that publish.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tailrace.coordinator.actions import MarkPublished, MarkSwept
from tailrace.coordinator.decisions import Decisions, Tell
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.output.lanes import OutputPart, PublishingLanes
from tailrace.coordinator.output.origin import NOTHING, RestoredCheckpoint, StartFrom
from tailrace.coordinator.output.parts import publish_messages
from tailrace.coordinator.output.publish_decision import HeldOutput, OutputState, Resolution, Settlement, resolve
from tailrace.protocol.deployment import Published, Settled
from tailrace.state.manifest import Manifest, Prepared


@dataclass
class _Publication:
    """Output that goes to the workers that publish it under one number."""

    prepared: Sequence[Prepared]
    parts: int
    """The number of its parts that are not visible."""
    last: OutputPart | None = None
    """The part that is sent when all others are visible: it removes what was not published."""
    skipped: bool = False
    """True if some of it stays hidden."""
    forgets_origin: bool = False
    """True if what the run of the origin has left is removed with it."""

    @property
    def visible(self) -> bool:
        """True if the workers have reported that all of it is visible."""
        return not self.parts and self.last is None


class JobOutput:
    """The output of one run; the coordinator carries out its decisions.

    Invariant J2: what sinks prepared is published only after a manifest with it was committed, or, where there are no
    checkpoints, once and after every slice has finished.
    Invariant U1: in an attempt no prepared output is published under two numbers.
    Invariant U2: `Settled` is sent for a publication when every manifest that has something of it was marked as published
    before a commit that has succeeded. None is deleted before it is marked.
    Invariant U6: where this run has to remove what the run of its origin has left, it is marked as swept when workers have
    reported that all of it is gone, traces too.
    """

    def __init__(
        self,
        job: str,
        run_id: str,
        folder: str,
        origin: StartFrom = NOTHING,
        abandoned: Sequence[str] = (),
        slots: int = 1,
        limits: Limits | None = None,
    ) -> None:
        self.origin = origin
        self.restored = RestoredCheckpoint(origin.manifest, origin.path, origin.folder)
        """The checkpoint that the next deployment restores."""
        self._job, self._run_id, self._folder = job, run_id, folder
        self._newest = 0
        """The newest complete checkpoint of this run."""
        with_output = {origin.path} if origin.manifest is not None and origin.manifest.prepared else set()
        self._manifests = {path: HeldOutput(path) for path in sorted(with_output.union(origin.before))}
        """The manifests that have output: those of this run that are kept, and those of the origin's run."""
        self._origin_visible = False
        """True if all output is visible that the origin had prepared."""
        self.lanes = PublishingLanes(Limits() if limits is None else limits)
        """The parts of publications that are not visible."""
        self._slots = slots
        self._publishers: set[int] = set()
        """The slots whose workers have published in this attempt, or are to."""
        self._sent: dict[int, _Publication] = {}
        """The publications of the attempt, from the oldest on that is not visible."""
        self._made = (0, 1)
        """The newest manifest that was made: its checkpoint, and the number of the oldest output in it."""
        self._due = Settlement()
        """The output that was settled when the newest commit was requested."""
        self._settled = Settlement()
        """The newest settlement that was sent to the publishers."""
        self._abandoned = set(abandoned)
        """Earlier runs whose sinks may have left hidden output that will never be published, until it is removed."""
        self._swept = False
        self._origin_left = origin.manifest is not None and bool(origin.manifest.prepared)
        """True if the traces of the origin's output may be there. A worker that is lost forgets which ones it was to
        remove, so `Settled` alone does not remove them for sure."""
        self._origin_over = self._origin_over_when_made = False
        """True if nobody needs these traces: no manifest can have that output published again, since before a commit that
        has succeeded. The second one is for the newest commit that was requested."""

    @property
    def resolution(self) -> Resolution:
        """What follows from the state of the output."""
        restored = self.restored.manifest
        return resolve(
            OutputState(
                self._newest,
                list(self._open),
                list(self._manifests.values()),
                self._manifests.get(self.restored.path) if restored is not None and restored.prepared else None,
                self.restored.own,
                self._origin_visible,
                self._origin_is_here and not self.origin.spare,
            )
        )

    @property
    def _origin_is_here(self) -> bool:
        """True if another run of this job has written the origin in this very folder: that run cannot live any more. It
        may, where this folder is a copy of its own, or the job has another name."""
        manifest = self.origin.manifest
        return (
            manifest is not None and manifest.job == self._job and self.origin.folder == manifest.root == self._folder
        )

    @property
    def _forgets_origin(self) -> bool:
        """True if the next publication is to remove what the run of the origin has left."""
        under_way = any(sent.forgets_origin for sent in self._sent.values())
        return self._origin_left and self._origin_over and not self.origin.spare and not under_way

    # An attempt begins and ends.

    def restore(self, ours: Manifest | None, path: str) -> None:
        """Takes the newest checkpoint of this run that a claim has found, or none."""
        if ours is None:
            self.restored = RestoredCheckpoint(self.origin.manifest, self.origin.path, self.origin.folder)
        else:
            self.restored = RestoredCheckpoint(ours, path, own=True)
            self._adopt(ours, path)

    def begin(self, restarted: bool, now: int) -> Decisions:
        """Begins an attempt whose workers have deployed. Output that the restored checkpoint had prepared may not be
        published yet, and output that was prepared after it never will be: the former is published, and the latter removed,
        before anything else happens."""
        restored, runs = self.restored.manifest, set(self._abandoned)
        if restored is not None and self.resolution.removable:
            runs.add(restored.run_id)
        if restarted and not self.restored.own:
            runs.add(self._run_id)
        prepared = [] if restored is None else restored.prepared
        if runs or prepared or self._forgets_origin:
            return self._send(0, prepared, sorted(runs), now)
        self._origin_visible = self._origin_visible or self.restored.is_origin
        return self.mark_visible()

    def start(self) -> Decisions:
        """Notes that the attempt runs: hidden output of earlier runs is removed."""
        self._abandoned = set()
        return self._mark_swept()

    def _mark_swept(self) -> Decisions:
        """Marks the run as swept, once; not where something was spared, so that the next start looks again."""
        if self._swept or (self._origin_left and self._origin_is_here and not self.origin.spare):
            return []
        self._swept = True
        return [] if self.origin.spare else [MarkSwept()]

    def attempt_over(self) -> None:
        """Ends the attempt: nothing of it is committed any more. Marks on their way may not have been made, and are
        requested again."""
        self._update(*self._manifests, requested=False)

    def resize(self, slots: int) -> None:
        """Gives the job another number of slots, before the next attempt."""
        self._slots = slots

    def anew(self) -> None:
        """Begins another attempt: it publishes from its manifest what was on its way to be published."""
        self._sent, self._due, self._settled, self._publishers = {}, Settlement(), Settlement(), set()
        self.lanes.clear()

    # Publishing.

    def finish(self, prepared: list[Prepared], now: int) -> Decisions:
        """Publishes the output of a job without checkpoints, all of whose slices have finished: its only publication."""
        return self._publish(0, prepared, now)

    def commit_done(self, number: int, manifest: Manifest, path: str, fresh: list[Prepared], now: int) -> Decisions:
        """Publishes the output of a committed manifest that no earlier one has (`fresh`). Sinks may then forget output that
        was marked as published before the commit was requested. No other driver has read a manifest without its mark: a
        driver that claims reads after our commit, and finds a later manifest."""
        self._adopt(manifest, path)
        self._origin_over = self._origin_over or self._origin_over_when_made
        if self._forgets_origin:  # what is settled goes before: a sink keeps the traces of what is not
            return [*self._settle(), *self._publish(number, fresh, now)]
        return [*self._publish(number, fresh, now), *self._settle()]

    def _publish(self, number: int, prepared: list[Prepared], now: int) -> Decisions:
        return self._send(number, prepared, [], now) if prepared or self._forgets_origin else self.mark_visible()

    def _settle(self) -> Decisions:
        if self._due <= self._settled:
            return []
        self._settled = self._due
        return [Tell(Settled(*self._settled), slot) for slot in sorted(self._publishers)]

    def _send(self, number: int, prepared: list[Prepared], recover: list[str], now: int) -> Decisions:
        folder = "" if number else self.restored.folder  # the restored checkpoint has number 0 here
        forgets, origin = self._forgets_origin, self.origin.manifest
        if forgets and origin is not None:
            recover = sorted({*recover, origin.run_id})
        messages = publish_messages(number, prepared, recover, folder, self._slots)
        parts = [OutputPart(slot, message) for slot, message in messages]
        self._publishers.update(part.slot for part in parts)
        last = parts.pop() if len(parts) > 1 and not parts[-1].uid else None
        self._sent[number] = _Publication(prepared, len(parts), last, forgets_origin=forgets)
        return self.lanes.add(parts, now)

    def worker_replaced(self, slot: int, now: int) -> Decisions:
        """Sends everything again that the lost worker of a slot was to publish."""
        decided = self.lanes.worker_replaced(slot, now)
        if self._settled == Settlement() or slot not in self._publishers:
            return decided
        return [*decided, Tell(Settled(*self._settled), slot)]

    def publication_done(self, report: Published, slot: int, now: int) -> Decisions | None:
        """Takes the report of a slot's worker that a part of a number is visible; None where it is not awaited."""
        decided = self.lanes.complete(report, slot, now)
        if decided is None:
            return None
        sent = self._sent[report.number]
        sent.parts -= 1
        sent.skipped = sent.skipped or report.skipped
        if not sent.parts and sent.last is not None:
            last, sent.last, sent.parts = sent.last, None, 1
            return [*decided, *self.lanes.add([last], now)]
        # Skipped output is not visible: a run that starts from the origin with its sink publishes it.
        if report.number == 0 and sent.visible and not sent.skipped and self.restored.is_origin:
            self._origin_visible = True
        if sent.visible and sent.forgets_origin:
            self._origin_left = False
            decided += self._mark_swept()
        through = self.visible_through
        self._sent = {number: sent for number, sent in self._sent.items() if number > through}
        return [*decided, *self.mark_visible()]

    @property
    def pending(self) -> bool:
        """True if workers have a publication to answer."""
        return bool(self._open)

    @property
    def _open(self) -> dict[int, _Publication]:
        """The publications that are not visible, the oldest first."""
        return {number: sent for number, sent in sorted(self._sent.items()) if not sent.visible}

    # Commits and marks.

    def carried_output(self) -> list[Prepared]:
        """Output that complete checkpoints have prepared and that may not be visible: the next manifest carries it
        along."""
        return [one for sent in self._sent.values() for one in sent.prepared]

    def before_commit(self, number: int) -> None:
        """Notes that the manifest of a checkpoint is requested, with what is `carried_output`. Once it exists, sinks may
        forget what was marked until now."""
        self._made = (number, min([number, *self._sent]))
        resolution = self.resolution
        self._due, self._origin_over_when_made = resolution.settled, resolution.origin_over

    def _adopt(self, manifest: Manifest, path: str) -> None:
        """Adds a complete checkpoint of this run."""
        self._newest = max(self._newest, manifest.checkpoint)
        if not manifest.prepared:
            self._update(path, marked=True)
        elif path not in self._manifests:
            made, first = self._made
            first = first if made == manifest.checkpoint else 0  # how far back another manifest reaches is not known
            self._manifests[path] = HeldOutput(path, manifest.checkpoint, first)

    def origin_published(self) -> None:
        """Notes that the origin is marked, by us or by another start from it: all its output is visible, and is not
        published again. The run that has marked it may have removed the traces of it."""
        origin = self.origin
        if origin.manifest is None:
            return
        self._manifests.pop(origin.path, None)
        # Checkpoints before it may need the traces of what is not published again now.
        before = any(not one.checkpoint and not one.marked for one in self._manifests.values())
        spare = origin.spare or (bool(origin.manifest.prepared) and before)
        self.origin = replace(origin, manifest=msgspec.structs.replace(origin.manifest, prepared=[]), spare=spare)

    def mark_done(self, path: str) -> None:
        """Notes that a manifest is marked: all its output is published."""
        self._update(path, marked=True)

    def not_marked(self, path: str) -> None:
        """Notes that a mark could not be written: `mark_visible` requests it again."""
        self._update(path, requested=False)

    def keep_only(self, paths: Collection[str]) -> None:
        """Forgets the manifests of the run that are not kept any more."""
        self._manifests = {path: one for path, one in self._manifests.items() if not one.checkpoint or path in paths}

    @property
    def unmarked(self) -> frozenset[str]:
        """The manifests that must be kept: they have output, and are not marked as published."""
        return frozenset(path for path, one in self._manifests.items() if not one.marked)

    @property
    def origin_marking(self) -> bool:
        """True if the storage was requested to mark the origin, or a checkpoint before it, and has not answered."""
        return any(one.requested and not one.marked for one in self._manifests.values() if not one.checkpoint)

    @property
    def visible_through(self) -> int:
        """The checkpoint up to which all output is visible; below 0 while the restored one's output is not."""
        return self.resolution.visible_through

    def mark_visible(self) -> Decisions:
        """Requests a mark for every manifest whose output is visible, and that is not marked. One under way is not requested
        again."""
        paths = self.resolution.to_mark
        self._update(*paths, requested=True)
        return [MarkPublished(path) for path in paths]

    def _update(self, *paths: str, **changes: Any) -> None:
        """Changes what is known of the marks of these manifests."""
        for path in paths:
            if path in self._manifests:
                self._manifests[path] = self._manifests[path]._replace(**changes)
