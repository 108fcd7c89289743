"""Checks of workers that have taken a slot with the state that they held: it must equal the state of a full restore."""

from __future__ import annotations

from typing import Any

from search.watchers.shadows import Shadows, differences_of_state, differences_of_the_rest
from tailrace.protocol.replay import Resume
from tailrace.task.contract.events import CoordinatorSaid, Event, StateRead
from tailrace.testing.world import SimulatedProcess


class Mirrored(Shadows):
    """An observer that compares each of these workers when it is restored. `compared` counts them, and `ahead` those that
    read nothing for it."""

    def __init__(self) -> None:
        super().__init__(0)
        self.ahead = 0

    def on_line(self, line: str) -> None:
        """Does nothing: workers are not compared between restores."""

    def on_event(self, process: SimulatedProcess, event: Event) -> None:
        attempt = process.machine.attempt
        if attempt is None or attempt.mirror is None or process.machine.failed or not attempt.opened:
            return
        # Another `StateRead` answers a request from the time when the process stood by.
        read = isinstance(event, StateRead) and event.number == attempt.state_requested
        ahead = isinstance(event, CoordinatorSaid) and isinstance(event.message, Resume)
        if not read and not ahead:
            return
        self.compared += 1
        self.ahead += ahead
        resume = attempt._resume
        whole = self.shadow(process, attempt, 0 if resume is None else resume.checkpoint, resume)
        found: list[Any] = [
            f"worker {process.slot}, {one.id}: {what}"
            for one, other in zip(attempt.slice.tasks, whole.slice.tasks, strict=True)
            for what in (*differences_of_state(one, other), *differences_of_the_rest(one, other))
        ]
        self.wrong += found[:3]
