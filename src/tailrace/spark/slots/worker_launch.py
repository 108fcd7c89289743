"""Workers as Spark tasks: one single-task job per slot, each kept by a thread of the driver.

One job per slot and not one job of n tasks: a lost slot can then be started again alone, in any mode, also in
`local[N]` where Spark gives a task only one attempt; and a slot whose task hangs can be replaced while it hangs.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from tailrace.errors import OWN_FOLDER, ConfigError, SlotsError
from tailrace.runtime.driver.slots import Leaving, Room, SlotEnded
from tailrace.runtime.network.binding import Binding, is_everywhere, is_ours, ports_of
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.tls import choose
from tailrace.runtime.outpost.hosting import Host
from tailrace.settings import SETTINGS
from tailrace.spark.cluster.application import Application, application
from tailrace.spark.cluster.capacity import is_dynamic, is_fixed, may_give, share_of
from tailrace.spark.cluster.decommissions import Watch, may_happen
from tailrace.spark.shipping.delivery import bring, received_parcel
from tailrace.spark.shipping.executors import ANSWER, SOME, answer_text, check_reach, unable, worker_task
from tailrace.spark.shipping.parcel import Parcel, send
from tailrace.spark.slots.profiles import profile_of
from tailrace.spark.slots.rooms import RoomWatch
from tailrace.spark.slots.threads import SlotThreads
from tailrace.task.contract.usercode import FUSED

SETTLE_SECONDS = 15.0
"""Seconds after the start of a session in which executors of a cluster may still be on their way."""
_taken: dict[str, tuple[int, Fraction]] = {}
"""Slots held by running jobs of this process, by job tag: the number of slots, and the share of a core that each takes."""
_lock = threading.Lock()


@dataclass(frozen=True)
class _SlotRequest:
    """The slots that a job requests, and the application that is to give them."""

    app: Application
    slots: int
    cpus: float | None = None
    """The share of a core that each slot takes; None for the share in Spark's settings."""
    profile: Any = None
    """Spark's resource profile for `cpus`; None for the default profile."""

    @property
    def share(self) -> Fraction:
        return share_of(self.app.setting, self.cpus)

    @property
    def dynamic(self) -> bool:
        return is_dynamic(self.app.master, self.app.setting)

    @property
    def most(self) -> int | None:
        return may_give(self.app.master, self.app.setting, self.share)

    def there(self) -> int | None:
        """Number of slots on the executors that are there; None where Spark does not report it."""
        return self.app.total_slots(self.profile)

    def total(self, patience: float) -> int | None:
        """Number of slots that the application may have; None where Spark does not report it. The executors of a cluster
        may still be on their way: this waits up to `patience` seconds for as many as are needed. It does not wait for
        executors that Spark starts only once tasks wait for them."""
        if is_fixed(self.app.master):
            return self.there()
        most = self.most
        if self.dynamic or (most is not None and most < self.slots):
            return most
        there = self.there()
        deadline = time.monotonic() + patience
        while there is not None and there < self.slots and time.monotonic() < deadline:
            time.sleep(0.2)
            there = self.there()
        return there if most is None or (there is not None and there < self.slots) else max(there or 0, most)

    def may_be_more(self) -> bool:
        """True while there may be more slots than the executors report. The executors of a cluster come one after another,
        and no setting may give their number."""
        if is_fixed(self.app.master) or self.most is not None:
            return False
        return time.time() < self.app.started + SETTLE_SECONDS


