"""The wait of a coordinator's process for the workers of a lost one, to go on with them (docs/protocols/succession.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from tailrace.coordinator.succession.machine import LoggedCoordinator
from tailrace.errors import error_text
from tailrace.runtime.driver.jobstore import JobStore
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.network.coordinator_links import WorkerDoor
from tailrace.runtime.network.link import endpoint
from tailrace.runtime.worker.coordinator_lookup import WAIT_SECONDS

_LOOK_SECONDS = 0.05


class Reunion:
    """The wait of one coordinator."""

    def __init__(self, machine: LoggedCoordinator, store: JobStore, door: WorkerDoor, loop: EventLoop) -> None:
        self._machine, self._store, self._door, self._loop = machine, store, door, loop

    def go_on(
        self,
        why: str,
        running: Callable[[], Collection[tuple[int, int]]],
        now: Callable[[], int],
        over: Callable[[], bool],
    ) -> str:
        """Goes on with the workers of the lost coordinator. Returns the reason why that cannot be; else empty. `running`:
        the starts of slots whose Spark jobs run by now. `over`: true where the job is to end."""
        door = self._door
        door.rejoined = {}
        try:
            claimed = self._store.claim_at(endpoint(door.listener.address))
        except Exception as error:
            reason = f"no incarnation could be claimed: {error_text(error)}"
        else:
            self._await_workers(running, over)
            workers = {(one.slot, one.epoch): one for one in door.rejoined.values()}
            reason = self._machine.take_place(workers, claimed, why, now())
        if reason:
            door.send_away("another coordinator starts all workers again")
        else:
            door.take_back()
        return reason

    def _await_workers(self, running: Callable[[], Collection[tuple[int, int]]], over: Callable[[], bool]) -> None:
        """Waits until all workers have come whose Spark jobs run, or for a while."""
        deadline = time.monotonic() + WAIT_SECONDS
        come = self._door.rejoined
        assert come is not None
        while not over() and (left := deadline - time.monotonic()) > 0:
            if {(one.place, one.launch) for one in come.values()} >= set(running()):
                break
            self._loop.poll(min(left, _LOOK_SECONDS))
            self._door.listener.expire(time.monotonic())
