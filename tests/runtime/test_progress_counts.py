"""What a progress report counts."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import tailrace as tr
from tailrace.coordinator.view.progress import ProgressMaker, job_metrics, largest_lags
from tailrace.protocol.deployment import SubtaskReport
from tailrace.task.channels.services import Services
from tailrace.task.slice.machine import Slice


def test_only_what_went_into_sinks_counts_as_out() -> None:
    # A side output ends in a sink right in the chain whose main output goes on to another task: what it sends there used
    # to be counted as out, too.
    def sorted_out(value: int, ctx: Any) -> Any:
        if value % 10:
            yield value
        else:
            ctx.emit("tens", value)

    env = tr.Environment(parallelism=2)
    stream = env.from_collection(range(100)).process(sorted_out)
    tens = stream.side_output("tens").sink_to(tr.sinks.Collect())
    last = stream.key_by(lambda v: v % 3).process(lambda v, ctx: [v] if v > 95 else None).sink_to(tr.sinks.Collect())
    job = tr.testing.run(env)

    ended: Any = SimpleNamespace(reports=job.simulation.reports)
    maker = ProgressMaker("id", "run", "name", job.simulation.plan, 0)
    report = maker.make([ended], 1_000_000)
    assert (len(tens.result()), len(last.result())) == (10, 4)
    assert report["tailrace"]["totalInputRows"] == 100
    assert report["sink"]["numOutputRows"] == report["tailrace"]["totalOutputRows"] == 14


def test_a_subtask_tells_what_it_waits_for() -> None:
    """Each in the words of the task; what works waits for nothing."""
    env = tr.Environment(parallelism=1)
    env.from_collection(range(10)).rebalance().map(abs).sink_to(tr.sinks.Callback(lambda record: None))
    plan = env._plan(env._pending())
    held = Slice(plan, 0, 0, Services(random.Random), 1 << 20)
    held.open()
    source, target = reversed(held.tasks)

    def told() -> list[str]:
        return [one["waits_for"] for one in job_metrics(plan, held.reports({}), 0)["subtasks"]]

    assert told() == ["", ""]
    held.step(target, 1, 100)
    held.step(source, 1, 100)
    assert told() == ["no input", ""]
    source.outbox.blocked += 1
    held.step(source, 1, 100)
    assert told() == ["no input", "no credit"]
    source.outbox.blocked -= 1
    for _ in range(20):
        for task in held.tasks:
            held.step(task, 1, 100)
    assert told() == ["finished", "finished"]


def test_late_records_are_reported_as_dropped_by_the_watermark_and_what_nobody_counts_is_left_out() -> None:
    """The count of late records used to be zero, as were the memory of the state and the times of its updates."""
    events = [("a", 1), ("a", 200), ("a", 2), ("a", 3), ("a", 300), ("a", 5)]
    env = tr.Environment(parallelism=1)
    stream = env.from_source(tr.sources.Generator(lambda i: events[i], rate=4, count=6)).assign_timestamps(
        lambda e: e[1]
    )
    stream.key_by(lambda e: e[0]).window(tr.Tumbling(10)).count().sink_to(tr.sinks.Collect())
    job = tr.testing.run(env)
    ended: Any = SimpleNamespace(reports=job.simulation.reports)
    maker = ProgressMaker("id", "run", "name", job.simulation.plan, 0)
    [state] = maker.make([ended], 1_000_000)["stateOperators"]
    assert state["numRowsDroppedByWatermark"] == 3
    assert not {"memoryUsedBytes", "commitTimeMs", "allUpdatesTimeMs", "numRowsUpdated"} & set(state)
    [state] = maker.make([ended], 2_000_000)["stateOperators"]
    assert state["numRowsDroppedByWatermark"] == 0, "since the report before"


def test_the_loss_of_a_worker_makes_no_records_new_or_undone() -> None:
    """While its place was being taken fewer records had come, and when it was all of them were new; what went into sinks was
    less than before."""
    env = tr.Environment(parallelism=2)
    env.from_source(tr.sources.Sequence(0, 1000)).sink_to(tr.sinks.Callback(lambda record: None))
    plan = env._plan(env._pending())
    maker = ProgressMaker("id", "run", "name", plan, 0)

    def told(*slots: tuple[int, int], restarts: int = 0) -> tuple[int, ...]:
        """The report where each slot has handled so many records, and worked for so many milliseconds."""
        reports = [
            SubtaskReport(vertex=0, subtask=at, records_in=n, records_sunk=n, source=True, busy_micros=1000 * busy)
            for at, (n, busy) in enumerate(slots)
        ]
        one: Any = SimpleNamespace(reports=reports)
        message = maker.make([one], maker._last_at + 1_000_000, restarts=restarts)
        inside = message["tailrace"]
        return (
            *(message["numInputRows"], message["sink"]["numOutputRows"], message["durationMs"]["busy"]),
            *(inside["totalInputRows"], inside["totalOutputRows"]),
        )

    assert told((100, 400), (100, 500)) == (200, 200, 900, 200, 200)
    assert told((110, 500)) == (0, 0, 100, 200, 200), "worker 1 is lost"
    assert told((130, 600), (90, 50)) == (20, 20, 150, 220, 220), "and is doing again what it did"
    assert told((140, 700), (120, 90)) == (40, 40, 140, 260, 260)
    assert told((10, 20), (10, 20), restarts=1) == (20, 20, 40, 20, 20), "all start again, and count anew"


def test_the_lag_of_a_source_is_that_of_the_split_that_is_farthest_behind() -> None:
    figures: list[dict[str, float]] = [
        {"topic.lag_records": 3.0, "topic.lag_records[0]": 3.0, "topic.lag_seconds": 9.5, "topic.lost_bytes": 70.0},
        {"topic.lag_records": 8.0, "topic.lag_records[1]": 8.0},
        {},
    ]
    assert largest_lags(figures) == {"lag_records": 8.0, "lag_seconds": 9.5}
    assert largest_lags([{"topic.lost_bytes": 70.0}]) == {}
