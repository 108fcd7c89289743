"""The part of one task in its loop nest: waves, coming to rest, the end. See `docs/protocols/termination.md`.

Commands of the coordinator are stored, and carried out one by one as steps of the task; markers act as they are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tailrace.elements.batches import Batch
from tailrace.elements.frames import ChannelId
from tailrace.elements.markers import Rest, RoundEnd, WaveMark
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME, NO_TIME
from tailrace.errors import InternalError
from tailrace.graph.plan import Nest, Plan
from tailrace.protocol.termination import (
    Advance,
    CallFinish,
    EndLoop,
    Gathering,
    Release,
    StartRound,
    StartWave,
    StopRounds,
    Wave,
)
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.outbox import Outbox
from tailrace.task.contract.cut_state import CutState
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.loops import MARKERS_PORT, HeadTask, LeaveTask, TailTask
from tailrace.task.operators.timestamps import TimestampsTask
from tailrace.task.subtask.chain import Chain

Command = Advance | CallFinish | EndLoop | Release | StartRound | StartWave | StopRounds
FEEDBACK_CHANNEL: Final = "feedback"
"""The name that a head uses, among its channels, for the one from its tail."""
Inner = ChannelId | Literal["feedback"]
"""A channel of a nest."""
MARKERS = (WaveMark, Rest, RoundEnd)
"""Markers that concern a nest only."""


@dataclass(eq=False)
class LoopCutState(CutState):
    """State of a task's part in a nest at a cut that no checkpoint holds, beside the operators that are still to rest or
    to end a round."""

    wave: Wave[Inner] = field(init=False)
    passing: Gathering[Inner] = field(init=False)
    """Waves that have passed a leave that leads out of the nest. The next wave may begin before they have."""
    rest: Gathering[Inner] = field(init=False)
    rounds: Gathering[Inner] = field(init=False)
    commands: deque[tuple[Command, int]] = field(default_factory=deque)
    """Commands to carry out, each with the newest cut that was requested before it."""
    _kept: dict[type[Command], tuple[Command, int]] = field(default_factory=dict)
    """The newest command of each kind that markers will bring, unless the channels end without them."""
    ending: int | None = None
    """The round whose end is in progress. Nothing else is done meanwhile, and no cut falls there."""
    _resting: int | None = None
    """The number of rest that has come here and was not passed on yet."""
    # State at the cut of the current wave:
    obliged: bool = False
    ended: bool = False
    fed: bool = False
    rested: int = 0
    time: int = MAX_TIME
    reached: int = MAX_TIME
    times: dict[str, int] = field(default_factory=dict)
    """The event time, by scope, up to which everything was done that the scope waits for."""
    released: int = MAX_TIME
    """The event time that a leave inside the nest had released."""


class TaskLoop(LoopCutState):
    """The part of a task in the nest that it is in, or that it leads out of.

    Invariant E2: a head reads nothing more after the command that ends its loop.
    Invariant V5: a task cuts for no wave while something is unread that was in flight at the restored cut.
    """

    def __init__(
        self,
        plan: Plan,
        nest: Nest,
        vertex: int,
        channels: Iterable[ChannelId],
        gate: Gate,
        chain: Chain,
        outbox: Outbox,
    ) -> None:
        super().__init__()
        self.nest = nest.id
        self.inside = vertex in nest.vertices
        """True if the task is in the nest. A task that only leads out of it has no part in its end."""
        self.entry = vertex in nest.entries
        self.in_rounds = nest.rounds is not None
        chain.prompt = self.inside
        self.gate, self.chain, self.outbox = gate, chain, outbox
        root = chain.root
        self.head = root if isinstance(root, HeadTask) else None
        self.tail = root if isinstance(root, TailTask) else None
        self.leave = root if isinstance(root, LeaveTask) else None
        self.leading = _leading(plan, chain)
        """Scopes that wait for the event time of operators here, with the indices of these operators in the chain."""
        uids = {ctx.uid for ctx in root.contexts()}
        self.into = [] if isinstance(root, TimestampsTask) else _scopes(plan, uids)
        """Scopes that records on the task's channels may leave with their event time."""
        self.leaves = [self.leave.scope] if self.leave is not None and self.inside else []
        """The scope inside the nest that the task is a leave of, if any."""
        self.outermost = str(nest.scope)
        self.brings_time = (self.entry or bool(chain.generators)) and self.outermost in self.leading
        """True if event time that leaves the nest enters it here."""
        self.beginning = [
            i
            for i, op in enumerate(chain.operators)
            if self.inside and op.ctx.uid in plan.time_begins and (self.entry or isinstance(op, TimestampsTask))
        ]
        """The operators at which the nest's event time begins, whether it leaves the nest or not, as indices of the
        chain."""
        self.channels = set(channels)
        fed_back = self.head is not None and not self.head.queue.ended  # what has no feedback has no tail either
        self.wave = Wave([*self.channels, FEEDBACK_CHANNEL] if fed_back else self.channels)
        self.passing = Gathering(self.channels)
        self.rest = Gathering(self.channels)
        self.rounds = Gathering(self.channels, -1)
        self._to_end: list[OperatorTask] = []
        if self.in_rounds and self.inside:
            for operator in chain.operators:
                operator.enter_rounds()
        self._to_rest: deque[OperatorTask] = deque()

    def cut_state(self) -> dict[str, Any]:
        index = self.chain.operators.index
        return super().cut_state() | {"to_end": [*map(index, self._to_end)], "to_rest": [*map(index, self._to_rest)]}

    def set_cut_state(self, state: dict[str, Any]) -> None:
        super().set_cut_state(state)
        self._to_end = [self.chain.operators[at] for at in state["to_end"]]
        self._to_rest = deque(self.chain.operators[at] for at in state["to_rest"])

    # Commands of the coordinator.

    def command(self, message: Command, asked: int = 0) -> bool:
        """Stores a command. `asked`: the newest cut that the task knows of and has not made. True if the command concerns
        this task."""
        said = message, 0 if isinstance(message, StartWave) else asked
        if isinstance(message, StartWave | CallFinish | Advance):
            wanted = self.inside and self.commanded
            if self.inside and not wanted:
                self._kept.pop(type(message), None)  # the newer one comes after the commands kept so far
                self._kept[type(message)] = said
        elif isinstance(message, Release):
            wanted = self.leave is not None
        else:
            wanted = self.head is not None
        if wanted:
            self.commands.append(said)
        return wanted

    def has_work(self, asked: Iterable[int]) -> bool:
        """True if a command is to be carried out now. `asked`: the cuts that are still to be made.

        A command to a loop may follow from what other workers reported behind their cuts, and no barrier lies between,
        since the coordinator is no channel. So a command that came after the request of a cut is carried out after that
        cut, or once the cut is given up. Else a checkpoint would hold an effect without its cause. A wave changes
        nothing, and waits for no cut.

        Records in flight at the restored cut are read before any command: they are in none of the channels that waves go
        through."""
        if not self.commands or self.gate.front:
            return False
        return not any(cut <= self.commands[0][1] for cut in asked)

    @property
    def commanded(self) -> bool:
        """True if no task inside the nest would bring a marker here: the coordinator sends the task its commands itself."""
        return self.entry or not self.rest_live

    @property
    def rest_live(self) -> bool:
        """True if any channel from inside the nest lives, the feedback aside."""
        return bool(self.wave.live - {FEEDBACK_CHANNEL})

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
            return self._release(message)
        if isinstance(message, Advance):
            return self._time_comes(LAST_TIME)
        if isinstance(message, CallFinish):
            if self.rest.told(message.number):
                self._at_rest(message.number)
            return True
        assert self.head is not None
        if isinstance(message, EndLoop):
            self.head.end_loop()
        elif isinstance(message, StopRounds):
            self.head.stop_rounds()
        elif message.round > self.head.round:
            self.head.start_round(message.round)
        return False

    # Waves.

    def _start(self, wave: int) -> None:
        """Makes the cut of a wave: the wave will report the state of this moment."""
        if not self.wave.start(wave):
            return
        if self.gate.front:
            raise InternalError(f"V5: wave {wave} begins where records are unread that a checkpoint brought back")
        head, end = self.head, self.head or self.tail
        # Feedback for the next round is in no channel: head and tail both count it, as it may come between their cuts.
        waiting = end is not None and end.queue.waiting > 0
        self.obliged = waiting or self._in_a_round or any(op.awaited() for op in self.chain.operators)
        # A task whose inputs have ended is about to end by itself.
        self.obliged = self.obliged or (self.inside and head is None and self.gate.ended)
        # Where no tail feeds the head, the restored log may hold records.
        if head is not None and FEEDBACK_CHANNEL not in self.wave.live:
            self.obliged = self.obliged or head.queue.ready
        self.ended = not self.entry or self.gate.ended
        self.fed = head is not None and head.fed
        self.rested = self.rest.done
        self.time = self.chain.arrived[0] if self.commanded else MAX_TIME
        self.reached = self.time_of(range(len(self.chain.operators)))
        self.times = {scope: MIN_TIME if waiting else self.time_of(those) for scope, those in self.leading.items()}
        if self.leave is not None:
            self.released = MAX_TIME if self.leave.idle else self.leave.released
        if self.inside:
            self.outbox.mark(WaveMark(wave))
        # The queue has ended where the loop had, before a restart.
        if self.tail is not None and not self.tail.queue.ended:
            self.tail.queue.marker(WaveMark(wave))
        self._wave_passed()

    def time_of(self, operators: Iterable[int]) -> int:
        """The event time up to which everything was done in these operators: no older timer is left. `MAX_TIME` if they
        are idle."""
        if self.gate.all_idle:
            return MAX_TIME
        silent = self.chain.silent()
        return min((min(LAST_TIME, self.chain.reached[i]) for i in operators if i not in silent), default=MAX_TIME)

    @property
    def brought(self) -> int:
        """The event time that the task brings into the nest."""
        return self.time_of(self.leading[self.outermost])

    @property
    def entered(self) -> int:
        """The event time at the beginning of this chain, even if an operator behind it assigns another one. `MAX_TIME` if
        it is idle."""
        return self.time_of(self.beginning)

    def _go_with(self, time: int | None) -> bool:
        """Follows the event time (or idleness) of other entries, if the input here has ended and theirs has not. So
        timers of records that come back fire, and no task behind waits for an input that is over."""
        if time is None or not self.gate.ended or self.chain.ended:
            return False
        if time == MAX_TIME:
            self.gate.idle_at_end = True
            self.chain.idle(self.outbox)
            return False
        return self._time_comes(time)

    def _time_comes(self, time: int) -> bool:
        if self.gate.idle_at_end:
            self.gate.idle_at_end = False
            self.chain.awake(self.outbox)
        self.gate.watermark = max(self.gate.watermark, time)
        self.chain.watermark(time)
        return True

    def time_read(self, channel: ChannelId) -> None:
        """Notes that the task reads a watermark, or that a channel is idle."""
        if channel in self.channels:
            self.wave.time(channel)

    def marker(self, channel: Inner, marker: WaveMark | Rest | RoundEnd) -> bool:
        """Handles a marker of the nest from a channel. True if event time has moved and is to be passed on."""
        if not self.inside:
            return isinstance(marker, WaveMark) and self.passing.marker(channel, marker.wave) and self._wave_passed()
        if isinstance(marker, WaveMark):
            self._start(marker.wave)
            self.wave.marker(channel, marker.wave)
            return self._wave_passed()
        if isinstance(marker, Rest):
            if self.rest.marker(channel, marker.number):
                self._at_rest(marker.number)
        else:
            self.wave.read(channel, 1, MAX_TIME)  # functions may emit at the end of a round: it counts as a record
            if self.rounds.marker(channel, marker.round):
                self.end_round(marker.round)
        return False

    def channel_ended(self, channel: ChannelId) -> bool:
        """Handles the end of a channel. True if event time has moved and is to be passed on."""
        if self.tail is not None and self.gate.channels[channel].port == MARKERS_PORT:
            self.tail.queue.end()  # its own head has ended, so the whole nest was at rest: nothing will come back
        if channel not in self.channels:
            return False
        self.wave.ended(channel)
        if not self.inside:
            self.passing.ended(channel)
        for number in self.rest.ended(channel) if self.inside else ():
            self._at_rest(number)
        for number in self.rounds.ended(channel) if self.inside else ():
            self.end_round(number)
        if not self.rest_live:  # no inner channel is left to bring markers: run the kept commands; repeats are harmless
            self.commands.extend(self._kept.values())
            self._kept.clear()
        return self._wave_passed()

    def read(self, channel: Inner, batch: Batch) -> None:
        """Notes that the task reads records from a channel of the nest."""
        if self.wave.complete or not self.wave.current:
            return
        self.wave.read(channel, len(batch), earliest(batch))

    def _wave_passed(self) -> bool:
        if self.leave is None:
            return False
        if not self.inside:
            return self.leave.passed(self.passing.gathered or 0)
        return self.wave.complete and self.leave.passed(self.wave.current)

    def _release(self, message: Release) -> bool:
        assert self.leave is not None
        for scope, time in message.times:
            if scope == self.leave.scope:
                self.leave.allow(message.wave, time)
        return self._wave_passed()

    # Rest.

    def _at_rest(self, number: int) -> None:
        """Begins a rest of the loop: functions may emit, and the marker of rest goes behind that."""
        self._resting = number
        self._to_rest = deque(op for op in self.chain.operators if number > op.rests and not op.finished)
        if number > self.rest.done and self.head is not None:
            self.head.fed = False
        if self.rest_due:
            self.go_on_resting()

    @property
    def rest_due(self) -> bool:
        """True if a number of rest is to be worked off. Timers of the clock, which the operators before may have set at
        their rest, are awaited first, as at the end of any input."""
        return self._resting is not None and not (self._to_rest and self._to_rest[0].awaited())

    def go_on_resting(self) -> None:
        """Lets operators emit at rest, in order; behind that, passes the number on."""
        while self._to_rest and not self._to_rest[0].awaited():
            operator = self._to_rest.popleft()
            operator.rests = self._resting or 0
            operator.at_rest()
        if not self._to_rest and self._resting is not None:
            number, self._resting = self._resting, None
            self.rest.due(number)
            self.outbox.mark(Rest(number))

    # Rounds.

    def end_round(self, number: int) -> None:
        """Begins to end a round of which every record was worked off here. `go_on_ending` does the rest."""
        self.ending = number
        if self.tail is not None:
            self.tail.queue.round_ended(number)
        self._to_end = list(self.chain.operators) if self.rounds.due(number) else []

    def go_on_ending(self, limit: int) -> None:
        """Does one portion of ending a round: operators in order, and then the marker behind what they emit."""
        assert self.ending is not None
        if self._to_end:
            if self._to_end[0].end_round(self.ending, limit):
                self._to_end.pop(0)
            return
        number, self.ending = self.ending, None
        for operator in self.chain.operators:
            operator.at_round(self.rounds.done + 1)
        self.outbox.mark(RoundEnd(number))
        if self.head is not None:
            self.head.said_round = number

    @property
    def round_due(self) -> bool:
        """True if the head has emitted all of a round, and its end is to be marked; after a restore once more. A loop
        part that no head feeds has round 0 only, which ends with what has entered the loop."""
        head = self.head
        if not self.in_rounds or not self.inside or self.ending is not None:
            return False
        if head is None:
            return self.gate.ended and self.rounds.done < 0
        if head.said:
            return False
        return head.round_over or (self.gate.ended and not head.queue.ready)

    @property
    def _in_a_round(self) -> bool:
        """True if the end of a round is still to be marked here, or has come on some channels and not on others."""
        unsaid = self.head is not None and self.in_rounds and not self.head.said
        return unsaid or self.rounds.begun

    def say_round_end(self) -> None:
        """Begins the end of a round: the head has emitted all of it, or all that has entered the loop was worked off."""
        if self.head is not None:
            self.head.round_over = True
        self.end_round(0 if self.head is None else self.head.round)

    @property
    def round(self) -> int:
        """The newest round that has ended here, in this attempt; -1 before."""
        if self.head is not None:
            return self.head.said_round
        gathered = -1 if self.rounds.gathered is None else self.rounds.gathered
        return gathered if self.ending is None else self.ending - 1

    # For the worker.

    @property
    def quiet(self) -> bool:
        """True if the task will do nothing before another task does, and never if none does."""
        if (
            self.commands
            or self.rest_due
            or self.round_due
            or self.ending is not None
            or not self.gate.empty
            or not self.outbox.empty
            or (self.entry and not self.gate.ended)
        ):
            return False
        if self.head is not None and (self.head.queue.ready or self.head.queue.waiting):
            return False
        return not any(operator.awaited() for operator in self.chain.operators)


def _scopes(plan: Plan, uids: Iterable[str]) -> list[str]:
    return sorted({str(scope) for uid in uids for scope in plan.leads_out.get(uid, ())})


def _leading(plan: Plan, chain: Chain) -> dict[str, list[int]]:
    leading: dict[str, list[int]] = {}
    for i, operator in enumerate(chain.operators):
        for scope in _scopes(plan, {ctx.uid for ctx in operator.contexts()}):
            leading.setdefault(scope, []).append(i)
    return leading


def earliest(batch: Batch) -> int:
    """The smallest timestamp of a batch; `MAX_TIME` if there is none."""
    times = batch.times
    if times is None:
        return MAX_TIME
    known = times[times != NO_TIME]
    return int(known.min()) if len(known) else MAX_TIME
