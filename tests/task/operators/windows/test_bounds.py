"""The start and the end of windows as datetimes, and as timestamps of columns."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.errors import GraphError

BERLIN = ZoneInfo("Europe/Berlin")
FIRST = datetime(2024, 10, 26, 22, tzinfo=UTC)  # a day of 25 hours begins in Berlin
ROWS = [("a", FIRST, 1), ("a", datetime(2024, 10, 27, 22, 59, 59, 999_999, tzinfo=UTC), 2)]


def keyed(env: tr.Environment, form: str) -> tr.KeyedStream:
    source = tr.sources.Generator(lambda i: ROWS[i], rate=1.0, count=len(ROWS))
    stream = env.from_source(source).to_columns(
        pa.schema({"k": pa.string(), "at": pa.timestamp("us", "UTC"), "x": pa.int64()})
    )
    return (stream if form == "columns" else stream.to_rows()).assign_timestamps("at").key_by("k")


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize(
    ("windows", "start", "end"),
    [
        (tr.Tumbling("2 days"), datetime(2024, 10, 26, tzinfo=UTC), datetime(2024, 10, 28, tzinfo=UTC)),
        (tr.Session("1 day 2 hours"), FIRST, datetime(2024, 10, 29, 0, 59, 59, 999_999, tzinfo=UTC)),
        (
            tr.Tumbling("1 day", zone="Europe/Berlin"),
            datetime(2024, 10, 27, tzinfo=BERLIN),
            datetime(2024, 10, 28, tzinfo=BERLIN),
        ),
    ],
    ids=["tumbling", "session", "calendar"],
)
def test_bounds_are_datetimes_to_the_microsecond(form: str, windows: Any, start: datetime, end: datetime) -> None:
    env = tr.Environment(parallelism=2)
    result = keyed(env, form).window(windows, bounds="datetime").aggregate(total=tr.Sum("x"))
    sink = result.map(lambda r: (r.k, r.start, r.end, r.total)).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    [(key, first, last, total)] = sink.result()
    assert (key, first, last, total) == ("a", start, end, 3)
    assert (first.utcoffset(), last.utcoffset()) == (start.utcoffset(), end.utcoffset())


class Counted(tr.WindowFunction):
    seen = tr.ValueState(int, default=0)

    def process(self, key: Any, window: tr.WindowBounds, records: list[Any], ctx: tr.Context) -> Any:
        self.seen.value += 1
        yield window.start, window.firing, self.seen.value


def test_functions_of_windows_and_their_state_take_datetimes() -> None:
    env = tr.Environment(parallelism=2)
    each = tr.Every(records=1)
    windows = keyed(env, "rows").window(tr.Tumbling("2 days"), early=each, allowed_lateness=60, bounds="datetime")
    sink = windows.process(Counted()).sink_to(tr.sinks.Collect())
    job = tr.testing.run(env)
    start = datetime(2024, 10, 26, tzinfo=UTC)
    assert sink.result() == [(start, "early", 1), (start, "early", 2), (start, "final", 3)]
    assert {report.state_entries for report in job.simulation.reports} == {0}


def test_other_bounds_are_refused() -> None:
    stream = tr.Environment(parallelism=1).from_collection([1]).key_by(lambda x: x)
    with pytest.raises(GraphError, match="bounds are 'seconds' or 'datetime'"):
        stream.window(tr.Tumbling(1), bounds="dates")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="has no start and end"):
        stream.window(tr.Global(), bounds="datetime")
