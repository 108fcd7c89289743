"""The knowledge of the coordinator about lost workers that are replaced while the other workers go on (`protocol.replay`),
and the phase of each replacement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.workers.replacement_durations import Failovers
from tailrace.protocol.deployment import Deploy, Leave, Peer, Publish, Settled, Welcome
from tailrace.protocol.message_codec import TaskMessage, ToWorker
from tailrace.protocol.recovery import Reset
from tailrace.protocol.replay import Copies, Gained, Hearsay, KnownHistory, Resume, WorkerLost, longest
from tailrace.protocol.snapshot import Trigger

TRIES = 3
"""The most losses in one slot: of processes for one replacement, and of workers since the newest checkpoint. The slot's own
work may be what ends them."""
AT_ONCE = (Welcome, Reset, Leave, Resume)
"""The messages that are sent to a worker even while it takes the place of another."""


def overgrowth(slot: int) -> str:
    """The reason why a worker is not replaced whose history was cut short."""
    return (
        f"what worker {slot} has done since the newest checkpoint had grown larger than StandbyConfig(history_bytes=...) "
        f"allows, and is not known any more: take checkpoints more often, or raise it; or that checkpoint holds records "
        f"with sets on their way, or values with sets have gone to disk behind it: use dictionaries or tuples"
    )


@dataclass
class Takeover:
    """A worker that is being replaced."""

    slot: int
    began_at: int
    home: str
    """The executor in which the work of the slice was done last."""
    new_home: str = ""
    """The executor of the replacement, once `Resume` was sent to it."""
    last_home: str = ""
    """The executor of a replacement that was lost, or has to start over, after `Resume` was sent to it."""
    resumed_with: int = 0
    """The number behind the last entry of the history that `Resume` had."""
    resumed: bool = False
    """True if `Resume` was sent to the replacement."""
    tries: int = 1
    """The number of processes that were to be the replacement."""
    held: list[ToWorker] = field(default_factory=list)
    """Messages held back until the replacement goes on, except those that its history numbers."""
    known: dict[int, KnownHistory] = field(default_factory=dict)
    """The survivors' answers to the newest question about the lost worker, by slot."""
    failure: Cause | None = None
    """The failure for which the worker is replaced, where it lived."""


@dataclass
class _Reported:
    """The messages to one worker that its history numbers."""

    first: int = 1
    """The number of the first message that is still known."""
    messages: list[TaskMessage] = field(default_factory=list)
    marks: dict[int, int] = field(default_factory=dict)
    """The number of the message that triggered each checkpoint."""


