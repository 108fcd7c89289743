"""Shows the slices of a job, by what the bookkeepers know. Nothing follows from it."""

from __future__ import annotations

from tailrace.coordinator.failovers import Marks
from tailrace.coordinator.roster import Roster, Slot
from tailrace.coordinator.slices import Failover, Slices, SliceStandby, SliceStatus
from tailrace.coordinator.standbys import Standby, Standbys
from tailrace.coordinator.takeovers import Takeovers


def slices_of(roster: Roster, takeovers: Takeovers, offset: int) -> Slices:
    """All slices of a job. `offset`: from the coordinator's clock to microseconds since 1970. Other threads ask, too."""
    standbys = roster.standbys
    ready = sum(one.ready for one in standbys.all), len(standbys.all)
    found = tuple(_slice(slot, standbys, takeovers, offset) for slot in roster.slots)
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
    )


def _standby(one: Standby, slot: int, standbys: Standbys) -> list[SliceStandby]:
    """A standby that is to hold a slice; nothing where it is gone in this very moment."""
    hello = one.hello
    if hello is None:
        return []
    where = one.index, hello.host, hello.executor or None, hello.pid
    if slot not in one.holding:
        return [SliceStandby(*where, False)]
    behind, micros = standbys.behind(one)
    return [SliceStandby(*where, True, one.held, behind, micros / 1e6)]


def _failover(marks: Marks, offset: int) -> Failover:
    parts = marks.parts()
    return Failover((marks.noticed + offset) / 1e6, *(part / 1000 for part in (*parts, sum(parts))))
