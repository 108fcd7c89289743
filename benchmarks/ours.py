"""The workloads as a dataflow of tailrace, the way a user writes it."""

from __future__ import annotations

import pickle
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

import tailrace as tr

from .measure import Spec
from .workload import (
    GAP,
    KEYS,
    STRIDE,
    WINDOW,
    Record,
    Tally,
    columns,
    first_of,
    halve,
    halve_columns,
    keep,
    keep_columns,
    rows,
    session_columns,
    session_rows,
    share,
    shift,
    shift_columns,
    timed_columns,
    value_of,
)


class Generate(tr.Source):
    """Fresh batches of the workload's records."""

    def __init__(self, records: int, form: Any, folder: str) -> None:
        self.records, self.form, self.folder = records, form, folder
        self.columns = ("id", "key", "value") if form == "columns" else None

    def splits(self, parallelism: int) -> Sequence[tuple[int, int]]:
        return [share(self.records, i, parallelism) for i in range(parallelism)]

    def reader(self, split: tuple[int, int], position: Any = None) -> tr.Reader:
        start, end = split
        return GenerateReader(self, start if position is None else position, end)


class GenerateReader(tr.Reader):
    def __init__(self, source: Generate, at: int, end: int) -> None:
        self.at, self.end, self.folder = at, end, source.folder
        self.make = columns if source.form == "columns" else rows
        self.started = False

    def read(self, limit: int, now: float = 0.0) -> Any:
        if not self.started:
            self.started = True
            Path(self.folder, f"first-{self.at}").write_text(repr(time.time()))
        start = self.at
        if start == self.end:
            return None
        self.at = min(start + limit, self.end)
        return self.make(start, self.at)

    @property
    def position(self) -> int:
        return self.at


class GenerateInTurn(Generate):
    """The source of records with the time of each; the readers take turns."""

    def __init__(self, records: int, form: Any, folder: str, sessions: bool = False) -> None:
        super().__init__(records, form, folder)
        self.columns = ("time", "key", "value") if form == "columns" else None
        self.sessions = sessions

    def splits(self, parallelism: int) -> Sequence[tuple[int, int]]:
        return [(i, parallelism) for i in range(parallelism)]

    def reader(self, split: tuple[int, int], position: Any = None) -> tr.Reader:
        index, turns = split
        return InTurnReader(self, index * STRIDE if position is None else position, turns)


class InTurnReader(GenerateReader):
    def __init__(self, source: GenerateInTurn, at: int, turns: int) -> None:
        super().__init__(source, at, source.records)
        self.turns = turns
        by_form = {"columns": (timed_columns, session_columns), "rows": (rows, session_rows)}
        self.make = by_form[source.form][source.sessions]

    def read(self, limit: int, now: float = 0.0) -> Any:
        if self.at >= self.end:
            return None
        batch = super().read(min(limit, STRIDE - self.at % STRIDE))
        if self.at % STRIDE == 0:
            self.at += (self.turns - 1) * STRIDE
        return batch


class Report(tr.Sink):
    """Tallies what arrives. The tally of a subtask so far is published as its file in `folder`."""

    form = None  # as it comes

    def __init__(self, folder: str, writer: type[tr.SinkWriter]) -> None:
        self.folder, self.made = folder, writer

    def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
        return self.made(ctx.subtask)

    def publish(self, prepared: Sequence[bytes]) -> None:
        for one in prepared:
            subtask, tally = pickle.loads(one)
            Path(self.folder, f"tally-{subtask}").write_bytes(tally)


class CountRows(tr.SinkWriter):
    def __init__(self, subtask: int) -> None:
        self.subtask = subtask
        self.began = time.process_time()
        self.tally = Tally()

    def write(self, batch: list[Record]) -> None:
        self.tally.count += len(batch)
        self.tally.total += sum(map(value_of, batch))
        self.tally.last = time.time()

    def prepare(self) -> bytes:
        self.tally.cpu = time.process_time() - self.began
        return pickle.dumps((self.subtask, pickle.dumps(self.tally)))


class CountColumns(CountRows):
    def write(self, batch: Any) -> None:
        self.tally.count += batch.num_rows
        self.tally.total += float(batch.column("value").to_numpy().sum())
        self.tally.last = time.time()


class LatestRows(CountRows):
    def __init__(self, subtask: int) -> None:
        super().__init__(subtask)
        self.latest: dict[int, tuple[int, int, float]] = {}

    def write(self, batch: list[tuple[int, int, float]]) -> None:
        self.tally.count += len(batch)
        self.latest.update(zip(map(first_of, batch), batch, strict=True))
        self.tally.last = time.time()

    def prepare(self) -> bytes:
        self.tally.latest = {key: (count, total) for key, count, total in self.latest.values()}
        return super().prepare()


class LatestColumns(CountRows):
    def __init__(self, subtask: int) -> None:
        super().__init__(subtask)
        self.counts = np.zeros(KEYS, np.int64)
        self.totals = np.zeros(KEYS)

    def write(self, batch: Any) -> None:
        key = batch.column("key").to_numpy()
        self.tally.count += len(key)
        self.counts[key] = batch.column("count").to_numpy()
        self.totals[key] = batch.column("total").to_numpy()
        self.tally.last = time.time()

    def prepare(self) -> bytes:
        self.tally.latest = {
            k: (int(self.counts[k]), float(self.totals[k])) for k in np.flatnonzero(self.counts).tolist()
        }
        return super().prepare()


