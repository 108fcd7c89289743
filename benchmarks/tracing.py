"""A trace of the slowest records of the latency benchmark: what each thread did while such a record was under way.

There are two witnesses. A process beside the job reads every few milliseconds from the kernel how long each thread of the
job has run, and how long it has waited for a core (`/proc/PID/task/TID/schedstat`). In each worker `Pieces` notes what its
own thread did whenever that took longer than half a millisecond: a step, a look at the sockets, a search for garbage.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

EVERY = 0.004
"""Seconds between two looks at the threads of Python processes."""
RARELY = 10
"""Looks at those between two looks at the threads of the JVM, of which there are many."""
AGAIN = 0.5
"""Seconds between two looks for new threads."""
LONG = 0.0005
"""Seconds from which on a piece of work is noted."""
SLOWEST = 100
KINDS = ("step", "sockets", "garbage")


class Pieces:
    """What the own thread of a worker did for long, and when it read which records. Nothing is computed while the clock
    runs."""

    def __init__(self) -> None:
        self.kinds, self.begun, self.took, self.ran = array("b"), array("d"), array("d"), array("d")
        self.read_at, self.splits, self.read_to = array("d"), array("q"), array("q")
        self.thread: int | None = None
        self._garbage_since = 0.0

    def begin(self) -> None:
        """Watches the thread that calls this, from the first call on."""
        if self.thread is None:
            from tailrace.runtime.eventloop.selector import EventLoop
            from tailrace.runtime.worker.stepping import Stepper

            self.thread = threading.get_native_id()
            self._watch(Stepper, "step", 0)
            self._watch(EventLoop, "poll", 1)
            gc.callbacks.append(self._garbage)

    def _watch(self, cls: type, name: str, kind: int) -> None:
        inner = getattr(cls, name)

        def watched(this: Any, *given: Any) -> Any:
            begun, ran = time.perf_counter(), time.thread_time()
            found = inner(this, *given)
            took = time.perf_counter() - begun
            if took > LONG:
                self._note(kind, took, time.thread_time() - ran)
            return found

        setattr(cls, name, watched)

    def _note(self, kind: int, took: float, ran: float) -> None:
        self.kinds.append(kind)
        self.begun.append(time.time() - took)
        self.took.append(took)
        self.ran.append(ran)

    def _garbage(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._garbage_since = time.perf_counter()
        elif threading.get_native_id() == self.thread and (took := time.perf_counter() - self._garbage_since) > LONG:
            self._note(2, took, took)

    def read(self, split: int, to: int) -> None:
        """Notes that a reader has just read its records up to, not including, `to`."""
        self.read_at.append(time.time())
        self.splits.append(split)
        self.read_to.append(to)

    def save(self, folder: str, worker: int) -> None:
        if self.thread is None:
            return
        names = {one.native_id: one.name for one in threading.enumerate()}
        arrays = {name: np.array(value) for name, value in vars(self).items() if isinstance(value, array)}
        names[self.thread] = "its own thread"
        about = json.dumps({"pid": os.getpid(), "thread": self.thread, "names": names})
        np.savez(Path(folder, f"pieces-{worker}"), about=np.array(about), **arrays)


PIECES = Pieces()
"""The pieces of this process."""


# Beside the job.


def program_of(pid: int) -> str:
    """The module that a Python process runs, by its command; else the name of its program."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return Path(f"/proc/{pid}/comm").read_text().strip()


