"""How a loop nest finds out that nothing is left in it. A *nest* is an outermost loop with everything inside.

*A worked example.* Two workers have a loop, and its input has ended. Worker 0 has sent 3 records to worker 1 and has worked
off 2; worker 1 has sent 2 and has worked off 2. One record is on its way, so the coordinator begins no wave:

    >>> from tailrace.coordinator.loops.termination import Nests, NestSpec
    >>> from tailrace.elements.timestamps import LAST_TIME, MIN_TIME
    >>> nests = Nests([NestSpec(slots=2)])
    >>> nests.message(0, Quiet(nest=0, sent=[0, 3], received=2), now=10)
    []
    >>> nests.message(1, Quiet(nest=0, sent=[2, 0], received=2), now=20)
    []

Worker 1 works off that record and answers with a third one, and worker 0 works off the answer. Each has sent 3 records and
worked off 3; the counts fit, and wave 1 begins:

    >>> nests.message(1, Quiet(nest=0, sent=[3, 0], received=3), now=30)
    []
    >>> nests.message(0, Quiet(nest=0, sent=[0, 3], received=3), now=40)
    [(0, StartWave(nest=0, wave=1, time=None)), (1, StartWave(nest=0, wave=1, time=None))]

Counts know nothing of timers: one fires in worker 0, before its cut, and sends 2 records. A task of worker 1 cuts
by command. The channel from its own worker has delivered the marker; on the channel from worker 0 the 2 records come first.
They were on their way at the cut, so the task counts them:

    >>> task = Wave(["from 0", "from 1"])
    >>> task.start(1)
    True
    >>> task.marker("from 1", 1)
    >>> task.read("from 0", 2, earliest=7)
    >>> task.marker("from 0", 1)
    >>> task.complete, task.recorded, task.earliest
    (True, 2, 7)

Both workers report. Wave 1 has found 2 records, so nothing follows from it. Wave 2 begins when the counts fit again:

    >>> nests.message(0, WaveReport(0, 1, WaveFacts(ended=True, watermark=MIN_TIME)), now=50)
    []
    >>> nests.message(1, WaveReport(0, 1, WaveFacts(recorded=2, ended=True, watermark=MIN_TIME)), now=60)
    []
    >>> def come_to_rest(sent_by_0, sent_by_1, followed):
    ...     nests.message(0, Quiet(0, [0, sent_by_0], sent_by_1, followed), now=70)
    ...     return nests.message(1, Quiet(0, [sent_by_1, 0], sent_by_0, followed), now=80)[0][1]
    >>> come_to_rest(4, 3, followed=0)
    StartWave(nest=0, wave=2, time=None)

Waves 2, 3 and 4 find no record. Event time has not come to its end in wave 2, functions have not finished in wave 3, and in
wave 4 nothing is left. Between them each worker follows the command, and sends one marker for it (a watermark, then `Rest`):

    >>> def both_report(wave, **found):
    ...     nests.message(0, WaveReport(0, wave, WaveFacts(ended=True, **found)), now=90)
    ...     return nests.message(1, WaveReport(0, wave, WaveFacts(ended=True, **found)), now=100)[0][1]
    >>> both_report(2, watermark=MIN_TIME)
    Advance(nest=0)
    >>> come_to_rest(5, 4, followed=1)
    StartWave(nest=0, wave=3, time=None)
    >>> both_report(3, watermark=LAST_TIME, reached=LAST_TIME)
    CallFinish(nest=0, number=1)
    >>> come_to_rest(6, 5, followed=2)
    StartWave(nest=0, wave=4, time=None)
    >>> both_report(4, watermark=LAST_TIME, reached=LAST_TIME, rested_min=1, rested_max=1)
    EndLoop(nest=0)

*The messages*, and who sends them:

    worker                                     coordinator
    Quiet(nest, sent, received, actions)   ->                  all of the nest is at rest here, with counts
    EventTimeMoved(nest, watermark, live)  ->                  event time has moved on where it enters the nest
                                           <-  StartWave(nest, wave, time)
    (each task cuts, and counts what is between its cut and the cuts of its senders)
    WaveReport(nest, wave, facts)          ->                  every task of the nest here has completed the wave
                                           <-  Release(nest, wave, times)        leaves may let event time pass
                                           <-  Advance(nest)                     entries: the end of event time
                                           <-  CallFinish(nest, number)          entries: finish, then marker Rest
                                           <-  EndLoop(nest)                     heads end
    RoundReport(nest, round, waiting)      ->                  a round is over at the tails here
                                           <-  StartRound(nest, round)
                                           <-  StopRounds(nest)                  there will be no other round

Counts only show when a wave is worth its cost; a wave alone decides. This module has the messages and one task's half.

**A wave** is a cut of the whole nest that stores nothing and blocks nothing (Chandy and Lamport). A task cuts between two
records, at the first sign of wave *k*: `StartWave` at an entry (or at a task none of whose channels of the nest is live),
or the marker `WaveMark(k)` on any channel of the nest, the feedback included. At its cut it notes its facts (what it is
obliged to, whether its regular inputs have ended), flushes, and sends the marker on all its outputs. From then on it
counts what it reads from each channel that has not delivered the marker yet.

*The cut is consistent*: what is read before its reader's cut was sent before its sender's cut. Channels are FIFO, so what
was sent after the sender's cut comes behind the marker, and the marker makes the reader cut at the latest. A task that has
ended without the marker counts as cut at its end: all its channels had ended, and none had delivered the marker.

*What is counted is what was in the channels at the cut*. A record in channel c at the cut was sent before the marker and is
read after the cut, so it is read while c is awaited. And a record that is read while c is awaited was sent before the
marker. An end of input stands for the marker: nothing comes behind it. What a task had gathered for its outputs was flushed
at its cut, so it is in a channel. Channels from outside the nest carry no marker; an entry reports `end` only if it has
read their ends.

*Nothing left stays so.* Suppose that every task reports for the same wave: nothing recorded, nothing obliged, all regular
inputs ended. Then at this consistent cut no channel of the nest holds a record, and no task will make one without reading
one. Consider the run in which all that happened before the cut happens first; it ends in the same state as the real one,
since the cut is consistent. In it, only reactions to commands can happen after the cut. So when the coordinator decides,
there is nothing left, in transit or to come, and nothing will be until the coordinator commands something itself.

*At rest in event time, too.* A watermark that is on its way will fire timers, and these may make records. So a task notes a
watermark between two cuts like a record (`moving`). It notes the end of a channel as well, which may let the watermark of
its reader go on. A task has no event time under way in itself at its cut: it does nothing else while it has. A leave of a
loop inside is what holds event time back. Suppose that nothing was moving, and that each leave of a loop inside had let go
all that this very wave would let it. Then at the cut every task has reached the event time that comes to it, and that will
not change before a command. For, in the order of the graph, a task's watermark is the minimum over its channels, which hold
no other; and a leave's watermark is what its loop has reached, which all tasks of the loop have. Only then does `Advance`
take event time to its end. It is not enough that the entries have come to some time: a task further in may still have timers
due by then, and what those emit would go around beside the end of event time instead of before it.

*Why the whole nest must agree on one wave.* A head that finds its own channels clean knows nothing of the other heads: a
record on the feedback of another head, or of a loop further in, comes to it through a shuffle. And answers of different
waves are of different cuts: a record may be behind both, read here before the older one and sent there after the newer one.
So the unit is the outermost nest, and reports count together only if they carry the same number. Waves do not overlap: the
next one is started when every task has completed the last. Nothing is carried from one attempt of the job to the next: the
frames and messages of an older attempt are fenced off, and waves begin again at 1. What must be known after a restore
(numbers of rest, feedback that was read, event time, the round) is in the tasks' snapshots and comes back with the facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from tailrace.elements.markers import SpanRound
from tailrace.elements.timestamps import MAX_TIME, NO_TIME
from tailrace.errors import ProtocolViolation
from tailrace.protocol.message import Message

Channel = TypeVar("Channel")
"""A task's name for one of its channels."""
NO_ROUNDS = 1 << 62
"""The number of a round in the report of a worker that waits for no round any more."""

