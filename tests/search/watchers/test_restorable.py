"""Every checkpoint of a simulated run is looked at, not only the newest: each of these faults leaves the run as it is."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from search.scenarios import Scenario, Verdict, run_scenario
from tailrace.coordinator.durability.checkpoints import Checkpoints, CheckpointSettings
from tailrace.state.blocks import Blocks

pytestmark = pytest.mark.search

MS = 1_000


def scenario(program: str = "sparse", keep: int = 3, seed: int = 0) -> Scenario:
    settings = CheckpointSettings(interval=2 * MS, max_concurrent=2, keep=keep)
    return Scenario(seed, program, 200, parallelism=2, rate=10_000, checkpoints=settings, small=0, started_again=2)


def run(**options: Any) -> Verdict:
    return run_scenario(scenario(**options))


@pytest.mark.parametrize("program", ["sparse", "by_classes", "windowed", "in_columns", "visited", "nested"])
def test_without_faults_every_checkpoint_is_what_was_there_at_its_cut(program: str) -> None:
    verdict = run(program=program)
    assert verdict.wrong == []
    assert verdict.covered["committed"] > 3 and verdict.covered["went on from some moment"] == 2


def test_state_that_is_not_in_the_files_is_noticed_though_nobody_restores_it() -> None:
    put = Blocks.put

    def forgetful(self: Blocks, table: Any, group: int, key: Any, value: Any, data: Any) -> None:
        if key != 5:
            put(self, table, group, key, value, data)

    def one_by_one(self: Blocks, table: Any, group: int, keys: list[Any], values: list[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.put(table, group, key, value, None)

    with mock.patch.object(Blocks, "put", forgetful), mock.patch.object(Blocks, "put_values", one_by_one):
        wrong = run(seed=1).wrong
    assert any("state 'seen' of" in one and "is not that of the cut: 1 lost, as 5" in one for one in wrong)


def test_a_file_of_an_older_one_that_is_kept_is_missed() -> None:
    def greedy(self: Checkpoints) -> list[str]:
        needed = set(self._kept[-1].names) if self._kept else set()
        for pending in self.pending.values():
            needed |= pending.needs()
        names = sorted(name for name in self._sizes if name not in needed and name.endswith(".state"))
        for name in names:
            del self._sizes[name]
        return names

    with mock.patch.object(Checkpoints, "_unneeded_names", greedy):
        wrong = run(seed=1).wrong
    assert any("was deleted, and" in one and "which is kept, needs it" in one for one in wrong)
