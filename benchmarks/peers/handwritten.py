"""The workloads as a hand-written loop: N processes, tuples, pickle, a socket pair between each two.

What an able programmer writes without a framework, for this one job: the three steps and
the partitioning fused into one loop, the target of each key remembered, one thread, sends that never block. It keeps
its own share of the records and pickles the rest to its peers a batch at a time. No checkpoints, no
flow control beyond a bounded outbox, no failure handling.
"""

from __future__ import annotations

import multiprocessing
import pickle
import select
import socket
import time
from collections import deque
from collections.abc import Callable

from ..measure import Spec
from ..workload import Record, Tally, first_of, halve, keep, rows, share, shift, value_of

BATCH = {"chain": 1024, "keyed": 1024}
OUTBOX = 4 << 20  # bytes that may wait for one peer before the loop stops to generate
BUFFER = 1 << 20


class Peer:
    """One end of a socket pair. A frame is a length and a pickled list; length 0 is the end."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self.sock = sock
        self.outbox: deque[memoryview] = deque()
        self.waiting = 0
        self.inbox = bytearray(BUFFER)
        self.filled = 0
        self.ended = False

    def send(self, records: list[Record]) -> None:
        self.put(pickle.dumps(records, 5))

    def put(self, payload: bytes) -> None:
        for part in (len(payload).to_bytes(4, "little"), payload):
            if part:
                self.outbox.append(memoryview(part))
                self.waiting += len(part)
        self.flush()

    def flush(self) -> None:
        while self.outbox:
            try:
                sent = self.sock.sendmsg(list(self.outbox)[:16])
            except BlockingIOError:
                return
            self.waiting -= sent
            while sent:
                part = self.outbox[0]
                if sent < len(part):
                    self.outbox[0] = part[sent:]
                    return
                sent -= len(part)
                self.outbox.popleft()

    def receive(self) -> list[list[Record]]:
        """Every whole frame that is here already."""
        frames: list[list[Record]] = []
        while not self.ended:
            try:
                got = self.sock.recv_into(memoryview(self.inbox)[self.filled :])
            except BlockingIOError:
                break
            if not got:
                raise ConnectionError("a peer went away")
            self.filled += got
            start, view = 0, memoryview(self.inbox)
            needed = 0
            while self.filled - start >= 4:
                size = int.from_bytes(view[start : start + 4], "little")
                if not size:
                    self.ended = True
                    break
                if self.filled - start - 4 < size:
                    needed = size + 4
                    break
                frames.append(pickle.loads(view[start + 4 : start + 4 + size]))
                start += 4 + size
            rest = bytes(view[start : self.filled])
            del view
            if needed > len(self.inbox):
                self.inbox = bytearray(2 * needed)
            self.inbox[: len(rest)] = rest
            self.filled = len(rest)
        return frames


def chain(spec: Spec, index: int, batch: int) -> Tally:
    tally = Tally(first=time.time())
    at, end = share(spec.records, index, spec.parallelism)
    while at < end:
        upto = min(at + batch, end)
        out = [halve(s) for r in rows(at, upto) if keep(s := shift(r))]
        tally.count += len(out)
        tally.total += sum(map(value_of, out))
        at = upto
    tally.last = time.time()
    return tally


def run_keyed(spec: Spec, index: int, batch: int, sockets: dict[int, socket.socket]) -> Tally:
    target_of = key_hash(spec.parallelism)
    peers = {other: Peer(sock) for other, sock in sockets.items()}
    links = list(peers.values())
    buckets: list[list[Record]] = [[] for _ in range(spec.parallelism)]
    own = buckets[index]

    target: dict[int, int] = {}
    states: dict[int, tuple[int, int, float]] = {}
    tally = Tally(first=time.time())
    latest: dict[int, tuple[int, int, float]] = {}

    def update(records: list[Record]) -> None:
        out = []
        emit = out.append
        for _, key, value in records:
            try:
                _, count, total = states[key]
            except KeyError:
                count, total = 0, 0.0
            states[key] = state = (key, count + 1, total + value)
            emit(state)
        sink(out)

    def sink(out: list[tuple[int, int, float]]) -> None:
        tally.count += len(out)
        latest.update(zip(map(first_of, out), out, strict=True))

    def exchange(wait: bool) -> None:
        if wait:
            reading = [p.sock for p in links if not p.ended]
            select.select(reading, [p.sock for p in links if p.outbox], [])
        for peer in links:
            if peer.outbox:
                peer.flush()
            if not peer.ended:
                for frame in peer.receive():
                    update(frame)

    at, end = share(spec.records, index, spec.parallelism)
    while at < end:
        upto = min(at + batch, end)
        for r in rows(at, upto):
            r = shift(r)
            if keep(r):
                r = halve(r)
                try:
                    buckets[target[r[1]]].append(r)
                except KeyError:
                    target[r[1]] = to = target_of(r[1])
                    buckets[to].append(r)
        at = upto
        update(own)
        own.clear()
        for other, peer in peers.items():
            if buckets[other]:
                peer.send(buckets[other])
                buckets[other].clear()
        exchange(wait=False)
        while any(p.waiting > OUTBOX for p in links):
            exchange(wait=True)
    for peer in links:
        peer.put(b"")
    while any(p.outbox or not p.ended for p in links):
        exchange(wait=True)
    tally.last = time.time()
    tally.latest = {key: (count, total) for key, count, total in latest.values()}
    return tally


def key_hash(parallelism: int) -> Callable[[int], int]:
    """Which process a key belongs to: the very hash that tailrace uses."""
    from tailrace.elements.keygroups import KeyGroups, owner

    groups = KeyGroups(128)
    return lambda key: owner(groups[key], parallelism, 128)


def work(spec, index, sockets, barrier, results) -> None:
    batch = int(spec.options.get("handwritten.batch", BATCH[spec.workload]))
    barrier.wait()
    if spec.workload == "chain":
        results.send(chain(spec, index, batch))
    else:
        results.send(run_keyed(spec, index, batch, sockets))


def run(spec: Spec) -> Tally:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(spec.parallelism)
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(spec.parallelism)]
    for a in range(spec.parallelism):
        for b in range(a):
            sockets[a][b], sockets[b][a] = socket.socketpair()
    processes, ends = [], []
    for index in range(spec.parallelism):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(spec, index, sockets[index], barrier, there))
        process.start()
        there.close()
        processes.append(process)
        ends.append(here)
    for pairs in sockets:
        for sock in pairs.values():
            sock.close()
    try:
        result = Tally()
        for end in ends:
            result.add(end.recv())
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
    return result
