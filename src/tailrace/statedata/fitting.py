"""A dry run: a check which parts of a checkpoint would fit a dataflow, and which would not. Starts nothing.

It makes the checks that a start makes before anything runs (`api.restore.compatibility`). In addition it restores, as a
trial, some entries of every state, and the state of operators that is not keyed: workers would refuse these only once they
run.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tailrace.api.functions import DECLARE_STATE
from tailrace.api.restore.compatibility import (
    continues,
    declared_tables,
    may_be_dropped,
    misfits_of,
    stateful,
    unreadable,
)
from tailrace.api.restore.dry_run import RestoreCheck
from tailrace.elements.valuepickling import load_described
from tailrace.errors import CheckpointCorrupt, ConfigError, IncompatibleState, error_text
from tailrace.graph.graph import Node
from tailrace.graph.operators import Source
from tailrace.state.backend import MetaPart
from tailrace.state.format import OURS
from tailrace.state.handles import states_of
from tailrace.state.manifest import OperatorRecord
from tailrace.state.memory_backend import MemoryBackend
from tailrace.state.operator_state import OperatorStates, declared_operator_states
from tailrace.state.parts import BlockOf, MetaOf
from tailrace.statedata.columns import in_samples
from tailrace.statedata.listings import source_state
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.reading import read_state
from tailrace.task.operators.broadcasts.waiting import without_waiting
from tailrace.task.subtask.snapshot import read_meta

TRIED = 10_000
"""Approximate number of entries of an operator that are restored as a trial."""


@dataclass
class _Where:
    """A stand-in for a subtask that does not run."""

    name: str
    uid: str
    subtask: int
    parallelism: int


def restore_check(
    stored: StoredCheckpoint,
    nodes: Sequence[Node],
    max_parallelism: int,
    allow_dropped_state: bool | Collection[str] = False,
) -> RestoreCheck:
    """The result that a start of these operators from the checkpoint would have. `max_parallelism` is the one of the
    dataflow. Raises `CheckpointCorrupt` for a checkpoint that is damaged."""
    manifest, records = stored.manifest, {one.uid: one for one in stored.manifest.operators}
    wrong = misfits_of(manifest, nodes, max_parallelism, allow_dropped_state)
    refused = misfits_of(manifest, nodes, manifest.max_parallelism)
    restored, fresh, tried = list[str](), list[str](), list[str]()
    for node in nodes:
        record = records.get(node.uid)
        if record is not None and record.stateful and continues(record, node):
            if not any(f"(uid {node.uid!r})" in one for one in wrong):
                tried += _try(stored, node, record, allow_dropped_state)
            restored.append(_tables_text(stored, node, record))
            fresh += _new_states(node, record)
        elif stateful(node) and (record is None or not continues(record, node)):
            fresh.append(f"operator {node.name!r} (uid {node.uid!r}): the checkpoint has nothing of it")
    dropped = [one for one in refused if one not in wrong]
    return RestoreCheck(stored.url, (*wrong, *tried), tuple(restored), tuple(fresh), tuple(dropped))


def _tables_text(stored: StoredCheckpoint, node: Node, record: OperatorRecord) -> str:
    mine = {table.name for table in declared_tables(node)}
    held = stored.sizes()
    states = [
        f"{table.name!r} ({table.kind}, {held.get((record.uid, table.name), (0, 0))[0]} entries)"
        for table in record.tables
        if table.name in mine and table.kind not in OURS
    ]
    states = states or ["what it has of its own"]
    moved = (
        ""
        if node.parallelism == record.parallelism
        else f", at parallelism {node.parallelism} after {record.parallelism}"
    )
    return f"operator {node.name!r} (uid {node.uid!r}) with {', '.join(states)}{moved}"


def _new_states(node: Node, record: OperatorRecord) -> list[str]:
    there = {table.name for table in record.tables}
    return [
        f"state {table.name!r} ({table.kind}) of operator {node.name!r} (uid {node.uid!r})"
        for table in declared_tables(node)
        if table.name not in there and table.kind not in OURS
    ]


def _try(
    stored: StoredCheckpoint, node: Node, record: OperatorRecord, allowed: bool | Collection[str]
) -> Iterator[str]:
    """The errors of a trial restore of an operator, as texts."""
    function: Any = getattr(node.operator, "fn", None)
    dropped = may_be_dropped(node.uid, allowed)
    if isinstance(node.operator, Source) and getattr(node.operator.source, "tried_dry", False):
        yield from _read_on(stored, node, node.operator.source)
    for attempt in (_try_keyed, _own):
        try:
            attempt(stored, node, record, function, dropped)
        except CheckpointCorrupt:
            raise
        except IncompatibleState as error:
            yield str(error)
        except msgspec.MsgspecError as error:
            yield unreadable(node.name, node.uid, error)


def _try_keyed(stored: StoredCheckpoint, node: Node, record: OperatorRecord, function: Any, dropped: bool) -> None:
    if not isinstance(function, DECLARE_STATE):
        return
    backend = MemoryBackend(stored.manifest.max_parallelism, node.uid, 0, dropped, operator=node.name)
    states = states_of(function).values()
    for state in states:
        backend.table(state.name, kind=state.kind, type=state.type, encoding=state.encoding, ttl=state.ttl)
    names = {state.name for state in states}
    tried = 0
    for groups in in_samples(stored.weights(node.uid, names)):
        for part in read_state(stored.store, stored.manifest, {node.uid: groups}, tables=names):
            if isinstance(part, BlockOf):
                backend.apply(part.table, part.group, part.data)
                tried += part.count
        if tried >= TRIED:
            return


def _read_on(stored: StoredCheckpoint, node: Node, source: Any) -> Iterator[str]:
    """The first error of a source that is to read on from the position of another source, as a text."""
    for part in [part for index in stored.indexes.values() for part in index.operators if part.uid == node.uid]:
        state = source_state(part)
        for held in state.held if state is not None else ():
            try:
                source.reader(
                    load_described(held.split), None if held.position is None else load_described(held.position)
                )
            except ConfigError as error:
                yield f"operator {node.name!r} (uid {node.uid!r}): {error.args[0]}"
                return
            except Exception as error:
                yield (
                    f"operator {node.name!r} (uid {node.uid!r}): the checkpoint is of another source, at which this one "
                    f"cannot go on ({error_text(error)}); give it another uid"
                )
                return


def _own(stored: StoredCheckpoint, node: Node, record: OperatorRecord, function: Any, dropped: bool) -> None:
    if function is None or not declared_operator_states(function):
        return
    parts = []
    for one in read_state(stored.store, stored.manifest, {node.uid: (0, 0)}, tables=()):
        if isinstance(one, MetaOf) and one.data is not None:
            data = read_meta(one.data).data
            parts.append(without_waiting(MetaPart(one.subtask, one.parallelism, one.finished, data)))
    for subtask in range(node.parallelism):
        where = _Where(node.name, node.uid, subtask, node.parallelism)
        OperatorStates(copy.copy(function), where, dropped).restore(parts, over=all(record.finished))
