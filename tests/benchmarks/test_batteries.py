"""The figures of batteries are of sinks that held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import batteries
from tailrace.testing import SinkFault


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder that a battery may leave."""
    monkeypatch.chdir(tmp_path)
    yield


@pytest.mark.parametrize("sink", ["text files", pytest.param("parquet in folders", marks=pytest.mark.exhaustive)])
def test_a_sink_of_files_holds_with_publishers_killed(sink: str) -> None:
    figures = batteries.run(batteries.BatterySpec(sink, rounds=1, seed=4))
    assert figures["messages"] > 0 and figures["kills"] > 0 and (figures["lost"], figures["twice"]) == (0, 0)


def test_a_sink_that_loses_records_gives_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batteries, "_parts", lambda folder: [])
    with pytest.raises(SinkFault, match="lost"):
        batteries.run(batteries.BatterySpec("text files", rounds=1, seed=4))
