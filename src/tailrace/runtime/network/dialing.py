"""Links that a worker opens, to the coordinator and to other workers."""

from __future__ import annotations

import contextlib
import time

from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.link import Link
from tailrace.runtime.network.listener import HungUp, dial

DIAL_SECONDS = 20.0
DIAL_TRIES = 8
DIAL_PAUSE = 0.05


def reach(config: WorkerConfig, address: tuple[str, int], peer: str, patience: float | None = None) -> Link:
    """A link to a process of the job, with several tries: strangers in great numbers may crowd a worker out. Raises
    `DialFailed`."""
    for attempt in range(1, DIAL_TRIES):
        with contextlib.suppress(HungUp):
            return dial(address, config.token, DIAL_SECONDS, peer=peer, patience=patience, tls=config.tls)
        time.sleep(DIAL_PAUSE * attempt)
    return dial(address, config.token, DIAL_SECONDS, peer=peer, patience=patience, tls=config.tls)
