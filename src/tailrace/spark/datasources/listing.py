"""Calls of a data source that plan what is read, in a thread: they may wait for a server, and a worker must not."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pyspark import cloudpickle

WAIT = 0.005
"""Seconds that the enumerator waits for an answer that is almost there."""


class ByValue(NamedTuple):
    """A partition of a class that plain pickle does not find by its name, such as one made inside a function."""

    data: bytes


def portable(partition: Any) -> Any:
    """A partition as a checkpoint may hold it."""
    try:
        pickle.dumps(partition, 5)
    except Exception:
        return ByValue(cloudpickle.dumps(partition))
    return partition


def partition_of(stored: Any) -> Any:
    """The partition that `portable` has stored."""
    return cloudpickle.loads(stored.data) if isinstance(stored, ByValue) else stored


def checked_partitions(given: Any, who: str) -> list[Any]:
    """Partitions that `who` returned. Raises `TypeError` for what is no list of `InputPartition`."""
    from pyspark.sql.datasource import InputPartition

    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise TypeError(f"{who} must return a list of partitions, not {type(given).__name__}")
    wrong = next((one for one in given if not isinstance(one, InputPartition)), None)
    if wrong is not None:
        raise TypeError(
            f"{who} must return a list of pyspark.sql.datasource.InputPartition, not of {type(wrong).__name__}"
        )
    return list(given)


class Call:
    """A call in a thread. `result` is its value, once `is_done`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tailrace-data-source-plan", daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        """True if the call has returned or raised. Waits for a moment."""
        self._thread.join(WAIT)
        return not self._thread.is_alive()

    def result(self) -> Any:
        """The value of a call that is done. Raises what it has raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error
