"""What becomes of output: what sinks prepared is published, its manifests are marked, and sinks may forget it.

`JobOutput` decides, from three books: `Publications` (what the worker was told), `PublishedMarks` (the manifests of this
run) and `RestoredOrigin` (the checkpoint of another run that this one started from). One worker publishes, that of slot
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
"""The slot whose worker publishes what the sinks of all of them prepared."""


class JobOutput:
    """The bookkeeping of one run; its decisions are for the coordinator to carry out.

    Invariant J2: what sinks prepared is published only after a manifest with it was committed, or, where there are no
    checkpoints, once and after every slice has finished.
    """

    def __init__(self, run_id: str, origin: RestoredOrigin, abandoned: Sequence[str] = ()) -> None:
        self.origin = origin
        self._run_id = run_id
        self._marks = PublishedMarks()
        self._publications = Publications()
        self._abandoned = set(abandoned)
        """Earlier runs whose sinks may have left output under cover which nobody will publish, until it is removed."""
        self._swept = False

    # An attempt begins and ends.

    def restore(self, ours: Manifest | None, path: str) -> None:
        """A claim has found the newest checkpoint of this run, or none."""
        self.origin.restore(ours)
        if ours is not None:
            self._marks.adopt(ours, path)

    def begin(self, restarted: bool) -> Decisions:
        """All workers have deployed. What the restored checkpoint had prepared may not be published yet, and what was
        prepared after it never will be: both is seen to before anything else happens."""
        restored, origin = self.origin.restored, self.origin
        runs = self._abandoned | ({self._run_id} if restarted and not self._traces_needed else set())
        if restored is not None and self._fenced:
            runs.add(restored.run_id)
        if runs or (restored is not None and restored.prepared):
            return self._tell(0, [] if restored is None else restored.prepared, sorted(runs))
        origin.visible = origin.restores_itself
        return _marks(origin.to_mark())

    def started(self) -> Decisions:
        """The attempt runs: what earlier runs had left under cover is removed."""
        if self._swept:
            return []
        self._swept, self._abandoned = True, set()
        return [] if self.origin.spare else [MarkSwept()]  # where something was spared, the next start looks again

    def attempt_over(self) -> None:
        """Nothing of this attempt is committed any more."""
        self._marks.attempt_over()

    def anew(self) -> None:
        """Another attempt begins: its worker is told everything again."""
        self._publications = Publications()
        self.origin.attempt_over()

    @property
    def _traces_needed(self) -> bool:
        """Whether traces of this run must stay, and with them all that it has left: a kept checkpoint may have output that
        is visible, is not in the restored one, and is asked for by who starts from it."""
        restored = self.origin.restored
        return restored is not None and self.origin.restores_own and self._marks.has_more(restored)

    @property
    def _fenced(self) -> bool:
        """Whether the run that wrote the restored manifest cannot commit any more because of us: it is ours, or one of this
        job in this folder. Another job may live on; what it has not published is not ours to remove. Nor is what a later
        checkpoint of that run needs: the user may have gone back too far, and start from it after all."""
        if self.origin.restores_own:
            return not self._traces_needed
        return self.origin.is_here and not self.origin.spare

    # Publishing.

    def finished(self, prepared: list[Prepared]) -> Decisions:
        """Every slice of a job without checkpoints has finished: its only publication."""
        return self._publish(0, prepared)

    def committed(self, number: int, manifest: Manifest, path: str, fresh: list[Prepared]) -> Decisions:
        """The manifest of a checkpoint exists: what no earlier one has (`fresh`) is published, and sinks may forget what was
        marked as published before it was asked for. No other driver has read a manifest without its mark, for a driver that
        claims reads after our commit, and finds a later one."""
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
        """The worker that publishes was lost, and another one has taken its place."""
        return [Tell(told, PUBLISHER) for told in self._publications.again()]

    def published(self, said: Published) -> Decisions | None:
        """The worker has made all of a number visible; None where nobody waits for that."""
        if not self._publications.answered(said.number):
            return None
        # Skipped output is not visible: a run that starts from the origin with its sink publishes it.
        if said.number == 0 and not said.skipped:
            self.origin.visible = self.origin.visible or self.origin.restores_itself
        return self._mark_visible()

    def not_published(self, said: NotPublished) -> bool:
        """The worker could not make all of a number visible. Whether that was said of what it was told last."""
        return self._publications.failed(said.number, said.tries)

    def was_tried(self, number: int) -> bool:
        """Whether a number was told before, and has come to nothing."""
        return self._publications.was_tried(number)

    @property
    def unpublished(self) -> bool:
        """Whether something is to be told once more."""
        return bool(self._publications.unpublished)

    def tell_again(self) -> Decisions:
        """What could not be made visible is told once more."""
        return [Tell(told, PUBLISHER) for told in self._publications.once_more()]

    @property
    def pending(self) -> bool:
        """Whether the worker was told to publish something and has not answered."""
        return bool(self._publications.open)

    # Commits and marks.

    def carried(self) -> list[Prepared]:
        """What complete checkpoints have prepared and may not be visible: the next manifest carries it along."""
        return [one for _, one in self._marks.unpublished]

    def before_commit(self, number: int) -> None:
        """The manifest of a checkpoint is asked for, with what is `carried`. Once it exists, what was marked until now is
        forgotten."""
        self._marks.made(number)
        self._publications.restored_marked = self._restored_settled()
        self._publications.before_commit(self._marks.settled(self.visible_through))

    def origin_published(self) -> None:
        """The origin is marked, by us or by another start from it."""
        self.origin.published()

    def marked(self, path: str) -> None:
        """It is written down that all that a manifest has prepared is published."""
        self._marks.marked(path)
        self.origin.marked(path)

    def not_marked(self, path: str) -> None:
        """That could not be written down: it is asked for again with the next publication, or the next checkpoint."""
        self._marks.not_marked(path)
        self.origin.not_marked(path)

    def kept(self, paths: Collection[str]) -> None:
        """Only these manifests of the run are kept."""
        self._marks.only(paths)

    @property
    def unmarked(self) -> frozenset[str]:
        """The manifests of this run that must be kept: they have output, and nobody has marked them as published."""
        return self._marks.unmarked

    @property
    def visible_through(self) -> int:
        """Up to which checkpoint all output is visible; below 0 while what the restored one had prepared is not."""
        return self._publications.visible_through(self._marks.newest)

    def _mark_visible(self) -> Decisions:
        """Has every manifest marked whose output is visible, and that is not marked."""
        return _marks([*self.origin.to_mark(), *self._marks.published(self.visible_through)])

    def _restored_settled(self) -> bool:
        """Whether nobody asks any more for what the restored checkpoint had prepared: who starts from it, or from another
        manifest that has some of the same output."""
        restored = self.origin.restored
        if restored is None or not restored.prepared:
            return False
        if self.origin.restores_own:
            return self._marks.all_marked(restored.checkpoint)
        return self.origin.is_here and self.origin.settled


def _marks(paths: list[str]) -> Decisions:
    return [MarkPublished(path) for path in paths]