def take_slots(
    app: Application,
    needed: int,
    name: str,
    tag: str,
    patience: float = 0.0,
    cpus: float | None = None,
    profile: Any = None,
    beside: int = 0,
    standbys: int = 0,
) -> str | None:
    """Takes slots for a job until `give_back`. Raises `SlotsError`, with the numbers, when there are too few. Returns a
    warning when it takes the last free slot or finds too few for the standbys, else None. Slots that Spark has not given
    yet count too: the job then waits for them when it starts its workers. `cpus` is the share of a core that each slot
    takes, by the resource profile `profile`. `beside` of the slots are for tasks other than workers. Up to `standbys` more
    slots are taken, as far as there are free ones."""
    request = _SlotRequest(app, needed, cpus, profile)
    total, share = request.total(patience), request.share
    with _lock:  # one lock to check and to take, for jobs that start at once
        taken = math.ceil(sum(slots * each for slots, each in _taken.values()) / share)
        enough = total is None or needed <= total - taken
        if enough:
            room = standbys if total is None else min(standbys, total - taken - needed)
            _taken[tag] = (needed + room, share)
    if not enough:
        others = f", {taken} of them taken by running jobs" if taken else ""
        has = "gives at most" if request.dynamic else "has"
        parts = f"its largest parallelism is {needed - beside}"
        if beside:
            parts += f", and {beside} are for its coordinator and for what that says to this program"
        raise SlotsError(
            f"job {name!r} needs {needed} task slots ({parts}), and Spark {has} {total}{others} "
            f"(master {app.master}); lower the parallelism, or start the session with more"
            + (f": {app.start_with(needed + taken + 1)}" if app.is_local else "")
        )
    if room < standbys and not request.may_be_more():
        return (
            f"job {name!r} takes all free task slots of Spark (master {app.master}), and has {room} of {standbys} standbys: "
            f"the others start when slots are free; start the session with {standbys - room} more, or set replicas=0"
        )
    if total is not None and needed + room == total - taken and not request.may_be_more():
        return (
            f"job {name!r} takes all {needed + room} free task slots of Spark (master {app.master}): other queries of this "
            f"session wait until it ends"
        )
    return None


def free_slots(app: Application, tag: str, most: int, patience: float, cpus: float | None, profile: Any) -> int | None:
    """The number of slots that a job may have: those that it holds, and free ones. None where Spark does not report it.
    Waits up to `patience` seconds for `most`. Without dynamic allocation only slots on executors count that are
    there."""
    request = _SlotRequest(app, most, cpus, profile)
    total = request.total(patience)
    total = total if request.dynamic else request.there()
    with _lock:
        others = sum(slots * each for one, (slots, each) in _taken.items() if one != tag)
    return None if total is None else max(0, total - math.ceil(others / request.share))


def hold_slots(app: Application, tag: str, needed: int, name: str, profile: Any = None) -> None:
    """Makes a job that has slots hold this number of them. Raises `SlotsError`, with the numbers, when there are too few:
    the job then holds what it held. A job that is over holds none."""
    with _lock:
        if tag not in _taken:
            return  # the job is over
        held, share = _taken[tag]
    cpus = None if is_fixed(app.master) else float(share)
    request = _SlotRequest(app, needed, cpus, profile)
    total = request.total(0.0)
    with _lock:
        others = math.ceil(sum(slots * each for one, (slots, each) in _taken.items() if one != tag) / share)
        enough = needed <= held or total is None or needed <= total - others
        if enough and tag in _taken:
            _taken[tag] = (needed, share)
    if not enough:
        beside = f", {others} of them taken by other running jobs" if others else ""
        has = "gives at most" if request.dynamic else "has"
        raise SlotsError(
            f"job {name!r} would need {needed} task slots, and Spark {has} {total}{beside} (master {app.master}); the job "
            f"goes on with what it has: ask for fewer, or start the session with more"
        )


def have_room(app: Application, tag: str, profile: Any = None, least: int | None = None) -> bool:
    """True where the executors that stay have slots for all jobs of this process, or Spark may start more executors. `tag`
    is the tag under which the requesting job took its slots, `least` the number of these without which it cannot go on
    (None: all)."""
    if is_dynamic(app.master, app.setting):
        return True
    with _lock:
        share = _taken[tag][1] if tag in _taken else share_of(app.setting, None)
        mine, each = _taken.get(tag, (0, share))
        spared = 0 if least is None else max(0, mine - least) * each
        needed = math.ceil((sum(slots * each for slots, each in _taken.values()) - spared) / share)
    there = app.total_slots(profile)
    return there is None or needed <= there


