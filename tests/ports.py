"""Ports for tests of what has to be at a given one."""

from __future__ import annotations

from tailrace.runtime.binding import Binding


def free_ports(wanted: int) -> range:
    """So many ports in a row that nobody listens at."""
    for first in range(42_000, 60_000, wanted):
        ports = range(first, first + wanted)
        try:
            for port in ports:
                Binding("127.0.0.1", ports=range(port, port + 1)).listen().close()
        except OSError:
            continue
        return ports
    raise AssertionError("this machine has no ports left")
