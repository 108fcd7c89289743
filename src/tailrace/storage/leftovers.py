"""Files that runs leave behind in the folder of a job, and their removal. A run sweeps its own incarnations at each restart
and at its end. The next start removes what a killed run has left: once that start has claimed its incarnation, no commit
under an earlier one succeeds any more, so a file that no manifest names will never be named. Manifests stay with all
files that they name: a later start may go on from them.

    <incarnation>/swept     made by a run in its first incarnation, when earlier runs have nothing left behind

So each start looks back to the newest of these marks, and not further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tailrace.state.manifest import decode_manifest
from tailrace.state.paths import (
    incarnation_of,
    is_fence,
    is_input,
    is_kept,
    is_of_checkpoint,
    manifest_place,
    marked_manifest,
)
from tailrace.storage.filesystem import TEMPORARY, Folder
from tailrace.storage.manifest_slots import holds_manifest, is_barren, is_seal


class Leftovers:
    """The leftovers in the folder of one job, as one run sees them."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._empty: dict[int, int] = {}
        """Own incarnation -> number of sweeps in a row that found nothing in it but its fence."""
        self.earlier_swept = False
        """True if earlier runs have nothing left behind any more."""

    def of_this_run(self, incarnations: Sequence[int], needed: set[str], over: bool) -> list[str]:
        """Names to delete under own incarnations: files that are not among `needed` (state files, files kept by workers,
        manifests, their marks, and temporary files), and files of inputs when the run is `over`. An incarnation in which
        nothing is left is looked at once more, because a worker that ended late may still have written to it. After that
        it is skipped until the run is over."""
        gone = []
        for incarnation in incarnations:
            if self._empty.get(incarnation, 0) > 1 and not over:
                continue
            names = self.names(incarnation)
            some = [name for name in names if name not in needed and self._may_go(name, over)]
            rest = [name for name in names if not (is_fence(name) or is_seal(self._folder, name))]
            self._empty[incarnation] = 0 if rest else self._empty.get(incarnation, 0) + 1
            gone += some
        self._give_up_uploads(set(incarnations))
        return gone

    def of_earlier_runs(self, incarnations: Sequence[int], run_of: Callable[[int], str | None]) -> list[str]:
        """Names to delete under incarnations of runs that cannot commit any more: state files that no manifest names, files
        kept by workers, temporary files, and the files of inputs of runs that never had a checkpoint. Raises
        `CheckpointCorrupt` if a manifest cannot be read: the files that it names are then unknown."""
        names = [name for incarnation in incarnations for name in self.names(incarnation)]
        named: set[str] = set()
        for name in names:
            data = self._manifest(name)
            if data is not None:
                manifest = decode_manifest(data, self._folder.url_of(name))
                named.update([*(file.name for file in manifest.files), *manifest.older])
        self._give_up_uploads(set(incarnations))
        begun = {run_of(incarnation) for incarnation in incarnations if not is_barren(self._folder, incarnation)}
        unread = {incarnation for incarnation in incarnations if run_of(incarnation) not in begun}
        return [
            name
            for name in names
            if (name not in named and (is_of_checkpoint(name) or is_kept(name) or _is_temporary(name)))
            or (is_input(name) and incarnation_of(name) in unread)
        ]

    def names(self, incarnation: int) -> list[str]:
        """Every file under an incarnation."""
        return sorted(entry.name for entry in self._folder.walk(str(incarnation)))

    def _may_go(self, name: str, over: bool) -> bool:
        if manifest_place(name) is not None:
            return not is_seal(self._folder, name)
        marked = marked_manifest(name) is not None
        lost = is_of_checkpoint(name) or is_kept(name) or _is_temporary(name)
        return lost or marked or (over and is_input(name))

    def _manifest(self, name: str) -> bytes | None:
        if manifest_place(name) is None:
            return None
        try:
            data = self._folder.read(name)
        except FileNotFoundError:
            return None  # its job has deleted it meanwhile, and with it the files that it names
        return data if holds_manifest(data) else None

    def _give_up_uploads(self, incarnations: set[int]) -> None:
        """Aborts uploads that lost workers have left in an object store. They have no name, and the user pays for them all
        the same."""
        self._folder.give_up(lambda name: incarnation_of(name) in incarnations)


def back_to_the_mark(incarnations: Sequence[int], marked: Callable[[int], bool]) -> Iterator[int]:
    """The incarnations, newest first, down to and with the first one that is marked."""
    for incarnation in sorted(incarnations, reverse=True):
        yield incarnation
        if marked(incarnation):
            return


def _is_temporary(name: str) -> bool:
    return TEMPORARY.fullmatch(name.rpartition("/")[2]) is not None
