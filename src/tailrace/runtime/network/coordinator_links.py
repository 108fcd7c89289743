"""The door of the coordinator for workers: it checks them, and keeps their links and their signs of life."""

from __future__ import annotations

import contextlib
import functools
import selectors
from collections.abc import Callable, Iterable

from tailrace.coordinator.machine import Coordinator
from tailrace.errors import ProtocolViolation
from tailrace.protocol import message_codec
from tailrace.protocol.deployment import Heartbeat, Hello, Inspect, Inspection, Leave
from tailrace.protocol.message_codec import FromWorker, ToWorker
from tailrace.protocol.succession import Rejoin
from tailrace.runtime.eventloop.clock import monotonic_micros
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.link import CONTROL, OVER, Link, LinkError
from tailrace.runtime.network.listener import Listener


class WorkerDoor:
    """The links of one job's workers. Their messages go to the coordinator's machine."""

    def __init__(
        self,
        token: bytes,
        at: Binding,
        loop: EventLoop,
        machine: Coordinator,
        placed: Callable[[int, FromWorker], FromWorker] = lambda slot, message: message,
        now: Callable[[], int] = monotonic_micros,
    ) -> None:
        self._now = now
        self._loop = loop
        self._machine = machine
        self._placed = placed
        """Completes the message of a worker, with its executor if that helps the user."""
        try:
            self.listener = Listener(token, at, loop, self._incoming)
        except (OSError, ValueError) as error:
            raise at.refusal("workers", error) from error
        self.links: dict[tuple[int, int], Link] = {}
        """Links by slot and epoch."""
        self.pids: dict[tuple[int, int], int] = {}
        """The process of each start of a slot or standby."""
        self.no_workers = 0
        """Number of connections that knew the token and were of no expected worker."""
        self._hearts: dict[Link, int] = {}
        self._strangers: set[Link] = set()
        self.rejoined: dict[Link, Rejoin] | None = None
        """The workers of a lost coordinator that have come, while they are awaited; else None."""
        self._speech = message_codec.Speech()
        self.on_inspection: Callable[[Inspection], None] = lambda answer: None
        """What takes the answers to `inspect`."""
        self.open_inspections: Callable[[], Iterable[Inspect]] = lambda: ()
        """The requests whose answers are awaited, for a thread that begins to give signs of life."""

    def send(self, slot: int, epoch: int, message: ToWorker) -> None:
        """Sends a message to a worker, if it is still there. Raises `TooLarge`."""
        link = self.links.get((slot, epoch))
        if link is None:
            return
        try:
            link.send(CONTROL, self._speech.encode(message))
            link.flush()
            self._watch(link)
        except LinkError as error:
            self._lose(slot, epoch, error.reason)

    def inspect(self, request: Inspect) -> None:
        """Requests a close look of the threads that give signs of life, in all processes that are there."""
        for heart in list(self._hearts):
            self._inspect(heart, request)

    def _inspect(self, heart: Link, request: Inspect) -> None:
        with contextlib.suppress(LinkError):  # it is about to be lost
            heart.send(CONTROL, message_codec.encode(request))
            heart.flush()

    def close_link(self, slot: int, epoch: int) -> None:
        """Closes the link of a worker that was replaced, or that the coordinator no longer receives messages from."""
        link = self.links.pop((slot, epoch), None)
        if link is not None:
            self._close(link)

    def stop_hearts(self, place: int) -> None:
        """Closes the heartbeat links of the worker that was started for a place: its other thread learns that the job is
        over, even while user code blocks."""
        for heart in [heart for heart, known in self._hearts.items() if known == place]:
            with contextlib.suppress(LinkError):
                heart.send(CONTROL, OVER)  # else a worker might wait for another coordinator
                heart.flush()
            self._close(heart)

    def close(self) -> None:
        """Closes all links, and the listener."""
        for link in [*self.links.values(), *self._hearts, *self._strangers]:
            self._close(link)
        self.listener.close()

    def _incoming(self, link: Link) -> None:
        """Takes a caller that knows the token; its first message identifies it."""
        self._strangers.add(link)
        self._loop.register(link, selectors.EVENT_READ, functools.partial(self._first_message, link))

    def _first_message(self, link: Link, mask: int) -> None:
        try:
            messages = link.readable()
            if not messages:
                return
            first, *rest = [message_codec.decode_greeting(payload) for _, payload in messages]
        except (LinkError, ProtocolViolation):
            self._refuse(link)
            return
        if isinstance(first, Hello) and not rest:  # until it is welcome a worker sends nothing else
            self._hello(link, first)
        elif isinstance(first, Rejoin) and self.rejoined is not None and not rest:
            self.rejoined[link] = first
            self._loop.modify(link, selectors.EVENT_READ, functools.partial(self._rejoined_ready, link))
        elif isinstance(first, Heartbeat):
            self._strangers.discard(link)
            self._hearts[link] = first.slot
            self._loop.modify(link, selectors.EVENT_READ, functools.partial(self._heart_ready, link))
            for request in self.open_inspections():
                self._inspect(link, request)
        else:
            self._refuse(link)

    def _hello(self, link: Link, hello: Hello) -> None:
        epoch = self._machine.hello(hello, self._now())
        if epoch is None:
            self._refuse(link)
            return
        self._strangers.discard(link)
        if hello.place is None:
            self.pids[hello.slot, hello.launch] = hello.pid
        link.peer = f"worker {hello.slot}"
        self.links[hello.slot, epoch] = link
        ready = functools.partial(self._worker_ready, hello.slot, epoch, link)
        self._loop.modify(link, selectors.EVENT_READ, ready)
        link.ready = ready

    def _rejoined_ready(self, link: Link, mask: int) -> None:
        """Notices where a worker that has come back is lost. It sends nothing until it may go on."""
        try:
            link.readable()
        except LinkError:
            if self.rejoined is not None:
                self.rejoined.pop(link, None)
            self._close(link)

    def take_back(self) -> None:
        """Takes the workers that have come back as those of this coordinator, and awaits no others."""
        come, self.rejoined = self.rejoined or {}, None
        for link, one in come.items():
            self._strangers.discard(link)
            self.pids[one.place, one.launch] = one.pid
            link.peer = f"worker {one.slot}"
            self.links[one.slot, one.epoch] = link
            link.ready = functools.partial(self._worker_ready, one.slot, one.epoch, link)
            self._loop.modify(link, selectors.EVENT_READ, link.ready)

    def send_away(self, reason: str) -> None:
        """Sends the workers that have come back away, and awaits no others."""
        come, self.rejoined = self.rejoined or {}, None
        for link in come:
            with contextlib.suppress(LinkError):
                link.send(CONTROL, self._speech.encode(Leave(reason)))
                link.flush()
            self._close(link)

    def _refuse(self, link: Link) -> None:
        self.no_workers += 1
        self._close(link)

    def _worker_ready(self, slot: int, epoch: int, link: Link, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                link.flush()
                self._watch(link)
            if mask & selectors.EVENT_READ:
                for _, payload in link.readable():
                    message = message_codec.decode_from_worker(payload)
                    if isinstance(
                        message, Hello
                    ):  # a standby has taken a slot; until it is welcome it sends nothing else
                        self.links.pop((slot, epoch), None)
                        self._hello(link, message)
                        return
                    self._machine.message(slot, epoch, self._placed(slot, message), self._now())
        except LinkError as error:
            self._lose(slot, epoch, error.reason)
        except ProtocolViolation as error:
            self._lose(slot, epoch, f"it broke the protocol: {error}")

    def _heart_ready(self, link: Link, mask: int) -> None:
        try:
            for _, payload in link.readable():
                beat = message_codec.decode_from_heart(payload)
                if isinstance(beat, Inspection):
                    self.on_inspection(beat)
                else:
                    self._machine.heartbeat(beat.slot, beat.pid, self._now(), beat.under_way, beat.leaving)
        except (LinkError, ProtocolViolation):
            self._close(link)

    def _watch(self, link: Link) -> None:
        """Watches for writability exactly while something is queued."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.needs_write else 0)
        if link.watched != events:
            assert link.ready is not None
            self._loop.modify(link, events, link.ready)
            link.watched = events

    def _lose(self, slot: int, epoch: int, reason: str) -> None:
        self.close_link(slot, epoch)
        self._machine.link_lost(slot, epoch, reason, self._now())

    def _close(self, link: Link) -> None:
        self._strangers.discard(link)
        self._hearts.pop(link, None)
        if link.fileno() >= 0:
            with contextlib.suppress(KeyError):
                self._loop.unregister(link)
            link.close()
