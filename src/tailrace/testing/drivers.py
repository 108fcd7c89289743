"""The drivers of a simulated cluster, and the actions of their coordinators: the counterpart of
`runtime.driver.coordinator`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from tailrace.api.restore.compatibility import check_manifest
from tailrace.api.restore.identity import dataflow_of
from tailrace.coordinator.actions import (
    Action,
    Autoscaled,
    CheckpointEnded,
    CheckpointFailed,
    CloseLink,
    HistoryFills,
    InReach,
    Kill,
    Launch,
    NotHot,
    NotReplaced,
    NotResized,
    OutOfReach,
    Replacing,
    RescaleEnded,
    Resizing,
    Restarting,
    SavepointEnded,
    Send,
    Stalled,
    StandbyLost,
    StatusChanged,
    StopEnded,
    ValuesNotCompared,
    WasPublished,
    WorkerPrinted,
    WorkerReplaced,
)
from tailrace.coordinator.machine import Coordinator
from tailrace.errors import InternalError
from tailrace.protocol import message_codec
from tailrace.protocol.deployment import FailureKind, Hello, Welcome
from tailrace.protocol.replay import Copies
from tailrace.protocol.snapshot import Trigger
from tailrace.runtime.driver.machine_settings import nests_of, start_from
from tailrace.storage.checkpoint_lookup import newest_start
from tailrace.storage.origins import Origin, origin_at
from tailrace.task.channels.spilling import MemorySpill
from tailrace.task.contract.events import CoordinatorLost
from tailrace.testing.clocks import DRIVER, Clocks
from tailrace.testing.cluster import Cluster
from tailrace.testing.memorystore import MemoryStore
from tailrace.testing.setting import DrivenJob, From
from tailrace.testing.storing import Storage
from tailrace.testing.successions import Successions, maker
from tailrace.testing.workers import Workers
from tailrace.testing.world import Driver, Event, SimulatedProcess, StoreWork


class Drivers:
    """Starts drivers, and carries out the actions of their coordinators."""

    def __init__(self, cluster: Cluster, storage: Storage, workers: Workers, job: DrivenJob) -> None:
        self._cluster = cluster
        self._storage = storage
        self._workers = workers
        self._launched: set[tuple[int, int, int]] = set()
        """Starts of Spark jobs so far: the party of the driver, the place, and the number."""
        self.job = job
        self.causes: list[Any] = []
        """Causes of the restarts of the job, and failures for which a worker was replaced, in order."""
        cluster.coordinate = self.coordinate
        self.successions = Successions(cluster, storage, workers, self.coordinate)

    def begin(self, start: From | None) -> Driver:
        """Makes another driver, which claims the job and starts from the given checkpoint."""
        job, storage = self.job, self._storage
        number = len(self._cluster.drivers) + 1
        run_id = job.run_id if number == 1 else f"{job.run_id}-{number}"
        store, incarnation, origin = None, 1, None
        abandoned: list[str] = []
        settings = job.checkpoints
        if settings is not None:
            with storage.calm():
                store = storage.own()
                settings = replace(settings, origin=store.url, dataflow=dataflow_of(job.plan.graph))
                incarnation = store.claim(run_id, takeover=True)
                origin = self._origin(store, start)
                spare = [] if origin is None else [origin.manifest.run_id]
                abandoned = store.abandoned_runs(store.dead(settings.keep_runs, spare) if settings.keep_runs else ())
        storage.files.begin_run(run_id, None if origin is None else (storage.files_in(origin.folder), origin.path))

        def fresh(term: int = 0) -> Coordinator:
            return maker(term, job.log)(
                job.name,
                incarnation,
                job.plan.slots,
                b"",
                job.limits,
                run_id=run_id,
                max_parallelism=job.plan.graph.max_parallelism,
                checkpoints=settings,
                restarts=job.restarts() if job.restarts is not None else None,
                start_from=start_from(origin, store),
                abandoned=list(abandoned),
                nests=nests_of(job.plan),
                pace=job.pace,
                standbys=job.standbys,
                depth=job.depth,
                copies=Copies(job.copied, MemorySpill),
                hot=job.hot,
                elastic=job.elastic,
            )

        return self._driver(run_id, fresh, store, origin)

    def _driver(
        self,
        run_id: str,
        fresh: Callable[[int], Coordinator],
        store: MemoryStore | None,
        origin: Origin | None,
        term: int = 0,
        clocks: Clocks | None = None,
    ) -> Driver:
        clocks, coordinator = self._cluster.clocks(DRIVER) if clocks is None else clocks, fresh(term)
        if self._cluster.drivers and clocks.ahead != self._cluster.driver.clocks.ahead:
            self._cluster.covered["a driver began behind a jump of its clock"] += 1
        coordinator.checkpoints.clock_offset = clocks.ahead
        driver = Driver(-self._cluster.party(), run_id, coordinator, store, fresh, clocks, origin, term)
        self._cluster.drivers[driver.party] = driver
        return driver

    def _origin(self, store: MemoryStore, origin: From | None) -> Origin | None:
        """The checkpoint to start from, compared with the dataflow as before any start. Raises `IncompatibleState`."""
        if origin is None:
            return None
        if origin == "latest":
            newest = newest_start(store, or_new=True, start_again=True)
            if newest is None:  # the job has no checkpoint of its own yet: it starts from its first origin again
                begun = self.job.origin
                return None if begun is None or begun == "latest" else self._origin(store, begun)
            found = origin_at(store, newest)
        else:
            files, path = origin
            found = origin_at(store if files is self._storage.files else self._storage.at(files), path)
        check_manifest(found.manifest, self.job.plan.graph, self.job.allow_dropped_state)
        return found

    def start(self, driver: Driver) -> None:
        """Starts the job under a driver."""
        driver.coordinator.start(driver.now())
        self.coordinate(driver)
        self._cluster.report_slots()

    def take_over(self) -> None:
        """Lets another driver take the job over, from the newest checkpoint."""
        self.start(self.begin("latest"))

    def replace(self, lost: Driver, why: str, outlived: bool) -> None:
        """Starts another coordinator for the run of one that was lost: see `runtime.outpost.outpost`. It knows what its
        program knows, which is what the lost one was started with; it finds the rest in the files, or, where workers wait
        for it, with them. `outlived`: all workers lived on when it was lost."""
        with self._storage.calm():
            store = self._storage.own()
            store.hold(lost.run_id, lost.term + 1)
        driver = self._driver(lost.run_id, lost.fresh, store, lost.origin, lost.term + 1, lost.clocks)
        if self.job.log is None:
            driver.coordinator.take_over(why, driver.now())
            self.coordinate(driver)
        else:
            driver.expected = outlived
            self.successions.begin(driver, why)

    def tick(self, driver: Driver) -> None:
        """Lets a coordinator look at the clock."""
        # Living workers give their signs of life in time; they are not the protocol under test here.
        for process in self._cluster.processes.values():
            if process.driver is driver and process.frozen_until <= self._cluster.now:
                driver.coordinator.heartbeat(process.place, process.party, driver.now())
        self._cluster.note("tick")
        driver.coordinator.tick(driver.now())
        self.coordinate(driver)

    def deliver(self, source: int, driver: Driver, item: Any) -> None:
        """Delivers an item to a driver."""
        if not driver.alive:
            if isinstance(item, StoreWork):
                item.orphan()
            return
        if isinstance(item, Hello):
            process = self._cluster.processes.get(source)
            if process is None:
                return
            epoch = driver.coordinator.hello(item, driver.now())
            process.slot, process.epoch = item.slot, epoch if epoch is not None else 0
            if epoch is None:
                self._cluster.kill(process, "a worker was not wanted", cut=False, announced=True)
        elif isinstance(item, Event | StoreWork):
            item.act()
        elif not self.successions.receive(driver, source, item):
            slot, epoch, message = item
            message = message_codec.decode_from_worker(message_codec.encode(message))
            assert not isinstance(message, Hello)
            driver.coordinator.message(slot, epoch, message, driver.now())
        self.coordinate(driver)

    def coordinate(self, driver: Driver) -> None:
        """Carries out the actions of a coordinator."""
        coordinator = driver.coordinator
        while coordinator.actions:
            actions, coordinator.actions = coordinator.actions, []
            for action in actions:
                self._carry_out(driver, action)
        tick_at = coordinator.next_tick(driver.now())
        driver.tick_at = None if tick_at is None else tick_at - (driver.now() - self._cluster.now)

    def _carry_out(self, driver: Driver, action: Action) -> None:
        match action:
            case Send():
                self._to_worker(driver, action)
            case Launch():
                start = (driver.party, action.slot, action.launch)
                if start in self._launched:
                    raise InternalError(f"R3: start {action.launch} of place {action.slot} is made twice", ())
                self._launched.add(start)
                self._workers.launch(driver, action.slot, action.launch)
            case Kill():
                self._cancel(driver, action)
            case CloseLink():
                self._close_link(driver, action)
            case StatusChanged():
                self._cluster.note(f"status {action.status}")
            case CheckpointEnded():
                self._checkpoint_ended(action)
            case SavepointEnded():
                self._savepoint_ended(action)
            case StopEnded():
                self._cluster.count("a stop that failed" if action.reason else "stopped")
                self._cluster.note(f"stop: {action.reason or 'done'}")
                if action.who is not None:
                    action.who(action)
            case RescaleEnded():
                self._cluster.count("a change of size that failed" if action.reason else "changed the size")
                self._cluster.note(f"size {action.slots}: {action.reason or 'done'}")
                if action.who is not None:
                    action.who(action)
            case Resizing():
                how = "went back to the size before" if action.reason else "moved to another size"
                self._cluster.count("went on with fewer workers" if action.lacking else how)
                self._cluster.note(f"resizing from {action.before} to {action.after} {action.reason}{action.lacking}")
            case Autoscaled():
                self._cluster.count("was sized by the load")
                self._cluster.note(f"sized by the load from {action.before} to {action.after}: {action.reason}")
            case NotResized():
                self._cluster.note(f"stays at {action.slots}: {action.reason}")
            case Restarting():
                # A driver that was overtaken may request a restart too late.
                if driver is self._cluster.driver or action.cause.kind is not FailureKind.USER:
                    self.causes.append(action.cause)
                self._cluster.count("restarted")
                if action.cause.kind is FailureKind.MOVED:
                    self._cluster.count("moved a worker")
                self._cluster.note(f"restart {action.attempt}: {action.cause.message}")
            case Replacing():
                moved = action.cause.kind is FailureKind.MOVED
                self._cluster.count("moved a worker alone" if moved else "lost a worker that is replaced")
                if action.cause.alone is not None:
                    self.causes.append(action.cause)
                    self._cluster.count("replaced a worker that had failed")
                    self._cluster.note(f"worker {action.slot} has failed and is replaced: {action.cause.message}")
                newest = driver.coordinator.durability.newest
                if newest is not None and newest[1].in_flight:
                    self._cluster.count("lost a worker that had records in flight at the newest checkpoint")
            case NotReplaced():
                self._cluster.count("lost a worker that is not replaced")
                self._cluster.note(f"worker {action.slot} is not replaced: {action.reason}")
            case WorkerReplaced():
                self._cluster.count("replaced a worker")
            case ValuesNotCompared():
                self._cluster.count("values are not compared")
                self._cluster.note(f"values of {action.operator} are not compared: {action.reason}")
            case HistoryFills():
                self._cluster.count("took a checkpoint early, as a history filled")
            case StandbyLost():
                self._cluster.count("lost a standby")
            case NotHot():
                self._cluster.not_hot(action)
            case CheckpointFailed():
                self._cluster.count("warned of a failed checkpoint")
            case OutOfReach():
                self._cluster.count(f"waited for {action.place}")
                self._cluster.note(f"{action.place} is out of reach ({action.tries}): {action.reason}")
            case InReach():
                self._cluster.count(f"{action.place} was in reach again")
            case WasPublished() | Stalled() | WorkerPrinted():
                pass  # no table is cached here, no step takes any time, and what is printed stays here
            case _:  # a `StoreAction`: mypy names one that is not
                self._storage.of_driver(driver, action)

    def _checkpoint_ended(self, action: CheckpointEnded) -> None:
        if action.stats is None:
            self._cluster.count("aborted a checkpoint")
            self._cluster.note(f"checkpoint {action.checkpoint}: {action.reason}")
            return
        self._cluster.count("completed a checkpoint")
        if action.stats.final:
            self._cluster.covered["completed the last checkpoint"] += 1

    def _savepoint_ended(self, action: SavepointEnded) -> None:
        if action.who is not None:
            action.who(action)
        if action.stats is None:
            self._cluster.count("failed at a savepoint")
            self._cluster.note(f"savepoint {action.checkpoint}: {action.reason}")
        else:
            self._cluster.count("took a savepoint")

    def _to_worker(self, driver: Driver, action: Send) -> None:
        if isinstance(action.message, Trigger) and action.slot == 0:
            several = len(driver.coordinator.checkpoints.pending) > 1
            self._cluster.covered["several checkpoints under way"] += several
        message = action.message
        if isinstance(message, Welcome):
            message = msgspec.structs.replace(message, clock=driver.clocks.job.now())
        for observer in self._cluster.observers:
            observer.on_message(driver, action)
        for process in self._cluster.processes.values():
            if process.driver is driver and process.slot == action.slot and process.epoch == action.epoch:
                self._cluster.send(driver.party, process.party, message)
                return
        place = driver.coordinator.roster.at(action.slot)
        hello = place.hello if place.epoch == action.epoch else None
        welcomed = self._cluster.processes.get(hello.pid) if hello is not None else None
        if welcomed is not None:
            welcomed.slot, welcomed.epoch = action.slot, action.epoch
            self._cluster.send(driver.party, welcomed.party, message)

    def _cancel(self, driver: Driver, action: Kill) -> None:
        """Cancels a Spark job: the driver may learn of its end at once, and the process lives on for a while."""
        cluster = self._cluster
        if cluster.waiting.pop((driver, action.slot, action.launch), None) is not None:
            coordinator, start = driver.coordinator, (action.slot, action.launch)
            gone = lambda: coordinator.slot_ended(start[0], "it was cancelled", driver.now(), launch=start[1])  # noqa: E731
            cluster.send(driver.party, driver.party, Event(f"spark job {start[1]} of {start[0]} ended", gone))
        for process in list(cluster.processes.values()):
            if process.driver is driver and (process.place, process.launch) == (action.slot, action.launch):
                doomed, notified = process, cluster.chance.random() < 0.5
                if notified:
                    cluster.spark_ended(process, action.launch, "it was cancelled")

                def act(doomed: SimulatedProcess = doomed, notified: bool = notified) -> None:
                    if doomed.party in cluster.processes:
                        cluster.kill(doomed, "ended by its driver", cut=True, announced=not notified)

                cluster.later(
                    cluster.now + cluster.chance.randint(*cluster.conditions.zombie),
                    "a process ends",
                    act,
                )

    def _close_link(self, driver: Driver, action: CloseLink) -> None:
        for process in self._cluster.processes.values():
            if process.driver is driver and process.slot == action.slot and process.epoch == action.epoch:
                closed = Event("link closed", lambda process=process: process.handle(CoordinatorLost("closed")))  # type: ignore[misc]
                self._cluster.send(driver.party, process.party, closed)
