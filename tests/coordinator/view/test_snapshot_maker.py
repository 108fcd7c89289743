"""Snapshots of jobs: what is counted, and the sentence on what holds a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tailrace as tr
from tailrace.coordinator.actions import Replacing, Restarting
from tailrace.coordinator.checkpoint_stats import Books, FailedCheckpoint, Waits
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.coordinator.view.jobview import JobView, SlotFigures
from tailrace.coordinator.view.snapshot_maker import SnapshotMaker
from tailrace.elements.timestamps import MIN_TIME
from tailrace.graph.plan import Plan
from tailrace.protocol.deployment import FailureKind, InputTime, OperatorReport, SubtaskReport, UnderWay

SECOND = 1_000_000


def plan_of(build: Any, parallelism: int = 2) -> Plan:
    env = tr.Environment(parallelism=parallelism)
    build(env)
    return env._plan(env._pending())


def scores(env: tr.Environment) -> None:
    stream = env.from_source(tr.sources.Sequence(0, 10), uid="numbers").map(abs, uid="parse")
    scored = stream.key_by(lambda v: v).process(lambda v, ctx: [v], uid="score", name="score")
    scored.sink_to(tr.sinks.Callback(print), uid="out")


class Watched:
    """A job of two vertices, whose workers have reported what a test says."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.maker = SnapshotMaker("id", "scores", plan, lambda: 0)
        self.view = JobView(JobStatus.RUNNING)

    def see(self, at: int, *reports: SubtaskReport, **others: Any) -> None:
        """A view of the job so many seconds after its start."""
        slots = {one.subtask: [two for two in reports if two.subtask == one.subtask] for one in reports}
        figures = tuple(SlotFigures(slots.get(at, [])) for at in range(self.plan.slots))
        self.view = JobView(JobStatus.RUNNING, at * SECOND, slots=figures, due=True)
        self.view = replace(self.view, **others)
        self.maker.observe(self.view)

    def shot(self, **options: Any) -> JobSnapshot:
        return self.maker.make(self.view, **options)


def report(vertex: int, subtask: int, records: int, busy: float = 0.0, **others: Any) -> SubtaskReport:
    """The report of a subtask in the dataflow of `scores`: the first operators of its vertices are nodes 0 and 2."""
    others.setdefault("operators", [OperatorReport(2 * vertex, records, records)])
    return SubtaskReport(
        vertex,
        subtask,
        records_in=records,
        records_out=records,
        busy_micros=int(busy * SECOND),
        watermark=MIN_TIME,
        **others,
    )


def test_before_the_first_report_figures_are_none_and_not_zero() -> None:
    watched = Watched(plan_of(scores))
    watched.see(1, status=JobStatus.STARTING)
    shot = watched.shot()
    assert shot.job.records_in is shot.job.rate_in is shot.job.busy is None
    assert shot.operators["score"].records_in is None
    assert shot.sentence == "The job waits for its workers: 0 of 2 have reported."


def test_rates_and_shares_are_over_the_last_seconds_and_name_the_worst_subtask() -> None:
    watched = Watched(plan_of(scores))
    for at in range(1, 12):
        watched.see(
            at,
            report(0, 0, 100 * at, source=True, waits_for="no credit"),
            report(0, 1, 100 * at, source=True, waits_for="no credit"),
            report(1, 0, 10 * at, at * 0.2, waits_for="no input"),
            report(1, 1, 90 * at, at * 0.95),
        )
    shot = watched.shot(subtasks=True)
    assert shot.job.rate_in == 200.0
    score = shot.operators["score"]
    assert score.rate_in == 100.0
    assert score.busy is not None and score.skew is not None and score.waiting is not None
    assert (round(score.busy.worst, 2), round(score.busy.least, 2), score.busy.subtask) == (0.95, 0.2, 1)
    assert round(score.waiting.worst, 2) == 0.8
    assert (score.skew.subtask, score.skew.share) == (1, 0.9)
    parse = shot.operators["parse"]
    assert parse.backpressured is not None and parse.backpressured.least == 1.0
    assert shot.sentence == (
        "`score → sink: callback` is busy (95%): the operators before it wait; its subtask 1 has 90% of the records."
    )
    assert shot.subtasks is not None and [one.subtask for one in shot.subtasks] == [0, 0, 1, 1]


def test_a_restart_begins_rates_anew() -> None:
    watched = Watched(plan_of(scores))
    watched.see(1, report(0, 0, 1000, source=True))
    watched.see(2, report(0, 0, 2000, source=True))
    assert watched.shot().job.rate_in == 1000.0
    watched.see(3, report(0, 0, 5, source=True), restarts=1)
    assert watched.shot().job.rate_in is None, "a rate below zero"
    watched.see(4, report(0, 0, 15, source=True), restarts=1)
    assert watched.shot().job.rate_in == 10.0


def test_failures_name_the_operator_and_the_line_and_what_followed() -> None:
    watched = Watched(plan_of(scores))
    text = 'ValueError: no\nTraceback (most recent call last):\n  File "job.py", line 7, in score\n'
    text += '    raise ValueError("no")\nValueError: no'
    watched.maker.note(Restarting(1, Cause(text, FailureKind.USER, "score", 1, "42"), "advice"))
    watched.maker.note(Replacing(0, Cause("worker 0 was lost", FailureKind.WORKER, slot=0)))
    watched.see(1, report(0, 0, 1, source=True), status=JobStatus.RESTARTING, restarts=1)
    first, second = watched.shot().failures
    assert (first.operator, first.line, first.restart) == ("score", 'job.py:7: raise ValueError("no")', 1)
    assert (first.text, first.advice, first.record) == ("ValueError: no", "advice", "42")
    assert (second.worker, second.restart, second.operator) == (0, None, None)


