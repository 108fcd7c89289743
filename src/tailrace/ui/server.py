"""The server of a page: uvicorn in a thread of its own."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
import time
from typing import Any
from urllib.parse import urlencode

from tailrace.errors import ConfigError
from tailrace.log import log
from tailrace.runtime.network.tls import for_browsers
from tailrace.settings import SETTINGS
from tailrace.ui.guard import LOOPBACK, Guard, host_names
from tailrace.ui.jobs import Jobs, own_jobs

HOST = "127.0.0.1"
FIRST_PORT, PORTS = 4140, 16
"""The first port that a page takes where none is given, and how many it tries."""
READY_SECONDS = 10.0


class PageServer:
    """The server of one page, from its making until `close`. `url` is its address, `link` the address with the token."""

    def __init__(
        self, jobs: Jobs, guard: Guard, *, host: str = HOST, port: int | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        """`port`: None takes the first free one from 4140 on. Raises `ConfigError` where a library is missing or the port is
        taken."""
        uvicorn, app_of = _libraries()
        self.guard = guard
        self._socket = _socket_at(host, port)
        name = host if host in LOOPBACK else socket.getfqdn() if host in ("", "0.0.0.0", "::") else host
        shown = f"[{name}]" if ":" in name else name
        self.url = f"http{'' if tls is None else 's'}://{shown}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            app_of(jobs, guard), log_config=None, access_log=False, lifespan="off", http="h11", ws="none",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        config.load()
        config.ssl = tls
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="tailrace-page", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + READY_SECONDS
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)

    def link(self, job: str = "") -> str:
        """The address with the token, for whoever may give orders to jobs; of the page of one job, if its id is given."""
        parts = {"job": job, "token": "" if self.guard.read_only else self.guard.token}
        behind = urlencode({name: value for name, value in parts.items() if value})
        return f"{self.url}/#{behind}" if behind else f"{self.url}/"

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """Ends the server."""
        self._server.should_exit = True
        self._thread.join(READY_SECONDS)
        self._socket.close()


def _libraries() -> tuple[Any, Any]:
    try:
        import uvicorn

        from tailrace.ui.app import app_of
    except ImportError as error:
        raise ConfigError(f'the page of jobs needs {error.name}: pip install "tailrace[ui]"') from error
    return uvicorn, app_of


def _socket_at(host: str, port: int | None) -> socket.socket:
    """A socket at this port, or at the first free one."""
    tries = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in tries:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen()
        except OSError as error:
            found.close()
            if number == tries[-1]:
                what = f"port {port}" if port is not None else f"each port from {tries[0]} to {tries[-1]}"
                raise ConfigError(f"the page of jobs cannot listen on {what} of {host}: {error}") from error
        else:
            return found
    raise AssertionError("there is at least one port")


_lock = threading.Lock()
_own: dict[int | None, PageServer] = {}
"""The servers of this program's own jobs, by the port that was given."""


def own_page(port: int | None) -> PageServer:
    """The page of this program's own jobs, at this port or at the first free one. One server serves all of them, and ends
    with the process. Raises `ConfigError`."""
    with _lock:
        if port not in _own:
            hosts = host_names([SETTINGS["ui_hosts"].read() or ""])
            guard = Guard(hosts, bool(SETTINGS["ui_read_only"].read()))
            _own[port] = PageServer(own_jobs, guard, port=port, tls=for_browsers(SETTINGS["tls"].read()))
            announce(_own[port])
        return _own[port]


def announce(server: PageServer) -> None:
    """Puts the link into the log; on standard error where the log does not show it."""
    text = f"the page of jobs is at {server.link()}"
    if log.isEnabledFor(logging.INFO):
        log.info(text)
    else:
        print(f"tailrace: {text}", file=sys.stderr)
