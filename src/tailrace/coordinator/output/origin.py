"""The checkpoint of another run that a run starts from, and the one that the next attempt restores. `RestoredOrigin` knows
whose files and output they are, and which manifests say whether the output is visible."""

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
    """The URL of the folder with its files."""
    path: str = ""
    """The manifest's name in the folder of the job that starts; empty where it lies in another folder."""
    before: Sequence[str] = ()
    """Unmarked checkpoints of its run, in the job's own folder. Their output is visible when the origin's is."""
    spare: bool = False
    """True if the unpublished leftovers of its run stay, and the traces of what that run has published: other checkpoints
    of that run are there and need them."""


NOTHING = StartFrom()
"""The start with no state."""


class RestoredOrigin:
    """The bookkeeping of one run's origin; `JobOutput` decides what follows from it."""

    def __init__(self, job: str, run_id: str, own_folder: str, found: StartFrom) -> None:
        self._job, self._run_id, self._own_folder = job, run_id, own_folder
        manifest = found.manifest
        self.manifest = manifest
        self.folder, self.path, self.spare = found.folder, found.path, found.spare
        self.visible = False
        """True if all output is visible that it had prepared."""
        self.restored = manifest
        """The checkpoint that the next deployment restores: this one, or the newest one of our own run."""
        self._unmarked = set(found.before)
        """Unmarked checkpoints of its run, itself among them. Their output is visible when its own is."""
        if manifest is not None and manifest.prepared and found.path:
            self._unmarked.add(found.path)
        self._asked: set[str] = set()
        """Checkpoints of `_unmarked` for which the mark was requested."""

    # What is restored.

    def restore(self, ours: Manifest | None) -> None:
        """Sets what the next attempt restores: the newest checkpoint of our run, or the origin where there is none."""
        self.restored = ours if ours is not None else self.manifest

    @property
    def restores_own(self) -> bool:
        """True if the restored checkpoint was written by our own run."""
        return self.restored is not None and self.restored.run_id == self._run_id

    @property
    def restores_itself(self) -> bool:
        """True if the restored checkpoint is the origin."""
        return self.restored is not None and self.restored is self.manifest

    @property
    def files_in(self) -> str:
        """The URL of the folder with the files of the restored checkpoint; empty for the job's own folder."""
        return "" if self.restored is None or self.restores_own else self.folder

    @property
    def is_here(self) -> bool:
        """True if another run of this job has written the restored checkpoint in this very folder: that run cannot live any
        more. It may, where this folder is a copy of its own."""
        restored = self.restored
        return restored is not None and restored.job == self._job and self.folder == restored.root == self._own_folder

    def deploy(self, plan: bytes, peers: list[Peer], incarnation: int, attempt: int) -> Deploy:
        """The `Deploy` message of a worker. Output to publish goes to one worker only, in a message of its own."""
        restored = self.restored
        manifest = b"" if restored is None else encode_manifest(msgspec.structs.replace(restored, prepared=[]))
        return Deploy(plan, peers, incarnation, attempt, manifest, self.files_in, self.restores_own)

    # Marks.

    def published(self) -> None:
        """Notes that the origin is marked, by us or by another start from it: all its output is visible, and is not
        published again. The run that has marked it may have removed the traces of it."""
        if self.manifest is None:
            return
        self._unmarked.discard(self.path)
        if self.manifest.prepared and self._unmarked:
            self.spare = True  # checkpoints before it may need the traces of what is not published again now
        self.manifest = msgspec.structs.replace(self.manifest, prepared=[])

    def to_mark(self) -> list[str]:
        """The manifests to mark now. When the origin's output is visible, so is the output of the checkpoints before it."""
        if not self.visible:
            return []
        found = sorted(self._unmarked - self._asked)
        self._asked.update(found)
        return found

    def marked(self, path: str) -> None:
        """Notes that a manifest is marked as published."""
        self._unmarked.discard(path)

    def not_marked(self, path: str) -> None:
        """Notes that the mark could not be made: it is requested again."""
        self._asked.discard(path)

    def attempt_over(self) -> None:
        """Forgets the requests of marks: marks of an attempt that is over may not have been made, and are requested
        again."""
        self._asked = set()

    @property
    def marking(self) -> bool:
        """True if the storage was requested to make a mark and has not answered."""
        return bool(self._asked & self._unmarked)

    @property
    def settled(self) -> bool:
        """True if the origin's output will never be published again, neither by a start from it, nor by one from another
        manifest with some of the same output."""
        return bool(self.path) and not self._unmarked and not self.spare
