"""Lookups in a table that is read anew: every version comes at one place in the stream, whatever is lost; readings that
fail keep the last one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from search.stories import EVERY_MS, Story
from tailrace.testing.faults import Fault

N, KEYS = 240, 4


class Versions:
    """A table that has another version at each reading. Of some keys there is no row."""

    def __init__(self, folder: Path, fails: Callable[[int], bool] = lambda number: False) -> None:
        self.file, self.fails = folder / "readings", fails
        """A file with a byte for each reading: workers have copies of the function."""
        self.file.touch()

    @property
    def number(self) -> int:
        return self.file.stat().st_size

    def rows(self, number: int) -> dict[int, int]:
        return {key: number for key in range(KEYS) if key != number % KEYS}

    def __call__(self) -> pa.Table:
        with self.file.open("ab") as file:
            file.write(b".")
        number = self.number
        if self.fails(number):
            raise OSError("no such table")
        rows = self.rows(number)
        return pa.table({"id": [*rows], "version": [*rows.values()]})


UNALIGNED = replace(EVERY_MS, overtakes_after=0, most_inflight=-1)
WAYS: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"checkpoints": UNALIGNED},
    "replaced": {"checkpoints": UNALIGNED, "replaces": True, "spares": 1, "depth": 1},
    "hot": {"replaces": True, "spares": 2, "depth": 1, "hot": True},
}


def key(number: int) -> int:
    return number * 7 % KEYS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(2))
def test_versions_come_at_one_place_whatever_is_lost(way: str, seed: int, tmp_path: Path) -> None:
    table = Versions(tmp_path, lambda number: number > 1 and random.Random(number).random() < 0.2)

    def program(env: tr.Environment) -> tr.DataStream:
        numbers = env.from_source(tr.sources.Sequence(0, N, rate=12_000.0), uid="numbers")
        rows = numbers.map(lambda i: (key(i), i), uid="pairs").to_columns("id long, i long", uid="columns").to_rows()
        found = rows.lookup(table, on="id", refresh=0.002, uid="found")
        return found.map(lambda pair: (pair[0].i, pair[1] and tuple(pair[1])), uid="plain")

    story = Story.begin(f"{way} {seed}")
    faults = [Fault(200 + 300 * i, "kill", which=seed + i) for i in range(4)]
    world = story.finish(story.simulation(program, parallelism=2, seed=seed, faults=faults, **WAYS[way]))
    assert world.covered["killed"] and story.files.wrong == []
    published = dict(story.ledger.book.records())
    assert sorted(published) == [*range(N)]
    for subtask in range(2):
        least = 0
        for i in range(subtask, N, 2):
            row = published[i]
            if row is None:  # a version without this key, at or behind the last one
                while key(i) in table.rows(least):
                    least += 1
            else:
                assert row[0] == key(i) and row[1] >= least and key(i) in table.rows(row[1])
                least = row[1]
    assert len({row[1] for row in published.values() if row is not None}) > 2


def looked_up(table: Versions, refresh: Any, count: int, how: Any = "left") -> list[Any]:
    """The versions that records, one each second, have found."""
    env = tr.Environment(parallelism=1, restart=tr.NoRestart())
    numbers = env.from_source(tr.sources.Sequence(0, count, rate=1.0)).map(lambda i: (1, i))
    rows = numbers.to_columns("id long, i long").to_rows().lookup(table, on="id", refresh=refresh, how=how)
    found = rows.map(lambda pair: pair[1] and pair[1].version)
    out = found.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return list(out.result())


def test_a_table_is_read_once_in_each_span(tmp_path: Path) -> None:
    table = Versions(tmp_path)
    found = looked_up(table, "10 seconds", 200)
    # The program reads, a worker reads at the start, and then every 10 seconds.
    assert 21 <= table.number <= 23 and len(found) == 200
    for version in range(3, 20):
        if version % KEYS == 1:
            assert version not in found  # that version has no row of the key
        else:
            assert 9 <= found.count(version) <= 12
    assert len(looked_up(Versions(tmp_path), "10 seconds", 200, "inner")) < 165


def test_a_reading_that_fails_keeps_the_last_version_and_says_its_age(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    found = looked_up(Versions(tmp_path, lambda number: 4 <= number <= 9), 10, 100)
    assert found.count(3) > 65 and found[-1] >= 10
    said = [record.getMessage() for record in caplog.records if "could not be read" in record.getMessage()]
    assert (
        "lookup: the table could not be read (1 of 10 times in a row, then the job fails): OSError: no such table"
        in said[0]
    )
    assert said[0].endswith("the rows in use are those read 10 s before")


def test_a_job_whose_table_cannot_be_read_for_long_fails_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(
        tr.JobFailed, match="could not be read 10 times in a row: OSError: no such table; the rows in use"
    ):
        looked_up(Versions(tmp_path, lambda number: number > 1), 10, 200)


def test_event_time_passes_and_a_keyed_stream_is_looked_up(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=2)
    table = Versions(tmp_path)
    records = env.from_source(tr.sources.Sequence(0, 100, rate=10.0)).map(lambda i: (key(i), float(i)))
    rows = records.to_columns("id long, at double").to_rows().assign_timestamps(lambda row: row.at)
    found = rows.key_by(lambda row: row.id).lookup(table, on="id", refresh=3)
    counts = found.key_by(lambda pair: pair[0].id).window(tr.Tumbling(20)).count().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(map(tuple, counts.result())) == [
        (k, 20.0 * w, 20.0 * w + 20, 5) for k in range(KEYS) for w in range(5)
    ]
