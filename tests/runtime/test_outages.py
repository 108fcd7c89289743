"""Stores and folders that are really out of reach, for a job over real sockets and threads: nothing is lost, and the
job reports what it waits for. The disks are small ones in memory, which only root may mount, as CI is."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.restarts import Never
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.output.outages import SINKS, STORAGE
from tailrace.runtime.driver.coordinator import JobRunner
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.job import Job
from tailrace.runtime.worker import main_loop as worker_module
from tailrace.spark.shipping.plan_files import dump_job
from tailrace.storage.store import Store
from tailrace.task.contract.jobspec import JobSpec
from tests.buckets import ENVIRONMENT, new_bucket, options, serving
from tests.runtime.test_job import Threads

MS = 1_000
LIMITS = Limits(leave=500 * MS, gone=500 * MS, retry=10 * MS, retry_most=100 * MS)
RATE = 2_000


@pytest.fixture(autouse=True)
def _no_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module.os, "kill", lambda *args: None)


def until(happened: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


class Running:
    """A job that numbers records, into files, with a checkpoint each few milliseconds, and without any restart."""

    def __init__(
        self,
        checkpoints: str,
        out: str,
        storage_options: dict[str, Any] | None = None,
        interval: int = 20 * MS,
        sink: tr.Sink | None = None,
    ) -> None:
        env = tr.Environment(parallelism=2)
        numbers = env.from_source(tr.sources.Sequence(0, None, rate=RATE), uid="numbers")
        numbers.key_by(lambda n: n % 10).map(lambda n: n).sink_to(sink or tr.sinks.TextFiles(out), uid="lines")
        plan = env._plan(env._pending())
        store = Store(checkpoints, "job", storage_options)
        store.make()
        spec = JobSpec("job", 1, plan, env.memory, "run", checkpointing=True)
        spec = JobSpec(
            **{**spec.__dict__, "checkpoint_dir": checkpoints, "storage_options": storage_options},
        )
        incarnation = store.claim("run")
        settings = CheckpointSettings(interval=interval, tolerated_failures=0, origin=store.url)
        self.machine = Coordinator(
            "job",
            incarnation,
            plan.slots,
            dump_job(spec),
            LIMITS,
            run_id="run",
            checkpoints=settings,
            restarts=Never(),
        )
        monitor = ProgramMonitor("job", "id", plan)
        self.runner = JobRunner(self.machine, Threads(), monitor, store)
        self.runner.start()
        self.job = Job(self.runner, monitor)

    @property
    def completed(self) -> int:
        return self.machine.checkpoints.completed

    def under_way(self) -> float:
        """For how many seconds the oldest checkpoint that is not complete has been under way."""
        return max((one["ageMs"] / 1e3 for one in self.job.metrics()["checkpoints"]["underWay"]), default=0.0)

    def goes_on(self, checkpoints: int = 3) -> None:
        """Waits until `checkpoints` more are complete."""
        before = self.completed
        until(lambda: self.completed >= before + checkpoints or not self.job.is_active, "no checkpoint came")
        assert self.job.is_active, self.job.exception()

    def waits(self, place: str, tries: int = 6, meanwhile: Callable[[], None] = lambda: None) -> str:
        """Waits until the job warns that a place is out of reach, and has tried it `tries` times. Returns the reason."""

        def told() -> Any:
            meanwhile()
            return [one for one in self.job.metrics()["checkpoints"]["waitsFor"] if one["tries"] >= tries]

        until(lambda: told() or not self.job.is_active, "nothing was waited for")
        assert self.job.is_active, self.job.exception()
        [one] = told()
        assert one["place"] == place
        return str(one["reason"])

    def read(self) -> int:
        return int(self.job.metrics()["records_in"])

    def read_by_subtask(self) -> dict[Any, int]:
        """Records that each subtask has read."""
        return {(one["vertex"], one["subtask"]): one["records_in"] for one in self.job.metrics()["subtasks"]}

    def stop(self, out: str) -> None:
        """Stops the job in order: every record it has read is there, once."""
        self.job.stop(timeout=60)
        lines = Counter(int(line) for file in Path(out).glob("part-*") for line in file.read_text().splitlines())
        assert set(lines.values()) == {1}
        for split in range(2):  # each is read in order
            read = sorted(one for one in lines if one % 2 == split)
            assert read == list(range(split, 2 * len(read) + split, 2)) and len(read) > 100


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def make(*args: Any, **more: Any) -> Running:
        made.append(Running(*args, **more))
        return made[-1]

    yield make
    for one in made:
        one.job.cancel()
        one.runner.join(30)
        assert not one.runner.is_alive()


def mount(*args: str) -> None:
    subprocess.run(["mount", *args], check=True)


class Disk:
    """A small disk, mounted at a folder."""

    def __init__(self, folder: Path) -> None:
        self.behind, self.folder = folder / "behind", folder / "disk"
        for one in (self.behind, self.folder):
            one.mkdir()
        mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(self.behind))
        mount("--bind", str(self.behind), str(self.folder))

    def break_(self, how: str) -> None:
        if how == "full":
            self.fill()
        elif how == "read-only":  # not while a file is open for writing
            until(lambda: self._remounted("ro"), "it is busy")
        elif how == "away":
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def fill(self) -> None:
        """Nothing has room. What is deleted later gives some again, so it is filled again and again."""
        with open(self.behind / "filler", "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    def _remounted(self, how: str) -> bool:
        done = subprocess.run(
            ["mount", "-o", f"remount,bind,{how}", str(self.folder)], check=False, capture_output=True
        )
        assert done.returncode == 0 or b"busy" in done.stderr, done.stderr
        return done.returncode == 0

    def mend(self, how: str) -> None:
        if how == "full":
            os.unlink(self.behind / "filler")
        elif how == "read-only":
            mount("-o", "remount,bind,rw", str(self.folder))
        elif how == "away":
            assert list(self.folder.iterdir()) == [], "nothing was written below the disk"
            mount("--bind", str(self.behind), str(self.folder))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    for one in (made.folder, made.behind):
        subprocess.run(["umount", "-l", str(one)], check=False, stderr=subprocess.DEVNULL)


REASONS = {"full": "No space left", "read-only": "Read-only file system", "away": "not mounted"}


@pytest.mark.parametrize("how", REASONS)
def test_a_disk_of_checkpoints_that_is_out_of_reach_stops_nothing(
    running: Any, disk: Disk, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With no restart allowed, and no failure tolerated. Records go on meanwhile."""
    caplog.set_level(logging.WARNING, "tailrace")
    out = str(tmp_path / "out")
    job = running(str(disk.folder / "checkpoints"), out)
    job.goes_on()

    def messages() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    def has_failed() -> bool:
        return any("has failed" in one and "the job goes on" in one for one in messages())

    for times in range(20):
        if times >= 2 and (how != "full" or has_failed()):
            break  # a full disk may meet commits alone, which wait: again, until it has met a file of a checkpoint
        disk.break_(how)
        fill = disk.fill if how == "full" else lambda: None
        assert REASONS[how] in job.waits(STORAGE, meanwhile=fill)
        before = job.read()
        until(lambda: job.read() > before + 100, "no record went through")  # noqa: B023 - called at once
        disk.mend(how)
        job.goes_on()
        until(lambda: not job.job.metrics()["checkpoints"]["waitsFor"], "it waits for nothing any more")
    assert job.job.restarts == 0
    job.stop(out)
    found = messages()
    assert any("the storage of checkpoints is out of reach" in one and REASONS[how] in one for one in found)
    assert any("the storage of checkpoints is in reach again, after" in one for one in found)
    assert how != "full" or has_failed()


