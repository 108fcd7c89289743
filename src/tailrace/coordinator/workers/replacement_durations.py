"""The losses of workers, slice by slice: the duration of each replacement, in its parts, and why a loss led to a restart
instead."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass
class ReplacementTimes:
    """The times at which a replacement reached its phases (int64 microseconds of the coordinator's clock). They are of the
    newest process that was to be the replacement."""

    noticed: int
    there: int = 0
    """A process has sent `Hello` for the slot."""
    known: int = 0
    """The last survivor has sent what it knows."""
    restored: int = 0
    """The state of the slice is restored, and its functions are open."""
    hot: bool = False
    """True if the replacement was the worker's hot standby, and went on from where it was."""
    replayed: int = 0
    """The replacement has done all that the lost worker did."""

    def parts(self) -> list[int]:
        """The duration of each part; together they are the whole. Survivors may have sent what they know before the process
        was there: their part is how much longer they took."""
        marks = accumulate((self.noticed, self.there, self.known, self.restored, self.replayed), max)
        return [after - before for before, after in pairwise(marks)]


class Failovers:
    """The record of one job's failovers. It is only shown (`slices`); nothing else depends on it."""

    def __init__(self) -> None:
        self.under_way: dict[int, ReplacementTimes] = {}
        """The replacements under way, by slot."""
        self.last: dict[int, ReplacementTimes] = {}
        """The last replacement that came to its end, by slot."""
        self.counts: dict[int, int] = {}
        """The number of replacements that came to their end, by slot."""
        self.attempts: dict[int, int] = {}
        """The attempts of slices that were replaced since all workers began."""
        self.refused: dict[int, str] = {}
        """Slot -> why its most recent loss without a replacement led to a restart."""

    def note_loss(self, slot: int, now: int) -> None:
        """Notes that a worker is lost, and is replaced."""
        self.under_way[slot] = ReplacementTimes(now)

    def there(self, slot: int, now: int) -> None:
        """Notes that a process has sent `Hello` for a slot."""
        if slot in self.under_way:
            self.under_way[slot].there = now

    def note_report(self, slot: int, now: int) -> None:
        """Notes that a survivor has sent what it knows of the lost worker."""
        if slot in self.under_way:
            self.under_way[slot].known = now

    def resumes(self, slot: int, attempt: int) -> None:
        """Notes that the replacement was sent what it has to do, as this attempt of the slice."""
        self.attempts[slot] = attempt

    def note_restore(self, slot: int, now: int, hot: bool = False) -> None:
        """Notes that the replacement has restored the state. `hot`: it was there already."""
        if slot in self.under_way:
            self.under_way[slot].restored, self.under_way[slot].hot = now, hot

    def note_replay(self, slot: int, now: int) -> None:
        """Notes that the replacement has done all that the lost worker did."""
        marks = self.under_way.pop(slot)
        marks.replayed = now
        self.last[slot] = marks
        self.counts[slot] = self.counts.get(slot, 0) + 1

    def refuse(self, slot: int, why: str) -> None:
        """Notes that a worker is lost, and that the other workers cannot go on without it."""
        self.refused[slot] = why

    def given_up(self, why: str) -> None:
        """Notes that all workers start again, for this reason, and that replacements under way end."""
        for slot in self.under_way:
            self.refused[slot] = f"it was still being replaced: {why}"
        self.under_way, self.attempts = {}, {}
