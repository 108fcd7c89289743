"""The contract between a job's coordinator and whatever gives it worker processes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.config import WorkerConfig


class SlotEnded(Protocol):
    """Called, from any thread, when the job of a slot has ended."""

    def __call__(self, slot: int, error: str | None, cancelled: bool, unfit: bool = False) -> None:
        """`cancelled`: somebody cancelled it. `unfit`: it was where something is missing that any worker needs."""
        ...


Leaving = Callable[[Collection[tuple[int, int]]], None]
"""Called, from any thread, with the starts of slots (slot, launch) whose machines are about to go."""


class SlotProvider(Protocol):
    """Runs workers. `tailrace.spark.slots.provider` does it as Spark jobs."""

    def listen_at(self) -> Binding:
        """Where workers reach the coordinator. Raises `ConfigError` for settings that say no place."""
        ...

    def launch(self, config: WorkerConfig, ended: SlotEnded) -> None:
        """Starts a worker; `ended` is called exactly once when it is gone."""
        ...

    def watch(self, leaving: Leaving) -> None:
        """From now on until `close`: tells of workers whose machines are about to go, again and again while they are
        there."""
        ...

    def kill(self, slot: int, launch: int, pid: int | None) -> None:
        """Ends one start of a slot's worker that did not leave by itself. `pid` is its process, where it is known."""
        ...

    def executor(self, slot: int, launch: int) -> str | None:
        """The id of the executor that runs one start of a slot; None where nobody says."""
        ...

    def lives(self) -> bool:
        """Whether workers can be started at all."""
        ...

    def close(self, timeout: float) -> None:
        """Waits, at most `timeout` seconds, for the provider's own threads."""
        ...
