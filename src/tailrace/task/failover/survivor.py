"""The part of a worker that goes on in the replacement of a lost one (`protocol.replay`): it reports what it has of the lost
worker, and sends what it has kept for that to the replacement."""

from __future__ import annotations

from tailrace.protocol.replay import (
    Came,
    Gained,
    KnownHistory,
    WorkerLost,
)
from tailrace.task.contract.actions import Action
from tailrace.task.failover.history_sending import news_for, to_peer
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.journal.replayable_gate import gate_of


def known_history(slice: ReplayableSlice, lost: WorkerLost) -> KnownHistory:
    """The report of a survivor on a lost worker. Frames that still come from that worker are dropped from now on."""
    slice.gone.add(lost.slice)
    slice.held.pop(lost.slice, None)
    if lost.slice not in slice.beside:  # else its history is passed on until the coordinator has all of it
        slice.place({lost.slice: ""})
    slice.hearsay.forget(lost.slice)
    came = list[Came]()
    for gate in map(gate_of, slice.tasks):
        for ident in gate.channels:
            if ident.source == lost.slice and ident.source != slice.slot:
                digest = gate.came_since(ident, lost.checkpoint)
                came.append((*ident, digest.count, digest.value))
    values = [
        (*ident, *known)
        for task in slice.tasks
        for ident, known in gate_of(task).values.items()
        if ident.source == lost.slice
    ]
    known = slice.copies[lost.slice].report(lost.known)
    return KnownHistory(lost.slice, known, came, lost.turn, values)


def peer_replaced(slice: ReplayableSlice, slot: int) -> list[Action]:
    """Sends what was kept for a lost worker to its replacement, which can be reached now. This worker's history goes
    first, even if it is empty: the replacement sends nothing before it has it."""
    slice.gone.discard(slot)
    slice.history.forget(slot)
    for copy in slice.copies.values():
        copy.forget(slot)
    first = news_for(slice, slice.history, slot) or [Gained(slice.history.first, [])]
    for task in slice.tasks:
        for ident in task.gate.channels:
            if ident.source == slot:
                gate_of(task).sender_replaced(ident)
        for ident, channel in task.outbox.channels.items():
            if ident.target == slot and not channel.local and slot not in slice.awaiting:
                slice.feed_again(task, ident)
        task.wake()
        slice.route(task)
    return [to_peer(slice, slot, gained) for gained in first]
