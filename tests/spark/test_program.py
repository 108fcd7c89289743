"""Classes that are written in the program itself, beside the dataflow, as everybody writes them first."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import enum
import sys
from dataclasses import dataclass
from typing import NamedTuple

import tailrace as tr


@dataclass
class Order:
    customer: int
    price: int


class Place(NamedTuple):
    zone: int
    row: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Shop:
    class Total:  # a class in a class
        def __init__(self, n):
            self.n = n


class Plain:
    def __init__(self, n):
        self.n = n


@dataclass
class Seen:
    count: int = 0
    #MORE


class Count(tr.KeyedProcessFunction):
    seen = tr.ValueState(Seen)
    last = tr.MapState(str, object)

    def process(self, order, ctx):
        seen = self.seen.value or Seen()
        seen.count += 1
        self.seen.value = seen
        self.last.put("order", order)
        self.last.put("colour", Colour.RED)
        yield Shop.Total(seen.count), Plain(order.price), ctx.key, getattr(seen, "more", None)


def order(n):
    return Order(n % 3, n)


def loop(orders):
    again = orders.rebalance().filter(lambda o: o.price % 4).map(lambda o: Order(o.customer, o.price - o.price % 4))
    return again, orders


def dataflow(env):
    orders = env.from_source(tr.sources.Sequence(0, 600, rate=600), uid="numbers").map(order, uid="orders")
    back = orders.iterate(loop)
    counted = back.rebalance().key_by(lambda o: Place(o.customer, 0)).process(Count(), uid="count")
    counted.map(lambda r: (r[0].n, r[1].n, r[2], r[3])).map(str).sink_to(tr.sinks.TextFiles("out"), uid="lines")


if __name__ == "__main__":
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("checkpoints", interval=None))
    dataflow(env)
    job = env.execute("shop", from_checkpoint="latest" if sys.argv[1:] == ["go on"] else None)
    if sys.argv[1:] == ["stop early"]:
        job.checkpoint()
        job.cancel()
    job.await_termination()
"""


COUNTS = sorted([*range(1, 201 + 150)] * 3)
"""Of each of three customers: 200 orders, and 150 that went round again."""


def program(folder: Path, *command: str) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]


def lines(folder: Path) -> list[str]:
    return sorted(line for file in (folder / "out").glob("part-*") for line in file.read_text().splitlines())


def counts(folder: Path) -> list[int]:
    return sorted(int(line[1:].partition(",")[0]) for line in lines(folder))


@pytest.mark.spark
def test_classes_of_a_script_are_records_keys_feedback_and_state_and_its_next_version_reads_them(
    tmp_path: Path,
) -> None:
    """The job refers to the classes of the script by value; records and state hold their names. The next version of the
    script has another field in the class of a state, and goes on from the checkpoint."""
    (tmp_path / "shop.py").write_text(SCRIPT)
    program(tmp_path, "shop.py", "stop early")
    (tmp_path / "shop.py").write_text(SCRIPT.replace("#MORE", 'more: str = "new"'))
    program(tmp_path, "shop.py", "go on")
    assert counts(tmp_path) == COUNTS
    assert any(line.endswith("'new')") for line in lines(tmp_path))


@pytest.mark.spark
def test_a_function_that_tailrace_run_calls_has_the_classes_of_its_file(tmp_path: Path) -> None:
    """`tailrace run FILE.py:function` leaves out what stands under `if __name__ == "__main__"`; the classes of the file are
    those of `__main__` all the same."""
    (tmp_path / "shop.py").write_text(SCRIPT)
    program(tmp_path, "-m", "tailrace", "run", "--parallelism", "2", "shop.py:dataflow")
    assert counts(tmp_path) == COUNTS


KEYS = """
import enum
import glob
import os
import signal
import sys
from dataclasses import dataclass

import tailrace as tr


class Kind(enum.Enum):
    PERSON = 1
    FIRM = 2


@dataclass(frozen=True)
class Customer:
    kind: Kind
    number: int


class Count(tr.KeyedProcessFunction):
    seen = tr.ValueState(int, default=0)

    def process(self, order, ctx):
        self.seen.value += 1
        if ctx.timestamp is None and not self.seen.value % 50:
            ctx.set_timer(processing_time=ctx.now())
        yield ctx.key, self.seen.value

    def on_timer(self, timestamp, ctx):
        yield ctx.key, -self.seen.value


if __name__ == "__main__":
    env = tr.Environment(parallelism=int(sys.argv[2]), checkpoint=tr.CheckpointConfig("checkpoints", interval=0.2))
    numbers = env.from_source(tr.sources.Sequence(0, 900, rate=300), uid="numbers")
    counted = numbers.key_by(lambda n: Customer(Kind(1 + n % 2), n % 3)).process(Count(), uid="count")
    kinds = counted.filter(lambda r: r[1] > 0).key_by(lambda r: r[0].kind).count(uid="kinds")
    written = counted.map(lambda r: (r[0].kind.name, r[0].number, r[1])).union(kinds.map(lambda r: (r[0].name, r[1])))
    written.map(str).sink_to(tr.sinks.TextFiles("out"), uid="lines")
    job = env.execute("shop", from_checkpoint=None if sys.argv[1] == "die" else "latest")
    if sys.argv[1] == "die":
        while not glob.glob("out/part-*"):  # which a checkpoint publishes once there were records
            job.checkpoint()
        os.kill(os.getpid(), signal.SIGKILL)
    job.await_termination()
"""


@pytest.mark.spark
@pytest.mark.timeout(600)  # two programs, each with a Spark of its own
def test_objects_and_members_of_enums_of_a_script_are_keys_that_its_next_version_finds(tmp_path: Path) -> None:
    """The script is killed. A version of it that only looks different goes on at another parallelism. (A version whose class
    has a field more is refused: `tests/state/test_key_classes.py`.)"""
    (tmp_path / "shop.py").write_text(KEYS)
    died = subprocess.run([sys.executable, "shop.py", "die", "2"], cwd=tmp_path, capture_output=True, timeout=280)
    assert died.returncode == -signal.SIGKILL, died.stderr[-3000:]
    (tmp_path / "shop.py").write_text(KEYS.replace("PERSON = 1\n    FIRM = 2", "FIRM = 2\n    PERSON = 1"))
    program(tmp_path, "shop.py", "go on", "3")
    found = [line for line in lines(tmp_path) if "-" not in line]
    one_of = {("PERSON", n) for n in range(3)} | {("FIRM", n) for n in range(3)}
    wanted = [str((*key, i)) for key in one_of for i in range(1, 151)]
    wanted += [str((kind, i)) for kind in ("PERSON", "FIRM") for i in range(1, 451)]
    assert found == sorted(wanted)
    timers = [line for line in lines(tmp_path) if "-" in line]
    assert len(timers) == 6 * 3, timers
