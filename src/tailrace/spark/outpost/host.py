"""A coordinator's process on an executor, as its Spark task opens it (`remote`)."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field

from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.tls import Tls
from tailrace.runtime.outpost.outpost import Outpost


@dataclass(frozen=True)
class OutpostSettings:
    """The settings that an outpost starts with."""

    token: bytes = field(repr=False)
    ports: range
    tls: Tls | None
    limit: int


def open_outpost(settings: OutpostSettings, address: str) -> tuple[Outpost | None, str]:
    """Opens an outpost. Returns it and, as JSON, its address; or None and the reason why it cannot listen. `address` is
    the address of the executor, with Spark's port."""
    host = address.rpartition(":")[0].strip("[]") or address
    at = Binding(host, ports=settings.ports, tls=settings.tls)
    try:
        outpost = Outpost(at, settings.limit, token=settings.token)
    except (OSError, ValueError) as error:
        return None, json.dumps({"refused": f"the executor on {socket.gethostname()} cannot listen at {at}: {error}"})
    return outpost, json.dumps({"at": outpost.listener.address})
