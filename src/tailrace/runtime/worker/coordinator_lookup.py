"""The look-up of another coordinator by a worker whose own is lost. It waits at the address in the newest claim of the
job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import msgspec

from tailrace.errors import TailraceError
from tailrace.protocol.message_codec import Outgoing
from tailrace.protocol.succession import Rejoin
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.link import Link
from tailrace.runtime.network.listener import dial
from tailrace.storage.store import Store

WAIT_SECONDS = 30.0
"""Seconds that a worker waits for another coordinator, and that one for the workers."""
LOOK_SECONDS = 0.2
DIAL_SECONDS = 5.0
Address = tuple[str, int]


def with_process(message: Outgoing, config: WorkerConfig) -> Outgoing:
    """A message to a coordinator; the first one to another coordinator names this process."""
    if not isinstance(message, Rejoin):
        return message
    return msgspec.structs.replace(message, place=config.slot, launch=config.launch, pid=os.getpid())


class CoordinatorLookup(threading.Thread):
    """The look-up, until a link to another coordinator is there, or the time is over. The loop calls `found` then, with the
    link and the address; or with None."""

    def __init__(
        self,
        config: WorkerConfig,
        lost: Address,
        open_store: Callable[[], Store],
        run_id: str,
        loop: EventLoop,
        found: Callable[[Link | None, Address], None],
        seconds: float = WAIT_SECONDS,
    ) -> None:
        super().__init__(name="tailrace-lookup", daemon=True)
        self._config, self._lost, self._open_store, self._run_id = config, lost, open_store, run_id
        self._loop, self._found, self._seconds = loop, found, seconds
        self._over = threading.Event()

    def stop(self) -> None:
        """Ends the look-up: the worker leaves."""
        self._over.set()

    def run(self) -> None:
        deadline = time.monotonic() + self._seconds
        link, address = None, self._lost
        while link is None and time.monotonic() < deadline and not self._over.wait(LOOK_SECONDS):
            try:
                address = self._address() or self._lost
                if address != self._lost:
                    link = dial(address, self._config.token, DIAL_SECONDS, peer="the coordinator", tls=self._config.tls)
            except (OSError, TailraceError):  # the storage is out of reach for a moment, or that one is lost as well
                continue
        self._loop.call_soon_threadsafe(lambda: self._found(link, address))

    def _address(self) -> Address | None:
        at = self._open_store().successor_at(self._run_id)
        host, _, port = at.rpartition(":")
        return (host, int(port)) if at else None
