"""The event loop of a process: one selector, callbacks with the event mask, and a way in from other threads.

Every registered file object has one callback, called with the mask of its events (`selectors.EVENT_READ`,
`EVENT_WRITE`) from inside `poll`. Events are level-triggered: what a callback leaves undone is reported again.
"""

import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

Callback = Callable[[int], object]
FD_SETSIZE = 1024
"""Limit of `select` for the numbers of files."""


class Registry(Protocol):
    """The part of a loop by which a part of a worker is served; an `EventLoop` and any `selectors` selector have it.

    The third argument is always a `Callback`.
    """

    def register(self, fileobj: Any, events: int, callback: Any, /) -> Any: ...

    def modify(self, fileobj: Any, events: int, callback: Any, /) -> Any: ...

    def unregister(self, fileobj: Any, /) -> Any: ...


class EventLoop:
    """The one loop of a process. Only `wake` and `call_soon_threadsafe` may be called from other threads.

    File objects belong to the code that registered them; closing the loop closes none of them. Unregister before closing.
    """

    def __init__(self) -> None:
        self.looked_at = time.monotonic()
        """Time at which `poll` last saw which files were ready. No others have been served since."""
        self._selector = selectors.DefaultSelector()
        self._coarse = _counts_milliseconds(self._selector)
        self._calls: deque[Callable[[], object]] = deque()
        self._lock = threading.RLock()  # guards the two below; a signal handler may call wake, too
        self._woken = False  # a byte is on its way to _wake_out
        self._closed = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._wake_ready)

    def register(self, fileobj: Any, events: int, callback: Callback, /) -> None:
        self._selector.register(fileobj, events, callback)

    def modify(self, fileobj: Any, events: int, callback: Callback, /) -> None:
        self._selector.modify(fileobj, events, callback)

    def unregister(self, fileobj: Any, /) -> None:
        self._selector.unregister(fileobj)

    def poll(self, timeout: float | None) -> int:
        """Waits at most `timeout` seconds (None: as long as it takes) and serves what is ready. Returns how much was
        served.

        Returns early, possibly with 0, after `wake`. An exception of a callback comes out here; nothing is lost by it,
        because what it kept from being served is still ready at the next poll.
        """
        served = 0
        registered = self._selector.get_map()
        ready = self._ready(0 if self._calls else timeout)
        self.looked_at = time.monotonic()
        for key, mask in ready:
            # An earlier callback of this round may have changed or ended this registration, or reused its number.
            now = registered.get(key.fd)
            if now is None or now.fileobj is not key.fileobj:
                continue
            mask &= now.events
            if not mask:
                continue
            now.data(mask)
            served += now.data != self._wake_ready
        for _ in range(len(self._calls)):
            self._calls.popleft()()
            served += 1
        return served

    def _ready(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout and self._coarse:
            select.select([self._selector], [], [], timeout)
            timeout = 0
        return self._selector.select(timeout)

    def wake(self) -> None:
        """Lets the running or the next `poll` return at once. Any thread; no effect on a closed loop."""
        with self._lock:
            if self._closed or self._woken:
                return
            self._woken = True
            self._wake_in.send(b"\0")

    def call_soon_threadsafe(self, f: Callable[[], object]) -> bool:
        """Runs `f()` in `poll`, in order of the calls. Any thread. False if the loop is closed: it will never run."""
        with self._lock:
            if self._closed:
                return False
            self._calls.append(f)
        self.wake()
        return True

    def close(self) -> None:
        """Forgets all registrations and calls. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()
            self._calls.clear()

    def _wake_ready(self, mask: int) -> None:
        with self._lock:
            self._wake_out.recv(16)
            self._woken = False


def _counts_milliseconds(selector: selectors.BaseSelector) -> bool:
    """True if a selector waits for whole milliseconds, rounded up, so that a source would be woken that much too late.
    `select` does not, and can wait for the selector, which is a file."""
    epoll = getattr(selectors, "EpollSelector", None)
    return epoll is not None and isinstance(selector, epoll) and selector.fileno() < FD_SETSIZE
