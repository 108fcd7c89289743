"""Successors of lost coordinators in a simulated cluster: workers look for one, and it goes on with them, or starts all
again. The counterpart of `runtime.outpost.succession`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.succession.machine import GOES_ON, LoggedCoordinator, SuccessorClaim
from tailrace.protocol.deployment import Leave
from tailrace.protocol.succession import Rejoin
from tailrace.storage.origins import claim_again
from tailrace.task.contract.events import CoordinatorFound, CoordinatorLost
from tailrace.testing.cluster import Cluster
from tailrace.testing.storing import Storage
from tailrace.testing.workers import Workers
from tailrace.testing.world import Driver, SimulatedProcess

LOOK = (1, 3_000)
"""Microseconds between two looks of a worker for another coordinator."""
NEEDLESS = "started again though all workers have outlived the coordinator"
WAIT = 60_000
"""Microseconds that a worker waits for another coordinator, and that one for the workers."""


def maker(term: int, log: int | None) -> Callable[..., Coordinator]:
    """The function that makes coordinators which log their events, or, without a log, those that do not."""
    return Coordinator if log is None else partial(LoggedCoordinator, term=term, most=log)


class Successions:
    """The workers that wait for another coordinator, and the coordinators that wait for workers."""

    def __init__(
        self, cluster: Cluster, storage: Storage, workers: Workers, coordinate: Callable[[Driver], None]
    ) -> None:
        self._cluster, self._storage, self._workers, self._coordinate = cluster, storage, workers, coordinate

    # The workers.

    def lose(self, process: SimulatedProcess) -> None:
        """Lets a worker notice that its coordinator is lost."""
        looks, process.waits_until = process.machine.waits, self._cluster.now + WAIT
        if not looks:  # else its coordinator was lost while it was about to go on
            process.handle(CoordinatorLost("it died"))
        if process.machine.waits and not looks:
            self._look_later(process)

    def _look_later(self, process: SimulatedProcess) -> None:
        at = self._cluster.now + self._cluster.chance.randint(*LOOK)
        self._cluster.later(at, "a worker looks for a coordinator", partial(self._look, process))

    def _look(self, process: SimulatedProcess) -> None:
        cluster, found = self._cluster, self._cluster.driver
        if process.party not in cluster.processes or not process.machine.waits:
            return
        if process.frozen_until > cluster.now:
            self._look_later(process)
            return
        if cluster.now > process.waits_until:
            process.handle(CoordinatorLost("no other one has come"))
        elif found is not process.driver and found is not process.called and found.run_id == process.driver.run_id:
            process.called = found
            process.handle(CoordinatorFound())
        self._workers.act(process)
        self._look_later(process)

    # Their coordinator.

    def all_outlive(self, lost: Driver) -> bool:
        """True if all workers of a coordinator that is lost now live on, and one of them has its log. Where the job is
        ending, a `Leave` on its way may end the mirrors before the others."""
        coordinator = lost.coordinator
        here = [one for one in self._cluster.processes.values() if one.driver is lost]
        there = {(one.slot, one.epoch) for one in here if one.machine.succeeds}
        slots = [(one.index, one.epoch) for one in coordinator.roster.slots if one.connected]
        mirrored = isinstance(coordinator, LoggedCoordinator) and coordinator.mirrored
        on = coordinator.status in GOES_ON and not coordinator.course.ending
        return mirrored and on and all(one in there for one in slots)

    def begin(self, driver: Driver, why: str) -> None:
        """Lets another coordinator wait for the workers of the lost one."""
        driver.reunion = {}
        self._check(driver, why, self._cluster.now + WAIT)

    def receive(self, driver: Driver, party: int, rejoin: Any) -> bool:
        """Takes the message of a worker of a lost coordinator. Returns False for any other message."""
        if not isinstance(rejoin, Rejoin):
            return False
        if driver.reunion is None:
            self._refuse(driver, party)
        else:
            driver.reunion[party] = rejoin
        return True

    def _check(self, driver: Driver, why: str, deadline: int) -> None:
        """Goes on when all processes of the lost coordinator have come, or have ended."""
        cluster, come = self._cluster, driver.reunion
        if come is None or not driver.alive:
            return
        others = [one for one in cluster.processes.values() if one.driver.run_id == driver.run_id]
        if cluster.now > deadline:
            self._start_again(driver, f"{why}, and not all workers have come to another one")
        elif all(one.party in come for one in others):
            self._go_on(driver)
        else:
            at = cluster.now + cluster.chance.randint(*LOOK)
            cluster.later(at, "a coordinator waits for workers", partial(self._check, driver, why, deadline))

    def _refuse(self, driver: Driver, party: int) -> None:
        self._cluster.send(driver.party, party, Leave("another coordinator starts all workers again"))

    def _go_on(self, driver: Driver) -> None:
        cluster, store, coordinator = self._cluster, driver.store, driver.coordinator
        assert store is not None and isinstance(coordinator, LoggedCoordinator) and driver.reunion is not None
        why = "its executor was lost"
        try:
            marked = None if driver.origin is None else driver.origin.marked
            found = claim_again(store, driver.run_id, marked, at=str(driver.party))
            first = store.first_of_successors(found.incarnation)
        except OSError as error:
            self._start_again(driver, f"{why}; {error}")
            return
        workers = {(one.slot, one.epoch): one for one in driver.reunion.values()}
        parties = {(one.slot, one.epoch): party for party, one in driver.reunion.items()}
        claimed = SuccessorClaim(found.incarnation, first, found.manifest, found.path, found.path)
        reason = coordinator.take_place(workers, claimed, why, driver.now())
        if reason:
            self._start_again(driver, f"{why}, and no other one could go on: {reason}")
            return
        coordinator.checkpoints.clock_offset = driver.clocks.ahead
        cluster.count("went on behind a lost coordinator")
        driver.reunion = None
        for key, party in parties.items():
            process = cluster.processes.get(party)
            if process is not None:
                process.driver, process.called = driver, None
            else:
                coordinator.link_lost(*key, "it died", driver.now())
        if found.origin_published:
            coordinator.origin_published()
        for place in coordinator.roster.places:
            for start in sorted(place.running):
                there = (one for one in cluster.processes.values() if one.driver is driver)
                if not any((one.place, one.launch) == start for one in there):
                    coordinator.slot_ended(start[0], "it died", driver.now(), launch=start[1])
        self._coordinate(driver)

    def _start_again(self, driver: Driver, why: str) -> None:
        """Starts all workers again."""
        workers, driver.reunion = driver.reunion or {}, None
        if driver.expected:
            self._cluster.count(NEEDLESS)
        self._cluster.count("started again behind a lost coordinator")
        self._cluster.note(why)
        for party in workers:
            self._refuse(driver, party)
        driver.coordinator = driver.fresh(driver.term)
        driver.coordinator.checkpoints.clock_offset = driver.clocks.ahead
        driver.coordinator.take_over(why, driver.now())
        self._coordinate(driver)
