"""The cut: a marker that crosses the graph in-band, in order with the data.

This module is one task's half. A marker is *announced* when it arrives, perhaps behind records that are still to be read.
So a task knows of a cut, and since when, before it reads the marker. An aligned cut makes no other use of that. A channel
that has delivered the marker of a cut is *blocked* until all live channels have delivered it. Then the task cuts, between
two records, and sends the marker on.

In an unaligned cut the task does not wait for channels that may be *overtaken*. It cuts as soon as it knows of the cut, and
records, of each such channel, what comes before the marker. Channels that may not be overtaken, broadcast ones for
instance, deliver their markers first even then. A task without live channels (a source, or a task whose inputs have all
ended) cuts when the coordinator triggers it. An end of input counts as the marker of every open cut on its channel.

The argument. On each channel, records that the sender sent before its own cut come before the marker, and later records
come after it. The receiver has processed exactly the former when it cuts, and processes the latter after its cut. So no
record is on two sides of one cut, and none is in between. Where the task cuts before the marker came, the records in
between are in the record of the channel, which belongs to the cut. A channel that ended has delivered all it ever will.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Channel = TypeVar("Channel")
"""A task's name for one of its channels."""


@dataclass(slots=True)
class CutOutcome(Generic[Channel]):
    """The consequences of an event, in this order: give up, release, cut."""

    given_up: list[int] = field(default_factory=list)
    """Cuts that this task cannot complete any more."""
    cuts: list[int] = field(default_factory=list)
    """Cuts to make now."""
    block: bool = False
    """True if the task must not read the channel of the event before the cut."""
    release: list[Channel] = field(default_factory=list)
    """Channels that the task may read again."""


