"""The views of a job, its slices and its checkpoints, made from what the bookkeepers know. Nothing else depends on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tailrace.coordinator.checkpoint_stats import Books, PendingStats, Waits
from tailrace.coordinator.durability.checkpoints import PendingCheckpoint
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.output.outages import Outage
from tailrace.coordinator.view.jobview import JobView, SlotFigures
from tailrace.coordinator.view.slices import Failover, SizeFigures, Slices, SliceStandby, SliceStatus
from tailrace.coordinator.workers.replacement_durations import ReplacementTimes
from tailrace.coordinator.workers.replacement_phases import Takeovers
from tailrace.coordinator.workers.rescaling import Rescaling
from tailrace.coordinator.workers.roster import Roster, Slot
from tailrace.coordinator.workers.standbys import Standby, Standbys
from tailrace.protocol.deployment import PHASES


def view_of(machine: Coordinator, now: int, at: int, refused: Mapping[str, int]) -> JobView:
    """The view of a whole job, at `now` by the coordinator's clock, which is `at` by the clock of the job. `refused`:
    connections refused at the coordinator's port, by reason. Other threads call it, too."""
    slots, counts = machine.roster.slots, Counter(refused)
    for slot in slots:
        counts.update(slot.refused)
    return JobView(
        machine.status,
        at,
        machine.attempts.restarts - machine.course.rescaling.count,
        machine.cause,
        tuple(SlotFigures(tuple(slot.figures(now)), slot.under_way) for slot in slots),
        dict(counts),
        books_of(machine, now),
        slices_of(machine.roster, machine.takeovers, machine.checkpoints.clock_offset, machine.course.rescaling),
        tuple(machine.nests.waves(number) for number in range(len(machine.nests.specs))),
        size_of(machine),
    )


def size_of(machine: Coordinator) -> SizeFigures:
    """The size of a job. Other threads call it, too."""
    rescaling, workers = machine.course.rescaling, len(machine.roster.slots)
    target, elastic = rescaling.target, rescaling.elastic
    to = target.slots if target is not None else workers if rescaling.is_moving else None
    before = rescaling.before
    now = workers, to, rescaling.stage.value if to is not None else ""
    if before is not None:
        now = before.slots, *now[1:]
    if elastic is None:
        return SizeFigures(*now)
    last = None if elastic.scaler is None else elastic.scaler.last
    bounds = (elastic.sizes.least, elastic.sizes.most), elastic.required, elastic.room
    return SizeFigures(*now, *bounds, "" if last is None else last.reason)


def slices_of(roster: Roster, takeovers: Takeovers, offset: int, rescaling: Rescaling | None = None) -> Slices:
    """All slices of a job. `offset`: from the coordinator's clock to microseconds since 1970. A worker that waits until the
    job moves to a larger size has no slice yet. Other threads call it, too."""
    standbys, workers, before = roster.standbys, len(roster.slots), None if rescaling is None else rescaling.before
    ready = sum(one.ready for one in standbys.all), len(standbys.all)
    stays = min(workers, roster.target if before is None else before.slots)
    change = "leaves" if before is None else "joins"
    found = tuple(
        replace(made, change=change) if made.slot >= stays else made
        for made in (_slice(slot, standbys, takeovers, offset) for slot in list(roster.slots))
    )
    return Slices(found, ready if takeovers.enabled else None)


def _slice(slot: Slot, standbys: Standbys, takeovers: Takeovers, offset: int) -> SliceStatus:
    failovers, index, hello = takeovers.failovers, slot.index, slot.hello
    last = failovers.last.get(index)
    entries, log, kept = slot.log
    return SliceStatus(
        index,
        None if hello is None else hello.host,
        None if hello is None else hello.executor or None,
        None if hello is None else hello.pid,
        failovers.attempts.get(index, slot.attempt),
        tuple(found for one in standbys.all if index in one.slots for found in _standby(one, index, standbys)),
        entries,
        log,
        kept,
        failovers.counts.get(index, 0),
        index in failovers.under_way,
        None if last is None else _failover(last, offset),
        failovers.refused.get(index, ""),
        slot.log_left,
        slot.copied,
    )


def _standby(one: Standby, slot: int, standbys: Standbys) -> list[SliceStandby]:
    """The view of a standby that is to hold a slice; empty where the standby is gone in this very moment."""
    hello = one.hello
    if hello is None:
        return []
    where = one.index, hello.host, hello.executor or None, hello.pid
    hot = one.attempt_of(slot) > 0
    if slot not in one.holding:
        return [SliceStandby(*where, False, hot=hot)]
    behind, micros = standbys.behind(one)
    return [SliceStandby(*where, True, one.held, behind, micros / 1e6, hot)]


def _failover(marks: ReplacementTimes, offset: int) -> Failover:
    parts = marks.parts()
    process, survivors, restore, replay = (part / 1000 for part in parts)
    noticed, total = (marks.noticed + offset) / 1e6, sum(parts) / 1000
    return Failover(noticed, process, survivors, restore, replay, total, marks.hot)


def hand_on(view: JobView, machine: Coordinator) -> None:
    """Gives a coordinator that has not begun the figures of the one that was lost, as the last view of the job has them."""
    machine.attempts.restarts = view.restarts
    if view.books is not None:
        machine.checkpoints.inherit(view.books)


def books_of(machine: Coordinator, now: int) -> Books | None:
    """The figures of a job's checkpoints; None where it takes none. Other threads call it, too."""
    checkpoints, durability = machine.checkpoints, machine.durability
    if not durability.takes_checkpoints:
        return None
    waits = [found for one in (durability.storage, durability.places) if (found := _waits(one, now)) is not None]
    return Books(
        tuple(checkpoints.past),
        checkpoints.completed,
        checkpoints.aborted,
        tuple(_under_way(one, machine.roster, now) for one in list(checkpoints.pending.values())),
        checkpoints.in_a_row,
        tuple(checkpoints.failed),
        (*waits, *durability.output.lanes.waits(now)),
    )


def _under_way(one: PendingCheckpoint, roster: Roster, now: int) -> PendingStats:
    """A checkpoint under way, with the workers that it waits for, and the least advanced phase of theirs."""
    age = max(0, now - one.triggered_at)
    missing = tuple(slot.index for slot in roster.slots if slot.index not in one.acks)
    if not missing:
        return PendingStats(one.id, age, "committing" if one.committing else "to be committed")
    phases = [roster.slots[slot].phase_of(one.id) for slot in missing]
    return PendingStats(one.id, age, min(phases, key=PHASES.index), missing)


def _waits(outage: Outage, now: int) -> Waits | None:
    since, reason = outage.since, outage.reason
    return None if since is None else Waits(outage.place, reason, outage.tries, max(0, now - since))
