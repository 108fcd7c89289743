"""The dataflows of the loop benchmarks, run small: a benchmark whose functions the library refuses measures nothing."""

from __future__ import annotations

from pathlib import Path

import tailrace as tr
from benchmarks.loops import KEYS, Circling, LapSpec, circle, columns_loop, rows_loop


def test_rows_make_their_laps_and_leave_the_loop() -> None:
    env = tr.Environment(parallelism=2)
    out = env.from_collection([(i % KEYS, 3, i) for i in range(20)]).iterate(rows_loop).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(record[1:] for record in out.result()) == [(0, i) for i in range(20)]


def test_columns_make_their_laps_and_leave_the_loop(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=2)
    spec = LapSpec(form="columns", records=20, laps=3)
    out = env.from_source(Circling(spec, str(tmp_path))).iterate(columns_loop).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted((row.left, row.value) for row in out.result()) == [(0, i) for i in range(20)]


def test_the_circle_of_termination_ends() -> None:
    env = tr.Environment(parallelism=2)
    out = env.from_collection([(i, 4, 0) for i in range(5)]).iterate(circle).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert len(out.result()) == 5 and all(left == 0 for _, left, _ in out.result())