def give_back(tag: str) -> None:
    """Frees the slots that were taken under this tag."""
    with _lock:
        _taken.pop(tag, None)


def check_settings(app: Application) -> None:
    """Raises `ConfigError` for settings of the session under which workers cannot live."""
    if (app.setting("spark.speculation") or "").lower() == "true":
        raise ConfigError("spark.speculation must be off: a second copy of a worker would be a second writer; unset it")
    if (app.setting("spark.python.worker.killOnIdleTimeout") or "").lower() == "true":
        raise ConfigError(
            "spark.python.worker.killOnIdleTimeout must be off: Spark takes our workers for idle ones; unset it"
        )


@dataclass(frozen=True)
class _Over:
    """The end of a slot's Spark job, with its cause."""

    error: str | None = None
    cancelled: bool = False
    """True where the Spark job was cancelled."""
    unfit: bool = False
    """True where its executor lacks what a worker needs."""


class SparkSlots:
    """The slots of one job, held until `close`. Raises `SlotsError` when there are too few. With `ship` executors receive
    at once what they may lack; without it, once one of them reports that it has no tailrace. `cpus` is the share of a core
    that each slot takes. `beside` more slots are taken for tasks other than workers, and up to `standbys` more for
    standbys, as far as there are free ones."""

    def __init__(
        self,
        spark: Any,
        name: str,
        run_id: str,
        slots: int,
        patience: float = 0.0,
        *,
        ship: bool = False,
        cpus: float | None = None,
        beside: int = 0,
        standbys: int = 0,
    ) -> None:
        self.spark = spark
        self.app = application(spark)
        self.name = name
        self.tag = f"tailrace-{run_id}"
        cpus = self._cpus = None if is_fixed(self.app.master) else cpus  # in local modes a slot is a thread
        self._profile = None if cpus is None else profile_of(self.app, cpus)
        self._workers = slots
        profile, needed = self._profile, slots + beside
        self._least = needed
        """Number of slots that the job cannot be without: those of standbys are not among them."""
        self.warning = take_slots(self.app, needed, name, self.tag, patience, cpus, profile, beside, standbys)
        """A warning for the user about the slots, or None."""
        self.host: Host | None = None
        """The host through which workers reach the driver's folder, if the job uses that folder."""
        self._parcel: Parcel | None = None
        self._watch: Watch | None = None
        self._rooms: RoomWatch | None = None
        self._starts: set[tuple[int, int]] = set()
        """(slot, launch) of the starts of slots that run."""
        self._watches_executors = self.app.context is None and may_happen(self.app.setting)
        """True if workers look whether their executors are decommissioned. Settings are read once: a start of a slot must
        not wait for a Spark Connect server that is gone, which its client calls for minutes."""
        try:
            if not self.app.is_local:
                self._parcel = send(spark) if ship else received_parcel(spark)
            self._threads = SlotThreads(name, slots + standbys)
        except BaseException:
            give_back(self.tag)
            raise

    def room(self) -> int | None:
        """The number of slots that the job may have: those that it holds, and free ones. None where Spark does not report
        it."""
        return free_slots(self.app, self.tag, 0, 0.0, self._cpus, self._profile)

    def hold(self, count: int) -> None:
        """Makes the job hold this number of slots. Raises `SlotsError` when there are too few."""
        hold_slots(self.app, self.tag, count, self.name, self._profile)
        self._least = count

    def listen_at(self) -> Binding:
        """The address at which workers reach this process."""
        return listen_at(self.app)

    def launch(self, config: WorkerConfig, ended: SlotEnded) -> None:
        """Submits the Spark job of a slot from a thread of its own. Calls `ended` once that job has ended."""

        start = (config.slot, config.launch)
        self._starts.add(start)
        config = replace(config, watches_executor=self._watches_executors)

        def keep() -> Callable[[], object]:
            over = self._keep(config)
            self._starts.discard(start)
            return lambda: ended(config.slot, over.error, over.cancelled, over.unfit)

        self._threads.run(keep)

    def watch(self, leaving: Leaving, room: Room | None = None) -> None:
        """Reports workers on executors that are decommissioned to `leaving`, where executors may be decommissioned and
        Spark shows it; and to `room`, how many slots there are."""
        if room is not None:
            self._rooms = RoomWatch(self.room, room)
            self._rooms.start()
        context = None if is_fixed(self.app.master) else self.app.context
        if context is not None and may_happen(self.app.setting):
            starts = lambda: [(*one, self._tag_of(*one)) for one in list(self._starts)]  # noqa: E731
            stays = lambda: have_room(self.app, self.tag, self._profile, self._least)  # noqa: E731
            self._watch = Watch(context, starts, stays, leaving)
            self._watch.start()

    def _tag_of(self, slot: int, launch: int) -> str:
        return f"{self.tag}-{slot}-{launch}"

    def kill(self, slot: int, launch: int, pid: int | None) -> None:
        """Cancels the Spark job of a slot. Its Python process may live on for up to four seconds, and the coordinator
        ignores all that it still sends. On this machine this method kills the process at once."""
        with contextlib.suppress(Exception):  # Spark was stopped, or its JVM is gone: then so are its jobs
            self.app.cancel(self._tag_of(slot, launch))
        if pid is not None and self.app.is_local:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def executor(self, slot: int, launch: int) -> str | None:
        """Id of the executor on which a start of a slot runs or ran; None where there are no executors, and where Spark
        does not report it."""
        found = self._executor(slot, launch)
        return None if found is None else found[0]

    def _executor(self, slot: int, launch: int) -> tuple[str, str] | None:
        return None if is_fixed(self.app.master) else self.app.executor(self._tag_of(slot, launch))

    def lives(self) -> bool:
        """True while the Spark session and its JVM are there."""
        return self.app.over() is None

    def close(self, timeout: float) -> None:
        """Waits for the threads, which end with their Spark jobs."""
        for watch in (self._watch, self._rooms):
            if watch is not None:
                watch.close()
        self._threads.close(timeout)
        give_back(self.tag)

    def _keep(self, config: WorkerConfig) -> _Over:
        """Runs the Spark job of a slot to its end."""
        tags = [self.tag, self._tag_of(config.slot, config.launch)]
        if (over := self.app.over()) is not None:
            return _Over(over)
        try:
            what = "worker" if config.slot < self._workers else "standby"
            with self.app.with_tags(tags, f"tailrace {self.name}: {what} {config.slot}"):
                parcel = self._parcel  # another slot may have brought one before this one has its answer
                lacking = self._run(config, parcel)
                if lacking is not None and parcel is None and not self.app.is_local:
                    self._parcel = bring(self.spark)
                    lacking = self._run(config, self._parcel)
        except ConfigError as error:  # the parcel is too large, or the executor does not reach this process
            return _Over(str(error), unfit=True)
        except BaseException as failure:  # whatever Spark raises: the coordinator decides what it means
            return self._failure_of(failure, config)
        return _Over() if lacking is None else _Over(self._with_limit(lacking), unfit=True)

    def _run(self, config: WorkerConfig, parcel: Parcel | None) -> str | None:
        """Runs the Spark job of a slot. Returns what the executor lacked, as a sentence, or None. Raises `ConfigError`
        where the executor does not reach this process."""
        [(_, lacking)] = self.app.run(worker_task(config, self.host, parcel), ANSWER, self._profile)
        if lacking is None:
            return None
        executor = self.executor(config.slot, config.launch)
        check_reach(lacking, executor)
        return answer_text(lacking, parcel, executor)

    def _failure_of(self, failure: BaseException, config: WorkerConfig) -> _Over:
        over = self.app.over()
        if over is not None:
            return _Over(over)
        if (unfit := unable(failure, self._parcel)) is not None:
            found = self._executor(config.slot, config.launch) if unfit.startswith(SOME) else None
            where = SOME if found is None else f"executor {found[0]} on {found[1]}"
            return _Over(unfit.replace(SOME, where, 1), unfit=True)
        error = self._with_limit(shortened_failure(failure))
        return _Over(error, was_cancelled(error))

    def _with_limit(self, error: str) -> str:
        limit = self._memory_limit()
        return error + (too_little_memory(error, limit) if limit else "")

    def _memory_limit(self) -> str | None:
        """The limit of the session for the memory of an executor's Python processes, if one is set."""
        with contextlib.suppress(Exception):  # Spark is gone
            return self.app.setting(_MEMORY)
        return None