# From a worker.


class Quiet(Message, frozen=True):
    """A report of a worker: all of the nest in it is at rest, and its regular inputs here have ended. The worker sends it
    when it has nothing else to do, and has done something for the nest since its last `Quiet`."""

    nest: int
    sent: list[int]
    """The number of records, and of markers of event time, `Rest` and `RoundEnd`, that the worker has sent to tasks of the
    nest since the attempt began, by slot of the receiver; 0 for its own slot."""
    received: int
    """The number of records and of these markers that came from other slots and were worked off."""
    actions: int = 0
    """The number of `Release`, `Advance` and `CallFinish` that the worker has worked off in this attempt. It equals the
    number that the coordinator has sent when the worker has followed all of them."""


class EventTimeMoved(Message, frozen=True):
    """A report of a worker: event time has moved on where it comes into the nest here, at entries and at operators inside
    that assign timestamps."""

    nest: int
    watermark: int
    """The smallest watermark of these entries and operators; `MAX_TIME` where all are idle or there are none."""
    live: int | None = None
    """The smallest event time at which it begins here, of the entries whose input has not ended, or, where an entry has
    none, of the first operators that assign timestamps; None where there is none."""


Scope = tuple[int, ...]
"""The scope of a loop: the number of each loop around it, the outermost first, and its own (`graph.scope.path_of`)."""


class ScopeFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of one worker about the event time that may leave one scope of the nest. They cover the operators of the
    scope, and of scopes inside of it, whose records come out with the times that they have there. They do not cover
    operators before one that assigns timestamps, where every way out leads through one."""

    scope: Scope
    reached: int = MAX_TIME
    """The smallest time up to which these operators had fired their timers at their cuts, at most `LAST_TIME`. `MAX_TIME`
    where all are idle or there is none. An operator further in may not yet have received what its entry has already
    sent."""
    content: int = MAX_TIME
    """The smallest timestamp recorded on channels into these operators; `MAX_TIME` where there is none."""
    released: int | None = None
    """The smallest time up to which the scope's leaves here had let event time go at their cuts. None where all of them are
    idle, or none is here: leaves of the outermost scope are not in the nest."""
    idle: bool = False
    """True if one of its leaves here is idle."""


class WaveFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts that the tasks of a nest in one worker have found in one wave."""

    recorded: int = 0
    """Records that were between two cuts."""
    moving: bool = False
    """True if event time was on its way between two cuts: a watermark, idleness, or the end of a channel."""
    obliged: bool = False
    """True if something will make records by itself: a timer that is awaited, a round that is still to come."""
    ended: bool = False
    """True if all regular inputs of the entries here had ended."""
    watermark: int = MAX_TIME
    """The smallest watermark of the tasks here that follow `Advance`: entries, and heads whose regular inputs have all
    ended."""
    reached: int = MAX_TIME
    """The time up to which every operator here had fired its timers; `MAX_TIME` where all are idle."""
    rested_min: int = 0
    """The newest number of rest that every unfinished task of the nest here has done; `MAX_TIME` where none is left."""
    rested_max: int = 0
    """The newest number of rest that some unfinished task here has done."""
    fed: bool = False
    """True if a head here has read feedback since its newest rest."""
    scopes: list[ScopeFacts] = []
    live: int | None = None
    """The value that `EventTimeMoved.live` had when the wave was complete here."""


class WaveReport(Message, frozen=True):
    """A report of a worker: every task of the nest in it has completed the wave."""

    nest: int
    wave: int
    facts: WaveFacts


class SpanReport(msgspec.Struct, frozen=True, array_like=True):
    """How far the heads of a worker are, in a loop in rounds by spans of event time. Times are int64 microseconds."""

    now: SpanRound | None
    """The place of the round that has ended; None for round 0, which comes before all spans."""
    done: int
    """The end of the newest span that was closed."""
    come: int | None
    """The end of the newest span that event time has passed at all heads here; `MAX_TIME` where their input has ended, None
    where it is idle."""
    held: int | None = None
    """The end of the earliest span of which a head holds records."""
    begun: tuple[int, SpanRound] | None = None
    """A later round that a head here has begun, as it had been commanded before the restored checkpoint."""


def least_come(times: Iterable[int | None]) -> int | None:
    """The event time that has come everywhere, of several `SpanReport.come`. None where all inputs that go on are idle."""
    found = set(times)
    going = found - {None, MAX_TIME}
    if going:
        return min(time for time in going if time is not None)
    return MAX_TIME if found == {MAX_TIME} else None


