"""PySpark's daemon, from which Spark forks its Python workers, with what a worker of ours imports imported beforehand.

Spark starts it by its name (`spark.python.daemon.module`), in whichever Python a session names. This folder is on the
PYTHONPATH of that process, and has nothing else in it: so the module is found also where tailrace is not. Where tailrace is
not found, or another one than that of the program, where it cannot be imported, and where a library has started a thread,
which a forked process would be without, this process becomes PySpark's own daemon.
"""

import gc
import importlib
import importlib.util
import os
import runpy
import sys

DAEMON = "pyspark.daemon"
NEEDED = (
    "pyspark.worker",
    "pyarrow",
    "tailrace.runtime.worker.process",
    "tailrace.runtime.outpost.hosting",
    "tailrace.spark.shipping.plan_files",
    *("csv", "email.message", "email.parser", "encodings.idna", "importlib.metadata"),  # by those above, when called
)
"""Not pandas, which takes longer than all of these: it is imported by those who use it."""
JEMALLOC = "JE_ARROW_MALLOC_CONF"
"""Read when pyarrow is loaded: it starts a thread to tidy up its memory, which no forked process would have."""


def is_ready() -> bool:
    """Imports what workers need. Whether all of that is there, and this process may still fork."""
    quiet = JEMALLOC not in os.environ
    if quiet:
        os.environ[JEMALLOC] = "background_thread:false"
    try:
        if not finds_ours():
            return False
        for name in NEEDED:
            importlib.import_module(name)
        return len(os.listdir("/proc/self/task")) == 1
    except Exception:  # a worker will say what is missing, to whom it concerns
        return False
    finally:
        if quiet:
            del os.environ[JEMALLOC]


def finds_ours() -> bool:
    """Whether the tailrace that workers find by themselves is the one that this file belongs to."""
    found = importlib.util.find_spec("tailrace")
    if found is None or found.origin is None:
        return False
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    return os.path.dirname(os.path.realpath(found.origin)) == package


def become_pysparks_own() -> None:
    """By the very command that has started this process, with one word changed: it may be that of a wrapper."""
    words = getattr(sys, "orig_argv", [sys.executable, "-m", __spec__.name, *sys.argv[1:]])
    os.execv(sys.executable, [DAEMON if word == __spec__.name else word for word in words])


def give_each_its_own_chance() -> None:
    """Workers that draw numbers of numpy's own generator must not all draw the same ones. (Python's does this itself.)"""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        os.register_at_fork(after_in_child=numpy.seed)


if __name__ == "__main__":
    if not is_ready():
        become_pysparks_own()
    give_each_its_own_chance()
    gc.freeze()  # no worker looks for garbage among what all of them have
    runpy.run_module(DAEMON, run_name="__main__", alter_sys=True)
