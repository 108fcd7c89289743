"""Spark jobs of ours on executors that may lack tailrace: it is brought to them, and the job runs again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tailrace import __version__
from tailrace.errors import ConfigError
from tailrace.log import log
from tailrace.spark.shipping.executors import lacks_tailrace, unable
from tailrace.spark.shipping.parcel import Parcel, send, was_sent

T = TypeVar("T")
_lock = threading.Lock()  # so that the first of several slots tells, and no other


def brought(spark: Any) -> Parcel | None:
    """What the executors of this application are to take with a job, where they were brought anything. Later jobs bring
    theirs, too: processes of executors are used again, and would go on with modules of the earlier one."""
    return send(spark) if was_sent(spark) else None


def bring(spark: Any) -> Parcel:
    """An executor has no tailrace, or another version: from here on this application brings it along. Raises `ConfigError`
    where it cannot."""
    with _lock:
        first, parcel = not was_sent(spark), send(spark)
        if first:
            log.warning(
                "the executors have no tailrace %s: it is shipped to them, with what it needs and with the modules of yours "
                "that the program has imported (tailrace run --ship does this at once)",
                __version__,
            )
    return parcel


def bringing(spark: Any, what: str, job: Callable[[Parcel | None], T]) -> T:
    """The result of a Spark job whose tasks are made by `with_tailrace`, with what was brought. Raises `ConfigError` for
    executors on which they cannot run."""
    parcel = brought(spark)
    try:
        try:
            return job(parcel)
        except Exception as failure:
            if parcel is not None or not lacks_tailrace(failure):
                raise
        parcel = bring(spark)
        return job(parcel)
    except Exception as failure:
        if (told := unable(failure, parcel)) is not None:
            raise ConfigError(f"{what}: {told}") from None
        raise
