"""Asynchronous calls in a simulated job: order, capacity, time-outs and attempts, records whose calls fail, event time that
waits for them, and what a job that goes on from a checkpoint calls again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from search.scenarios import run_scenario, scenario
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.world import Observer

N = 60


def job_of(
    seed: int, write: Callable[[tr.DataStream], tr.DataStream], parallelism: int = 1, **options: Any
) -> tuple[list[Any], Any]:
    """The records that a program makes of 0, 1, …, and the job."""
    env = tr.Environment(parallelism=parallelism, **options)
    out = write(env.from_source(tr.sources.Sequence(0, N), parallelism=1)).sink_to(tr.sinks.Collect(), parallelism=1)
    job = tr.testing.simulate(env, seed=seed)
    job.await_termination()
    return list(out.result()), job


async def shuffled(i: int) -> int:
    """An answer that takes a while, a shorter one for many later records."""
    await asyncio.sleep((i * 7_919 % 17) / 1_000)
    return i


def test_results_come_in_the_order_of_the_input_or_as_they_come() -> None:
    ordered, _ = job_of(1, lambda s: s.map_async(shuffled))
    loose, _ = job_of(1, lambda s: s.map_async(shuffled, ordered=False))
    assert ordered == list(range(N))
    assert loose != ordered and sorted(loose) == ordered


def test_calls_of_a_key_are_made_one_after_the_other() -> None:
    under_way: Counter[int] = Counter()
    most: list[int] = []

    async def watched(i: int) -> int:
        under_way[i % 3] += 1
        most.append(under_way[i % 3])
        await asyncio.sleep((i * 7_919 % 17) / 1_000)
        under_way[i % 3] -= 1
        return i

    env = tr.Environment(parallelism=1)
    out = (
        env.from_collection(range(N))
        .key_by(lambda i: i % 3)
        .map_async(watched, ordered="key")
        .sink_to(tr.sinks.Collect())
    )
    tr.testing.run(env)
    found = out.result()
    for key in range(3):
        assert [i for i in found if i % 3 == key] == list(range(key, N, 3))
    assert set(most) == {1}
    assert found != sorted(found)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_subtask_reads_no_more_than_its_capacity(ordered: bool) -> None:
    def write(stream: tr.DataStream) -> tr.DataStream:
        return stream.map_async(shuffled, capacity=3, ordered=ordered)

    env = tr.Environment(parallelism=1)
    write(env.from_source(tr.sources.Sequence(0, N))).sink_to(tr.sinks.Collect())
    simulation = prepared_simulation(env, name="full", seed=2)
    most = 0

    class Watch(Observer):
        def on_line(self, line: str) -> None:
            nonlocal most
            for process in simulation.processes.values():
                for task in process.machine.tasks():
                    if task.chain.calling is not None:
                        most = max(most, task.chain.calling.state_entries())

    simulation.watch(Watch())
    simulation.run()
    assert most == 3


def test_the_time_of_a_call_covers_all_of_its_attempts() -> None:
    calls: list[int] = []

    async def failing(i: int) -> int:
        calls.append(i)
        if i == 7:
            raise ConnectionError("closed")
        return i

    env = tr.Environment(parallelism=1)
    retry = tr.Retry(100, wait="1 second", then=tr.Aside("late"))
    stream = env.from_collection(range(10)).map_async(failing, timeout=3.5, retry=retry)
    late, out = stream.side_output("late").sink_to(tr.sinks.Collect()), stream.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [i for i in range(10) if i != 7]
    assert calls.count(7) == 4  # at 0, 1, 2 and 3 seconds
    (failed,) = late.result()
    assert failed.record == 7 and failed.error == "TimeoutError: no answer in up to 100 calls within timeout=3.5 s"


def test_a_result_that_comes_just_in_time_is_not_lost() -> None:
    """A call that ends at the very moment at which its time is over has one outcome, whichever of both that is."""

    async def just_in_time(i: int) -> int:
        await asyncio.sleep(1.0)
        if i % 2:
            raise ConnectionError("closed")
        return i

    for timeout in (0.999_999, 1.0, 1.000_001, 2.0, 2.1):
        env = tr.Environment(parallelism=1)
        retry = tr.Retry(2, then=tr.Aside("failed"))
        stream = env.from_collection(range(N)).map_async(just_in_time, timeout=timeout, retry=retry)
        failed, out = stream.side_output("failed").sink_to(tr.sinks.Collect()), stream.sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        assert sorted([*out.result(), *(one.record for one in failed.result())]) == list(range(N)), timeout


def test_a_call_that_does_not_end_when_it_is_cancelled_is_answered_all_the_same() -> None:
    async def stubborn(i: int) -> int:
        try:
            await asyncio.sleep(100.0)
        except asyncio.CancelledError:
            await asyncio.sleep(50.0)
        return i

    env = tr.Environment(parallelism=1)
    stream = env.from_collection([1, 2]).map_async(stubborn, timeout=1.0, on_error=tr.Aside("late"))
    late, out = stream.side_output("late").sink_to(tr.sinks.Collect()), stream.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [] and [one.record for one in late.result()] == [1, 2]


def test_a_failed_call_fails_the_job_with_the_record_and_the_line() -> None:
    async def picky(i: int) -> int:
        if i == 5:
            raise ValueError("no five")
        return i

    with pytest.raises(tr.JobFailed, match=r"record 5: ValueError: no five in each of 2 calls") as failure:
        job_of(0, lambda s: s.map_async(picky, retry=tr.Retry(2)))
    assert 'raise ValueError("no five")' in str(failure.value)


def test_a_changed_record_is_as_it_was_for_the_next_attempt_and_for_the_side_output() -> None:
    seen: list[list[int]] = []

    async def changing(record: list[int]) -> None:
        seen.append([*record])
        record.append(0)
        raise ValueError("changed")

    env = tr.Environment(parallelism=1)
    stream = env.from_collection([[1]]).map_async(changing, retry=tr.Retry(3, then=tr.Aside("failed")))
    failed = stream.side_output("failed").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert seen == [[1]] * 3 and failed.result()[0].record == [1]


def test_records_are_called_in_batches_that_grow_while_calls_are_under_way() -> None:
    sizes: list[int] = []

    async def model(records: list[int]) -> list[int]:
        sizes.append(len(records))
        await asyncio.sleep(0.05)
        return [-i for i in records]

    env = tr.Environment(parallelism=1)
    out = env.from_collection(range(N)).map_async(model, batch=8, capacity=16).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [-i for i in range(N)]
    assert max(sizes) == 8 and len(sizes) < N / 4


@pytest.mark.parametrize("results", [[1], "ab", None])
def test_a_batch_with_another_number_of_results_fails(results: Any) -> None:
    async def model(records: list[int]) -> Any:
        return results

    env = tr.Environment(parallelism=1)
    env.from_collection([1, 2]).map_async(model, batch=2).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"results for 2 records|a result for each record"):
        tr.testing.run(env)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ordered", [True, False])
def test_event_time_waits_for_results(ordered: bool, seed: int) -> None:
    """No record is late behind the calls that was not late in front of them, also if it is the last one before silence."""

    def write(stream: tr.DataStream) -> tr.DataStream:
        stamped = stream.assign_timestamps(float, parallelism=1)
        called = stamped.map_async(shuffled, ordered=ordered, capacity=20)
        return called.key_by(lambda i: 0).window(tr.Tumbling(5)).count().map(lambda one: (one.start, one.count))

    found, _ = job_of(seed, write, parallelism=2)
    assert sorted(found) == [(float(start), 5) for start in range(0, N, 5)]


def test_an_idle_input_is_not_idle_behind_calls_before_its_results_are_there() -> None:
    """Two streams meet in a window. One falls silent while its last calls are under way; the other goes on."""

    async def slow(i: int) -> int:
        await asyncio.sleep(5.0)
        return i

    env = tr.Environment(parallelism=1)
    few = env.from_source(tr.sources.Sequence(0, 3)).assign_timestamps(float, idle_after=1.0)
    many = env.from_source(tr.sources.Sequence(0, 100, rate=10.0)).assign_timestamps(float)
    both = few.map_async(slow).union(many.map(lambda i: i))
    out = (
        both.key_by(lambda i: 0).window(tr.Tumbling(10)).count().map(lambda one: one.count).sink_to(tr.sinks.Collect())
    )
    tr.testing.run(env)
    assert sorted(out.result()) == [10] * 9 + [13]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failed_record_goes_aside_once_when_its_call_is_made_again(ordered: bool) -> None:
    """The failed record waits behind a slow call, so a checkpoint has it, and a job that goes on from there calls again."""

    async def failing(i: int) -> int:
        await asyncio.sleep(0.05 if i % 10 == 0 else 0.0)
        if i % 10 in (1, 5):
            raise ValueError("no such record")
        return i

    again = 0
    for seed in range(4):
        settings = tr.CheckpointConfig("memory", interval=0.004)
        env = tr.Environment(parallelism=1, checkpoint=settings, restart=tr.FixedDelay(attempts=9, delay=0.0))
        source = env.from_source(tr.sources.Sequence(0, N, rate=2_000.0)).assign_timestamps(float)
        called = source.map_async(failing, ordered=ordered, on_error=tr.Aside("failed"))
        out = called.sink_to(tr.sinks.Collect())
        aside = called.side_output("failed").map(lambda one: one.record).sink_to(tr.sinks.Collect())
        faults = [Fault(40 + 30 * seed, "kill", after="Complete to all"), Fault(400 + 50 * seed, "kill")]
        job = tr.testing.simulate(env, seed=seed, faults=faults)
        assert job.await_termination()
        assert sorted(out.result()) == [i for i in range(N) if i % 10 not in (1, 5)]
        assert sorted(aside.result()) == [i for i in range(N) if i % 10 in (1, 5)]
        again += job.simulation.covered["restarted"]
    assert again > 0


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_is_exact_whatever_it_goes_on_from(lost: bool) -> None:
    """Golden runs with faults, restarts at other parallelisms, unaligned checkpoints and workers that are replaced: calls
    are made again, and no result is lost, twice, late or before another one of its key."""
    again = 0
    for seed in range(100, 106):
        what = replace(scenario(seed, "called"), n=60)
        if lost:
            what = replace(what, depth=1, replaces=True)
        result = run_scenario(what)
        assert result.wrong == [], f"seed {seed}"
        again += result.covered["asynchronous calls"]
    assert again > 0
