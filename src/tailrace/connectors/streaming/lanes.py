"""The reader of the lanes of one subtask."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NewType

import pyarrow as pa

from tailrace.api.connectors import AssignedSplit, SourceLag, SplitReader
from tailrace.connectors.streaming.batches import BatchFile, BatchFolder, BatchList
from tailrace.connectors.streaming.batchfiles import rows_from
from tailrace.connectors.travelling import is_local
from tailrace.elements.batches import Form
from tailrace.elements.rows import rows_of
from tailrace.errors import CheckpointError

POLL_SECONDS, REMOTE_POLL_SECONDS = 0.02, 0.25
"""Seconds between two looks for the next batch."""
GAP_SECONDS = 5.0
"""Seconds of waiting after which a reader looks whether a later batch is there, which would mean that one is missing."""
MARK = "tailrace.mark"
"""Name of the column that is true in marks of event time: records without data that a lane gives at the end of a batch."""

_MARK_FIELD = pa.field(MARK, pa.bool_())
LaneNumber = NewType("LaneNumber", int)


class LanePosition(NamedTuple):
    """The place where the reading of a lane goes on."""

    batch: int = 0
    file: int = 0
    """Number of files of the lane in that batch that are read."""
    row: int = 0
    """Number of rows of the next file that are read."""


@dataclass
class ReadLane:
    """A lane at some position."""

    number: LaneNumber
    of: int
    """Number of lanes of the source."""
    position: LanePosition
    noted: int | None = None
    """The first batch that the lane may still need, as it has noted it in the folder."""
    files: list[BatchFile] | None = None
    """Files of the batch at hand; None while it is not known whether the batch is there."""
    latest: int | None = None
    """Latest event time in the batch at hand and all before it (int64 microseconds)."""
    current: pa.RecordBatch | None = None
    """Rows of the file at hand that come next; None if no file is open."""
    rest: Iterator[pa.RecordBatch] = field(default_factory=lambda: iter(()))
    """Rows of the file at hand behind these."""
    read: deque[tuple[LanePosition, str]] = field(default_factory=deque)
    """Files that were read and are not deleted: the position behind each, and its name."""
    behind: deque[LanePosition] = field(default_factory=deque)
    """Positions in the newest complete checkpoints."""

    def files_in(self, known: BatchList) -> list[BatchFile]:
        """The files of the lane in a batch, in the order in which it reads them. Those of a partition are listed in the
        order in which its task wrote them."""
        mine = [file for file in known.files if file.partition % self.of == self.number]
        return sorted(mine, key=lambda file: file.partition)


class LaneReader(SplitReader):
    """A reader of lanes. All of them read the same lists, each its own files.

    Records of a lane come batch by batch, in each batch file by file. With `event_time`, the name of a column, the reader
    adds the column `MARK`, and gives a mark with the latest event time of all partitions at the end of each batch."""

    def __init__(
        self,
        open_folder: Callable[[str], BatchFolder],
        form: Form,
        schema: pa.Schema,
        event_time: str | None,
        *,
        ends: bool,
        keep: int,
        written: Sequence[str] = (),
    ) -> None:
        """`schema`: the columns of the records, without `MARK`. `ends`: True if the batches may come to an end. `keep`: the
        number of checkpoints whose batches stay. `written`: the names of the columns in the files."""
        self.form, self.schema, self.event_time, self.ends, self.keep = form, schema, event_time, ends, keep
        self.written = written
        self._open_folder = open_folder
        self.batches: BatchFolder
        """Folder of the batches, opened with the first lane."""
        self.lanes: dict[int, ReadLane] = {}
        """Lanes by the number of their split."""
        self.paused: frozenset[int] = frozenset()
        self._lists: dict[int, BatchList] = {}
        self._turn = 0
        self._waiting_since: float | None = None
        self._end: int | None = None
        self._pause = POLL_SECONDS

    def assign(self, splits: Sequence[AssignedSplit]) -> None:
        for one in splits:
            if not hasattr(self, "batches"):
                self.batches = self._open_folder(one.split["folder"])
                self._pause = POLL_SECONDS if is_local(self.batches.url) else REMOTE_POLL_SECONDS
            position = LanePosition() if one.position is None else LanePosition(*one.position)
            number = LaneNumber(one.split["lane"])
            self.batches.check_position(number, position.batch)
            lane = ReadLane(number, one.split["of"], position)
            self._find_read(lane)
            self.lanes[one.number] = lane

    def _find_read(self, lane: ReadLane) -> None:
        """Finds what an earlier reader of a lane has read and not deleted."""
        lane.noted = self.batches.read_marks().get(lane.number)
        if lane.noted is None:
            lane.noted = 0
            self.batches.note_read(lane.number, 0, None)
        at = lane.position
        for batch in self.batches.ids():
            known = self.batches.list_of(batch) if lane.noted <= batch <= at.batch else None
            for count, file in enumerate(lane.files_in(known) if known is not None else (), 1):
                if (batch, count) <= at[:2]:
                    lane.read.append((LanePosition(batch, count), file.name))

    def revoke(self, splits: Sequence[int]) -> None:
        for split in splits:
            self.lanes.pop(split, None)

    def pause(self, splits: Collection[int]) -> None:
        self.paused = frozenset(splits)

    def read(self, limit: int, now: float) -> Iterable[tuple[int, Any]]:
        order = sorted(self.lanes)
        found: list[tuple[int, Any]] = []
        for offset in range(len(order)):
            split = order[(self._turn + offset) % len(order)]
            if split in self.paused:
                continue
            given = self._read_lane(self.lanes[split], limit, now)
            found.append((split, given))
            if given is None or len(given):
                self._turn = (self._turn + offset + 1) % len(order)
                break
        self._forget_lists()
        return found

    def _read_lane(self, lane: ReadLane, limit: int, now: float) -> Any:
        """What comes next of a lane: records, nothing at the moment, or None at its end."""
        while True:
            if lane.current is not None:
                return self._take(lane, limit)
            if lane.files is None and not self._begin_batch(lane, now):
                return None if self._is_over(lane) else []
            assert lane.files is not None
            if lane.position.file < len(lane.files):
                self._open_file(lane, lane.files[lane.position.file])
                continue
            mark = self._mark(lane)
            lane.position, lane.files = LanePosition(lane.position.batch + 1), None
            if mark is not None:
                return mark

    def _begin_batch(self, lane: ReadLane, now: float) -> bool:
        """Finds the files of the next batch of a lane. False if that batch is not there yet."""
        batch = lane.position.batch
        known = self._lists.get(batch) or self.batches.list_of(batch)
        if known is None:
            self._look_for_gap(batch, now)
            return False
        self._waiting_since = None
        self._lists[batch] = known
        lane.files, lane.latest = lane.files_in(known), known.latest
        return True

    def _look_for_gap(self, batch: int, now: float) -> None:
        """Raises `CheckpointError` if a batch is not there, and later ones are."""
        if self._waiting_since is None or now < self._waiting_since:
            self._waiting_since = now
        elif now >= self._waiting_since + GAP_SECONDS:
            self._waiting_since = now
            listed = self.batches.ids()
            if listed and listed[-1] > batch and self.batches.list_of(batch) is None:
                raise CheckpointError(
                    f"batch {batch} of the streaming query is not there any more, and batch {listed[-1]} is: somebody has "
                    f"removed files from {self.batches!r}"
                )

    def _is_over(self, lane: ReadLane) -> bool:
        if not self.ends:
            return False
        if self._end is None:
            self._end = self.batches.end()
        return self._end is not None and lane.position.batch >= self._end

    def _open_file(self, lane: ReadLane, file: BatchFile) -> None:
        row = lane.position.row
        if row >= file.rows:
            self._end_file(lane)
            return
        lane.rest = rows_from(self.batches, file.name, row, self.schema, self.written)
        self._advance(lane, file)

    def _advance(self, lane: ReadLane, file: BatchFile) -> None:
        """Takes up the next rows of the file at hand."""
        lane.current = next(lane.rest, None)
        if lane.current is None:
            raise CheckpointError(f"{file.name} in {self.batches!r} has less than {file.rows} rows: it was changed")

    def _end_file(self, lane: ReadLane) -> None:
        at = lane.position
        assert lane.files is not None
        file = lane.files[at.file]
        lane.position, lane.current, lane.rest = at._replace(file=at.file + 1, row=0), None, iter(())
        lane.read.append((lane.position, file.name))

    def _take(self, lane: ReadLane, limit: int) -> Any:
        assert lane.current is not None and lane.files is not None
        first, file = lane.current, lane.files[lane.position.file]
        part = first.slice(0, limit)
        lane.position = lane.position._replace(row=lane.position.row + part.num_rows)
        if lane.position.row >= file.rows:
            self._end_file(lane)
        elif part.num_rows < first.num_rows:
            lane.current = first.slice(part.num_rows)
        else:
            self._advance(lane, file)
        if self.event_time is not None:
            return part.append_column(_MARK_FIELD, pa.repeat(False, part.num_rows))
        return part if self.form == "columns" else rows_of(part)

    def _mark(self, lane: ReadLane) -> pa.RecordBatch | None:
        """A mark with the latest event time so far; None if there is none."""
        if self.event_time is None or lane.latest is None:
            return None
        time = pa.array([lane.latest], pa.int64())
        values = [
            time.cast(kind.type) if kind.name == self.event_time else pa.nulls(1, kind.type) for kind in self.schema
        ]
        return pa.RecordBatch.from_arrays([*values, pa.array([True])], schema=self.schema.append(_MARK_FIELD))

    def _forget_lists(self) -> None:
        if len(self._lists) > 1:
            first = min((lane.position.batch for lane in self.lanes.values()), default=0)
            self._lists = {batch: known for batch, known in self._lists.items() if batch >= first}

    def position(self, split: int) -> Any:
        return tuple(self.lanes[split].position)

    def next_at(self, now: float) -> float:
        return now + self._pause

    def completed(self, positions: Mapping[int, Any]) -> None:
        """Deletes what no checkpoint that is kept needs. A checkpoint that is not the newest may be started from as long as
        it is kept."""
        lanes = 0
        for split, at in positions.items():
            lane = self.lanes.get(split)
            if lane is None:
                continue
            lanes = lane.of
            lane.behind.append(LanePosition(*at))
            while len(lane.behind) > self.keep:
                lane.behind.popleft()
            if len(lane.behind) == self.keep:
                self._delete_before(lane, lane.behind[0])
        if lanes:
            self.batches.delete_lists(lanes)

    def _delete_before(self, lane: ReadLane, position: LanePosition) -> None:
        if lane.noted is None or position.batch > lane.noted:
            self.batches.note_read(lane.number, position.batch, lane.noted)
            lane.noted = position.batch
        gone = []
        while lane.read and lane.read[0][0] <= position:
            gone.append(lane.read.popleft()[1])
        self.batches.delete_files(gone)

    def lag(self, now: float) -> Mapping[int, SourceLag]:
        return {split: SourceLag(float(self._waiting_rows(lane))) for split, lane in self.lanes.items()}

    def _waiting_rows(self, lane: ReadLane) -> int:
        """Number of rows of the batch at hand that are not read."""
        left = lane.files[lane.position.file :] if lane.files is not None else []
        return max(0, sum(file.rows for file in left) - lane.position.row)
