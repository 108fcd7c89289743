"""What a worker knows before its first message."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.runtime.network.binding import ANY_PORT
from tailrace.runtime.network.tls import Tls


@dataclass(frozen=True)
class WorkerConfig:
    """What travels in the closure of a worker's Spark task."""

    slot: int
    job: str
    incarnation: int
    address: tuple[str, int]
    token: bytes = field(repr=False)
    launch: int = 1
    """Which start of the slot this is."""
    ports: range = ANY_PORT
    """Those at which it may listen."""
    tls: Tls | None = None
    """What it shows, and whom it trusts, on every connection of the job; None: nothing is encrypted."""

    executor: str = ""
    """The executor that runs it, as its own process knows; empty where that does not."""

    def __repr__(self) -> str:  # the token stays out of every log and error
        return f"WorkerConfig(slot={self.slot}, job={self.job!r}, address={self.address})"
