"""What is in flight at several checkpoints is written with the first of them; the others refer to it, by file, frame and
record. Jobs that write everything again are what these are compared with."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId, decode
from tailrace.protocol.snapshot import Abort, Complete, Trigger
from tailrace.state.format import checksum
from tailrace.state.manifest import Manifest
from tailrace.state.parts import LogOf
from tailrace.storage.reading import load_index, read_state
from tailrace.task.channels.channel_logs import Log, LogFrame, Recording, Referred, restored_frame
from tailrace.task.channels.spilling import MemorySpill, Shelf
from tailrace.task.channels.written_records import Span, WrittenRecords
from tailrace.task.operators.sink import SinkTask
from tests.task.inflight.test_overtaking import PROGRAMS, Fleet
from tests.task.worker.test_restore import Disk

HERE = ChannelId(0, 0, 0)


def span(file: str, start: int, count: int, **how: Any) -> Span:
    return Span(file, 0, 100, 7, start, start + count, count, **how)


def pieces(written: WrittenRecords, first: int, count: int) -> list[tuple[str, int, int]]:
    return [(one.file, one.start, one.stop) for one in written.find(HERE, first, count)]


# The books.


def test_records_are_found_in_the_files_that_have_them_though_it_takes_several() -> None:
    written = WrittenRecords()
    written.files.update("ab")
    written.wrote(HERE, 10, span("a", 0, 5))
    written.wrote(HERE, 15, span("b", 3, 5))
    assert pieces(written, 12, 6) == [("a", 2, 5), ("b", 3, 6)]
    assert pieces(written, 18, 3) == [], "the last one is in neither: all are written"
    written.keep("b")
    assert pieces(written, 12, 6) == [] and pieces(written, 15, 2) == [("b", 3, 5)]
    written.forget(HERE, 17)
    assert pieces(written, 17, 3) == [("b", 5, 8)], "the rest of a span that is half read"
    written.forget(HERE, 20)
    assert pieces(written, 17, 3) == []


def test_records_that_are_here_and_there_in_a_frame_are_found_by_their_places() -> None:
    written = WrittenRecords()
    written.files.add("a")
    written.wrote(HERE, 0, Span("a", 0, 100, 7, 0, 9, 4, (0, 8)), np.array([1, 4, 5, 8]))
    (one,) = written.find(HERE, 1, 2)
    assert (one.start, one.stop, one.count, one.groups) == (4, 6, 2, (0, 8))


@pytest.mark.parametrize("seed", range(20))
def test_of_spans_that_overlap_the_one_that_has_most_is_found_whatever_was_written_first(seed: int) -> None:
    chance, written = random.Random(seed), WrittenRecords()
    written.files.update("abc")
    spans: list[tuple[int, Span]] = []
    for _ in range(60):
        first, made = chance.randrange(100), span(chance.choice("abcd"), 0, chance.choice([1, 2, 5, 30]))
        spans = [(at, one) for at, one in spans if not (first <= at and at + one.count <= first + made.count)]
        spans.append((first, made))
        written.wrote(HERE, first, made)
        at = chance.randrange(120)
        lasts = [start + one.count for start, one in spans if one.file != "d" and start <= at < start + one.count]
        found = written.find(HERE, at, max(lasts) - at if lasts else 1)
        assert [one.count for one in found] == ([max(lasts) - at] if lasts else [])


def test_where_many_are_written_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint with many frames in flight looks for each of them. It had looked at all of them each time."""
    written, requested = WrittenRecords(), 0

    def last(entry: Any) -> int:
        nonlocal requested
        requested += 1
        return int(entry.first + entry.span.count)

    written.files.add("a")
    for i in range(5_000):
        written.wrote(HERE, 3 * i, span("a", 0, 3))
    monkeypatch.setattr("tailrace.task.channels.written_records._Entry.last", property(last))
    assert all(written.find(HERE, 3 * i, 3) for i in range(0, 5_000, 5))
    assert requested < 10_000


# All workers of a job.


