"""What a failed call has done to state and timers is undone, whatever that was, and wherever the entry lies."""

import random
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.state.handles import bind_all
from tailrace.state.memory_backend import MemoryBackend
from tailrace.state.undo_log import Journal, keep_journal
from tailrace.task.operators.timer_heap import JournaledTimers


class Fn:
    value = tr.ValueState(object, default=0)
    kept = tr.ValueState(list, default=[])
    items = tr.ListState(object)
    entries = tr.MapState(int, object)
    most = tr.ReducingState(int, reduce=max)
    mean = tr.AggregatingState(object, aggregate=tr.Mean())


class Holder:
    current_key: Any = None


def change(rng: random.Random, fn: Any, timers: JournaledTimers, key: int) -> None:
    """Does one thing of chance to the state of a key."""
    n = rng.randint(0, 3)
    rng.choice(
        [
            lambda: fn.value.update([n]),
            lambda: fn.value.update(n),
            lambda: fn.value.value.append(n) if isinstance(fn.value.value, list) else None,
            lambda: fn.value.clear(),
            lambda: fn.kept.value.append([n]),
            lambda: fn.items.append([n]),
            lambda: fn.items[0].append(n) if len(fn.items) and isinstance(fn.items[0], list) else None,
            lambda: fn.items.__delitem__(0) if len(fn.items) else None,
            lambda: fn.items.update([[n], [n]]),
            lambda: fn.items.clear(),
            lambda: fn.items.append(n),
            lambda: fn.items.append(n),
            lambda: fn.entries.put(n, fn.entries.get(n, n)),
            lambda: fn.entries.put(n, n),
            lambda: fn.entries.put(n, fn.entries[n]) if n in fn.entries else None,
            lambda: fn.entries.put(n, {n}),
            lambda: fn.entries.remove(n),
            lambda: [one.add(n) for one in fn.entries.values() if isinstance(one, set)],
            lambda: fn.entries.get(n).add(9) if isinstance(fn.entries.get(n), set) else None,
            lambda: fn.entries.clear(),
            lambda: fn.most.add(n),
            lambda: fn.mean.add(n),
            lambda: fn.mean.clear(),
            lambda: timers.set(key, n),
            lambda: timers.delete(key, n),
        ]
    )()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_failed_call_does_is_undone(seed: int) -> None:
    rng = random.Random(seed)
    backend, fn, holder, journal = MemoryBackend(16, "u", 0), Fn(), Holder(), Journal()
    keep_journal(journal, bind_all(fn, backend, holder), [])
    timers = JournaledTimers(backend.table("timers", kind="timers", group_by=lambda entry: entry[0]), journal)
    cut = 0

    def everything() -> str:
        tables = {name: sorted(table.items(), key=repr) for name, table in backend.tables.items()}
        return repr(tables)

    for _ in range(200):
        key = holder.current_key = rng.randint(0, 2)
        before, fails = everything(), rng.random() < 0.5
        journal.begin()
        for _ in range(rng.randint(1, 4)):
            change(rng, fn, timers, key)
        if fails:
            journal.undo()
            assert everything() == before
        else:
            journal.end()
        if rng.random() < 0.1:  # entries move to layers below
            cut += 1
            backend.freeze(CutRequest(cut, CutKind.CHECKPOINT))
            while not backend.encode(100)[1]:
                pass
    due = []
    expected = sorted((time, order, key) for (key, time), order in timers.table.items())
    while (one := timers.pop_due(10)) is not None:
        due.append(one)
    assert due == [(key, time) for time, _, key in expected]
