"""The resolution of a run's output: which of it may be published, and which never again, by a pure function of its state.

Output has the number of the publication that sends it: 0 for the output of the restored checkpoint, n for output that is
new in the manifest of checkpoint n. A manifest holds the output of a span of numbers, from the oldest that was not visible
when it was made to its own checkpoint. A start from a manifest publishes all of that, unless the manifest is marked.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple


class HeldOutput(NamedTuple):
    """The output that one manifest holds."""

    path: str
    """The name of the manifest in the folder of the job; empty where it lies in another folder, so that this run cannot mark
    it."""
    checkpoint: int = 0
    """The checkpoint of this run, which is also the newest number in it; 0 for manifests of the run of the origin."""
    first: int = 0
    """The oldest number in it; 0 where that is not known."""
    requested: bool = False
    """True if its mark was requested in this attempt."""
    marked: bool = False
    """True if it is marked as published."""


class Settlement(NamedTuple):
    """The output that no manifest can have published again: numbers from 1 to `number`, and number 0 if `restored`."""

    number: int = 0
    restored: bool = False


@dataclass(frozen=True)
class OutputState:
    """The state of one run's output."""

    newest: int
    """The newest complete checkpoint of the run."""
    awaited: Collection[int]
    """The numbers that were sent to the publisher, and of which it has not reported that all is visible."""
    manifests: Collection[HeldOutput]
    """The manifests that have output."""
    restored: HeldOutput | None = None
    """The restored checkpoint; None where there is none, or its output is visible."""
    restores_own: bool = False
    """True if this run has written the restored checkpoint; else that is the origin, if there is any."""
    origin_visible: bool = False
    """True if all output is visible that the origin had prepared."""
    origin_ours: bool = False
    """True if nobody but this run can need what the run of the origin has left: its hidden output, and its traces."""


@dataclass(frozen=True)
class Resolution:
    """What follows from the state of a run's output."""

    visible_through: int
    """The checkpoint up to which all output is visible; below 0 while the restored one's output is not."""
    to_mark: list[str]
    """The manifests to mark as published: all their output is visible."""
    settled: Settlement
    """The output that is never published again."""
    removable: bool
    """True if hidden output of the restored checkpoint's run that this checkpoint does not hold is never published."""
    origin_over: bool
    """True if no manifest can have output of the origin published again."""


def resolve(state: OutputState) -> Resolution:
    """The resolution of a state."""
    visible = min(state.awaited, default=state.newest + 1) - 1
    unmarked = [one for one in state.manifests if not one.marked]
    own = [one for one in unmarked if one.checkpoint]
    marks = [
        one.path
        for one in unmarked
        if one.path and not one.requested and (one.checkpoint <= visible if one.checkpoint else state.origin_visible)
    ]
    # A manifest that carries older output along keeps all numbers from there on from being settled.
    settled = max(0, min([visible, *(one.first - 1 for one in own)]))
    restored = state.restored
    if state.restores_own:
        # A kept checkpoint may have output that is visible and not in the restored one: a start from it publishes that,
        # and needs the traces.
        oldest = state.newest + 1 if restored is None else restored.first
        removable = all(one.first >= oldest for one in own)
        never = restored is not None and all(one.checkpoint > restored.checkpoint for one in own)
    else:
        removable = state.origin_ours
        never = restored is not None and removable and len(own) == len(unmarked)
    over = visible >= 0 and state.origin_ours and len(own) == len(unmarked) and all(one.first > 0 for one in own)
    return Resolution(visible, marks, Settlement(settled, never), removable, over)
