"""The part of one task in its loop nest: commands of the coordinator, markers, the end. See
`docs/protocols/termination.md`.

Commands are stored, and carried out one by one as steps of the task; markers act as they are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.elements.frame_codec import ChannelId
from tailrace.elements.markers import Rest, RoundEnd, WaveMark
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME
from tailrace.protocol.message_codec import NestCommand
from tailrace.protocol.termination import (
    Advance,
    CallFinish,
    EndLoop,
    Release,
    StartWave,
    StopRounds,
)
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.outbox import Outbox
from tailrace.task.contract.cut_state import CutState
from tailrace.task.operators.loops import MARKERS_PORT
from tailrace.task.subtask.chain import Chain
from tailrace.task.subtask.loop_place import Inner, LoopPlace
from tailrace.task.subtask.loop_rests import LoopRests
from tailrace.task.subtask.loop_rounds import LoopRounds
from tailrace.task.subtask.loop_waves import LoopWaves

MARKERS = (WaveMark, Rest, RoundEnd)
"""Markers that concern a nest only."""


@dataclass(eq=False)
class LoopCutState(CutState):
    """Commands that a task has stored, at a cut that no checkpoint holds."""

    commands: deque[tuple[NestCommand, int]] = field(default_factory=deque)
    """Commands to carry out, each with the newest cut that was requested before it."""
    _kept: dict[type[NestCommand], tuple[NestCommand, int]] = field(default_factory=dict)
    """The newest command of each kind that markers will bring, unless the channels end without them."""


class TaskLoop(LoopCutState):
    """The part of a task in the nest that it is in, or that it leads out of. A task without one has a part in which
    nothing ever happens (`LoopPlace.nest` is None).

    Invariant E2: a head reads nothing more after the command that ends its loop.
    """

    def __init__(self, place: LoopPlace, gate: Gate, chain: Chain, outbox: Outbox) -> None:
        super().__init__()
        self.place = place
        self.head, self.leave, self.channels = place.head, place.leave, place.channels
        self._gate, self._chain, self._outbox = gate, chain, outbox
        chain.prompt = place.inside
        self.waves = LoopWaves(place, gate, chain, outbox)
        self.rests = LoopRests(place, chain, outbox)
        self.rounds = LoopRounds(place, gate, chain, outbox)

    # Commands of the coordinator.

    def command(self, message: NestCommand, requested: int = 0) -> bool:
        """Stores a command. `requested`: the newest cut that the task knows of and has not made. True if the command
        concerns this task."""
        entry = message, 0 if isinstance(message, StartWave) else requested
        if isinstance(message, StartWave | CallFinish | Advance):
            required = self.place.inside and self.waves.commanded
            if self.place.inside and not required:
                self._kept.pop(type(message), None)  # the newer one comes after the commands kept so far
                self._kept[type(message)] = entry
        elif isinstance(message, Release):
            required = self.leave is not None
        else:
            required = self.head is not None
        if required:
            self.commands.append(entry)
        return required

    def has_work(self, requested: Iterable[int]) -> bool:
        """True if a command is to be carried out now. `requested`: the cuts that are still to be made.

        A command to a loop may follow from what other workers reported behind their cuts, and no barrier lies between,
        since the coordinator is no channel. So a command that came after the request of a cut is carried out after that
        cut, or once the cut is given up. Else a checkpoint would hold an effect without its cause. A wave changes
        nothing, and waits for no cut.

        Records in flight at the restored cut are read before any command: they are in none of the channels that waves go
        through."""
        if not self.commands or self._gate.front:
            return False
        return not any(cut <= self.commands[0][1] for cut in requested)

    def work(self) -> bool:
        """Carries out one command. True if event time has moved and is to be passed on."""
        message, _ = self.commands.popleft()
        if isinstance(message, StartWave):
            if self._go_with(message.time):  # before the cut, so that the wave sees what the time sets off
                self.commands.appendleft((StartWave(message.nest, message.wave), 0))
                return True
            self._start(message.wave)
            return False
        if isinstance(message, Release):
            return self.waves.release(message)
        if isinstance(message, Advance):
            return self._time_comes(LAST_TIME)
        if isinstance(message, CallFinish):
            if self.rests.numbers.command(message.number):
                self.rests.begin(message.number)
            return True
        assert self.head is not None
        if isinstance(message, EndLoop):
            self.head.end_loop()
        elif isinstance(message, StopRounds):
            self.head.stop_rounds()
        elif message.round > self.head.round:
            return self.head.start_round(message.round, message.span)
        return False

    def _start(self, wave: int) -> None:
        self.waves.start(wave, self.rests.numbers.done, self.rounds.under_way)

    def _go_with(self, time: int | None) -> bool:
        """Follows the event time (or idleness) of other entries, if the input here has ended and theirs has not. So
        timers of records that come back fire, and no task behind waits for an input that is over."""
        if time is None or not self._gate.ended or self._chain.ended:
            return False
        if time == MAX_TIME:
            self._gate.idle_at_end = True
            self._chain.idle(self._outbox)
            return False
        return self._time_comes(time)

    def _time_comes(self, time: int) -> bool:
        if self._gate.idle_at_end:
            self._gate.idle_at_end = False
            self._chain.awake(self._outbox)
        self._gate.watermark = max(self._gate.watermark, time)
        self._chain.watermark(time)
        return True

    # Channels of the nest.

    def marker(self, channel: Inner, marker: WaveMark | Rest | RoundEnd) -> bool:
        """Handles a marker of the nest from a channel. True if event time has moved and is to be passed on."""
        if not self.place.inside:
            return isinstance(marker, WaveMark) and self.waves.pass_outside(channel, marker.wave)
        if isinstance(marker, WaveMark):
            self._start(marker.wave)
            return self.waves.marker(channel, marker.wave)
        if isinstance(marker, Rest):
            if self.rests.numbers.marker(channel, marker.number):
                self.rests.begin(marker.number)
        else:
            # Functions may emit at the end of a round: it counts as a record.
            self.waves.wave.read(channel, 1, MAX_TIME)
            self.rounds.marker(channel, marker)
        return False

    def channel_ended(self, channel: ChannelId) -> bool:
        """Handles the end of a channel. True if event time has moved and is to be passed on."""
        place = self.place
        if place.tail is not None and self._gate.channels[channel].port == MARKERS_PORT:
            place.tail.queue.end()  # its own head has ended, so the whole nest was at rest: nothing will come back
        if channel not in place.channels:
            return False
        self.waves.end(channel)
        for number in self.rests.numbers.end(channel) if place.inside else ():
            self.rests.begin(number)
        for number in self.rounds.numbers.end(channel) if place.inside else ():
            self.rounds.end(number)
        if not self.waves.rest_live:
            # No inner channel is left to bring markers: run the kept commands; repeats are harmless.
            self.commands.extend(self._kept.values())
            self._kept.clear()
        return self.waves.pass_event_time()

    # For the worker.

    @property
    def quiet(self) -> bool:
        """True if the task will do nothing before another task does, and never if none does."""
        if (
            self.commands
            or self.rests.due
            or self.rounds.due
            or self.rounds.ending is not None
            or not self._gate.empty
            or not self._outbox.empty
            or (self.place.entry and not self._gate.ended)
        ):
            return False
        if self.head is not None and not self.head.empty:
            return False
        return not any(operator.awaits_timers() for operator in self._chain.operators)
