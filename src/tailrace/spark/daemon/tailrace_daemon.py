"""PySpark's daemon, from which Spark forks its Python workers, with the modules that a worker of Tailrace needs imported
beforehand.

Spark starts this module by its name (`spark.python.daemon.module`), in whichever Python a session names. This folder is on
the PYTHONPATH of that process and holds nothing else, so Python finds the module also where tailrace is not installed.
This process becomes PySpark's own daemon in four cases: tailrace is not found, or is not the program's tailrace; it cannot
be imported; or a library has started a thread, which a forked process would lack.
"""

import contextlib
import gc
import importlib
import importlib.util
import os
import runpy
import signal
import sys
from typing import Any

DAEMON = "pyspark.daemon"
NEEDED = (
    "pyspark.worker",
    "pyarrow",
    "tailrace.runtime.worker.main_loop",
    "tailrace.runtime.outpost.hosted_folder",
    "tailrace.spark.shipping.plan_files",
    # by those above, when called:
    *("csv", "email.message", "email.parser", "encodings.idna", "importlib.metadata", "numpy.ma"),
)
"""Modules imported beforehand. pandas is not among them: it takes half as long as all of these, and not every job uses
it."""
LATER_SECONDS = 2.0
"""Seconds behind the last fork after which pandas is imported. Workers start in a bunch, and the first ones do not wait."""
JEMALLOC = "JE_ARROW_MALLOC_CONF"
"""Setting that pyarrow reads when it is loaded. pyarrow then starts a thread to tidy up its memory, which no forked
process would have."""


def is_ready() -> bool:
    """Imports the modules that workers need. True where all of them are there and this process may still fork."""
    quiet = JEMALLOC not in os.environ
    if quiet:
        os.environ[JEMALLOC] = "background_thread:false"
    try:
        if not finds_ours():
            return False
        for name in NEEDED:
            importlib.import_module(name)
        ours = importlib.import_module("tailrace")
        for name in ours.__all__:
            getattr(ours, name)  # imports what user code needs: this process pays for all workers
        return len(os.listdir("/proc/self/task")) == 1
    except Exception:  # a worker reports what is missing to its job
        return False
    finally:
        if quiet:
            del os.environ[JEMALLOC]


def finds_ours() -> bool:
    """True where the tailrace that workers find by themselves is the one that this file belongs to."""
    found = importlib.util.find_spec("tailrace")
    if found is None or found.origin is None:
        return False
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    return os.path.dirname(os.path.realpath(found.origin)) == package


def become_pysparks_own() -> None:
    """Replaces this process by PySpark's own daemon. It runs the command that started this process with one word changed:
    the interpreter may be a wrapper."""
    words = getattr(sys, "orig_argv", [sys.executable, "-m", __spec__.name, *sys.argv[1:]])
    os.execv(sys.executable, [DAEMON if word == __spec__.name else word for word in words])


def give_each_its_own_chance() -> None:
    """Gives each forked worker a seed of its own for numpy's generator: else all of them would draw the same numbers.
    Python reseeds its own generator itself."""

    def draw_anew() -> None:
        numpy = sys.modules.get("numpy.random")  # which may be imported behind the first fork only
        if numpy is not None:
            numpy.seed()

    os.register_at_fork(after_in_child=draw_anew)


def import_pandas_later() -> None:
    """Imports pandas in this process once it has forked its first workers and rests. pyarrow imports pandas in every
    process that makes an array, which takes a second and 62 MiB of each worker. Workers that start again, and those of the
    next job, share it."""
    # numexpr, which pandas imports where it is there, starts threads.
    if importlib.util.find_spec("pandas") is None or importlib.util.find_spec("numexpr") is not None:
        return

    def import_it(*_: Any) -> None:
        with contextlib.suppress(Exception):  # a worker that needs it reports why it cannot be imported
            importlib.import_module("pandas")
        gc.freeze()

    def wait_again() -> None:
        if "pandas" not in sys.modules:
            signal.setitimer(signal.ITIMER_REAL, LATER_SECONDS)

    signal.signal(signal.SIGALRM, import_it)
    os.register_at_fork(
        after_in_parent=wait_again, after_in_child=lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL)
    )


if __name__ == "__main__":
    if not is_ready():
        become_pysparks_own()
    give_each_its_own_chance()
    import_pandas_later()
    gc.freeze()  # no worker collects garbage among the objects that all of them share
    runpy.run_module(DAEMON, run_name="__main__", alter_sys=True)
