"""The messages between a coordinator and each of its workers, as far as a successor may have to send them again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.coordinator.actions import Send
from tailrace.protocol.deployment import Deploy, Deployed, Welcome
from tailrace.protocol.message_codec import FromWorker, ToWorker
from tailrace.protocol.replay import ReplayDone, Resume
from tailrace.protocol.succession import SECURED_EACH, GoOn, Rejoin, Secured

Worker = tuple[int, int]
"""A worker: (its place, its epoch there)."""


@dataclass
class _Conversation:
    """The messages to and from one worker since its `Welcome`."""

    first: int = 0
    """The number of messages to it before those in `sent`."""
    sent: list[ToWorker] = field(default_factory=list)
    """Messages to it that it may not have received."""
    received: int = 0
    unsecured: deque[int] = field(default_factory=deque)
    """The position of the log behind each message from it, without those for which `Secured` was sent."""

    def forget(self, count: int) -> None:
        """Forgets the first `count` messages to it, which it has received."""
        del self.sent[: max(0, count - self.first)]
        self.first = max(self.first, count)

    def secure(self, position: int) -> Secured:
        """The message for a worker whose messages are in the log before `position`."""
        while self.unsecured and self.unsecured[0] <= position:
            self.unsecured.popleft()
        return Secured(self.received - len(self.unsecured))


class Conversations:
    """The conversations of a coordinator with its workers."""

    def __init__(self) -> None:
        self._of: dict[Worker, _Conversation] = {}

    def note_send(self, action: Send) -> None:
        """Counts a message to a worker."""
        key = action.slot, action.epoch
        if isinstance(action.message, Welcome):
            for older in [one for one in self._of if one[0] == action.slot]:
                del self._of[older]
            self._of[key] = _Conversation()
        elif key in self._of:
            self._of[key].sent.append(action.message)

    def note_message(self, worker: Worker, message: FromWorker, position: int) -> None:
        """Counts a message of a worker, which is in the log before `position`."""
        one = self._of.get(worker)
        if one is None:
            return
        one.received += 1
        one.unsecured.append(position)
        if isinstance(message, Deployed | ReplayDone):  # it has what deployed it, which is large
            plans = [at for at, sent in enumerate(one.sent) if isinstance(sent, Deploy | Resume)]
            one.forget(one.first + plans[-1] + 1 if plans else 0)

    def secure(self, position: int) -> list[Send]:
        """Lets workers forget messages that are in the log before `position`, which the mirrors have."""
        due = [
            (worker, one)
            for worker, one in self._of.items()
            if len(one.unsecured) >= SECURED_EACH and one.unsecured[SECURED_EACH - 1] <= position
        ]
        return [Send(*worker, one.secure(position)) for worker, one in due]

    def secure_all(self, position: int) -> list[Send]:
        """Asks all workers what they have received, and lets them forget what the mirrors have."""
        return [Send(*worker, one.secure(position)) for worker, one in self._of.items()]

    def note_received(self, worker: Worker, count: int) -> None:
        """Takes the report of a worker: it has the first `count` messages."""
        if worker in self._of:
            self._of[worker].forget(count)

    def misfit(self, workers: Mapping[Worker, Rejoin]) -> str:
        """The reason why these workers and the log do not belong together; empty where they do."""
        for (slot, epoch), has in workers.items():
            one = self._of.get((slot, epoch))
            if one is None:
                return f"its log does not know worker {slot}"
            if has.received > one.first + len(one.sent) or has.sent < one.received:
                return f"its log lacks what worker {slot} knows"
            if has.received < one.first or has.first > one.received:
                return f"not all messages to and from worker {slot} are kept any more"
        return ""

    def go_on(self, workers: Mapping[Worker, Rejoin]) -> list[Send]:
        """The messages with which these workers go on."""
        found = []
        for (slot, epoch), has in workers.items():
            one = self._of[slot, epoch]
            lacks = one.sent[has.received - one.first :]
            found += [Send(slot, epoch, message) for message in (GoOn(one.received), *lacks)]
        return found
