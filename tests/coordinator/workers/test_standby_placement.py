"""Which standby holds the state of which slices."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from tailrace.coordinator.workers.standby_placement import Executor, deal

HERE, THERE, ELSEWHERE = ("a", "1"), ("a", "2"), ("b", "1")


def spread(dealt: Mapping[int, Sequence[int]], slots: int) -> list[list[int]]:
    """The processes of each slice."""
    return [[process for process, has in dealt.items() if slot in has] for slot in range(slots)]


def moved(before: Mapping[int, Sequence[int]], after: Mapping[int, Sequence[int]]) -> list[tuple[int, int]]:
    """What a process that lives must read that it did not hold: (process, slice)."""
    return [(one, slot) for one in after for slot in after[one] if one in before and slot not in before[one]]


@pytest.mark.parametrize(("slots", "count", "replicas"), [(8, 2, 1), (3, 2, 2), (8, 5, 2), (5, 9, 3), (1, 1, 1)])
def test_in_one_executor_each_slice_has_its_replicas_in_different_processes_and_all_have_as_many(
    slots: int, count: int, replicas: int
) -> None:
    dealt = deal(dict.fromkeys(range(count), HERE), {}, [HERE] * slots, replicas, slots)
    assert [len(set(one)) for one in spread(dealt, slots)] == [replicas] * slots
    loads = [len(has) for has in dealt.values()]
    assert max(loads) - min(loads) <= 1


def test_where_there_are_several_executors_two_replicas_of_a_slice_are_in_two() -> None:
    executors = {4: HERE, 5: HERE, 6: THERE, 7: THERE}
    dealt = deal(executors, {}, [None] * 4, 2, 2)
    assert all({executors[one] for one in found} == {HERE, THERE} for found in spread(dealt, 4)), dealt
    assert [len(has) for has in dealt.values()] == [2, 2, 2, 2]


def test_a_second_replica_is_rather_not_there_than_with_the_first_one() -> None:
    """Three of four processes are in one executor: it could hold both replicas of four slices."""
    executors = {8: HERE, 9: HERE, 10: HERE, 11: THERE}
    dealt = deal(executors, {}, [None] * 8, 2, 4)
    found = spread(dealt, 8)
    assert all(len({executors[one] for one in of}) == len(of) for of in found), found
    assert sorted(map(len, found)) == [1, 1, 1, 1, 2, 2, 2, 2] and len(dealt[11]) == 4


def test_a_slice_is_better_not_mirrored_in_the_executor_of_its_own_worker() -> None:
    homes = [HERE, THERE, HERE, THERE]
    assert deal({4: HERE, 5: THERE}, {}, homes, 1, 2) == {4: [1, 3], 5: [0, 2]}
    assert deal({4: HERE, 5: HERE}, {}, homes, 1, 2) == {4: [0, 1], 5: [2, 3]}, "but rather there than nowhere"
    # 5 is wanted by both: the first slice goes on to the other process that it may have.
    assert deal({4: ELSEWHERE, 5: THERE}, {}, [HERE, ELSEWHERE], 1, 1) == {4: [0], 5: [1]}


def test_what_a_process_holds_already_it_keeps() -> None:
    before = {4: [0, 1, 2, 3]}
    assert deal({4: HERE}, {}, [HERE] * 4, 1, 4) == before, "one for all, where the others have not come"
    after = deal({4: HERE, 5: THERE}, before, [HERE, HERE, THERE, THERE], 1, 4)
    assert after == {4: [2, 3], 5: [0, 1]}, "it gives up those that have their worker beside them"
    assert deal({5: THERE, 6: THERE}, after, [HERE] * 4, 1, 4) == {5: [0, 1], 6: [2, 3]}, "the new one gets the rest"


def test_two_replicas_part_when_another_executor_comes() -> None:
    before = deal({4: HERE, 5: HERE}, {}, [None] * 2, 2, 2)
    assert before == {4: [0, 1], 5: [0, 1]}
    after = deal({4: HERE, 5: HERE, 6: THERE}, before, [None] * 2, 2, 2)
    assert all(6 in found and len(found) == 2 for found in spread(after, 2)), after
    assert moved(before, after) == []


def test_nobody_holds_more_than_it_is_to_have_memory_for() -> None:
    assert deal({8: HERE}, {}, [HERE] * 8, 1, 4) == {8: [0, 1, 2, 3]}
    assert deal({8: HERE}, {}, [HERE, THERE] * 4, 1, 4) == {8: [1, 3, 5, 7]}, "rather those whose worker is elsewhere"
    assert deal({}, {}, [HERE] * 8, 1, 4) == {}


def test_a_slice_moves_away_from_its_own_worker_when_a_process_elsewhere_has_room() -> None:
    before = deal({4: HERE}, {}, [HERE] * 2, 1, 2)
    assert before == {4: [0, 1]}
    assert deal({4: HERE, 5: THERE}, before, [HERE] * 2, 1, 2) == {4: [], 5: [0, 1]}


def test_a_process_that_follows_a_worker_keeps_its_slice_and_gets_no_other() -> None:
    """The process got the slice of the worker whose hot standby had taken its slot; the standby that came then got the one
    that was followed already, and nobody followed the other worker any more."""
    assert deal({3: HERE}, {3: [1]}, [HERE] * 2, 1, 1, {3: 1}) == {3: [1]}
    assert deal({2: HERE, 3: HERE}, {3: [1]}, [HERE] * 2, 1, 1, {3: 1}) == {2: [0], 3: [1]}
    assert deal({2: THERE, 3: HERE}, {3: [0, 1]}, [THERE, HERE], 1, 2, {3: 1}) == {2: [0], 3: [1]}


def chance(rng: random.Random) -> tuple[dict[int, Executor], list[Executor | None], int, int]:
    slots, count = rng.randint(1, 12), rng.randint(1, 6)
    where = [(f"h{rng.randint(0, 1)}", str(rng.randint(0, 1))) for _ in range(rng.randint(1, 3))]
    executors = {slots + number: rng.choice(where) for number in range(count)}
    homes = [rng.choice([None, *where]) for _ in range(slots)]
    replicas = rng.randint(1, 3)
    return executors, homes, replicas, -(-slots * min(replicas, count) // count)


@pytest.mark.parametrize("seed", range(100))
def test_whoever_comes_and_goes(seed: int) -> None:
    """Replicas are apart, nobody has more than it may have, and who holds a slice is moved only where it has to be."""
    rng = random.Random(seed)
    executors, homes, replicas, most = chance(rng)
    before: dict[int, list[int]] = {}
    for _ in range(4):
        here = {one: where for one, where in executors.items() if rng.random() < 0.7}
        dealt = deal(here, before, homes, replicas, most)
        assert dealt == deal(here, before, homes, replicas, most)
        several = len(set(here.values())) > 1
        for found in spread(dealt, len(homes)):
            assert len(found) <= replicas
            assert not several or len({here[one] for one in found}) == len(found)
        assert all(len(has) <= most for has in dealt.values())
        assert deal(here, dealt, homes, replicas, most) == dealt, "nobody has come or gone, and nothing moves"
        followed = {one: has[0] for one, has in dealt.items() if len(has) == 1 and rng.random() < 0.5}
        left = {one: where for one, where in here.items() if one in followed or rng.random() < 0.5}
        followed = {one: slot for one, slot in followed.items() if one in left}
        anew = deal(left, dealt, homes, replicas, most, followed)
        assert all(anew[one] == [slot] for one, slot in followed.items())
        assert all(len(has) <= most for has in anew.values())
        before = dealt
