"""Ports for tests of what has to be at a given one."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

from tailrace.runtime.network.binding import Binding

LOCKS = os.environ.get("TAILRACE_TESTS_TEMP") or tempfile.gettempdir()
"""The folder of the locks, one for all processes of the tests: each has temporary files in a folder of its own."""
_LOCKS: list[IO[str]] = []
"""Locks on the ports that this process has taken, for as long as it lives."""


def free_ports(expected: int) -> range:
    """Ports in a row, as many as are requested, at which nobody listens and which no other process of these tests takes.
    None is among those that the system gives to who connects to somewhere: such a connection may take one at any moment."""
    lowest = _lowest_given_out()
    for first in range(lowest - 10_000, lowest - expected, expected):
        ports = range(first, first + expected)
        if not all(_is_ours(port) for port in ports):
            continue  # a look at it would be in the way of a server that starts there
        try:
            for port in ports:
                Binding("127.0.0.1", ports=range(port, port + 1)).listen().close()
        except OSError:
            continue
        return ports
    raise AssertionError("this machine has no ports left")


def _is_ours(port: int) -> bool:
    lock = open(f"{LOCKS}/tailrace-test-port-{os.getuid()}-{port}", "w")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return False
    _LOCKS.append(lock)
    return True


def _lowest_given_out() -> int:
    """The first port that the system gives to a connection whose port does not matter."""
    known = Path("/proc/sys/net/ipv4/ip_local_port_range")
    return int(known.read_text().split()[0]) if known.exists() else 32_768
