"""How a loop nest finds out that nothing is left in it. A *nest* is an outermost loop with everything inside.

*A worked example.* Two workers have a loop, and its input has ended. Worker 0 has sent 3 frames to worker 1 and has worked
off 2; worker 1 has sent 2 and has worked off 2. One frame is on its way, so the coordinator begins no wave:

    >>> from tailrace.coordinator.loops.loops import Nests, NestSpec
    >>> from tailrace.elements.timestamps import LAST_TIME, MIN_TIME
    >>> nests = Nests([NestSpec(slots=2)])
    >>> nests.message(0, Quiet(nest=0, sent=[0, 3], received=2), now=10)
    []
    >>> nests.message(1, Quiet(nest=0, sent=[2, 0], received=2), now=20)
    []

Worker 1 works off that frame and answers with a third one, and worker 0 works off the answer. Each has sent 3 frames and
worked off 3; the counts fit, and wave 1 begins:

    >>> nests.message(1, Quiet(nest=0, sent=[3, 0], received=3), now=30)
    []
    >>> nests.message(0, Quiet(nest=0, sent=[0, 3], received=3), now=40)
    [(0, StartWave(nest=0, wave=1, time=None)), (1, StartWave(nest=0, wave=1, time=None))]

Counts know nothing of timers: one fires in worker 0, before its cut, and sends a frame of 2 records. A task of worker 1 cuts
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
wave 4 nothing is left. Between them each worker follows the command, and sends one frame for it (a watermark, then `Rest`):

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
    Quiet(nest, sent, received, actions)   ->                  all of the nest is at rest here, with the frames counted
    EventTimeMoved(nest, watermark, live)           ->                  event time has moved on where it comes into the
                                           nest here <-  StartWave(nest, wave, time)
    (each task cuts, and counts what is between its cut and those of the others)
    WaveReport(nest, wave, facts)          ->                  every task of the nest here has completed the wave
                                           <-  Release(nest, wave, times)        leaves may let event time pass
                                           <-  Advance(nest)                     entries: the end of event time
                                           <-  CallFinish(nest, number)          entries: finish, then marker Rest
                                           <-  EndLoop(nest)                     heads end
    RoundReport(nest, round, waiting)      ->                  a round is over at the tails here
                                           <-  StartRound(nest, round)
                                           <-  StopRounds(nest)                  there will be no other round

Counts say when a wave is worth its while; a wave alone decides. This module has the messages and one task's half.

**A wave** is a cut of the whole nest that stores nothing and blocks nothing (Chandy and Lamport). A task cuts between two
records, at the first word of wave *k*: `StartWave` at an entry (or at a task none of whose channels of the nest is live),
or the marker `WaveMark(k)` on any channel of the nest, the feedback included. At its cut it notes its facts (what it is
obliged to, whether its regular inputs have ended), flushes, and sends the marker on all its outputs. From then on it
counts what it reads from each channel that has not delivered the marker yet.

*The cut is consistent*: what is read before its reader's cut was sent before its sender's cut. Channels are FIFO, so what
was sent after the sender's cut comes behind the marker, and the marker makes the reader cut at the latest. A task that has
ended without the marker counts as cut at its end: all its channels had ended, and none had delivered the marker.

*What is counted is what was in the channels at the cut*: a record in channel c at the cut was sent before the marker and is
read after the cut, so it is read while c is awaited; and what is read while c is awaited was sent before the marker. An end
of input stands for the marker: nothing comes behind it. What a task had gathered for its outputs was flushed at its cut, so
it is in a channel. Channels from outside the nest carry no marker; an entry says `ended` only if it has read their ends.

*Nothing left stays so.* Say that every task reports for the same wave: nothing recorded, nothing obliged, all regular inputs
ended. Then at this consistent cut no channel of the nest holds a record, and no task will make one without reading one.
Consider the run in which all that happened before the cut happens first; it ends in the same state as the real one, since
the cut is consistent. In it, nothing can happen after the cut but that commands are followed. So when the coordinator
decides, there is nothing left, in transit or to come, and nothing will be until it commands something itself.

*At rest in event time, too.* A watermark that is on its way will fire timers, and these may make records. So one between two
cuts is noted like a record (`moving`), and so is the end of a channel, which may let the watermark of its reader go on. A
task has no event time under way in itself at its cut: it does nothing else while it has. What holds event time back is a
leave of a loop inside. Say that nothing was moving, and that each leave of a loop inside had let go all that this very wave
would let it. Then at the cut every task has reached what comes to it, and that will not change before somebody commands it:
in the order of the graph, a task's watermark is the minimum over its channels, which hold no other, and a leave's is what
its loop has reached, which all of its tasks have. Only then does `Advance` take event time to its end. It is not enough that
the entries have come to some time: a task further in may still have timers due by then, and what those emit would go around
beside the end of event time instead of before it.

*Why the whole nest must agree on one wave.* A head that finds its own channels clean knows nothing of the others: a record
on the feedback of another head, or of a loop further in, comes to it through a shuffle. And answers of different waves are
of different cuts: a record may be behind both, read here before the older one and sent there after the newer one. So the
unit is the outermost nest, and reports count together only if they carry the same number. Waves do not overlap: the next
one is started when every task has completed the last. Nothing is carried from one attempt of the job to the next: the
frames and messages of an older attempt are fenced off, waves begin again at 1, and what must be known after a restore
(numbers of rest, feedback that was read, event time, the round) is in the tasks' snapshots and comes back with the facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from tailrace.elements.timestamps import MAX_TIME, NO_TIME
from tailrace.errors import ProtocolViolation
from tailrace.protocol.message import Message

Channel = TypeVar("Channel")
"""How a task calls its channels."""
NO_ROUNDS = 1 << 62
"""In place of the number of a round."""

# From a worker.


class Quiet(Message, frozen=True):
    """All of the nest in this worker is at rest, and its regular inputs here have ended. Said when the worker has nothing
    else to do, and has done something for the nest since it was said last."""

    nest: int
    sent: list[int]
    """Frames of records, of event time and of `Rest` sent to tasks of the nest in each slot since the attempt began, by
    slot; 0 for its own."""
    received: int
    """Such frames received from other slots and worked off."""
    actions: int = 0
    """How many of `Release`, `Advance` and `CallFinish` the worker has worked off in this attempt: as many as the
    coordinator has sent when it has done all that it was told."""


class EventTimeMoved(Message, frozen=True):
    """Event time has moved on where it comes into the nest in this worker: at its entries, and at operators inside that
    assign timestamps."""

    nest: int
    watermark: int
    """The smallest of theirs; `MAX_TIME` where all are idle or there are none."""
    live: int | None = None
    """The smallest at which event time begins here, at an entry, or where that has none, at the first operator that assigns
    timestamps, of those whose input has not ended; None where there is none."""


class ScopeFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker knows of the event time that may leave one scope of the nest. Counted are the operators of the scope,
    and of those inside of it, whose records come out with the times that they have there: not what is before an operator
    that assigns timestamps, where every way out leads through one."""

    scope: str
    """As it writes itself, `StreamScope(0.1)`: which one is in which other is seen from the text."""
    reached: int = MAX_TIME
    """Up to which time they had fired their timers at their cuts: the smallest, and at most `LAST_TIME`. `MAX_TIME` where
    all are idle or there is none. One further in may not yet have what its entry has already sent."""
    content: int = MAX_TIME
    """The smallest timestamp recorded on channels into them; `MAX_TIME` where there is none."""
    released: int | None = None
    """Up to which time the scope's leaves here had let event time go at their cuts, the smallest. None where all of them are
    idle, or none is here: those of the outermost scope are not in the nest."""
    idle: bool = False
    """Whether one of its leaves here is idle."""


class WaveFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the tasks of a nest in one worker have found in one wave."""

    recorded: int = 0
    """Records that were between two cuts."""
    moving: bool = False
    """Whether event time was on its way between two cuts: a watermark, idleness, or the end of a channel."""
    obliged: bool = False
    """Whether something will make records by itself: a timer that is awaited, a round that is still to come."""
    ended: bool = False
    """Whether all regular inputs of the entries here had ended."""
    watermark: int = MAX_TIME
    """The smallest of those that follow `Advance` here: entries, and heads whose regular inputs have all ended."""
    reached: int = MAX_TIME
    """Up to which time every operator here had fired its timers; `MAX_TIME` where all are idle."""
    rested_min: int = 0
    """The newest number of rest that every unfinished task of the nest here has done; `MAX_TIME` where none is left."""
    rested_max: int = 0
    """The newest that some unfinished task here has done."""
    fed: bool = False
    """Whether a head here has read feedback since its newest rest."""
    scopes: list[ScopeFacts] = []
    live: int | None = None
    """As in `EventTimeMoved`, when the wave was complete here."""


class WaveReport(Message, frozen=True):
    """Every task of the nest in this worker has completed the wave."""

    nest: int
    wave: int
    facts: WaveFacts


class RoundReport(Message, frozen=True):
    """The end of a round has come to all unfinished tasks of the nest here."""

    nest: int
    round: int
    """`NO_ROUNDS` where all tasks of the nest here have finished: nobody waits for this worker any more."""
    waiting: int = 0
    """Records of feedback for the next round. The report is said again when this was 0 and is not any more."""
    verdict: bool | None = None
    """What `until` says of the round, from the worker with the judge."""


# From the coordinator.


class StartWave(Message, frozen=True):
    """The entries here begin wave `wave`, unless its marker was faster. Waves are numbered from 1 in each attempt."""

    nest: int
    wave: int
    time: int | None = None
    """How far event time has come at the entries whose input goes on: those whose input has ended go with them, before their
    cut. `MAX_TIME`: they are idle. None: there are none."""


class Release(Message, frozen=True):
    """Nothing from up to a time is left inside a scope: its leaves may let the watermark go on, up to this time, once they
    have the marker of the wave on all inputs. `MAX_TIME`: the scope is empty and its entries are idle."""

    nest: int
    wave: int
    times: list[tuple[str, int]]


class Advance(Message, frozen=True):
    """All is at rest, and event time is where it will stay. The watermark of the entries becomes `LAST_TIME`, and what
    timers there are fire."""

    nest: int


class CallFinish(Message, frozen=True):
    """All is at rest for the `number`-th time: entries call their functions' `finish` and send the marker `Rest`."""

    nest: int
    number: int


