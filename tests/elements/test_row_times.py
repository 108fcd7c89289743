"""Dates and timestamps as rows see them: the short way through numpy gives what Arrow gives."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tailrace.elements.rows import rows_of

# Around both changes of the clock in New York and Berlin, before 1970, and with microseconds.
INSTANTS = [
    datetime(2013, 3, 10, 6, 30, tzinfo=UTC),
    datetime(2013, 3, 10, 7, 30, tzinfo=UTC),
    datetime(2013, 11, 3, 5, 30, tzinfo=UTC),
    datetime(2013, 11, 3, 6, 30, tzinfo=UTC),
    datetime(2013, 10, 27, 0, 30, tzinfo=UTC),
    datetime(2013, 10, 27, 1, 30, tzinfo=UTC),
    datetime(1901, 1, 1, 12, 0, 0, 1, tzinfo=UTC),
    datetime(2200, 7, 1, 12, 0, 0, 999_999, tzinfo=UTC),
]
LATEST = pa.array([253_402_300_799_999_999], pa.int64()).cast(pa.timestamp("us"))


def seen(column: pa.Array) -> list[Any]:
    return [row.x for row in rows_of(pa.record_batch([column], names=["x"]))]


def exact(values: list[Any]) -> list[Any]:
    """What equality of datetimes leaves out: the zone and which side of a changing clock."""
    return [(type(v), v, getattr(v, "tzinfo", None), getattr(v, "fold", None)) for v in values]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Etc/UTC", "America/New_York", "Europe/Berlin", "+01:30"])
def test_timestamps_are_the_datetimes_that_arrow_makes(zone: str | None, unit: str) -> None:
    instants = [t.replace(microsecond=0, tzinfo=t.tzinfo if zone else None) for t in INSTANTS]
    column = pa.array(instants, pa.timestamp(unit, zone))
    assert exact(seen(column)) == exact(column.to_pylist())


def test_microseconds_and_slices_are_kept() -> None:
    column = pa.array(INSTANTS, pa.timestamp("us", "UTC"))
    assert seen(column) == INSTANTS
    assert seen(column.slice(3, 2)) == INSTANTS[3:5]


def test_nulls_in_times_are_none() -> None:
    assert seen(pa.array([INSTANTS[0], None], pa.timestamp("us", "UTC"))) == [INSTANTS[0], None]
    assert seen(pa.array([date(2013, 1, 1), None], pa.date32())) == [date(2013, 1, 1), None]


def test_dates_from_the_first_to_the_last() -> None:
    days = [date.min, date(1969, 12, 31), date(2013, 2, 28), date.max]
    assert exact(seen(pa.array(days, pa.date32()))) == exact(days)


def test_the_ends_of_the_calendar() -> None:
    ends = [datetime.min, datetime.max]
    assert exact(seen(pa.array(ends, pa.timestamp("us")))) == exact(ends)
    assert seen(LATEST) == [datetime.max]
    assert seen(pa.array([datetime.max - timedelta(days=2)], pa.timestamp("us"))) == [datetime.max - timedelta(days=2)]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", "America/New_York")]
)
def test_an_instant_that_no_datetime_can_hold_is_an_error_and_no_number(kind: pa.DataType) -> None:
    with pytest.raises((ValueError, OverflowError)):
        seen(pa.array([2**60], pa.int64()).cast(kind))


def test_a_day_that_no_date_can_hold_is_an_error_and_no_number() -> None:
    with pytest.raises((ValueError, OverflowError)):
        seen(pa.array([3_000_000], pa.int32()).cast(pa.date32()))
