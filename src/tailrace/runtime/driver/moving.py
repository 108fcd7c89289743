"""Moves of workers whose machine is about to go: a checkpoint is taken, and they move elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.stats import CheckpointStats
from tailrace.runtime.eventloop.clock import monotonic_micros

CHECKPOINT_SECONDS = 10.0
"""Seconds that a move waits for a checkpoint. Machines that go leave little time: 30 s on Kubernetes."""


class Moving:
    """The moves of one job's workers, in the thread of its coordinator. `carry_out` carries out the coordinator's
    actions."""

    def __init__(self, machine: Coordinator, carry_out: Callable[[], None]) -> None:
        self._machine = machine
        self._carry_out = carry_out
        self._waiting: set[tuple[int, int]] = set()
        self._at = 0.0
        self._requested = 0
        """Number of checkpoints requested. A checkpoint of an earlier move may come late, and does not count for this
        one."""

    def leaving(self, launches: Collection[tuple[int, int]]) -> None:
        """Notes that the machines of these starts of slots will go. It may be called again and again, as long as they are
        there."""
        machine = self._machine
        if not machine.movable or machine.status is not JobStatus.RUNNING or not launches:
            return
        first = not self._waiting
        self._waiting.update(launches)
        if first:
            self._at = time.monotonic() + CHECKPOINT_SECONDS
            self._requested += 1
            requested, taken = self._requested, Future[CheckpointStats]()
            taken.add_done_callback(lambda done: self._go(requested))
            machine.checkpoint(taken, monotonic_micros())
            self._carry_out()

    def _go(self, requested: int) -> None:
        if requested == self._requested:
            self._at = 0.0  # whatever the result: there is nothing more to wait for

    def wait(self) -> float | None:
        """Seconds until there is something to do; None for nothing."""
        return max(0.0, self._at - time.monotonic()) if self._waiting else None

    def turn(self) -> None:
        """Moves the workers, if it is time."""
        if self._waiting and self._at <= time.monotonic():
            launches, self._waiting = self._waiting, set()
            self._machine.move(launches, monotonic_micros())
