"""The open links of a worker: the reader of each, and which of them wait for room to write."""

from __future__ import annotations

import functools
import selectors
from collections.abc import Callable, Iterator

from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.network.link import Link, LinkError


class Links:
    """The open links of a worker. Spark uses a worker's process again, so at the end all of them are closed."""

    def __init__(self, loop: EventLoop, lost: Callable[[Link, LinkError], None]) -> None:
        self._loop = loop
        self._lost = lost
        """The reaction to a link that is of no more use."""
        self._ready: dict[Link, Callable[[], None]] = {}

    def __contains__(self, link: Link) -> bool:
        return link in self._ready

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._ready))

    def read_by(self, link: Link, ready: Callable[[], None]) -> None:
        """Lets `ready` read the link from now on; the link may be a new one."""
        known = link in self._ready
        self._ready[link] = ready
        if not known:
            self._loop.register(link, selectors.EVENT_READ, functools.partial(self._serve, link))

    def send(self, link: Link, kind: int, data: bytes) -> None:
        """Queues a message."""
        try:
            link.send(kind, data)
        except LinkError as error:
            self._lost(link, error)

    def flush(self, link: Link) -> None:
        """Sends queued messages as far as the socket takes them; the rest when there is room."""
        try:
            link.flush()
        except LinkError as error:
            self._lost(link, error)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.needs_write else 0)
        if link in self._ready and link.watched != events:
            self._loop.modify(link, events, functools.partial(self._serve, link))
            link.watched = events

    def forget(self, link: Link) -> None:
        """Closes a link."""
        if self._ready.pop(link, None) is not None:
            self._loop.unregister(link)
        link.close()

    def _serve(self, link: Link, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self.flush(link)
        if mask & selectors.EVENT_READ and link in self._ready:
            self._ready[link]()
