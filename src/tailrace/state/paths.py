"""Where the files of checkpoints lie, below the folder of their job: how each name is built, and what a name says.

    <incarnation>/claim                            made by who holds the incarnation; `ready`, `closed`, `swept`: marks of it
    <incarnation>/ended                            the mark of a run's end, which outlives its checkpoints (`ending`)
    <incarnation>/<n>.manifest                     a manifest slot: checkpoint n, a pointer or a seal
    <incarnation>/<n>.published                    the mark of that manifest
    <incarnation>/chk-<n>/w<slot>-<epoch>.state    what one worker wrote for checkpoint n
    <incarnation>/kept/w<slot>-<epoch>-<k>.frames  what one worker has sent and keeps, and has no room for in memory
    <incarnation>/inputs/...                       files of DataFrames that the run reads

A savepoint is a folder of its own, with the state files of one checkpoint under these names, and its own manifest:

    savepoint.begun                                made first, by the one who writes there, and removed at the end
    savepoint.manifest                             made last: with it the savepoint is real

A builder and its parser stand next to each other, and nobody else spells these names. A parser answers None (or False) for
any name that is of another kind: what a folder holds besides is not ours.
"""

from __future__ import annotations

import re
from typing import NamedTuple

CLAIM = "claim"
"""The file by which an incarnation is held, within its folder."""
ENDED = "ended"
"""The mark of the end of a run, within the folder of its newest incarnation."""
_MANIFEST = ".manifest"
_PUBLISHED = ".published"
_STATE = ".state"
_INPUTS = "inputs"
_KEPT = "kept"

_FENCE = re.compile(r"\d+/(claim|ready|closed|swept|ended)")
_SLOT = re.compile(r"(\d+)\.manifest")
_PLACE = re.compile(r"(\d+)/(\d+)\.manifest")
SAVEPOINT = f"savepoint{_MANIFEST}"
"""The manifest of a savepoint, in its folder."""
SAVEPOINT_BEGUN = "savepoint.begun"
"""Where somebody writes a savepoint, or was killed at it."""
SAVEPOINTS = "savepoints"
"""Where savepoints go that nobody has given a place, within the checkpoint folder of all jobs."""
_MARK = re.compile(r"(\d+/\d+)\.published")
_CHECKPOINT = re.compile(r"chk-(\d+)")
_STATE_FILE = re.compile(r"(\d+)/chk-(\d+)/w(\d+)-(\d+)\.state")


def incarnation_of(name: str) -> int | None:
    """The incarnation that a file is of, or whose folder this is."""
    first = name.partition("/")[0]
    return int(first) if first.isdecimal() else None


# Who holds an incarnation, and what has become of it.


def claim_name(incarnation: int) -> str:
    """The claim of an incarnation."""
    return f"{incarnation}/{CLAIM}"


def ready_mark(incarnation: int) -> str:
    """The mark that every earlier incarnation is sealed."""
    return f"{incarnation}/ready"


def closed_mark(incarnation: int) -> str:
    """The mark that the job has ended and said so."""
    return f"{incarnation}/closed"


def swept_mark(incarnation: int) -> str:
    """The mark that nothing is left behind of earlier runs."""
    return f"{incarnation}/swept"


def ended_mark(incarnation: int) -> str:
    """The mark of the end of a run whose newest incarnation this is."""
    return f"{incarnation}/{ENDED}"


def is_fence(name: str) -> bool:
    """Whether this is a claim, or one of these marks."""
    return _FENCE.fullmatch(name) is not None


# Manifests.


def manifest_name(incarnation: int, number: int) -> str:
    """The file of a manifest slot: that of the checkpoint `number`. (Until manifests had the numbers of their checkpoints,
    slots were counted, from 0 in each incarnation.)"""
    return f"{incarnation}/{number}{_MANIFEST}"


def manifest_place(name: str) -> tuple[int, int] | None:
    """The incarnation and the number of a manifest slot."""
    found = _PLACE.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def slot_number(file: str) -> int | None:
    """The number of a manifest slot, by its file within the incarnation."""
    found = _SLOT.fullmatch(file)
    return None if found is None else int(found[1])


def means_manifest(path: str) -> bool:
    """Whether somebody who says this path means a manifest, wherever it lies."""
    return path.endswith(_MANIFEST)


def published_mark(name: str) -> str:
    """The mark of the manifest `name`: all its prepared output was published."""
    return f"{name.removesuffix(_MANIFEST)}{_PUBLISHED}"


def marked_manifest(name: str) -> str | None:
    """The manifest whose mark this is."""
    found = _MARK.fullmatch(name)
    return None if found is None else f"{found[1]}{_MANIFEST}"


# State files.


def checkpoint_folder(checkpoint: int) -> str:
    """The folder of the state files of a checkpoint, within its incarnation."""
    return f"chk-{checkpoint}"


def checkpoint_number(folder: str) -> int | None:
    """The checkpoint whose folder this is."""
    found = _CHECKPOINT.fullmatch(folder)
    return None if found is None else int(found[1])


class StatePlace(NamedTuple):
    """What the name of a state file says of it."""

    incarnation: int
    checkpoint: int
    slot: int
    epoch: int
    """That of the worker that wrote it."""


def state_file(incarnation: int, checkpoint: int, slot: int, epoch: int) -> str:
    """The file that the worker of a slot writes for a checkpoint."""
    return f"{incarnation}/{checkpoint_folder(checkpoint)}/w{slot}-{epoch}{_STATE}"


def state_place(name: str) -> StatePlace | None:
    """What a state file's name says."""
    found = _STATE_FILE.fullmatch(name)
    return None if found is None else StatePlace(*map(int, found.groups()))


def is_of_checkpoint(name: str) -> bool:
    """Whether this lies in the folder of a checkpoint."""
    folder = name.split("/")[1:-1]
    return bool(folder) and checkpoint_number(folder[0]) is not None


def means_state_file(path: str) -> bool:
    """Whether somebody who says this path means a state file, wherever it lies."""
    return path.endswith(_STATE)


# What workers keep of what they have sent.


def kept_prefix(incarnation: int, slot: int, epoch: int) -> str:
    """How the names of the files begin that the worker of a slot makes."""
    return f"{incarnation}/{_KEPT}/w{slot}-{epoch}"


def kept_file(prefix: str, number: int) -> str:
    """One of these files."""
    return f"{prefix}-{number}.frames"


def is_kept(name: str) -> bool:
    """Whether this is such a file."""
    return _KEPT in name.split("/")[1:2]


# Inputs.


def inputs_folder(incarnation: int) -> str:
    """The folder of the files that a run reads its DataFrames from."""
    return f"{incarnation}/{_INPUTS}"


def is_input(name: str) -> bool:
    """Whether this lies in such a folder."""
    return _INPUTS in name.split("/")[1:2]
