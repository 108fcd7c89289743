"""Strangers at the ports of a running job: each is turned away and counted, and the job goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import tailrace as tr
from tailrace.protocol import message_codec
from tailrace.protocol.deployment import Heartbeat, Hello, PeerHello, Progress, Published
from tailrace.protocol.handshake import MAGIC, NONCE_SIZE, VERSION
from tailrace.runtime.network.link import CONTROL, FRAME, LIMITS
from tailrace.runtime.network.listener import DialFailed, dial

pytestmark = pytest.mark.spark

TOO_LONG = struct.pack("<IB", (1 << 31) - 1, FRAME)
HELLO = MAGIC + VERSION.to_bytes(2, "little") + bytes(NONCE_SIZE)


class Target:
    """A running job, where it listens and what it knows."""

    def __init__(self, jobs: Any) -> None:
        self.jobs = jobs
        self.job = jobs.endless()
        runner = self.job._runner
        self.token: bytes = runner._token
        workers = [slot.hello for slot in runner.machine.roster.slots]
        self.addresses = {
            "coordinator": runner._workers.listener.address,
            "worker 0": (workers[0].host, workers[0].port),
            "worker 1": (workers[1].host, workers[1].port),
        }

    def refused(self) -> int:
        return sum(self.job.metrics()["refused_connections"].values())

    def wait_refused(self, count: int, seconds: float = 5.0) -> None:
        deadline = time.monotonic() + seconds
        while self.refused() < count:
            assert time.monotonic() < deadline, (count, self.job.metrics()["refused_connections"])
            time.sleep(0.05)

    def known(self, where: str) -> Any:
        """A connection of somebody who knows the token."""
        link = dial(self.addresses[where], self.token, 5.0)
        sock = link.detach()
        sock.settimeout(5)
        return sock

    def assert_goes_on(self) -> None:
        """The job runs and records still flow."""

        def sunk() -> int:
            return sum(s["records_out"] for s in self.job.metrics()["subtasks"])

        before = sunk()
        deadline = time.monotonic() + 10
        while sunk() <= before:
            assert time.monotonic() < deadline
            assert str(self.job.status) == "RUNNING", self.job.exception()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def target(spark: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Target]:
    """One job for all these tests, which none of them may harm."""
    made = request.getfixturevalue("jobs_of_module")
    yield Target(made)


EVERYWHERE = pytest.mark.parametrize("where", ["coordinator", "worker 0", "worker 1"])


def closed_by_peer(sock: socket.socket) -> bool:
    """Whether the other side closes the connection, whatever it sends before."""
    sock.settimeout(10)
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@EVERYWHERE
@pytest.mark.parametrize("message", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 40, bytes(64), os.urandom(4096)])
def test_random_bytes(target: Target, where: str, message: bytes) -> None:
    before = target.refused()
    with socket.create_connection(target.addresses[where], 5) as sock:
        sock.sendall(message)
        assert closed_by_peer(sock)
    target.wait_refused(before + 1)


@EVERYWHERE
def test_a_wrong_token(target: Target, where: str) -> None:
    before = target.refused()
    with pytest.raises(DialFailed, match="token"):
        dial(target.addresses[where], bytes(32), 5.0)
    # Nor may a stranger that only repeats what a genuine worker sends.
    with socket.create_connection(target.addresses[where], 5) as sock:
        sock.sendall(HELLO)
        answer = sock.recv(1000)
        sock.sendall(answer[-32:])
        assert closed_by_peer(sock)
    target.wait_refused(before + 1)


@EVERYWHERE
def test_many_half_open_connections(target: Target, where: str) -> None:
    before = target.refused()
    held = [socket.create_connection(target.addresses[where], 5) for _ in range(164)]
    try:
        for sock in held[::2]:
            with contextlib.suppress(OSError):  # the oldest had to make room
                sock.sendall(HELLO[:20])
        target.wait_refused(before + 36)
        target.assert_goes_on()
        with target.known(where):  # there is still room for those who know
            pass
        target.wait_refused(before + 164, 12)
    finally:
        for sock in held:
            sock.close()


MALFORMED = {
    "not a message": struct.pack("<IB", 6, CONTROL) + b"abcdef",
    "an unknown kind": struct.pack("<IB", 6, 77) + b"abcdef",
    "an oversized length": TOO_LONG,
    "an oversized control message": struct.pack("<IB", LIMITS[CONTROL] + 1, CONTROL),
    "a frame": struct.pack("<IB", 4, FRAME) + b"TRFR",
}


@EVERYWHERE
@pytest.mark.parametrize("what", MALFORMED)
def test_who_knows_the_token_and_speaks_nonsense(target: Target, where: str, what: str) -> None:
    before = target.refused()
    with target.known(where) as sock:
        sock.sendall(MALFORMED[what])
        assert closed_by_peer(sock)
    target.wait_refused(before + 1)


@pytest.mark.parametrize("where", ["worker 0", "worker 1"])
@pytest.mark.parametrize(
    "hello",
    [
        PeerHello(0, 1, 1, "endless"),  # taken
        PeerHello(1, 1, 1, "endless"),
        PeerHello(7, 1, 1, "endless"),  # no such slot
        PeerHello(-1, 1, 1, "endless"),
        PeerHello(0, 0, 1, "endless"),  # an older epoch
        PeerHello(0, 9, 1, "endless"),
        PeerHello(0, 1, 0, "endless"),  # an older incarnation
        PeerHello(0, 1, 1, "another job"),
        Published(),
        Hello(0, "127.0.0.1", 1, 1, "endless", 1),
        Heartbeat(0, 1),
    ],
    ids=repr,
)
def test_a_wrong_peer_at_a_worker(target: Target, where: str, hello: Any) -> None:
    before = target.refused()
    with target.known(where) as sock:
        body = message_codec.encode(hello)
        sock.sendall(struct.pack("<IB", len(body), CONTROL) + body)
        assert closed_by_peer(sock)
    target.wait_refused(before + 1)


@pytest.mark.parametrize(
    "first",
    [
        Hello(0, "127.0.0.1", 1, 1, "endless", 1, launch=0),  # of a start of the slot that is not the last
        Hello(9, "127.0.0.1", 1, 1, "endless", 1),
        Hello(-1, "127.0.0.1", 1, 1, "endless", 1),
        Hello(0, "127.0.0.1", 1, 1, "another job", 1),
        Hello(0, "127.0.0.1", 1, 1, "endless", 0),
        PeerHello(0, 1, 1, "endless"),
        Published(),
        Progress([], 0),
    ],
    ids=repr,
)
def test_a_wrong_worker_at_the_coordinator(target: Target, first: Any) -> None:
    before = target.refused()
    with target.known("coordinator") as sock:
        body = message_codec.encode(first)
        sock.sendall(struct.pack("<IB", len(body), CONTROL) + body)
        assert closed_by_peer(sock)
    target.wait_refused(before + 1)


def test_a_wrong_heart_is_of_no_account(target: Target) -> None:
    with target.known("coordinator") as sock:
        for slot in (0, 1, 99, -5):
            body = message_codec.encode(Heartbeat(slot, 1))
            sock.sendall(struct.pack("<IB", len(body), CONTROL) + body)
        time.sleep(0.2)
    target.assert_goes_on()


def test_after_all_that_the_job_is_well(target: Target) -> None:
    target.assert_goes_on()
    counts = target.job.metrics()["refused_connections"]
    assert all(isinstance(reason, str) and count > 0 for reason, count in counts.items())
    assert len(counts) >= 5  # distinguished by reason
    target.job.cancel()
    assert target.job.await_termination(10)
    assert str(target.job.status) == "CANCELLED"


def test_who_says_nothing_is_closed_with_the_job_at_the_latest(jobs: Any, traces: Any) -> None:
    before = traces.now()
    alone = Target(jobs)
    held = [alone.known(where) for where in alone.addresses]
    alone.job.cancel()
    assert alone.job.await_termination(10)
    for sock in held:
        assert closed_by_peer(sock)
        sock.close()
    jobs.assert_nothing_left(before)


def test_nothing_listens_beyond_this_machine(jobs: Any) -> None:
    job = jobs.endless()
    processes = [psutil.Process(), *map(psutil.Process, jobs.workers(job).values())]
    listening = [c for p in processes for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert len(listening) >= 3
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
    job.cancel()


def test_the_token_is_nowhere_to_be_read(
    jobs: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)

    def fn(x: int) -> int:
        if x == 3000:
            os._exit(1)
        return x

    job = jobs.endless(fn)
    token: bytes = job._runner._token
    store = jobs.spark.sparkContext._jsc.sc().statusStore()
    found = [repr(job), str(job), repr(job._runner), repr(vars(job)), job.explain(), str(job.metrics())]
    found += [repr(job._runner._workers.listener), repr(job._runner._provider)]
    listed = store.jobsList(None)
    found += [f"{listed.apply(i).name()} {listed.apply(i).description()}" for i in range(listed.size())]
    with pytest.raises(tr.JobFailed) as caught:
        job.await_termination(20)
    found += [str(caught.value), repr(caught.value), caplog.text, *capfd.readouterr()]
    machine = job._runner.machine
    found += [str(job.last_progress), repr(vars(machine)), repr(vars(machine.course))]
    for text in found:
        for form in (token.hex(), repr(token)[2:-1], str(list(token))[1:-1]):
            assert form not in text


FLOOD = """
import socket, sys, time
held, end = [], time.monotonic() + 3
while time.monotonic() < end:
    try:
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1))
    except OSError:
        break
    if len(held) > 300:
        held.pop(0).close()
"""


def test_a_flood_of_strangers_while_the_job_starts(jobs: Any) -> None:
    env = jobs.env()
    numbers = env.from_source(tr.sources.Sequence(0, 1000)).rebalance().map(lambda x: x)
    numbers.sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env, running=False)
    port = job._runner._workers.listener.address[1]
    flood = subprocess.Popen([sys.executable, "-c", FLOOD, str(port)])
    try:
        assert job.await_termination(30)
    finally:
        flood.kill()
        flood.wait()
