"""The manifest slots in the folder of a job, and their content: a manifest, a seal, or a pointer to the slot behind a gap.

`store` describes how slots are taken.

Invariant L5: a start from the newest checkpoint goes on from the last one that any run of the job has committed, or from
nothing: behind the mark of an end (`state.end_mark`) nothing older is found, and a start reports that the job has finished
only if its dataflow is the one that has ended (`checkpoint_lookup`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from tailrace.state.end_mark import Ending, decode_ending
from tailrace.state.paths import (
    ENDED,
    claim_name,
    ended_mark,
    incarnation_of,
    manifest_name,
    manifest_place,
    slot_number,
)
from tailrace.storage.claim_owner import Owner
from tailrace.storage.filesystem import Folder

SEAL = b"tailrace-seal "
"""First bytes of a slot with a seal. No slot comes behind it."""
POINTER = b"tailrace-next "
"""First bytes of a slot with a pointer. The number of the slot that comes behind it follows."""
_POINTED = re.compile(re.escape(POINTER) + rb"(\d+)\n")


def holds_manifest(data: bytes) -> bool:
    """True if a slot with this content holds the manifest of a checkpoint, which may be damaged."""
    return not data.startswith((SEAL, POINTER))


def pointed_to(data: bytes) -> int | None:
    """The slot to which a pointer points; None if the content is no pointer."""
    found = _POINTED.fullmatch(data)
    return None if found is None else int(found[1])


def is_seal(folder: Folder, name: str) -> bool:
    """True if this is the name of a manifest slot, and a seal has the slot."""
    if manifest_place(name) is None:
        return False
    try:
        return folder.read(name).startswith(SEAL)
    except FileNotFoundError:
        return False  # an old manifest, deleted meanwhile


def is_barren(folder: Folder, incarnation: int) -> bool:
    """True if the incarnation had no manifest when the next run claimed, so that no run has gone on from it: a seal is in
    the first slot, or in the slot to which the first one points."""
    try:
        first = folder.read(manifest_name(incarnation, 0))
    except FileNotFoundError:
        return False  # a manifest or pointer, deleted because a later slot is taken
    to = pointed_to(first)
    return first.startswith(SEAL) if to is None else is_seal(folder, manifest_name(incarnation, to))


def behind(number: int, data: bytes) -> int:
    """The slot that comes behind a slot with this number and content."""
    to = pointed_to(data)
    return number + 1 if to is None else to


def job_in(folder: Folder) -> str | None:
    """The name of the job whose folder this is, from its newest claim that can be read; None if there is none."""
    for incarnation in reversed(incarnations_in(folder)):
        owner = owner_of(folder, incarnation)
        if owner is not None:
            return owner.job
    return None


def incarnations_in(folder: Folder) -> list[int]:
    """Every incarnation that was claimed, oldest first."""
    found = [incarnation_of(entry.name) for entry in folder.entries() if entry.folder]
    return sorted(one for one in found if one is not None)


def owner_of(folder: Folder, incarnation: int) -> Owner | None:
    """The content of the claim of an incarnation; None if it is missing or cannot be read."""
    try:
        return msgspec.json.decode(folder.read(claim_name(incarnation)), type=Owner)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def numbers_in(folder: Folder, incarnation: int | None) -> list[int]:
    """The numbers of the manifest slots that are taken in an incarnation; with None, in the folder itself."""
    return _numbers(_files(folder, incarnation))


def _files(folder: Folder, incarnation: int | None) -> list[str]:
    entries = folder.entries("" if incarnation is None else str(incarnation))
    return [entry.name.rpartition("/")[2] for entry in entries]


def _numbers(files: list[str]) -> list[int]:
    return sorted(number for number in map(slot_number, files) if number is not None)


class Newest(NamedTuple):
    """The newest thing that runs have left in a folder: a checkpoint, or the mark of an end."""

    manifest: str | None
    """The newest checkpoint that a start may go on from. None if there is none, or if a newer run has ended and keeps none:
    a start from an older run's checkpoint would publish again what the newer run has published."""
    ending: Ending | None = None
    """The mark of the end of the newest run that has left anything; None if that run has left no mark."""


def newest_in(folder: Folder, incarnations: list[int] | None = None, barren: list[int] | None = None) -> Newest:
    """The newest checkpoint, or the mark of the newest end. Appends to `barren` the incarnations that have neither: their
    runs have published nothing. Raises `CheckpointCorrupt` for a mark that cannot be read."""
    for incarnation in reversed(incarnations_in(folder) if incarnations is None else incarnations):
        found = _newest_of(folder, incarnation)
        if found is not None:
            return found
        if barren is not None:
            barren.append(incarnation)
    return Newest(None)


def _newest_of(folder: Folder, incarnation: int) -> Newest | None:
    """The newest thing that an incarnation has left; None if it has left nothing. Its job may delete a checkpoint meanwhile.
    Then the job has a newer one, or has marked its end before, so the folder is listed again."""
    gone: set[int] = set()
    while True:
        files = _files(folder, incarnation)
        if ENDED in files:
            name = ended_mark(incarnation)
            ending = decode_ending(folder.read(name), folder.url_of(name))
            return Newest(ending.checkpoint or None, ending)
        for number in reversed([one for one in _numbers(files) if one not in gone]):
            try:
                if holds_manifest(folder.read(manifest_name(incarnation, number))):
                    return Newest(manifest_name(incarnation, number))
            except FileNotFoundError:
                gone.add(number)
                break
        else:
            return None


def list_text(names: list[str]) -> str:
    """The first ten of these names, as a text for a message."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
