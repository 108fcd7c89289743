"""The termination of the loop nests of one job: when its coordinator runs a wave, and what follows from what it found.

Workers' counts (`Quiet`) show when a wave may be worth its cost; the facts of a wave decide (`protocol.termination`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from tailrace.coordinator.loops.quiet_counts import QuietCounts
from tailrace.elements.markers import SpanRound
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME
from tailrace.errors import ProtocolViolation
from tailrace.protocol.message_codec import NestCommand, NestReport
from tailrace.protocol.termination import (
    NO_ROUNDS,
    Advance,
    CallFinish,
    EndLoop,
    EventTimeMoved,
    Quiet,
    Release,
    RoundReport,
    Scope,
    ScopeFacts,
    StartRound,
    StartWave,
    StopRounds,
    WaveFacts,
    WaveReport,
    least_come,
)

PAUSE = 10_000
"""The pause between waves that only event time, or the last wave itself, has called for (int64 microseconds)."""
LONGEST_PAUSE = 1_000_000
"""The longest pause. Pauses grow to it, by doubling, while waves find the nest neither moving nor ended."""


@dataclass(frozen=True)
class WavePace:
    """The pace at which waves follow each other (int64 microseconds)."""

    pause: int = PAUSE
    longest: int = LONGEST_PAUSE
    eager: bool = False
    """True if waves begin whatever the counts of the workers are: for the searches, where waves alone must find the end."""


Sent = list[tuple[int, NestCommand]]
"""Messages to send: (slot, message)."""


class WaveResult(Enum):
    """The steps that may follow from a wave."""

    NOT_YET = "not yet"
    ADVANCE = "advance"
    FINISH = "finish"
    END = "end"


@dataclass(frozen=True)
class Decision:
    """The step that follows from a wave; `number` is the number of the rest, with FINISH."""

    step: WaveResult
    number: int = 0


def decide(facts: Sequence[WaveFacts]) -> Decision:
    """The step that follows from one wave, which every slot of the nest has reported."""
    if not all(one.ended for one in facts) or any(one.recorded or one.obliged for one in facts):
        return Decision(WaveResult.NOT_YET)
    if any(one.moving for one in facts) or _held_back(facts):
        return Decision(WaveResult.NOT_YET)  # timers that event time has yet to fire may feed records back
    if min(one.watermark for one in facts) < LAST_TIME:
        return Decision(WaveResult.ADVANCE)
    if min(one.reached for one in facts) < LAST_TIME:
        return Decision(WaveResult.NOT_YET)
    highest = max(1, *(one.rested_max for one in facts))
    if min(one.rested_min for one in facts) < highest:
        return Decision(WaveResult.FINISH, highest)
    if any(one.fed for one in facts):
        return Decision(WaveResult.FINISH, highest + 1)
    return Decision(WaveResult.END)


def left_behind(facts: Sequence[WaveFacts]) -> dict[Scope, int]:
    """The time up to which nothing is left in each scope, nor will come out of it. All operators that the scope waits for
    have passed that time, and records in their channels are later. A record in a channel may come out with its own time."""
    found: dict[Scope, int] = {}
    for scope in (scope for one in facts for scope in one.scopes):
        content = scope.content if scope.content == MAX_TIME else max(scope.content - 1, MIN_TIME)
        found[scope.scope] = min(found.get(scope.scope, MAX_TIME), scope.reached, content)
    return found


def _held_back(facts: Sequence[WaveFacts]) -> bool:
    """True if leaves of a loop inside hold back event time that they are to let go: then it will go on, and fire timers."""
    behind = left_behind(facts)
    return any(_holds(scope, behind[scope.scope]) for one in facts for scope in one.scopes)


def _holds(leaves: ScopeFacts, behind: int) -> bool:
    if behind == MAX_TIME:  # all leaves are to be idle
        return leaves.released is not None
    return leaves.idle or (leaves.released is not None and leaves.released < behind)


@dataclass(frozen=True)
class NestSpec:
    """The coordinator's knowledge of a nest: slots 0 to `slots` - 1 have a part in it."""

    slots: int
    rounds_max: int | None = None
    rounds: bool = False
    spans: int | None = None
    """The size of spans of event time by which rounds go; None where they do not."""


