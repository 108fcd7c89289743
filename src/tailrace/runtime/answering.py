"""What a job answers other processes of its user, and the thread that answers for a job whose coordinator is elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from tailrace.coordinator.lifecycle import JobStatus
from tailrace.runtime.control import ControlDoor, Reply
from tailrace.runtime.loop import Loop
from tailrace.runtime.wishes import Wish, WishFuture, told, wish_of


def answer(
    request: dict[str, Any],
    reply: Reply,
    name: str,
    job_id: str,
    status: JobStatus,
    ask: Callable[[Wish, Reply], None],
) -> None:
    """Answers one request. `ask` has a wish seen to, and replies later."""
    verb, wish = request.get("verb"), wish_of(request)
    if verb == "who":
        reply({"name": name, "id": job_id, "status": str(status), "pid": os.getpid()})
    elif wish is not None:
        ask(wish, reply)
    else:
        reply({"error": f"unknown verb {verb!r}"})


class Answering(threading.Thread):
    """The door of a job whose coordinator is on an executor, in the program that follows it. That the coordinator is
    elsewhere is nothing that its user must know."""

    def __init__(
        self, name: str, job_id: str, status: Callable[[], JobStatus], wish: Callable[[Wish], WishFuture]
    ) -> None:
        super().__init__(name=f"tailrace-door-{name}", daemon=True)
        self._job, self._id, self._status, self._wish = name, job_id, status, wish
        self._over = False
        self._loop = Loop()
        self._door = ControlDoor(self._loop, self._asked)

    def run(self) -> None:
        while not self._over:
            self._loop.poll(None)
        self._shut()

    def close(self) -> None:
        """Shuts the door behind what is answered by now. From any thread, once."""
        if self.ident is None:
            self._shut()
        elif self._loop.call_soon_threadsafe(self._end):
            self.join()

    def _end(self) -> None:
        self._over = True

    def _shut(self) -> None:
        self._door.close()
        self._loop.close()

    def _asked(self, request: dict[str, Any], reply: Reply) -> None:
        answer(request, reply, self._job, self._id, self._status(), self._ask)

    def _ask(self, wish: Wish, reply: Reply) -> None:
        def taken(future: WishFuture) -> None:  # in the thread that carries letters
            self._loop.call_soon_threadsafe(partial(reply, told(future)))

        self._wish(wish).add_done_callback(taken)
