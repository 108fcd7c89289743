"""The cuts of one task: which it knows of, since when, on which channels their barriers have come, and which are due. A cut
is a barrier that crosses the graph in-band, in order with the data.

A barrier is *announced* when it arrives, perhaps behind records that are still to be read. So a task knows of a cut, and
since when, before it reads the barrier. An aligned cut makes no other use of that. A channel that has delivered the barrier
of a cut is *blocked* until all live channels have delivered it. Then the task cuts, between two records, and sends the
barrier on.

In an unaligned cut the task does not wait for channels that may be *overtaken*. It cuts as soon as it knows of the cut, and
records, of each such channel, what comes before the barrier. Channels that may not be overtaken, broadcast ones for
instance, deliver their barriers first even then. A task without live channels (a source, or a task whose inputs have all
ended) cuts when the coordinator triggers it. An end of input counts as the barrier of every open cut on its channel.

The argument. On each channel, records that the sender sent before its own cut come before the barrier, and later records
come after it. The receiver has processed exactly the former when it cuts, and processes the latter after its cut. So no
record is on two sides of one cut, and none is in between. Where the task cuts before the barrier came, the records in
between are in the record of the channel, which belongs to the cut. A channel that ended has delivered all it ever will.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId
from tailrace.task.channels.gate import Gate
from tailrace.task.inflight.overtaken_records import InFlightRecording


@dataclass(slots=True)
class TaskCut:
    """One cut, from when the task first knows of it until it is made. Times are int64 microseconds."""

    request: CutRequest
    triggered: bool = False
    """True if the coordinator has triggered it."""
    arrived: dict[ChannelId, None] = field(default_factory=dict)
    """The channels on which its barrier has arrived, read or unread."""
    arrived_at: int | None = None
    """The time of the first step after the first barrier had arrived; None: no step yet."""
    known_at: int | None = None
    """The time of the first step since the task knows of it; None: no step yet."""
    made_at: int = 0
    aligned: int = 0
    """Time from the first barrier that was read until it was made."""
    missing: Sequence[ChannelId] = ()
    """The channels whose barrier was not read when it was made, in an unaligned cut."""

    @property
    def announced(self) -> int:
        """Time from the first barrier that had arrived until it was made."""
        return 0 if self.arrived_at is None else self.made_at - self.arrived_at

    @property
    def overtakes_at(self) -> int | None:
        """The time from which on its barriers may overtake what they still wait behind; None: never."""
        if self.known_at is None or not self.request.may_overtake:
            return None
        return self.known_at + self.request.overtakes_after


class Alignment:
    """The cuts that a task knows of, by number. Numbers grow on each channel; some may be missing. The gate reads nothing
    of a channel that is blocked.

    Invariant A1: `blocked` holds exactly the live channels that have delivered the barrier of `current`.
    Invariant A2: a cut is made at most once, in growing order, and never after it was aborted here.
    Invariant A3: while a cut is open (`current`), some live channel has not delivered its barrier.
    Invariant A4: `known` holds cuts that are still to be made here, each with the channels on which its barrier has
    arrived, read or unread.
    """

    def __init__(self, gate: Gate, inflight: InFlightRecording | None = None) -> None:
        """`inflight`: given where barriers may overtake."""
        self._gate, self._inflight = gate, inflight
        self.live = dict.fromkeys(gate.channels)
        """Channels that have not ended."""
        self.done = 0
        """The newest cut that was made or given up here. Older ones are over."""
        self.current: int | None = None
        self.blocked: dict[ChannelId, None] = {}
        self.known: dict[int, TaskCut] = {}
        self.due: deque[TaskCut] = deque()
        """Cuts to make before anything else; but see `TaskCheckpoints.worked`."""
        self.declined: list[int] = []
        """Checkpoints that cannot be completed here; the worker reports them and empties the list."""
        self.made = 0
        """Number of cuts made, for the driver that measures how long they take."""
        self.unstamped = False
        """True if something became known of a cut since the last step: arrivals have no clock."""
        self._aborted: set[int] = set()
        self._aligning_since = 0

    @property
    def awaited(self) -> bool:
        """True if a cut was triggered or begun, and is still to be made here. The task then gives a turn to the channel
        that will bring the barrier."""
        return self.current is not None or any(cut.triggered for cut in self.known.values())

    @property
    def pending(self) -> list[int]:
        """The cuts that were triggered or begun, or are due."""
        begun = [number for number, cut in self.known.items() if cut.triggered or number == self.current]
        return [*(cut.request.number for cut in self.due), *begun]

    @property
    def next_is_whole(self) -> bool:
        """True if the next cut that is due may refer to no file of an earlier one."""
        return bool(self.due) and self.due[0].request.kind.whole

    # Events.

    def announce(self, channel: ChannelId, request: CutRequest) -> None:
        """Notes that a barrier has arrived, behind what is unread on its channel."""
        if not self._over(request.number):
            cut = self._cut(request)
            self.unstamped = self.unstamped or not cut.arrived
            cut.arrived[channel] = None

    def stamp(self, now: int) -> None:
        """Gives what became known since the last step the time `now`."""
        self.unstamped = False
        for cut in (*self.due, *self.known.values()):
            if cut.known_at is None:
                cut.known_at = now
            if cut.arrived and cut.arrived_at is None:
                cut.arrived_at = now

    def trigger(self, request: CutRequest) -> None:
        """Takes the coordinator's trigger of a cut. A task with live channels waits for the barriers; a task without is to
        make the cut at once."""
        if self._over(request.number):
            return
        cut = self._cut(request)
        cut.triggered = self.unstamped = True
        if not self.live:
            self._decide(cut)

    def barrier(self, channel: ChannelId, request: CutRequest, now: int) -> None:
        """Takes a barrier that the task has read."""
        number = request.number
        if self._over(number) or (self.current is not None and number < self.current):
            return  # aborted, or overtaken: another channel will never deliver it
        if self.current is not None and number > self.current:  # its sender gave up the open cut
            self.declined.append(self.current)
            self._finish(self.current)
            self._release()
        self.current = number
        self._cut(request).arrived[channel] = None
        self.blocked[channel] = None
        if not self._complete():
            self._gate.block(channel)
            self._aligning_since = self._aligning_since or now

    def end(self, channel: ChannelId) -> None:
        """Takes the end of a channel."""
        self.live.pop(channel, None)
        self._complete()
        if not self.live:
            for number in sorted(number for number, cut in self.known.items() if cut.triggered):
                self._decide(self.known[number])

    def abort(self, number: int) -> None:
        """Forgets a cut that will not be completed anywhere."""
        if number > self.done:
            self._aborted.add(number)
            self.known.pop(number, None)
        if number == self.current:
            self.current = None
            self._release()
        for cut in [one for one in self.due if one.request.number == number]:
            self.due.remove(cut)

    def make(self, now: int) -> TaskCut:
        """Makes the next cut that is due."""
        cut = self.due.popleft()
        self.made += 1
        cut.made_at = now
        cut.aligned = now - self._aligning_since if self._aligning_since else 0
        self._aligning_since = 0
        return cut

    # Unaligned cuts.

    def is_due(self, now: int) -> bool:
        """True if the next cut is to be made now, without waiting for barriers that are not read.

        Invariant A5: from a task with an unaligned cut, whose records come to one that waits for barriers that overtake
        nothing, everything that it can be reached from has made that cut as well. What the waiting task blocks meanwhile
        is then behind their cuts, so none of them needs it to be read on its way to the awaited barrier."""
        inflight, cut = self._inflight, self._next
        if inflight is None or cut is None or (at := cut.overtakes_at) is None or now < at:
            return False
        if any(channel not in self.blocked and channel not in inflight.overtakable for channel in self.live):
            return False
        most = cut.request.most_inflight
        if most < 0:
            return not inflight.follows or self._senders_have_cut(cut)
        unread = inflight.unread(cut.request.number)
        return unread is not None and unread <= most

    def _senders_have_cut(self, cut: TaskCut) -> bool:
        channels = self._gate.channels
        return all(ident in cut.arrived or channels[ident].ending for ident in self.live)

    def strikes_at(self, now: int) -> int | None:
        """The earliest time after `now` at which the clock alone makes a known cut an unaligned one; None: never."""
        known = (*self.due, *self.known.values())
        return min((at for cut in known if (at := cut.overtakes_at) is not None and at > now), default=None)

    def overtake(self, now: int) -> TaskCut:
        """Makes the next cut before its barriers are read. Only if it is `is_due`."""
        cut = self._next
        assert cut is not None
        cut.missing = [channel for channel in self.live if channel not in self.blocked]
        self._decide(cut)
        return self.make(now)

    # Inside.

    @property
    def _next(self) -> TaskCut | None:
        """The next cut to make, of all that are known and not due. A cut that a channel has skipped is not made."""
        if not self.known:
            return None
        return self.known[min(self.known) if self.current is None else self.current]

    def _over(self, number: int) -> bool:
        return number <= self.done or number in self._aborted

    def _cut(self, request: CutRequest) -> TaskCut:
        return self.known.setdefault(request.number, TaskCut(request))

    def _complete(self) -> bool:
        if self.current is None or len(self.blocked) < len(self.live):
            return False
        self._decide(self.known[self.current])
        return True

    def _decide(self, cut: TaskCut) -> None:
        """Lets a cut be made before anything else."""
        since = self._aligning_since
        self._finish(cut.request.number)
        self._release()
        self._aligning_since = since
        self.due.append(cut)

    def _finish(self, number: int) -> None:
        self.current, self.done = None, number
        self._aborted = {one for one in self._aborted if one > number}
        self.known = {one: cut for one, cut in self.known.items() if one > number}

    def _release(self) -> None:
        self._gate.release(self.blocked)
        self.blocked = {}
        self._aligning_since = 0

    def check(self) -> str | None:
        """The invariant that does not hold, as text, or None."""
        if not set(self.blocked) <= set(self.live):
            return "A1: a channel that ended is blocked"
        if (self.current is None) != (not self.blocked):
            return "A1: channels are blocked without an open cut, or the other way round"
        if self.current is not None and set(self.blocked) == set(self.live):
            return f"A3: cut {self.current} is open though every live channel has delivered it"
        for number, cut in self.known.items():
            if number == self.current and not set(self.blocked) <= set(cut.arrived):
                return f"A4: cut {number} was read on channels on which it had not arrived"
        if any(map(self._over, self.known)):
            return f"A4: cuts {list(self.known)} are still to be made, and {self.done} was made"
        return None
