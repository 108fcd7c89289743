"""Workers as Spark tasks: one single-task `mapInArrow` job per slot, each kept by a thread of the driver.

One job per slot and not one job of n tasks: a lost slot can then be started again alone, in any mode, also in
`local[N]` where Spark gives a task only one attempt; and a slot whose task hangs can be replaced while it hangs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from tailrace.errors import OWN_FOLDER, ConfigError, SlotsError
from tailrace.runtime.config import WorkerConfig
from tailrace.runtime.slots import SlotEnded
from tailrace.spark.threads import SlotThreads
from tailrace.task.usercode import FUSED

SETTLE_SECONDS = 15.0
"""How long the executors of a cluster may take to register before a job fails because there are too few."""
_taken: dict[str, int] = {}
"""Slots held by running jobs of this process, by job tag."""
_lock = threading.Lock()


def is_local(spark: Any) -> bool:
    """Whether Spark runs its tasks on this machine, as children of its JVM."""
    return re.fullmatch(r"local(\[.*\])?", spark.sparkContext.master) is not None


def total_slots(spark: Any) -> int:
    """How many tasks the session's application can run at once: its cores by `spark.task.cpus`. Spark itself asks this
    before a barrier stage."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def _total_slots(spark: Any, needed: int) -> int:
    """As `total_slots`. The executors of a cluster may still be on their way: they get some time to come."""
    deadline = time.monotonic() + SETTLE_SECONDS
    total = total_slots(spark)
    while total < needed and not is_local(spark) and time.monotonic() < deadline:
        time.sleep(0.2)
        total = total_slots(spark)
    return total


def take_slots(spark: Any, needed: int, name: str, tag: str) -> str | None:
    """Takes slots for a job until `give_back`. Raises `SlotsError`, with the numbers, when there are too few. Returns a
    warning when it takes the last free one, else None."""
    total = _total_slots(spark, needed)
    master = spark.sparkContext.master
    with _lock:  # to look and to take are one thing, for jobs that are started at once
        taken = sum(_taken.values())
        if needed <= total - taken:
            _taken[tag] = needed
    if needed > total - taken:
        others = f", {taken} of them taken by running jobs" if taken else ""
        raise SlotsError(
            f"job {name!r} needs {needed} task slots (its largest parallelism is {needed}), and Spark has {total}{others} "
            f"(master {master}); lower the parallelism, or start the session with more"
            + (f': SparkSession.builder.master("local[{needed + taken + 1}]")' if is_local(spark) else "")
        )
    if needed == total - taken:
        return (
            f"job {name!r} takes all {needed} free task slots of Spark (master {master}): other queries of this session "
            f"wait until it ends"
        )
    return None


def give_back(tag: str) -> None:
    """The slots that were taken under this tag are free again."""
    with _lock:
        _taken.pop(tag, None)


def check_settings(spark: Any) -> None:
    """Raises `ConfigError` for settings of the session under which workers cannot live."""
    conf = spark.sparkContext.getConf()
    if conf.get("spark.speculation", "false").lower() == "true":
        raise ConfigError("spark.speculation must be off: a second copy of a worker would be a second writer; unset it")
    if conf.get("spark.python.worker.killOnIdleTimeout", "false").lower() == "true":
        raise ConfigError("spark.python.worker.killOnIdleTimeout must be off: workers are silent for Spark; unset it")


