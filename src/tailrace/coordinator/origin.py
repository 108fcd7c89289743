"""The checkpoint that a run starts from, where that is another run's: whose output is visible, and what says so."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tailrace.state.manifest import Manifest


class Origin:
    """The bookkeeping of one run; what follows from it is for the coordinator to do."""

    def __init__(
        self,
        manifest: Manifest | None,
        folder: str = "",
        path: str = "",
        before: Sequence[str] = (),
        spare: bool = False,
    ) -> None:
        self.manifest = manifest
        self.folder = folder
        """Where its files are, as a URL."""
        self.path = path
        """The manifest's name, relative to that folder."""
        self.spare = spare
        """Whether what its run has left unpublished, and the traces of what it has published, stay: other checkpoints of
        that run are there and need them."""
        self.visible = False
        """Whether all is visible that it had prepared."""
        self._unmarked = set(before)
        """Checkpoints of its run, itself among them, whose output is visible when its own is, and that are not marked."""
        if manifest is not None and manifest.prepared and path:
            self._unmarked.add(path)
        self._asked: set[str] = set()
        """Those of them for which the mark was asked for."""

    def published(self) -> None:
        """It is marked, by us or by another start from it: all that it had prepared is visible, and is not published
        again. Who has marked it may have forgotten what it has published."""
        if self.manifest is None:
            return
        self._unmarked.discard(self.path)
        if self.manifest.prepared and self._unmarked:
            self.spare = True  # checkpoints before it may need the traces of what is not published again now
        self.manifest = msgspec.structs.replace(self.manifest, prepared=[])

    def to_mark(self) -> list[str]:
        """The manifests that are to be marked: once its output is visible, so is that of those before it."""
        if not self.visible:
            return []
        found = sorted(self._unmarked - self._asked)
        self._asked.update(found)
        return found

    def marked(self, path: str) -> None:
        """A manifest is marked as published."""
        self._unmarked.discard(path)

    def not_marked(self, path: str) -> None:
        """The mark could not be made: it is asked for again."""
        self._asked.discard(path)

    def attempt_over(self) -> None:
        """What was to be marked may not have been, and is asked for again."""
        self._asked = set()

    @property
    def settled(self) -> bool:
        """Whether nobody asks any more for what it had prepared: who starts from it, or from another manifest that has
        some of the same output."""
        return bool(self.path) and not self._unmarked and not self.spare
