"""Lost workers that are replaced while the others go on (`protocol.replay`): what the coordinator knows for that, and how
far the one that is being replaced has come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.coordinator.failovers import Failovers
from tailrace.protocol.deployment import EndSources, Leave, OperatorEvent, Publish, Settled, Welcome
from tailrace.protocol.recovery import Reset
from tailrace.protocol.replay import Came, Copy, Gained, Known, Resume, longest
from tailrace.protocol.snapshot import Abort, Complete, Trigger
from tailrace.protocol.termination import Advance, CallFinish, EndLoop, Release, StartRound, StartWave, StopRounds
from tailrace.protocol.wire import AnyMessage

HEARD = (
    Trigger, Abort, Complete, OperatorEvent, EndSources, Advance, CallFinish, EndLoop, Release, StartRound, StartWave,
    StopRounds,
)  # fmt: skip
"""What a worker counts among the words of the coordinator that its history has."""
TRIES = 3
"""How many workers may be lost in a row before one of them can begin to replace another."""
AT_ONCE = (Welcome, Reset, Leave, Resume)
"""What a worker is told even while it takes the place of another."""


@dataclass
class Takeover:
    """One worker that is being replaced."""

    slot: int
    began_at: int
    survivors: frozenset[int]
    checkpoint: int | None = None
    """What is restored (0: that with which all have begun); None while a manifest is on its way."""
    known: dict[int, Known] = field(default_factory=dict)
    """What survivors have said."""
    resumed: bool = False
    """Whether the replacement was told what to do."""
    tries: int = 1
    """How many workers were to be the replacement."""
    held: list[AnyMessage] = field(default_factory=list)
    """What it is to be told when it goes on, beside what its history counts."""


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

    Invariant Y4: one worker is replaced at a time, and what it was told is held back until it goes on.
    """

    def __init__(self, enabled: bool, slots: int) -> None:
        self.enabled = enabled
        self._slots = slots
        self.active: Takeover | None = None
        self.count = 0
        """How many workers were replaced, ever."""
        self.failovers = Failovers()
        self._copies: dict[int, Copy] = {}
        self._said: dict[int, _Said] = {}
        self._events: dict[int, dict[int, int]] = {}
        """How many operator events each worker has sent, by vertex."""
        self._complete = 0
        self._lost_since: set[int] = set()
        """Slots whose worker was replaced since a checkpoint was complete last: what has killed it may do so again."""
        self._severed: dict[tuple[int, int], tuple[int, int]] = {}
        """Links that have closed between two workers: (who says so, the peer) -> (the peer's epoch, when)."""

    def anew(self) -> None:
        """All are deployed anew, or about to be."""
        self.active = None
        self._copies, self._said, self._events, self._severed = {}, {}, {}, {}
        self._lost_since, self._complete = set(), 0

    # What is known of everybody, in case.

    def gained(self, slot: int, gained: Gained) -> None:
        """A worker tells what its history has gained."""
        self._copies.setdefault(slot, Copy()).gain(gained)

    def sent_event(self, slot: int, vertex: int) -> None:
        """A worker has sent an operator event."""
        events = self._events.setdefault(slot, {})
        events[vertex] = events.get(vertex, 0) + 1

    def holds_back(self, slot: int, message: AnyMessage) -> bool:
        """A worker is to be told something. True where that is not said to it now."""
        active = self.active is not None and self.active.slot == slot
        if self.enabled and isinstance(message, HEARD):
            said = self._said.setdefault(slot, _Said())
            if isinstance(message, Trigger):
                said.marks[message.cut.number] = said.first + len(said.messages)
            said.messages.append(message)
        elif active and not isinstance(message, (*AT_ONCE, Publish, Settled)):  # what is published is told anew
            assert self.active is not None
            self.active.held.append(message)
        return active and not isinstance(message, AT_ONCE)

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
        if self.active is not None:
            return f"worker {self.active.slot} was still being replaced"
        if slot in self._lost_since:
            return f"worker {slot} was replaced since the newest checkpoint, and is lost again"
        return None

    def again(self, slot: int) -> bool:
        """Whether it is the replacement that is lost, before it was told anything: another one does as well."""
        active = self.active
        if active is None or active.slot != slot or active.resumed or active.tries >= TRIES:
            return False
        active.tries += 1
        return True

    def begin(self, slot: int, now: int) -> None:
        """A worker is lost, and is replaced."""
        self.active = Takeover(slot, now, frozenset(range(self._slots)) - {slot})
        self._lost_since.add(slot)
        self.failovers.noticed(slot, now)

    def know(self, slot: int, known: Known) -> None:
        """A survivor says what it knows."""
        if self.active is not None and known.slice == self.active.slot and slot in self.active.survivors:
            self.active.known[slot] = known

    @property
    def ready(self) -> bool:
        """Whether all is known that the replacement is to be told."""
        active = self.active
        if active is None or active.resumed or active.checkpoint is None:
            return False
        return active.known.keys() == active.survivors

    def history(self) -> Gained:
        """What the lost one has done, as far as anybody depends on it."""
        assert self.active is not None
        mine = self._copies.setdefault(self.active.slot, Copy())
        found = longest([mine.told(), *(known.history for known in self.active.known.values())])
        mine.gain(found)
        return found

    def came(self) -> list[Came]:
        """What the survivors have of its channels."""
        assert self.active is not None
        return [one for known in self.active.known.values() for one in known.came]

    def events(self) -> list[tuple[int, int]]:
        """How many operator events it had sent, by vertex."""
        assert self.active is not None
        return sorted(self._events.get(self.active.slot, {}).items())

    def over(self, heard: int) -> Iterable[AnyMessage] | None:
        """The replacement is where the lost one was, and goes on: what it is to be told now. None where that is not known
        any more."""
        assert self.active is not None
        active, self.active = self.active, None
        said = self._said.setdefault(active.slot, _Said())
        if heard + 1 < said.first:
            return None
        self.count += 1
        return [*said.messages[max(0, heard + 1 - said.first) :], *active.held]

    # Links between workers.

    def severed(self, slot: int, peer: int, epoch: int, now: int) -> None:
        """A link between two workers has closed. Mostly one of them is lost, and that will be heard soon."""
        self._severed[slot, peer] = epoch, now

    def severed_at(self, limit: int) -> int | None:
        """When a link has been closed for too long, though neither worker seems to be lost."""
        return min((at + limit for _, at in self._severed.values()), default=None)

    def broken(self, now: int, limit: int) -> list[tuple[int, int, int]]:
        """Links that have been closed for so long: (who said so, the peer, the peer's epoch). They are told once."""
        found = [(*link, epoch) for link, (epoch, at) in self._severed.items() if at + limit <= now]
        self._severed = {link: one for link, one in self._severed.items() if one[1] + limit > now}
        return found