class SparkSlots:
    """The slots of one job, its own from here on until `close`. Raises `SlotsError` when there are too few."""

    def __init__(self, spark: Any, name: str, run_id: str, slots: int) -> None:
        self.spark = spark
        self.name = name
        self.tag = f"tailrace-{run_id}"
        self.warning = take_slots(spark, slots, name, self.tag)
        """What to tell the user, or None."""
        try:
            self._threads = SlotThreads(name, slots)
        except BaseException:
            give_back(self.tag)
            raise

    def listen_host(self) -> str:
        """Where workers reach this process: the loopback address in local modes, else the driver's."""
        override = os.environ.get("TAILRACE_DRIVER_HOST")
        if override:
            return override
        if is_local(self.spark):
            return "127.0.0.1"
        conf = self.spark.sparkContext.getConf()
        bind = conf.get("spark.driver.bindAddress")
        # Spark may listen everywhere; a job listens at the one address that its workers dial.
        return str(conf.get("spark.driver.host") if bind in (None, "", "0.0.0.0", "::") else bind)

    def launch(self, config: WorkerConfig, ended: SlotEnded) -> None:
        """Submits the Spark job of a slot from a thread of its own."""

        def keep() -> Callable[[], object]:
            error, cancelled = self._keep(config)
            return lambda: ended(config.slot, error, cancelled)

        self._threads.run(keep)

    def kill(self, slot: int, launch: int, pid: int | None) -> None:
        """Cancels a Spark job of a slot. Its Python process would live on for up to four seconds, where everything it
        still says is fenced; on this machine it need not."""
        with contextlib.suppress(Exception):  # Spark was stopped, or its JVM is gone: then so are its jobs
            self.spark.sparkContext.cancelJobsWithTag(f"{self.tag}-{slot}-{launch}")
        if pid is not None and is_local(self.spark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def lives(self) -> bool:
        """Whether the Spark session and its JVM are there."""
        return _end_of_spark(self.spark) is None

    def close(self, timeout: float) -> None:
        """Waits for the threads, which end with their Spark jobs."""
        self._threads.close(timeout)
        give_back(self.tag)

    def _keep(self, config: WorkerConfig) -> tuple[str | None, bool]:
        """Runs the Spark job of a slot to its end. The error it ended with, if any, and whether somebody cancelled it."""
        tags = [self.tag, f"{self.tag}-{config.slot}-{config.launch}"]
        try:
            context = self.spark.sparkContext
            for tag in tags:
                context.addJobTag(tag)
            context.setJobDescription(f"tailrace {self.name}: worker {config.slot}")
            self.spark.range(0, 1, 1, 1).mapInArrow(_task(config), "left string").collect()
        except BaseException as failure:  # whatever Spark raises: the coordinator decides what it means
            error = _end_of_spark(self.spark) or shortened_failure(failure)
            limit = self._memory_limit()
            return error + (too_little_memory(error, limit) if limit else ""), "[SPARK_JOB_CANCELLED]" in error
        finally:
            with contextlib.suppress(Exception):  # Spark is gone, and with it what the thread has said there
                for tag in tags:  # the thread may keep another launch, which is not to be cancelled with this one
                    self.spark.sparkContext.removeJobTag(tag)
        return None, False

    def _memory_limit(self) -> str | None:
        """What the session allows the Python processes of an executor, if it says so."""
        with contextlib.suppress(Exception):  # Spark is gone
            return cast("str | None", self.spark.sparkContext.getConf().get(_MEMORY))
        return None


_MEMORY = "spark.executor.pyspark.memory"


def too_little_memory(error: str, limit: str) -> str:
    """What to add to the error of a worker that had no room under this limit of its address space; nothing to others. A
    library that cannot be loaded says nothing of memory."""
    if not re.search(r"MemoryError|failed to map segment|[Cc]annot allocate memory", error):
        return ""
    return (
        f"; {_MEMORY} is {limit}, which bounds the address space of each Python process, libraries included: raise it, or "
        f"unset it"
    )


def _task(config: WorkerConfig) -> Any:
    def work(batches: Any) -> Any:
        import pyarrow as pa

        from tailrace.runtime.worker import run_worker
        from tailrace.spark.shipping import load_job

        for _ in batches:
            pass
        reason = run_worker(config, load_job)
        yield pa.RecordBatch.from_pydict({"left": [reason]})

    return work


def _end_of_spark(spark: Any) -> str | None:
    """Why Spark itself is over, in words; None while it lives. A job may raise anything then."""
    try:
        context = spark.sparkContext._jsc
        stopped = context is None or context.sc().isStopped()
    except Exception:  # nobody answers
        return "the JVM of the Spark session is gone"
    return "the Spark session was stopped" if stopped else None


def shortened_failure(failure: BaseException) -> str:
    """The useful part of a Spark failure: the crash with the user's own frames, else the Python exception, else the
    first line that says something."""
    text = str(failure)
    crash = re.search(r"Python worker exited unexpectedly \(crashed\):(.*?)(?=\n\s+at |\Z)", text, re.DOTALL)
    if crash is not None:
        return f"the Python worker's process crashed{_user_frames(crash[1])}"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", text)
    if raised:
        return str(raised[-1])
    lines = [line.lstrip(": ") for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("An error occurred while calling")]
    return re.sub(r"^org\.apache\.spark\.\w+: ", "", told[0])[:500] if told else type(failure).__name__


def _user_frames(story: str) -> str:
    """Python's story of a crash (spark.python.worker.faulthandler.enabled), up to where we called the user's code."""
    kept = []
    what, _, stack = story.strip().partition("\n")
    for line in [what, *stack[max(0, stack.find("Current thread")) :].splitlines()]:  # not those of our own thread
        if f'"{OWN_FOLDER}' in line or FUSED in line or "Extension modules:" in line:
            break
        kept.append(line)
    return ":\n" + "\n".join(kept).rstrip() if what else " and left no trace of why (killed, out of memory, os._exit)"
