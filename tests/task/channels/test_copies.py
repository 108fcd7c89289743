"""A record that was handed over is shared: no operator may change it. `copy_records` copies; `debug` names the operator."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tailrace as tr
from tests.api.verbs.test_streams import records


def spoil(record: list[Any]) -> int:
    """Changes what it was handed."""
    record.append("spoilt")
    return len(record)


def boxes(env: tr.Environment, n: int = 3) -> tr.DataStream:
    return env.from_source(tr.sources.Generator(lambda i: [i], count=n))


class Grow(tr.KeyedProcessFunction):
    """Hands on the very list that it keeps, and changes it later."""

    kept = tr.ValueState(list, default=[])

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        self.kept.value.append(value[0])
        ctx.emit("aside", self.kept.value)
        yield self.kept.value


# copy_records.


def test_the_users_own_collection_is_copied_from() -> None:
    mine = [[1], [2]]
    assert records(lambda env: env.from_collection(mine).map(spoil), copy_records=True) == [2, 2]
    assert mine == [[1], [2]]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_branches_do_not_see_each_others_changes(parallelism: int) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        stream = boxes(env).map(lambda box: box)
        return stream.map(spoil).union(stream.map(spoil), stream.rebalance().map(spoil), stream.broadcast().map(spoil))

    assert set(records(program, parallelism, copy_records=True)) == {2}


def test_what_a_function_keeps_is_not_changed_by_who_comes_after_it() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        return boxes(env).key_by(lambda box: 0).process(Grow()).map(spoil)

    assert records(program, copy_records=True) == [2, 3, 4]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_what_a_function_changes_later_was_handed_on_as_it_was(parallelism: int) -> None:
    def grown(env: tr.Environment) -> tr.DataStream:
        return boxes(env).rebalance().key_by(lambda box: 0).process(Grow())

    seen = [[0], [0, 1], [0, 1, 2]] if parallelism == 1 else None
    for stream in (grown, lambda env: grown(env).side_output("aside")):
        found = records(lambda env, stream=stream: stream(env).rebalance().map(list), parallelism, copy_records=True)
        assert sorted(map(len, found)) == [1, 2, 3]
        assert seen is None or found == seen


def test_a_reducer_may_change_what_it_has_merged_so_far() -> None:
    def merge(a: list[int], b: list[int]) -> list[int]:
        a += b
        return a

    assert records(lambda env: boxes(env).key_by(lambda box: 0).reduce(merge), copy_records=True) == [
        [0],
        [0, 1],
        [0, 1, 2],
    ]


def test_one_object_given_twice_is_two_records() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        return boxes(env, 1).flat_map(lambda box: [box, box]).process(lambda box, ctx: [spoil(box)])

    assert records(program, copy_records=True) == [2, 2]


def test_a_record_that_cannot_be_copied_is_reported() -> None:
    with pytest.raises(tr.JobFailed, match=r"operator 'functions'.*cannot be pickled to be copied"):
        records(
            lambda env: boxes(env).map(lambda box: lambda: 1, name="functions").rebalance().map(id), copy_records=True
        )


def test_without_it_records_are_shared() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        stream = boxes(env, 1).map(lambda box: box)
        return stream.map(spoil).union(stream.map(spoil))

    assert sorted(records(program)) == [2, 3]


# debug.

GUILTY: dict[str, Callable[[tr.DataStream], tr.DataStream]] = {
    "map": lambda s: s.map(spoil, name="guilty"),
    "filter": lambda s: s.filter(spoil, name="guilty"),
    "flat_map": lambda s: s.flat_map(lambda box: [spoil(box)], name="guilty"),
    "process": lambda s: s.process(lambda box, ctx: [spoil(box)], name="guilty"),
    "keyed process": lambda s: s.key_by(len).process(lambda box, ctx: [spoil(box)], name="guilty"),
    "reduce": lambda s: s.key_by(len).reduce(lambda a, b: [spoil(b)], name="guilty"),
    "behind a shuffle": lambda s: s.rebalance().map(spoil, name="guilty"),
    "in the middle of a chain": lambda s: s.map(lambda b: b).filter(bool).map(spoil, name="guilty").map(abs),
    "after one that passes it on": lambda s: s.process(lambda b, ctx: [b]).process(
        lambda b, ctx: [spoil(b)], name="guilty"
    ),
    "in one of two branches": lambda s: s.map(lambda b: len(b)).union(s.map(spoil, name="guilty")),
}


@pytest.mark.parametrize("case", GUILTY)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_who_changes_a_record_is_named(case: str, parallelism: int) -> None:
    with pytest.raises(tr.JobFailed, match="the operator changed a record that it received") as caught:
        records(lambda env: GUILTY[case](boxes(env, 6)), parallelism, debug=True)
    assert caught.value.operator == "guilty"
    assert caught.value.record is not None and "spoilt" in caught.value.record


def test_who_changes_nothing_is_left_alone() -> None:
    class Odd:
        """Cannot be pickled, and is watched by its repr."""

        def __init__(self) -> None:
            self.hidden = lambda: 1

        def __repr__(self) -> str:
            return "odd"

    def program(env: tr.Environment) -> tr.DataStream:
        stream = env.from_collection([[1], (2, [3]), {"a": {4}}, None, 5.0, Odd()]).map(lambda x: x)
        return (
            stream.filter(lambda x: True)
            .key_by(lambda x: 0)
            .process(lambda x, ctx: [x])
            .map(lambda x: type(x).__name__)
        )

    assert records(program, debug=True) == ["list", "tuple", "dict", "NoneType", "float", "Odd"]
