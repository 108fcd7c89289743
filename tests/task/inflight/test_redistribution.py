"""Whose what was on its way around a loop is, when the loop goes on from a checkpoint."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from tailrace.elements.batches import Rows
from tailrace.elements.frame_codec import decode
from tailrace.errors import IncompatibleState
from tailrace.graph.operators import Broadcast, Custom, Forward, Hash, Partitioning, Rebalance
from tailrace.task.channels.channel_logs import LogFrame, log_frame
from tailrace.task.channels.services import Services
from tailrace.task.inflight.redistribution import Redistribution


def services() -> Services:
    return Services(random_factory=Random, job="job", incarnation=1, run_id="run", seed=0, max_parallelism=16)


def taken(kinds: list[Partitioning], logs: list[list[Any]], parallelism: int) -> list[list[Any]]:
    """What each new subtask takes of the old ones' logs, whose frames hold two records at most."""
    found = []
    for subtask in range(parallelism):
        ours = Redistribution(kinds, "loop", subtask, parallelism, services())
        records: list[Any] = []
        for old, log in enumerate(logs):
            for frame in frames(log):
                for part in ours.mine(old, len(logs), frame):
                    records += decode(part.data).batch().values
        ours.check()
        found.append(records)
    return found


def frames(log: list[Any]) -> list[LogFrame]:
    return [log_frame(Rows(log[at : at + 2]), 0, "loop", 0) for at in range(0, len(log), 2)]


def first(record: Any) -> int:
    return int(record[0])


LOGS = [[(0, "a"), (3, "b"), (4, "c")], [(1, "d")], []]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_by_a_function_each_record_goes_where_the_function_says(parallelism: int) -> None:
    found = taken([Custom(first)], LOGS, parallelism)
    assert Counter(r for log in found for r in log) == Counter(r for log in LOGS for r in log)
    assert all(first(r) % parallelism == subtask for subtask, log in enumerate(found) for r in log)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_by_a_key_all_of_a_key_go_to_one_subtask(parallelism: int) -> None:
    found = taken([Hash(first), Forward()], [*LOGS, [(3, "e")]], parallelism)
    owners = {r[1]: subtask for subtask, log in enumerate(found) for r in log}
    assert sorted(owners) == ["a", "b", "c", "d", "e"] and owners["b"] == owners["e"]


def test_by_a_number_only_a_log_stays_together() -> None:
    assert taken([Forward(), Rebalance()], LOGS, 2) == [LOGS[0], LOGS[1]]


@pytest.mark.parametrize(
    "kinds",
    [[Broadcast()], [Broadcast(), Forward()], [Custom(first)], [Custom(first), Forward()]],
    ids=["copies", "copies and forward", "by a function", "by a function and forward"],
)
def test_at_the_same_parallelism_everything_stays_where_it_was(kinds: list[Partitioning]) -> None:
    assert taken(kinds, LOGS, 3) == LOGS


def test_a_function_that_spreads_at_random_loses_and_doubles_nothing() -> None:
    """After any failure each subtask called the function for itself to find whether a record of the log was its own. It
    need not be deterministic: two subtasks took the record, or none did."""
    chance = Random(1)
    log = [(i, "x") for i in range(60)]
    found = taken([Custom(lambda record: chance.randrange(3))], [log, [], []], 3)
    assert Counter(r for log in found for r in log) == Counter(log)
    with pytest.raises(IncompatibleState, match="two answers for one record; start it at parallelism 3"):
        taken([Custom(lambda record: chance.randrange(2))], [log, [], []], 2)


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_what_all_had_unread_of_a_broadcast_comes_to_each_once(parallelism: int) -> None:
    """Copies come in another order where several subtasks broadcast."""
    log = [(0, "a"), (3, "b"), (4, "c")]
    assert taken([Broadcast()], [log, log[::-1], [log[1], log[0], log[2]]], parallelism) == [log] * parallelism


@pytest.mark.parametrize(
    "logs",
    [[[(0, "a")], []], [[], [(0, "a")]], [[(0, "a")], [(1, "b")]], [[(0, "a")], [(0, "a"), (0, "a")]]],
    ids=["the second has read it", "the first has", "each has read the other's", "one has read one of two"],
)
def test_what_some_had_read_of_a_broadcast_has_no_right_place_at_another_parallelism(logs: list[list[Any]]) -> None:
    """Whoever holds the state of both would get it once more, or never."""
    with pytest.raises(IncompatibleState, match="start it at parallelism 2"):
        taken([Broadcast()], logs, 1)
    assert taken([Broadcast()], logs, 2) == logs
    assert taken([Broadcast()], [[], []], 3) == [[], [], []]


@pytest.mark.parametrize(
    "kinds",
    [
        [Broadcast(), Forward()],
        [Custom(first), Rebalance()],
        [Hash(first), Custom(first)],
        [Custom(first), Custom(len)],
    ],
    ids=["broadcast", "function", "key and function", "two functions"],
)
def test_where_streams_are_fed_back_in_different_ways_nobody_can_tell(kinds: list[Partitioning]) -> None:
    with pytest.raises(IncompatibleState, match="different ways"):
        taken(kinds, LOGS, 2)
    assert taken(kinds, [[], [], []], 2) == [[], []]
