"""Spark jobs of Tailrace on executors that may lack it: Spark brings tailrace to them, and the job runs again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tailrace import __version__
from tailrace.errors import ConfigError
from tailrace.log import log
from tailrace.spark.shipping.missing_modules import lacks_tailrace, unable
from tailrace.spark.shipping.parcel import Parcel, send, was_sent

T = TypeVar("T")
_lock = threading.Lock()  # so that only the first of several slots logs the warning


def received_parcel(spark: Any) -> Parcel | None:
    """The parcel that executors of this application are to take with a job, where they have received one; else None. Later
    jobs bring their own parcels, too: processes of executors are used again, and would go on with modules of the earlier
    one."""
    return send(spark) if was_sent(spark) else None


def bring(spark: Any) -> Parcel:
    """Ships tailrace to the executors of this application from now on, because an executor has none or another version.
    Raises `ConfigError` where it cannot be shipped."""
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
    """The result of a Spark job whose tasks are made by `with_tailrace`, run with the parcel that executors have. Where
    they lack tailrace, ships it and runs the job again. Raises `ConfigError` for executors on which the tasks cannot
    run."""
    parcel = received_parcel(spark)
    try:
        try:
            return job(parcel)
        except Exception as failure:
            if parcel is not None or not lacks_tailrace(failure):
                raise
        parcel = bring(spark)
        return job(parcel)
    except Exception as failure:
        if (error := unable(failure, parcel)) is not None:
            raise ConfigError(f"{what}: {error}") from None
        raise
