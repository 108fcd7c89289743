"""Links that a worker opens, to the coordinator and to other workers."""

from __future__ import annotations

from tailrace.retries import Retries
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.link import Link
from tailrace.runtime.network.listener import HungUp, dial

DIAL_SECONDS = 20.0
RETRIES = Retries(within=120.0, tries=8, first=0.05, most=0.5)


def reach(config: WorkerConfig, address: tuple[str, int], peer: str, patience: float | None = None) -> Link:
    """A link to a process of the job, with several tries: strangers in great numbers may crowd a worker out. Raises
    `DialFailed`."""
    return RETRIES.call(
        lambda: dial(address, config.token, DIAL_SECONDS, peer=peer, patience=patience, tls=config.tls),
        lambda error: isinstance(error, HungUp),
    )
