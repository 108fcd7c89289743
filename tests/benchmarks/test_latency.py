"""The figures of the latency benchmark are right: each record is due once, and counted once."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("benchmarks.latency")

from benchmarks.latency import LatencySpec, Schedule, figures, neighbour
from benchmarks.workload import KEYS

SPEC = LatencySpec(rate=100_000, seconds=0.2, warm=0.1)


def counted(late: float) -> list[dict[str, Any]]:
    """Records at two sinks, of readers that are called every 7 ms, each record `late` seconds after it was due."""
    seen = []
    for index in range(2):
        schedule, counts, numbers, now = Schedule(SPEC, index), [0] * KEYS, list[int](), 1000.0
        while (batch := schedule.take(1000, now)) is not None:
            assert all(due <= now for _, due in batch)
            for key, _ in batch:
                counts[key] += 1
                numbers.append(key + (counts[key] - 1) * KEYS)
            now += 0.007
        found = np.array(numbers)
        seen.append(
            {"number": found, "latency": np.full(len(found), late), "sizes": np.array([len(found)]), "cores": 0.1}
        )
    return seen


def test_every_record_is_due_once_and_those_of_the_warm_up_do_not_count() -> None:
    seen = counted(0.002)
    seen[0]["latency"][0] = 9.0
    found = figures(SPEC, seen)
    assert found["measured"] == 20_000
    assert found["latency_ms"] == {"p50": 2.0, "p99": 2.0, "p999": 2.0, "max": 2.0}


def test_a_count_that_is_missing_or_doubled_is_an_error() -> None:
    for change in (lambda numbers: numbers[:-1], lambda numbers: np.append(numbers, numbers[0])):
        seen = counted(0.002)
        seen[1]["number"] = change(seen[1]["number"])
        seen[1]["latency"] = np.zeros(len(seen[1]["number"]))
        with pytest.raises(AssertionError, match="30000 records"):
            figures(SPEC, seen)


def test_a_neighbour_uses_its_share_of_a_core_and_ends_with_the_run() -> None:
    with neighbour(0.5) as process:
        assert process is not None
        burning = psutil.Process(process.pid)
        while sum(burning.cpu_times()[:2]) < 0.05:
            os.sched_yield()  # until it has used some of its core
    assert process.returncode is not None


def test_more_than_a_core_is_no_share_of_one() -> None:
    with pytest.raises(SystemExit, match=r"beside=1\.5 is no share of a core"), neighbour(1.5):
        pass
