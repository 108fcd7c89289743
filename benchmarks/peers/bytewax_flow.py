"""The workloads on Bytewax: one process per worker, joined into a cluster over localhost.

Settings were chosen by measurement, see README.md: one worker thread per process (threads of one
process share the interpreter lock), big batches where the state operator gains from them, only the
value beside the key on the exchange, and the batch interface of the state operator.
"""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as windowing
from bytewax._bytewax import cluster_main, run_main
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition

from ..measure import Spec
from ..workload import GAP, KEYS, STRIDE, WINDOW, Record, Tally, halve, keep, rows, session_rows, share, shift, value_of

BATCH = {"chain": 2048, "keyed": 16384, "windows": 16384}
ZERO = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = [str(key) for key in range(KEYS)]  # keys must be strings


class Reader(StatelessSourcePartition[Record]):
    def __init__(self, start: int, end: int, batch: int, tally: Tally) -> None:
        self.at, self.end, self.batch, self.tally = start, end, batch, tally

    def next_batch(self) -> list[Record]:
        start = self.at
        if start == self.end:
            raise StopIteration
        if self.tally.count == 0 and self.tally.first == float("inf"):
            self.tally.first = time.time()
        self.at = min(start + self.batch, self.end)
        return rows(start, self.at)


class Generate(DynamicSource[Record]):
    def __init__(self, records: int, batch: int, tally: Tally) -> None:
        self.records, self.batch, self.tally = records, batch, tally

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Reader:
        start, end = share(self.records, worker_index, worker_count)
        return Reader(start, end, self.batch, self.tally)


class InTurnReader(Reader):
    """Records of sessions; the readers of all workers take turns."""

    def __init__(self, records: int, batch: int, tally: Tally, index: int, turns: int) -> None:
        super().__init__(index * STRIDE, records, batch, tally)
        self.turns = turns

    def next_batch(self) -> list[Record]:
        start = self.at
        if start >= self.end:
            raise StopIteration
        if self.tally.first == float("inf"):
            self.tally.first = time.time()
        self.at = min(start + self.batch, self.end, start + STRIDE - start % STRIDE)
        made = session_rows(start, self.at)
        if self.at % STRIDE == 0:
            self.at += (self.turns - 1) * STRIDE
        return made


class GenerateInTurn(Generate):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> Reader:
        return InTurnReader(self.records, self.batch, self.tally, worker_index, worker_count)


class CountWriter(StatelessSinkPartition[Record]):
    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def write_batch(self, items: list[Record]) -> None:
        self.tally.count += len(items)
        self.tally.total += sum(map(value_of, items))
        self.tally.last = time.time()


class LatestWriter(StatelessSinkPartition[tuple[str, tuple[int, float]]]):
    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def write_batch(self, items: list[tuple[str, tuple[int, float]]]) -> None:
        self.tally.count += len(items)
        self.tally.latest.update(items)
        self.tally.last = time.time()


