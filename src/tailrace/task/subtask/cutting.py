"""The cuts that one task is still to make: since when each is known, what each is to be, and which are due."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tailrace.elements.cuts import CutRequest
from tailrace.elements.frames import ChannelId
from tailrace.protocol.cut import Aligner, CutOutcome
from tailrace.task.channels.gate import Gate
from tailrace.task.inflight.recording import InFlightRecording


@dataclass(frozen=True, slots=True)
class DueCut:
    """A cut that is made now. Times are int64 microseconds."""

    request: CutRequest
    aligned: int
    """Time since the first barrier was read."""
    announced: int
    """Time since the first barrier had arrived."""
    missing: tuple[ChannelId, ...] = ()
    """The channels whose barrier was not read, in an unaligned cut."""
    struck: bool = False
    """True if its barriers may overtake from now on."""
    overtakes_at: int | None = None
    """The time at which its barriers may overtake what they still wait behind; None: never."""


class TaskCuts:
    """The cuts that a task knows of. It follows the decisions of its aligner: it blocks channels of the gate, and
    releases them."""

    def __init__(self, gate: Gate, inflight: InFlightRecording | None = None) -> None:
        """`inflight`: given where barriers may overtake."""
        self.aligner: Aligner[ChannelId] = Aligner(gate.channels, () if inflight is None else inflight.overtakable)
        self._inflight = inflight
        self.due: deque[int] = deque()
        """Cuts to make before anything else; but see `Task._worked`."""
        self.declined: list[int] = []
        """Checkpoints that cannot be completed here; the worker reports them and empties the list."""
        self.made = 0
        """Number of cuts made, for the driver that measures how long they take."""
        self.unstamped = False
        """True if a barrier has arrived since the last step: arrivals have no clock."""
        self._gate = gate
        self._requests: dict[int, CutRequest] = {}
        """The requests of the cuts that are known of and still to be made, by their numbers."""
        self._aligning_since = 0
        self._announced_at: dict[int, int | None] = {}
        """Cuts whose first barrier has arrived, with the time of the first step after that; None: no step yet."""
        self._known_at: dict[int, int | None] = {}
        """Unaligned cuts that are known of, by a barrier or the coordinator's trigger, with the time of the first step
        after that; None: no step yet."""

    @property
    def asked(self) -> list[int]:
        """The cuts that are known of and still to be made."""
        return [*self.due, *self.aligner.asked]

    @property
    def next_is_whole(self) -> bool:
        """True if the next cut that is due may refer to no file of an earlier one."""
        return bool(self.due) and self._requests[self.due[0]].kind.whole

    # Events.

    def announce(self, ident: ChannelId, cut: CutRequest) -> None:
        """Notes that a barrier has arrived, behind what is unread on its channel."""
        if self.aligner.announce(ident, cut.number):
            self._announced_at[cut.number] = None
            self.unstamped = True
            self._hear_of(cut)

    def stamp(self, now: int) -> None:
        """Gives barriers that have arrived since the last step the time `now` as the time of their arrival."""
        self.unstamped = False
        self._announced_at = {n: now if at is None else at for n, at in self._announced_at.items()}
        self._known_at = {n: now if at is None else at for n, at in self._known_at.items()}

    def trigger(self, cut: CutRequest) -> None:
        """Takes the coordinator's request for a cut."""
        self._requests[cut.number] = cut
        self._hear_of(cut)
        self._follow(self.aligner.trigger(cut.number))

    def barrier(self, ident: ChannelId, cut: CutRequest, now: int) -> None:
        """Reads a barrier."""
        self._requests[cut.number] = cut
        outcome = self.aligner.marker(ident, cut.number)
        self._follow(outcome)
        if outcome.block:
            self._gate.block(ident)
            self._aligning_since = self._aligning_since or now

    def ended(self, ident: ChannelId) -> None:
        """Reads the end of a channel."""
        self._follow(self.aligner.ended(ident))

    def abort(self, number: int) -> None:
        """Gives up a cut that will not be completed anywhere."""
        self._follow(self.aligner.abort(number))
        if number in self.due:
            self.due.remove(number)
        self._requests.pop(number, None)
        self._known_at.pop(number, None)
        self._forget_announced()

    def make(self, now: int) -> DueCut:
        """Makes the next cut that is due."""
        return self._made(now, ())

    def do_again(self, request: CutRequest, now: int) -> None:
        """Replays a cut that was made in another process, whatever was read by then."""
        self._requests[request.number] = request
        if request.number not in self.due:
            self._follow(self.aligner.do_again(request.number))
        self.make(now)

    # Unaligned cuts.

    def _hear_of(self, cut: CutRequest) -> None:
        if self._inflight is not None and cut.may_overtake and cut.number not in self._known_at:
            if cut.number > self.aligner.done:
                self._requests.setdefault(cut.number, cut)
                self._known_at[cut.number] = None
                self.unstamped = True

    def _overtakes_at(self, number: int) -> int | None:
        known = self._known_at.get(number)
        return None if known is None else known + self._requests[number].overtakes_after

    def struck(self, now: int) -> bool:
        """True if the next cut is to be made now, without waiting for barriers that are not read.

        Invariant A5: from a task with an unaligned cut, whose records come to one that waits for barriers that overtake
        nothing, everything that it can be reached from has made that cut as well. What the waiting task blocks meanwhile
        is then behind their cuts, so none of them needs it to be read on its way to the awaited barrier."""
        if not self._known_at:
            return False
        number = self.aligner.next_known
        at = None if number is None else self._overtakes_at(number)
        if number is None or at is None or now < at or not self.aligner.may_overtake(number):
            return False
        assert self._inflight is not None
        most = self._requests[number].most_inflight
        if most < 0:
            return not self._inflight.follows or self._senders_have_cut(number)
        unread = self._inflight.unread(number)
        return unread is not None and unread <= most

    def _senders_have_cut(self, number: int) -> bool:
        announced, channels = self.aligner.announced.get(number, {}), self._gate.channels
        return all(ident in announced or channels[ident].ending for ident in self.aligner.live)

    def strikes_at(self, now: int) -> int | None:
        """The earliest time after `now` at which the clock alone makes a known cut an unaligned one; None: never."""
        times = [at for n in self._known_at if (at := self._overtakes_at(n)) is not None and at > now]
        return min(times, default=None)

    def overtake(self, now: int) -> DueCut:
        """Makes the next cut before its barriers are read. Only if it is `struck`."""
        number = self.aligner.next_known
        assert number is not None
        missing, outcome = self.aligner.overtake(number)
        self._follow(outcome)
        return self._made(now, tuple(missing))

    # Inside.

    def _made(self, now: int, missing: tuple[ChannelId, ...]) -> DueCut:
        self.made += 1
        number = self.due.popleft()
        aligned = now - self._aligning_since if self._aligning_since else 0
        self._aligning_since = 0
        arrived = self._announced_at.get(number)
        request = self._requests[number]
        at = self._overtakes_at(number)
        self._requests = {n: one for n, one in self._requests.items() if n > number}
        self._known_at = {n: known for n, known in self._known_at.items() if n > number}
        self._forget_announced()
        announced = 0 if arrived is None else now - arrived
        return DueCut(request, aligned, announced, missing, at is not None and now >= at, at)

    def _forget_announced(self) -> None:
        """Drops the arrival times of cuts that were made or given up."""
        known = {*self.aligner.announced, *self.due}
        self._announced_at = {n: at for n, at in self._announced_at.items() if n in known}

    def _follow(self, outcome: CutOutcome[ChannelId]) -> None:
        """Carries out what the aligner decided, but for blocking."""
        self.declined.extend(outcome.given_up)
        self._gate.release(outcome.release)
        if outcome.release:
            self._aligning_since = self._aligning_since if outcome.cuts else 0
        self.due.extend(outcome.cuts)
