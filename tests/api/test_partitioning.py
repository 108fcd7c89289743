"""Which subtask gets a record."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.keygroups import key_group, owner

N = 120


def where(partition: Callable[[tr.DataStream], Any], senders: int, receivers: int) -> dict[int, list[Any]]:
    """For each receiving subtask the numbers below N that it got, in order."""
    env = tr.Environment(parallelism=receivers, max_parallelism=64)
    numbers = env.from_source(tr.sources.Sequence(0, N), parallelism=senders)
    result = partition(numbers).process(lambda value, ctx: [(ctx.subtask, value)])
    out = result.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    found = defaultdict(list)
    for subtask, value in out.result():
        found[subtask].append(value)
    return dict(found)


SHAPES = [(1, 1), (1, 3), (2, 2), (2, 5), (3, 2), (4, 1), (5, 5)]


@pytest.mark.parametrize(("senders", "receivers"), SHAPES)
@pytest.mark.parametrize("verb", ["rebalance", "shuffle", "rescale"])
def test_every_record_goes_to_one_subtask(verb: str, senders: int, receivers: int) -> None:
    found = where(lambda stream: getattr(stream, verb)(), senders, receivers)
    assert sorted(value for values in found.values() for value in values) == list(range(N))
    assert len(found) == receivers


@pytest.mark.parametrize(("senders", "receivers"), SHAPES)
def test_rebalance_is_even_to_one_record_per_sender(senders: int, receivers: int) -> None:
    counts = [len(values) for values in where(lambda stream: stream.rebalance(), senders, receivers).values()]
    assert max(counts) - min(counts) <= senders


def test_rebalance_starts_at_another_subtask_in_each_sender() -> None:
    # Four senders with one record each: not all of them go to subtask 0.
    env = tr.Environment(parallelism=4)
    found = env.from_source(tr.sources.Sequence(0, 4)).rebalance().process(lambda value, ctx: [ctx.subtask])
    out = found.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(out.result()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("senders", "receivers", "shares"),
    [(2, 4, {0: {0, 1}, 1: {2, 3}}), (4, 2, {0: {0}, 1: {0}, 2: {1}, 3: {1}}), (3, 3, {0: {0}, 1: {1}, 2: {2}})],
)
def test_rescale_serves_a_contiguous_share(senders: int, receivers: int, shares: dict[int, set[int]]) -> None:
    found = where(lambda stream: stream.rescale(), senders, receivers)
    for sender, share in shares.items():
        assert {subtask for subtask, values in found.items() if any(v % senders == sender for v in values)} == share


@pytest.mark.parametrize(("senders", "receivers"), SHAPES)
def test_broadcast_gives_every_record_to_every_subtask(senders: int, receivers: int) -> None:
    found = where(lambda stream: stream.broadcast(), senders, receivers)
    assert {subtask: sorted(values) for subtask, values in found.items()} == {
        subtask: list(range(N)) for subtask in range(receivers)
    }


@pytest.mark.parametrize(("senders", "receivers"), SHAPES)
def test_partition_by_takes_the_function_modulo_the_subtasks(senders: int, receivers: int) -> None:
    found = where(lambda stream: stream.partition_by(lambda x: -x), senders, receivers)
    assert {subtask: sorted(values) for subtask, values in found.items()} == {
        subtask: [x for x in range(N) if -x % receivers == subtask] for subtask in range(receivers)
    }


@pytest.mark.parametrize(("senders", "receivers"), SHAPES)
def test_a_key_goes_to_the_owner_of_its_group(senders: int, receivers: int) -> None:
    found = where(lambda stream: stream.key_by(lambda x: x % 10), senders, receivers)
    assert {subtask: {value % 10 for value in values} for subtask, values in found.items()} == {
        subtask: {key for key in range(10) if owner(key_group(key, 64), receivers, 64) == subtask} for subtask in found
    }


@pytest.mark.parametrize(("senders", "receivers"), SHAPES)
def test_a_record_passes_no_other_of_its_sender_and_target(senders: int, receivers: int) -> None:
    for partition in (
        lambda stream: stream.rebalance(),
        lambda stream: stream.broadcast(),
        lambda stream: stream.key_by(lambda x: x % 7),
    ):
        for values in where(partition, senders, receivers).values():
            for sender in range(senders):
                mine = [value for value in values if value % senders == sender]
                assert mine == sorted(mine)


def test_shuffle_follows_the_seed() -> None:
    assert where(lambda stream: stream.shuffle(), 2, 3) == where(lambda stream: stream.shuffle(), 2, 3)


def test_columns_are_partitioned_as_rows_are() -> None:
    import pyarrow as pa

    schema = pa.schema([("x", pa.int64()), ("name", pa.string())])
    rows = [(i, f"n{i % 9}") for i in range(N)]

    def told(form: str) -> Counter[Any]:
        env = tr.Environment(parallelism=3)
        stream = env.from_collection(rows).to_columns(schema)
        stream = stream if form == "columns" else stream.to_rows()
        out = stream.key_by(("name", "x")).process(lambda r, ctx: [(ctx.subtask, r.x)]).sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        return Counter(out.result())

    assert told("rows") == told("columns")


@pytest.mark.parametrize("chosen", [1.0, "1", None, float("inf"), [1]])
def test_partition_by_wants_whole_numbers(chosen: Any) -> None:
    why = "operator 'next', subtask 0, record 0: partition_by must return whole numbers"
    with pytest.raises(tr.JobFailed, match=why):
        env = tr.Environment(parallelism=2)
        env.from_collection([0], parallelism=1).partition_by(lambda x: chosen).map(abs, name="next").sink_to(
            tr.sinks.Print()
        )
        tr.testing.run(env)
