"""A job in a notebook: its progress, a picture of its graph, and its plan with figures, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.progress import operator_figures
from tailrace.graph.picture import JobGraph
from tailrace.graph.plan import Plan
from tailrace.passwords import hide_passwords
from tailrace.protocol.deployment import SubtaskReport
from tailrace.runtime.driver.progressline import line_of

COLUMNS = (
    ("in", "records_in"), ("out", "records_out"), ("busy s", "busy_seconds"), ("waiting bytes", "waiting_bytes"),
    ("state entries", "state_entries"),
)  # fmt: skip
"""Heading of a column -> the figure of an operator."""
DRAWN = 150
"""The most operators that are drawn: a larger picture says little."""


def job_html(
    name: str,
    status: JobStatus,
    plan: Plan,
    reports: Sequence[SubtaskReport],
    progress: dict[str, Any] | None,
    link: str | None = None,
) -> str:
    """The HTML of a job. `progress` is its newest report, `link` the address of its page."""
    shown = [str(status)]
    if progress is not None:
        figures = progress["tailrace"]
        shown = line_of(str(status), figures, progress["inputRowsPerSecond"], figures["busyShare"])
    page = "" if link is None else f' <a href="{escape(link)}" target="_blank">page</a>'
    heads = "".join(
        f"<th>{escape(head)}</th>" for head in ("operator", "from", "tasks", *(head for head, _ in COLUMNS))
    )
    picture = JobGraph(plan).svg() if len(plan.graph.nodes) <= DRAWN else ""
    return (
        f"<div><b>{_safe(name)}</b>{page} {_safe(' | '.join(shown))}{picture}<table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(_rows(plan, reports))}</tbody></table></div>"
    )


def _rows(plan: Plan, reports: Sequence[SubtaskReport]) -> list[str]:
    """A row for each vertex of the plan: its inputs and its figures."""
    names = {vertex.id: vertex.name for vertex in plan.vertices}
    found = []
    for vertex, one in zip(plan.vertices, operator_figures(plan, reports), strict=True):
        before = ", ".join(dict.fromkeys(names[edge.source] for edge in plan.edges if edge.target == vertex.id))
        cells = [_safe(vertex.name), _safe(before), str(vertex.parallelism)]
        cells += [
            f"{one[figure]:,.1f}" if isinstance(one[figure], float) else f"{one[figure]:,}" for _, figure in COLUMNS
        ]
        found.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return found


def _safe(text: str) -> str:
    return escape(hide_passwords(text))
