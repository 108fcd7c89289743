"""Checks of what a job with standbys does where user code raises, or a link breaks, and of which slices they hold."""

from __future__ import annotations

import re

from tailrace.coordinator.actions import Send
from tailrace.coordinator.workers.standbys import Standby
from tailrace.protocol.snapshot import Trigger
from tailrace.protocol.standby import Hold
from tailrace.testing.strikes import RAISED
from tailrace.testing.world import Driver, Observer

_REPLACED = re.compile(r"worker \d+ has failed and is replaced: (.*)")
_RESTARTED = re.compile(r"restart \d+: (.*)")
_COMMITTED = re.compile(r" commit (\d+) done")
_STRUCK = re.compile(r"operator '(.*)', subtask \d+: .*" + re.escape(RAISED) + r" \((\d+)\)")


class FailureWatch(Observer):
    """An observer that checks that a worker is replaced for the first failure of its way only, until a checkpoint from
    behind it is complete, and that a restart for a later one has the first one as its cause. It looks at the first
    coordinator of a job only: that one may wake up beside its successor. And it checks that a hot standby keeps the slice
    whose worker it follows."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._first: dict[str, tuple[str, int, int]] = {}
        """Way of a failure -> (its number, or its text; the newest checkpoint that was triggered before it came last; the
        number of newer ones after which it is as if it had not been)."""
        self._triggered = 0
        self._driver: Driver | None = None
        self._over = False
        """True once another coordinator has begun."""

    def on_message(self, driver: Driver, action: Send) -> None:
        self._driver = self._driver or driver
        self._over = self._over or driver is not self._driver
        if isinstance(action.message, Hold):
            self._check_slices(driver, action.slot, action.message.slots)
        if isinstance(action.message, Trigger):
            self._triggered = max(self._triggered, action.message.cut.number)

    def _check_slices(self, driver: Driver, index: int, slots: list[int]) -> None:
        place = driver.coordinator.roster.at(index)
        if isinstance(place, Standby) and place.follows is not None and slots != [place.follows]:
            wrong = f"standby {index} follows worker {place.follows}, and is to hold the slices {slots}"
            self.wrong += [] if wrong in self.wrong else [wrong]

    def on_line(self, line: str) -> None:
        if self._over:
            return
        if (found := _REPLACED.search(line)) is not None:
            way, number = _way_of(found[1])
            if way in self._first:
                self.wrong.append(f"a worker is replaced for {found[1]!r}, and one was for that before")
            self._first[way] = number, self._triggered, 1
        elif (found := _RESTARTED.search(line)) is not None:
            way, number = _way_of(found[1])
            if way in self._first:
                first, *_ = self._first[way]
                self._first[way] = first, self._triggered, 2
                if first != number:
                    self.wrong.append(
                        f"all start again for {found[1]!r}, and the first failure of that way was {first}"
                    )
        elif (found := _COMMITTED.search(line)) is not None:
            complete = int(found[1])
            newer = {way: (first, at, left - (complete > at)) for way, (first, at, left) in self._first.items()}
            self._first = {way: one for way, one in newer.items() if one[2]}


def _way_of(text: str) -> tuple[str, str]:
    """The way of a failure by the first line of its text, and which one of that way it is."""
    struck = _STRUCK.search(text)
    if struck is not None:
        return struck[1], struck[2]
    return ("a link", text) if "has lost the connection to" in text else (text, text)
