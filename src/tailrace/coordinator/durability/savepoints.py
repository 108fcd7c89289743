"""The savepoints that were requested, from the request until the copy is there.

    requested -> its cut is under way -> its checkpoint is complete -> all output of that is visible -> it is copied
        ^                 |                         |
        +-----------------+-------------------------+  a worker is replaced, or all workers restart

A savepoint is a checkpoint of the job like others, but whole, and then a copy of its files in a folder of its own. The copy
is made when the output of the checkpoint is visible, and holds none: a start from it has nothing to publish. Where a
failure gives up its checkpoint, another one is taken for it when all workers run again, `ATTEMPTS` times in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from tailrace.coordinator.actions import CopySavepoint, SavepointEnded
from tailrace.coordinator.checkpoint_stats import CheckpointStats, SavepointStats
from tailrace.state.manifest import Manifest, savepoint_of

ATTEMPTS = 3
"""The most attempts at one savepoint, or at one stop, that failures of workers may end."""


def given_up(what: str, reason: str) -> str:
    """The reason why a request ends that has had `ATTEMPTS` attempts. `what`: what each failure came before."""
    return f"a failure came before {what} in each of {ATTEMPTS} attempts, in the last one: {reason}"


@dataclass(frozen=True)
class SavepointRequest:
    """A request of a savepoint."""

    who: Any
    """The party that waits for it, as the driver knows it."""
    target: str
    """The path or URL of the folder for the savepoint; empty for the usual one."""
    unaligned: bool = False
    """True if the barriers of its cut go past records that wait."""
    cancels: bool = False
    """True if the job is cancelled when the savepoint is there. No checkpoint follows its cut, so nothing becomes visible
    behind it."""
    failures: int = 0
    """The number of attempts at it that failures of workers have ended."""


@dataclass(frozen=True)
class _Complete:
    request: SavepointRequest
    manifest: Manifest
    stats: CheckpointStats | None
    """None where only its manifest was found, behind a stop: that is aligned."""
    began: int
    """The time at which its cut began, by the coordinator's clock."""


