"""The contract between a job's coordinator and whatever gives it worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tailrace.runtime.config import WorkerConfig

SlotEnded = Callable[[int, str | None, bool], None]
"""Called, from any thread, when the job of a slot has ended: (slot, error or None, whether somebody cancelled it)."""


class SlotProvider(Protocol):
    """Runs workers. `tailrace.spark.slots` does it as Spark jobs."""

    def listen_host(self) -> str:
        """The address on this machine under which workers reach the coordinator."""
        ...

    def launch(self, config: WorkerConfig, ended: SlotEnded) -> None:
        """Starts a worker; `ended` is called exactly once when it is gone."""
        ...

    def kill(self, slot: int, launch: int, pid: int | None) -> None:
        """Ends one start of a slot's worker that did not leave by itself. `pid` is its process, where it is known."""
        ...

    def lives(self) -> bool:
        """Whether workers can be started at all."""
        ...

    def close(self, timeout: float) -> None:
        """Waits, at most `timeout` seconds, for the provider's own threads."""
        ...
