"""Streams of changes of a result, of streams of changes of edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tailrace as tr
from tailrace.graphs.live.components import LiveComponents
from tailrace.graphs.live.cores import LiveCores
from tailrace.graphs.live.degrees import LiveDegrees, LiveEdges, edge_of, ends_of
from tailrace.graphs.live.edges import checked_change
from tailrace.graphs.live.labels import LiveLabels
from tailrace.graphs.live.paths import LivePaths
from tailrace.graphs.live.ranks import LiveRanks


def run(function: tr.KeyedProcessFunction, changes: tr.DataStream, verb: str, uid: str | None) -> tr.DataStream:
    """The function on all changes, in one subtask: it reaches all vertices there. Its state belongs to `uid`."""
    return changes.key_by(lambda _: None).process(function, name=verb, parallelism=1, uid=uid)


def connected_components(changes: tr.DataStream, uid: str | None) -> tr.DataStream:
    """Changes of (id, component)."""
    return run(LiveComponents(), changes, "connected_components", uid)


def degrees(changes: tr.DataStream, uid: str | None) -> tr.DataStream:
    """Changes of (id, degree). Each vertex is a key of its own, and each edge another one."""
    edges = changes.map(lambda change: checked_change(change), name="degrees.changes")
    found = edges.flat_map(ends_of).key_by(lambda record: record[0]).process(LiveDegrees(), name="degrees", uid=uid)
    of_edges = None if uid is None else f"{uid}.edges"
    return found.union(edges.key_by(edge_of).process(LiveEdges(), name="degrees.edges", uid=of_edges))


def shortest_paths(changes: tr.DataStream, sources: Sequence[Any], directed: bool, uid: str | None) -> tr.DataStream:
    """Changes of (id, source, distance, parent)."""
    return run(LivePaths(vertices("shortest_paths", sources), directed), changes, "shortest_paths", uid)


def pagerank(
    changes: tr.DataStream, damping: float, tolerance: float, sources: Sequence[Any] | None, uid: str | None
) -> tr.DataStream:
    """Changes of (id, score)."""
    if tolerance < 1e-12:
        raise tr.ConfigError(f"pagerank: of a stream of changes tolerance must be 1e-12 or more, not {tolerance!r}")
    given = None if sources is None else vertices("pagerank", sources)
    return run(LiveRanks(damping, tolerance, given), changes, "pagerank", uid)


def k_core(changes: tr.DataStream, uid: str | None) -> tr.DataStream:
    """Changes of (id, core)."""
    return run(LiveCores(), changes, "k_core", uid)


def label_propagation(changes: tr.DataStream, steps: int, uid: str | None) -> tr.DataStream:
    """Changes of (id, label)."""
    return run(LiveLabels(steps), changes, "label_propagation", uid)


def vertices(verb: str, ids: Sequence[Any]) -> list[Any]:
    """Ids that a user has given, each once."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise tr.TypeMismatch(f"{verb}: sources must be a list of ids, not {ids!r}")
    kinds = {type(one) for one in ids}
    if kinds != {int} and kinds != {str}:
        raise tr.ConfigError(f"{verb}: sources must be ids of vertices, all whole numbers or all texts, not {ids!r}")
    return list(dict.fromkeys(ids))
