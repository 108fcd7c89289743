"""Whose turn it is among the tasks of a worker."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

import tailrace as tr
from tailrace.task.slice.turns import PATIENCE, ROUNDS, Turns
from tailrace.task.subtask.work import Work


def test_parts_of_batches_meet_again_behind_many_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most downstream task had the first turn, so what was ahead stayed ahead. Each exchange parted each batch: these
    thousand records took 500 steps in each operator, and behind fifty operators each was a batch of its own."""
    steps = 0
    process = Work._process

    def counted(self: Work, *args: Any) -> None:
        nonlocal steps
        steps += 1
        process(self, *args)

    monkeypatch.setattr(Work, "_process", counted)
    env = tr.Environment(parallelism=2)
    stream = env.from_source(tr.sources.Sequence(0, 1000))
    for _ in range(60):
        stream = stream.rebalance().map(abs)
    out = stream.sink_to(tr.sinks.Collect())
    world = tr.testing.Conditions(delay=(1, 500), step_cost=(50, 300), budget=(64, 1024))
    tr.testing.simulate(env, seed=3, conditions=world)
    assert sorted(out.result()) == list(range(1000))
    assert steps < 60 * 60


def task(name: str, *, source: bool = False, cuts: bool = False) -> Any:
    return SimpleNamespace(
        id=name,
        services=SimpleNamespace(now=0),
        checkpoints=SimpleNamespace(may_cut=lambda now: cuts),
        chain=SimpleNamespace(source=object() if source else None),
        work=SimpleNamespace(brought_in=source),
    )


def names(turns: Turns) -> str:
    return "".join(str(task.id) for task in turns.order())


def test_tasks_take_turns_and_sources_wait_until_none_of_them_has_anything_to_do() -> None:
    c, b, a, t, s = tasks = [task("c"), task("b"), task("a"), task("t", source=True), task("s", source=True)]
    turns = Turns(tasks)
    assert names(turns) == "abcst"
    for stepped, then in ((b, "cabst"), (c, "abcst"), (s, "abcts"), (a, "bcats"), (t, "bcast")):
        turns.note_step(stepped)
        assert names(turns) == then


def test_sources_come_first_where_a_head_has_read_feedback() -> None:
    """A busy loop always has something to do."""
    body, head, _ = tasks = [task("b"), task("h"), task("s", source=True)]
    turns = Turns(tasks)
    head.work.brought_in = True
    turns.note_step(head)
    assert names(turns) == "sbh"
    turns.note_step(body)
    assert names(turns) == "hbs"


def test_sources_come_first_from_time_to_time_where_others_always_have_something_to_do() -> None:
    """Records from other workers may never cease. A source that has nothing then does not have the first turn again."""
    a, s = tasks = [task("a"), task("s", source=True)]
    turns = Turns(tasks)
    for _ in range(3):
        for _ in range(PATIENCE - 1):
            turns.note_step(a)
            assert names(turns) == "as"
        turns.note_step(a)
        assert names(turns) == "sa"
        turns.note_step(s)
        assert names(turns) == "as"
    for _ in range(PATIENCE):
        turns.note_step(a)
    assert names(turns) == "sa"
    turns.note_step(a)
    assert names(turns) == "as"


def test_who_is_to_cut_comes_first_but_not_for_ever() -> None:
    """Checkpoints may come, and be given up, faster than all tasks can cut. Then turns make up for what was done first."""
    tasks = [task("c", cuts=True), task("b", cuts=True), task("a")]
    turns = Turns(tasks)
    done = Counter[str]()
    for _ in range(3):
        for _ in range(ROUNDS * len(tasks)):
            assert turns.to_cut() == tasks[:2]
            turns.note_step(tasks[0])
        for _ in range(ROUNDS * len(tasks)):
            assert turns.to_cut() == []
            one = turns.order()[0]
            done[one.id] += 1
            turns.note_step(one)
    assert done == dict.fromkeys("abc", 3 * ROUNDS)


def test_where_nobody_comes_first_for_long_who_is_to_cut_always_does() -> None:
    c, a = tasks = [task("c", cuts=True), task("a")]
    turns = Turns(tasks)
    for _ in range(100):
        assert turns.to_cut() == [c]
        turns.note_step(c)
        for _ in range(2):
            turns.to_cut()
            turns.note_step(a)
