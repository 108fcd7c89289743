"""What a worker does is a function of its events: those of each worker of the searches' jobs, with all their faults, are fed
to a fresh worker in another process with another `PYTHONHASHSEED`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from search.programs.golden import PROGRAMS
from search.replay import Player, Replay, replay_golden, replay_random
from search.scenarios import scenario

pytestmark = pytest.mark.search

SEEDS = {name: seed for seed, name in enumerate(sorted(PROGRAMS))}


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    with Player() as player:
        yield player


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_the_workers_of_a_golden_program_do_the_same_again(program: str, player: Player) -> None:
    made = scenario(SEEDS[program], program)
    replay = replay_golden(player, replace(made, n=max(20, made.n // 3)))
    assert replay.differences == [], replay.text
    assert replay.counts["events"] > 20 and replay.counts["actions"] > 0


@pytest.mark.parametrize("seed", [0, 2, 3, 4, 7, 8])
def test_the_workers_of_a_random_dataflow_do_the_same_again(seed: int, player: Player) -> None:
    replay = replay_random(player, seed)
    assert replay.differences == [], replay.text


def test_workers_that_start_anew_and_those_that_replace_lost_ones_are_replayed(player: Player) -> None:
    seen: Counter[str] = Counter()
    found: list[Replay] = []
    for seed in (2, 10, 13, 15):  # restarts and replacements in each
        found.append(replay_golden(player, scenario(seed, "counted")))
        seen.update(found[-1].counts)
    assert [replay.text for replay in found if replay.differences] == []
    assert seen["restarts"] > 3 and seen["workers"] > 12, seen
