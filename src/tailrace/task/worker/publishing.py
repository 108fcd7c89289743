"""The publisher: one worker's part in making visible what sinks have prepared."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from tailrace.api.restore.compatibility import may_be_dropped, publishes
from tailrace.errors import IncompatibleState, OutOfReachError, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import Sink
from tailrace.graph.plan import Plan
from tailrace.protocol.deployment import NotPublished, Publish, Published, Settled
from tailrace.state.format import Placed
from tailrace.task.channels.services import Services
from tailrace.task.contract.actions import Action, CallSink, ReadPlaced, ToCoordinator
from tailrace.task.contract.events import SinkAnswered
from tailrace.task.operators.sink import LARGEST_PREPARED
from tailrace.task.worker.attribution import sendable

PREPARED = "output that sinks have prepared"
_DOING = {
    "publish": "publishing",
    "settled": "forgetting what it had published",
    "recover": "removing what was not published",
}


class _Call(NamedTuple):
    """A call of a sink."""

    uid: str
    method: str
    args: tuple[Any, ...]


@dataclass
class _Publication:
    """A `Publish` with the calls that are still to be made for it. The first one is under way."""

    message: Publish
    calls: deque[_Call] = field(default_factory=deque)
    skipped: bool = False
    """True if output of it was dropped."""


@dataclass(frozen=True)
class _Settlement:
    """Output that a sink is to forget, by a `Settled` of this number."""

    number: int
    call: _Call


class Publisher:
    """Publishes what the coordinator sends, and remembers it until the coordinator can never request it again. Output in
    files is read first. The calls of a message are made one after the other, beside the steps of the worker; those of
    another message do not wait for them."""

    def __init__(self, slot: int, plan: Plan, services: Services, numbers: Iterator[int]) -> None:
        """`numbers`: of requests, through all attempts of the worker."""
        self._slot = slot
        self._incarnation = services.incarnation
        self._sinks: dict[str, Node] = {n.uid: n for n in plan.graph.nodes if isinstance(n.operator, Sink)}
        self._allowed = services.allow_dropped_state
        self._numbers = numbers
        self._reads: dict[int, Publish] = {}
        """Messages whose output is being read, by the number of the request."""
        self._calls: dict[int, _Publication | _Settlement] = {}
        """What calls that are under way are made for, by the number of the request."""
        self._unsettled: dict[int, dict[tuple[int, str], list[bytes]]] = {}
        """Published output that may be requested again, by the number of the publication, its part and the sink."""

    def publish(self, message: Publish) -> list[Action]:
        """Takes a message of the coordinator. Raises `IncompatibleState` where no sink can publish it."""
        placed = tuple(one for _, prepared in message.prepared for one in prepared if isinstance(one, Placed))
        if not placed:
            return self._begin(message)
        number = next(self._numbers)
        self._reads[number] = message
        return [ReadPlaced(number, PREPARED, message.folder, placed)]

    def awaits(self, number: int) -> bool:
        """True if an answer with this number is for a `ReadPlaced` request of this publisher."""
        return number in self._reads

    def read(self, number: int, data: Sequence[bytes]) -> list[Action]:
        """Goes on with a message whose output was read."""
        bytes_of, message = iter(data), self._reads.pop(number)
        whole = [
            (uid, [next(bytes_of) if isinstance(one, Placed) else one for one in prepared])
            for uid, prepared in message.prepared
        ]
        return self._begin(msgspec.structs.replace(message, prepared=whole))

    def _begin(self, message: Publish) -> list[Action]:
        publication = _Publication(message)
        for uid, prepared in message.prepared:
            if uid in self._sinks:
                publication.calls.append(_Call(uid, "publish", (prepared,)))
            elif may_be_dropped(uid, self._allowed):
                publication.skipped = True
            else:
                raise IncompatibleState(
                    f"the sink with uid {uid!r} prepared output that must still be published, and the dataflow has no such "
                    f"sink: give the sink uid={uid!r}, or give its output up: allow_dropped_state=[{uid!r}]"
                )
        for uid in self._sinks if message.recover else ():
            publication.calls.append(_Call(uid, "recover", (message.recover, self._incarnation, uid)))
        return self._go_on(publication)

    def _go_on(self, publication: _Publication) -> list[Action]:
        """Makes the next call, or reports that all were made."""
        if publication.calls:
            return [self._call(publication, publication.calls[0])]
        message = publication.message
        return [ToCoordinator(Published(message.number, publication.skipped, message.part))]

    def _call(self, whose: _Publication | _Settlement, call: _Call) -> CallSink:
        number, node = next(self._numbers), self._sinks[call.uid]
        assert isinstance(node.operator, Sink)
        self._calls[number] = whose
        return CallSink(number, *call, node.operator.sink, node.name)

    def take_answer(self, answer: SinkAnswered) -> list[Action]:
        """Takes the end of a call; one of an earlier attempt is ignored. Raises `UserCodeError` for an error that would come
        again."""
        whose = self._calls.pop(answer.number, None)
        if isinstance(whose, _Settlement):
            if answer.error:  # the sink is called again with what is settled next
                self._unsettled.setdefault(whose.number, {})[-answer.number, whose.call.uid] = whose.call.args[0]
            return []
        if whose is None:
            return []
        if answer.error:
            return [self._failure(whose, answer)]
        self._note(whose, whose.calls.popleft())
        return self._go_on(whose)

    def _failure(self, publication: _Publication, answer: SinkAnswered) -> Action:
        call, message = publication.calls[0], publication.message
        name, what = self._sinks[call.uid].name, f"{_DOING[call.method]} raised {answer.error}"
        if answer.permanent:
            raise UserCodeError(what, operator=name, subtask=self._slot, user_traceback=answer.traceback)
        reason = sendable(str(OutOfReachError(what, operator=name, subtask=self._slot)))
        trace = sendable(answer.traceback)
        return ToCoordinator(NotPublished(message.number, message.tries, reason, message.part, name, trace))

    def _note(self, publication: _Publication, call: _Call) -> None:
        """Notes the end of a call."""
        operator, message = self._sinks[call.uid].operator, publication.message
        if call.method != "publish" or not isinstance(operator, Sink):
            return
        publication.skipped = publication.skipped or not publishes(operator.sink)
        self._unsettled.setdefault(message.number, {})[message.part, call.uid] = call.args[0]

    def settle(self, message: Settled) -> list[Action]:
        """Lets sinks forget publications that the coordinator will never request again."""
        done = [n for n in self._unsettled if 0 < n <= message.number or (n == 0 and message.restored)]
        by_uid: dict[str, list[bytes]] = {}
        for number in done:
            for (_, uid), prepared in self._unsettled.pop(number).items():
                by_uid.setdefault(uid, []).extend(prepared)
        calls = [_Call(uid, "settled", (prepared,)) for uid, prepared in by_uid.items()]
        return [self._call(_Settlement(message.number, call), call) for call in calls]


def with_one_publisher(plan: Plan) -> frozenset[str]:
    """The uids of the sinks for which one worker publishes what all subtasks have prepared."""
    sinks = [(n.uid, n.operator.sink) for n in plan.graph.nodes if isinstance(n.operator, Sink)]
    return frozenset(uid for uid, sink in sinks if getattr(sink, "one_publisher", False))


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
