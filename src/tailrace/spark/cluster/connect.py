"""The Spark application behind a session of Spark Connect: every question goes to its server.

There is no `SparkContext` here, except for `SparkSession.builder.remote("local[4]")`, whose server runs in this process:
its context answers as in a classic session.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.errors import ConfigError
from tailrace.runtime.network.binding import is_loopback, is_ours
from tailrace.spark.cluster.capacity import slots_of
from tailrace.spark.cluster.classic import Classic

_PORT = 15002
"""Port of a server where its address gives none."""
_ANSWER_SECONDS = 2.0
_folders: dict[str, str] = {}
"""Folders of sessions, by the session's id."""


@dataclass(frozen=True)
class Connect:
    """The application of a session of Spark Connect."""

    spark: Any

    @property
    def id(self) -> str:
        return str(self.spark.session_id)  # files belong to the session: other sessions of the server do not see them

    @property
    def master(self) -> str:
        return self.setting("spark.master") or "unknown"

    @property
    def is_local(self) -> bool:
        return self._own is not None and self._own.is_local

    @property
    def on_this_machine(self) -> bool:
        return self._own is not None and self._own.on_this_machine

    @functools.cached_property
    def _own(self) -> Classic | None:
        """The server's own application, where the server runs in this process."""
        from pyspark import SparkContext

        context = SparkContext._active_spark_context
        if context is None or "SPARK_LOCAL_REMOTE" not in os.environ:
            return None
        own = Classic(context)
        return own if own.over() is None and self.setting("spark.app.id") == own.id else None

    def choose_interpreter(self) -> None:
        """Does nothing: the server chooses, when it starts."""

    def setting(self, name: str) -> str | None:
        found = self.spark.conf.get(name, None)
        return None if found is None else str(found)

    @property
    def started(self) -> float:
        return float(self.setting("spark.app.startTime") or 0) / 1000

    @property
    def context(self) -> Any:
        return None if self._own is None else self._own.context

    def total_slots(self, profile: Any = None) -> int | None:
        """Number of tasks that run at once, by the number of cores. A server does not report its cores. The plan of a
        query that leaves its number of partitions to Spark shows it: there are as many partitions as cores, where no
        setting says otherwise."""
        if self._own is not None:
            return self._own.total_slots(profile)
        if self.setting("spark.default.parallelism") or self.setting("spark.sql.leafNodeDefaultParallelism"):
            return None
        [[plan]] = self.spark.sql("EXPLAIN SELECT * FROM range(1000000)").collect()
        cores = re.search(r"\bsplits=(\d+)", plan)
        return None if cores is None else slots_of(int(cores[1]), self.setting)

    def start_with(self, slots: int) -> str:
        return f'SparkSession.builder.remote("local[{slots}]")'

    @contextmanager
    def with_tags(self, tags: Sequence[str], description: str) -> Iterator[None]:
        try:
            for tag in tags:
                self.spark.addTag(tag)
            yield
        finally:
            for tag in tags:
                self.spark.removeTag(tag)

    def with_description(self, text: str) -> nullcontext[None]:
        """A context without effect: a client cannot set a description."""
        return nullcontext()

    def run(self, task: Callable[[Any], Any], schema: str, profile: Any = None) -> list[tuple[Any, ...]]:
        one = self.spark.range(0, 1, 1, 1).mapInArrow(task, schema, profile=profile)
        return [tuple(row) for row in one.collect()]

    def cancel(self, tag: str) -> None:
        if self.over() is None:  # the client would retry for minutes where the server is gone
            self.spark.interruptTag(tag)

    def executor(self, tag: str) -> tuple[str, str] | None:
        return None if self._own is None else self._own.executor(tag)

    def over(self) -> str | None:
        if self.spark.is_stopped:
            return "the Spark session was stopped"
        host, port = self._server()
        if host is None:  # a connection of the user's own making
            return None
        try:
            socket.create_connection((host, port), _ANSWER_SECONDS).close()
        except OSError as error:
            return f"the Spark Connect server at {host}:{port} is gone ({error})"
        return None

    def folder(self) -> str:
        """A folder in the driver's temporary folder that lives until the process ends; where the server runs in this
        process, a folder inside Spark's own."""
        if self._own is not None:
            return self._own.folder()
        if self.id not in _folders:
            _folders[self.id] = tempfile.mkdtemp(prefix="tailrace-session-")
            atexit.register(shutil.rmtree, _folders[self.id], ignore_errors=True)
        return _folders[self.id]

    def address(self, given: str | None) -> tuple[str, str]:
        """The address of this machine from which it reaches the server. Where the server is on this machine, too, its
        executors may be on other machines. They reach the server's driver at its own address, and so this process, where
        that is an address of this machine."""
        if self._own is not None:
            return self._own.address(given)
        if given and is_ours(given):
            return given, ""
        host, port = self._server()
        if host is None:
            raise ConfigError(
                "the address of this process is not known to a Spark Connect session with a ChannelBuilder of its own: set "
                "TAILRACE_DRIVER_HOST to the address at which executors reach this machine"
            )
        here = _way_to(host, port)
        theirs = self.setting("spark.driver.host")
        if is_loopback(here) and theirs is not None and not self._all_there() and is_ours(theirs):
            here = theirs
        return given or here, here

    def _all_there(self) -> bool:
        """True where the executors are on the machine of the server."""
        return self.master.startswith("local")

    def _server(self) -> tuple[str | None, int]:
        """The host and port where the server listens; the host is None where it is unknown."""
        with suppress(Exception):  # a `ChannelBuilder` of the user's may have neither
            endpoint = str(self.spark.client._builder.endpoint)
            host, _, port = endpoint.rpartition(":")
            return host.strip("[]"), int(port)
        return None, _PORT

    def send_archive(self, path: Path, name: str) -> None:
        self.spark.addArtifacts(f"{path.as_uri()}#{name}", archive=True)


def _way_to(host: str, port: int) -> str:
    """The address of this machine from which it would talk to another one. Nothing is sent."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"there is no way to the Spark Connect server at {host}:{port}: {error}") from error
