"""The place where a process listens: the address that it binds, the one that peers dial, and the ports it may take."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

from tailrace.errors import ConfigError
from tailrace.runtime.network.tls import Tls

ANY_PORT = range(1)
"""Port 0: the system chooses one that is free."""
REMEDY = (
    "set TAILRACE_DRIVER_HOST to an address of the driver's machine that executors can dial, and keep the ports of "
    "TAILRACE_PORTS open to them"
)
"""Advice for executors that cannot reach the driver."""
_MOST = 65535


@dataclass(frozen=True)
class Binding:
    """A place to listen at. `listen` raises `ValueError` if this is no single place, and `OSError` if it cannot be had."""

    bound: str
    """An address of this machine. It is all of them (`0.0.0.0`, `::`) only if peers dial an address that is none of them."""
    dialed: str = ""
    """The address that peers dial, if it is another one, such as in front of a container."""
    ports: range = ANY_PORT
    tls: Tls | None = None
    """The certificates of both ends of a connection; None: nothing is encrypted."""

    def __str__(self) -> str:
        there = self.bound if self.dialed in ("", self.bound) else f"{self.bound}, dialed as {self.dialed}"
        return there if self.ports == ANY_PORT else f"{there}, {range_text(self.ports)}"

    @property
    def host(self) -> str:
        """The address that peers dial."""
        return self.dialed or self.bound

    def listen(self) -> socket.socket:
        """A socket that listens at this address and no other, on the first of the ports that is free."""
        if not self.bound:
            raise ValueError("a listener needs the one address that its peers dial")
        family, kind, proto, _, address = socket.getaddrinfo(self.bound, 0, type=socket.SOCK_STREAM)[0]
        if is_everywhere(str(address[0])) and (not self.dialed or is_everywhere(self.dialed)):
            raise ValueError(
                f"a listener is bound to one address that its peers dial, not to all of them ({self.bound})"
            )
        for port in self.ports:
            sock = socket.socket(family, kind, proto)
            try:
                if port:  # taken again at once by the next start of the same program
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address[0], port, *address[2:]))
                sock.listen(512)
                sock.setblocking(False)
            except OSError as error:
                sock.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return sock
        raise OSError(errno.EADDRINUSE, f"{range_text(self.ports)} of {self.bound} taken")

    def refusal(self, who: str, error: Exception) -> ConfigError:
        """The error of a process that cannot listen here. `who` was to reach it."""
        return ConfigError(
            f"{who} cannot reach this process at {self}: {error}. The address is that of TAILRACE_DRIVER_HOST, or else of "
            f"Spark's spark.driver.host (with Spark Connect: the one that leads to its server), and must be one of this "
            f"machine, or spark.driver.bindAddress says which one to bind; the ports are those of TAILRACE_PORTS"
        )


def range_text(ports: range) -> str:
    """A range of ports, as a user writes it."""
    return f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]}-{ports[-1]}"


def ports_of(text: str | None) -> range:
    """The ports that a setting allows: one (`40000`), or a range with both ends (`40000-40100`); any if it is empty.
    Raises `ValueError`."""
    if not text:
        return ANY_PORT
    first, dash, last = text.partition("-")
    if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
        raise ValueError(f"expected a port or a range of ports, such as 40000-40100, not {text!r}")
    ports = range(int(first), int(last if dash else first) + 1)
    if not ports or not 1 <= ports[0] <= ports[-1] <= _MOST:
        raise ValueError(f"ports are from 1 to {_MOST}, the smaller one first, not {text!r}")
    return ports


def is_everywhere(host: str) -> bool:
    """True for a host that stands for all addresses of a machine."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_unspecified
    except ValueError:  # a name
        return False


def is_loopback(host: str) -> bool:
    """True for an address at which a machine reaches only itself."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:  # a name
        return False


def is_ours(host: str) -> bool:
    """True if a process of this machine can listen at this address."""
    try:
        Binding(host).listen().close()
    except OSError:
        return False
    return True
