"""Jobs whose windows are in arrays: with faults, and going on at another parallelism and in rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import tailrace as tr
from search.stories import MS, Story
from tailrace.coordinator.job.restarts import Never
from tailrace.testing.faults import Fault

N, KEYS, SIZE, SLIDE = 900, 30, 120, 60


def program(form: str, key: Any = "k") -> Callable[[tr.Environment], tr.DataStream]:
    """Windows that overlap, a few of them open at each checkpoint."""

    def build(env: tr.Environment) -> tr.DataStream:
        numbers = env.from_source(tr.sources.Sequence(0, N, rate=40_000.0), uid="numbers", parallelism=1)
        rows = numbers.map(lambda n: (n % KEYS, n / 4 if n % 7 else None, n), uid="rows", parallelism=1)
        stream = rows.to_columns("k long, x double, at long", uid="columns", parallelism=1)
        if form == "rows":
            stream = stream.to_rows(uid="to rows", parallelism=1)
        windows = stream.assign_timestamps("at", uid="time", parallelism=1).key_by(key).window(tr.Sliding(SIZE, SLIDE))
        made = windows.aggregate(
            n=tr.Count(), s=tr.Sum("x"), least=tr.Min("x"), most=tr.Max("at"), mean=tr.Mean("x"), uid="windows"
        )
        return made.map(flat, uid="results")

    return build


def flat(result: Any) -> tuple[Any, ...]:
    """A result with its key by itself: in rows that of a list of columns is a tuple."""
    key, *rest = result
    return (*key, *rest) if isinstance(key, tuple) else tuple(result)


def expected() -> Counter[Any]:
    windows: dict[tuple[int, int], list[int]] = {}
    for n in range(N):
        for start in (n - n % SLIDE, n - n % SLIDE - SLIDE):
            windows.setdefault((n % KEYS, start), []).append(n)
    found: Counter[Any] = Counter()
    for (key, start), of in windows.items():
        known = [n / 4 for n in of if n % 7]
        mean = sum(known) / len(known) if known else None
        some = (len(of), sum(known), min(known, default=None), max(of), mean)
        found[key, float(start), float(start + SIZE), *some] += 1
    return found


@pytest.mark.parametrize("key", ["k", ["k"]])
def test_windows_go_from_columns_to_rows_and_back_at_any_parallelism(story: Story, key: Any) -> None:
    """Keys in a list of one column were in columns stored as others than those that records are sent by: behind a restore
    their windows were where their records do not come."""
    world = story.simulation(program("columns", key), restarts=Never)
    assert world.run_until("commit 3 done"), world.coordinator.cause
    for form, parallelism in (("rows", 3), ("columns", 1), ("rows", 1), ("columns", 3)):
        world = story.again(program(form, key), parallelism=parallelism, restarts=Never)
        before = story.files.commits
        world.start()
        while story.files.commits < before + 2 and not world.coordinator.status.final:
            world.turn()
        assert not world.coordinator.status.final, world.coordinator.cause
    story.finish(story.again(program("columns", key), parallelism=2))
    story.is_right(expected())


def test_faults_change_nothing(story: Story) -> None:
    faults = [Fault(turn, "kill", turn) for turn in range(300, 1_600, 400)]
    faults += [Fault(turn, "delay", turn, duration=3 * MS) for turn in range(100, 1_600, 130)]
    world = story.simulation(program("columns"), faults=tuple(faults), small=0)
    story.finish(world)
    story.is_right(expected())
