"""Event-time windows. Their sizes are seconds, a `timedelta` or a text (`"5 minutes"`). A window is [start, end); a session
ends a gap behind its last record. Windows of so many records do not depend on time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tailrace.api.checks.arguments import check_selector
from tailrace.api.functions import Span
from tailrace.elements.calendars import CalendarWindows, Unit
from tailrace.elements.durations import span_micros
from tailrace.elements.timestamps import MAX_TIME
from tailrace.errors import GraphError
from tailrace.graph.operators import FiringInterval, SessionSpec, Triggers, WindowSpec
from tailrace.spelling import suggest_arguments

LARGEST = MAX_TIME // 4
"""Largest size of a window (int64 microseconds): the ends of windows around a record of today are valid timestamps."""


@suggest_arguments
def Tumbling(size: Span, *, offset: Span = 0, zone: str | None = None) -> WindowSpec:
    """Windows of one size, one after the other, shifted by `offset`. Both are seconds, a `timedelta` or a text
    (`"5 minutes"`). With a `zone` (`"Europe/Berlin"`), they are days, weeks or months of its calendar: `"1 day"`,
    `"2 weeks"`, `"1 month"`. They begin at midnight there, weeks on Mondays, and a day may have 23 or 25 hours. Raises
    `GraphError` for a size that is not positive or too large, for an unknown zone, and for another size or an offset with a
    zone."""
    return _spec("Tumbling", size, size, offset) if zone is None else _calendar(size, offset, zone)


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


@dataclass(frozen=True)
class CountSpec:
    """Windows of `size` records (None: of all). `timeout` is int microseconds."""

    size: int | None
    timeout: int | None
    partial_at_end: bool


@suggest_arguments
def CountWindow(size: int, *, timeout: Span | None = None, partial_at_end: bool = True) -> CountSpec:
    """Windows of `size` records of a key, one after the other. With a `timeout` (seconds, a `timedelta` or a text), a window
    is over that long after its first record at the latest, by the clock of the machine. What is left of each key at the end
    of the input is a window as well, unless `partial_at_end` is false. Raises `GraphError` for a size that is no whole
    number above zero, and for a timeout that is not positive."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise GraphError(f"CountWindow: the size is a number of records, at least 1, not {size!r}")
    if not isinstance(partial_at_end, bool):
        raise GraphError(f"CountWindow: partial_at_end is true or false, not {partial_at_end!r}")
    if timeout is None:
        return CountSpec(size, None, partial_at_end)
    try:
        span = span_micros(timeout)
    except (TypeError, OverflowError) as error:
        raise GraphError(f"CountWindow: timeout: {error}") from None
    if span <= 0:
        raise GraphError(f"CountWindow: the timeout must be above zero, not {timeout!r}")
    return CountSpec(size, span, partial_at_end)


def Global() -> CountSpec:
    """One window for each key, of all its records. It is over when the input ends."""
    return CountSpec(None, None, True)


@suggest_arguments
def Every(*, records: int | None = None, seconds: Span | None = None) -> FiringInterval:
    """Interval between early or late results of a window: after so many `records` of the window that no result has had, or
    that many `seconds` (or a `timedelta`, or a text) after the first of them, by the clock of the machine. With both,
    whichever comes first. Raises `GraphError` without either, and for what is not above zero."""
    if records is None and seconds is None:
        raise GraphError("Every: give records=..., seconds=..., or both")
    if records is not None and (not isinstance(records, int) or isinstance(records, bool) or records < 1):
        raise GraphError(f"Every: records is a number of records, at least 1, not {records!r}")
    if seconds is None:
        return FiringInterval(records, None)
    try:
        span = span_micros(seconds)
    except (TypeError, OverflowError) as error:
        raise GraphError(f"Every: seconds: {error}") from None
    if not 0 < span <= LARGEST:
        raise GraphError(f"Every: seconds must be above zero and not larger than timestamps are, not {seconds!r}")
    return FiringInterval(records, span)


def check_triggers(windows: Any, early: Any, late: Any, discarding: Any, lateness: int, level: int) -> Triggers | None:
    """The firings beside the final one, checked for these windows; None if none are given. Raises `GraphError`."""
    if not isinstance(discarding, bool):
        raise GraphError(f"window: discarding is true or false, not {discarding!r}")
    for name, one in (("early", early), ("late", late)):
        if one is not None and not isinstance(one, FiringInterval):
            raise GraphError(f"window: {name} is tr.Every(records=...) or tr.Every(seconds=...), not {one!r}")
    if early is None and late is None:
        if discarding:
            raise GraphError(
                "window: discarding says what the results beside the final one have; give early=tr.Every(...) or "
                "late=tr.Every(...)"
            )
        return None
    if isinstance(windows, SessionSpec):
        raise GraphError(
            "window: early and late do not go with tr.Session: a later record may join two sessions of which early results "
            "are out, and none of them would be one of the final ones; use tr.Tumbling, or timers with process(...)"
        )
    if isinstance(windows, CountSpec) and late is not None:
        raise GraphError("window: late is for windows of event time; a window of so many records has none late")
    if late is not None and not lateness:
        raise GraphError(
            "window: late says when a window fires for late records, and without allowed_lateness it takes none; give "
            "allowed_lateness=..."
        )
    if level:
        raise GraphError(
            "window: early and late have no meaning in a loop, where a window has several results anyway: a record whose "
            "window is over opens it anew; put the windows in front of the loop, or behind it"
        )
    return Triggers(early, late, discarding)


def check_bounds(windows: Any, bounds: Any) -> str | None:
    """The time zone in which results have the bounds of windows as datetimes; None for seconds. Raises `GraphError`."""
    if bounds not in ("seconds", "datetime"):
        raise GraphError(f"window: bounds are 'seconds' or 'datetime', not {bounds!r}")
    if bounds == "seconds":
        return None
    if isinstance(windows, CountSpec):
        raise GraphError(
            "window: bounds is for windows of event time; a window of so many records has no start and end"
        )
    calendar = windows.calendar if isinstance(windows, WindowSpec) else None
    return "UTC" if calendar is None else calendar.zone


_UNITS: dict[str, tuple[Unit, int]] = {"day": ("day", 1), "week": ("day", 7), "month": ("month", 1)}
_MOST = 1_200
"""Largest number of days, weeks or months of a window."""


def _calendar(size: Span, offset: Span, zone: str) -> WindowSpec:
    found = re.fullmatch(r"\s*([1-9][0-9]*)\s*(day|week|month)s?\s*", size) if isinstance(size, str) else None
    if isinstance(size, timedelta) and size > timedelta(0) and not size % timedelta(1):
        found = re.fullmatch(r"([0-9]+) (day)", f"{size.days} day")
    if found is None or int(found[1]) > _MOST:
        raise GraphError(
            f"Tumbling: with a zone the size is whole days, weeks or months, such as '1 day' or '1 month', not {size!r}"
        )
    if offset:
        raise GraphError("Tumbling: windows with a zone begin at midnight there; leave offset out")
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise GraphError(f"Tumbling: there is no time zone {zone!r}; give a name such as 'Europe/Berlin'") from error
    unit, times = _UNITS[found[2]]
    count = int(found[1]) * times
    longest = (count * (31 if unit == "month" else 1) + 2) * 86_400_000_000
    return WindowSpec(longest, longest, 0, CalendarWindows(unit, count, zone))


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
