"""The steps of a change of size: what the workers, the storage and Spark do in it, played by a test."""

from __future__ import annotations

from typing import Any

from driving import Job, S

from tailrace.coordinator.actions import Send
from tailrace.coordinator.workers.rescaling import JobSize
from tailrace.protocol.deployment import Deployed
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.snapshot import Trigger
from tailrace.protocol.standby import Hold, StandsBy, StateHeld


def size(slots: int, **other: Any) -> JobSize:
    return JobSize(slots, b"a plan for %d" % slots, text=str(slots), **other)


def joins(job: Job, slot: int) -> None:
    """The worker of a slot to come joins, from the newest start of its place."""
    assert job.hello(slot, launch=job.machine.roster.at(slot).launches) is not None


def ready(job: Job, *workers: int) -> None:
    """Reports that workers have read the plan of the size to come, and the state that they are to hold; without any, all."""
    for one in job.machine.roster.of_size_to_come:
        if one.index in workers or not workers:
            job.says(one.index, StandsBy(), epoch=one.epoch)
            for held in [a.message for a in job.machine.actions if isinstance(a, Send) and isinstance(a.message, Hold)]:
                job.says(one.index, StateHeld(held.checkpoint, held.slots), epoch=one.epoch)


def cut(job: Job) -> int:
    """The number of the checkpoint that is requested of all workers of the size before, once they are ready."""
    ready(job)
    job.machine.tick(job.now)
    numbers = {message.cut.number for _, message in job.sent(Trigger) if message.cut.hold}
    assert len(numbers) == 1
    return int(numbers.pop())


def sealed(job: Job, number: int) -> list[Any]:
    """The checkpoint is complete. Returns the actions that follow."""
    for slot in job.machine.roster.slots:
        job.ack(slot.index, number, b"of %d" % slot.index)
    job.commit()
    return job.actions()


def drop(job: Job, *slots: int) -> None:
    """Reports that workers have dropped what they ran; without any, all that were to."""
    held_up = [slot.index for slot in job.machine.roster.slots if slot.holds_up]
    for slot in slots or held_up:
        job.says(slot, WasReset(job.machine.roster.at(slot).attempt))


def reset(job: Job, *slots: int) -> None:
    """The storage has given an incarnation, and these workers have dropped what they ran."""
    job.claimed(job.machine.incarnation + 1)
    drop(job, *slots)


def runs(job: Job) -> None:
    """The workers of all slots have deployed, and what was prepared is visible."""
    for slot in job.machine.roster.slots:
        job.says(slot.index, Deployed())
    job.published()
    assert job.status is S.RUNNING