class Savepoints:
    """The savepoints of one run; the coordinator carries out what follows.

    Invariant P3: files of a savepoint's checkpoint are not deleted before the copy is made, or given up; and it is copied
    only when all is visible that its checkpoint has prepared.
    """

    def __init__(self) -> None:
        self.requested: deque[SavepointRequest] = deque()
        """Savepoints whose cut has not begun."""
        self._cuts: dict[int, tuple[SavepointRequest, int]] = {}
        """Savepoints whose cut is under way, with the time since when, by checkpoint."""
        self._complete: dict[int, _Complete] = {}
        """Savepoints whose checkpoint is complete, and has output that may not be visible."""
        self._copying: dict[int, _Complete] = {}

    @property
    def under_way(self) -> bool:
        """True if a checkpoint is complete of which a copy is to be made."""
        return bool(self._complete or self._copying)

    @property
    def ends_job(self) -> bool:
        """True if the cut of a savepoint has begun behind which the job is to be cancelled."""
        begun = [request for request, _ in self._cuts.values()]
        begun += [one.request for one in (*self._complete.values(), *self._copying.values())]
        return any(request.cancels for request in begun)

    @property
    def pinned(self) -> Collection[str]:
        """Files that are still to be copied."""
        waiting = [*self._complete.values(), *self._copying.values()]
        return frozenset(file.name for one in waiting for file in one.manifest.files)

    def begin(self, number: int, now: int) -> None:
        """Begins the cut of the next savepoint, with this checkpoint."""
        self._cuts[number] = self.requested.popleft(), now

    def complete(self, number: int, manifest: Manifest, stats: CheckpointStats) -> None:
        """Notes a complete checkpoint, which may be the one of a savepoint."""
        if number in self._cuts:
            request, began = self._cuts.pop(number)
            self._complete[number] = _Complete(request, manifest, stats, began)

    def visible(self, through: int) -> list[CopySavepoint]:
        """The savepoints to copy now: all output up to this checkpoint is visible."""
        ready = [number for number in self._complete if number <= through]
        for number in ready:
            self._copying[number] = self._complete.pop(number)
        return [CopySavepoint(n, savepoint_of(one.manifest), one.request.target) for n, one in self._of(ready)]

    def _of(self, numbers: list[int]) -> list[tuple[int, _Complete]]:
        return [(number, self._copying[number]) for number in numbers]

    def copy_done(self, number: int, url: str, size: int, now: int) -> SavepointEnded | None:
        """Ends a savepoint whose copy is there; None where it is not awaited any more, and the copy has to go."""
        one = self._copying.pop(number, None)
        if one is None:
            return None
        stats = SavepointStats(number, url, one.manifest.timestamp, now - one.began, size)
        if (found := one.stats) is not None:
            stats = replace(stats, inflight=found.inflight, inflight_by=found.inflight_by, policy=found.policy)
        return SavepointEnded(number, one.request.who, stats, "", one.request.cancels)

    def fail(self, number: int, reason: str) -> list[SavepointEnded]:
        """Ends a savepoint whose checkpoint was aborted, or could not be copied."""
        found = self._cuts.pop(number, None)
        copy = self._copying.pop(number, None)
        request = found[0] if found is not None else None if copy is None else copy.request
        return [] if request is None else [SavepointEnded(number, request.who, None, reason, request.cancels)]

    def again(self, number: int) -> None:
        """Takes a savepoint once more whose checkpoint, the last one of the job, was aborted."""
        if number in self._cuts:
            self.requested.appendleft(self._cuts.pop(number)[0])

    def disturb(self, number: int, reason: str) -> list[SavepointEnded]:
        """Gives up an attempt at a savepoint because of a failure of a worker, or of all. Another attempt follows, if any is
        left; else the savepoint ends."""
        found, complete = self._cuts.pop(number, None), self._complete.pop(number, None)
        request = found[0] if found is not None else None if complete is None else complete.request
        if request is None:
            return []
        request = replace(request, failures=request.failures + 1)
        if request.failures == ATTEMPTS:
            return [SavepointEnded(number, request.who, None, given_up("it was complete", reason), request.cancels)]
        self.requested.appendleft(request)
        return []

    def forget(self, who: Any) -> None:
        """Drops what was requested by this party, which does not wait for it any more."""
        self.requested = deque(one for one in self.requested if one.who is not who)
        self._cuts = {number: one for number, one in self._cuts.items() if one[0].who is not who}
        self._complete = {number: one for number, one in self._complete.items() if one.request.who is not who}

    def note_stop(self, manifest: Manifest, now: int) -> None:
        """Notes that a claim has found the checkpoint of a stop whose outcome was unknown."""
        if manifest.checkpoint in self._cuts:
            request, began = self._cuts.pop(manifest.checkpoint)
            self._complete[manifest.checkpoint] = _Complete(request, manifest, None, began)

    def attempt_over(self, reason: str) -> list[SavepointEnded]:
        """Gives up attempts at savepoints with the attempt of the job, where their cut was under way, or their output is not
        known to be visible. The newest one is requested last."""
        numbers = sorted([*self._cuts, *self._complete], reverse=True)
        return [ended for number in numbers for ended in self.disturb(number, reason)]

    def over(self, reason: str) -> list[SavepointEnded]:
        """Ends all savepoints with the job: none is taken or copied any more."""
        over = [(number, request) for number, (request, _) in self._cuts.items()]
        over += [(number, one.request) for number, one in [*self._complete.items(), *self._copying.items()]]
        over += [(0, request) for request in self.requested]
        self._cuts, self._complete, self._copying = {}, {}, {}
        self.requested.clear()
        return [SavepointEnded(number, request.who, None, reason) for number, request in over]
