"""The thread of a worker that gives signs of life, and ends the process where user code outlives the job."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable

from tailrace.protocol import wire
from tailrace.protocol.deployment import Heartbeat, UnderWay
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.dialing import reach
from tailrace.runtime.network.link import CONTROL
from tailrace.runtime.network.listener import DialFailed
from tailrace.runtime.worker.executor_end import ExecutorWatch

HEARTBEAT_SECONDS = 1.0
GRACE_SECONDS = 3.0
"""Seconds that user code may take to come back once the job is over."""


class Heart(threading.Thread):
    """The heartbeat of a worker. It beats until the coordinator closes the link, or the worker stops it. If the
    coordinator closes it the job is over, and user code that has not come back after a grace period is ended with the
    process. Each beat carries what `look` sees of the worker's thread, and whether its executor is about to go."""

    def __init__(self, config: WorkerConfig, look: Callable[[], UnderWay | None] = lambda: None) -> None:
        super().__init__(name="tailrace-heartbeat", daemon=True)
        self._config = config
        self._look = look
        self._executor = ExecutorWatch() if config.watches_executor else None
        self._done = threading.Event()
        self._sock: socket.socket | None = None

    def run(self) -> None:
        try:
            link = reach(self._config, self._config.address, "the coordinator")
        except DialFailed:
            return
        sock = self._sock = link.detach()
        sock.settimeout(HEARTBEAT_SECONDS)
        rest = b""
        try:
            while not self._done.is_set():
                rest = rest or self._beat()
                try:
                    rest = rest[sock.send(rest) :]
                    if not sock.recv(1):
                        break
                except TimeoutError:  # nothing to read, or no room: a coordinator that is suspended is not gone
                    continue
        except OSError:
            pass  # the coordinator is gone: as if it had closed
        finally:
            sock.close()
        if not self._done.wait(GRACE_SECONDS):
            os.kill(os.getpid(), signal.SIGKILL)

    def _beat(self) -> bytes:
        leaving = self._executor is not None and self._executor.look()
        payload = wire.encode(Heartbeat(self._config.slot, os.getpid(), self._look(), leaving))
        return len(payload).to_bytes(4, "little") + bytes([CONTROL]) + payload

    def spare(self) -> None:
        """Prevents the end of the process: the worker's own thread has come to its end."""
        self._done.set()

    def stop(self) -> None:
        """Waits for the thread's end, for a while."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(
                    self._sock, socket.SHUT_RDWR
                )  # it need not wait for its next beat; TLS is not ended
        self.join(timeout=GRACE_SECONDS)
