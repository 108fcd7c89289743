"""The thread of a worker that gives signs of life, and ends the process where user code outlives the job."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable

from tailrace.errors import ProtocolViolation
from tailrace.protocol import message_codec
from tailrace.protocol.deployment import Heartbeat, Inspect, Inspection, UnderWay
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.dialing import reach
from tailrace.runtime.network.link import CONTROL, OVER
from tailrace.runtime.network.listener import DialFailed
from tailrace.runtime.worker.executor_end import ExecutorWatch

HEARTBEAT_SECONDS = 1.0
WAIT_SECONDS = 40.0
"""Seconds that the process lives on without a coordinator at most: longer than its own thread looks for another one."""
GRACE_SECONDS = 3.0
"""Seconds that user code may take to come back once the job is over."""


_HEAD = 5
"""Bytes before the payload of a frame: its length and its kind."""


def _frame(payload: bytes) -> bytes:
    """A control message as it goes over a link."""
    return len(payload).to_bytes(4, "little") + bytes([CONTROL]) + payload


class Heart(threading.Thread):
    """The heartbeat of a worker. It beats until the coordinator closes the link, or the worker stops it. If the
    coordinator closes it the job is over, and user code that has not come back after a grace period is ended with the
    process. A worker that waits for another coordinator has longer, unless `OVER` has come before. Each beat carries what
    `look` sees of the worker's thread, and whether its executor is about to go. Requests of the coordinator to look more
    closely are answered between two beats (`inspect`)."""

    def __init__(
        self,
        config: WorkerConfig,
        look: Callable[[], UnderWay | None] = lambda: None,
        waits: Callable[[], bool] = lambda: False,
        inspect: Callable[[Inspect], Inspection] | None = None,
    ) -> None:
        super().__init__(name="tailrace-heartbeat", daemon=True)
        self._config = config
        self._look, self._inspect = look, inspect
        self._executor = ExecutorWatch() if config.watches_executor else None
        self._waits = waits
        """True if the worker waits for another coordinator where its own is lost."""
        self._address = config.address
        self._moved = threading.Event()
        """Set once there is another coordinator, or none is needed."""
        self._over = False
        """True if the coordinator has sent that the job is over."""
        self._done = threading.Event()
        self._sock: socket.socket | None = None

    def run(self) -> None:
        try:
            self._beat_until_lost()
            while self._waits() and not self._over and self._moved.wait(WAIT_SECONDS) and not self._done.is_set():
                self._moved.clear()
                self._beat_until_lost()
        except DialFailed:
            return
        if not self._done.wait(GRACE_SECONDS):
            os.kill(os.getpid(), signal.SIGKILL)

    def follow(self, address: tuple[str, int]) -> None:
        """Beats for another coordinator from now on."""
        self._address = address
        self._moved.set()

    def _beat_until_lost(self) -> None:
        """Beats until the link is closed, or breaks. Raises `DialFailed`."""
        link = reach(self._config, self._address, "the coordinator")
        sock = self._sock = link.detach()
        sock.settimeout(HEARTBEAT_SECONDS)
        rest = unread = b""
        try:
            while not self._done.is_set() and not self._over:
                rest = rest or self._beat()
                try:
                    rest = rest[sock.send(rest) :]
                    data = sock.recv(4096)
                except TimeoutError:  # nothing to read, or no room: a coordinator that is suspended is not gone
                    continue
                if not data:
                    break
                answers, unread = self._answers(unread + data)
                rest += answers
        except (OSError, ProtocolViolation):
            pass  # the coordinator is gone: as if it had closed
        finally:
            sock.close()

    def _answers(self, unread: bytes) -> tuple[bytes, bytes]:
        """The answers to the requests in what has come, and the rest of it. Raises `ProtocolViolation`."""
        answers = b""
        while len(unread) >= _HEAD and len(unread) >= (end := _HEAD + int.from_bytes(unread[:4], "little")):
            payload, unread = unread[_HEAD:end], unread[end:]
            if payload == OVER:
                self._over = True
            elif self._inspect is not None:
                answers += _frame(message_codec.encode(self._inspect(message_codec.decode_to_heart(payload))))
        return answers, unread

    def _beat(self) -> bytes:
        leaving = self._executor is not None and self._executor.look()
        return _frame(message_codec.encode(Heartbeat(self._config.slot, os.getpid(), self._look(), leaving)))

    def spare(self) -> None:
        """Prevents the end of the process: the worker's own thread has come to its end."""
        self._done.set()
        self._moved.set()

    def stop(self) -> None:
        """Waits for the thread's end, for a while."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(
                    self._sock, socket.SHUT_RDWR
                )  # it need not wait for its next beat; TLS is not ended
        self.join(timeout=GRACE_SECONDS)
