"""Sessions in arrays are the sessions that entries would be: the same results in the same order, the same checkpoints, in
whatever order things happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from twins import KEYS, SUMMED, VALUES, TimedTwins, columns, live_to_the_end

import tailrace as tr
from tailrace.elements.batches import Columns
from tailrace.elements.keyslots import key_slots
from tailrace.graph.operators import SessionWindow
from tailrace.state import layers
from tailrace.task.operators.windows import sessionbatch, sessionstate
from tailrace.task.operators.windows.agenda import Agenda
from tailrace.task.operators.windows.columnsessions import ColumnSessionTask
from tailrace.task.operators.windows.sessionbatch import BatchGroups, Opened
from tailrace.task.operators.windows.sessionstate import SessionState

COUNT_AND_SUM = {"n": tr.Count(), "s": tr.Sum("x")}


class SessionTwins(TimedTwins):
    """Sessions with a gap, or with a gap of each record (None)."""

    def __init__(self, key: Any, aggregates: dict[str, Any], seed: int, gap: int | None = 4) -> None:
        self.gap = gap
        super().__init__(key, aggregates, seed)

    def made(self, in_columns: bool = True) -> ColumnSessionTask:
        gap_of = "gap" if self.gap is None else None
        operator = SessionWindow(self.key, self.gap, gap_of, tuple(self.aggregates.items()))
        return self.made_from(ColumnSessionTask, operator, in_columns)

    @property
    def in_columns(self) -> bool:
        return self.tasks[0]._state is not None

    def told(self, batch: Any) -> str:
        if not isinstance(batch, Columns):
            return str((batch.values, batch.times.tolist()))
        return str((batch.data.schema, batch.data.to_pylist(), batch.times.tolist()))

    def both(self, do: Callable[[Any], Any]) -> list[Any]:
        found = super().both(do)
        for task in self.tasks:
            due = [
                end if order > 0 else end + task.reach
                for _, sessions in task.table.items()
                for end, order, _ in sessions.values()
            ]
            assert not due or task.next_event() <= min(due)
        if self.in_columns:
            self.tasks[0]._state.check()
        return found


def batches(twins: SessionTwins, key: str, value: str, most: int, nulls: float = 0) -> Callable[[Any], Columns]:
    """Batches at times around the event time of the twins: some records late, some early."""
    (key_kind, key_of), (value_kind, value_of) = KEYS[key], VALUES[value]

    def one(chance: random.Random) -> Columns:
        missing = nulls if chance.random() < 0.5 else 0
        rows = [
            (
                *(None if chance.random() < missing else x for x in (key_of(chance.randrange(most)), value_of(chance))),
                chance.choice([1e-6, 3e-6, 9e-6]),
            )
            for _ in range(chance.choice([1, 5, 40]))
        ]
        data = columns({"k": key_kind, "x": value_kind, "gap": pa.float64()}, rows).data
        ahead = chance.choice([8, 60])
        times = [twins.time + chance.randrange(-15, ahead) for _ in rows]
        return Columns(data, np.array(times, np.int64))

    return one


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """State counts as large, what is frozen in columns comes out in bits, and slots are given back soon."""
    monkeypatch.setattr(layers, "SMALL", 10)
    monkeypatch.setattr(layers, "_UNPACKED", 7)
    monkeypatch.setattr(sessionstate, "_ROOM", 4)


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_all_kinds_have_the_sessions_that_they_have_in_entries(key: str) -> None:
    for seed, gap in enumerate((4, None)):
        twins = SessionTwins("k", COUNT_AND_SUM, seed, gap)
        live_to_the_end(twins, batches(twins, key, "integers", 12, 0.1 if seed else 0), 40)
        if key != "decimals":
            assert twins.tasks[0]._in_columns


@pytest.mark.parametrize("value", [name for name in VALUES if "floats" not in name])
def test_values_of_all_kinds_have_the_sessions_that_they_have_in_entries(value: str) -> None:
    aggregates = {"n": tr.Count(), "low": tr.Min("x"), "high": tr.Max("x")}
    if value in SUMMED:
        aggregates |= {"s": tr.Sum("x"), "m": tr.Mean("x")}
    twins = SessionTwins(("k",), aggregates, 1)
    live_to_the_end(twins, batches(twins, "texts", value, 12, 0.1), 40)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_sessions_in_arrays_are_the_same(
    seed: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not wide:  # as if the spans of all keys together were too long for one pass
        monkeypatch.setattr(sessionbatch, "_LARGEST", 0)
    twins = SessionTwins("k", COUNT_AND_SUM, seed, [4, 1, None, 11][seed % 4])
    live_to_the_end(twins, batches(twins, "small integers", "integers", [1, 3, 30][seed % 3]), 80)
    assert twins.tasks[0]._in_columns


def test_a_sum_above_64_bits_goes_on_in_entries_and_no_record_counts_twice() -> None:
    for seed in range(4):
        twins = SessionTwins("k", COUNT_AND_SUM, seed)
        live_to_the_end(twins, batches(twins, "small integers", "integers", 5), 10)
        twins.give(batches(twins, "small integers", "large integers", 5)(twins.random))
        for _ in range(4):
            twins.give(batches(twins, "small integers", "large integers", 2)(twins.random))
        live_to_the_end(twins, batches(twins, "small integers", "integers", 5), 10)


def test_slots_of_keys_that_are_gone_are_given_back() -> None:
    twins = SessionTwins("k", COUNT_AND_SUM, 0)
    for i in range(40):
        rows = [(key, 1, 1e-6) for key in range(10 * i, 10 * i + 10)]
        data = columns({"k": pa.int64(), "x": pa.int64(), "gap": pa.float64()}, rows).data
        twins.give(Columns(data, np.full(len(rows), twins.time + 1, np.int64)))
        twins.advance(twins.time + 9)
    assert twins.tasks[0]._state.keys.count < 100


def test_a_batch_is_cut_into_sessions_as_a_loop_would_cut_it() -> None:
    chance = random.Random(3)
    for _ in range(200):
        n, m = chance.randrange(1, 20), chance.randrange(0, 4)
        keys = np.array([chance.randrange(3) for _ in range(n)])
        starts = np.array([chance.randrange(30) for _ in range(n)])
        ends = starts + np.array([chance.choice([1, 2, 9]) for _ in range(n)])
        held = np.arange(m)
        opened = Opened(held, held % 3, held * 40 + chance.randrange(-5, 5), held * 40 + 6)
        groups = BatchGroups.of(keys, starts, ends, np.arange(1, n + 1), opened)
        found = sorted(zip(groups.keys.tolist(), groups.starts.tolist(), groups.ends.tolist(), strict=True))
        assert found == cut(keys, starts, ends, opened)
        for i in range(n):
            code = groups.codes[i]
            assert groups.keys[code] == keys[i]
            assert groups.starts[code] <= starts[i] <= ends[i] <= groups.ends[code]


def cut(keys: Any, starts: Any, ends: Any, opened: Opened) -> list[tuple[int, int, int]]:
    """Sessions that have records."""
    items = [*zip(keys.tolist(), starts.tolist(), ends.tolist(), [True] * len(keys), strict=True)]
    items += zip(
        opened.keys.tolist(), opened.starts.tolist(), opened.ends.tolist(), [False] * len(opened.keys), strict=True
    )
    found: list[list[Any]] = []
    for key, start, end, own in sorted(items):
        if found and found[-1][0] == key and start <= found[-1][2]:
            found[-1][2], found[-1][3] = max(found[-1][2], end), found[-1][3] or own
        else:
            found.append([key, start, end, own])
    return [(key, start, end) for key, start, end, own in found if own]


@pytest.mark.parametrize("seed", range(10))
def test_an_agenda_has_each_slot_at_its_time_however_often_that_moves_on(seed: int) -> None:
    chance = random.Random(seed)
    agenda, times, there = Agenda(chance.choice([1, 3, 20])), np.zeros(40, np.int64), set[int]()
    agenda.grow(40)
    now = -100
    for _ in range(150):
        some = np.array(sorted(chance.sample(range(40), chance.randrange(6))), np.int64)
        roll = chance.random()
        if roll < 0.4:
            new = np.array([slot for slot in some.tolist() if slot not in there], np.int64)
            times[new] = [now + chance.randrange(50) for _ in new]
            agenda.put(new, times[new])
            there |= set(new.tolist())
        elif roll < 0.6:
            for slot in some.tolist():
                times[slot] += chance.randrange(10) if slot in there else 0
        elif roll < 0.7:
            agenda.drop(some)
            there -= set(some.tolist())
        else:
            now += chance.randrange(10)
            limit = chance.choice([1, 3, 100])
            found = agenda.due(now, times, limit)
            ripe = sorted((slot for slot in there if times[slot] <= now), key=lambda slot: times[slot])
            assert set(found.tolist()) <= set(ripe)
            assert len(found) >= min(limit, len(ripe))
            assert not len(found) or max(times[found]) <= min([times[s] for s in ripe if s not in found], default=2**60)
            there -= set(found.tolist())
        agenda.check(np.array(sorted(there), np.int64), times)
        assert agenda.next_time(times) == min((int(times[slot]) for slot in there), default=None)


def test_an_agenda_from_which_few_slots_are_taken_at_a_time_lists_none_again_and_again() -> None:
    """What is taken and put back is due a thousand times, and each time costs what there is, not what there was."""
    agenda, times = Agenda(10), np.full(500, 5, np.int64)
    agenda.grow(500)
    agenda.put(np.arange(500), times)
    for left in range(499, 0, -1):
        found = agenda.due(9, times, 1)
        agenda.put(found[1:], times[found[1:]])
        assert sum(len(part) for group in agenda._groups.values() for part in group) == left


@pytest.mark.parametrize("seed", range(5))
def test_a_key_finds_all_of_its_open_sessions_however_many_it_has(seed: int) -> None:
    """Many keys with a few sessions each, and one with hundreds, which event time has left open."""
    chance = random.Random(seed)
    column = pa.array(range(80))
    keys = key_slots([column], ["k"], True, False)
    assert keys is not None
    state = SessionState(keys, [], [], 5)
    keys.slots([column])
    state.grow_keys()
    known: dict[int, set[int]] = {key: set() for key in range(80)}
    for _ in range(30):
        new = state.take_slots(60)
        state.key[new] = [chance.choice([7, chance.randrange(80)]) for _ in new]
        state.start[new] = state.end[new] = 10 * new
        state.order[new] = 1 + new
        state.put(new)
        for slot in new.tolist():
            known[int(state.key[slot])].add(slot)
        opened = sorted(slot for some in known.values() for slot in some)
        gone = np.array(chance.sample(opened, chance.randrange(len(opened) // 2)), np.int64)
        state._part(gone)
        state.free(gone)
        for some in known.values():
            some -= set(gone.tolist())
        state.check()
        asked = chance.sample(range(80), chance.choice([3, 80]))
        assert sorted(state.open_of(np.array(asked)).tolist()) == sorted(slot for key in asked for slot in known[key])
        times = np.array([10 * chance.choice([*known[key], 3]) + chance.randrange(2) for key in range(80)])
        inside = [any(10 * slot == times[key] for slot in known[key]) for key in range(80)]
        assert any(inside) and state.welcome(np.arange(80), times, 100_000).tolist() == inside
