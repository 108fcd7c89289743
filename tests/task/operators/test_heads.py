"""The restored state of the head of a loop."""

from __future__ import annotations

import random

import msgspec
import pytest

from tailrace.graph.graph import Node
from tailrace.graph.operators import Head, Loop
from tailrace.graph.scope import StreamScope
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.loops import HeadState, HeadTask


def restored(subtask: int, parallelism: int, *fed: bool) -> HeadTask:
    """The head of a subtask, from the states of those that there were."""
    node = Node(0, Head(Loop(StreamScope(), "loop")), "loop", "u", True, parallelism, "rows", ())
    head = HeadTask(node, OperatorContext("loop", "u", subtask, parallelism, 0, Services(random_factory=random.Random)))
    states = map(msgspec.msgpack.encode, map(HeadState, fed))
    head.restore([MetaPart(i, len(fed), False, state) for i, state in enumerate(states)])
    return head


@pytest.mark.parametrize("subtask", [0, 1])
def test_a_head_has_read_feedback_since_the_last_rest_only_if_it_had_when_it_was_cut(subtask: int) -> None:
    assert restored(subtask, 2, True, False).fed is (subtask == 0)


def test_a_head_of_another_size_has_read_feedback_if_any_had() -> None:
    assert restored(1, 3, True, False).fed is True
    assert restored(1, 3, False, False).fed is False
