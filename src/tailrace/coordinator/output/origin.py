"""The checkpoint of another run that a run starts from, and the one that an attempt restores."""

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


@dataclass(frozen=True)
class RestoredCheckpoint:
    """The checkpoint that an attempt restores: the origin of the run, or the newest one of the run itself."""

    manifest: Manifest | None
    path: str
    """The manifest's name in the folder of the job that runs; empty where it lies in another folder."""
    folder: str = ""
    """The URL of the folder with its files; empty for the job's own folder."""
    own: bool = False
    """True if it was written by the run itself."""

    @property
    def is_origin(self) -> bool:
        """True if another run has written it."""
        return self.manifest is not None and not self.own

    def deploy(
        self, plan: bytes, peers: list[Peer], incarnation: int, attempt: int, noted: Sequence[str] = ()
    ) -> Deploy:
        """The `Deploy` message of a worker. Output to publish goes to one worker only, in a message of its own."""
        restored = self.manifest
        manifest = b"" if restored is None else encode_manifest(msgspec.structs.replace(restored, prepared=[]))
        return Deploy(plan, peers, incarnation, attempt, manifest, self.folder, self.own, [*noted])
