"""A job in a line of text, by its snapshot, and durations for people."""

from __future__ import annotations

from tailrace.coordinator.view.job_snapshot import JobSnapshot, Share

UNKNOWN = "-"
"""The text for a figure that is not known."""


def summary_of(shot: JobSnapshot) -> str:
    """The status of a job, and what goes in and out."""
    job = shot.job
    parts = [f"{job.status} for {span_text(max(0.0, shot.at - job.since))}"]
    if job.restarts:
        parts.append(f"restarts {job.restarts}")
    if job.records_in is None:
        return " | ".join([*parts, "no worker has reported yet"])
    parts += [
        f"in {job.records_in:,} at {_rate_text(job.rate_in)}",
        f"out {figure_text(job.records_out)} at {_rate_text(job.rate_out)}",
        f"busy {share_text(job.busy)}",
    ]
    return " | ".join([*parts, *([] if job.watermark is None else [f"watermark {job.watermark}"])])


def _rate_text(rate: float | None) -> str:
    return f"{UNKNOWN if rate is None else format(rate, ',.0f')}/s"


def span_text(seconds: float) -> str:
    """A duration for people: 9.8 s, 3 min 12 s, 2 h 5 min, 3 d 4 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def share_text(share: Share | None) -> str:
    """The share of the subtask with most of it."""
    return UNKNOWN if share is None else f"{share.worst:.0%}"


def figure_text(figure: float | None) -> str:
    """A count, or a figure with one decimal."""
    if figure is None:
        return UNKNOWN
    return f"{figure:,.1f}" if isinstance(figure, float) else f"{figure:,}"
