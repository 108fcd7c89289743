"""The way of output: what sinks prepared is published, its manifests are marked, and sinks may forget it.

`JobOutput` decides, from three books: `Publications` (what was sent to the worker), `PublishedMarks` (the manifests of this
run) and `RestoredOrigin` (the checkpoint of another run that this one started from). One worker publishes, the one of slot
`PUBLISHER`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tailrace.coordinator.actions import MarkPublished, MarkSwept
from tailrace.coordinator.decisions import Decisions, Tell
from tailrace.coordinator.output.origin import RestoredOrigin
from tailrace.coordinator.output.publications import Publications
from tailrace.coordinator.output.published_marks import PublishedMarks
from tailrace.protocol.deployment import NotPublished, Published
from tailrace.state.manifest import Manifest, Prepared

PUBLISHER = 0
"""The slot whose worker publishes what the sinks of all workers prepared."""


class JobOutput:
    """The output of one run; the coordinator carries out its decisions.

    Invariant J2: what sinks prepared is published only after a manifest with it was committed, or, where there are no
    checkpoints, once and after every slice has finished.
    """

    def __init__(self, run_id: str, origin: RestoredOrigin, abandoned: Sequence[str] = ()) -> None:
        self.origin = origin
        self._run_id = run_id
        self._marks = PublishedMarks()
        self._publications = Publications()
        self._abandoned = set(abandoned)
        """Earlier runs whose sinks may have left hidden output that will never be published, until it is removed."""
        self._swept = False

    # An attempt begins and ends.

    def restore(self, ours: Manifest | None, path: str) -> None:
        """Takes the newest checkpoint of this run that a claim has found, or none."""
        self.origin.restore(ours)
        if ours is not None:
            self._marks.adopt(ours, path)

    def begin(self, restarted: bool) -> Decisions:
        """Begins an attempt whose workers have deployed. Output that the restored checkpoint had prepared may not be
        published yet, and output that was prepared after it never will be: the former is published, and the latter removed,
        before anything else happens."""
        restored, origin = self.origin.restored, self.origin
        runs = self._abandoned | ({self._run_id} if restarted and not self._traces_needed else set())
        if restored is not None and self._fenced:
            runs.add(restored.run_id)
        if runs or (restored is not None and restored.prepared):
            return self._tell(0, [] if restored is None else restored.prepared, sorted(runs))
        origin.visible = origin.restores_itself
        return _marks(origin.to_mark())

    def started(self) -> Decisions:
        """Notes that the attempt runs: hidden output of earlier runs is removed."""
        if self._swept:
            return []
        self._swept, self._abandoned = True, set()
        return [] if self.origin.spare else [MarkSwept()]  # where something was spared, the next start looks again

    def attempt_over(self) -> None:
        """Ends the attempt: nothing of it is committed any more."""
        self._marks.attempt_over()

    def anew(self) -> None:
        """Begins another attempt: its worker is sent everything again."""
        self._publications = Publications()
        self.origin.attempt_over()

    @property
    def _traces_needed(self) -> bool:
        """True if traces of this run must stay, and with them all that it has left. A kept checkpoint may have output that
        is visible and not in the restored one, and a start from it publishes that output."""
        restored = self.origin.restored
        return restored is not None and self.origin.restores_own and self._marks.has_more(restored)

    @property
    def _fenced(self) -> bool:
        """True if the run that wrote the restored manifest cannot commit any more because of us: it is ours, or one of this
        job in this folder. Another job may live on, so its unpublished output is not ours to remove. Nor is output that a
        later checkpoint of that run needs: the user may have gone back too far, and start from it after all."""
        if self.origin.restores_own:
            return not self._traces_needed
        return self.origin.is_here and not self.origin.spare

    # Publishing.

    def finished(self, prepared: list[Prepared]) -> Decisions:
        """Publishes the output of a job without checkpoints, all of whose slices have finished: its only publication."""
        return self._publish(0, prepared)

    def committed(self, number: int, manifest: Manifest, path: str, fresh: list[Prepared]) -> Decisions:
        """Publishes the output of a committed manifest that no earlier one has (`fresh`). Sinks may then forget output that
        was marked as published before the commit was requested. No other driver has read a manifest without its mark: a
        driver that claims reads after our commit, and finds a later manifest."""
        self._marks.committed(number, fresh)
        self._marks.adopt(manifest, path)
        return [*self._publish(number, fresh), *self._settle()]

    def _publish(self, number: int, prepared: list[Prepared]) -> Decisions:
        return self._tell(number, prepared, []) if prepared else self._mark_visible()

    def _settle(self) -> Decisions:
        settled = self._publications.settle()
        return [] if settled is None else [Tell(settled, PUBLISHER)]

    def _tell(self, number: int, prepared: list[Prepared], recover: list[str]) -> Decisions:
        folder = "" if number else self.origin.files_in  # the restored checkpoint has number 0 here
        return [Tell(told, PUBLISHER) for told in self._publications.tell(number, prepared, recover, folder)]

    def publisher_replaced(self) -> Decisions:
        """Sends everything again to the worker that has taken the place of the lost publisher."""
        return [Tell(told, PUBLISHER) for told in self._publications.again()]

    def published(self, said: Published) -> Decisions | None:
        """Takes the worker's report that all output of a number is visible; None where it is not awaited."""
        if not self._publications.answered(said.number):
            return None
        # Skipped output is not visible: a run that starts from the origin with its sink publishes it.
        if said.number == 0 and not said.skipped:
            self.origin.visible = self.origin.visible or self.origin.restores_itself
        return self._mark_visible()

    def not_published(self, said: NotPublished) -> bool:
        """Takes the worker's report that not all output of a number is visible. Returns True if the report is about the
        newest send."""
        return self._publications.failed(said.number, said.tries)

    def was_tried(self, number: int) -> bool:
        """True if a number was sent before without success."""
        return self._publications.was_tried(number)

    @property
    def unpublished(self) -> bool:
        """True if something is to be sent once more."""
        return bool(self._publications.unpublished)

    def tell_again(self) -> Decisions:
        """Sends once more what could not be made visible."""
        return [Tell(told, PUBLISHER) for told in self._publications.once_more()]

    @property
    def pending(self) -> bool:
        """True if the worker has a publication to answer."""
        return bool(self._publications.open)

    # Commits and marks.

    def carried(self) -> list[Prepared]:
        """Output that complete checkpoints have prepared and that may not be visible: the next manifest carries it
        along."""
        return [one for _, one in self._marks.unpublished]

    def before_commit(self, number: int) -> None:
        """Notes that the manifest of a checkpoint is requested, with what is `carried`. Once it exists, sinks may forget
        what was marked until now."""
        self._marks.made(number)
        self._publications.restored_marked = self._restored_settled()
        self._publications.before_commit(self._marks.settled(self.visible_through))

    def origin_published(self) -> None:
        """Notes that the origin is marked, by us or by another start from it."""
        self.origin.published()

    def marked(self, path: str) -> None:
        """Notes that a manifest is marked: all its output is published."""
        self._marks.marked(path)
        self.origin.marked(path)

    def not_marked(self, path: str) -> None:
        """Notes that a mark could not be written: it is requested again with the next publication, or the next
        checkpoint."""
        self._marks.not_marked(path)
        self.origin.not_marked(path)

    def kept(self, paths: Collection[str]) -> None:
        """Forgets the manifests of the run that are not kept any more."""
        self._marks.only(paths)

    @property
    def unmarked(self) -> frozenset[str]:
        """The manifests of this run that must be kept: they have output, and are not marked as published."""
        return self._marks.unmarked

    @property
    def visible_through(self) -> int:
        """The checkpoint up to which all output is visible; below 0 while the restored one's output is not."""
        return self._publications.visible_through(self._marks.newest)

    def _mark_visible(self) -> Decisions:
        """Requests a mark for every manifest whose output is visible, and that is not marked."""
        return _marks([*self.origin.to_mark(), *self._marks.published(self.visible_through)])

    def _restored_settled(self) -> bool:
        """True if the restored checkpoint's output will never be published again, neither by a start from it, nor by one
        from another manifest with some of the same output."""
        restored = self.origin.restored
        if restored is None or not restored.prepared:
            return False
        if self.origin.restores_own:
            return self._marks.all_marked(restored.checkpoint)
        return self.origin.is_here and self.origin.settled


def _marks(paths: list[str]) -> Decisions:
    return [MarkPublished(path) for path in paths]
