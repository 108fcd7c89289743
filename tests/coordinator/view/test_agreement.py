"""Agreement of all that shows a job: the snapshot, the progress report and `metrics()` of one view have the same figures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr
from tailrace.coordinator.checkpoint_stats import Books, FailedCheckpoint, PendingStats, Waits
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.jobview import JobView, SlotFigures
from tailrace.coordinator.view.progress import ProgressMaker, job_metrics
from tailrace.coordinator.view.snapshot_maker import SnapshotMaker
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.graph.plan import Plan
from tailrace.protocol.deployment import SubtaskReport

SECOND = 1_000_000


def windows() -> Plan:
    """A source with event time, windows with late records, and two sinks."""
    env = tr.Environment(parallelism=3)
    numbers = env.from_source(tr.sources.Sequence(0, 10)).assign_timestamps(float)
    numbers.sink_to(tr.sinks.Callback(print))
    counts = numbers.key_by(lambda n: n % 2).window(tr.Tumbling(5)).count(name="counts")
    counts.sink_to(tr.sinks.Callback(print))
    return env._plan(env._pending())


def reported(
    plan: Plan, chance: random.Random, before: dict[tuple[int, int], SubtaskReport]
) -> Iterator[SubtaskReport]:
    """Reports of all subtasks, whose counts are at least those before."""
    for vertex in plan.vertices:
        for subtask in range(vertex.parallelism):
            old = before.get((vertex.id, subtask), SubtaskReport(vertex.id, subtask))
            more = lambda: chance.choice([0, 1, 1000])  # noqa: E731
            metrics = {"counts.late_records": old.metrics.get("counts.late_records", 0.0) + more()} if vertex.id else {}
            yield SubtaskReport(
                vertex.id,
                subtask,
                source=not vertex.id,
                records_in=old.records_in + more(),
                records_out=old.records_out + more(),
                records_sunk=old.records_sunk + more(),
                busy_micros=old.busy_micros + more(),
                queued_bytes=more(),
                unsent_bytes=more(),
                state_entries=more(),
                timed=True,
                watermark=chance.choice([MIN_TIME, 5 * SECOND, MAX_TIME]),
                metrics=metrics,
            )


def books(chance: random.Random) -> Books:
    number = chance.randrange(5)
    failed = tuple(FailedCheckpoint(at, "too late", at * SECOND, True) for at in range(number))
    return Books(
        completed=chance.randrange(9),
        aborted=number,
        pending=tuple(PendingStats(at, SECOND, "write", (0,)) for at in range(chance.randrange(3))),
        in_a_row=number,
        failed=failed,
        waits=tuple(Waits("file:///a", "full", at, SECOND) for at in range(chance.randrange(2))),
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_snapshot_the_progress_report_and_metrics_have_the_same_figures(seed: int) -> None:
    chance = random.Random(seed)
    plan = windows()
    snapshots, progress = SnapshotMaker("id", "a job", plan, lambda: 0), ProgressMaker("id", "run", "a job", plan, 0)
    newest: dict[tuple[int, int], SubtaskReport] = {}
    late = 0
    for second in range(1, 9):
        newest = {(one.vertex, one.subtask): one for one in reported(plan, chance, newest)}
        slots = [SlotFigures([one for one in newest.values() if one.subtask == at]) for at in range(plan.slots)]
        view = JobView(JobStatus.RUNNING, second * SECOND, 2, slots=slots, books=books(chance), due=True)
        snapshots.observe(view)

        shot = snapshots.make(view, subtasks=True)
        report = progress.make(view.slots, view.at, view.books, view.restarts, view.slices)
        metrics = job_metrics(plan, view.reports, view.restarts, view.books)
        ours = report["tailrace"]
        assert shot.job.records_in == metrics["records_in"] == ours["totalInputRows"]
        assert shot.job.records_out == metrics["records_out"] == ours["totalOutputRows"]
        assert shot.job.watermark == metrics["watermark"] == ours["watermark"]
        assert shot.job.inflight_bytes == metrics["inflight_bytes"] == ours["inflightBytes"]
        assert shot.job.restarts == metrics["restarts"] == ours["restarts"]
        assert [one.records for one in shot.sources] == [one["endOffset"]["records"] for one in report["sources"]]
        late += sum(one["numRowsDroppedByWatermark"] for one in report["stateOperators"])
        assert shot.operators[uid_of(plan, "counts")].late == late
        same_checkpoints(shot.checkpoints, metrics["checkpoints"])
        same_checkpoints(shot.checkpoints, ours["checkpoints"])
        assert [
            (
                one.subtask,
                one.records_in,
                one.records_out,
                one.busy_seconds,
                one.state_entries,
                one.watermark,
                one.metrics,
            )
            for one in shot.subtasks or []
        ] == [
            (one["subtask"], one["records_in"], one["records_out"], one["busy_seconds"], one["state_entries"])
            + (one["watermark"], one["custom"])
            for one in metrics["subtasks"]
        ]


def uid_of(plan: Plan, name: str) -> str:
    [found] = [node.uid for node in plan.graph.nodes if node.name == name]
    return found


def same_checkpoints(shown: Any, figures: dict[str, Any]) -> None:
    assert (shown.completed, shown.aborted) == (figures["completed"], figures["aborted"])
    assert shown.failed_in_a_row == figures["failedInARow"]
    assert [(one.id, one.age, one.phase) for one in shown.under_way] == [
        (one["id"], one["ageMs"] / 1000, one["phase"]) for one in figures["underWay"]
    ]
    assert [one.place for one in shown.waits_for] == [one["place"] for one in figures["waitsFor"]]
    last = figures["lastFailure"]
    assert [(one.id, one.reason) for one in shown.failures[-1:]] == ([(last["id"], last["reason"])] if last else [])
