"""The conversation of a worker with its coordinator, such that another coordinator can go on with it
(`protocol.succession`), and the log that the worker keeps for that where it is a mirror."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tailrace.protocol.deployment import Progress
from tailrace.protocol.message_codec import FromWorker, SuccessionCommand, SuccessionReport
from tailrace.protocol.succession import (
    MOST_UNSECURED,
    GoOn,
    Keep,
    LogKept,
    Received,
    Rejoin,
    Secured,
)
from tailrace.task.contract.actions import Action, ToCoordinator
from tailrace.task.failover.history_sending import with_history
from tailrace.task.failover.replayable_slice import ReplayableSlice


class Conversation:
    """The messages of a worker and its coordinator since the newest `Welcome`.

    Invariant Y21: a worker takes each message of the coordinators of its run once, in the order in which the first of them
    decided on it; and each message of the worker that is in their log is in it once, in the order in which it was sent.
    """

    def __init__(self) -> None:
        self.waits = False
        """True if the worker waits for another coordinator where its own is lost."""
        self.broken = False
        """True while it waits."""
        self._slot = self._epoch = 0
        self._received = 0
        self._first = 0
        """The number of messages before those in `_unsecured`."""
        self._unsecured: deque[FromWorker] = deque()
        """Messages that may not be in the log of the coordinator."""
        self._log: list[bytes] = []
        self._base: Keep | None = None
        """What the coordinator has sent first of its log, without entries; None where this worker is no mirror."""

    def begin(self, slot: int, epoch: int, waits: bool) -> None:
        """Begins anew: the worker is welcome in a slot."""
        self.waits, self.broken = waits, False
        self._slot, self._epoch = slot, epoch
        self._received = self._first = 0
        self._unsecured.clear()
        self._log, self._base = [], None

    def note_received(self) -> None:
        """Counts a message of the coordinator."""
        self._received += 1

    def behind_history(self, recorded: ReplayableSlice | None, actions: Iterable[Action]) -> Iterable[Action]:
        """The actions of the worker, each behind the history that it follows from, where there is one."""
        found = actions if recorded is None else with_history(recorded, actions)
        return self.outgoing(found) if self.waits else found

    def outgoing(self, actions: Iterable[Action]) -> list[Action]:
        """The actions of the worker, without messages that cannot be sent now. `GoOn` brings them."""
        found: list[Action] = []
        for action in actions:
            if isinstance(action, ToCoordinator):
                self._note(action.message)
            if not self.broken or not isinstance(action, ToCoordinator):
                found.append(action)
        return found

    def _note(self, message: FromWorker | Rejoin) -> None:
        if isinstance(message, Progress | SuccessionReport | Rejoin):
            return
        self._unsecured.append(message)
        if len(self._unsecured) > MOST_UNSECURED:
            self._unsecured.popleft()
            self._first += 1

    def receive(self, message: SuccessionCommand) -> list[Action]:
        """Takes a message about the log, or of a coordinator that goes on in the place of a lost one."""
        match message:
            case Keep():
                return [ToCoordinator(LogKept(self._keep(message)))]
            case Secured():
                self._forget(message.count)
                return [ToCoordinator(Received(self._received))]
            case GoOn():
                self._forget(message.received)
                self.broken = False
                return [ToCoordinator(one) for one in self._unsecured]
        return []

    def _keep(self, message: Keep) -> int:
        """Keeps entries of the log. Returns the position behind them."""
        if message.base:
            self._base, self._log = message, []
        assert self._base is not None, "the first part of a log has a base"
        if message.position == self._base.position + len(self._log):
            self._log += message.entries
            self._base = Keep(message.term, self._base.position, [], self._base.base)
        return self._base.position + len(self._log)

    def _forget(self, count: int) -> None:
        while self._first < count and self._unsecured:
            self._unsecured.popleft()
            self._first += 1

    def rejoin(self) -> Rejoin:
        """The first message to another coordinator."""
        base, kept = self._base, None
        if base is not None:
            kept = Keep(base.term, base.position, self._log, base.base)
        sent = self._first + len(self._unsecured)
        return Rejoin(self._slot, self._epoch, self._received, sent, self._first, kept)
