"""A wall clock that somebody sets, for driver and workers, while a job runs: nobody waits by it."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.runtime.eventloop.clock import JobClock, unix_micros
from tests.runtime.test_job import Running

HOUR = 3_600
TIME, TIME_NS = time.time, time.time_ns


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the wall clock of this machine to so many seconds beside the right time."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: TIME() + seconds)
        monkeypatch.setattr(time, "time_ns", lambda: TIME_NS() + int(seconds * 1e9))

    return set_to


@pytest.fixture
def started() -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def make(env: tr.Environment) -> Running:
        made.append(Running(env))
        return made[-1]

    yield make
    for one in made:
        one.job.cancel()
        one.runner.join(30)
        assert not one.runner.is_alive()


class Noted:
    """Records, in a file: a job is pickled, and what its functions have is theirs."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "noted")
        Path(self._path).touch()

    def __call__(self, record: Any) -> None:
        with open(self._path, "a") as file:
            file.write(f"{record!r}\n")

    @property
    def seen(self) -> list[Any]:
        return [ast.literal_eval(line) for line in Path(self._path).read_text().splitlines()]


def until(happened: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def test_the_clock_of_a_job_goes_on_whatever_the_wall_clock_does(wall: Any) -> None:
    clock = JobClock()
    assert abs(clock.now() - unix_micros()) < 1_000_000
    before = clock.now()
    for jump in (-5 * HOUR, 5 * HOUR):
        wall(jump)
        assert 0 <= clock.now() - before < 10_000_000


def test_a_worker_on_a_machine_whose_clock_is_wrong_goes_by_that_of_its_driver(wall: Any) -> None:
    driver = JobClock()
    wall(7 * HOUR)
    worker = JobClock()
    worker.follow(driver.now())
    assert abs(worker.now() - driver.now()) < 1_000_000


def test_a_worker_whose_clock_is_right_has_that_of_its_driver_however_long_its_welcome_took() -> None:
    """The worker's clock was behind by as long as its welcome had taken, and what two workers measured together was wrong
    by that."""
    wall, steady = [1_000_000], [500]
    worker = JobClock(lambda: wall[0], lambda: steady[0])
    sent = wall[0]
    for clock in (wall, steady):
        clock[0] += 17_000
    worker.follow(sent, late=20_000)
    assert worker.now() == wall[0]
    wall[0] += int(HOUR * 1e6)
    worker.follow(sent + 17_000, late=2_000)
    assert worker.now() == sent + 18_000, "somebody has set the wall clock: half of the delay is the best guess"


@pytest.mark.parametrize("jump", [-3 * HOUR, 3 * HOUR], ids=["back", "forward"])
def test_a_source_keeps_its_pace(started: Any, wall: Any, tmp_path: Path, jump: int) -> None:
    """Set back, it read nothing for as long as that was; set forward, it read all of the gap at once."""
    noted = Noted(tmp_path)
    env = tr.Environment(parallelism=1)
    env.from_source(tr.sources.Sequence(0, None, rate=500)).sink_to(tr.sinks.Callback(noted))
    started(env).start()
    until(lambda: len(noted.seen) > 100, "nothing was read")
    wall(jump)
    at, before = time.monotonic(), len(noted.seen)
    until(lambda: len(noted.seen) > before + 200, "the source has stopped")
    assert len(noted.seen) - before < (time.monotonic() - at) * 500 + 1_000, "the gap was made up for at once"


class Reminder(tr.KeyedProcessFunction):
    """Says how long a timer took, by its own clock and by a steady one."""

    def process(self, value: int, ctx: Any) -> Iterator[Any]:
        if value == 0:
            self.set_at = time.monotonic(), ctx.now()
            ctx.set_timer(processing_time=ctx.now() + 0.4)
        yield "set", value

    def on_timer(self, timestamp: float, ctx: Any) -> Iterator[Any]:
        steady, now = self.set_at
        yield "fired", (time.monotonic() - steady, ctx.now() - now)


@pytest.mark.parametrize("jump", [-3 * HOUR, 3 * HOUR], ids=["back", "forward"])
def test_a_timer_fires_when_its_time_has_gone_by(started: Any, wall: Any, tmp_path: Path, jump: int) -> None:
    noted = Noted(tmp_path)
    env = tr.Environment(parallelism=1)
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=100))
    timed = numbers.key_by(lambda n: 0).process(Reminder())
    timed.sink_to(tr.sinks.Callback(noted))
    started(env).start()
    until(lambda: ("set", 0) in noted.seen, "no timer was set")
    wall(jump)
    until(lambda: any(what == "fired" for what, _ in noted.seen), "the timer has not fired")
    [(steady, now)] = [value for what, value in noted.seen if what == "fired"]
    assert steady >= 0.39 and abs(now - steady) < 1.0


def test_followed_files_are_looked_at_again(started: Any, wall: Any, tmp_path: Path) -> None:
    noted, log = Noted(tmp_path), tmp_path / "a.log"
    log.write_text("one\n")
    env = tr.Environment(parallelism=1)
    lines = env.from_source(tr.sources.TextFiles(str(tmp_path / "*.log"), follow=True))
    lines.sink_to(tr.sinks.Callback(noted))
    started(env).start()
    until(lambda: noted.seen == ["one"], "nothing was read")
    for jump, line in ((-3 * HOUR, "two"), (3 * HOUR, "three")):
        wall(jump)
        with log.open("a") as file:
            file.write(f"{line}\n")
        until(lambda: noted.seen[-1] == line, f"{line} was not read")  # noqa: B023 - called at once
    assert noted.seen == ["one", "two", "three"]
