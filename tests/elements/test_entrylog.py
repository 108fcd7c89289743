"""Logs of small entries that share some memory, with the rest in a spill."""

from __future__ import annotations

import random

import pytest

from tailrace.elements.entrylog import EACH, EntryLog, EntryMemory
from tailrace.task.channels.spilling import MemorySpill


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_added_read_and_dropped_a_log_is_a_list(seed: int) -> None:
    rng = random.Random(f"tailrace entry logs {seed}")
    spill, budget = MemorySpill(), rng.choice([1, 300, 3_000])
    memory = EntryMemory(budget, lambda: spill)
    logs = [EntryLog(memory, number) for number in range(3)]
    models: list[list[bytes]] = [[] for _ in logs]
    for turn in range(400):
        at = rng.randrange(3)
        log, model = logs[at], models[at]
        match rng.randrange(4):
            case 0 | 1:
                news = [rng.randbytes(rng.randint(0, 60)) for _ in range(rng.randint(0, 6))]
                log.extend(news)
                model += news
            case 2:
                count = rng.randint(0, rng.choice([2, len(model)]) if len(model) > 2 else len(model))
                log.drop(count)
                del model[:count]
            case _:
                start = rng.randint(0, len(model))
                stop = rng.randint(start, len(model) + 2)
                assert log.part(start, stop) == model[start:stop], turn
        assert (len(log), log.part(0, len(log))) == (len(model), model)
        assert memory.memory == sum(one.memory for one in logs) <= budget, "Y17"
        assert memory.spilled == spill.held
    for log in logs:
        log.drop(len(log))
    assert (memory.memory, spill.held, len(spill.stored)) == (0, 0, 0), "nothing is kept of what was dropped"


def test_the_largest_log_goes_to_the_spill_and_in_one_piece() -> None:
    spill = MemorySpill()
    memory = EntryMemory(10 * (EACH + 1), lambda: spill)
    small, large = EntryLog(memory, 0), EntryLog(memory, 1)
    small.extend([b"a"] * 3)
    for _ in range(8):
        large.extend([b"b"])
    assert (small.memory, large.memory, len(spill.stored)) == (3 * (EACH + 1), 0, 1)
    assert large.part(2, 8) == [b"b"] * 6


def test_without_a_budget_all_stays_in_memory() -> None:
    memory = EntryMemory()
    log = EntryLog(memory)
    log.extend([b"a" * 100] * 10_000)
    assert (memory.memory, memory.spilled) == (10_000 * (EACH + 100), 0)
