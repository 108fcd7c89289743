"""Checks of workers that have taken a slot with the state that they held: it must equal the state of a full restore."""

from __future__ import annotations

from typing import Any

from search.watchers.shadows import Shadows, differences_of_state
from tailrace.task.contract.events import Event, StateRead
from tailrace.testing.world import SimulatedProcess


class Mirrored(Shadows):
    """An observer that compares each of these workers when it is restored. `compared` counts them."""

    def __init__(self) -> None:
        super().__init__(0)

    def on_line(self, line: str) -> None:
        """Does nothing: workers are not compared between restores."""

    def on_event(self, process: SimulatedProcess, event: Event) -> None:
        attempt = process.machine.attempt
        if not isinstance(event, StateRead) or attempt is None or not attempt.held or process.machine.failed:
            return
        if event.number != attempt.state_requested:
            return  # it answers a request from the time when the process stood by
        self.compared += 1
        whole = self.shadow(process, attempt, 0)
        found: list[Any] = [
            f"worker {process.slot}, {one.id}: {what}"
            for one, other in zip(attempt.slice.tasks, whole.slice.tasks, strict=True)
            for what in differences_of_state(one, other)
        ]
        self.wrong += found[:3]