class Overlapping:
    """A job with narrow channels that is cut several times before any of these checkpoints is complete."""

    def __init__(
        self, name: str, parallelism: int, seed: int, disk: Disk | None = None, most: int = -1, ahead: bool = False
    ) -> None:
        self.fleet = Fleet(PROGRAMS[name][0], parallelism, disk, seed=seed, ahead=ahead)
        self.most = most

    def from_(self, manifest: Manifest | None, incarnation: int) -> Overlapping:
        self.fleet.number = 0 if manifest is None else manifest.checkpoint
        self.fleet.deploy(manifest, incarnation=incarnation)
        return self

    def cut(self, *after: int) -> list[Manifest]:
        """A checkpoint after each of these numbers of turns, all under way together."""
        numbers = []
        for turns in after:
            self.fleet.turns(turns)
            self.fleet.number += 1
            numbers.append(self.fleet.number)
            self.fleet.say(Trigger(CutRequest(self.fleet.number, overtakes_after=0)))
        everybody = len(self.fleet.workers)
        while any(len(self.fleet.acks.get(number, [])) < everybody for number in numbers):
            assert self.fleet.turn(), f"one of {numbers} does not come to its end"
        return [self.fleet.manifest(number) for number in numbers]

    def in_flight(self, manifest: Manifest) -> Counter[Any]:
        """What the logs of a checkpoint hold: of each channel and half the records, in order."""
        found: dict[Any, list[Any]] = {}
        everything = {operator.uid: (0, 16) for operator in manifest.operators}
        for part in read_state(self.fleet.disk, manifest, everything):
            if isinstance(part, LogOf):
                frame = decode(restored_frame(part, "it", 0).data)
                entries = frame.batch().to_rows().values if frame.count else [frame.marker()]
                found.setdefault((part.channel, part.kind, part.age, part.turn), []).extend(entries)
        return Counter({(str(log), repr(entries)): 1 for log, entries in found.items()})

    def referred(self, *manifests: Manifest) -> int:
        return sum(ack.referred for one in manifests for ack in self.fleet.acks[one.checkpoint])

    def written(self, manifest: Manifest) -> int:
        """Bytes of frames that a checkpoint wrote itself."""
        logs = [log for file in manifest.files for log in load_index(self.fleet.disk, file.name).logs]
        return sum(piece.length for log in logs for piece in log.pieces if piece.count and piece.file < 0)


@contextmanager
def everything_written_again() -> Iterator[None]:
    with mock.patch.object(WrittenRecords, "find", lambda *_: []):
        yield


@pytest.mark.parametrize("name", sorted(PROGRAMS))
@pytest.mark.parametrize("seed", range(3))
def test_what_overlapping_checkpoints_have_in_flight_is_written_once(name: str, seed: int) -> None:
    once = Overlapping(name, 2 + seed % 2, seed).from_(None, 1)
    taken = once.cut(60, 3, 3)
    with everything_written_again():
        again = Overlapping(name, 2 + seed % 2, seed).from_(None, 1)
        expected = again.cut(60, 3, 3)
    for mine, other in zip(taken, expected, strict=True):
        assert once.in_flight(mine) == again.in_flight(other)
    assert any(once.in_flight(one) for one in taken) == bool(once.referred(*taken)), (
        "there was something, and it was referred to"
    )
    assert once.written(taken[0]) == again.written(expected[0])
    assert sum(map(once.written, taken[1:])) < sum(map(again.written, expected[1:]))


class ByCut:
    """What a sink gets, and how much of it before each cut."""

    def __init__(self, sink: SinkTask) -> None:
        self._writer, self._snapshot = sink.writer, sink.snapshot
        self.got: list[Any] = []
        self.before: dict[int, int] = {}
        sink.writer = self  # type: ignore[assignment]
        sink.snapshot = self.snapshot  # type: ignore[method-assign]

    def write(self, values: Any) -> None:
        self.got.extend(values)

    def snapshot(self, checkpoint: int) -> bytes | None:
        self.before[checkpoint] = len(self.got)
        return self._snapshot(checkpoint)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


@contextmanager
def what_is_referred_to(fleet: Fleet) -> Iterator[list[tuple[Span, list[Any]]]]:
    """The places of records by the logs of checkpoints, and which records these are. What is gathered ahead is in no
    log."""
    found: list[tuple[Span, list[Any]]] = []
    encode = Recording._next_frames
    attempts = [worker._attempt for worker in fleet.workers if worker._attempt is not None]
    ahead = [one._recording for attempt in attempts for one in attempt.checkpoints._ahead]

    def noting(self: Recording, log: Log, limit: int) -> Any:
        if self in ahead:
            return encode(self, log, limit)
        item, start, _ = log.entries[0]
        if item.in_memory and item.batch is None and item.data is None:
            return encode(self, log, limit)  # it is in its file only
        values = self._shelf.load(item).to_rows().values[start:] if item.count else []
        frames = encode(self, log, limit)
        for frame in frames:
            if isinstance(frame, Referred):
                found.append((frame.span, values[: frame.count]))
                values = values[frame.count :]
        return frames

    with mock.patch.object(Recording, "_next_frames", noting):
        yield found