class Looks:
    """Looks at all threads of a session of processes, but for this one's."""

    def __init__(self, session: int) -> None:
        self._session = session
        self.threads: list[tuple[int, int, str]] = []
        """(process, thread, name of the program) of each that there was."""
        self._files: dict[int, tuple[int, bool]] = {}
        """By its place in `threads`: an open file, and whether it is of a JVM."""
        self.at, self.of, self.ran, self.waited = array("d"), array("q"), array("q"), array("q")

    def find(self) -> None:
        """Opens the files of threads that are new."""
        known = {(pid, tid) for pid, tid, _ in self.threads}
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if pid == os.getpid() or os.getsid(pid) != self._session:
                    continue
                program = program_of(pid)
                for tid in map(int, os.listdir(f"/proc/{pid}/task")):
                    if (pid, tid) not in known:
                        name = Path(f"/proc/{pid}/task/{tid}/comm").read_text().strip()
                        file = os.open(f"/proc/{pid}/task/{tid}/schedstat", os.O_RDONLY)
                        self._files[len(self.threads)] = file, program == "java"
                        self.threads.append((pid, tid, program if tid == pid else f"{program}/{name}"))

    def look(self, jvms: bool) -> None:
        """Reads how long each thread has run and waited so far."""
        for place, (file, jvm) in list(self._files.items()):
            if jvm and not jvms:
                continue
            try:
                ran, waited, _ = os.pread(file, 99, 0).split()
            except (OSError, ValueError):  # it has ended
                os.close(file)
                del self._files[place]
                continue
            self.at.append(time.time())
            self.of.append(place)
            self.ran.append(int(ran))
            self.waited.append(int(waited))

    def save(self, path: str) -> None:
        arrays = {name: np.array(value) for name, value in vars(self).items() if isinstance(value, array)}
        np.savez(path, threads=np.array(json.dumps(self.threads)), **arrays)


def watch(session: int, path: str) -> None:
    """Looks until it is ended by a signal, then saves what it has seen."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    looks, searched, turn = Looks(session), 0.0, 0
    while not over.is_set():
        if time.monotonic() - searched > AGAIN:
            looks.find()
            searched = time.monotonic()
        looks.look(turn % RARELY == 0)
        turn += 1
        time.sleep(EVERY)
    looks.save(path)


@contextlib.contextmanager
def witness(folder: str) -> Iterator[None]:
    """Runs the process that looks at the threads of this one's session."""
    command = [sys.executable, "-m", "benchmarks.tracing", str(os.getsid(0)), str(Path(folder, "looks.npz"))]
    process = subprocess.Popen(command)
    try:
        yield
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


# Behind the job.


@dataclass(frozen=True)
class Spent:
    """How long a thread ran, waited for a core, and slept, in milliseconds."""

    ran: float
    waited: float
    slept: float


class Threads:
    """The threads of a job by what the looks at them saw."""

    def __init__(self, looks: Any, workers: Sequence[Any]) -> None:
        self.names: dict[tuple[int, int], str] = {}
        self._of: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        about = {one["pid"]: (worker, one) for worker, one in enumerate(json.loads(str(w["about"])) for w in workers)}
        order = np.argsort(looks["of"], kind="stable")
        at, of, ran, waited = (looks[name][order] for name in ("at", "of", "ran", "waited"))
        for place, (pid, tid, program) in enumerate(json.loads(str(looks["threads"]))):
            first, last = np.searchsorted(of, [place, place + 1])
            if first == last:
                continue
            name = f"{program} {tid}"
            if pid in about:
                worker, own = about[pid]
                name = f"worker {worker}: {own['names'].get(str(tid), tid)}"
            self.names[pid, tid] = name
            self._of[pid, tid] = at[first:last], ran[first:last] / 1e6, waited[first:last] / 1e6

    def spent(self, thread: tuple[int, int], begin: float, end: float) -> Spent:
        """What a thread did between two moments, as far as the looks can tell."""
        at, ran, waited = self._of[thread]
        of_ran, of_waited = (float(np.diff(np.interp([begin, end], at, one))[0]) for one in (ran, waited))
        return Spent(of_ran, of_waited, max(0.0, 1000 * (end - begin) - of_ran - of_waited))

    def all_spent(self, begin: float, end: float, least: float = 0.1) -> dict[str, dict[str, float]]:
        """What each thread did that has run or waited for so many milliseconds."""
        found = {name: self.spent(thread, begin, end) for thread, name in self.names.items()}
        busy = {name: one for name, one in found.items() if one.ran + one.waited >= least}
        return {name: rounded(one) for name, one in sorted(busy.items(), key=lambda item: -item[1].ran)}


def rounded(spent: Spent) -> dict[str, float]:
    return {name: round(value, 2) for name, value in vars(spent).items()}


def apart(due: np.ndarray, came: np.ndarray, count: int = SLOWEST) -> list[int]:
    """The places of the slowest records, no two of which were under way at one time: a pause delays thousands, and one of
    them shows it."""
    left = came - due
    found: list[int] = []
    while len(found) < count and left.max(initial=0.0) > 0:
        worst = int(left.argmax())
        found.append(worst)
        left[(due <= came[worst]) & (came >= due[worst])] = 0.0
    return found


