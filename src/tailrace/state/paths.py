"""The paths of the files of checkpoints, below the folder of their job: functions that build each name, and functions that
parse it.

    <incarnation>/claim                            made by the run that holds it; its marks: `ready`, `closed`, `swept`
    <incarnation>/ended                            the mark of a run's end, which outlives its checkpoints (`end_mark`)
    <incarnation>/<n>.manifest                     a manifest slot: checkpoint n, a pointer or a seal
    <incarnation>/<n>.published                    the mark of that manifest
    <incarnation>/chk-<n>/w<slot>-<epoch>.state    the state that one worker wrote for checkpoint n
    <incarnation>/kept/w<slot>-<epoch>-<k>.frames  frames that one worker has sent and keeps, and has no room for in memory
    <incarnation>/inputs/...                       files of DataFrames that the run reads
    capsules/<incarnation>-<slot>-<epoch>.capsule  a failed call of user code
    streams/<sink>/...                             output that Spark reads as a stream (`connectors.segments.log`)

A savepoint is a folder of its own, with the state files of one checkpoint under these names, and its own manifest:

    inputs/<k>/...                                 files of DataFrames that its sources have left to read
    savepoint.begun                                made first, by the process that writes there, and removed at the end
    savepoint.manifest                             made last: with it the savepoint is real

A builder and its parser stand next to each other, and no other module spells these names. A parser returns None (or
False) for a name of another kind: such files do not belong to Tailrace.
"""

from __future__ import annotations

import re
from typing import NamedTuple

CLAIM = "claim"
"""The file by which a run holds an incarnation, within the folder of the incarnation."""
ENDED = "ended"
"""The mark of the end of a run, within the folder of its newest incarnation."""
_MANIFEST = ".manifest"
_PUBLISHED = ".published"
_STATE = ".state"
_INPUTS = "inputs"
_INPUT = re.compile(rf"(.*/\d+/{_INPUTS}/[^/]+)/([^/]+)")
_KEPT = "kept"

CAPSULES = "capsules"
"""The folder of capsules of failed calls."""
_CAPSULE = re.compile(r"capsules/(\d+)-(\d+)-(\d+)\.capsule")

_FENCE = re.compile(r"\d+/(claim|ready|closed|swept|ended)")
_SLOT = re.compile(r"(\d+)\.manifest")
_PLACE = re.compile(r"(\d+)/(\d+)\.manifest")
SAVEPOINT = f"savepoint{_MANIFEST}"
"""The manifest of a savepoint, in its folder."""
SAVEPOINT_BEGUN = "savepoint.begun"
"""The file that marks a folder in which a savepoint is being written, or its writer was killed."""
SAVEPOINTS = "savepoints"
"""The folder of savepoints for which the user has named no place, within the checkpoint folder of all jobs."""
_MARK = re.compile(r"(\d+/\d+)\.published")
_CHECKPOINT = re.compile(r"chk-(\d+)")
_STATE_FILE = re.compile(r"(\d+)/chk-(\d+)/w(\d+)-(\d+)\.state")


def incarnation_of(name: str) -> int | None:
    """The incarnation that a file or folder belongs to; None if it belongs to none."""
    first = name.partition("/")[0]
    return int(first) if first.isdecimal() else None


# The claim of an incarnation, and its marks.


def claim_name(incarnation: int) -> str:
    """The claim of an incarnation."""
    return f"{incarnation}/{CLAIM}"


def ready_mark(incarnation: int) -> str:
    """The mark that every earlier incarnation is sealed."""
    return f"{incarnation}/ready"


def closed_mark(incarnation: int) -> str:
    """The mark that the job has ended and released its name."""
    return f"{incarnation}/closed"


def swept_mark(incarnation: int) -> str:
    """The mark that earlier runs have nothing left behind."""
    return f"{incarnation}/swept"


def ended_mark(incarnation: int) -> str:
    """The mark of the end of a run whose newest incarnation this is."""
    return f"{incarnation}/{ENDED}"


def is_fence(name: str) -> bool:
    """True for a claim, and for each of these marks."""
    return _FENCE.fullmatch(name) is not None


# Manifests.


def manifest_name(incarnation: int, number: int) -> str:
    """The file of a manifest slot, which has the number of its checkpoint. (Until manifests had the numbers of their
    checkpoints, slots were counted, from 0 in each incarnation.)"""
    return f"{incarnation}/{number}{_MANIFEST}"


