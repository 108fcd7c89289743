"""The savepoints that somebody waits for, from the request until the copy is there.

    requested -> its cut is under way -> its checkpoint is complete -> all output of that is visible -> it is copied

A savepoint is a checkpoint of the job like others, but whole, and then a copy of its files in a folder of its own. The copy
is made when the output of the checkpoint is visible, and holds none: who starts from it has nothing to publish.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tailrace.coordinator.actions import CopySavepoint, SavepointEnded
from tailrace.coordinator.stats import CheckpointStats, SavepointStats
from tailrace.state.manifest import Manifest, savepoint_of


@dataclass(frozen=True)
class SavepointRequest:
    """A savepoint that somebody wants."""

    who: Any
    """Who waits for it, as the driver knows them."""
    target: str
    """The path or URL of the folder that it is to be in; empty for the usual one."""


@dataclass(frozen=True)
class _Complete:
    request: SavepointRequest
    manifest: Manifest
    inflight: int
    began: int
    """By the coordinator's clock."""


class Savepoints:
    """The bookkeeping of one run; what follows from it is for the coordinator to do.

    Invariant P3: files of a savepoint's checkpoint are not deleted before the copy is made, or given up; and it is copied
    only when all is visible that its checkpoint has prepared.
    """

    def __init__(self) -> None:
        self.requested: deque[SavepointRequest] = deque()
        """Those whose cut has not begun."""
        self._cuts: dict[int, tuple[SavepointRequest, int]] = {}
        """By checkpoint: those whose cut is under way, and since when."""
        self._complete: dict[int, _Complete] = {}
        """Those whose checkpoint is complete, and has output that may not be visible."""
        self._copying: dict[int, _Complete] = {}

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint is complete of which a copy is to be made."""
        return bool(self._complete or self._copying)

    @property
    def pinned(self) -> Collection[str]:
        """Files that are still to be copied."""
        waiting = [*self._complete.values(), *self._copying.values()]
        return frozenset(file.name for one in waiting for file in one.manifest.files)

    def begin(self, number: int, now: int) -> None:
        """The cut of the next one is asked for, with this checkpoint."""
        self._cuts[number] = self.requested.popleft(), now

    def complete(self, number: int, manifest: Manifest, stats: CheckpointStats) -> None:
        """A checkpoint is complete; perhaps it is that of a savepoint."""
        if number in self._cuts:
            request, began = self._cuts.pop(number)
            self._complete[number] = _Complete(request, manifest, stats.inflight, began)

    def visible(self, through: int) -> list[CopySavepoint]:
        """All output up to this checkpoint is visible: what is to be copied now."""
        ready = [number for number in self._complete if number <= through]
        for number in ready:
            self._copying[number] = self._complete.pop(number)
        return [CopySavepoint(n, savepoint_of(one.manifest), one.request.target) for n, one in self._of(ready)]

    def _of(self, numbers: list[int]) -> list[tuple[int, _Complete]]:
        return [(number, self._copying[number]) for number in numbers]

    def copied(self, number: int, url: str, size: int, now: int) -> SavepointEnded | None:
        """A copy is there; None where nobody waits for it any more, and it is to go."""
        one = self._copying.pop(number, None)
        if one is None:
            return None
        stats = SavepointStats(number, url, one.manifest.timestamp, now - one.began, size, one.inflight)
        return SavepointEnded(number, one.request.who, stats, "")

    def failed(self, number: int, reason: str) -> list[SavepointEnded]:
        """The checkpoint was aborted, or could not be copied."""
        found = self._cuts.pop(number, None)
        copy = self._copying.pop(number, None)
        request = found[0] if found is not None else None if copy is None else copy.request
        return [] if request is None else [SavepointEnded(number, request.who, None, reason)]

    def again(self, number: int) -> None:
        """The checkpoint was aborted, and is taken once more: it was the last one of the job."""
        if number in self._cuts:
            self.requested.appendleft(self._cuts.pop(number)[0])

    def found(self, manifest: Manifest, now: int) -> None:
        """A claim has found the checkpoint of a stop, of which nobody had known whether it is complete."""
        if manifest.checkpoint in self._cuts:
            request, began = self._cuts.pop(manifest.checkpoint)
            self._complete[manifest.checkpoint] = _Complete(request, manifest, 0, began)

    def attempt_over(self, reason: str) -> list[SavepointEnded]:
        """An attempt is over: those whose cut was under way, or whose output is not known to be visible, will not be."""
        over = [(number, request) for number, (request, _) in self._cuts.items()]
        over += [(number, one.request) for number, one in self._complete.items()]
        self._cuts, self._complete = {}, {}
        return [SavepointEnded(number, request.who, None, reason) for number, request in over]

    def over(self, reason: str) -> list[SavepointEnded]:
        """The job ends, and nobody copies anything any more."""
        over = self.attempt_over(reason)
        over += [SavepointEnded(number, one.request.who, None, reason) for number, one in self._copying.items()]
        over += [SavepointEnded(0, request.who, None, reason) for request in self.requested]
        self._copying = {}
        self.requested.clear()
        return over
