"""The figures of lake tables are of work that was done."""

from __future__ import annotations

import pytest

from benchmarks import tables


@pytest.mark.parametrize("system", ["parquet", "delta"])
def test_each_system_writes_all_rows(system: str) -> None:
    figures = tables.run(tables.TablesSpec("files", system, megabytes=2, files=2))
    assert figures["rows"] >= 2 * tables.ROWS and figures["cpu_ms_per_mb"] > 0


def test_commits_have_a_time() -> None:
    figures = tables.run(tables.TablesSpec("commit", "delta", commits=3))
    assert 0 < figures["commit_ms_p50"] <= figures["commit_ms_max"]
