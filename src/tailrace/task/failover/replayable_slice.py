"""The slice of a worker that may be replaced: it records what its tasks do, and keeps what they send to other workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Set
from functools import partial
from typing import NamedTuple

from tailrace.elements.frame_codec import HISTORY, ChannelId, Frame, is_barrier
from tailrace.errors import ProtocolViolation
from tailrace.graph.plan import Plan
from tailrace.protocol.deployment import Progress
from tailrace.protocol.message_codec import TaskMessage
from tailrace.protocol.replay import Copies, Gained, Hearsay, decode_gained
from tailrace.task.channels.services import Ends, Services
from tailrace.task.failover.standby_feed import StandbyFeed
from tailrace.task.journal.compared_values import ComparedValues
from tailrace.task.journal.divergence import as_before
from tailrace.task.journal.facts import Facts, meets_in_channels
from tailrace.task.journal.history import Cut, Did, Flushed, History
from tailrace.task.journal.opening import KeptOpening
from tailrace.task.journal.outside_answers import Recorder
from tailrace.task.journal.replayable_feedback import ReplayableFeedback
from tailrace.task.journal.replayable_gate import ReplayableGate, gate_of
from tailrace.task.journal.replayable_inflight import ReplayableInFlight
from tailrace.task.journal.replayable_outbox import ReplayableOutbox, outbox_of
from tailrace.task.journal.sent_log import Keeping
from tailrace.task.journal.task_state import state_of
from tailrace.task.slice.machine import Slice
from tailrace.task.subtask.idleness import Idle
from tailrace.task.subtask.machine import CUTS, Task
from tailrace.task.subtask.order import NOTHING


class Keeps(NamedTuple):
    """The amounts that a slice keeps for replacements of lost workers; they grow until the next checkpoint is complete."""

    memory: int
    """Bytes in memory of what went to other workers."""
    spilled: int
    """Bytes on disk of what went to other workers."""
    entries: int
    """Number of entries in its history: steps, cuts, flushes and messages."""
    history: int
    """Bytes of its history, which is in memory."""
    copies: int
    """Bytes of the histories of other workers that it knows, in memory and on disk."""


class ReplayableSlice(Slice):
    """A slice with a history. Its gates, outboxes and feedback queues record their part of it.

    Invariant Y11: on whatever entries of a history a worker depends, it is in the executor of their owner, or it knows them,
    or the coordinator or workers of as many other executors do as may be lost at once.
    """

    def __init__(
        self,
        plan: Plan,
        slot: int,
        attempt: int,
        services: Services,
        memory: int,
        keeping: Keeping,
        most_history: int = 0,
        copies: Copies | None = None,
        compare_values: bool = True,
    ) -> None:
        """`keeping`: the log of what goes to other workers. `most_history`: the limit in bytes of its own history; 0: none.
        `copies`: the histories of other workers. `compare_values`: see `ComparedValues`."""
        self.compared = ComparedValues(compare_values)
        self.facts, self.sizes, self.keeping = Facts(), Facts(), keeping
        self.recorder = Recorder()
        self.recorder.calls, self.recorder.beside = services.outside.calls, services.outside.beside
        services.outside = self.recorder
        on_inexact = services.note_inexact
        times = meets_in_channels(plan)
        services.ends = Ends(
            partial(ReplayableGate, facts=self.facts, times_in_facts=times),
            partial(ReplayableOutbox, sizes=self.sizes, keeping=keeping, compared=self.compared, times_in_facts=times),
            partial(ReplayableFeedback, facts=self.facts, sizes=self.sizes, on_inexact=on_inexact),
            partial(ReplayableInFlight, on_inexact=on_inexact),
        )
        services.decision = lambda found: bool(self.facts.of(found))
        super().__init__(plan, slot, attempt, services, memory)
        self.history = History(most_history)
        """The history of the tasks, for another worker that may have to replay it."""
        self.again = False
        """True during a replay: what the slice sends to other workers is kept, and goes later."""
        self.together: Set[int] = frozenset()
        """Slots that replay at the same time: they receive replayed output at once, for they have none of it."""
        self.gone: set[int] = set()
        """Workers that are lost: frames that still come from them are dropped."""
        self.copies = Copies() if copies is None else copies
        """The copies of other workers' histories, by their slots."""
        self.hearsay = Hearsay()
        """Histories of third workers that peers have sent."""
        self.held: dict[int, deque[Frame]] = {}
        """The frames of peers that need histories which have not come, each with all that came behind it.

        Invariant Y16: no frame is used before the histories are there that it follows from, and that its sender has not
        passed on, since their owners have sent them.
        """
        self.pause = max(4, len(self.peers()) // 4)
        """The number of entries after which the history goes to all peers, whether anything else does or not: so other
        workers seldom pass it on. It takes about four messages for each entry."""
        self.pushed = 0
        """The number behind the last entry that has gone to all peers."""
        self._settled: dict[int, int] = {}
        """The number of entries of the histories of lost workers that the coordinator has."""
        self._homes: dict[int, str] = {}
        """The executor of each worker; empty for a worker that is being replaced."""
        self.feed: StandbyFeed | None = None
        """The feed of a hot standby of this slice; None where there is to be none."""
        self.awaiting: set[int] = set()
        """Slots whose hot standbys take the places of lost workers, and have yet to send how much they have. Nothing goes
        to them before."""
        self.beside: list[int] = []
        """Workers in this worker's executor, without this one, which may be lost together with it."""

    def open(self, before: bytes | None = None) -> None:
        """Opens all user functions. `before`: the answers of the world that opening the lost worker's functions got, if
        this worker takes its place."""
        opening = KeptOpening(self.services, before)
        with self.services.within_user_code():
            for task in self.tasks:
                if before is None:
                    task.open(opening)
                else:
                    with as_before(task, "opening its functions"):
                        task.open(opening)
        self.history.opened = opening.to_bytes()

    def close(self) -> list[BaseException]:
        errors = super().close()
        self.keeping.close()
        self.copies.clear()
        self.copies.memory.close()
        if self.feed is not None:
            self.feed.close()
        return errors

    # The executors of workers.

    def place(self, homes: Mapping[int, str]) -> None:
        """Takes note of the executors of workers."""
        self._homes.update(homes)
        mine = self._home(self.slot)
        self.beside = sorted(slot for slot, home in self._homes.items() if home == mine and slot != self.slot)

    def _home(self, slot: int) -> str:
        return self._homes.get(slot, f"worker {slot}")

    def _is_near(self, origin: int, sender: int) -> bool:
        """True if a history that a peer passes on has left its owner's executor only once, if at all."""
        owner, mine = self._home(origin), self._home(self.slot)
        return owner in ("", mine) or self._home(sender) in (owner, mine)

    # Events.

    def receive(self, frame: Frame, peer: int) -> None:
        if peer >= self.plan.slots:
            if self.feed is not None and self.feed.party == peer:
                self.feed.grant(frame.number)
        elif frame.incarnation == self.incarnation and peer in self.gone:
            self.stale_frames += 1
        elif peer in self.held:
            self.held[peer].append(frame)
        elif not self._use(frame, peer):
            self.held[peer] = deque([frame])
        elif self.held and frame.kind == HISTORY:
            self.release()

    def _use(self, frame: Frame, peer: int) -> bool:
        """Takes a frame. False if it needs histories that have not come (Y16): it is to be held, with all behind it."""
        if frame.incarnation != self.incarnation or frame.kind != HISTORY:
            super().receive(frame, peer)
            return True
        gained = decode_gained(frame.history())
        if not all(self._knows(slot, end) for slot, end in gained.needs):
            return False
        self._learn(peer, gained)
        return True

    def _knows(self, slot: int, end: int) -> bool:
        copy = self.copies.get(slot)
        return (copy is not None and copy.end >= end) or self._settled.get(slot, 0) >= end

    def release(self) -> None:
        """Takes the frames whose histories have come."""
        released = True
        while released:
            released = False
            for peer, frames in list(self.held.items()):
                while frames and self._use(frames[0], peer):
                    frames.popleft()
                    released = True
                if not frames:
                    del self.held[peer]

    def settle(self, slot: int, known: int) -> None:
        """Notes that the coordinator has the history of a lost worker up to entry `known`: none of it can be lost."""
        self._settled[slot] = max(known, self._settled.get(slot, 0))
        self.release()

    def _learn(self, peer: int, gained: Gained) -> None:
        """Takes a history from another worker: its own, or its copy of a third one's."""
        if gained.has is not None:
            self._send_rest(peer, gained.has)
        origin = peer if gained.origin == -1 else gained.origin
        if origin == self.slot or not 0 <= origin < self.plan.slots:
            raise ProtocolViolation(f"worker {peer} sends a history of worker {origin} to worker {self.slot}")
        for whose, one in self.hearsay.receive(peer, gained):
            self.copies[whose].gain(one, self._is_near(whose, peer))
            if self.services.depth < 2 and peer in self.beside and whose not in (peer, *self.beside):
                # It passes on only what is beside it, and may know sooner where a replacement is.
                self.place({whose: self._home(self.slot)})

    def _send_rest(self, peer: int, has: list[tuple[int, int, int, int]]) -> None:
        """Sends a hot standby that takes a lost worker's place what it does not have of each channel."""
        self.awaiting.discard(peer)
        known = {ChannelId(*channel): count for *channel, count in has}
        for task in self.tasks:
            for ident, channel in task.outbox.channels.items():
                if ident.target == peer and not channel.local:
                    self.feed_again(task, ident, known.get(ident, 0))
            self.route(task)

    def feed_again(self, task: Task, ident: ChannelId, came: int = 0) -> None:
        """Sends a replacement what was kept of a channel, but for the first `came` records and markers. The task may have
        waited for credit there, which it has anew."""
        task.wake()
        outbox_of(task).receiver_replaced(ident, came)
        if not task.said_end:
            outbox_of(task).announce_time(ident)

    def confirm(self, checkpoint: int) -> None:
        super().confirm(checkpoint)
        if self.feed is not None:
            self.feed.complete(checkpoint)
            self.feed.keep_history(self.history)
        for task in self.tasks:
            outbox_of(task).complete(checkpoint)
            gate_of(task).complete(checkpoint)
        self.history.complete(checkpoint)
        for copy in self.copies.values():
            copy.complete(checkpoint)

    def note(self, message: TaskMessage) -> None:
        self.history.receive(message)

    # Steps.

    def step(self, task: Task, now: int, budget: int) -> Idle | None:
        idle = super().step(task, now, budget)
        if self.services.debug:
            self.keeping.check([item for one in self.tasks for item in outbox_of(one).kept_items()])
        return idle

    def _step(self, task: Task, now: int, budget: int) -> Idle | None:
        self.recorder.take()  # answers outside of steps are in no history
        idle = super()._step(task, now, budget)
        self._remember(task, now, budget, idle)
        return idle

    def _remember(self, task: Task, now: int, budget: int, idle: Idle | None) -> None:
        """Adds the last step of a task to the history."""
        services, history, vertex, cut = self.services, self.history, task.vertex.id, task.checkpoints.just_cut
        facts, answers, sizes = self.facts.take(), self.recorder.take(), self.sizes.take()
        if idle is not None and task.work.only_looked:
            return
        seed = self._seed
        sealed = task.did == NOTHING and idle is None and cut is None
        if sealed or (task.did != NOTHING and task.did not in CUTS):
            answered = [] if cut is not None else answers
            by_itself = services.clock_read or seed is not None
            round_ended = task.work.been_round
            history.add(Did(vertex, task.did, now, budget, facts, answered, sizes, round_ended, by_itself, seed))
            sizes = []  # of the cut as well, whose entry comes next
        if cut is not None:
            followed, waves = self.nests.cut_state()
            state = state_of(task)
            history.add(Cut(vertex, cut, now, state, history.received, answers, followed, waves, sizes, seed))

    def flush(self) -> bool:
        flushed, sizes = False, dict[int, list[int]]()
        for task in self.tasks:
            if task.outbox.oldest is not None and task.flush():
                flushed = True
                sizes[task.vertex.id] = self.sizes.take()
                self.route(task)
        if flushed:
            self.history.add(Flushed(sizes))
        if self.feed is not None:
            self.feed.urgent = True
        return flushed

    def _send(self, target: int, data: bytes) -> None:
        if (not self.again or (target in self.together and not is_barrier(data))) and target not in self.awaiting:
            super()._send(target, data)

    def progress(self, busy: dict[int, int], elapsed: int, refused: dict[str, int], phases: dict[int, str]) -> Progress:
        keeps = self.keeps
        kept, left = keeps.memory + keeps.spilled, self.history.left
        logs = keeps.entries, keeps.history, kept
        return Progress(self.reports(busy), elapsed, refused, *logs, phases, left, keeps.copies)

    @property
    def keeps(self) -> Keeps:
        """The amounts that the slice keeps for replacements of lost workers."""
        history, copies = self.history, self.copies.memory
        known = copies.memory + copies.spilled
        return Keeps(self.keeping.memory, self.keeping.spilled, len(history.entries), history.size, known)
