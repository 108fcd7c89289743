"""The cost of an open page: what is measured."""

from __future__ import annotations

from benchmarks.page import cost


def test_the_cost_of_a_snapshot_is_a_share_of_what_the_job_takes() -> None:
    found = cost(2, repeat=3)
    assert (found["workload"], found["parallelism"]) == ("page", 2)
    assert found["share_of_keyed"] > 0 and found["below_limit"] and found["bytes"] > 1_000
    assert found["snapshot_ms"] / 1e3 / 2 - found["share_of_keyed"] < 1e-3
