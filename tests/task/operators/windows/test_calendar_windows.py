"""Windows of the calendar of a time zone: days, weeks and months, also where a day has 23 or 25 hours."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.elements.calendars import Calendar, CalendarWindows
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME, micros
from tailrace.errors import GraphError

BERLIN = ZoneInfo("Europe/Berlin")
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.float64()), ("x", pa.int64())])


def local(*when: int, zone: ZoneInfo = BERLIN) -> float:
    return datetime(*when, tzinfo=zone).timestamp()  # type: ignore[arg-type, misc]


def ran(
    times: list[float], windows: Any, form: str, rate: float | None = None, **options: Any
) -> tuple[list[Any], list[Any]]:
    """Results as (start, end, number) and the times of late records."""
    env = tr.Environment(parallelism=2)
    rows = [("a", time, 1) for time in times]
    source = tr.sources.Generator(lambda i: rows[i], rate=rate, count=len(rows))
    stream = env.from_source(source, parallelism=1).to_columns(SCHEMA)
    stream = (stream if form == "columns" else stream.to_rows()).assign_timestamps("at")
    counted = stream.key_by("k").window(windows, **options).aggregate(n=tr.Count(), total=tr.Sum("x"))
    out = counted.map(lambda r: tuple(r)[1:4]).sink_to(tr.sinks.Collect())
    late = counted.side_output("late").map(lambda r: r.at).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return out.result(), late.result()


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_days_begin_at_midnight_there_and_have_as_many_hours_as_they_have(form: str) -> None:
    days = [local(2024, 3, 30), local(2024, 3, 31), local(2024, 4, 1), local(2024, 10, 27), local(2024, 10, 28)]
    assert [days[2] - days[1], days[4] - days[3]] == [23 * 3600, 25 * 3600]
    times = [days[1] - 1, days[1], days[2] - 1e-6, days[3], days[4] - 1, days[4]]
    found, late = ran(times, tr.Tumbling("1 day", zone="Europe/Berlin"), form)
    assert found == [
        (days[0], days[1], 1), (days[1], days[2], 2), (days[3], days[4], 2), (days[4], days[4] + 24 * 3600, 1),
    ]  # fmt: skip
    assert late == []


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_weeks_begin_on_mondays_and_months_on_their_first_day(form: str) -> None:
    times = [local(2024, 2, 29, 12), local(2024, 3, 3, 23), local(2024, 3, 4)]
    weeks, _ = ran(times, tr.Tumbling("1 week", zone="Europe/Berlin"), form)
    assert weeks == [(local(2024, 2, 26), local(2024, 3, 4), 2), (local(2024, 3, 4), local(2024, 3, 11), 1)]
    months, _ = ran(times, tr.Tumbling("1 month", zone="Europe/Berlin"), form)
    assert months == [(local(2024, 2, 1), local(2024, 3, 1), 1), (local(2024, 3, 1), local(2024, 4, 1), 2)]
    quarters, _ = ran(times, tr.Tumbling("3 months", zone="Europe/Berlin"), form)
    assert quarters == [(local(2024, 1, 1), local(2024, 4, 1), 3)]


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_late_records_and_the_allowed_lateness_go_by_the_end_of_the_day(form: str) -> None:
    first, second = local(2024, 10, 27), local(2024, 10, 28)
    times = [first, second + 60, second - 1, second + 7_200, second - 2]
    found, late = ran(times, tr.Tumbling("1 day", zone="Europe/Berlin"), form, rate=1.0, allowed_lateness=3_600)
    assert found == [(first, second, 1), (first, second, 2), (second, second + 86_400, 2)]
    assert late == [second - 2]


CHANGES = {
    "Europe/Berlin": ["2024-03-31T01", "2024-10-27T01"],
    "America/Sao_Paulo": ["2018-02-18T02", "2018-11-04T03"],
    "Asia/Beirut": ["2024-03-30T22", "2024-10-26T21"],
    "Pacific/Apia": ["2011-12-30T10", "2012-03-31T14"],
    "Asia/Kathmandu": ["1985-12-31T18:30"],
}
"""Changes of clocks: of those in the second and the third zone the one leaves out midnight, the other comes back to the day
before; the fourth left out a whole day."""


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "Pacific/Apia", "Asia/Kathmandu"]
)
@pytest.mark.parametrize("windows", [("day", 1), ("day", 7), ("month", 1), ("day", 3)])
def test_a_calendar_knows_the_day_of_each_time(zone: str, windows: Any) -> None:
    calendar, chance = Calendar(CalendarWindows(*windows, zone)), random.Random(f"{zone} {windows}")
    changes = [micros(datetime.fromisoformat(f"{one}:00"[:16] + "+00:00")) for one in CHANGES[zone]]
    near = [
        change + minutes * 60_000_000 + chance.randint(-1, 1)
        for change in changes
        for minutes in range(-1500, 1501, 60)
    ]
    times = np.array([*near, *(chance.randrange(-(10**15), 4 * 10**15) for _ in range(200))])
    starts = calendar.starts(times)
    ends = calendar.ends(starts)
    assert (starts <= times).all() and (times < ends).all()
    assert (calendar.starts(ends - 1) == starts).all() and (calendar.starts(ends) == ends).all()
    for time, start in zip(times.tolist(), starts.tolist(), strict=True):
        there, begins = (datetime.fromtimestamp(at / 1e6, ZoneInfo(zone)) for at in (time, start))
        assert begins.date() <= there.date()
        if windows == ("day", 1):
            assert begins.date() == there.date()
            assert datetime.fromtimestamp((start - 1) / 1e6, ZoneInfo(zone)).date() < there.date()
        elif windows == ("day", 7):
            assert begins.weekday() == 0 and there - begins < timedelta(days=7, hours=2)
        elif windows == ("month", 1):
            assert (begins.year, begins.month, begins.day) == (there.year, there.month, 1)
    for time in times[:50].tolist():
        newest = calendar.newest_over(time)
        assert calendar.ends(np.array([newest]))[0] - 1 <= time
        following = calendar.ends(np.array([newest]))
        assert calendar.ends(following)[0] - 1 > time


def test_before_all_time_no_window_is_over_and_behind_it_all_are() -> None:
    calendar = Calendar(CalendarWindows("day", 1, "UTC"))
    assert (calendar.newest_over(MIN_TIME), calendar.newest_over(MAX_TIME)) == (MIN_TIME, MAX_TIME)
    assert calendar.newest_over(micros(datetime(2024, 1, 2, tzinfo=UTC)) - 1) == micros(
        datetime(2024, 1, 1, tzinfo=UTC)
    )


def test_what_no_calendar_has_is_refused() -> None:
    for size in ("1 hour", "36 hours", 86_400, "1.5 days", "0 days", timedelta(hours=12), "9999 days", "1 day 2 hours"):
        with pytest.raises(GraphError, match="whole days, weeks or months"):
            tr.Tumbling(size, zone="Europe/Berlin")
    with pytest.raises(GraphError, match="no time zone 'Europe/Atlantis'"):
        tr.Tumbling("1 day", zone="Europe/Atlantis")
    with pytest.raises(GraphError, match="leave offset out"):
        tr.Tumbling("1 day", offset=1, zone="Europe/Berlin")
    assert tr.Tumbling(timedelta(days=2), zone="UTC") == tr.Tumbling("2 days", zone="UTC")
    env = tr.Environment(parallelism=1, restart=tr.NoRestart())
    far = env.from_collection([datetime(9999, 1, 1, tzinfo=UTC)]).assign_timestamps(lambda t: t)
    far.key_by(lambda t: 0).window(tr.Tumbling("1 day", zone="UTC")).count().sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match="there is no calendar for it"):
        tr.testing.run(env)