class SessionWriter(StatelessSinkPartition[Any]):
    """Adds up the sessions of each key, the n-th one n times."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def write_batch(self, items: list[Any]) -> None:
        latest = self.tally.latest
        for key, (_, (count, total, start)) in items:
            nth = start // (2 * WINDOW) + 1
            before = latest.get(int(key), (0.0, 0.0))
            latest[int(key)] = (before[0] + nth * count, before[1] + nth * total)
        self.tally.count += len(items)
        self.tally.last = time.time()


class Into(DynamicSink):
    def __init__(self, writer: type, tally: Tally) -> None:
        self.writer, self.tally = writer, tally

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition:
        return self.writer(self.tally)


class Running(StatefulBatchLogic[float, tuple[int, float], tuple[int, float]]):
    """Running count and sum of one key, one output per value."""

    __slots__ = ("count", "total")

    def __init__(self, state: tuple[int, float] | None) -> None:
        self.count, self.total = state or (0, 0.0)

    def on_batch(self, values: list[float]) -> tuple[Iterable[tuple[int, float]], bool]:
        count, total = self.count, self.total
        out = []
        for value in values:
            count += 1
            total += value
            out.append((count, total))
        self.count, self.total = count, total
        return out, False

    def snapshot(self) -> tuple[int, float]:
        return (self.count, self.total)


def flow(spec: Spec, tally: Tally) -> Dataflow:
    batch = int(spec.options.get("bytewax.batch", BATCH[spec.workload]))
    dataflow = Dataflow("bench")
    source = GenerateInTurn if spec.workload == "windows" else Generate
    s = op.input("generate", dataflow, source(spec.records, batch, tally))
    s = op.map("shift", s, shift)
    s = op.filter("keep", s, keep)
    s = op.map("halve", s, halve)
    if spec.workload == "chain":
        op.output("count", s, Into(CountWriter, tally))
        return dataflow
    if spec.workload == "windows":
        k = op.map("key", s, lambda r: (NAMES[r[1]], (r[0], r[2])))
        op.output("sessions", sessions(k), Into(SessionWriter, tally))
        return dataflow
    how = spec.options.get("bytewax.key", "project")
    if how == "project":
        k = op.map("key", s, lambda r: (NAMES[r[1]], r[2]))
    else:
        k = op.key_on("key", s, lambda r: str(r[1]))
        k = op.map_value("value", k, value_of)
    if spec.options.get("bytewax.state", "batch") == "batch":
        k = op.stateful_batch("running", k, Running)
    else:
        k = op.stateful_map("running", k, running)
    op.output("latest", k, Into(LatestWriter, tally))
    return dataflow


def sessions(keyed: Any) -> Any:
    """Count, sum and first time of each key and session. Its watermark goes on with the clock of the machine, and generated
    event time is slower than that under load: an hour of waiting makes no record late."""
    clock = windowing.EventClock(lambda v: ZERO + timedelta(microseconds=v[0]), timedelta(hours=1))
    return windowing.fold_window(
        "fold",
        keyed,
        clock,
        windowing.SessionWindower(timedelta(microseconds=GAP)),
        lambda: (0, 0.0, 1 << 62),
        lambda acc, v: (acc[0] + 1, acc[1] + v[1], min(acc[2], v[0])),
        lambda a, b: (a[0] + b[0], a[1] + b[1], min(a[2], b[2])),
    ).down


def running(state, value):
    state = (state[0] + 1, state[1] + value) if state else (1, value)
    return state, state


def worker(spec: Spec, index: int, addresses: list[str]) -> Tally:
    tally = Tally()
    joined(flow(spec, tally), addresses, index, float(spec.options.get("bytewax.epoch", 10.0)))
    tally.latest = {int(key): state for key, state in tally.latest.items()}
    return tally


def run(spec: Spec) -> Tally:
    result = Tally()
    for tally in in_cluster(__name__, spec, spec.parallelism):
        result.add(tally)
    return result


# A cluster of processes, for whatever dataflow.


def joined(dataflow: Dataflow, addresses: list[str], index: int, epoch: float) -> None:
    """Runs one worker of a dataflow to its end, in this process."""
    every = timedelta(seconds=epoch)
    if len(addresses) == 1:
        run_main(dataflow, epoch_interval=every)
    else:
        cluster_main(dataflow, addresses, index, epoch_interval=every)


def in_cluster(module: str, given: Any, parallelism: int) -> list[Any]:
    """What the workers of a module, in a process each, make of what they are given."""
    with tempfile.TemporaryDirectory(prefix="bytewax-") as folder:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(parallelism)]
        Path(folder, "given").write_bytes(pickle.dumps((given, addresses)))
        processes = [
            subprocess.Popen([sys.executable, "-m", module, folder, str(index)]) for index in range(parallelism)
        ]
        try:
            while None in (codes := [p.poll() for p in processes]) and not any(codes):
                time.sleep(0.1)
            if any(codes):
                raise RuntimeError("a bytewax process failed")
        finally:
            for p in processes:
                p.kill()
        return [pickle.loads(Path(folder, f"made-{index}").read_bytes()) for index in range(parallelism)]


def clustered(worker: Callable[[Any, int, list[str]], Any], folder: str, index: int) -> None:
    """One of these processes."""
    given, addresses = pickle.loads(Path(folder, "given").read_bytes())
    Path(folder, f"made-{index}").write_bytes(pickle.dumps(worker(given, index, addresses)))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


if __name__ == "__main__":
    clustered(worker, sys.argv[1], int(sys.argv[2]))
