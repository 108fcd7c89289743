"""The graph of *components*, the answer that every system must reach, and how it is checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

SEED = 7
CHECKSUM = "(v * 7919 + label * 104729) % 1000003"


@dataclass(frozen=True)
class Graph:
    """Random edges, and a path 0-1-2-... of `path` vertices that no other edge touches."""

    vertices: int = 200_000
    edges: int = 1_000_000
    path: int = 0

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The two ends of each edge, in random order of edges."""
        chance = np.random.default_rng(SEED)
        steps = np.arange(max(0, self.path - 1))
        others = chance.integers(self.path, self.vertices, size=(self.edges - len(steps), 2))
        both = np.concatenate([np.stack([steps, steps + 1], axis=1), others])
        chance.shuffle(both)
        return both[:, 0], both[:, 1]


@lru_cache
def expected(graph: Graph) -> tuple[int, int, int, int]:
    """How many vertices have an edge, in how many components; sums of their labels and of the checksum."""
    a, b = graph.ends()
    labels = np.arange(graph.vertices)
    while True:
        before = labels.copy()
        least = np.minimum(labels[a], labels[b])
        for end in (a, b):
            np.minimum.at(labels, labels[end], least)
        labels = labels[labels]
        if (labels == before).all():
            break
    v = np.unique(np.concatenate([a, b]))
    labels = labels[v]
    checksum = int(((v * 7919 + labels * 104729) % 1_000_003).sum())
    return len(v), len(np.unique(labels)), int(labels.sum()), checksum


def write(graph: Graph, folder: str) -> str:
    """The edges as Parquet files, a part for each of two cores: where they are read from is the same for everybody."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    a, b = graph.ends()
    path = Path(folder, f"edges-{graph.path}")
    path.mkdir()
    half = len(a) // 2
    for part, some in enumerate((slice(0, half), slice(half, None))):
        pq.write_table(pa.table({"a": a[some], "b": b[some]}), path / f"part-{part}.parquet")
    return str(path)


def answer(labels: Any) -> tuple[int, int, int, int]:
    """What a DataFrame (v, label) comes to. Computing it is a part of the time that is measured."""
    columns = ("count(*)", "count(distinct label)", "sum(label)", f"sum({CHECKSUM})")
    return tuple(labels.selectExpr(*columns).first())


def verify(graph: Graph, found: tuple[int, int, int, int]) -> None:
    """Raises unless the answer is exactly right."""
    if found != expected(graph):
        raise AssertionError(f"components: {found}, expected {expected(graph)}")
