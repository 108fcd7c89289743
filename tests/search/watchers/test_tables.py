"""Observers read the entries of tables, and the job does what it does without them."""

from __future__ import annotations

import random

import pytest

from search.watchers.tables import entries_of
from tailrace.state.tables import Layer
from tailrace.testing.backends import Files
from tests.task.operators.joins.driven import Driven

pytestmark = pytest.mark.search


def files_of(observed: bool) -> tuple[list[object], list[int]]:
    """What the checkpoints of a join in columns write; and the number of entries at each cut, if they are read there."""
    chance, one, files = random.Random(4), Driven("full", (-2, 3)), Files()
    found: list[object] = []
    counts = []
    for checkpoint in range(1, 9):
        for port in (0, 1):
            one.push([(f"key {chance.randrange(9)}", 2 * checkpoint + chance.randrange(4), i) for i in range(20)], port)
        if observed:
            counts.append(len(dict(entries_of(one.task.store._table))))
            assert not one.task.store._table.top and not one.task.store._table.deleted
        made = files.take(one.task.backend, checkpoint)
        found.append((made.blocks, made.full, made.delta))
        if checkpoint % 3 == 0:
            one.task.backend.abort(checkpoint)
        else:
            files.confirm(one.task.backend, checkpoint)
        if observed:
            table = one.task.store._table
            assert counts[-1] == table.base.count, "all that was read at the cut is in the base behind it"
        one.advance(2 * checkpoint)
    return found, counts


def test_reading_what_a_join_in_columns_keeps_changes_no_file() -> None:
    (alone, _), (observed, counts) = files_of(False), files_of(True)
    assert alone == observed and min(counts) > 0


def test_entries_are_read_while_a_cut_is_in_columns() -> None:
    one = Driven("full", (-2, 3))
    one.push([("a", 1, 1), ("b", 1, 2)], 0)
    backend, table = one.task.backend, one.task.store._table
    files = Files()
    files.take(backend, 1)
    files.confirm(backend, 1)
    one.push([("c", 2, 3)], 0)
    table.freeze()
    one.push([("d", 2, 4)], 1)
    assert isinstance(table.frozen, Layer) and table.frozen.columns is not None
    columns = table.frozen.columns
    keys = {key[:3] for key, _ in entries_of(table)}
    assert keys == {("a", 0, 0), ("b", 0, 0), ("c", 0, 1), ("d", 1, 2)}
    assert table.frozen.columns is columns and len(columns) == 1 and not table.top