class RoundReport(Message, frozen=True):
    """A report of a worker: the end of a round has come to all unfinished tasks of the nest here."""

    nest: int
    round: int
    """The number of the round. `NO_ROUNDS` where all tasks of the nest here have finished: the coordinator waits for this
    worker no more."""
    waiting: int = 0
    """Records of feedback for the next round. The worker sends the report again when this was 0 and is not any more."""
    verdict: bool | None = None
    """The result of `until` for the round, from the worker with the judge."""
    spans: SpanReport | None = None
    """Where rounds go by spans of event time, and heads are here: how far these are."""


# From the coordinator.


class StartWave(Message, frozen=True):
    """A command: the entries here begin wave `wave`, unless its marker was faster. Waves are numbered from 1 in each
    attempt."""

    nest: int
    wave: int
    time: int | None = None
    """The event time of the entries whose input goes on. Entries whose input has ended follow it before their cut.
    `MAX_TIME`: the former are idle. None: there are none."""


class Release(Message, frozen=True):
    """A command: nothing from up to a time is left inside a scope. Its leaves may let the watermark go on, up to this time,
    once they have the marker of the wave on all inputs. `MAX_TIME`: the scope is empty and its entries are idle."""

    nest: int
    wave: int
    times: list[tuple[Scope, int]]


class Advance(Message, frozen=True):
    """A command, when all is at rest and event time is where it will stay: the watermark of the entries becomes
    `LAST_TIME`, and the remaining timers fire."""

    nest: int


class CallFinish(Message, frozen=True):
    """A command, when all is at rest for the `number`-th time: entries call their functions' `finish` and send the marker
    `Rest`."""

    nest: int
    number: int


class EndLoop(Message, frozen=True):
    """A command: the heads of the nest end, for nothing is left in the nest, and nothing will be."""

    nest: int


class StartRound(Message, frozen=True):
    """A command: round `round` begins. Heads emit what waits for it, then its end."""

    nest: int
    round: int
    span: SpanRound | None = None
    """Where rounds go by spans of event time: the place of the round."""


class StopRounds(Message, frozen=True):
    """A command: there will be no other round. Records that wait for one are dropped, and so is feedback that still comes
    back."""

    nest: int


# One task's half.


class Wave(Generic[Channel]):
    """The half of one task in the waves of its nest. `channels`: its live input channels in the nest, the feedback
    included.

    Invariant V1: a task cuts at most once for a wave, and waves grow.
    Invariant V2: `recorded` and `earliest` are of exactly those records that were read between the cut and the marker (or
    the end) of their channel, and `moving` says whether event time was read there.
    Invariant V3: a wave is complete exactly when every live channel has delivered its marker, and none begins before the
    last one is complete.
    """

    def __init__(self, channels: Iterable[Channel]) -> None:
        self.live = set(channels)
        """Channels that have not ended."""
        self.current = 0
        """The wave for which the task has cut last; 0: none yet."""
        self.recorded = 0
        """Records that were in this task's channels at its cut, as far as they were read."""
        self.earliest = MAX_TIME
        """The smallest timestamp of these records."""
        self.moving = False
        """True if event time was in this task's channels at its cut."""
        self._awaited: set[Channel] = set()
        """Live channels that have not delivered the marker of `current`."""

    @property
    def complete(self) -> bool:
        """True if the current wave is complete here."""
        return self.current > 0 and not self._awaited

    def start(self, wave: int) -> bool:
        """Takes the first sign of a wave, a command or a marker. Returns True when the task is to cut now: note its facts,
        flush, and send the marker on. False for a wave that is current or older. Raises `ProtocolViolation` where the wave
        before is not complete."""
        if wave <= self.current:
            return False
        if self._awaited:
            raise ProtocolViolation(f"wave {wave} begins while wave {self.current} is under way")
        self.current = wave
        self.recorded, self.earliest, self.moving = 0, MAX_TIME, False
        self._awaited = set(self.live)
        return True

    def marker(self, channel: Channel, wave: int) -> None:
        """Takes the marker of a wave that a channel delivered. `start` was called for the wave before. Raises
        `ProtocolViolation` where the marker is not awaited."""
        if wave != self.current or channel not in self._awaited:
            raise ProtocolViolation(f"marker of wave {wave} on {channel}, which is not awaited in wave {self.current}")
        self._awaited.discard(channel)

    def read(self, channel: Channel, count: int, earliest: int) -> None:
        """Takes `count` records that the task reads from a channel. `earliest` is the earliest time of theirs. Records
        without one hold no time back: `MAX_TIME` or `NO_TIME` where none has a timestamp."""
        if channel in self._awaited:
            self.recorded += count
            if earliest != NO_TIME:
                self.earliest = min(self.earliest, earliest)

    def time(self, channel: Channel) -> None:
        """Takes a watermark, or the idleness of a channel, that the task reads."""
        self.moving = self.moving or channel in self._awaited

    def end(self, channel: Channel) -> None:
        """Takes the end of a channel: it has delivered all it ever will, and the watermark waits for it no more."""
        self.time(channel)
        self.live.discard(channel)
        self._awaited.discard(channel)

    def check(self) -> str | None:
        """The invariant that does not hold, as text, or None."""
        if not self._awaited <= self.live:
            return "V3: a channel that ended is awaited"
        if self._awaited and not self.current:
            return "V3: a channel is awaited without a wave"
        return None


