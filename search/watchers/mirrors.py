"""Looks at workers that have taken a slot with what they held of its state: it must be what a whole reading would have
given."""

from __future__ import annotations

from typing import Any

from search.watchers.shadows import Shadows, differences_of_state
from tailrace.task.contract.events import Event, StateRead
from tailrace.testing.world import Process


class Mirrored(Shadows):
    """Compares each of them at the moment at which it is restored. `compared` counts them."""

    def __init__(self) -> None:
        super().__init__(0)

    def noted(self, line: str) -> None:
        """Nothing is looked at in between."""

    def handled(self, process: Process, event: Event) -> None:
        attempt = process.machine.attempt
        if not isinstance(event, StateRead) or attempt is None or not attempt.held or process.machine.failed:
            return
        if event.number != attempt.state_asked:
            return  # it answers what was asked while the process stood by
        self.compared += 1
        whole = self.shadow(process, attempt, 0)
        found: list[Any] = [
            f"worker {process.slot}, {one.id}: {what}"
            for one, other in zip(attempt.slice.tasks, whole.slice.tasks, strict=True)
            for what in differences_of_state(one, other)
        ]
        self.wrong += found[:3]
