"""What workers have printed, and a job in a notebook."""

import io

import tailrace as tr
from tailrace.coordinator.actions import WorkerPrinted
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.graph.plan import Plan, make_plan
from tailrace.protocol.deployment import PrintedLine, SubtaskReport
from tailrace.runtime.driver.jobhtml import job_html
from tailrace.runtime.driver.printed import show_printed


def plan_of_two() -> Plan:
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, 9), name="numbers <9>")
    numbers.key_by(lambda n: n).count(name="counted").sink_to(tr.sinks.Print())
    return make_plan(env._graph.subgraph(env._graph.sinks()))


def test_lines_are_shown_behind_their_operator_and_subtask() -> None:
    stream, plan = io.StringIO(), plan_of_two()
    name = plan.vertices[1].name
    show_printed(WorkerPrinted(0, [PrintedLine(1, 1, "a"), PrintedLine(99, 0, "b")], 1_200), plan, stream)
    assert stream.getvalue().splitlines() == [
        f"[{name} 1] a",
        "[99 0] b",
        "[worker 0] 1,200 more lines are in its own output",
    ]


def test_a_stream_that_is_closed_shows_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    show_printed(WorkerPrinted(0, [PrintedLine(0, 0, "a")], 0), plan_of_two(), stream)


def test_a_job_in_a_notebook_is_its_plan_with_figures() -> None:
    plan = plan_of_two()
    reports = [SubtaskReport(1, 0, records_in=1_234), SubtaskReport(1, 1, records_in=6)]
    shown = job_html("flights", JobStatus.RUNNING, plan, reports, None)
    assert "<b>flights</b> RUNNING" in shown and "<td>1,240</td>" in shown
    assert "numbers &lt;9&gt;" in shown and "<9>" not in shown
    assert shown.count("<tr>") == 1 + len(plan.vertices)
    assert shown.count("<svg") == 1 and "a dataflow" in shown.lower()
    progress = {
        "inputRowsPerSecond": 5.0,
        "tailrace": {"totalInputRows": 10, "totalOutputRows": 7, "busyShare": 0.5, "watermark": None},
    }
    assert "in 10 | out 7 | 5/s | busy 50%" in job_html("flights", JobStatus.RUNNING, plan, reports, progress)
