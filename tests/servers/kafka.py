"""Kafka: noida-db, or any that `TAILRACE_TEST_KAFKA=host:port` names.

noida-db has no transaction time-outs, accepts a wrong epoch at the end of a transaction, and is a single broker without TLS,
SASL and consumer groups of the new protocol: tests of these need a real Kafka. It writes to disk once a second, and when it
is ended, and forgets which producer has which transactional id: behind a restart it neither refuses a producer of before
nor aborts what that has left open. A SIGKILL takes away up to a second of what it had acknowledged, as a failover to a
replica that was behind does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib import resources, util
from pathlib import Path

from tests.servers.process import External, Server, listens, missing, run


@contextlib.contextmanager
def kafka_server() -> Iterator[Server]:
    """A broker; `url` is its host and port, for `bootstrap.servers`."""
    if known := os.environ.get("TAILRACE_TEST_KAFKA"):
        yield External("Kafka", known)
        return
    if util.find_spec("noida_db") is None:
        missing("Kafka", "noida-db")
    with run(_broker) as server:
        yield server


def _broker(folder: Path, port: int) -> Server:
    program = str(resources.files("noida_db") / "noida-db")
    os.chmod(program, 0o755)
    command = [program, "start", "--only", "kafka", "--kafka-port", str(port), "--data-dir", str(folder)]
    return _Broker("noida-db", f"127.0.0.1:{port}", port, command, lambda: listens(port))


class _Broker(Server):
    def kill(self) -> None:
        """Ends the process, and with it all connections at once. What it had acknowledged stays: it needs a SIGTERM for
        that, and ends then within its own requests as a killed broker with replicas does."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.stop()
        super().kill()

    def lose(self) -> None:
        """Kills the process by SIGKILL: what it had acknowledged in the last second may be lost."""
        super().kill()
