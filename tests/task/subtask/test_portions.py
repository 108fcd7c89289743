"""A long piece of work does not delay a checkpoint: timers and windows fire in portions, and a cut falls between two of
them. The others fire after a restore, once, before anything is read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.markers import Barrier, EndOfInput, Watermark
from tailrace.state.manifest import Manifest
from tailrace.storage.reading import load_index
from tailrace.task.operators.sink import SinkTask
from tailrace.task.subtask.snapshot import read_meta
from tests.task.channels.test_written_records import ByCut
from tests.task.inflight.test_overtaking import Fleet
from tests.task.subtask.test_machine_cuts import One

MANY = 10_000


class Alarm(tr.KeyedProcessFunction):
    """A timer for each record, which emits when it fired."""

    def process(self, value: int, ctx: Any) -> Any:
        ctx.set_timer(event_time=float(value))
        return ()

    def on_timer(self, timestamp: Any, ctx: Any) -> Any:
        yield (ctx.key, round(timestamp))


def alarms(env: tr.Environment, sink: tr.Sink) -> None:
    env.from_source(tr.sources.Sequence(0, 10)).key_by(lambda x: x % 7).process(Alarm(), uid="alarms").sink_to(sink)


def minutes(env: tr.Environment, sink: tr.Sink) -> None:
    timed = env.from_source(tr.sources.Sequence(0, 10)).assign_timestamps(float)
    counted = timed.key_by(lambda x: x % 7).window(tr.Tumbling(1)).aggregate(n=tr.Count())
    counted.map(lambda row: (row.key, round(row.start))).shuffle().map(lambda x: x).sink_to(sink)


def full(build: Any = alarms, **how: Any) -> One:
    """A task with a timer for each of many records."""
    one = One(build, **how)
    values = list(range(1, MANY + 1))
    for ident in one.channels[:1]:
        batch = Rows(values, times=None if build is alarms else _micros(values))
        one.task.arrive(ident, 0, batch, 1)
    one.run()
    assert one.out == []
    return one


def _micros(values: list[int]) -> Any:
    import numpy as np

    return np.array(values, np.int64) * 1_000_000


def up_to(one: One, seconds: int) -> One:
    """Event time comes to so many seconds on all channels."""
    for channel in range(len(one.channels)):
        one.mark(channel, Watermark(seconds * 1_000_000))
    return one


def reached(one: One, uid: str = "alarms") -> tuple[int, int]:
    """Event time that an operator had reached and that had come to it, in the newest snapshot; in seconds."""
    [meta] = [read_meta(part.meta) for _, part in one.taken.operators if part.uid == uid]
    return meta.reached // 1_000_000, meta.came // 1_000_000


@pytest.mark.parametrize("overtaking", [False, True])
def test_a_cut_waits_for_a_portion_of_the_timers_that_are_due_and_not_for_all(overtaking: bool) -> None:
    one = up_to(full(overtaking=overtaking), MANY)
    while not one.out:
        one.step(budget=50)
    cut = CutRequest(1, overtakes_after=0 if overtaking else -1)
    for channel in range(len(one.channels)):
        one.mark(channel, Barrier(cut))
    before = len(one.out)
    while one.task.checkpoints.snapshot is None:
        assert one.step(budget=50) is None
    assert before <= len(one.out) <= before + 100
    one.encode()
    assert reached(one)[1] == MANY
    one.run()
    assert [at for _, at in one.out] == list(range(1, MANY + 1)), "the others fire behind the cut, in their order"


def test_a_cut_falls_between_two_portions_though_nobody_takes_what_they_give() -> None:
    """The output has no credit: a task that must fire all of its timers before it cuts would wait for that."""
    one = full(minutes, window=400, overtaking=True)
    one.mark(0, Watermark(MANY * 1_000_000)).mark(1, Watermark(MANY * 1_000_000))
    while one.step(budget=50) is None:
        pass
    assert one.task.outbox.blocked and one.task.work.advancing
    one.task.trigger(CutRequest(1, overtakes_after=0))
    one.run(encode=True)
    assert one.taken is not None and one.taken.checkpoint == 1
    assert one.task.work.advancing, "and it has not fired them all"


def test_event_time_goes_on_behind_windows_as_far_as_they_have_fired() -> None:
    """The readers of windows need not wait until all have fired. Behind timers of a function event time stands still: one
    may set another one for a time that has been."""
    one = up_to(full(minutes), MANY)
    for _ in range(60):
        one.step(budget=50)
        one.task.outbox.flush()
    marks = [sent.time // 1_000_000 for _, sent in one.sent() if isinstance(sent, Watermark)]
    assert len(set(marks)) > 10 and marks[-1] < MANY and marks == sorted(marks)


def test_at_the_end_of_the_input_windows_fire_in_portions_as_well() -> None:
    one = full()
    for channel in range(len(one.channels)):
        one.mark(channel, EndOfInput())
    while not one.out:
        one.step(budget=50)
    one.task.trigger(CutRequest(1))
    before = len(one.out)
    while one.task.checkpoints.snapshot is None:
        one.step(budget=50)
    assert len(one.out) <= before + 100


# Whole jobs, which go on elsewhere.


def late_alarms(env: tr.Environment, sink: tr.Sink) -> None:
    """A dozen timers for each record, of which many come due at once."""
    numbers = env.from_source(tr.sources.Sequence(0, 160), uid="numbers").assign_timestamps(_in_leaps, uid="timed")
    numbers.key_by(lambda x: x % 11).process(Reminder(), uid="alarms").shuffle().map(lambda x: x).sink_to(
        sink, uid="out"
    )


def _in_leaps(value: int) -> float:
    return float(value // 40 * 1_000 + value % 40)


class Reminder(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        for later in range(1, 13):
            ctx.set_timer(event_time=_in_leaps(value) + 50.0 * later)
        return ()

    def on_timer(self, timestamp: Any, ctx: Any) -> Any:
        yield (ctx.key, round(timestamp), self.count.value)


def windowed(env: tr.Environment, sink: tr.Sink) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 160), uid="numbers").assign_timestamps(_in_leaps, uid="timed")
    counted = numbers.key_by(lambda x: x % 11).window(tr.Sliding(20, 1)).aggregate(n=tr.Count())
    counted.map(tuple).shuffle().map(lambda x: x).sink_to(sink, uid="out")


def straight(build: Any) -> Counter[Any]:
    env = tr.Environment(parallelism=1, max_parallelism=16)
    out: list[Any] = []
    build(env, tr.sinks.Callback(out.append))
    tr.testing.run(env)
    return Counter(out)


@pytest.mark.parametrize("build", [late_alarms, windowed])
def test_a_job_left_between_two_portions_fires_the_others_once_wherever_it_goes_on(build: Any) -> None:
    expected, between = straight(build), 0
    for seed in range(6):
        manifest, got, disk = None, Counter[Any](), None
        for life, parallelism in enumerate([[2, 3, 2], [3, 2, 1], [2, 2, 3]][seed % 3]):
            fleet = Fleet(build, parallelism, disk, seed=100 * seed + life)
            fleet.number = 0 if manifest is None else manifest.checkpoint
            fleet.deploy(manifest, incarnation=life + 1)
            disk = fleet.disk
            operators = [operator for w in fleet.workers for task in w.tasks() for operator in task.chain.operators]
            sinks = [ByCut(operator) for operator in operators if isinstance(operator, SinkTask)]
            if life == 2:
                fleet.to_the_end()
                got += Counter(one for sink in sinks for one in sink.got)
                break
            manifest, fell = left(fleet)
            between += fell
            got += Counter(one for sink in sinks for one in sink.got[: sink.before[manifest.checkpoint]])
        assert got == expected, f"seed {seed}"
    assert between > 5, "cuts really fell between portions"


def left(fleet: Fleet) -> tuple[Manifest, int]:
    """A checkpoint that is requested when timers are firing somewhere, and how many operators it has found between two
    portions."""
    for _ in range(3_000):
        firing = (task.work.between_portions for worker in fleet.workers for task in worker.tasks())
        if any(firing) or not fleet.turn():
            break
    manifest = fleet.taken(confirm=False)
    parts = [part for file in manifest.files for part in load_index(fleet.disk, file.name).operators]
    metas = [read_meta(part.meta) for part in parts if part.meta is not None]
    return manifest, sum(meta.came > meta.reached for meta in metas)
