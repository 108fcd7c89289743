"""The knowledge of a worker before its first message."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.runtime.network.binding import ANY_PORT
from tailrace.runtime.network.tls import Tls


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a worker, in the closure of its Spark task."""

    slot: int
    job: str
    incarnation: int
    address: tuple[str, int]
    token: bytes = field(repr=False)
    launch: int = 1
    """Number of this start of the slot."""
    ports: range = ANY_PORT
    """Ports at which the worker may listen."""
    tls: Tls | None = None
    """The certificate that it shows, and the authority that it trusts, on every connection of the job; None: nothing is
    encrypted."""

    executor: str = ""
    """The executor that runs it, as its own process knows; empty if it does not."""

    intercepts: bool = False
    """True if workers of the job are replaced: what user code reads of clocks and random bytes is recorded."""
    watches_executor: bool = False
    """True if the worker is to report that Spark has decommissioned its executor: nobody else sees it."""

    waits: bool = False
    """True if workers of the job wait for another coordinator where theirs is lost."""

    def __repr__(self) -> str:  # the token stays out of every log and error
        return f"WorkerConfig(slot={self.slot}, job={self.job!r}, address={self.address})"