class Gathering(Generic[Channel]):
    """Numbered markers (`Rest`, `RoundEnd`) that a task passes on once all its channels in the nest, the feedback not among
    them, have delivered them. A task without such channels (an entry) receives the numbers by a command.

    A number that is gathered differs from a number whose work is done. A number is *gathered* once in each attempt, and
    then always passed on: after a restore from between two tasks' doing it, the second one still waits for the marker. Its
    work (`finish`, `on_round_end`) is *done* once over all attempts; `done` is in the task's snapshot. So the owner of this
    object does, in this order:

        if gathering.marker(channel, number):        # or gathering.command(number)
            if gathering.due(number):
                ...                                  # the work
            ...                                      # and pass the marker on, behind what that has emitted

    Invariant V4: numbers are gathered in growing order, each once in an attempt; the work of one is due at most once.
    """

    def __init__(self, channels: Iterable[Channel], done: int = 0) -> None:
        self.done = done
        """The newest number whose work was done, in this attempt or before the checkpoint that it began from. Rests count
        from 1, rounds from 0: the owner of rounds begins with -1."""
        self.gathered: int | None = None
        """The newest number that was gathered in this attempt."""
        self._newest: dict[Channel, int | None] = dict.fromkeys(channels)
        """The newest number of each live channel."""
        self._seen: set[int] = set()
        """Numbers that came and are not gathered."""

    @property
    def begun(self) -> bool:
        """True if some channels have delivered a number that other channels have not."""
        return bool(self._seen)

    def marker(self, channel: Channel, number: int) -> bool:
        """Takes a number that a channel delivered. Returns True when all channels have delivered it now, and the task is to
        pass it on."""
        newest = self._newest[channel]
        if newest is None or number > newest:
            self._newest[channel] = number
            self._seen.add(number)
        return bool(self._gather())

    def end(self, channel: Channel) -> list[int]:
        """Takes the end of a channel. Returns the numbers that all remaining channels have delivered, and that the task is
        to pass on now."""
        self._newest.pop(channel, None)
        return self._gather()

    def command(self, number: int) -> bool:
        """Takes a number from the coordinator, for a task without live channels. Returns True when the task is to pass it
        on."""
        if self._newest or (self.gathered is not None and number <= self.gathered):
            return False
        self.gathered = number
        return True

    def due(self, number: int) -> bool:
        """True if the work of a gathered number is to be done. The work counts as done from now on."""
        if number <= self.done:
            return False
        self.done = number
        return True

    def _gather(self) -> list[int]:
        """Numbers that every live channel has delivered or gone beyond. Without channels all that came are complete."""
        least = [-1 if newest is None else newest for newest in self._newest.values()]
        limit = min(least, default=max(self._seen, default=-1))
        found = sorted(number for number in self._seen if number <= limit)
        self._seen = {number for number in self._seen if number > limit}
        found = [number for number in found if self.gathered is None or number > self.gathered]
        if found:
            self.gathered = found[-1]
        return found
