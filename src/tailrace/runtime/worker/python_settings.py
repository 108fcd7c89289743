"""Settings of Python in the process of a worker: the search for garbage, open files, breakpoints."""

from __future__ import annotations

import contextlib
import gc
import resource
from collections.abc import Iterator
from typing import NoReturn

from tailrace.errors import ConfigError

GC_OBJECTS = 50_000
"""New objects between two searches for garbage cycles."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """A context in which Python rarely looks for garbage cycles. By default it does so each 700 new objects, and a stream
    makes millions that are in none: the search costs a third of the throughput. Spark uses the process again, so its
    settings come back. Objects of the process that it was forked from are frozen (`spark.daemon`), and stay so: a search
    through all of them would keep the process from the next job for a tenth of a second, and so would PySpark's own
    search after each task."""
    before, ours = gc.get_threshold(), gc.get_freeze_count() == 0
    if ours:
        gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if ours:
            gc.unfreeze()
        gc.collect()


def allow_many_files() -> None:
    """Raises the limit of open files: a source has all its splits open at once, which may be more than a shell allows its
    processes by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def no_breakpoint(*args: object, **options: object) -> NoReturn:
    """The hook of `breakpoint()` in a worker. Raises `ConfigError`."""
    raise ConfigError(
        "breakpoint() needs a terminal, and a worker is a process of Spark without one; run the dataflow in the calling "
        "process: tr.testing.run(env)"
    )
