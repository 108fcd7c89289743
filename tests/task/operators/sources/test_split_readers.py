"""One reader of all splits of a subtask: its contract, and what its task makes of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr


class Topic(tr.Source):
    """Partitions, each a list of records, which one reader in each subtask reads by turns, or a reader for each."""

    description = "topic"

    def __init__(self, partitions: dict[str, list[Any]], shared: bool = True, at_once: int = 3) -> None:
        self.partitions, self.shared, self.at_once = partitions, shared, at_once

    def splits(self, parallelism: int) -> list[str]:
        return list(self.partitions)

    def reader(self, split: str, position: Any = None) -> tr.Reader:
        return Partition(self.partitions[split], position or 0)

    def split_reader(self, ctx: tr.SourceContext) -> tr.SplitReader | None:
        return Consumer(self) if self.shared else None


class Partition(tr.Reader):
    def __init__(self, records: list[Any], at: int) -> None:
        self.records, self.at = records, at

    def read(self, limit: int, now: float) -> Any:
        if self.at == len(self.records):
            return None
        found = self.records[self.at : self.at + limit]
        self.at += len(found)
        return found

    @property
    def position(self) -> int:
        return self.at


class Consumer(tr.SplitReader):
    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.readers: dict[int, tr.Reader] = {}
        self.paused: frozenset[int] = frozenset()
        self.calls: list[Any] = []

    def assign(self, splits: Sequence[tr.AssignedSplit]) -> None:
        self.calls.append(("assign", [split.split for split in splits]))
        for number, split, position in splits:
            self.readers[number] = self.topic.reader(split, position)

    def revoke(self, splits: Sequence[int]) -> None:
        self.calls.append(("revoke", list(splits)))
        for number in splits:
            del self.readers[number]

    def pause(self, splits: Collection[int]) -> None:
        self.calls.append(("pause", sorted(splits)))
        self.paused = frozenset(splits)

    def read(self, limit: int, now: float) -> Iterator[tuple[int, Any]]:
        for number, reader in self.readers.items():
            if number not in self.paused and limit:
                given = reader.read(min(limit, self.topic.at_once), now)
                limit -= len(given or ())
                yield number, given

    def position(self, split: int) -> Any:
        return self.readers[split].position


def test_one_reader_reads_all_splits_of_a_subtask_in_their_order() -> None:
    topic = Topic({name: [(name, i) for i in range(size)] for name, size in [("a", 7), ("b", 0), ("c", 4)]})
    env = tr.Environment(parallelism=1)
    out = env.from_source(topic).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    found = out.result()
    assert sorted(found) == [("a", i) for i in range(7)] + [("c", i) for i in range(4)]
    for name in "ac":
        assert [i for n, i in found if n == name] == sorted(i for n, i in found if n == name)
    assert [n for n, _ in found] == ["a"] * 3 + ["c"] * 3 + ["a"] * 3 + ["c", "a"], "splits are read by turns"


@pytest.mark.parametrize("parallelism", [1, 3])
def test_it_gives_what_readers_of_each_split_give(parallelism: int) -> None:
    partitions = {str(p): [(p, i) for i in range(p * 5)] for p in range(6)}
    found = []
    for shared in (True, False):
        env = tr.Environment(parallelism=parallelism)
        stream = env.from_source(Topic(partitions, shared)).assign_timestamps(lambda r: r[1])
        out = stream.key_by(lambda r: r[0] % 2).window(tr.Tumbling(4)).count().sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        found.append(sorted(out.result()))
    assert found[0] == found[1] and found[0]


class Batches(Topic):
    form = "columns"
    columns = ("n",)

    def split_reader(self, ctx: tr.SourceContext) -> tr.SplitReader:
        return BatchOfEach(self)


class BatchOfEach(Consumer):
    """Three rows of each split, and its end behind them."""

    def read(self, limit: int, now: float) -> Any:
        for number in self.readers:
            yield number, pa.record_batch({"n": [number, number, number]})
            yield number, None


def test_columns_come_from_it_as_from_a_reader() -> None:
    env = tr.Environment(parallelism=1)
    out = env.from_source(Batches({"a": [], "b": []})).to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [row["n"] for row in out.result()] == [0, 0, 0, 1, 1, 1]


class Wrong(Topic):
    def __init__(self, returned: Any) -> None:
        super().__init__({"a": [1], "b": [2]})
        self.returned = returned

    def split_reader(self, ctx: tr.SourceContext) -> Any:
        return self.returned if self.returned == "no reader" else ReturnsWhatever(self)


class ReturnsWhatever(Consumer):
    def read(self, limit: int, now: float) -> Any:
        assert isinstance(self.topic, Wrong)
        return self.topic.returned


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ("no reader", "Wrong.split_reader must return a tr.SplitReader, or None, not str"),
        (None, "ReturnsWhatever.read returned a NoneType; a tr.SplitReader must return pairs"),
        ({0: [1]}, "ReturnsWhatever.read returned a dict; a tr.SplitReader must return pairs"),
        ([(0, [1]), [7]], "ReturnsWhatever.read returned a list with a list in it; a tr.SplitReader must return pairs"),
        ([(2, [1])], "returned records of split 2, which is not assigned, or paused; it may return those of 0, 1"),
        ([(0, {"a": 1})], "ReturnsWhatever.read returned a dict; a source of rows must return a list of records"),
        ([(0, [1] * 3_000), (1, [1] * 3_000)], "returned 3000 records, and at most"),
    ],
)
def test_a_reader_that_breaks_its_contract_is_the_users_error(returned: Any, error: str) -> None:
    env = tr.Environment(parallelism=1)
    env.from_source(Wrong(returned)).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=error):
        tr.testing.run(env)
