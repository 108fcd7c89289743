"""The benchmark's label propagation, two subtasks driven by hand: whatever comes first, the labels are right."""

import random
from collections import deque

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("benchmarks.propagate")

from benchmarks.graphs import Graph, expected
from benchmarks.propagate import EDGE, LABEL, Edges, Vertices, batch_of, distinct


def owner(v: np.ndarray) -> np.ndarray:
    return (v * 2654435761 >> 7) % 2


def parted(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """What of a batch goes to each subtask."""
    owners = owner(batch.column(0).to_numpy())
    return [batch.filter(pa.array(owners == subtask)) for subtask in (0, 1)]


def propagated(graph: Graph, size: int, seed: int) -> tuple[int, int, int, int]:
    """Edges and messages in an order of chance, in batches of this size."""
    chance = random.Random(seed)
    subtasks = [Vertices(), Vertices()]
    for one in subtasks:
        one.open(None)  # type: ignore[arg-type]
    a, b = graph.ends()
    edges = parted(batch_of(np.concatenate([a, b]), np.concatenate([b, a]), EDGE))
    queues = [deque(part.slice(at, size) for at in range(0, len(part), size)) for part in edges]
    feedback: list[deque[pa.RecordBatch]] = [deque(), deque()]
    while any(queues) or any(feedback):
        here = chance.randrange(2)
        queue = chance.choice([queues[here], feedback[here]])
        if not queue:
            continue
        for made in subtasks[here].map_batches(queue.popleft()) or ():
            for waiting, part in zip(feedback, parted(made), strict=True):
                waiting.extend([part] if len(part) else [])
    found = [one.finish() for one in subtasks]
    assert all((batch.column(2).to_numpy() == LABEL).all() for batch in found)
    v, labels = (np.concatenate([batch.column(i).to_numpy() for batch in found]) for i in (0, 1))
    checksum = int(((v * 7919 + labels * 104729) % 1_000_003).sum())
    return len(v), len(np.unique(labels)), int(labels.sum()), checksum


@pytest.mark.parametrize("seed", range(10))
def test_labels_are_right_in_whatever_order_edges_and_messages_come(seed: int) -> None:
    graph = Graph(vertices=300, edges=280, path=40)
    assert propagated(graph, size=1 + 4 * seed, seed=seed) == expected(graph)


def test_many_changes_at_once_wait_for_the_lap() -> None:
    graph = Graph(vertices=4000, edges=12_000, path=100)
    assert propagated(graph, size=512, seed=1) == expected(graph)


def test_neighbours_are_found_among_sorted_and_recent_edges() -> None:
    edges, chance = Edges(), np.random.default_rng(3)
    all_v, all_x = np.empty(0, np.int64), np.empty(0, np.int64)
    for _ in range(30):
        v, x = chance.integers(0, 50, (2, 20))
        edges.add(v, x)
        all_v, all_x = np.concatenate([all_v, v]), np.concatenate([all_x, x])
        expected = distinct(chance.integers(0, 60, 9))
        some = np.isin(all_v, expected)
        assert sorted(zip(*edges.of(expected), strict=True)) == sorted(zip(all_v[some], all_x[some], strict=True))