class WindowRows(CountRows):
    every = WINDOW
    """Microseconds from the start of a window to that of the next one."""

    def __init__(self, subtask: int) -> None:
        super().__init__(subtask)
        self.counts, self.totals = np.zeros(KEYS), np.zeros(KEYS)

    def write(self, batch: Any) -> None:
        self.add(*map(np.array, zip(*batch, strict=True)))

    def add(self, key: Any, start: Any, end: Any, count: Any, total: Any) -> None:
        self.tally.count += len(key)
        nth = np.floor(np.round(start * 1e6) / self.every) + 1
        key = key.astype(np.int64)
        np.add.at(self.counts, key, nth * count)
        np.add.at(self.totals, key, nth * total)
        self.tally.last = time.time()

    def prepare(self) -> bytes:
        pairs = zip(self.counts.tolist(), self.totals.tolist(), strict=True)
        self.tally.latest = {k: found for k, found in enumerate(pairs) if found[0]}
        return super().prepare()


class WindowColumns(WindowRows):
    def write(self, batch: Any) -> None:
        self.add(*(column.to_numpy() for column in batch.columns))


class SessionRows(WindowRows):
    every = 2 * WINDOW


class SessionColumns(WindowColumns):
    every = 2 * WINDOW


class Running(tr.KeyedProcessFunction):
    """Running count and sum, as a user writes it with state."""

    state = tr.ValueState(object, default=None)

    def process(self, value: Record, ctx: tr.Context) -> Iterator[tuple[int, int, float]]:
        count, total = self.state.value or (0, 0.0)
        count, total = count + 1, total + value[2]
        self.state.value = (count, total)
        yield (ctx.key, count, total)


def dataflow(env: tr.Environment, spec: Spec, folder: str) -> None:
    sessions, in_rows = spec.options.get("window") == "session", spec.form == "rows"
    if spec.workload == "windows":
        stream = env.from_source(GenerateInTurn(spec.records, spec.form, folder, sessions))
    else:
        stream = env.from_source(Generate(spec.records, spec.form, folder))
    if in_rows:
        stream = stream.map(shift).filter(keep).map(halve)
    elif spec.options.get("steps") == "expressions":
        value = pc.field("value")
        stream = stream.with_columns(value=value + 100.0).filter(value < 550.0).with_columns(value=value * 0.5 + 1.0)
    else:
        stream = stream.map_batches(shift_columns).map_batches(keep_columns).map_batches(halve_columns)
    if spec.workload == "chain":
        stream.sink_to(Report(folder, CountRows if in_rows else CountColumns))
        return
    if spec.workload == "windows":
        writers = (SessionRows, SessionColumns) if sessions else (WindowRows, WindowColumns)
        windows(stream, in_rows, sessions).sink_to(Report(folder, writers[not in_rows]))
        return
    if spec.function == "process":
        keyed = stream.key_by(itemgetter(1)).process(Running())
    elif in_rows:
        keyed = stream.key_by(itemgetter(1)).aggregate(count=tr.Count(), total=tr.Sum(itemgetter(2)))
    else:
        keyed = stream.key_by("key").aggregate(count=tr.Count(), total=tr.Sum("value"))
    keyed.sink_to(Report(folder, LatestRows if in_rows else LatestColumns))


def windows(stream: tr.DataStream, in_rows: bool, sessions: bool = False) -> tr.DataStream:
    """Count and sum of each key in windows of `WINDOW` records, or in sessions that hold the same."""
    size = tr.Session(GAP / 1e6) if sessions else tr.Tumbling(WINDOW / 1e6)
    if in_rows:
        keyed = stream.assign_timestamps(lambda record: record[0] / 1e6).key_by(itemgetter(1))
        return keyed.window(size).aggregate(count=tr.Count(), total=tr.Sum(itemgetter(2)))
    keyed = stream.assign_timestamps("time").key_by("key")
    return keyed.window(size).aggregate(count=tr.Count(), total=tr.Sum("value"))


def notes(checkpoints: Sequence[Any]) -> dict[str, Any]:
    """How the checkpoints of a job went: times in milliseconds."""
    if not checkpoints:
        return {"checkpoints": 0}
    return {
        "checkpoints": len(checkpoints),
        "duration_ms": middle_and_most([1000 * one.duration for one in checkpoints]),
        "alignment_ms": middle_and_most([1000 * one.details["alignment"] for one in checkpoints]),
        "freeze_ms": middle_and_most([1000 * one.details["freeze"] for one in checkpoints]),
        "written_bytes": middle_and_most([one.bytes for one in checkpoints]),
        "referred_bytes": max(int(one.details["full_bytes"]) for one in checkpoints),
    }


def middle_and_most(found: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(found), 1), "max": round(max(found), 1)}


def run(spec: Spec) -> Tally:
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        every = spec.options.get("checkpoint")
        checkpoint = tr.CheckpointConfig(f"{folder}/checkpoints", interval=float(every)) if every else None
        compare = spec.options.get("compare", "values")
        standby = tr.StandbyConfig(int(spec.options["standby"]), compare=compare) if "standby" in spec.options else None
        env = tr.Environment(parallelism=spec.parallelism, progress=False, checkpoint=checkpoint, standby=standby)
        dataflow(env, spec, folder)
        job = env.execute("bench")
        job.await_termination()
        result = Tally()
        for path in Path(folder).glob("tally-*"):
            result.add(pickle.loads(path.read_bytes()))
        if checkpoint is not None:
            result.notes = notes(job.checkpoints)
        result.first = min(float(path.read_text()) for path in Path(folder).glob("first-*"))
    return result
