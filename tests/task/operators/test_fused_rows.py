"""Fused functions of rows: the check of the first results of each."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tailrace.elements.batches import Rows
from tailrace.errors import UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import Filter, Map
from tailrace.task.operators.stateless import FusedRows
from tests.task.twins import context


def fused(*operators: Any) -> tuple[FusedRows, list[Any]]:
    nodes = [Node(i, one, "op", f"u{i}", True, 1, "rows", ()) for i, one in enumerate(operators)]
    task = FusedRows(nodes, [context() for _ in nodes])
    given: list[Any] = []
    task.out = lambda batch: given.extend(batch.to_rows().values)
    return task, given


def push(task: FusedRows, *values: Any) -> None:
    task.process(Rows(list(values), None, None), 0)


def checks(task: FusedRows) -> int:
    """The number of functions whose results the generated code checks."""
    names = inspect.unwrap(task._plain).__code__.co_names
    return ("one" in names) + ("truth" in names)


def test_a_filter_that_lets_nothing_pass_is_checked_in_its_first_batch_only() -> None:
    task, given = fused(Map(abs), Filter(lambda n: n > 100))
    assert checks(task) == 2
    push(task, 1, 2)
    assert (checks(task), given) == (0, [])
    push(task, 3, -101)
    assert given == [101]


def test_a_function_behind_such_a_filter_is_checked_with_its_first_record() -> None:
    task, given = fused(Filter(lambda n: n > 100), Map(lambda n: (i for i in range(n))))
    for n in range(3):
        push(task, n)
    with pytest.raises(UserCodeError, match="gave a generator, and no value"):
        push(task, 5, 101)
    assert given == []


def test_a_batch_without_records_checks_nothing() -> None:
    task, _ = fused(Map(lambda n: (i for i in range(n))))
    push(task)
    with pytest.raises(UserCodeError, match="gave a generator, and no value"):
        push(task, 1)
