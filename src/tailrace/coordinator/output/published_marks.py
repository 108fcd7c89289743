"""The manifests of this run that have output: what of it is visible, and which of them are marked as published."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tailrace.state.manifest import Manifest, Prepared


@dataclass
class _Entry:
    checkpoint: int
    path: str
    """The manifest, relative to the checkpoint folder of the job."""
    prepared: bool
    """True if it has anything to publish."""
    first: int = 1
    """The number of the publication with the oldest output in it, which was not visible when the manifest was made."""
    visible: bool = False
    """True if all its output is published, as far as we know, and its mark was requested."""
    marked: bool = False
    """True if it is marked as published."""


class PublishedMarks:
    """The bookkeeping of one run's manifests; `JobOutput` decides what follows from it."""

    def __init__(self) -> None:
        self.newest = 0
        """The newest complete checkpoint of this run."""
        self.unpublished: list[tuple[int, Prepared]] = []
        """Output that complete checkpoints have prepared and no worker has reported as published, with their numbers."""
        self._made = (0, 1)
        """The newest manifest that was made: its checkpoint, and the number of the oldest output in it."""
        self._entries: list[_Entry] = []

    def made(self, number: int) -> None:
        """Notes that the manifest of a checkpoint is made, and carries along what is unpublished."""
        self._made = (number, min([number, *(older for older, _ in self.unpublished)]))

    def committed(self, number: int, fresh: list[Prepared]) -> None:
        """Notes that the manifest exists; `fresh` is the output that no earlier one has."""
        self.unpublished += [(number, one) for one in fresh]

    def adopt(self, manifest: Manifest, path: str) -> None:
        """Adds a complete checkpoint of this run."""
        self.newest = max(self.newest, manifest.checkpoint)
        for entry in self._entries:
            if entry.checkpoint == manifest.checkpoint:
                entry.marked = entry.marked or not manifest.prepared
                return
        made, first = self._made
        first = first if made == manifest.checkpoint else 1  # how far back another manifest reaches is not known
        self._entries.append(_Entry(manifest.checkpoint, path, bool(manifest.prepared), first))

    def published(self, number: int) -> list[str]:
        """Notes that all output of this checkpoint and earlier ones is visible. Returns the manifests to mark."""
        self.unpublished = [(n, one) for n, one in self.unpublished if n > number]
        fresh = [one for one in self._entries if one.checkpoint <= number and one.prepared and not one.visible]
        for entry in fresh:
            entry.visible = True
        return [entry.path for entry in fresh]

    def marked(self, path: str) -> None:
        """Notes that a manifest is marked as published."""
        for entry in self._entries:
            entry.marked = entry.marked or entry.path == path

    def not_marked(self, path: str) -> None:
        """Notes that the mark of a manifest could not be made: it is requested again."""
        for entry in self._entries:
            entry.visible = entry.visible and entry.path != path

    def attempt_over(self) -> None:
        """Ends the attempt. The next one publishes from its manifest what was on its way to be published. Marks on their
        way may not have been made, and are requested again."""
        self.unpublished = []
        for entry in self._entries:
            entry.visible = entry.marked

    def only(self, kept: Collection[str]) -> None:
        """Forgets the manifests that are not kept."""
        self._entries = [entry for entry in self._entries if entry.path in kept]

    def settled(self, number: int) -> int:
        """The checkpoint, at most `number`, up to which no manifest can publish output again. All output up to `number` is
        visible. A manifest also has output of older checkpoints, where that was not visible when it was made."""
        return min([number, *(entry.first - 1 for entry in self._unmarked())])

    def all_marked(self, number: int) -> bool:
        """True if no manifest up to this checkpoint can publish its output again."""
        return all(entry.checkpoint > number for entry in self._unmarked())

    def has_more(self, restored: Manifest) -> bool:
        """True if a kept manifest that is not marked has output that the restored one has not."""
        first = [one.first for one in self._entries if one.checkpoint == restored.checkpoint and restored.prepared]
        others = [one for one in self._unmarked() if one.checkpoint != restored.checkpoint]
        return any(not first or one.first < first[0] for one in others)

    @property
    def unmarked(self) -> frozenset[str]:
        """The manifests that have output and are not marked: a start from one of them publishes it."""
        return frozenset(entry.path for entry in self._unmarked())

    def _unmarked(self) -> list[_Entry]:
        return [entry for entry in self._entries if entry.prepared and not entry.marked]
