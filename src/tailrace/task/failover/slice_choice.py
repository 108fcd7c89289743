"""The slice of a worker, as its job requires it, with the feed of its hot standby."""

from __future__ import annotations

from tailrace.protocol.replay import COPIES, Copies
from tailrace.task.channels.services import Services
from tailrace.task.channels.spilling import SpillPlace
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.failover.standby_feed import StandbyFeed
from tailrace.task.journal.replayable_gate import gate_of
from tailrace.task.journal.sent_log import WHAT, Keeping
from tailrace.task.slice.machine import Slice

FED = "what is kept for a hot standby"
"""Purpose of the spill of a feed, in words, for errors."""
LEAST_FED = 4 << 20
"""Bytes that a hot standby may have unread, beside what its worker may have."""


def slice_of(spec: JobSpec, slot: int, attempt: int, services: Services, follows: bool = False) -> Slice:
    """The slice of a worker: a replayable one in a job whose workers are replaced alone. `follows`: it is that of a hot
    standby, which feeds none itself."""
    if not spec.depth:
        return Slice(spec.plan, slot, attempt, services, spec.memory)
    tuning, kept = services.tuning, spec.kept
    place = SpillPlace(WHAT, kept.dir, kept.stored)
    keeping = Keeping(services.spill(place), kept.bytes if tuning.kept is None else tuning.kept)
    most = spec.history_bytes if tuning.history is None else tuning.history
    room = spec.history_bytes if tuning.copied is None else tuning.copied
    copies = Copies(room, services.spill(SpillPlace(COPIES, None if kept.stored else kept.dir)))
    made = ReplayableSlice(spec.plan, slot, attempt, services, spec.memory, keeping, most, copies, spec.compare_values)
    if kept.hot and not follows:
        begin_feed(made)
    return made


def fed_window(slice: Slice) -> int:
    """The bytes that a hot standby of a slice may have unread: more than its worker may have, so that the standby never
    waits for what is behind."""
    return LEAST_FED + 4 * sum(one.flow.window for task in slice.tasks for one in task.gate.channels.values())


def begin_feed(slice: ReplayableSlice, anew: bool = False) -> None:
    """Keeps from now on what a hot standby of a slice needs. `anew`: the slice was followed so far, and something has come
    already."""
    channels = [ident for task in slice.tasks for ident in task.gate.channels if ident.source != slice.slot]
    keeping = Keeping(slice.services.spill(SpillPlace(FED)), slice.keeping.budget)
    slice.feed = StandbyFeed(slice.slot, slice.incarnation, channels, keeping, fed_window(slice))
    if anew:
        slice.feed.end("")
    for task in slice.tasks:
        gate_of(task).on_arrival = slice.feed.arrive