class Takeovers:
    """The bookkeeping of one job's lost workers.

    Invariant Y4: workers of at most `depth` executors are replaced at once, and messages to them are held back until they
    go on. Their replacements are sent what to do together, when all of them are there, and all that the other workers know
    of any of them.
    """

    def __init__(self, slots: int, depth: int, copies: Copies | None = None) -> None:
        """`depth`: the number of executors that may be lost at once; 0: lost workers are not replaced in this job.
        `copies`: those of the workers' histories, which share some memory."""
        self._slots, self._depth = slots, depth
        self.active: dict[int, Takeover] = {}
        """The workers that are being replaced, by slot."""
        self.checkpoint: int | None = None
        """The checkpoint that their replacements restore (0: the one with which all have begun); None while a manifest is
        on its way."""
        self.since = 0
        """The time of the last loss."""
        self.requested = False
        """True if `WorkerLost` was sent to the survivors for all workers that are being replaced now."""
        self.turn = 0
        """The number of questions to survivors."""
        self.count = 0
        """The number of workers that were replaced, ever."""
        self.resumes = 0
        """The number of `Resume` messages, ever."""
        self.failovers = Failovers()
        self._copies = Copies() if copies is None else copies
        self._hearsay = Hearsay()
        self._histories: dict[int, _Reported] = {}
        self._events: dict[int, dict[int, int]] = {}
        """The number of operator events that each worker has sent, by vertex."""
        self._complete = 0
        self._lost_since: dict[int, int] = {}
        """The number of workers lost since a checkpoint was complete last, by slot."""
        self._homes: dict[int, str] = {}
        """The executor in which the work of each slice is done. A replacement that still replays has done none."""
        self._severed: dict[tuple[int, int], tuple[int, int]] = {}
        """Links that have closed between two workers: (the worker that reported it, the peer) -> (the peer's epoch, the
        time)."""

    @property
    def enabled(self) -> bool:
        """True if lost workers are replaced while the other workers go on."""
        return self._depth > 0

    def resize(self, slots: int) -> None:
        """Gives the job another number of slots, before the next attempt."""
        self._slots = slots

    @property
    def has_spill(self) -> bool:
        """True if a part of the histories that are known here is in a spill of this process."""
        return self._copies.memory.has_spill

    @property
    def survivors(self) -> list[int]:
        """The slots whose workers go on."""
        return [slot for slot in range(self._slots) if slot not in self.active]

    def go_on(self, now: int) -> None:
        """Goes on with another coordinator: the time without one does not count."""
        self.since = now
        self._severed = {link: (epoch, now) for link, (epoch, _) in self._severed.items()}

    def anew(self, peers: Iterable[Peer] = ()) -> None:
        """Forgets the histories, messages, events and losses of an attempt: all workers are deployed anew, or about to
        be. `peers`: the workers of the new attempt."""
        self.active, self.checkpoint = {}, None
        self._homes = {peer.slot: peer.home for peer in peers}
        self._copies.clear()
        self._histories, self._events, self._severed = {}, {}, {}
        self._hearsay = Hearsay()
        self._lost_since, self._complete = {}, 0

    def close(self) -> None:
        """Releases the histories: the job is over."""
        self._copies.clear()
        self._copies.memory.close()

    # What is known of every worker, before one is lost.

    def add_history(self, slot: int, gained: Gained) -> None:
        """Takes a worker's report of what its history has gained, or of what it knows of another worker's history."""
        for whose, one in self._hearsay.receive(slot, gained):
            self._copies[whose].gain(one)

    def copy_of(self, slot: int) -> Gained:
        """The history of a worker, as far as the coordinator has it."""
        return self._copies[slot].report()

    def sent_event(self, slot: int, vertex: int) -> None:
        """Counts an operator event that a worker has sent."""
        events = self._events.setdefault(slot, {})
        events[vertex] = events.get(vertex, 0) + 1

    def holds_back(self, slot: int, message: ToWorker) -> bool:
        """Notes a message to a worker. Returns True if the message must not be sent now: the worker is being replaced."""
        active = self.active.get(slot)
        if self.enabled and isinstance(message, TaskMessage):
            history = self._histories.setdefault(slot, _Reported())
            if isinstance(message, Trigger):
                history.marks[message.cut.number] = history.first + len(history.messages)
            history.messages.append(message)
        elif active is not None and not isinstance(message, (*AT_ONCE, Publish, Settled)):
            active.held.append(message)  # `Publish` and `Settled` are sent anew
        return active is not None and not isinstance(message, AT_ONCE)

    def complete(self, checkpoint: int) -> None:
        """Notes that a checkpoint is complete: no worker restores an older one. Messages from before the trigger of the
        complete checkpoint before it are dropped: no replacement needs them from now on."""
        self._lost_since.clear()
        for copy in self._copies.values():
            copy.complete(checkpoint)
        before, self._complete = self._complete, checkpoint
        for history in self._histories.values():
            mark = history.marks.get(before, 0)
            if mark > history.first:
                del history.messages[: mark - history.first]
                history.first = mark
            history.marks = {number: at for number, at in history.marks.items() if number >= checkpoint}

    # A worker is lost.

    def refusal(self, slot: int) -> str | None:
        """The reason why the loss of this worker is not covered; None where it is."""
        if not self.enabled:
            return "no workers are replaced in this job"
        active = self.active.get(slot)
        if active is not None:
            return None if active.tries < TRIES else f"{TRIES} workers were lost that were to replace worker {slot}"
        if len({self._home(slot), *(one.home for one in self.active.values())}) > self._depth:
            others = " and ".join(f"worker {one}" for one in self.active)
            verb = "was" if len(self.active) == 1 else "were"
            return (
                f"{others} {verb} still being replaced, and StandbyConfig(depth={self._depth}) covers no more at once"
            )
        if not self._copies[slot].reaches_back_to(self._complete):
            return overgrowth(slot)
        if self._lost_since.get(slot, 0) >= TRIES:
            return f"worker {slot} was replaced {TRIES} times since the newest checkpoint, and is lost again"
        return None

    def begin(self, slot: int, now: int) -> list[int]:
        """Begins the replacement of a lost worker. Returns the slots whose replacements start over: they still replay, and
        need the records of the worker just lost. All replacements are resumed together."""
        self.since = now
        if slot in self.active:
            self.active[slot].tries += 1
            if not self.active[slot].resumed:
                self._hearsay.forget(slot)
                return []  # nothing has followed from the last question
        else:
            self.active[slot] = Takeover(slot, now, self._home(slot))
            self._lost_since[slot] = self._lost_since.get(slot, 0) + 1
            self.failovers.note_loss(slot, now)
        useless = [one.slot for one in self.active.values() if one.resumed and one.slot != slot]
        self.requested = False
        for one in self.active.values():
            if one.resumed:
                one.last_home = one.new_home
            one.resumed, one.known = False, {}
            self._hearsay.forget(one.slot)
        self._severed = {link: since for link, since in self._severed.items() if self.active.keys().isdisjoint(link)}
        return useless

    def _home(self, slot: int) -> str:
        return self._homes.get(slot, f"worker {slot}")

    def at_once(self, slots: list[int]) -> list[int]:
        """The slots of these that are in the first executors, as many as may be lost at once."""
        first = [*dict.fromkeys(map(self._home, slots))][: max(1, self._depth)]
        return [slot for slot in slots if self._home(slot) in first]

    def query(self) -> list[WorkerLost]:
        """The questions to survivors about each lost worker; none where they were sent before."""
        assert self.checkpoint is not None
        if self.requested:
            return []
        self.requested = True
        self.turn += 1
        return [WorkerLost(slot, self.checkpoint, self.turn, self._copies[slot].end) for slot in self.active]

    def know(self, slot: int, known: KnownHistory) -> None:
        """Takes a survivor's answer. An answer to an older question does not count: the survivor may know more by now."""
        if known.slice in self.active and slot not in self.active and known.turn == self.turn:
            self.active[known.slice].known[slot] = known

    @property
    def waiting(self) -> bool:
        """True if a replacement still has to be sent its `Resume`."""
        return any(not one.resumed for one in self.active.values())

    @property
    def ready(self) -> bool:
        """True if all is known that the replacements have to be sent."""
        if self.checkpoint is None or not self.waiting:
            return False
        return all(len(one.known) == len(self.survivors) for one in self.active.values())

    def cut_short(self) -> str | None:
        """The reason why replacements cannot do again what was done, where not all of it is known any more; else None. The
        lost worker may have reported to other workers last, and not to the coordinator, that its history was cut short."""
        assert self.checkpoint is not None
        missing = [one.slot for one in self.active.values() if not self._history(one).reaches_back_to(self.checkpoint)]
        if missing:
            return overgrowth(missing[0])
        if len(set(map(self._home_lost, self.active.values()))) > self._depth:
            lost = " and ".join(f"worker {slot}" for slot in self.active)
            return f"{lost} were lost with more executors than StandbyConfig(depth={self._depth}) covers at once"
        return None

    def _home_lost(self, one: Takeover) -> str:
        """The executor with which work of a slice was lost. Where a survivor knows more than a lost replacement was resumed
        with, that one had gone on, though its report did not come: what it did was done in its own executor."""
        return one.last_home if one.last_home and self.known_of(one.slot) > one.resumed_with else one.home

    def _history(self, one: Takeover) -> Gained:
        mine = self._copies[one.slot]
        return longest([mine.report(), *(known.history for known in one.known.values())])

    def known_of(self, slot: int) -> int:
        """The number behind the last entry that any survivor knows of a lost worker's history."""
        history = self._history(self.active[slot])
        return history.first + len(history.entries)

    def resume(self, slot: int, deploy: Deploy, in_flight: list[str], hot: int = 0) -> Resume:
        """The `Resume` message for the replacement of a slot. `deploy` has the rest of its part; `in_flight` and `hot`: see
        `Resume`."""
        assert self.checkpoint is not None
        one = self.active[slot]
        one.resumed, one.home = True, self._home_lost(one)
        one.new_home = next((peer.home for peer in deploy.peers if peer.slot == slot), one.home)
        history = self._history(one)
        one.resumed_with = history.first + len(history.entries)
        self._copies[slot].gain(history)
        came = [came for known in one.known.values() for came in known.came]
        events = sorted(self._events.get(slot, {}).items())
        together = [other for other in self.active if other != slot]
        values = [one for known in one.known.values() for one in known.values]
        return Resume(deploy, self.checkpoint, history, came, events, together, in_flight, values, hot)

    def over(self, slot: int, received: int) -> Iterable[ToWorker] | None:
        """Ends a replacement that has done all that the lost worker did, and goes on. Returns the messages to send to it
        now; None where they are not known any more."""
        active = self.active.pop(slot)
        self._homes[slot] = active.new_home
        if not self.active:
            self.checkpoint = None
        history = self._histories.setdefault(slot, _Reported())
        if received + 1 < history.first:
            return None
        self.count += 1
        return [*history.messages[max(0, received + 1 - history.first) :], *active.held]

    # Links between workers.

    def link_lost(self, slot: int, peer: int, epoch: int, now: int) -> None:
        """Notes that a link between two workers has closed. Mostly one of them is lost, and the coordinator will notice
        that soon. A link of a lost worker whose replacement was not resumed yet is not noted: that loss explains it."""
        ends = (self.active.get(slot), self.active.get(peer))
        if all(one is None or one.resumed for one in ends):
            self._severed[slot, peer] = epoch, now

    def severed_at(self, limit: int) -> int | None:
        """The time at which a link has been closed for too long, though neither worker seems to be lost."""
        return min((at + limit for _, at in self._severed.values()), default=None)

    def take_broken(self, now: int, limit: int) -> list[tuple[int, int, int]]:
        """The links that have been closed for so long: (the worker that reported it, the peer, the peer's epoch). Each is
        returned once."""
        found = [(*link, epoch) for link, (epoch, at) in self._severed.items() if at + limit <= now]
        self._severed = {link: one for link, one in self._severed.items() if one[1] + limit > now}
        return found
