"""What holds a job, in sentences: each cause, with its health."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from tailrace.coordinator.actions import Restarting
from tailrace.coordinator.checkpoint_stats import Books, FailedCheckpoint, Waits
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.coordinator.view.jobview import SlotFigures
from tailrace.coordinator.view.slices import SizeFigures, Slices, SliceStatus
from tailrace.coordinator.view.snapshot_maker import SnapshotMaker
from tailrace.elements.timestamps import MIN_TIME
from tailrace.protocol.deployment import FailureKind, InputTime, SubtaskReport, UnderWay
from tests.coordinator.view.test_snapshot_maker import SECOND, Watched, plan_of, report, scores


def held(shot: JobSnapshot) -> list[tuple[str, str]]:
    """The kind and the health of all that holds a job."""
    return [(one.kind, one.health) for one in shot.findings]


def running(watched: Watched, at: int = 1, **others: Any) -> JobSnapshot:
    watched.see(at, *(report(vertex, subtask, 1) for vertex in (0, 1) for subtask in (0, 1)), **others)
    return watched.shot()


def test_nothing_holds_a_job_that_goes() -> None:
    shot = running(Watched(plan_of(scores)))
    assert (shot.sentence, shot.health, shot.findings) == ("Nothing holds the job.", "good", [])


def test_missing_task_slots_are_named_and_after_a_while_what_to_do() -> None:
    watched = Watched(plan_of(scores))
    slices = Slices((SliceStatus(0, "h", None, 1, 0), SliceStatus(1, None, None, None, 0)))
    watched.see(0, slices=slices, status=JobStatus.STARTING)
    assert (watched.shot().sentence, watched.shot().health) == (
        "The job waits for task slots: 1 of 2 workers are there after 0 s.",
        "good",
    )
    watched.see(70, slices=slices, status=JobStatus.STARTING)
    shot = watched.shot()
    assert shot.sentence == (
        "The job waits for task slots: 1 of 2 workers are there after 70 s; the others still start, or Spark has no free "
        "slot for them: then end other jobs, give Spark more cores, or lower the parallelism."
    )
    assert held(shot) == [("slots", "warns")]


def test_a_function_that_does_not_open_is_named_while_the_job_starts() -> None:
    watched = Watched(plan_of(scores))
    stack = '  File "job.py", line 3, in open\n    connect()\n'
    under_way = UnderWay(0, 45 * SECOND, None, "score", stack)
    watched.see(50, slots=[SlotFigures([], under_way), SlotFigures([])], status=JobStatus.STARTING)
    starts, stalled = watched.shot().findings
    assert (starts.kind, stalled.health) == ("starts", "bad")
    what = "`score`, subtask 0: opening, publishing or closing has not come back for 45 s, at job.py:3: connect()."
    assert (stalled.text, stalled.details) == (what, stack)
    nobody = UnderWay(0, 12 * SECOND)
    watched.see(51, slots=[SlotFigures([], nobody), SlotFigures([])], status=JobStatus.STARTING)
    assert (
        watched.shot()
        .findings[1]
        .text.startswith("Worker 0: opening, publishing or closing has not come back for 12 s")
    )
    assert watched.shot().findings[1].health == "warns", "from 30 s on it holds the job"


def test_a_server_that_is_away_and_a_full_disk_are_told_apart() -> None:
    watched = Watched(plan_of(scores))
    waits = (Waits("the place of sink 'orders'", "ConnectionError: refused", 3, 9 * SECOND),)
    shot = running(watched, books=Books(waits=waits))
    assert held(shot) == [("outage", "bad")]
    assert shot.sentence == "The job waits for the place of sink 'orders' for 9 s: ConnectionError: refused"
    full = "OSError: [Errno 28] No space left on device: '/c/1.state'"
    shot = running(watched, 2, books=Books(waits=(Waits("/c", full, 1, SECOND),)))
    assert (held(shot), shot.sentence) == ([("disk", "bad")], f"The job waits for /c for 1 s: a disk is full: {full}")
    shot = running(watched, 3, books=Books(in_a_row=1, failed=(FailedCheckpoint(1, f"worker 1: {full}", 0),)))
    assert held(shot) == [("disk", "bad")] and "a disk is full: worker 1" in shot.sentence
    watched.maker.note(Restarting(1, Cause(full, FailureKind.STORE)))
    watched.see(4, report(0, 0, 1), status=JobStatus.RESTARTING, restarts=1)
    assert watched.shot().sentence.startswith("The job restarts (restart 1): a disk is full: OSError")


def test_checkpoints_that_fail_warn_at_the_first_and_those_given_up_for_a_lost_worker_do_not_count() -> None:
    watched = Watched(plan_of(scores))
    lost = FailedCheckpoint(2, "worker 0 was lost", 0, failure=False)
    shot = running(watched, books=Books(failed=(lost,), aborted=1))
    assert shot.findings == [] and shot.checkpoints is not None
    assert [(one.reason, one.failure) for one in shot.checkpoints.failures] == [("worker 0 was lost", False)]
    slow = FailedCheckpoint(3, "it took longer than its timeout of 1 s", 0)
    shot = running(watched, 2, books=Books(in_a_row=1, failed=(slow, lost)))
    assert held(shot) == [("checkpoints", "warns")]
    assert shot.sentence == f"1 checkpoint has failed since the last complete one: {slow.reason}"
    assert held(running(watched, 3, books=Books(in_a_row=3, failed=(slow,) * 3))) == [("checkpoints", "bad")]


def test_a_worker_that_is_being_replaced_and_one_that_does_not_report() -> None:
    watched = Watched(plan_of(scores))
    gone = SliceStatus(1, None, None, None, 0, being_replaced=True)
    watched.see(1, report(0, 0, 1), report(1, 0, 1), slices=Slices((gone,)))
    assert held(watched.shot()) == [("replaced", "warns"), ("starts", "warns")]


def test_a_skewed_key_is_named_where_it_was_looked_for() -> None:
    watched = Watched(plan_of(scores))

    def see(at: int) -> None:
        pressed = [report(0, one, 100 * at, source=True, waits_for="no credit") for one in (0, 1)]
        watched.see(at, *pressed, report(1, 0, 10 * at, at * 0.2), report(1, 1, 90 * at, at * 0.95))

    for at in range(1, 8):
        see(at)
    shot = watched.shot()
    assert held(shot)[0] == ("skew", "warns") and shot.findings[0].operator == "score"
    assert shot.sentence.endswith("its subtask 1 has 90% of the records.")
    watched.maker.note_keys({"score": [{"key": "'berlin'", "share": 0.9}, {"key": "'paris'", "share": 0.1}]})
    shot = watched.shot()
    assert shot.sentence.endswith("has 90% of the records; 90% of its time goes to key 'berlin'.")
    assert shot.operators["score"].heaviest_keys is not None and len(shot.operators["score"].heaviest_keys) == 2


def three(env: tr.Environment) -> None:
    stream = env.from_collection([8], uid="numbers")
    for name in ("first", "second"):
        stream = stream.key_by(lambda v: v).process(lambda v, ctx: [v], name=name, uid=name)
    stream.sink_to(tr.sinks.Callback(print), uid="out")


def loop(env: tr.Environment) -> None:
    stream = env.from_collection([8], uid="numbers")
    halved = stream.iterate(lambda s: (s.filter(lambda v: v > 1), s), name="halving", rounds=tr.Rounds(9))
    halved.sink_to(tr.sinks.Callback(print))


def head_report(plan: Any, waiting: float, **others: Any) -> SubtaskReport:
    [head] = [v for v in plan.vertices if plan.graph.node(v.nodes[0]).name == "halving"]
    name = plan.graph.node(head.nodes[0]).name
    metrics = {f"{name}.feedback_records": waiting, f"{name}.feedback_total": 1.0, f"{name}.round": 3.0}
    return SubtaskReport(head.id, 0, metrics=metrics, **others)


def test_a_loop_that_grows_and_not_one_that_is_large() -> None:
    plan = plan_of(loop, 1)
    watched = Watched(plan)
    for at in range(1, 8):
        watched.see(at, head_report(plan, 50_000.0), waves=(5,))
    [one] = watched.shot().loops
    assert (one.growth, one.feedback_waiting, one.round, one.rounds, one.waves) == (0.0, 50_000, 3, 9, 5)
    assert held(watched.shot()) == []
    for at in range(8, 15):
        watched.see(at, head_report(plan, 50_000.0 + 1_000 * at), waves=(5,))
    shot = watched.shot()
    assert held(shot) == [("loop", "warns")]
    assert shot.sentence == "Loop `halving` grows: 64,000 records of feedback wait at its head, 1,000 more each second."


def timed_report(subtask: int, reached: int, *inputs: InputTime, vertex: int = 0) -> SubtaskReport:
    split = {"times.held_by_split": 4.0} if reached == MIN_TIME else {}
    return SubtaskReport(vertex, subtask, 1, watermark=reached, timed=True, metrics=split, inputs=list(inputs))


def timed(env: tr.Environment) -> None:
    stream = env.from_source(tr.sources.Sequence(0, 10), uid="visits", name="visits")
    stream = stream.assign_timestamps(lambda v: v, name="times")
    stream.key_by(lambda v: v).process(lambda v, ctx: [v], name="count").sink_to(tr.sinks.Callback(print))


def test_an_idle_subtask_of_a_source_is_named_with_its_split_if_the_others_go_on() -> None:
    plan = plan_of(timed)
    [edge] = [edge.id for edge in plan.edges]
    watched = Watched(plan)
    for at in range(1, 8):
        ahead, time = timed_report(0, at * 100 * SECOND), InputTime(edge, MIN_TIME, 1)
        watched.see(
            at, ahead, timed_report(1, MIN_TIME), *(timed_report(one, MIN_TIME, time, vertex=1) for one in (0, 1))
        )
    shot = watched.shot()
    assert held(shot) == [("event time", "warns")]
    what = (
        "Event time of `count` waits for its input `times`, subtask 1, split 4, which has had none yet; the others are "
    )
    assert shot.sentence == f"{what}ahead, and `idle_after` lets them go on without it."


def test_a_slower_input_that_moves_holds_nothing() -> None:
    """As when a topic is read from its beginning: its subtasks are days apart, and each goes on."""
    plan = plan_of(timed)
    [edge] = [edge.id for edge in plan.edges]
    watched = Watched(plan)
    for at in range(1, 8):
        slow, fast = at * 1_000 * SECOND, at * 90_000 * SECOND
        readers = (timed_report(one, slow, InputTime(edge, slow, 1), vertex=1) for one in (0, 1))
        watched.see(100_000 + at, timed_report(0, fast), timed_report(1, slow), *readers)
    assert held(watched.shot()) == []
    assert [(one.others_ahead, one.stands) for one in watched.shot().inputs] == [(True, False)]


@pytest.mark.parametrize(("unit", "amount"), [("lag_seconds", "s"), ("lag_records", "records")])
def test_a_source_that_falls_behind_is_named_beside_no_other_cause(unit: str, amount: str) -> None:
    watched = Watched(plan_of(scores))
    for at in range(1, 62, 5):
        lagging = replace_metrics(report(0, 0, at, source=True), {f"source.{unit}": 1_000.0 + at * 10})
        watched.see(at, lagging, report(0, 1, at, source=True), report(1, 0, at), report(1, 1, at))
    shot = watched.shot()
    assert held(shot) == [("behind", "warns")]
    assert f"falls behind: 1,610 {amount} behind, 600 more than a minute ago; no operator is busy" in shot.sentence
    assert shot.lag is not None and (shot.lag.source, shot.lag.grows) == ("numbers", True)
    watched.see(62, replace_metrics(report(0, 0, 62, source=True), {f"source.{unit}": 3.0}), restarts=1)
    assert watched.shot().lag is not None and watched.shot().lag.change is None, "of the attempt before"


def replace_metrics(one: SubtaskReport, metrics: dict[str, float]) -> SubtaskReport:
    from msgspec.structs import replace as changed

    return changed(one, metrics=metrics)


def test_event_time_that_stands_is_named_where_no_source_measures_its_lag() -> None:
    watched = Watched(plan_of(scores))
    for at in range(100, 162, 5):
        watched.see(at, *(timed_report(one, 50 * SECOND, vertex=vertex) for one in (0, 1) for vertex in (0, 1)))
    assert watched.shot().sentence == (
        "Event time stands, or is slower than the clock: 110 s behind the clock, 60 more than a minute ago."
    )


def test_a_job_that_has_failed_has_its_traceback_behind_the_sentence() -> None:
    watched = Watched(plan_of(scores))
    text = 'ValueError: no\n  File "job.py", line 7, in score\n    raise ValueError("no")\n'
    watched.see(1, status=JobStatus.FAILED, cause=Cause(text, FailureKind.USER, "score"))
    [one] = watched.shot().findings
    assert one.text == 'The job has failed: ValueError: no (job.py:7: raise ValueError("no"))'
    assert (one.health, one.details) == ("bad", text)
    ended = replace(watched.view, status=JobStatus.FINISHED, cause=None)
    assert [(one.kind, one.health) for one in watched.maker.make(ended).findings] == [("over", "good")]


def test_what_holds_up_an_end_comes_before_the_word_that_it_ends() -> None:
    watched = Watched(plan_of(scores))
    waits = Books(waits=(Waits("/c", "refused", 3, 9 * SECOND),))
    for status in (JobStatus.STOPPING, JobStatus.FINISHING, JobStatus.CANCELLING):
        shot = running(watched, status=status, books=waits)
        assert held(shot) == [("outage", "bad"), ("ends", "good")]
        assert (
            shot.sentence.startswith("The job waits for /c")
            and shot.findings[-1].text == f"The job is {str(status).lower()}."
        )


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.CANCELLED, JobStatus.FAILED])
def test_a_job_that_is_over_waits_for_nothing_whatever_its_workers_reported_last(status: JobStatus) -> None:
    watched = Watched(plan_of(scores))
    slots = [SlotFigures([], UnderWay(1, 45 * SECOND, None, "score", "")), SlotFigures([])]
    watched.see(1, slots=slots, status=status, books=Books(waits=(Waits("/c", "refused", 3, 9 * SECOND),)))
    assert [one.kind for one in watched.shot().findings] == ["failed" if status is JobStatus.FAILED else "over"]


def test_a_busy_operator_that_waits_for_another_busy_one_is_named_behind_it() -> None:
    watched = Watched(plan_of(three))

    def chain(at: int, vertex: int, rows: tuple[tuple[float, str | None], ...]) -> list[SubtaskReport]:
        return [
            report(vertex, subtask, at, busy * at, waits_for=waits, source=vertex == 0)
            for subtask, (busy, waits) in enumerate(rows)
        ]

    idle, pressed, busy = (0.0, "no input"), (0.0, "no credit"), (0.95, None)
    for at in range(1, 8):
        rows = ((pressed, pressed), (busy, pressed), (busy, idle))
        watched.see(at, *(one for vertex, each in enumerate(rows) for one in chain(at, vertex, each)))
    assert [one.operator for one in watched.shot().findings] == ["second", "first"]


def test_a_change_of_size_is_no_restart_after_an_old_failure() -> None:
    watched = Watched(plan_of(scores))
    watched.maker.note(Restarting(1, Cause("ValueError: no", FailureKind.USER, "score")))  # at 0
    size = SizeFigures(2, 3, "gathering")
    assert held(running(watched, 50, size=size, restarts=1)) == [("resizes", "good")]
    assert watched.shot().sentence.startswith("The job is about to move from 2 to 3 workers")
    watched.see(60, size=replace(size, stage="moving"), status=JobStatus.RESTARTING, restarts=1)
    assert watched.shot().sentence == "The job moves from 2 to 3 workers." and watched.shot().health == "warns"
    failed = SnapshotMaker("id", "scores", watched.plan, lambda: 60 * SECOND)
    failed.observe(watched.view)
    failed.note(Restarting(2, Cause("OSError: gone", FailureKind.USER, "score")))
    assert failed.make(watched.view).sentence.startswith("The job restarts (restart 1): OSError: gone")
