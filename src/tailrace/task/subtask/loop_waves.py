"""The waves of one task's loop nest: the task's cut for each, and the state that it reports of that moment. See
`docs/protocols/termination.md`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.elements.batches import Batch
from tailrace.elements.frame_codec import ChannelId
from tailrace.elements.markers import WaveMark
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME, NO_TIME
from tailrace.errors import InternalError
from tailrace.protocol.termination import Gathering, Release, Scope, Wave
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.outbox import Outbox
from tailrace.task.contract.cut_state import CutState
from tailrace.task.subtask.chain import Chain
from tailrace.task.subtask.loop_place import FEEDBACK_CHANNEL, Inner, LoopPlace


@dataclass
class WaveCut:
    """The state of a task at its cut for a wave. Times are event time (int64 microseconds)."""

    obliged: bool = False
    """True if the task will make records by itself."""
    ended: bool = False
    """True if its regular inputs have ended, or it has none."""
    fed: bool = False
    """True if it is a head that has read feedback since its newest rest."""
    rested: int = 0
    time: int = MAX_TIME
    """The time that has come to it, if the coordinator sends it its commands."""
    reached: int = MAX_TIME
    times: dict[Scope, int] = field(default_factory=dict)
    """The time, by scope, up to which everything was done that the scope waits for."""
    released: int = MAX_TIME
    """The time that a leave inside the nest had released."""


@dataclass(eq=False)
class WavesCutState(CutState):
    """State of a task's waves at a cut that no checkpoint holds."""

    wave: Wave[Inner]
    passing: Gathering[Inner]
    """Waves that have passed a leave that leads out of the nest. The next wave may begin before they have."""
    cut: WaveCut = field(default_factory=WaveCut)
    """The task's cut for the current wave."""


class LoopWaves(WavesCutState):
    """The part of a task in the waves of its nest.

    Invariant V5: a task cuts for no wave while something is unread that was in flight at the restored cut.
    """

    def __init__(self, place: LoopPlace, gate: Gate, chain: Chain, outbox: Outbox) -> None:
        fed_back = place.head is not None and not place.head.queue.ended  # what has no feedback has no tail either
        live: list[Inner] = [*place.channels, FEEDBACK_CHANNEL] if fed_back else [*place.channels]
        super().__init__(Wave(live), Gathering(place.channels))
        self._place, self._gate, self._chain, self._outbox = place, gate, chain, outbox

    @property
    def commanded(self) -> bool:
        """True if no task inside the nest would bring a marker here: the coordinator sends the task its commands itself."""
        return self._place.entry or not self.rest_live

    @property
    def rest_live(self) -> bool:
        """True if any channel from inside the nest lives, the feedback aside."""
        return bool(self.wave.live - {FEEDBACK_CHANNEL})

    def start(self, wave: int, rested: int, in_a_round: bool) -> None:
        """Makes the cut of a wave: the wave will report the state of this moment. `rested`: the newest rest that was done.
        `in_a_round`: whether the end of a round is still to come here."""
        if not self.wave.start(wave):
            return
        if self._gate.front:
            raise InternalError(f"V5: wave {wave} begins where records are unread that a checkpoint brought back")
        place, chain = self._place, self._chain
        head, end = place.head, place.head or place.tail
        # Feedback for the next round is in no channel: head and tail both count it, as it may come between their cuts.
        waiting = end is not None and end.queue.waiting > 0
        obliged = waiting or in_a_round or any(op.awaits_timers() for op in chain.operators)
        # A task whose inputs have ended is about to end by itself.
        obliged = obliged or (place.inside and head is None and self._gate.ended)
        # Where no tail feeds the head, the restored log may hold records.
        if head is not None and FEEDBACK_CHANNEL not in self.wave.live:
            obliged = obliged or head.queue.ready
        obliged = obliged or (head is not None and head.held is not None and not head.held.at_rest)
        self.cut = WaveCut(
            obliged,
            ended=not place.entry or self._gate.ended,
            fed=head is not None and head.fed,
            rested=rested,
            time=chain.arrived[0] if self.commanded else MAX_TIME,
            reached=self.time_of(range(len(chain.operators))),
            times={scope: MIN_TIME if waiting else self.time_of(those) for scope, those in place.leading.items()},
            released=MAX_TIME if place.leave is None or place.leave.idle else place.leave.released,
        )
        if place.inside:
            self._outbox.mark(WaveMark(wave))
        # The queue has ended where the loop had, before a restart.
        if place.tail is not None and not place.tail.queue.ended:
            place.tail.queue.marker(WaveMark(wave))
        self.pass_event_time()

    def marker(self, channel: Inner, wave: int) -> bool:
        """Takes the marker of a wave for which the task has cut. True if event time has moved and is to be passed on."""
        self.wave.marker(channel, wave)
        return self.pass_event_time()

    def pass_outside(self, channel: Inner, wave: int) -> bool:
        """Takes the marker of a wave where the task only leads out of the nest. True if event time has moved and is to be
        passed on."""
        return self.passing.marker(channel, wave) and self.pass_event_time()

    @property
    def counts(self) -> bool:
        """True while the current wave counts the records that are read."""
        return self.wave.current > 0 and not self.wave.complete

    def read(self, channel: Inner, batch: Batch) -> None:
        """Notes that the task reads records from a channel of the nest."""
        if self.counts:
            self.wave.read(channel, len(batch), earliest(batch))

    def time_read(self, channel: ChannelId) -> None:
        """Notes that the task reads a watermark, or that a channel is idle."""
        if channel in self._place.channels:
            self.wave.time(channel)

    def end(self, channel: ChannelId) -> None:
        """Takes the end of a channel of the nest."""
        self.wave.end(channel)
        if not self._place.inside:
            self.passing.end(channel)

    def release(self, message: Release) -> bool:
        """Takes event time that the task may let out of a loop, behind a wave. True if it is to be passed on now."""
        leave = self._place.leave
        assert leave is not None
        for scope, time in message.times:
            if scope == leave.scope:
                leave.allow(message.wave, time)
        return self.pass_event_time()

    def pass_event_time(self) -> bool:
        """Lets event time out of a loop where the newest wave has come on all inputs. True if it is to be passed on."""
        leave = self._place.leave
        if leave is None:
            return False
        if not self._place.inside:
            return leave.pass_wave(self.passing.gathered or 0)
        return self.wave.complete and leave.pass_wave(self.wave.current)

    # Event time.

    def time_of(self, operators: Iterable[int]) -> int:
        """The event time up to which everything was done in these operators: no older timer is left. `MAX_TIME` if they
        are idle."""
        if self._gate.all_idle and not self._place.by_spans:
            return MAX_TIME
        silent = self._chain.silent()
        return min((min(LAST_TIME, self._chain.reached[i]) for i in operators if i not in silent), default=MAX_TIME)

    @property
    def brought(self) -> int:
        """The event time that the task brings into the nest."""
        return self.time_of(self._place.leading[self._place.outermost])

    @property
    def entered(self) -> int:
        """The event time at the beginning of this chain, even if an operator behind it assigns another one. `MAX_TIME` if
        it is idle."""
        return self.time_of(self._place.beginning)


def earliest(batch: Batch) -> int:
    """The smallest timestamp of a batch; `MAX_TIME` if there is none."""
    times = batch.times
    if times is None:
        return MAX_TIME
    known = times[times != NO_TIME]
    return int(known.min()) if len(known) else MAX_TIME
