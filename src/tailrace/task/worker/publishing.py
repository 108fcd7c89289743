"""The publisher: one worker's part in making visible what sinks have prepared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tailrace.api.compat import may_be_dropped, publishes
from tailrace.api.connectors import is_out_of_reach
from tailrace.errors import IncompatibleState, OutOfReachError, UserCodeError, error_text
from tailrace.graph.graph import Node
from tailrace.graph.operators import Sink
from tailrace.graph.plan import Plan
from tailrace.protocol.deployment import NotPublished, Publish, Published, Settled
from tailrace.state.format import Placed
from tailrace.task.channels.services import Services
from tailrace.task.contract.usercode import user_traceback
from tailrace.task.operators.sink import LARGEST_PREPARED
from tailrace.task.worker.attribution import sendable

_DOING = {
    "publish": "publishing",
    "settled": "forgetting what it had published",
    "recover": "removing what was not published",
}


@dataclass(frozen=True, slots=True)
class Awaited:
    """Prepared output in files that must be read before anything else can be published."""

    folder: str
    placed: tuple[Placed, ...]


class Publisher:
    """Publishes, in order, what the coordinator sends, and remembers it until the coordinator can never request it again.
    Output in files is read first, for one message at a time."""

    def __init__(self, slot: int, plan: Plan, services: Services) -> None:
        self._slot = slot
        self._incarnation = services.incarnation
        self._outside = services.outside
        self._sinks: dict[str, Node] = {n.uid: n for n in plan.graph.nodes if isinstance(n.operator, Sink)}
        self._allowed = services.allow_dropped_state
        self._waiting: deque[Publish] = deque()
        """Messages in the order in which they are published. The first one waits for output that lies in files."""
        self._unsettled: dict[int, list[tuple[str, list[bytes]]]] = {}
        """Published output that may be requested again, by the number of the publication."""
        self._skipped: set[int] = set()
        """Numbers of publications from which output was dropped."""
        self._failed: dict[int, int] = {}
        """Number of a publication that could not be made visible in full, because the place of a sink was out of reach ->
        the try of the coordinator's request that failed. Further parts of this try are ignored: the coordinator sends the
        whole publication once more."""

    def publish(self, message: Publish) -> list[Published | NotPublished | Awaited]:
        """Takes a message of the coordinator. Returns, in order, what to report or to read first."""
        if message.tries <= self._failed.get(message.number, -1):
            return []
        self._waiting.append(message)
        return self._go_on() if len(self._waiting) == 1 else []

    def read(self, data: Sequence[bytes]) -> list[Published | NotPublished | Awaited]:
        """Goes on with the first message, whose awaited output was read."""
        bytes_of = iter(data)
        message = self._waiting[0]
        whole = [
            (uid, [next(bytes_of) if isinstance(one, Placed) else one for one in prepared])
            for uid, prepared in message.prepared
        ]
        self._waiting[0] = msgspec.structs.replace(message, prepared=whole)
        return self._go_on()

    def _go_on(self) -> list[Published | NotPublished | Awaited]:
        found: list[Published | NotPublished | Awaited] = []
        while self._waiting:
            message = self._waiting[0]
            placed = tuple(one for _, prepared in message.prepared for one in prepared if isinstance(one, Placed))
            if placed:
                return [*found, Awaited(message.folder, placed)]
            try:
                self._carry_out(message)
            except OutOfReachError as error:
                found.append(self._give_up(message, error))
                continue
            self._waiting.popleft()
            if not message.more:
                found.append(Published(message.number, message.number in self._skipped))
        return found

    def _give_up(self, message: Publish, error: OutOfReachError) -> NotPublished:
        """Gives up a try, because the place of a sink is out of reach. The coordinator sends the whole publication once
        more."""
        number, tries = message.number, message.tries
        self._failed[number] = tries
        self._waiting = deque(one for one in self._waiting if (one.number, one.tries) != (number, tries))
        self._unsettled.pop(number, None)
        return NotPublished(number, tries, sendable(str(error)))

    def _carry_out(self, message: Publish) -> None:
        """Makes a part of a publication visible, and with the last part removes what was never published."""
        for uid, prepared in message.prepared:
            self._publish(message.number, uid, [one for one in prepared if isinstance(one, bytes)])
        if message.recover:
            for uid, node in self._sinks.items():
                self._call(node, "recover", message.recover, self._incarnation, uid)

    def _publish(self, number: int, uid: str, prepared: list[bytes]) -> None:
        if uid in self._sinks:
            node = self._sinks[uid]
            self._call(node, "publish", prepared)
            if isinstance(node.operator, Sink) and not publishes(node.operator.sink):
                self._skipped.add(number)
            self._unsettled.setdefault(number, []).append((uid, prepared))
        elif may_be_dropped(uid, self._allowed):
            self._skipped.add(number)
        else:
            raise IncompatibleState(
                f"the sink with uid {uid!r} prepared output that must still be published, and the dataflow has no such "
                f"sink: give the sink uid={uid!r}, or give its output up: allow_dropped_state=[{uid!r}]"
            )

    def settle(self, message: Settled) -> None:
        """Lets sinks forget publications that the coordinator will never request again."""
        done = [n for n in self._unsettled if 0 < n <= message.number or (n == 0 and message.restored)]
        by_uid: dict[str, list[bytes]] = {}
        for uid, prepared in [one for number in done for one in self._unsettled.pop(number)]:
            by_uid.setdefault(uid, []).extend(prepared)
        for uid, prepared in by_uid.items():
            try:
                self._call(self._sinks[uid], "settled", prepared)
            except OutOfReachError:  # the sink is called again with what is settled next
                self._unsettled.setdefault(message.number, []).append((uid, prepared))

    def _call(self, node: Node, what: str, *args: Any) -> None:
        assert isinstance(node.operator, Sink)
        call: Callable[..., object] = getattr(node.operator.sink, what)
        try:
            self._outside.act(lambda: call(*args))
        except Exception as error:
            raised = OutOfReachError if is_out_of_reach(node.operator.sink, error) else UserCodeError
            raise raised(
                f"{_DOING[what]} raised {error_text(error)}",
                operator=node.name,
                subtask=self._slot,
                user_traceback=user_traceback(error),
            ) from error


def in_parts(prepared: list[tuple[str, bytes]]) -> list[list[tuple[str, bytes]]]:
    """The output that sinks prepared, split into parts of which each fits into a message; at least one part."""
    parts: list[list[tuple[str, bytes]]] = [[]]
    size = 0
    for uid, data in prepared:
        if parts[-1] and size + len(data) > LARGEST_PREPARED:
            parts.append([])
            size = 0
        parts[-1].append((uid, data))
        size += len(data)
    return parts
