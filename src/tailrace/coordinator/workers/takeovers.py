"""Lost workers that are replaced while the others go on (`protocol.replay`): what the coordinator knows for that, and how
far the one that is being replaced has come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.coordinator.workers.failovers import Failovers
from tailrace.protocol.deployment import Deploy, EndSources, Leave, OperatorEvent, Publish, Settled, Welcome
from tailrace.protocol.recovery import Reset
from tailrace.protocol.replay import Copy, Gained, Hearsay, KnownHistory, Resume, WorkerLost, longest
from tailrace.protocol.snapshot import Abort, Complete, Trigger
from tailrace.protocol.termination import Advance, CallFinish, EndLoop, Release, StartRound, StartWave, StopRounds
from tailrace.protocol.wire import AnyMessage

HEARD = (
    Trigger, Abort, Complete, OperatorEvent, EndSources, Advance, CallFinish, EndLoop, Release, StartRound, StartWave,
    StopRounds,
)  # fmt: skip
"""What a worker counts among the words of the coordinator that its history has."""
TRIES = 3
"""How many workers may be lost in a row in one slot: before one of them goes on, and since the newest checkpoint. What ends
them may be what they do."""
AT_ONCE = (Welcome, Reset, Leave, Resume)
"""What a worker is told even while it takes the place of another."""


def grown(slot: int) -> str:
    """Why a worker is not replaced whose history was cut short."""
    return (
        f"what worker {slot} has done since the newest checkpoint had grown larger than StandbyConfig(history_bytes=...) "
        f"allows, and is not known any more: take checkpoints more often, or raise it; or that checkpoint holds records "
        f"with sets on their way, or values with sets have gone to disk behind it: use dictionaries or tuples"
    )


@dataclass
class Takeover:
    """One worker that is being replaced."""

    slot: int
    began_at: int
    resumed: bool = False
    """Whether the replacement was told what to do."""
    tries: int = 1
    """How many workers were to be the replacement."""
    held: list[AnyMessage] = field(default_factory=list)
    """What it is to be told when it goes on, beside what its history counts."""
    known: dict[int, KnownHistory] = field(default_factory=dict)
    """What survivors have said of the lost one, when they were asked last."""


@dataclass
class _Said:
    """What a worker was told, of that which its history counts."""

    first: int = 1
    """The number of the first one that is still known."""
    messages: list[AnyMessage] = field(default_factory=list)
    marks: dict[int, int] = field(default_factory=dict)
    """How many there were when a checkpoint was triggered."""


class Takeovers:
    """The bookkeeping of one job.

    Invariant Y4: at most `depth` workers are replaced at once, and what they were told is held back until they go on. They
    are told what to do together, when all of them are there, and all that the others know of any of them.
    """

    def __init__(self, slots: int, depth: int) -> None:
        """`depth`: how many may be lost at once; 0: lost workers are not replaced in this job."""
        self._slots, self._depth = slots, depth
        self.active: dict[int, Takeover] = {}
        """Those that are being replaced, by slot."""
        self.checkpoint: int | None = None
        """What they restore (0: that with which all have begun); None while a manifest is on its way."""
        self.since = 0
        """When one was lost last."""
        self.asked = False
        """Whether survivors were asked since one was lost whose loss they were not asked about."""
        self.turn = 0
        """How many times survivors were asked."""
        self.count = 0
        """How many workers were replaced, ever."""
        self.resumes = 0
        """How many workers were told to take a place, ever."""
        self.failovers = Failovers()
        self._copies: dict[int, Copy] = {}
        self._hearsay = Hearsay()
        self._said: dict[int, _Said] = {}
        self._events: dict[int, dict[int, int]] = {}
        """How many operator events each worker has sent, by vertex."""
        self._complete = 0
        self._lost_since: dict[int, int] = {}
        """How many workers were lost since a checkpoint was complete last, by slot."""
        self._severed: dict[tuple[int, int], tuple[int, int]] = {}
        """Links that have closed between two workers: (who says so, the peer) -> (the peer's epoch, when)."""

    @property
    def enabled(self) -> bool:
        """Whether lost workers are replaced while the others go on."""
        return self._depth > 0

    @property
    def survivors(self) -> list[int]:
        """The slots whose workers go on."""
        return [slot for slot in range(self._slots) if slot not in self.active]

    def anew(self) -> None:
        """All are deployed anew, or about to be."""
        self.active, self.checkpoint = {}, None
        self._copies, self._said, self._events, self._severed = {}, {}, {}, {}
        self._hearsay = Hearsay()
        self._lost_since, self._complete = {}, 0

    # What is known of everybody, in case.

    def gained(self, slot: int, gained: Gained) -> None:
        """A worker tells what its history has gained, or what it knows of that of another one."""
        for whose, one in self._hearsay.told(slot, gained):
            self._copies.setdefault(whose, Copy()).gain(one)

    def sent_event(self, slot: int, vertex: int) -> None:
        """A worker has sent an operator event."""
        events = self._events.setdefault(slot, {})
        events[vertex] = events.get(vertex, 0) + 1

    def holds_back(self, slot: int, message: AnyMessage) -> bool:
        """A worker is to be told something. True where that is not said to it now."""
        active = self.active.get(slot)
        if self.enabled and isinstance(message, HEARD):
            said = self._said.setdefault(slot, _Said())
            if isinstance(message, Trigger):
                said.marks[message.cut.number] = said.first + len(said.messages)
            said.messages.append(message)
        elif active is not None and not isinstance(message, (*AT_ONCE, Publish, Settled)):
            active.held.append(message)  # what is published is told anew
        return active is not None and not isinstance(message, AT_ONCE)

    def completed(self, checkpoint: int) -> None:
        """A checkpoint is complete: nobody restores an older one. What was said before the one before it was triggered is
        behind whoever is replaced from now on."""
        self._lost_since.clear()
        for copy in self._copies.values():
            copy.complete(checkpoint)
        before, self._complete = self._complete, checkpoint
        for said in self._said.values():
            mark = said.marks.get(before, 0)
            if mark > said.first:
                del said.messages[: mark - said.first]
                said.first = mark
            said.marks = {number: at for number, at in said.marks.items() if number >= checkpoint}

    # One is lost.

    def refused(self, slot: int) -> str | None:
        """Why the loss of this worker is not covered; None where it is."""
        if not self.enabled:
            return "no workers are replaced in this job"
        active = self.active.get(slot)
        if active is not None:
            return None if active.tries < TRIES else f"{TRIES} workers were lost that were to replace worker {slot}"
        if len(self.active) >= self._depth:
            others = " and ".join(f"worker {one}" for one in self.active)
            verb = "was" if len(self.active) == 1 else "were"
            return (
                f"{others} {verb} still being replaced, and StandbyConfig(depth={self._depth}) covers no more at once"
            )
        if slot in self._copies and not self._copies[slot].told().reaches_back_to(self._complete):
            return grown(slot)
        if self._lost_since.get(slot, 0) >= TRIES:
            return f"worker {slot} was replaced {TRIES} times since the newest checkpoint, and is lost again"
        return None

    def begin(self, slot: int, now: int) -> list[int]:
        """A worker is lost, and is replaced. Those that were told already to take a place, and have not gone on, are of no
        use: what they do again would go on with what this one had sent them. Others do it, and all are told together."""
        self.since = now
        if slot in self.active:
            self.active[slot].tries += 1
            if not self.active[slot].resumed:
                self._hearsay.forget(slot)
                return []  # nothing has followed from what was asked
        else:
            self.active[slot] = Takeover(slot, now)
            self._lost_since[slot] = self._lost_since.get(slot, 0) + 1
            self.failovers.noticed(slot, now)
        useless = [one.slot for one in self.active.values() if one.resumed and one.slot != slot]
        self.asked = False
        for one in self.active.values():
            one.resumed, one.known = False, {}
            self._hearsay.forget(one.slot)
        self._severed = {link: told for link, told in self._severed.items() if self.active.keys().isdisjoint(link)}
        return useless

    def ask(self) -> list[WorkerLost]:
        """Survivors are to be asked what they know, of each; once."""
        assert self.checkpoint is not None
        if self.asked:
            return []
        self.asked = True
        self.turn += 1
        return [WorkerLost(slot, self.checkpoint, self.turn) for slot in self.active]

    def know(self, slot: int, known: KnownHistory) -> None:
        """A survivor says what it knows. An answer to an older question does not count: it may know more by now."""
        if known.slice in self.active and slot not in self.active and known.turn == self.turn:
            self.active[known.slice].known[slot] = known

    @property
    def waiting(self) -> bool:
        """Whether those that replace others were not told yet what to do."""
        return any(not one.resumed for one in self.active.values())

    @property
    def ready(self) -> bool:
        """Whether all is known that they are to be told."""
        if self.checkpoint is None or not self.waiting:
            return False
        return all(len(one.known) == len(self.survivors) for one in self.active.values())

    def cut_short(self) -> str | None:
        """Why they cannot do again what was done, where not all of it is known any more. Who was lost may have told others
        so last, and not us."""
        assert self.checkpoint is not None
        missing = [one.slot for one in self.active.values() if not self._history(one).reaches_back_to(self.checkpoint)]
        return grown(missing[0]) if missing else None

    def _history(self, one: Takeover) -> Gained:
        mine = self._copies.setdefault(one.slot, Copy())
        return longest([mine.told(), *(known.history for known in one.known.values())])

    def resume(self, slot: int, deploy: Deploy, in_flight: list[str]) -> Resume:
        """What the replacement of a slot is to do. `deploy` says the rest; `in_flight`: see `Resume`."""
        assert self.checkpoint is not None
        one = self.active[slot]
        one.resumed = True
        history = self._history(one)
        self._copies[slot].gain(history)
        came = [came for known in one.known.values() for came in known.came]
        events = sorted(self._events.get(slot, {}).items())
        together = [other for other in self.active if other != slot]
        return Resume(deploy, self.checkpoint, history, came, events, together, in_flight)

    def over(self, slot: int, heard: int) -> Iterable[AnyMessage] | None:
        """A replacement is where the lost one was, and goes on: what it is to be told now. None where that is not known any
        more."""
        active = self.active.pop(slot)
        if not self.active:
            self.checkpoint = None
        said = self._said.setdefault(slot, _Said())
        if heard + 1 < said.first:
            return None
        self.count += 1
        return [*said.messages[max(0, heard + 1 - said.first) :], *active.held]

    # Links between workers.

    def severed(self, slot: int, peer: int, epoch: int, now: int) -> None:
        """A link between two workers has closed. Mostly one of them is lost, and that will be heard soon. Where one was
        lost already, and nobody is told yet to take its place, it is what is known."""
        ends = (self.active.get(slot), self.active.get(peer))
        if all(one is None or one.resumed for one in ends):
            self._severed[slot, peer] = epoch, now

    def severed_at(self, limit: int) -> int | None:
        """When a link has been closed for too long, though neither worker seems to be lost."""
        return min((at + limit for _, at in self._severed.values()), default=None)

    def broken(self, now: int, limit: int) -> list[tuple[int, int, int]]:
        """Links that have been closed for so long: (who said so, the peer, the peer's epoch). They are told once."""
        found = [(*link, epoch) for link, (epoch, at) in self._severed.items() if at + limit <= now]
        self._severed = {link: one for link, one in self._severed.items() if one[1] + limit > now}
        return found
