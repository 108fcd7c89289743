"""Faults as data: what befalls a simulated job, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tailrace.coordinator.lifecycle import JobStatus
from tailrace.task.events import CoordinatorLost
from tailrace.testing.world import Event, Process

if TYPE_CHECKING:
    from tailrace.testing.simulator import Simulation

Kind = Literal[
    "kill", "respawn", "freeze", "cut-link", "delay", "checkpoint", "crash-driver", "freeze-driver", "storage"
]


@dataclass(frozen=True)
class Fault:
    """At the turn `turn` of a simulation, or so many turns after the first line of the trace that has `after` in it:

    - `kill`: a worker's process dies;
    - `respawn`: the same, and Spark starts it again by itself, without a word to the driver;
    - `freeze`: a worker's process does nothing for `duration` microseconds;
    - `cut-link`: the connection of a worker to another one (`other`) breaks;
    - `delay`: one link is slower by `duration` microseconds;
    - `checkpoint`: somebody asks for a checkpoint;
    - `crash-driver`: the driver dies, and another one goes on from the newest checkpoint;
    - `freeze-driver`: the driver does nothing for `duration` microseconds, is taken for dead, and another one goes on; then
      it wakes up, and its workers are still there;
    - `storage`: for `duration` turns each operation on the storage of checkpoints goes wrong with probability `chance`, as
      `outcome` says: it is refused, or there is no answer, and it was done or was not.

    `which` chooses among those that there are, by remainder.
    """

    turn: int
    kind: Kind
    which: int = 0
    other: int = 0
    duration: int = 0
    after: str = ""
    chance: float = 0.0
    outcome: Literal["error", "unknown-done", "unknown-not-done", "any"] = "error"
    only: str = ""
    """With `storage`: only operations with this in what they are called and in the names of their files."""


def strike(world: Simulation, fault: Fault) -> None:
    """A fault happens, where there is something for it to happen to."""
    here = sorted(world.processes)
    process = world.processes[here[fault.which % len(here)]] if here else None
    if fault.kind == "storage":
        world.trouble = (world.turns + fault.duration, fault.chance, fault.outcome)
        world.trouble_only = fault.only
        world.count("storage in trouble")
    elif fault.kind == "checkpoint":
        world.count("asked for a checkpoint")
        world.coordinator.checkpoint(None, world.now)
        world.coordinate(world.driver)
    elif fault.kind in ("crash-driver", "freeze-driver"):
        _end_driver(world, fault)
    elif fault.kind == "delay" and world.links:
        keys = sorted(world.links)
        world.links[keys[fault.which % len(keys)]].last_arrival = world.now + fault.duration
        world.count("delayed a link")
    elif process is None:
        return
    elif fault.kind == "freeze":
        process.frozen_until = world.now + fault.duration
        world.count("froze a worker")
    elif fault.kind == "cut-link":
        _cut_link(world, process, fault.other)
    elif fault.kind in ("kill", "respawn"):
        if world.coordinator.status is JobStatus.RESTARTING:
            world.count("lost a worker during recovery")
        again = fault.kind == "respawn"
        world.kill(process, "respawned" if again else "killed", cut=True, announced=not again)
        if again and process.driver.alive:
            world.spawn(process.driver, process.slot, process.launch)


def _cut_link(world: Simulation, process: Process, other: int) -> None:
    """A connection between two workers breaks; both live on."""
    slots = sorted(process.peers)
    if not slots:
        return
    slot = slots[other % len(slots)]
    peer = world.processes.get(process.peers[slot])
    if peer is not None:
        world.count("cut a link")
        world.lose_peer(process, slot, peer.party, "cut by a fault")
        world.lose_peer(peer, process.slot, process.party, "cut by a fault")


def _end_driver(world: Simulation, fault: Fault) -> None:
    """The driver dies, in the middle of whatever it was doing, and its workers notice sooner or later; or it falls asleep.
    Another one goes on from the newest checkpoint."""
    old = world.driver
    status = old.coordinator.status
    if world.settings is None or status is JobStatus.CREATED or status.final:
        return
    if status is JobStatus.RESTARTING:
        world.count("lost the driver during recovery")
    if fault.kind == "freeze-driver":
        world.count("froze the driver")
        old.frozen_until = world.now + fault.duration
    else:
        world.count("crashed the driver")
        old.alive = False
        world.cut_short(old.party)
        for process in world.processes.values():
            if process.driver is old:
                told = Event("coordinator lost", lambda process=process: process.handle(CoordinatorLost("it died")))  # type: ignore[misc]
                world.send(old.party, process.party, told, world.chance.randint(*world.conditions.zombie))
    world.new_driver()
