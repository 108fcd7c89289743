"""A job in a notebook."""

from __future__ import annotations

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.jobview import JobView, SlotFigures
from tailrace.coordinator.view.snapshot_maker import SnapshotMaker
from tailrace.protocol.deployment import OperatorReport, SubtaskReport
from tailrace.runtime.driver.jobhtml import job_html
from tests.runtime.driver.test_joblog import plan_of_two


def test_a_job_in_a_notebook_is_what_holds_it_its_graph_and_its_operators_with_figures() -> None:
    plan = plan_of_two()
    maker = SnapshotMaker("id", "flights <1>", plan, lambda: 0)
    node = plan.vertices[1].nodes[0]
    slots = [
        SlotFigures([SubtaskReport(1, at, records_in=count, operators=[OperatorReport(node, count, count)])])
        for at, count in enumerate((1_234, 6))
    ]
    shown = job_html(maker.make(JobView(JobStatus.RUNNING, slots=slots)), plan, "http://127.0.0.1:4140/#job=id")
    assert "<b>flights &lt;1&gt;</b>" in shown and "RUNNING for 0.0 s | in 0" in shown and "<td>1,240</td>" in shown
    assert "<p>Nothing holds the job.</p>" in shown and '<a href="http://127.0.0.1:4140/#job=id"' in shown
    assert "numbers &lt;9&gt;" in shown and "<9>" not in shown
    assert shown.count("<tr>") == 1 + len(plan.graph.nodes)
    assert shown.count("<svg") == 1 and "a dataflow" in shown.lower()
