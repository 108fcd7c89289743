"""What has become of the losses of workers, slice by slice: how long each replacement took, in its parts, and why others
were none."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass
class ReplacementTimes:
    """When a replacement had come how far (int64 microseconds of the coordinator's clock): the newest process that was to be
    it."""

    noticed: int
    there: int = 0
    """A process has said hello for the slot."""
    known: int = 0
    """The last survivor has said what it knows."""
    restored: int = 0
    """Its state is there, and functions are open."""
    replayed: int = 0
    """It was where the lost one was."""

    def parts(self) -> list[int]:
        """How long each part took; together that is all of it. Survivors may have said what they know before the process was
        there: what counts as theirs is how much longer they took."""
        marks = accumulate((self.noticed, self.there, self.known, self.restored, self.replayed), max)
        return [after - before for before, after in pairwise(marks)]


class Failovers:
    """The bookkeeping of one job. Nothing follows from it but what is shown (`slices`)."""

    def __init__(self) -> None:
        self.under_way: dict[int, ReplacementTimes] = {}
        """The slots whose workers are being replaced."""
        self.last: dict[int, ReplacementTimes] = {}
        """The last replacement that came to its end, by slot."""
        self.counts: dict[int, int] = {}
        """How many did, by slot."""
        self.attempts: dict[int, int] = {}
        """The attempts of slices that were replaced since all began."""
        self.refused: dict[int, str] = {}
        """Why the last loss of a slot that was no replacement was none."""

    def noticed(self, slot: int, now: int) -> None:
        """A worker is lost, and is replaced."""
        self.under_way[slot] = ReplacementTimes(now)

    def there(self, slot: int, now: int) -> None:
        """A process says hello for a slot."""
        if slot in self.under_way:
            self.under_way[slot].there = now

    def known(self, slot: int, now: int) -> None:
        """A survivor has said what it knows of the lost one."""
        if slot in self.under_way:
            self.under_way[slot].known = now

    def resumes(self, slot: int, attempt: int) -> None:
        """The replacement is told what to do, as this attempt of the slice."""
        self.attempts[slot] = attempt

    def restored(self, slot: int, now: int) -> None:
        """The replacement has restored the state."""
        if slot in self.under_way:
            self.under_way[slot].restored = now

    def replayed(self, slot: int, now: int) -> None:
        """The replacement is where the lost one was."""
        marks = self.under_way.pop(slot)
        marks.replayed = now
        self.last[slot] = marks
        self.counts[slot] = self.counts.get(slot, 0) + 1

    def refuse(self, slot: int, why: str) -> None:
        """A worker is lost, and the others cannot go on without it."""
        self.refused[slot] = why

    def given_up(self, why: str) -> None:
        """All start again, for this reason: those that were being replaced, too."""
        for slot in self.under_way:
            self.refused[slot] = f"it was still being replaced: {why}"
        self.under_way, self.attempts = {}, {}