@dataclass
class _Rounds:
    """The rounds of a nest, in this attempt."""

    reports: dict[int, RoundReport] = field(default_factory=dict)
    """The newest report of each slot."""
    started: int = 0
    """The newest round that was started. Round 0 starts by itself."""
    stopped: bool = False
    newest: int = 0
    """The newest round that any slot has reported."""
    behind: set[int] = field(default_factory=set)
    """The slots whose newest report is of a round before the one that was started."""

    def report(self, slot: int, report: RoundReport) -> None:
        """Takes the report of a slot."""
        self.reports[slot] = report
        if report.round != NO_ROUNDS:
            self.newest = max(self.newest, report.round)
        if report.round >= self.started:
            self.behind.discard(slot)

    def start(self, number: int) -> None:
        """Starts a round."""
        self.started = number
        self.behind = {slot for slot, one in self.reports.items() if one.round < number}

    @property
    def going_on(self) -> bool:
        """True if some slots have yet to end the round that was started, and no slot is ahead of it. Nothing follows then,
        whatever the other slots report."""
        return bool(self.behind) and self.newest <= self.started


class _Nest:
    """A nest in one attempt."""

    def __init__(self, number: int, spec: NestSpec, pace: WavePace) -> None:
        self.number, self.spec, self.pace = number, spec, pace
        self.ended = False
        self.wave = 0
        self.reports: dict[int, WaveFacts] | None = None
        """The facts that slots have reported for the wave under way; None: there is none."""
        self.actions = 0
        """The number of `Release`, `Advance` and `CallFinish` that were sent."""
        self.counts = QuietCounts(spec.slots)
        self.news = False
        """True if a worker has come to rest, or has ended a round, since the last wave began."""
        self.entered: dict[int, EventTimeMoved] = {}
        """The newest report of each slot on event time where it comes into the nest."""
        self.moved = False
        """True if event time has moved since the last wave began."""
        self.followed: int | None = None
        """The event time that the last `StartWave` gave to entries whose input has ended. If live entries are beyond it
        when all slots have reported, timers are still due: nothing is decided."""
        self.lag = False
        """True if event time at the entries is beyond what was released of the nest: a wave may release more, though no
        worker reports anything new."""
        self.moved_at = 0
        """The time at which a wave may begin because event time has moved."""
        self.again_at = 0
        """The time at which a wave may begin that only the clock calls for."""
        self.pause = self.pace.pause
        self.released: dict[Scope, int] = {}
        """The largest time that was released, of each scope."""
        self.idle: set[Scope] = set()
        """Scopes that were idle in the last `Release` about them."""
        self.rounds = _Rounds()
        self.replaced: set[int] = set()
        """Slots whose worker was replaced: it may send again what the lost worker had sent."""

    # Events.

    def message(self, slot: int, message: NestReport, now: int) -> Sent:
        """Takes a worker's message about this nest. A message that the worker sent before it knew of the end changes
        nothing."""
        if isinstance(message, WaveReport):
            return self._report(slot, message, now)
        if self.ended:
            return []
        sent: Sent = []
        if isinstance(message, Quiet):
            if message.actions > self.actions:
                raise ProtocolViolation(
                    f"worker {slot} has followed {message.actions} commands, and was sent {self.actions}"
                )
            self.counts.report(slot, message)
            self.news, self.pause = True, self.pace.pause
        elif isinstance(message, EventTimeMoved):
            self.entered[slot] = message
            self.moved, self.pause = True, self.pace.pause
        elif isinstance(message, RoundReport):
            self.news, self.pause = True, self.pace.pause
            sent = self._round(slot, message)
        return sent + self.maybe_launch(now)

    def maybe_launch(self, now: int) -> Sent:
        """Begins a wave, if one is due."""
        due = self.due_at()
        if due is None or now < due:
            return []
        self.wave += 1
        self.reports = {}
        self.news = self.moved = self.lag = False
        self.moved_at = now + self.pace.pause
        self.followed = self._live()
        return self._all(StartWave(self.number, self.wave, self.followed))

    def due_at(self) -> int | None:
        """The time at which the next wave is due: 0 for now, None where something else must happen first."""
        if self.ended or self.reports is not None:
            return None
        balanced = self.balanced
        if balanced and self.news:
            return 0
        if self.moved:
            return self.moved_at
        return self.again_at if balanced or self.lag else None

    @property
    def balanced(self) -> bool:
        """True if, by the newest report of each worker, all are at rest, and no frame is between them."""
        return self.pace.eager or self.counts.fit

    # Waves.

    def _report(self, slot: int, report: WaveReport, now: int) -> Sent:
        reports = self.reports
        if slot in self.replaced and (reports is None or slot in reports or report.wave != self.wave):
            return []
        if reports is None or report.wave != self.wave or slot in reports:
            raise ProtocolViolation(
                f"worker {slot} reports wave {report.wave} of nest {self.number}, which awaits none of it"
            )
        reports[slot] = report.facts
        if len(reports) < self.spec.slots:
            return []
        self.reports = None
        return self._decide(list(reports.values()), now)

    def _decide(self, facts: list[WaveFacts], now: int) -> Sent:
        decision = decide(facts) if self._have_gone(facts) else Decision(WaveResult.NOT_YET)
        if decision.step is WaveResult.END:
            self.ended = True
            return self._all(EndLoop(self.number))
        if decision.step is WaveResult.NOT_YET:
            sent = self._release(facts)
            self.lag = self._lags(facts)
            if sent:  # at the end each wave releases one level of loops: the next wave starts now
                self.pause = self.pace.pause
            self.again_at = now + self.pause
            self.pause = min(2 * self.pause, self.pace.longest)
            return sent + self.maybe_launch(now)
        self._command()
        self.pause = self.pace.pause
        if decision.step is WaveResult.ADVANCE:
            return self._all(Advance(self.number))
        return self._all(CallFinish(self.number, decision.number))

    def _have_gone(self, facts: list[WaveFacts]) -> bool:
        """True if entries and heads whose input has ended had followed event time, as far as it has come, when they cut for
        a wave. They follow it before they cut, but a marker that comes around the loop may be faster than `StartWave`: what
        their timers make then is in no cut of the wave."""
        come = min((one.live for one in facts if one.live is not None), default=None)
        if come != self.followed:
            return False
        return come is None or come == MAX_TIME or min(one.watermark for one in facts) >= come

    def _release(self, facts: list[WaveFacts]) -> Sent:
        """Releases event time behind the leaves, where it may go on farther than before. At the end of event time only
        loops inside this nest get a release: leaves of the nest itself get that time from the end of their inputs. A loop
        that goes on from a checkpoint may be at the end of event time before its inputs have ended once more."""
        times: list[tuple[Scope, int]] = []
        for scope, time in sorted(left_behind(facts).items()):
            if time == LAST_TIME and len(scope) == 1:
                continue
            if time == MAX_TIME:
                if scope not in self.idle:
                    self.idle.add(scope)
                    times.append((scope, time))
            else:
                before = self.released.get(scope, MIN_TIME)
                if time > before or scope in self.idle:  # active again, perhaps at the time at which it went idle
                    self.released[scope] = max(time, before)
                    times.append((scope, self.released[scope]))
                self.idle.discard(scope)
        if not times:
            return []
        self._command()
        return self._all(Release(self.number, self.wave, times))

    def _command(self) -> None:
        """Counts a command that all slots are to follow before their counts are valid."""
        self.actions += 1
        self.counts.note_commands(self.actions)

    def _lags(self, facts: list[WaveFacts]) -> bool:
        """True if another wave may release more of the nest. As long as it may, waves go on, ever more rarely where they
        find nothing new: no message reports that a record was worked off, or that a watermark has come through."""
        scope = next((own.scope for one in facts for own in one.scopes if len(own.scope) == 1), None)
        if scope is None:
            return False  # nothing leaves it
        entry_time = self._entry_time()
        if entry_time == MAX_TIME:
            return scope not in self.idle
        if entry_time == LAST_TIME:
            return False  # the end comes with that of the input
        return scope in self.idle or self.released.get(scope, MIN_TIME) < entry_time

    def _entry_time(self) -> int:
        """The lowest event time of all places where it comes into the nest; `MIN_TIME` until every slot has reported."""
        if len(self.entered) < self.spec.slots:
            return MIN_TIME
        return min(one.watermark for one in self.entered.values())

    def _live(self) -> int | None:
        """The lowest event time of entries whose input goes on; None if there are none, or until every slot has
        reported."""
        if len(self.entered) < self.spec.slots:
            return None
        return min((one.live for one in self.entered.values() if one.live is not None), default=None)

    # Rounds.

    def _round(self, slot: int, report: RoundReport) -> Sent:
        rounds = self.rounds
        known = rounds.reports.get(slot)
        if not self.spec.rounds or (known is not None and report.round < known.round):
            why = "which has no rounds" if known is None or not self.spec.rounds else f"after round {known.round}"
            raise ProtocolViolation(f"worker {slot} reports round {report.round} of nest {self.number}, {why}")
        rounds.report(slot, report)
        if rounds.stopped or len(rounds.reports) < self.spec.slots or rounds.going_on:
            return []
        reports = {slot: one for slot, one in sorted(rounds.reports.items()) if one.round != NO_ROUNDS}
        if not reports:
            return []
        newest = max(one.round for one in reports.values())
        behind = [slot for slot, one in reports.items() if one.round < newest]
        if behind:
            if newest <= rounds.started:
                return []  # already started
            rounds.start(newest)  # started before the restored checkpoint; some slots do not know of it
            places = [one.spans.now for one in reports.values() if one.spans is not None and one.round == newest]
            return [(one, StartRound(self.number, newest, next(iter(places), None))) for one in behind]
        if newest < rounds.started:
            return []
        if self.spec.spans is not None:
            return self._round_of_spans(newest, reports)
        if not any(one.waiting for one in reports.values()):
            return []
        last = self.spec.rounds_max is not None and newest + 1 >= self.spec.rounds_max
        if last or any(one.verdict for one in reports.values()):
            rounds.stopped = True
            return self._all(StopRounds(self.number))
        rounds.start(newest + 1)
        return self._all(StartRound(self.number, newest + 1))

    def _round_of_spans(self, newest: int, reports: dict[int, RoundReport]) -> Sent:
        """The next round, in rounds by spans of event time: another one of the span under way, the one that closes it, or
        the first one of the next span that event time has passed everywhere."""
        spans = [one.spans for one in reports.values() if one.spans is not None]
        begun = min((one.begun for one in spans if one.begun is not None), key=lambda one: one[0], default=None)
        if begun is not None:  # commanded before the restored checkpoint
            self.rounds.start(begun[0])
            return self._all(StartRound(self.number, *begun))
        now = next((one.now for one in spans if one.now is not None), None)
        following = newest + 1
        if now is not None and not now.closes:
            over = self.spec.rounds_max is not None and following - now.first >= self.spec.rounds_max
            over = over or any(one.verdict for one in reports.values())
            over = over or not any(one.waiting for one in reports.values())
            place = SpanRound(now.first, now.time, over)
        else:
            come = least_come(one.come for one in spans) if spans else None
            held = min((one.held for one in spans if one.held is not None), default=MAX_TIME)
            done = max((one.done for one in spans), default=MIN_TIME)
            if come is None or (min(held, come) <= done) or (come == MAX_TIME == held):
                return []
            place = SpanRound(following, held) if held <= come else SpanRound(following, come, True)
        self.rounds.start(following)
        return self._all(StartRound(self.number, following, place))

    def _all(self, message: NestCommand) -> Sent:
        return [(slot, message) for slot in range(self.spec.slots)]


