"""Seals: how a claim keeps earlier drivers of its job from committing. `store` explains why it works."""

from __future__ import annotations

import contextlib

from tailrace.state.paths import manifest_name, ready_mark
from tailrace.storage.filesystem import Folder
from tailrace.storage.slots import SEAL, behind, incarnations_in, numbers_in

_SEALS = 1000
"""Largest number of commits of an earlier driver that may come before its seal."""


def seal_before(folder: Folder, incarnation: int) -> None:
    """Seals every incarnation before this one: no driver commits under them any more."""
    for earlier in reversed([i for i in incarnations_in(folder) if i < incarnation]):
        _seal(folder, earlier, incarnation)
        if folder.exists(ready_mark(earlier)):
            break  # its run has sealed every incarnation before it
    with contextlib.suppress(FileExistsError):
        folder.create(ready_mark(incarnation), b"ready\n")


def _seal(folder: Folder, incarnation: int, by: int) -> None:
    """Seals an incarnation: takes the manifest slot that comes next. It is done when a seal has the last taken slot. A slot
    whose old manifest is deleted meanwhile is not the end. Each try takes a slot behind the one of the try before,
    whatever the listing shows."""
    following = 0
    for _ in range(_SEALS):
        numbers = numbers_in(folder, incarnation)
        if numbers:
            last = _in_slot(folder, incarnation, numbers[-1])
            if last.startswith(SEAL):
                return
            following = max(following, behind(numbers[-1], last))
        try:
            folder.create(manifest_name(incarnation, following), SEAL + b"by %d\n" % by)
        except FileExistsError:  # a commit came first: then try the slot behind it
            following = behind(following, _in_slot(folder, incarnation, following))
    raise OSError(
        f"{folder.url_of(str(incarnation))} could not be sealed: at each of {_SEALS} tries a commit came first"
    )


def _in_slot(folder: Folder, incarnation: int, number: int) -> bytes:
    """The content of a slot; empty if its job has deleted it meanwhile, because a later slot is taken."""
    try:
        return folder.read(manifest_name(incarnation, number))
    except FileNotFoundError:
        return b""
