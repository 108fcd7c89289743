"""The checkpoint that a run starts from, where that is another run's, and the one that the next attempt restores: whose
files and output they are, and which manifests say whether that is visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tailrace.protocol.deployment import Deploy, Peer
from tailrace.state.manifest import Manifest, encode_manifest


@dataclass(frozen=True)
class StartFrom:
    """The checkpoint that a run starts from, as it was found in the storage."""

    manifest: Manifest | None = None
    folder: str = ""
    """Where its files are, as a URL."""
    path: str = ""
    """The manifest's name in the folder of the job that starts; empty where it lies in another one."""
    before: Sequence[str] = ()
    """Checkpoints of its run, in the job's own folder, whose output is visible when its own is, and that are not marked."""
    spare: bool = False
    """Whether what its run has left unpublished, and the traces of what it has published, stay: other checkpoints of that
    run are there and need them."""


NOTHING = StartFrom()
"""The beginning, with no state."""


class RestoredOrigin:
    """The bookkeeping of one run; what follows from it is for `Output` to decide."""

    def __init__(self, job: str, run_id: str, own_folder: str, found: StartFrom) -> None:
        self._job, self._run_id, self._own_folder = job, run_id, own_folder
        manifest = found.manifest
        self.manifest = manifest
        self.folder, self.path, self.spare = found.folder, found.path, found.spare
        self.visible = False
        """Whether all is visible that it had prepared."""
        self.restored = manifest
        """What the next deployment restores: this checkpoint, or the newest one of our own run."""
        self._unmarked = set(found.before)
        """Checkpoints of its run, itself among them, whose output is visible when its own is, and that are not marked."""
        if manifest is not None and manifest.prepared and found.path:
            self._unmarked.add(found.path)
        self._asked: set[str] = set()
        """Those of them for which the mark was asked for."""

    # What is restored.

    def restore(self, ours: Manifest | None) -> None:
        """The next attempt restores the newest checkpoint of our run; where there is none, the origin."""
        self.restored = ours if ours is not None else self.manifest

    @property
    def restores_own(self) -> bool:
        """Whether the restored checkpoint was written by our own run."""
        return self.restored is not None and self.restored.run_id == self._run_id

    @property
    def restores_itself(self) -> bool:
        """Whether the restored checkpoint is the origin."""
        return self.restored is not None and self.restored is self.manifest

    @property
    def files_in(self) -> str:
        """Where the files of the restored checkpoint are; empty for the job's own folder."""
        return "" if self.restored is None or self.restores_own else self.folder

    @property
    def is_here(self) -> bool:
        """Whether the restored checkpoint was written in this very folder by another run of this job: that run cannot live
        any more, as it may where this is a copy of its folder."""
        restored = self.restored
        return restored is not None and restored.job == self._job and self.folder == restored.root == self._own_folder

    def deploy(self, plan: bytes, peers: list[Peer], incarnation: int, attempt: int) -> Deploy:
        """What a worker is deployed with. What is to be published goes to one worker only, in a message of its own."""
        restored = self.restored
        manifest = b"" if restored is None else encode_manifest(msgspec.structs.replace(restored, prepared=[]))
        return Deploy(plan, peers, incarnation, attempt, manifest, self.files_in, self.restores_own)

    # Marks.

    def published(self) -> None:
        """It is marked, by us or by another start from it: all that it had prepared is visible, and is not published
        again. The run that has marked it may have removed the traces of it."""
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
    def marking(self) -> bool:
        """Whether the storage was asked for a mark and has not answered."""
        return bool(self._asked & self._unmarked)

    @property
    def settled(self) -> bool:
        """Whether nobody asks any more for what it had prepared: who starts from it, or from another manifest that has
        some of the same output."""
        return bool(self.path) and not self._unmarked and not self.spare
