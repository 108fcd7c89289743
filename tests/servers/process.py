"""A process of a server: started, killed and started anew at one port, with its data in one folder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from tests.ports import free_ports

WAIT = 30.0
"""Seconds until a server must be ready, or gone."""
DIES_WITH_ITS_PARENT = 1
"""`PR_SET_PDEATHSIG` of prctl."""


class Server:
    """A server of this test run. `address` is its host and port, `url` what its clients take."""

    ours = True
    """True if the test may kill the server."""

    def __init__(
        self, name: str, url: str, port: int, command: Sequence[str], ready: Callable[[], bool], user: str | None = None
    ) -> None:
        self.name, self.url, self.port, self.command, self.user = name, url, port, command, user
        self.address = f"127.0.0.1:{port}"
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115

    def start(self) -> None:
        """Starts the process and waits until it serves."""
        assert self._process is None, f"{self.name} runs already"
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            user=self.user,
            start_new_session=True,
            preexec_fn=_die_with_parent,
            cwd="/",
        )
        limit = time.monotonic() + WAIT
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > limit:
                self.kill()
                raise AssertionError(f"{self.name} did not start:\n{self.log()}")
            time.sleep(0.01)

    def kill(self) -> None:
        """Ends the process and its children by SIGKILL, and waits until they are gone. Data stays."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            parent.suspend()  # starts no more children
            children = parent.children(recursive=True)
            self._process.kill()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=WAIT)
        self._process.wait(WAIT)
        self._process = None

    def lose(self) -> None:
        """Kills the process so that what it had acknowledged may be lost, where it is a server that does so."""
        self.kill()

    def restart(self) -> None:
        """Kills the process if it runs, and starts it on the data that it had kept."""
        self.kill()
        self.start()

    def stop(self, signal_number: int = signal.SIGTERM) -> None:
        """Ends the process in its own way."""
        assert self._process is not None
        self._process.send_signal(signal_number)
        self._process.wait(WAIT)
        self._process = None

    def freeze(self) -> None:
        """Stops the process where it is (SIGSTOP): connections stay, and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets a frozen process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        """The text that the server has written."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        """Kills the process and gives up its text."""
        self.kill()
        self._log.close()


class External(Server):
    """A server that somebody else runs, named by an environment variable. Tests that would kill it are skipped."""

    ours = False

    def __init__(self, name: str, url: str) -> None:
        self.name = self.address = self.url = url
        self._reason = f"{name} at {url} is not ours to kill"

    def start(self) -> None:
        pass

    def kill(self) -> None:
        pytest.skip(self._reason)

    def lose(self) -> None:
        pytest.skip(self._reason)

    def restart(self) -> None:
        pytest.skip(self._reason)

    def stop(self, signal_number: int = signal.SIGTERM) -> None:
        pytest.skip(self._reason)

    def freeze(self) -> None:
        pytest.skip(self._reason)

    def thaw(self) -> None:
        pytest.skip(self._reason)

    def log(self) -> str:
        return ""

    def close(self) -> None:
        pass


@contextlib.contextmanager
def run(make: Callable[[Path, int], Server], user: str | None = None) -> Iterator[Server]:
    """Runs the server that `make(folder, port)` describes, in a temporary folder that `user` owns."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-server-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        server = make(folder, free_ports(1)[0])
        try:
            server.start()
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def missing(what: str, package: str) -> NoReturn:
    """Skips the test, or fails it where all tests have to run."""
    reason = f"{what}: pip install {package} (or ./dev setup)"
    if os.environ.get("CI") or os.environ.get("TAILRACE_TEST_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)


def listens(port: int) -> bool:
    """True if somebody accepts connections at the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _die_with_parent() -> None:
    """Sets that the kernel kills this process when the one of the tests is gone, however that ends."""
    with contextlib.suppress(OSError, AttributeError):  # it is Linux's
        ctypes.CDLL(None).prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL)