def records_of(disk: Disk, span: Span) -> list[Any]:
    data = disk.read_range(span.file, span.offset, span.length)
    assert checksum(data) == span.checksum
    batch = decode(data).batch().slice(span.start, span.stop)
    values = batch.to_rows().values
    if span.groups is None:
        return values
    assert batch.groups is not None
    return [
        value for value, group in zip(values, batch.groups, strict=True) if span.groups[0] <= group < span.groups[1]
    ]


def lives(name: str, seed: int, parallelisms: list[int], ahead: bool = False) -> tuple[Counter[Any], int, int]:
    """A job that is cut several times while what came back is read, and goes on from one of these checkpoints when all
    files are gone that it does not name. What its sinks had got in the end; how many bytes were referred to, and how many
    records of them by their key groups."""
    disk, manifest, got, referred, grouped = Disk(), None, [], 0, 0
    for life, parallelism in enumerate(parallelisms):
        job = Overlapping(name, parallelism, 100 * seed + life, disk, ahead=ahead)
        fleet = job.fleet
        fleet.number = 0 if manifest is None else manifest.checkpoint
        fleet.deploy(manifest, incarnation=life + 1, own=life != 3)
        operators = [operator for w in fleet.workers for task in w.tasks() for operator in task.chain.operators]
        sinks = [ByCut(operator) for operator in operators if isinstance(operator, SinkTask)]
        fleet.turns([4, 30, 90][(seed + life) % 3])
        if life == len(parallelisms) - 1:
            fleet.to_the_end()
            got += [one for sink in sinks for one in sink.got]
            break
        with what_is_referred_to(fleet) as message:
            first = job.cut(2, 5)
            fleet.say(Complete(first[seed % 2].checkpoint))
            fleet.say(Abort(first[1 - seed % 2].checkpoint))
            second = job.cut(5, 3, 3)
        assert all(records_of(disk, span) == values for span, values in message)
        referred += job.referred(*first, *second)
        grouped += sum(span.count for span, _ in message if span.groups is not None)
        manifest = second[(seed + life) % 3]
        got += [one for sink in sinks for one in sink.got[: sink.before[manifest.checkpoint]]]
        named = {*(file.name for file in manifest.files), *manifest.older}
        disk.files = {name: data for name, data in disk.files.items() if name in named}
    return Counter(got), referred, grouped


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_checkpoint_while_what_came_back_is_read_refers_to_the_rest(name: str) -> None:
    """In the same run, where its files are, at another parallelism as well: then by key groups. In one of the lives, which
    is another run's, everything is written again."""
    bytes_referred = by_groups = 0
    for seed in range(6):
        parallelisms = [[2, 3, 2, 2, 3], [3, 2, 2, 2, 2], [2, 3, 1, 2, 1]][seed % 3]
        got, referred, grouped = lives(name, seed, parallelisms)
        assert got == PROGRAMS[name][1], f"{name}, seed {seed}"
        bytes_referred += referred
        by_groups += grouped
    assert bytes_referred > 5_000 and (by_groups or name not in ("by key", "in order", "around"))


def test_a_savepoint_refers_to_nothing_and_writes_again_what_a_checkpoint_has() -> None:
    """What was returned of an earlier checkpoint is in flight at an aligned cut as well, and a savepoint is one."""
    written = WrittenRecords()
    written.files.add("a")
    written.wrote(HERE, 0, span("a", 0, 3))
    shelf = Shelf("it", 0, MemorySpill, 1 << 40)
    for number, whole in ((1, False), (2, True)):
        recording = Recording("it", shelf, written)
        item = shelf.refer(3, 30, batch=Rows([1, 2, 3]))
        item.at = HERE, 0
        recording.write(recording.begin(number, whole), item)
        recording.complete_logs(number)
        [frame], last = recording.encode(number, 1 << 40)
        assert last and isinstance(frame, LogFrame if whole else Referred)