def listen_at(app: Application) -> Binding:
    """The address at which workers reach this process: the loopback address in local modes, else the address of Spark's
    driver. The address that is bound differs from it where Spark's driver binds another one. `TAILRACE_TLS` names the
    certificates that both ends show."""
    return replace(_address(app), tls=choose(SETTINGS["tls"].read()))


def allowed_ports() -> range:
    """The ports of `TAILRACE_PORTS`. Raises `ConfigError` where they cannot be read."""
    try:
        return ports_of(SETTINGS["ports"].read())
    except ValueError as error:
        raise ConfigError(f"{SETTINGS['ports'].variable}: {error}") from error


def _address(app: Application) -> Binding:
    ports = allowed_ports()
    setting = SETTINGS["driver_host"].read()
    if app.is_local:
        return Binding(setting or "127.0.0.1", ports=ports)
    host, bind = app.address(setting)
    if bind in ("", host) or (is_everywhere(bind) and is_ours(host)):
        return Binding(host, ports=ports)  # Spark may listen everywhere; a job does so only where it must
    return Binding(bind, host, ports)


_MEMORY = "spark.executor.pyspark.memory"
_CANCELLED = ("[SPARK_JOB_CANCELLED]", "[OPERATION_CANCELED]")
"""Marks in the error of a cancelled Spark job: of a classic session, and of Spark Connect."""