def test_the_sentence_names_what_the_job_waits_for_first() -> None:
    watched = Watched(plan_of(scores))
    stack = '  File "job.py", line 7, in score\n    time.sleep(100)\n'
    reports = [report(1, one, 1, under_way_micros=30 * SECOND) for one in (0, 1)]
    hung = [SlotFigures([one], UnderWay(0, 30 * SECOND, 1, "score", stack)) for one in reports]
    watched.see(1, slots=hung)
    shot = watched.shot()
    assert shot.sentence == "`score`, subtask 0: a step has not come back for 30 s, at job.py:7: time.sleep(100)."
    assert (shot.health, shot.findings[0].details, len(shot.stalled)) == ("bad", stack, 2)
    failed = (FailedCheckpoint(3, "it took longer than its timeout of 1 s", 0),)
    waits = (Waits("hdfs://a", "refused", 2, 9 * SECOND),)
    watched.see(1, slots=hung, books=Books(in_a_row=1, failed=failed, waits=waits))
    assert watched.shot().sentence == "The job waits for hdfs://a for 9 s: refused"
    watched.see(2, report(0, 0, 1), report(0, 1, 1), books=Books(in_a_row=1, failed=failed))
    assert watched.shot().sentence.endswith("since the last complete one: it took longer than its timeout of 1 s")


def test_the_sentence_names_the_input_that_holds_event_time() -> None:
    def two(env: tr.Environment) -> None:
        left = env.from_collection([1], uid="left", name="left").rebalance()
        right = env.from_collection([1], uid="right", name="right").rebalance()
        joined = left.key_by(lambda v: v).connect(right.key_by(lambda v: v)).process(_Both(), uid="both", name="both")
        joined.sink_to(tr.sinks.Callback(print), uid="out")

    plan = plan_of(two, 1)
    target = next(v.id for v in plan.vertices if plan.graph.node(v.nodes[0]).uid == "both")
    edges = [edge.id for edge in plan.edges if edge.target == target]
    watched = Watched(plan)
    watched.see(
        1, report(target, 0, 1, inputs=[InputTime(edges[0], 500 * SECOND, 0), InputTime(edges[1], MIN_TIME, 0)])
    )
    assert watched.shot().sentence == (
        "Event time of `both` waits for its input `right`, subtask 0, which has had none yet; "
        "`idle_after` lets the others go on without it."
    )
    inputs = [InputTime(edges[0], 500 * SECOND, 0), InputTime(edges[1], 100 * SECOND, 0)]
    watched.see(600, report(target, 0, 1, inputs=inputs))
    assert watched.shot().sentence == "Nothing holds the job.", "it has moved"
    for at in range(601, 607):
        watched.see(at, report(target, 0, 1, inputs=inputs))
    held = (
        "Event time of `both` is held back by its input `right`, subtask 0: it stands at 1970-01-01T00:01:40.000Z, "
        "6 min 40 s behind the next one; `idle_after` lets the others go on without it."
    )
    assert watched.shot().sentence == held
    assert [(one.source, one.lag, one.holds) for one in watched.shot().inputs] == [
        ("left", 106.0, False),
        ("right", 506.0, True),
    ]


class _Both(tr.CoProcessFunction):
    def process1(self, value: Any, ctx: Any) -> Any:
        return [value]

    def process2(self, value: Any, ctx: Any) -> Any:
        return [value]


def test_a_loop_is_a_box_with_a_feedback_edge() -> None:
    def loop(env: tr.Environment) -> None:
        stream = env.from_collection([8], uid="numbers")
        body = lambda s: (s.filter(lambda v: v > 1, uid="more"), s.filter(lambda v: v <= 1))  # noqa: E731
        stream.iterate(body, name="halving").sink_to(tr.sinks.Callback(print), uid="out")

    shot = Watched(plan_of(loop)).shot()
    [scope] = shot.graph.scopes
    assert (scope.id, scope.parent, scope.loop) == ("0", "", "halving")
    kinds = {one.uid: one.kind for one in shot.graph.operators if one.scope == scope.id}
    [back] = [one for one in shot.graph.edges if one.feedback]
    assert (kinds[back.source], kinds[back.target]) == ("tail", "head")


def test_operators_inside_a_chain_and_at_both_ends_have_counts_of_their_own() -> None:
    """One side output goes to two operators, and counts once."""

    def sort(value: int, ctx: Any) -> Any:
        if value % 10 == 0:
            ctx.emit("tens", value)
        else:
            yield value

    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, 100), uid="numbers")
    doubled = numbers.map(lambda v: v, uid="same").map(lambda v: v, uid="again")
    sorted_out = doubled.process(sort, uid="sort")
    sorted_out.filter(lambda v: v < 50, uid="small").sink_to(tr.sinks.Callback(abs), uid="out")
    tens = sorted_out.side_output("tens")
    tens.sink_to(tr.sinks.Callback(abs), uid="tens")
    tens.key_by(lambda v: v).process(lambda v, ctx: [v, v], uid="twice").sink_to(tr.sinks.Callback(abs), uid="keyed")
    job = tr.testing.run(env)
    maker = SnapshotMaker("id", "counts", job.simulation.plan, lambda: 0)
    figures = maker.make(JobView(JobStatus.RUNNING, slots=[SlotFigures(job.simulation.reports)])).operators
    counts = {uid: (one.records_in, one.records_out) for uid, one in figures.items()}
    assert counts == {
        "numbers": (100, 100),
        "same": (100, 100),
        "again": (100, 100),
        "sort": (100, 100),
        "small": (90, 45),
        "out": (45, 45),
        "tens": (10, 10),
        "twice": (10, 20),
        "keyed": (20, 20),
    }