@dataclass
class Trace:
    """The files of one run, put together."""

    seen: Sequence[Any]
    first: float
    """Number of the first record that counts: those before warm up."""
    workers: Sequence[Any]
    threads: Threads
    own: list[tuple[int, int]] = field(init=False)
    """(process, thread) of the own thread of each worker."""

    def __post_init__(self) -> None:
        about = [json.loads(str(worker["about"])) for worker in self.workers]
        self.own = [(one["pid"], one["thread"]) for one in about]

    def lines(self, count: int = SLOWEST) -> list[dict[str, Any]]:
        """A line for each of the slowest records, the slowest first, and one with the means of all."""
        number, latency, due = (
            np.concatenate([one[name] for one in self.seen]) for name in ("number", "latency", "due")
        )
        sink = np.repeat(np.arange(len(self.seen)), [len(one["number"]) for one in self.seen])
        counts = number >= self.first
        number, sink, due, came = number[counts], sink[counts], due[counts], (due + latency)[counts]
        found = [
            self._line(int(number[at]), float(due[at]), float(came[at]), int(sink[at]))
            for at in apart(due, came, count)
        ]
        return [*found, summary(found)] if found else []

    def _line(self, number: int, due: float, came: float, sink: int) -> dict[str, Any]:
        reader, read = self._read(number)
        return {
            "record": number,
            "due": due,
            "latency_ms": round(1000 * (came - due), 2),
            "until_read_ms": round(1000 * (read - due), 2),
            "reader": reader,
            "reader_until_then": rounded(self.threads.spent(self.own[reader], due, read)),
            "from_read_ms": round(1000 * (came - read), 2),
            "sink": sink,
            "reader_from_then": rounded(self.threads.spent(self.own[reader], read, came)),
            "sink_from_then": rounded(self.threads.spent(self.own[sink], read, came)),
            "threads": self.threads.all_spent(due, came),
            "pieces": {f"worker {i}": pieces_within(worker, due, came) for i, worker in enumerate(self.workers)},
        }

    def _read(self, number: int) -> tuple[int, float]:
        """By which worker a record was read, and when."""
        split = number % len(self.workers)
        for index, worker in enumerate(self.workers):
            mine = worker["splits"] == split
            if mine.any():
                to, at = worker["read_to"][mine], worker["read_at"][mine]
                return index, float(at[np.searchsorted(to, number, "right")])
        raise AssertionError(f"nobody has read the split {split}")


def pieces_within(worker: Any, begin: float, end: float) -> list[dict[str, Any]]:
    """What the own thread of a worker did for long between two moments."""
    begun, took = worker["begun"], worker["took"]
    chosen = np.flatnonzero((begun < end) & (begun + took > begin))
    return [
        {
            "what": KINDS[int(worker["kinds"][at])],
            "after_ms": round(1000 * float(begun[at] - begin), 2),
            "took_ms": round(1000 * float(took[at]), 2),
            "ran_ms": round(1000 * float(worker["ran"][at]), 2),
        }
        for at in chosen
    ]


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The means of the slowest records, in milliseconds, and what the threads did in them altogether."""
    means: dict[str, float] = {}
    for name in ("latency_ms", "until_read_ms", "from_read_ms"):
        means[name] = round(float(np.mean([line[name] for line in lines])), 2)
    own = {}
    for name in ("reader_until_then", "reader_from_then", "sink_from_then"):
        own[name] = {what: round(float(np.mean([line[name][what] for line in lines])), 2) for what in lines[0][name]}
    threads: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for line in lines:
        for name, spent in line["threads"].items():
            threads[name][0] += spent["ran"] / len(lines)
            threads[name][1] += spent["waited"] / len(lines)
    busiest = sorted(threads.items(), key=lambda item: -sum(item[1]))[:12]
    return {
        "summary": True,
        "traced": len(lines),
        **means,
        **own,
        "threads": {name: {"ran": round(ran, 2), "waited": round(waited, 2)} for name, (ran, waited) in busiest},
    }


def load(folder: str, seen: Sequence[Any], first: float) -> Trace:
    """The trace of a run, from the files that it has left."""
    workers = [dict(np.load(path)) for path in sorted(Path(folder).glob("pieces-*.npz"))]
    return Trace(seen, first, workers, Threads(np.load(Path(folder, "looks.npz")), workers))


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