class EndLoop(Message, frozen=True):
    """Nothing is left in the nest, and nothing will be: its heads end."""

    nest: int


class StartRound(Message, frozen=True):
    """Round `round` begins: heads emit what waits for it, then its end."""

    nest: int
    round: int


class StopRounds(Message, frozen=True):
    """There will be no other round: what waits for one is dropped, and so is what still comes back."""

    nest: int


# One task's half.


class Wave(Generic[Channel]):
    """One task's half of the waves of its nest. `channels`: its live input channels in the nest, the feedback included.

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
        """The wave that the task has cut for last; 0: none yet."""
        self.recorded = 0
        """Records that were in this task's channels at its cut, as far as they were read."""
        self.earliest = MAX_TIME
        """The smallest of their timestamps."""
        self.moving = False
        """Whether event time was in this task's channels at its cut."""
        self._awaited: set[Channel] = set()
        """Live channels that have not delivered the marker of `current`."""

    @property
    def complete(self) -> bool:
        """Whether the current wave is complete here."""
        return self.current > 0 and not self._awaited

    def start(self, wave: int) -> bool:
        """The word of a wave came, by command or by marker. True when the task is to cut now: note its facts, flush, and
        send the marker on. False for a wave that is current or older."""
        if wave <= self.current:
            return False
        if self._awaited:
            raise ProtocolViolation(f"wave {wave} begins while wave {self.current} is under way")
        self.current = wave
        self.recorded, self.earliest, self.moving = 0, MAX_TIME, False
        self._awaited = set(self.live)
        return True

    def marker(self, channel: Channel, wave: int) -> None:
        """A channel delivered the marker of a wave, for which `start` was called before."""
        if wave != self.current or channel not in self._awaited:
            raise ProtocolViolation(f"marker of wave {wave} on {channel}, which is not awaited in wave {self.current}")
        self._awaited.discard(channel)

    def read(self, channel: Channel, count: int, earliest: int) -> None:
        """The task reads `count` records from a channel, the earliest of this time. Records without one hold no time back:
        `MAX_TIME` or `NO_TIME` where none has a timestamp."""
        if channel in self._awaited:
            self.recorded += count
            if earliest != NO_TIME:
                self.earliest = min(self.earliest, earliest)

    def time(self, channel: Channel) -> None:
        """The task reads a watermark, or that a channel is idle."""
        self.moving = self.moving or channel in self._awaited

    def ended(self, channel: Channel) -> None:
        """A channel ended: it has delivered all it ever will, and the watermark waits for it no more."""
        self.time(channel)
        self.live.discard(channel)
        self._awaited.discard(channel)

    def check(self) -> str | None:
        """What is wrong with the invariants, or None."""
        if not self._awaited <= self.live:
            return "V3: a channel that ended is awaited"
        if self._awaited and not self.current:
            return "V3: a channel is awaited without a wave"
        return None


class Gathering(Generic[Channel]):
    """Numbered markers (`Rest`, `RoundEnd`) that a task passes on once all its channels in the nest, the feedback not
    among them, have delivered them. A task without such channels (an entry) is told the numbers by a command.

    Two things are to be told apart. A number is *gathered* once in each attempt, and then always passed on: after a restore
    from between two tasks' doing it, the second one still waits for the marker. Its work (`finish`, `on_round_end`) is
    *done* once over all attempts; `done` is in the task's snapshot. So the owner of this object does, in this order:

        if gathering.marker(channel, number):        # or gathering.told(number)
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
        """Whether some channels have delivered a number that others have not."""
        return bool(self._seen)

    def marker(self, channel: Channel, number: int) -> bool:
        """A channel delivered a number. True when all have delivered it now, and it is to be passed on."""
        newest = self._newest[channel]
        if newest is None or number > newest:
            self._newest[channel] = number
            self._seen.add(number)
        return bool(self._gather())

    def ended(self, channel: Channel) -> list[int]:
        """A channel ended: the numbers that all the others have delivered, and that are to be passed on now."""
        self._newest.pop(channel, None)
        return self._gather()

    def told(self, number: int) -> bool:
        """A task without live channels is told a number by the coordinator. True when it is to be passed on."""
        if self._newest or (self.gathered is not None and number <= self.gathered):
            return False
        self.gathered = number
        return True

    def due(self, number: int) -> bool:
        """Whether the work of a number that was gathered is to be done. It counts as done from now on."""
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
