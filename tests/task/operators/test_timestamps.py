"""Timestamps as users give them: the same instants from rows and from columns."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.elements.rows import rows_of
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME, NO_TIME, isoformat, micros
from tailrace.task.operators.timestamps import arrow_times, times_of

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5 * SECOND),
        (-5, -5 * SECOND),
        (True, SECOND),
        (0.5, SECOND // 2),
        (1e-7, 0),
        (-0.0, 0),
        (np.int64(7), 7 * SECOND),
        (np.float32(0.25), SECOND // 4),
        (Decimal("1.000001"), SECOND + 1),
        (timedelta(milliseconds=1), 1000),
        (timedelta(days=-1), -86_400 * SECOND),
        (datetime(1970, 1, 1, 0, 0, 1), SECOND),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (date(1970, 1, 2), 86_400 * SECOND),
        (date(1969, 12, 31), -86_400 * SECOND),
        (MAX_TIME / 1e6 * 0.999, round(MAX_TIME / 1e6 * 0.999 * 1e6)),
    ],
)
def test_seconds_datetimes_and_dates_are_microseconds(value: Any, expected: int) -> None:
    assert micros(value) == expected
    assert times_of([value, value]).tolist() == [expected, expected]


@pytest.mark.parametrize("value", ["5", b"5", "2020-01-01", [1], object(), 1j])
def test_what_is_no_time_is_reported(value: Any) -> None:
    with pytest.raises(TypeError, match=r"a time must be a number of seconds, a timedelta or a datetime, not"):
        micros(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1 << 60, 1e300])
def test_what_lies_beyond_all_time_is_reported(value: Any) -> None:
    with pytest.raises(OverflowError):
        micros(value)
    with pytest.raises(OverflowError):
        times_of([value])


def test_none_is_no_time_among_any_others() -> None:
    assert times_of([None, 1, 2.5, datetime(1970, 1, 1, 0, 0, 3)]).tolist() == [NO_TIME, SECOND, 2_500_000, 3 * SECOND]
    assert times_of([]).tolist() == []


MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**40), 2**40)),
    (pa.int8(), st.integers(-100, 100)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.float64(), st.floats(-1e10, 1e10)),
    (pa.float32(), st.floats(-1e6, 1e6, width=32)),
    (pa.decimal128(20, 6), st.decimals(-1_000_000, 1_000_000, places=6)),
    (pa.date32(), st.dates(date(1900, 1, 1), date(2200, 1, 1))),
    (pa.date64(), st.dates(date(1900, 1, 1), date(2200, 1, 1))),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("us", "Europe/Berlin"), MOMENTS.map(lambda t: t.replace(tzinfo=UTC))),
    (pa.timestamp("s"), MOMENTS.map(lambda t: t.replace(microsecond=0))),
    (pa.timestamp("ns"), MOMENTS),
    (pa.duration("ms"), st.integers(-(10**9), 10**9).map(lambda n: timedelta(milliseconds=n))),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda x: str(x) if isinstance(x, pa.DataType) else "")
@given(data=st.data())
def test_a_column_has_the_times_that_its_rows_have(kind: pa.DataType, values: Any, data: st.DataObject) -> None:
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=8)), kind)
    rows = [row.at for row in rows_of(pa.record_batch([column], names=["at"]))]
    assert arrow_times(column).tolist() == times_of(rows).tolist()


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.binary(), pa.list_(pa.int64())])
def test_a_column_of_another_kind_is_reported(kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match="holds no timestamps; use a timestamp, a date or a number of seconds"):
        arrow_times(pa.array([None], kind))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**50], pa.int64()),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([float("nan")]),
        pa.array([1.0, float("-inf"), None]),
        pa.array([1e300]),
        pa.array([2**62], pa.int64()).cast(pa.timestamp("s")),
    ],
    ids=str,
)
def test_a_column_with_a_time_beyond_all_time_is_reported(column: pa.Array) -> None:
    with pytest.raises((OverflowError, pa.ArrowInvalid)):
        arrow_times(column)


def test_times_are_shown_as_spark_shows_them() -> None:
    assert isoformat(0) == "1970-01-01T00:00:00.000Z"
    assert isoformat(1_500_000) == "1970-01-01T00:00:01.500Z"
    assert isoformat(MIN_TIME) == "-inf"
    assert isoformat(MAX_TIME) == "end"
    assert isoformat(10**18) == "1000000000000.0 s"


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("kind", [int, float])
def test_a_number_that_can_only_be_milliseconds_is_refused(form: str, kind: Any) -> None:
    """Taken as seconds it lay in the year 55840: all windows of the day were one, without an error."""
    env = tr.Environment(parallelism=1)
    rows = env.from_collection([("a", kind(1_700_000_000)), ("b", kind(1_700_000_000_000))])
    if form == "columns":
        schema = "k string, at long" if kind is int else "k string, at double"
        rows.to_columns(schema).assign_timestamps("at", name="times").sink_to(tr.sinks.Collect())
    else:
        rows.assign_timestamps(lambda r: r[1], name="times").sink_to(tr.sinks.Collect())
    with pytest.raises(
        tr.JobFailed, match=r"operator 'times'.*1,700,000,000,000 seconds .* divide milliseconds by 1,000"
    ):
        tr.testing.run(env)
