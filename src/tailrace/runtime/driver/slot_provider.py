"""The contract between a job's coordinator and its provider of worker processes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.config import WorkerConfig


class SlotEnded(Protocol):
    """A callback for the end of a slot's Spark job. It is called from any thread."""

    def __call__(self, slot: int, error: str | None, cancelled: bool, unfit: bool = False) -> None:
        """`error`: why it ended, if it failed. `cancelled`: a user cancelled it. `unfit`: it ran where something is
        missing that any worker needs."""


Leaving = Callable[[Collection[tuple[int, int]]], None]
"""A callback for starts of slots (slot, launch) whose machines are about to go. It is called from any thread."""


Room = Callable[[int], None]
"""A callback for the number of task slots that a job may have: those that it holds, and free ones. It is called from any
thread."""


class SlotProvider(Protocol):
    """A provider of worker processes. `tailrace.spark.slots.worker_launch` runs them as Spark jobs."""

    def listen_at(self) -> Binding:
        """The binding at which workers reach the coordinator. Raises `ConfigError` for settings that give no place."""

    def launch(self, config: WorkerConfig, ended: SlotEnded) -> None:
        """Starts a worker; `ended` is called exactly once when it is gone."""

    def watch(self, leaving: Leaving, room: Room | None = None) -> None:
        """Begins to report workers whose machines are about to go, again and again while they are there, and to `room`, how
        many task slots there are, until `close`."""

    def kill(self, slot: int, launch: int, pid: int | None) -> None:
        """Ends one start of a slot's worker that did not leave by itself. `pid` is its process, if it is known."""

    def executor(self, slot: int, launch: int) -> str | None:
        """The id of the executor that runs one start of a slot; None if it is unknown."""

    def lives(self) -> bool:
        """True while workers can be started at all."""

    def close(self, timeout: float) -> None:
        """Waits, at most `timeout` seconds, for the provider's own threads."""