class Nests:
    """The bookkeeping of all nests; messages to send are returned as (slot, message).

    Invariant N1: a wave begins only when every slot has reported the one before.
    Invariant N2: a decision rests on the reports of all slots of the nest for one wave of one attempt.
    Invariant N3: after `Release`, `Advance` or `CallFinish` no wave is begun because of counts before every slot has
    followed it.
    Invariant N4: `EndLoop` is sent at most once in an attempt, and nothing about this nest after it.
    Invariant N5: what was released of a scope grows, idleness aside.
    Invariant N6: a round is started only when all slots with unfinished tasks have reported the one before, and none after
    `StopRounds`.
    """

    def __init__(self, specs: Sequence[NestSpec], pace: WavePace | None = None) -> None:
        self.specs = tuple(specs)
        self._pace = pace if pace is not None else WavePace()
        self._before = [0] * len(self.specs)
        """The number of waves in earlier attempts."""
        self._nests: list[_Nest] = []
        self.begin()

    def resize(self, specs: Sequence[NestSpec]) -> None:
        """Gives the nests other numbers of slots, before the next attempt."""
        self.specs = tuple(specs)
        self.begin()

    def begin(self) -> None:
        """Begins an attempt: nothing is known."""
        self._before = [self.waves(nest.number) for nest in self._nests] or self._before
        self._nests = [_Nest(number, spec, self._pace) for number, spec in enumerate(self.specs)]

    def message(self, slot: int, message: NestReport, now: int) -> Sent:
        """Takes a worker's message about a nest. Raises `ProtocolViolation` for an illegal one."""
        number = message.nest
        if not 0 <= number < len(self._nests) or not 0 <= slot < self.specs[number].slots:
            raise ProtocolViolation(f"worker {slot} has no part in loop nest {number}")
        return self._nests[number].message(slot, message, now)

    def note_redone(self, slot: int) -> None:
        """Notes that the worker of a slot was replaced, and has done what the lost worker did."""
        for nest in self._nests:
            nest.replaced.add(slot)

    def tick(self, now: int) -> Sent:
        """Begins the waves that are due at `now`."""
        return [sent for nest in self._nests for sent in nest.maybe_launch(now)]

    def next_tick(self) -> int | None:
        """The time at which the clock alone gives something to do next, or None."""
        return min((due for nest in self._nests if (due := nest.due_at()) is not None), default=None)

    def is_ended(self, nest: int) -> bool:
        """True if a nest was sent `EndLoop` in this attempt."""
        return self._nests[nest].ended

    def waves(self, nest: int) -> int:
        """The number of waves that were begun in a nest, over all attempts."""
        return self._before[nest] + self._nests[nest].wave