def was_cancelled(error: str) -> bool:
    """True where the error of a Spark job shows that it was cancelled."""
    return any(mark in error for mark in _CANCELLED)


def too_little_memory(error: str, limit: str) -> str:
    """Addition to the error of a worker that had no room under this limit of its address space; empty for other errors.
    The error of a library that cannot be loaded does not mention memory."""
    if not re.search(r"MemoryError|failed to map segment|[Cc]annot allocate memory", error):
        return ""
    return (
        f"; {_MEMORY} is {limit}, which bounds the address space of each Python process, libraries included: raise it, or "
        f"unset it"
    )


def shortened_failure(failure: BaseException) -> str:
    """The useful part of a Spark failure: the crash with the user's own frames, else the Python exception, else the first
    line with a message."""
    text = str(failure)
    crash = re.search(r"Python worker exited unexpectedly \(crashed\):(.*?)(?=\n\s+at |\Z)", text, re.DOTALL)
    if crash is not None:
        return f"the Python worker's process crashed{_user_frames(crash[1])}"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", text)
    if raised:
        return str(raised[-1])
    lines = [line.lstrip(": ") for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith("An error occurred while calling")]
    return re.sub(r"^org\.apache\.spark\.\w+: ", "", kept[0])[:500] if kept else type(failure).__name__


def _user_frames(story: str) -> str:
    """Python's report of a crash (spark.python.worker.faulthandler.enabled), up to the frame in which Tailrace called the
    user's code."""
    kept = []
    what, _, stack = story.strip().partition("\n")
    for line in [what, *stack[max(0, stack.find("Current thread")) :].splitlines()]:  # not the frames of our own thread
        if f'"{OWN_FOLDER}' in line or FUSED in line or "Extension modules:" in line:
            break
        kept.append(line)
    return ":\n" + "\n".join(kept).rstrip() if what else " and left no trace of why (killed, out of memory, os._exit)"
