"""Replay of a recorded worker: a fresh worker is fed with the recorded events, and must return the recorded actions after
each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from search.watchers.checker import BOOKS, Book, Ledger
from tailrace.elements.frame_codec import decode as decode_frame
from tailrace.errors import ProtocolViolation
from tailrace.task.journal.outside_answers import ReplayedAnswers
from tailrace.task.worker.eventlog import action_bytes, decode
from tailrace.testing.recording import WorkerRecording, job_of

_SHOWN = 300
"""Number of characters of an event or an action in a report."""


@dataclass(frozen=True)
class Difference:
    """The first event after which a replay differs from its recording."""

    worker: int
    """Number of the recording, from 0."""
    slot: int
    event: int
    """Number of the worker's event, from 0."""
    what: str
    was: str
    now: str

    def __str__(self) -> str:
        return (
            f"process {self.worker}, worker {self.slot}, event {self.event} ({self.what}):\n"
            f"      was {self.was}\n      now {self.now}"
        )


def differences(workers: list[WorkerRecording], folder: str) -> Iterator[Difference]:
    """The first difference of each worker that has any. `folder` is for state on disk."""
    for number, recording in enumerate(workers):
        found = play(recording, folder)
        if found is not None:
            yield Difference(number, recording.slot, *found)


def play(recording: WorkerRecording, folder: str) -> tuple[int, str, str, str] | None:
    """Feeds a fresh worker with a recording. Returns None, or the first difference: the number of the event, the event,
    the recorded actions, and the actions of the replay."""
    spec = job_of(recording)
    for node in spec.plan.graph.nodes:
        sink = getattr(node.operator, "sink", None)
        if isinstance(sink, Ledger):
            BOOKS[sink.name] = Book()  # for its transactions; the replay publishes nothing
    outside = ReplayedAnswers()
    disk = None if recording.setting.disk is None else folder
    setting, job = replace(recording.setting, disk=disk), lambda: job_of(recording)
    worker = setting.worker(recording.slot, job, recording.checkpointing, Counter(), outside)
    for number, happened in enumerate(recording.story):
        entry = decode(happened.entry)
        outside.give(entry.answers)
        raised = False
        try:
            worker.handle(entry.event)
        except ProtocolViolation:
            raised = True
        expected_actions, worker.actions = worker.actions, []
        actions = tuple(map(action_bytes, expected_actions))
        if (actions, raised, outside.remaining) != (happened.actions, happened.raised, 0):
            unasked = f", and {outside.remaining} answers were not asked for" if outside.remaining else ""
            was, now = _texts_of(happened.actions, happened.raised), _texts_of(actions, raised)
            return number, str(entry.event)[:_SHOWN], _apart(was, now), _apart(now, was) + unasked
    return None


def _texts_of(actions: Iterable[bytes], raised: bool) -> list[str]:
    return [*map(_text_of, actions), *(["an error: the coordinator said what must not come"] if raised else [])]


def _text_of(data: bytes) -> str:
    name, action = msgspec.msgpack.decode(data)
    if name == "ToPeer":
        frame = decode_frame(action["data"])
        body = action["data"][-80:] if frame.count else b""
        return (
            f"to worker {action['slot']}: kind {frame.kind} on {frame.channel}, seq {frame.seq} x{frame.count} {body!r}"
        )
    return f"{name} {action}"


def _apart(one: list[str], other: list[str]) -> str:
    """The first action in which two lists differ, as the first list has it."""
    for number, action in enumerate(one):
        if number >= len(other) or action != other[number]:
            return f"action {number} of {len(one)}: {action[:_SHOWN]}"
    return f"{len(one)} actions"