def test_a_disk_of_checkpoints_that_comes_and_goes_stops_nothing(running: Any, disk: Disk, tmp_path: Path) -> None:
    """Nobody waits until the job has noticed either."""
    out = str(tmp_path / "out")
    job = running(str(disk.folder / "checkpoints"), out)
    job.goes_on(1)
    failures = 0
    for _ in range(100):
        before = job.read()
        disk.break_("away")
        until(lambda: job.read() > before + 40, "no record went through")  # noqa: B023 - called at once
        failures += bool(job.job.metrics()["checkpoints"]["waitsFor"])
        disk.mend("away")
        if failures >= 5:
            break
    job.goes_on()
    until(lambda: not job.job.metrics()["checkpoints"]["waitsFor"], "it waits for nothing any more")
    assert job.job.restarts == 0 and failures >= 5
    job.stop(out)


def test_a_disk_of_a_sink_that_is_full_loses_nothing(
    running: Any, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a writer has begun goes at a restart, which makes a little room; so it is full again and again."""
    caplog.set_level(logging.WARNING, "tailrace")
    out = str(disk.folder / "out")
    job = running(str(tmp_path / "checkpoints"), out)
    job.goes_on()
    disk.break_("full")
    until(lambda: job.job.restarts >= 5 or not job.job.is_active, "no writer has failed")
    assert job.job.is_active, job.job.exception()
    assert [one["place"] for one in job.job.metrics()["checkpoints"]["waitsFor"]] == [SINKS]
    disk.mend("full")
    job.goes_on()
    until(lambda: not job.job.metrics()["checkpoints"]["waitsFor"], "it waits for nothing any more")
    job.stop(out)
    found = [record.getMessage() for record in caplog.records]
    assert any("the place of a sink is out of reach" in one and "No space left" in one for one in found)


# A store behind a proxy.


class Proxy(threading.Thread):
    """Passes connections on to a server: `how` is "through", "slow", "refused" (closed at once) or "hanging" (all that
    comes is held back until it is something else)."""

    def __init__(self, to: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self._to, self.how = to, "through"
        self._open: list[socket.socket] = []
        self._answers = threading.Event()
        self._answers.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            if self.how == "refused":
                client.close()
                continue
            server = socket.create_connection(self._to)
            self._open.append(server)
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._answers.wait()
                if self.how == "slow":
                    time.sleep(0.1)
                to.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            to.close()

    def set(self, how: str) -> None:
        """From now on. Where it refuses, the connections that there are break; all that was held back goes on."""
        self.how = how
        if how == "hanging":
            self._answers.clear()
            return
        if how == "refused":
            opened, self._open = self._open, []
            for one in opened:
                one.close()
        self._answers.set()

    def close(self) -> None:
        self.set("refused")
        self._listener.close()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, str]]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with serving() as endpoint:
        host, port = endpoint.removeprefix("http://").split(":")
        made = Proxy((host, int(port)))
        yield made, new_bucket(endpoint)
        made.close()


def of_a_bucket(proxy: Proxy, read_timeout: float = 1.0) -> dict[str, Any]:
    quick = {"retries": {"max_attempts": 1}, "connect_timeout": 1, "read_timeout": read_timeout}
    return {**options(proxy.url), "config_kwargs": quick}


def refuses(way: Proxy, job: Running) -> None:
    way.set("refused")
    job.waits(STORAGE, tries=1)


def hangs(way: Proxy, job: Running) -> None:
    """The storage answers in the end. Whoever looks sees what is under way, and for how long."""
    way.set("hanging")
    completed = job.completed
    until(lambda: job.under_way() > 0.5, "no checkpoint waits")
    assert job.completed <= completed + 1


def is_slow(way: Proxy, job: Running) -> None:
    way.set("slow")
    until(lambda: job.under_way() > 0.2, "no checkpoint waits")
    completed = job.completed
    until(lambda: job.completed >= completed + 2, "no checkpoint is complete")


@pytest.mark.parametrize(
    ("trouble", "read_timeout"),
    [(refuses, 1.0), (hangs, 300.0), (is_slow, 300.0)],
)
def test_a_bucket_that_is_out_of_reach_and_comes_back_stops_nothing(
    running: Any,
    proxy: tuple[Proxy, str],
    tmp_path: Path,
    trouble: Callable[[Proxy, Running], None],
    read_timeout: float,
) -> None:
    """With no restart allowed, and no failure tolerated. Records go on meanwhile."""
    way, bucket = proxy
    out = str(tmp_path / "out")
    job = running(f"s3://{bucket}/checkpoints", out, of_a_bucket(way, read_timeout), 150 * MS)
    job.goes_on(1)
    trouble(way, job)
    before = job.read()
    until(lambda: job.read() > before + 100, "no record went through")
    way.set("through")
    job.goes_on(2)
    until(lambda: not job.job.metrics()["checkpoints"]["waitsFor"], "it waits for nothing any more")
    assert job.job.restarts == 0
    job.stop(out)


def test_a_job_whose_store_hangs_is_cancelled_within_seconds(
    running: Any, proxy: tuple[Proxy, str], tmp_path: Path
) -> None:
    way, bucket = proxy
    job = running(f"s3://{bucket}/checkpoints", str(tmp_path / "out"), of_a_bucket(way, 300))
    job.goes_on(1)
    way.set("hanging")
    before = job.read()
    until(lambda: job.read() > before + 200, "no record went through")
    requested = time.monotonic()
    job.job.cancel()
    assert job.job.await_termination(20) and str(job.job.status) == "CANCELLED"
    assert time.monotonic() - requested < 15
    way.set("refused")


class SlowServer(tr.Sink):
    """A sink whose server takes nothing before there is a file `open` in its folder, refuses the first request of each
    subtask after that, and then keeps each transaction as a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def writer(self, ctx: Any) -> tr.SinkWriter:
        return SlowWriter(f"{ctx.subtask}-{ctx.incarnation}")

    def publish(self, prepared: Any) -> None:
        subtask = prepared[0][:1].decode()
        (self.folder / f"came-{subtask}").touch()
        until((self.folder / "open").exists, "the server stays away")
        refused = self.folder / f"refused-{subtask}"
        if not refused.exists():
            refused.touch()
            raise ConnectionError("the server is not ready")
        for one in prepared:
            name, _, lines = one.decode().partition("|")
            (self.folder / f"part-{name}").write_text(lines)


class SlowWriter(tr.SinkWriter):
    def __init__(self, name: str) -> None:
        self.name, self.count, self.records = name, 0, []  # type: ignore[var-annotated]

    def write(self, batch: Any) -> None:
        self.records += batch

    def prepare(self) -> bytes | None:
        records, self.records, self.count = self.records, [], self.count + 1
        lines = "\n".join(map(str, records))
        return f"{self.name}-{self.count:06}|{lines}".encode() if records else None


def test_a_server_that_is_slow_and_then_away_stops_no_subtask_and_restarts_nothing(
    running: Any, tmp_path: Path
) -> None:
    """Subtask 0, whose worker published for all of them in its own loop, reads on as well."""
    out = tmp_path / "out"
    out.mkdir()
    job = running(str(tmp_path / "checkpoints"), str(out), sink=SlowServer(out))
    until(lambda: (out / "came-0").exists() and (out / "came-1").exists(), "not each worker publishes")
    both = lambda: {subtask for _, subtask in job.read_by_subtask()} == {0, 1}  # noqa: E731 - reports come now and then
    until(both, "a subtask has reported nothing")
    for _ in range(2):
        read = job.read_by_subtask()

        def went_on(read: dict[Any, int] = read) -> bool:
            return all(count > read[whose] + 50 for whose, count in job.read_by_subtask().items())

        until(went_on, "a subtask stands still")
        job.goes_on(2)
    assert not list(out.glob("part-*"))
    (out / "open").touch()
    until(lambda: len(list(out.glob("part-*"))) > 4, "nothing was published")
    assert {path.name for path in out.glob("refused-*")} == {"refused-0", "refused-1"}
    assert job.job.restarts == 0
    job.stop(out)
