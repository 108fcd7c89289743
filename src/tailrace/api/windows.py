"""Event-time windows. Their sizes are seconds, a `timedelta` or a text (`"5 minutes"`). A window is [start, end); a session
ends a gap behind its last record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace.api.checks import check_selector
from tailrace.api.functions import Span
from tailrace.api.hints import suggest_arguments
from tailrace.elements.durations import span_micros
from tailrace.elements.timestamps import MAX_TIME
from tailrace.errors import GraphError
from tailrace.graph.operators import Selector

LARGEST = MAX_TIME // 4
"""Largest size of a window (int64 microseconds): the ends of windows around a record of today are valid timestamps."""


@dataclass(frozen=True)
class WindowSpec:
    """Windows of `size` that start every `slide`, shifted by `offset` (int64 microseconds)."""

    size: int
    slide: int
    offset: int


@dataclass(frozen=True)
class SessionSpec:
    """Sessions with one gap (int64 microseconds), or with a gap for each record, which `gap_of` finds."""

    gap: int | None
    gap_of: Selector | None


@suggest_arguments
def Tumbling(size: Span, *, offset: Span = 0) -> WindowSpec:
    """Windows of one size, one after the other, shifted by `offset`. Both are seconds, a `timedelta` or a text
    (`"5 minutes"`). Raises `GraphError` for a size that is not positive or too large."""
    return _spec("Tumbling", size, size, offset)


@suggest_arguments
def Sliding(size: Span, slide: Span, *, offset: Span = 0) -> WindowSpec:
    """Windows of one size that start every `slide`, shifted by `offset`. All are seconds, a `timedelta` or a text
    (`"5 minutes"`). Raises `GraphError` for a size or slide that is not positive, a size that is too large, and a slide
    above the size."""
    return _spec("Sliding", size, slide, offset)


@suggest_arguments
def Session(gap: Span | Callable[[Any], Span]) -> SessionSpec:
    """Sessions: records of a key between which event time has no gap of more than `gap`. It is seconds, a `timedelta` or a
    text that begins with a number (`"30 minutes"`). Any other text is the name of a column, and a function takes the record:
    they give each record a gap of its own. Raises `GraphError` for a gap that is not positive or too large."""
    if callable(gap) or (isinstance(gap, str) and not gap.lstrip()[:1].isdigit() and gap.lstrip()[:1] != "."):
        return SessionSpec(None, check_selector(gap, None, "Session"))
    try:
        span = span_micros(gap)
    except (TypeError, OverflowError) as error:
        raise GraphError(f"Session: {error}; or the name of a column, or a function of the record") from None
    if not 0 < span <= LARGEST:
        raise GraphError(f"Session: the gap must be above zero and not larger than timestamps are, not {gap!r}")
    return SessionSpec(span, None)


def _spec(who: str, size: Span, slide: Span, offset: Span) -> WindowSpec:
    try:
        spec = WindowSpec(span_micros(size), span_micros(slide), span_micros(offset))
    except (TypeError, OverflowError) as error:
        raise GraphError(f"{who}: {error}") from None
    if spec.size <= 0 or spec.slide <= 0:
        raise GraphError(f"{who}: size and slide must be above zero, not {size!r} and {slide!r}")
    if spec.size > LARGEST:
        raise GraphError(
            f"{who}: a size of {size!r} is too large: its ends would lie outside the range of timestamps; numbers are "
            f"seconds"
        )
    if spec.slide > spec.size:
        raise GraphError(
            f"{who}: a slide of {slide!r} is above the size of {size!r}, which would leave records in no window"
        )
    return spec
