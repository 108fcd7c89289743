"""Cuts of a task that are replayed: they count as made, whatever was read by then."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId
from tailrace.elements.markers import Barrier
from tailrace.state.memory_backend import MemoryBackend
from tailrace.task.channels.services import Services
from tailrace.task.failover.replayed_steps import replay_cut
from tailrace.task.slice.machine import Slice
from tailrace.task.subtask.machine import Task


def tasks() -> tuple[Task, Task]:
    """A source, and the task with keyed state behind it that reads from it and from another worker."""
    env = tr.Environment(parallelism=2)
    env.from_collection([1, 2]).key_by(lambda n: n).count().sink_to(tr.sinks.Print())
    make = lambda uid, subtask: MemoryBackend(uid=uid)  # noqa: E731
    services = Services(random.Random, debug=True, checkpointing=True, make_backend=make)
    held = Slice(env._plan(env._pending()), 0, 0, services, 1 << 20)
    held.open()
    reader, source = held.tasks
    return source, reader


def due(task: Task) -> list[int]:
    return [cut.request.number for cut in task.cuts.due]


def barriers(task: Task) -> list[int]:
    """The checkpoints whose barriers the task has sent, on each channel."""
    sent = [payload for _, _, payload, _ in task.outbox.sends if isinstance(payload, Barrier)]
    return [marker.checkpoint for marker in sent]


def test_a_replayed_cut_leaves_those_due_that_come_behind_it() -> None:
    source, _ = tasks()
    source.trigger(CutRequest(1))
    source.trigger(CutRequest(2))
    replay_cut(source, CutRequest(1), 7)
    assert due(source) == [2]
    source.trigger(CutRequest(2))
    assert due(source) == [2], "no cut is made twice"
    source.check()
    assert barriers(source) == [1]
    assert source.checkpoints.snapshot is None


@pytest.mark.parametrize("known", [(1, 2), (2,), ()])
def test_no_cut_up_to_a_replayed_one_is_made_once_more(known: Any) -> None:
    _, reader = tasks()
    for number in known:
        reader.arrive(ChannelId(0, 1, 0), 0, Barrier(CutRequest(number)), 0)
    replay_cut(reader, CutRequest(2), 7)
    for number in (1, 2):
        reader.trigger(CutRequest(number))
    assert (due(reader), reader.cuts.pending) == ([], [])
    reader.check()
    reader.trigger(CutRequest(3))
    assert reader.cuts.pending == [3]


def test_state_that_a_replayed_cut_has_frozen_can_be_frozen_again() -> None:
    _, reader = tasks()
    for number in (1, 2):
        replay_cut(reader, CutRequest(number), 7)
    backends = [operator.backend for operator in reader.chain.operators if operator.backend is not None]
    assert backends
    for backend in backends:
        backend.freeze(CutRequest(3))
