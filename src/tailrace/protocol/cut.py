"""The cut: a marker that crosses the graph in-band, in order with the data.

This is one task's half. A marker is *announced* when it arrives, which may be behind records that are still to be read: so a
task knows of a cut, and since when, before its turn has come; for an aligned cut nothing else follows. A channel that has
delivered the marker of a cut is *blocked* until all live channels have; then the task cuts, between two records, and sends
the marker on. In an unaligned cut the task does not wait for channels that may be *overtaken*: it cuts as soon as it knows
of the cut, and records, of each such channel, what comes before the marker does. Others, broadcast ones for instance,
deliver their markers first even then. A task without live channels (a source, or one whose inputs have all ended) cuts when
the coordinator triggers it. An end of input counts as the marker of every open cut on its channel.

The argument. On each channel, what its sender sent before its own cut comes before the marker, so the receiver has
processed exactly that of it when it cuts, and what comes after the marker is processed after: no record is on two sides
of one cut, and none is in between. Where the task cuts before the marker came, what lies in between is in the record of the
channel, which belongs to the cut. A channel that ended has delivered all it ever will.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Channel = TypeVar("Channel")
"""How a task calls its channels."""


@dataclass(slots=True)
class CutOutcome(Generic[Channel]):
    """What follows from an event, in this order: give up, release, cut."""

    given_up: list[int] = field(default_factory=list)
    """Cuts that cannot be completed here any more."""
    cuts: list[int] = field(default_factory=list)
    """Cuts to make now."""
    block: bool = False
    """Whether the channel of the event must not be read before the cut."""
    release: list[Channel] = field(default_factory=list)
    """Channels that may be read again."""


class Aligner(Generic[Channel]):
    """One task's cuts, by number. Numbers grow on each channel; some may be missing. `overtakable`: the channels for whose
    markers an unaligned cut does not wait.

    Invariant A1: `blocked` holds exactly the live channels that have delivered the marker of `current`.
    Invariant A2: a cut is made at most once, in growing order, and never after it was aborted here.
    Invariant A3: while a cut is open (`current`), some live channel has not delivered its marker.
    Invariant A4: `announced` holds cuts that are still to be made here, each with the channels on which its marker has
    arrived, whether it was read or not.
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
        """Cuts the coordinator wants that no marker has announced yet."""

    def announce(self, channel: Channel, cut: int) -> bool:
        """The marker of a cut has arrived on a channel, behind what is unread there. True where it is the first one of a cut
        that is still to be made here."""
        if self._over(cut):
            return False
        first = cut not in self.announced
        self.announced.setdefault(cut, {})[channel] = None
        return first

    def marker(self, channel: Channel, cut: int) -> CutOutcome[Channel]:
        """The marker of a cut is read on a channel."""
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
        """A channel ended."""
        outcome: CutOutcome[Channel] = CutOutcome()
        self.live.pop(channel, None)
        if self.current is not None:
            self._complete(outcome)
        if not self.live:
            for cut in sorted(self._triggered):
                self._make(cut, outcome)
        return outcome

    def trigger(self, cut: int) -> CutOutcome[Channel]:
        """The coordinator wants a cut. It is made here, unless markers will bring it."""
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
        """The cut to be made next, of those that are known of. One that a channel has skipped is not made any more."""
        if self.current is not None:
            return self.current
        return min((*self.announced, *self._triggered), default=None)

    def may_overtake(self, cut: int) -> bool:
        """Whether the next cut waits for nothing but channels that may be overtaken."""
        if cut != self.next_known:
            return False
        return all(channel in self.overtakable or channel in self.blocked for channel in self.live)

    def overtake(self, cut: int) -> tuple[list[Channel], CutOutcome[Channel]]:
        """The next cut is made before all markers are read. Says on which channels they are not."""
        if not self.may_overtake(cut):
            raise ValueError(f"cut {cut} waits for channels that are never overtaken, or is not the next")
        missing = [channel for channel in self.live if channel not in self.blocked]
        outcome: CutOutcome[Channel] = CutOutcome()
        self._make(cut, outcome)
        return missing, outcome

    def do_again(self, cut: int) -> CutOutcome[Channel]:
        """A cut that was made before, in another process, is made at once."""
        outcome: CutOutcome[Channel] = CutOutcome()
        self._make(cut, outcome)
        return outcome

    def abort(self, cut: int) -> CutOutcome[Channel]:
        """A cut will not be completed anywhere."""
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
        """Whether a cut is announced that is still to be made here: the task gives the channel that will bring its marker
        its turn."""
        return self.current is not None or bool(self._triggered)

    @property
    def asked(self) -> list[int]:
        """The cuts that are known of and still to be made here."""
        return [*self._triggered, *(() if self.current is None else (self.current,))]

    def check(self) -> str | None:
        """What is wrong with the invariants, or None."""
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
