"""The example that archives logs: each line is once in the folder of its day, over kills of workers and of the driver."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tailrace as tr
from tailrace.testing.faults import Fault

EXAMPLES = Path(__file__).parents[2] / "examples"
FAULTS = [Fault(60, "kill"), Fault(200, "crash-driver"), Fault(400, "kill", which=1)]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import archive

    yield archive
    sys.modules.pop("archive", None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("roll", [None, tr.Roll(seconds=3600)])
def test_each_line_is_in_the_folder_of_its_day(example: Any, roll: Any, seed: int, tmp_path: Path) -> None:
    example.write_sample(tmp_path / "logs")
    env = tr.Environment(parallelism=1 + seed, checkpoint=tr.CheckpointConfig("memory", interval=0.005))
    example.archive(env, str(tmp_path / "logs"), str(tmp_path), roll=roll)
    assert tr.testing.simulate(env, seed=seed, faults=FAULTS).await_termination()
    found = pd.read_parquet(tmp_path / "events")
    for day in (1, 2, 3):
        lines = (tmp_path / "logs" / f"app-{day}.log").read_text().splitlines()
        messages = sorted(json.loads(line)["message"] for line in lines if line != "rubbish")
        assert sorted(found[found["day"] == f"2024-01-0{day}"]["message"]) == messages
    [bad] = [line for path in (tmp_path / "bad").glob("part-*") for line in path.read_text().splitlines()]
    assert "app-2.log at byte" in bad
    assert "rubbish" in bad
