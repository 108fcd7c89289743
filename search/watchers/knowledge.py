"""A watcher of histories: whatever a worker depends on can be reported by someone who is not lost with it (Y11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from tailrace.elements.frame_codec import HISTORY
from tailrace.elements.frame_codec import decode as decode_frame
from tailrace.task.contract.events import Event, FrameArrived
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.testing.simulator import Simulation
from tailrace.testing.world import FrameItem, Observer, SimulatedProcess

Vector = dict[int, int]
"""The entries of histories on which something depends: slot -> number behind the last one."""


class Knowledge(Observer):
    """An observer that follows on which entries of which histories each worker depends, from frame to frame. What it finds
    is in `wrong`; `checked` is the number of frames that it has looked at."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.checked = 0
        self._depends: WeakKeyDictionary[ReplayableSlice, Vector] = WeakKeyDictionary()
        self._arrived: WeakKeyDictionary[ReplayableSlice, dict[int, deque[Vector]]] = WeakKeyDictionary()
        """That on which the frames depend that have arrived, by peer, in their order: a slice may hold frames."""
        self._dead: list[SimulatedProcess] = []
        """Processes that have died. They are among those that may be lost until they are replaced."""
        self._beyond: list[str] = []
        """What would be wrong, had not more executors been lost at once than are covered: all must start again."""
        self._sent: dict[int, tuple[bytes, Vector]] = {}
        """The frames under way, by the identity of their bytes, with that on which each depends."""

    def over(self, world: Simulation) -> None:
        """Follows the workers of this simulation from now on."""
        self._world, self._depth = world, max(1, world.coordinator.takeovers._depth)
        send = world.cluster.send

        def noting(source: int, target: int, item: Any, extra: int = 0) -> None:
            process = world.processes.get(source)
            if isinstance(item, FrameItem) and process is not None and (held := _slice(process)) is not None:
                vector = {**self._depends.get(held, {}), held.slot: held.history.end}
                self._sent[id(item.data)] = item.data, vector
            send(source, target, item, extra)

        world.cluster.send = noting  # type: ignore[method-assign]
        world.watch(self)

    def dies(self, process: SimulatedProcess) -> None:
        self._dead.append(process)

    def on_event(self, process: SimulatedProcess, event: Event) -> None:
        held = _slice(process)
        if held is None or self.wrong or process.machine.failed:
            return  # a worker that has failed takes nothing more
        self.wrong += self._judge_beyond()
        arrived = self._arrived.setdefault(held, {})
        for gone in held.gone:
            arrived.pop(gone, None)
        if isinstance(event, FrameArrived):
            _, vector = self._sent.pop(id(event.data), (b"", {}))
            frame = decode_frame(event.data)
            if frame.incarnation == held.incarnation and event.peer not in held.gone:
                arrived.setdefault(event.peer, deque()).append({} if frame.kind == HISTORY else vector)
            self.wrong += self._gaps(held) if frame.kind == HISTORY else []
        for peer, vectors in arrived.items():
            while len(vectors) > len(held.held.get(peer, ())):
                self._use(process, held, vectors.popleft())

    def _gaps(self, held: ReplayableSlice) -> Iterator[str]:
        """Copies that, with what the coordinator has of these histories, do not reach back to the newest complete
        checkpoint. It is the newest one that the coordinator knows: `Complete` may be on its way to the worker, and a
        replacement restores no older one."""
        coordinator = self._world.coordinator
        claims, takeovers = coordinator.durability.claims, coordinator.takeovers
        if held.incarnation != claims.deployed or not coordinator.course.flowing:
            return  # all start again: nobody is replaced with what these copies have
        complete = takeovers._complete
        for slot, copy in held.copies.items():
            other = takeovers._copies.get(slot, copy)
            cut = other.cuts.get(complete) if complete else 0
            if cut is None or cut >= copy.first or copy._gone or other._gone:
                continue
            if not other.first <= cut or not copy.first <= other.end:
                yield f"turn {self._world.turns}: worker {held.slot} lacks what worker {slot} did from {cut} to {copy.first}"

    def _use(self, process: SimulatedProcess, held: ReplayableSlice, vector: Vector) -> None:
        depends = self._depends.setdefault(held, {})
        news = {slot: end for slot, end in vector.items() if end > depends.get(slot, 0) and slot != held.slot}
        depends.update(news)
        self.checked += bool(vector)
        self.wrong += [found for slot, end in news.items() for found in self._lost(process, slot, end)]

    def _lost(self, process: SimulatedProcess, slot: int, end: int) -> Iterator[str]:
        """What would be lost with the executor of a worker, and with as many others as may be lost at once."""
        copy = self._world.coordinator.takeovers._copies.get(slot)
        if (copy is not None and copy.end >= end) or not self._world.coordinator.course.flowing:
            return
        if self._is_replaced(process):
            return
        self._dead = [one for one in self._dead if self._is_missed(one)]
        there = [*self._world.processes.values(), *self._dead]
        processes = [one for one in there if one.driver is process.driver]
        owners = {_home(one) for one in processes if one.slot == slot and _slice(one) is not None}
        mine, knows = _home(process), {_home(one) for one in processes if _knows(one, slot, end)} - owners
        if mine not in owners and mine not in knows and len(knows) < self._depth:
            found = (
                f"turn {self._world.turns}: worker {process.slot} in executor {mine} depends on entries of worker {slot} "
                f"up to {end}, which only executors {sorted(knows)} know beside {sorted(owners)}"
            )
            if len({_home(one) for one in self._dead if one.driver is process.driver}) > self._depth:
                self._beyond.append(found)
            else:
                yield found

    def _judge_beyond(self) -> Iterator[str]:
        """What was lost with more executors than are covered is wrong if all are replaced, and not started again."""
        if self._beyond and not self._world.coordinator.course.flowing:
            self._beyond = []
        elif self._beyond and not self._world.coordinator.takeovers.active:
            beyond, self._beyond = self._beyond, []
            yield from beyond

    def _is_replaced(self, process: SimulatedProcess) -> bool:
        """True for a process that was frozen while another one took its slot: nobody takes what it sends any more."""
        hello = self._hello(process.slot)
        return hello is not None and hello.pid != process.party

    def _is_missed(self, dead: SimulatedProcess) -> bool:
        """True for a process whose loss nobody has noticed yet, or whose replacement does not go on yet."""
        hello = self._hello(dead.slot)
        return dead.slot in self._world.coordinator.takeovers.active or (hello is not None and hello.pid == dead.party)

    def _hello(self, slot: int) -> Any:
        """What the holder of a place has sent; None for a place without one, or that a job of another size has no more."""
        places = self._world.coordinator.roster.places
        return next((place.hello for place in places if place.index == slot), None)


def _slice(process: SimulatedProcess) -> ReplayableSlice | None:
    attempt = process.machine.attempt
    return None if attempt is None else attempt.recorded


def _home(process: SimulatedProcess) -> str:
    return process.executor or f"worker {process.slot}"


def _knows(process: SimulatedProcess, slot: int, end: int) -> bool:
    held = _slice(process)
    return held is not None and slot in held.copies and held.copies[slot].end >= end
