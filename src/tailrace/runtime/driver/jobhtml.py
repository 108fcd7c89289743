"""A job in a notebook: what holds it, a picture of its graph, and its operators with figures, as HTML."""

from __future__ import annotations

from html import escape

from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.coordinator.view.summary import figure_text, share_text, summary_of
from tailrace.graph.picture import JobGraph
from tailrace.graph.plan import Plan
from tailrace.passwords import hide_passwords

COLUMNS = ("operator", "tasks", "in", "out", "busy", "waiting bytes", "state entries")
DRAWN = 150
"""The most operators that are drawn: a larger picture says little."""


def job_html(shot: JobSnapshot, plan: Plan, link: str | None = None) -> str:
    """The HTML of a job, by its snapshot. `link` is the address of its page."""
    page = "" if link is None else f' <a href="{escape(link)}" target="_blank">page</a>'
    heads = "".join(f"<th>{escape(head)}</th>" for head in COLUMNS)
    picture = JobGraph(plan).svg() if len(plan.graph.nodes) <= DRAWN else ""
    return (
        f"<div><b>{_safe(shot.job.name)}</b>{page} {_safe(summary_of(shot))}<p>{_safe(shot.sentence)}</p>{picture}"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(_rows(shot))}</tbody></table></div>"
    )


def _rows(shot: JobSnapshot) -> list[str]:
    """A row for each operator."""
    found = []
    for operator in shot.graph.operators:
        one = shot.operators[operator.uid]
        figures = [one.records_in, one.records_out, one.waiting_bytes, one.state_entries]
        records_in, records_out, waiting, entries = map(figure_text, figures)
        cells = [
            operator.name,
            str(operator.parallelism),
            records_in,
            records_out,
            share_text(one.busy),
            waiting,
            entries,
        ]
        found.append(f"<tr>{''.join(f'<td>{_safe(cell)}</td>' for cell in cells)}</tr>")
    return found


def _safe(text: str) -> str:
    return escape(hide_passwords(text))
