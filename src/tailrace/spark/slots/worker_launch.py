"""The launch of workers as Spark tasks: one single-task job per slot, each kept by a thread of the driver.

One job per slot and not one job of n tasks: a lost slot can then be started again alone, in any mode, also in
`local[N]` where Spark gives a task only one attempt; and a slot whose task hangs can be replaced while it hangs.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tailrace.errors import ConfigError
from tailrace.runtime.driver.slot_provider import Leaving, Room, SlotEnded
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.outpost.hosted_folder import Host
from tailrace.spark.cluster.application import Application, application
from tailrace.spark.cluster.capacity import is_fixed
from tailrace.spark.cluster.decommissions import Watch, may_happen
from tailrace.spark.shipping.delivery import bring, received_parcel
from tailrace.spark.shipping.missing_modules import SOME, answer_text, check_reach, unable
from tailrace.spark.shipping.parcel import Parcel, send
from tailrace.spark.slots.driver_address import listen_at
from tailrace.spark.slots.failure_texts import MEMORY, shortened_failure, too_little_memory, was_cancelled
from tailrace.spark.slots.profiles import profile_of
from tailrace.spark.slots.slot_reservations import free_slots, give_back, have_room, hold_slots, take_slots
from tailrace.spark.slots.slot_watch import RoomWatch
from tailrace.spark.slots.threads import SlotThreads
from tailrace.spark.slots.worker_task import ANSWER, worker_task


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
            return self.app.setting(MEMORY)
        return None