def manifest_place(name: str) -> tuple[int, int] | None:
    """The incarnation and the number of a manifest slot."""
    found = _PLACE.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def slot_number(file: str) -> int | None:
    """The number of a manifest slot, from the name of its file within the incarnation."""
    found = _SLOT.fullmatch(file)
    return None if found is None else int(found[1])


def means_manifest(path: str) -> bool:
    """True if a path that a user names ends like a manifest, wherever it lies."""
    return path.endswith(_MANIFEST)


def published_mark(name: str) -> str:
    """The mark of the manifest `name`: all its prepared output was published."""
    return f"{name.removesuffix(_MANIFEST)}{_PUBLISHED}"


def marked_manifest(name: str) -> str | None:
    """The manifest that a mark belongs to."""
    found = _MARK.fullmatch(name)
    return None if found is None else f"{found[1]}{_MANIFEST}"


# State files.


def checkpoint_folder(checkpoint: int) -> str:
    """The folder of the state files of a checkpoint, within its incarnation."""
    return f"chk-{checkpoint}"


def checkpoint_number(folder: str) -> int | None:
    """The number of the checkpoint that a folder belongs to."""
    found = _CHECKPOINT.fullmatch(folder)
    return None if found is None else int(found[1])


class StatePlace(NamedTuple):
    """The parts of the name of a state file."""

    incarnation: int
    checkpoint: int
    slot: int
    epoch: int
    """Epoch of the worker that wrote the file."""


def state_file(incarnation: int, checkpoint: int, slot: int, epoch: int) -> str:
    """The file that the worker of a slot writes for a checkpoint."""
    return f"{incarnation}/{checkpoint_folder(checkpoint)}/w{slot}-{epoch}{_STATE}"


def state_place(name: str) -> StatePlace | None:
    """The parts of the name of a state file."""
    found = _STATE_FILE.fullmatch(name)
    return None if found is None else StatePlace(*map(int, found.groups()))


def is_of_checkpoint(name: str) -> bool:
    """True if the file lies in the folder of a checkpoint."""
    folder = name.split("/")[1:-1]
    return bool(folder) and checkpoint_number(folder[0]) is not None


def means_state_file(path: str) -> bool:
    """True if a path that a user names ends like a state file, wherever it lies."""
    return path.endswith(_STATE)


# Frames that workers have sent and keep.


def kept_prefix(incarnation: int, slot: int, epoch: int) -> str:
    """The prefix of the names of the files in which the worker of a slot keeps sent frames."""
    return f"{incarnation}/{_KEPT}/w{slot}-{epoch}"


def kept_file(prefix: str, number: int) -> str:
    """The file with this prefix and number."""
    return f"{prefix}-{number}.frames"


def is_kept(name: str) -> bool:
    """True for a file in which a worker keeps sent frames."""
    return _KEPT in name.split("/")[1:2]


# Inputs.


def inputs_folder(incarnation: int) -> str:
    """The folder of the files that a run reads its DataFrames from."""
    return f"{incarnation}/{_INPUTS}"


def is_input(name: str) -> bool:
    """True for a file that a run reads a DataFrame from."""
    return _INPUTS in name.split("/")[1:2]


def input_place(url: str) -> tuple[str, str] | None:
    """The folder and the file of an input, by its path or URL in the state of a source; None if it is no input of a run."""
    found = _INPUT.fullmatch(url)
    return None if found is None else (found[1], found[2])


def saved_input(folder: int, file: str) -> str:
    """The file of an input in a savepoint. `folder`: the number of the folder that it was in."""
    return f"{_INPUTS}/{folder}/{file}"


def saved_input_folder(name: str) -> int:
    """The number of the folder that the file of an input in a savepoint was in."""
    return int(name.split("/")[1])


# Capsules of failed calls.


def capsule_name(incarnation: int, slot: int, epoch: int) -> str:
    """The capsule that the worker of a slot makes under an incarnation."""
    return f"{CAPSULES}/{incarnation}-{slot}-{epoch}.capsule"


def capsule_place(name: str) -> tuple[int, int, int] | None:
    """The incarnation, the slot and the epoch of a capsule, by its name."""
    found = _CAPSULE.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))
