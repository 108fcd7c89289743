"""Test of the connection from executors to this process, for sessions of Spark Connect: their client may be on any
machine."""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
from collections.abc import Callable
from typing import Any

from tailrace.errors import ConfigError
from tailrace.log import log
from tailrace.runtime.network.binding import Binding
from tailrace.settings import SETTINGS
from tailrace.spark.cluster.application import application, is_connect
from tailrace.spark.shipping.spark_tasks import columns_of_one
from tailrace.spark.slots.driver_address import listen_at

SETTING = SETTINGS["coordinator"].variable
"""Place of the coordinators of jobs: `driver` or `executor`. Where it is not set: the driver, where executors reach it,
else an executor."""
DIAL_SECONDS = 5.0
WORD_SECONDS = 15.0
"""Seconds that a task waits for the word of this process after it has dialed it: this process may be busy."""
MOST_SECONDS = 30.0
"""Seconds that Spark has to run the task."""
_found: dict[tuple[str, str], bool] = {}
"""Results of earlier tests, by session and address."""


def is_out_of_reach(spark: Any, patience: float) -> bool:
    """True where a job of this session needs its coordinator on an executor. Raises `ConfigError` for an unknown value of
    the setting, and for one that this session cannot follow. Where no executor answers within `patience` seconds, the
    result is unknown and counts as False: the job itself then reports what is wrong."""
    setting = SETTINGS["coordinator"].read()
    if not is_connect(spark):
        if setting == "executor":
            raise ConfigError(
                f"{SETTING}=executor: only a session of Spark Connect can have a coordinator on an executor"
            )
        return False
    app = application(spark)
    if setting or app.on_this_machine:
        return setting == "executor"
    at = listen_at(app)
    key = (app.id, str(at))
    if key not in _found:
        reached = _is_reached(spark, at, min(patience, MOST_SECONDS))
        if reached is None:
            return False
        _found[key] = reached
        if not reached:
            log.warning(
                "no way leads from the executors to this program at %s: the coordinators of its jobs run on executors, and "
                "take two task slots more (%s=executor does this at once, TAILRACE_DRIVER_HOST names another address)",
                at.host,
                SETTING,
            )
    return not _found[key]


def _is_reached(spark: Any, at: Binding, patience: float) -> bool | None:
    """True where a Spark task reaches this process; None where Spark ran none in time."""
    app = application(spark)
    try:
        sock = at.listen()
    except (OSError, ValueError) as error:
        raise at.refusal("executors", error) from error
    answers: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
    word, tag = secrets.token_bytes(16), f"tailrace-reach-{secrets.token_hex(8)}"
    task = _dialing((at.host, sock.getsockname()[1]), len(word))

    def greet() -> None:
        sock.settimeout(None)
        with contextlib.suppress(OSError):  # closed
            while True:
                guest, _ = sock.accept()
                with contextlib.suppress(OSError), guest:
                    guest.sendall(word)

    def run() -> None:
        try:
            with app.with_tags([tag], "tailrace: can executors reach this program?"):
                [row] = spark.range(0, 1, 1, 1).mapInArrow(task, "heard binary").collect()
            answers.put(bytes(row.heard) == word)
        except BaseException:  # the job itself reports what is wrong there
            answers.put(None)

    for work in (greet, run):
        threading.Thread(target=work, name="tailrace-reach", daemon=True).start()
    try:
        return answers.get(timeout=patience)
    except queue.Empty:
        with contextlib.suppress(Exception):  # Spark is gone
            app.cancel(tag)
        return None
    finally:
        with contextlib.suppress(OSError):
            sock.shutdown(2)  # wakes the thread that accepts
        sock.close()


def _dialing(address: tuple[str, int], length: int) -> Callable[[Any], Any]:
    """The Spark task that dials this process. It travels by value: tailrace may not be installed on the executor."""
    column, dial, word = columns_of_one(), DIAL_SECONDS, WORD_SECONDS

    def work(batches: Any) -> Any:
        import socket

        import pyarrow as pa

        for _ in batches:
            pass
        received = b""
        try:
            with socket.create_connection(address, dial) as sock:
                sock.settimeout(word)
                while len(received) < length and (more := sock.recv(length - len(received))):
                    received += more
        except OSError:
            pass
        yield pa.RecordBatch.from_arrays([column(received)], names=["heard"])

    return work