class Aligner(Generic[Channel]):
    """The cuts of one task, by number. Numbers grow on each channel; some may be missing. `overtakable`: the channels for
    whose markers an unaligned cut does not wait.

    Invariant A1: `blocked` holds exactly the live channels that have delivered the marker of `current`.
    Invariant A2: a cut is made at most once, in growing order, and never after it was aborted here.
    Invariant A3: while a cut is open (`current`), some live channel has not delivered its marker.
    Invariant A4: `announced` holds cuts that are still to be made here, each with the channels on which its marker has
    arrived, read or unread.
    """

    def __init__(self, channels: Iterable[Channel], overtakable: Iterable[Channel] = ()) -> None:
        self.overtakable = frozenset(overtakable)
        self.live = dict.fromkeys(channels)
        """Channels that have not ended."""
        self.current: int | None = None
        self.blocked: dict[Channel, None] = {}
        self.announced: dict[int, dict[Channel, None]] = {}
        self.done = 0
        """The newest cut that was made or given up here. Older ones are over."""
        self._aborted: set[int] = set()
        self._triggered: set[int] = set()
        """Cuts that the coordinator has triggered and no marker has announced yet."""

    def announce(self, channel: Channel, cut: int) -> bool:
        """Notes that the marker of a cut has arrived on a channel, behind what is unread there. Returns True for the first
        marker of a cut that is still to be made here."""
        if self._over(cut):
            return False
        first = cut not in self.announced
        self.announced.setdefault(cut, {})[channel] = None
        return first

    def marker(self, channel: Channel, cut: int) -> CutOutcome[Channel]:
        """Takes the marker of a cut that the task has read on a channel."""
        outcome: CutOutcome[Channel] = CutOutcome()
        if self._over(cut) or (self.current is not None and cut < self.current):
            return outcome  # aborted, or overtaken: another channel will never deliver it
        if self.current is not None and cut > self.current:
            # This channel skipped the open cut: its sender gave it up.
            self._give_up(self.current, outcome)
        self.current = cut
        self.announce(channel, cut)
        self.blocked[channel] = None
        outcome.block = True
        self._complete(outcome)
        return outcome

    def ended(self, channel: Channel) -> CutOutcome[Channel]:
        """Takes the end of a channel."""
        outcome: CutOutcome[Channel] = CutOutcome()
        self.live.pop(channel, None)
        if self.current is not None:
            self._complete(outcome)
        if not self.live:
            for cut in sorted(self._triggered):
                self._make(cut, outcome)
        return outcome

    def trigger(self, cut: int) -> CutOutcome[Channel]:
        """Takes the coordinator's trigger of a cut. A task with live channels waits for the markers; a task without makes
        the cut at once."""
        outcome: CutOutcome[Channel] = CutOutcome()
        if self._over(cut):
            return outcome
        if self.live:
            self._triggered.add(cut)
        else:
            self._make(cut, outcome)
        return outcome

    @property
    def next_known(self) -> int | None:
        """The number of the next cut to make, of all cuts that this task knows of; None if it knows of none. A cut that a
        channel has skipped is not made any more."""
        if self.current is not None:
            return self.current
        return min((*self.announced, *self._triggered), default=None)

    def may_overtake(self, cut: int) -> bool:
        """True if `cut` is the next one, and waits only for channels that may be overtaken."""
        if cut != self.next_known:
            return False
        return all(channel in self.overtakable or channel in self.blocked for channel in self.live)

    def overtake(self, cut: int) -> tuple[list[Channel], CutOutcome[Channel]]:
        """Makes the next cut before all markers are read. Returns the channels whose markers are unread. Raises
        `ValueError` where `may_overtake` is False."""
        if not self.may_overtake(cut):
            raise ValueError(f"cut {cut} waits for channels that are never overtaken, or is not the next")
        missing = [channel for channel in self.live if channel not in self.blocked]
        outcome: CutOutcome[Channel] = CutOutcome()
        self._make(cut, outcome)
        return missing, outcome

    def do_again(self, cut: int) -> CutOutcome[Channel]:
        """Makes at once a cut that the slice made before, in another process."""
        outcome: CutOutcome[Channel] = CutOutcome()
        self._make(cut, outcome)
        return outcome

    def abort(self, cut: int) -> CutOutcome[Channel]:
        """Forgets a cut that will not be completed anywhere."""
        outcome: CutOutcome[Channel] = CutOutcome()
        if cut > self.done:
            self._aborted.add(cut)
            self._triggered.discard(cut)
            self.announced.pop(cut, None)
        if cut == self.current:
            self.current = None
            self._release(outcome)
        return outcome

    @property
    def awaited(self) -> bool:
        """True if a cut is announced, and is still to be made here. The task then gives a turn to the channel that will
        bring the marker."""
        return self.current is not None or bool(self._triggered)

    @property
    def asked(self) -> list[int]:
        """Numbers of the cuts that this task knows of and still has to make."""
        return [*self._triggered, *(() if self.current is None else (self.current,))]

    def check(self) -> str | None:
        """The invariant that does not hold, as text, or None."""
        if not set(self.blocked) <= set(self.live):
            return "A1: a channel that ended is blocked"
        if (self.current is None) != (not self.blocked):
            return "A1: channels are blocked without an open cut, or the other way round"
        if self.current is not None and set(self.blocked) == set(self.live):
            return f"A3: cut {self.current} is open though every live channel has delivered it"
        if self.current is not None and not set(self.blocked) <= set(self.announced.get(self.current, ())):
            return f"A4: cut {self.current} was read on channels on which it had not arrived"
        if any(map(self._over, self.announced)):
            return f"A4: cuts {list(self.announced)} are announced, and {self.done} was made"
        return None

    # Inside.

    def _over(self, cut: int) -> bool:
        return cut <= self.done or cut in self._aborted

    def _complete(self, outcome: CutOutcome[Channel]) -> None:
        if self.current is not None and len(self.blocked) == len(self.live):
            self._make(self.current, outcome)

    def _make(self, cut: int, outcome: CutOutcome[Channel]) -> None:
        self._finish(cut)
        self._release(outcome)
        outcome.block = False
        outcome.cuts.append(cut)

    def _give_up(self, cut: int, outcome: CutOutcome[Channel]) -> None:
        self._finish(cut)
        self._release(outcome)
        outcome.given_up.append(cut)

    def _finish(self, cut: int) -> None:
        self.current = None
        self.done = cut
        self._aborted = {one for one in self._aborted if one > cut}
        self._triggered = {one for one in self._triggered if one > cut}
        self.announced = {one: channels for one, channels in self.announced.items() if one > cut}

    def _release(self, outcome: CutOutcome[Channel]) -> None:
        outcome.release.extend(self.blocked)
        self.blocked = {}
