"""Close looks at the workers of a job that are under way: stacks of threads, and keys that take long."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tailrace.coordinator.workers.roster import Roster
from tailrace.protocol.deployment import Inspect, Inspection
from tailrace.runtime.driver.user_requests import WishFuture

PATIENCE = 3.0
"""Seconds for which an answer is awaited, behind those of the look itself. Code that holds the interpreter gives none."""
SILENT = "no answer: code that holds the interpreter, such as a C extension, or a machine that is suspended"
Whose = tuple[int, int]
"""A process: the place that it was started for, and its number on its machine."""


@dataclass
class _Look:
    request: Inspect
    future: WishFuture
    until: float
    """The time at which no more answers are awaited, in seconds of the monotonic clock."""
    workers: dict[Whose, dict[str, Any]]
    """The processes that are there, as they are shown, with their answers."""
    keys: Counter[tuple[str, str]] = field(default_factory=Counter)
    looks: Counter[str] = field(default_factory=Counter)
    answered: set[Whose] = field(default_factory=set)


class Inspections:
    """The close looks of one job. Only the thread of its runner calls these methods."""

    def __init__(self, roster: Roster, send: Callable[[Inspect], None]) -> None:
        """`send` brings a request to all processes of workers."""
        self._roster, self._send = roster, send
        self._numbers = itertools.count(1)
        self._looks: dict[int, _Look] = {}

    def begin(self, seconds: float, future: WishFuture) -> None:
        """Requests a close look at all workers, which takes these seconds."""
        number, until = next(self._numbers), time.monotonic() + seconds + PATIENCE
        slots = len(self._roster.slots)
        workers: dict[Whose, dict[str, Any]] = {}
        for place in self._roster.places:
            hello = place.hello
            if hello is not None:
                whose = (hello.slot if hello.place is None else hello.place, hello.pid)
                known = {"worker": place.index, "standby": place.index >= slots, "host": hello.host, "pid": hello.pid}
                workers[whose] = {**known, "threads": [], "problem": SILENT}
        request = Inspect(number, seconds)
        self._looks[number] = _Look(request, future, until, workers)
        self._send(request)
        self._end_if_complete(number)

    def receive(self, answer: Inspection) -> None:
        """Takes the answer of a process."""
        look, whose = self._looks.get(answer.number), (answer.slot, answer.pid)
        if look is None or whose not in look.workers or whose in look.answered:
            return
        shown = look.workers[whose]
        shown["problem"] = ""
        shown["threads"] = [
            {"thread": one.thread, "operator": one.operator, "stack": one.stack} for one in answer.threads
        ]
        look.answered.add(whose)
        look.looks.update(answer.looks)
        for one in answer.keys:
            look.keys[one.operator, one.key] += one.looks
        self._end_if_complete(answer.number)

    def open(self) -> list[Inspect]:
        """The requests whose answers are awaited."""
        return [look.request for look in self._looks.values()]

    @property
    def next_deadline(self) -> float | None:
        """The time at which the answers to a request are not awaited any more."""
        return min((look.until for look in self._looks.values()), default=None)

    def expire(self, now: float) -> None:
        """Ends the looks whose time is over, with the answers that there are."""
        for number in [number for number, look in self._looks.items() if look.until <= now]:
            self._end(number)

    def _end_if_complete(self, number: int) -> None:
        look = self._looks[number]
        if len(look.answered) == len(look.workers):
            self._end(number)

    def _end(self, number: int) -> None:
        look = self._looks.pop(number)
        keys: dict[str, list[dict[str, Any]]] = {}
        for (operator, key), many in look.keys.most_common():
            keys.setdefault(operator, []).append({"key": key, "share": many / look.looks[operator]})
        if not look.future.done():
            look.future.set_result({"workers": list(look.workers.values()), "keys": keys})
