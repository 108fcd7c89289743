"""Whether a checkpoint fits the dataflow that is to be started from it, as far as that can be known before anything
starts: the tables that the operators declare are compared with those that were written, and the sinks with those that
have prepared output which is not published."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tailrace.api import connectors
from tailrace.api.functions import CoProcessFunction, ProcessFunction
from tailrace.errors import IncompatibleState
from tailrace.graph.graph import Node
from tailrace.graph.operators import (
    Aggregate,
    AssignTimestamps,
    CoProcess,
    KeyedProcess,
    MapBatches,
    Process,
    Reduce,
    Sink,
    Source,
    Window,
)
from tailrace.state.codecs import codec_for, type_name
from tailrace.state.format import TableInfo
from tailrace.state.handles import declared
from tailrace.state.manifest import OperatorRecord, Prepared
from tailrace.state.operator_state import declared_operator_states

_OURS = ("timers", "rounds")
"""Kinds of tables that we keep beside what the user declares."""
_AGGREGATES = {Reduce: "reduce", Aggregate: "aggregate", Window: "window"}
_TIMERS = [TableInfo("timers:event", "timers"), TableInfo("timers:processing", "timers")]


def declared_tables(node: Node) -> list[TableInfo]:
    """The tables of keyed state that an operator will have, timers included."""
    operator = node.operator
    kind = _AGGREGATES.get(type(operator))
    if kind is not None:
        found = [TableInfo("aggregate", kind, type="object")]
        return [*found, _TIMERS[0]] if kind == "window" else found
    if isinstance(operator, KeyedProcess | CoProcess):
        return [*_states(operator.fn), *_TIMERS]
    return _states(operator.fn) if isinstance(operator, Process) else []


def _states(function: Any) -> list[TableInfo]:
    if not isinstance(function, ProcessFunction | CoProcessFunction):
        return []
    return [
        TableInfo(
            state.name,
            state.kind,
            codec_for(state.kind, state.type, state.encoding, state.name).name,
            type_name(state.type),
        )
        for state in declared(function).values()
    ]


def stateful(node: Node) -> bool:
    """Whether an operator may have anything to restore."""
    operator = node.operator
    if isinstance(operator, Source | AssignTimestamps | Sink) or declared_tables(node):
        return True
    return isinstance(operator, Process | MapBatches) and bool(declared_operator_states(operator.fn))


def check(
    records: Sequence[OperatorRecord],
    nodes: Sequence[Node],
    allow_dropped_state: bool | Collection[str] = False,
    *,
    max_parallelism: tuple[int, int] | None = None,
    prepared: Sequence[Prepared] = (),
    in_flight: Mapping[str, int] | None = None,
) -> None:
    """Raises one `IncompatibleState` that lists everything that does not fit, and says what to do. `max_parallelism`: that
    of the checkpoint and that of the dataflow. `prepared`: what sinks have prepared and may not have published. `in_flight`:
    bytes of records that were on their way to operators, by uid."""
    wrong = misfits(
        records, nodes, allow_dropped_state, max_parallelism=max_parallelism, prepared=prepared, in_flight=in_flight
    )
    if wrong:
        listed = "\n".join(f"  - {one}" for one in wrong)
        raise IncompatibleState(f"the checkpoint does not fit the dataflow:\n{listed}")


def misfits(
    records: Sequence[OperatorRecord],
    nodes: Sequence[Node],
    allow_dropped_state: bool | Collection[str] = False,
    *,
    max_parallelism: tuple[int, int] | None = None,
    prepared: Sequence[Prepared] = (),
    in_flight: Mapping[str, int] | None = None,
) -> list[str]:
    """The same as sentences: what does not fit, and what to do about it."""
    wrong = []
    if max_parallelism is not None and max_parallelism[0] != max_parallelism[1]:
        wrong.append(
            f"the checkpoint has max_parallelism {max_parallelism[0]} and the dataflow {max_parallelism[1]}, which cannot "
            f"be changed: use Environment(max_parallelism={max_parallelism[0]})"
        )
    by_uid = {node.uid: node for node in nodes}
    for record in records:
        if may_be_dropped(record.uid, allow_dropped_state):
            continue
        wrong.extend(_misfits(record, by_uid.get(record.uid)))
    names = {record.uid: record.name for record in records}
    for uid, count in unpublishable(prepared, nodes).items():
        if not may_be_dropped(uid, allow_dropped_state):
            wrong.append(_lost_output(uid, names.get(uid, "?"), count, by_uid.get(uid)))
    for uid, size in (in_flight or {}).items():
        if uid not in by_uid and not may_be_dropped(uid, allow_dropped_state):
            wrong.append(
                f"{size} bytes of records were in flight to operator {names.get(uid, '?')!r} (uid {uid!r}), which is not in "
                f"the dataflow any more; give the operator that is to get them uid={uid!r}, or give them up: "
                f"allow_dropped_state=[{uid!r}]"
            )
    return wrong


def may_be_dropped(uid: str, allow_dropped_state: bool | Collection[str]) -> bool:
    """Whether the user gives up what the operator `uid` has in the checkpoint."""
    return allow_dropped_state if isinstance(allow_dropped_state, bool) else uid in allow_dropped_state


def unpublishable(prepared: Sequence[Prepared], nodes: Sequence[Node]) -> dict[str, int]:
    """By the uid of the sink that prepared them: how many transactions no sink of the dataflow can publish."""
    able = {node.uid for node in nodes if isinstance(node.operator, Sink) and publishes(node.operator.sink)}
    found: dict[str, int] = {}
    for one in prepared:
        if one.uid not in able:
            found[one.uid] = found.get(one.uid, 0) + 1
    return found


def publishes(sink: connectors.Sink) -> bool:
    """Whether a sink has a `publish` of its own; that of the base class makes nothing visible."""
    return type(sink).publish is not connectors.Sink.publish


def _lost_output(uid: str, name: str, count: int, node: Node | None) -> str:
    what = "is not in the dataflow any more"
    if node is not None:
        what = f"is {node.name!r} now, which publishes nothing"
    return (
        f"sink {name!r} (uid {uid!r}) had prepared output that may not be published yet ({count} transactions), and {what}: "
        f"that output would be lost; give the sink that writes it uid={uid!r}, or give the output up: "
        f"allow_dropped_state=[{uid!r}]"
    )


def _misfits(record: OperatorRecord, node: Node | None) -> list[str]:
    who = f"operator {record.name!r} (uid {record.uid!r})"
    leave = f"or leave its state behind: allow_dropped_state=[{record.uid!r}]"
    if node is None:
        held = ", ".join(f"{table.name} ({table.kind})" for table in record.tables if table.kind not in _OURS)
        what = f"; it held {held}" if held else ""
        gone = (
            f"{who} had state and is not in the dataflow any more{what}; give the operator that continues it "
            f"uid={record.uid!r}, {leave}"
        )
        return [gone] if record.stateful else []
    found = {table.name: table for table in declared_tables(node)}
    wrong = []
    for table in record.tables:
        mine = found.get(table.name)
        if mine is not None and mine.kind != table.kind:
            wrong.append(
                f"{who}: state {table.name!r} was of kind {table.kind!r} and is declared as {mine.kind!r}; give the new "
                f"state another name, {leave}"
            )
        elif mine is None and record.stateful and table.kind not in _OURS:
            there = f"; {node.name!r} declares {', '.join(map(repr, found)) or 'no state'}"
            wrong.append(
                f"{who}: state {table.name!r} ({table.kind}) is not declared any more{there}; declare it, {leave}"
            )
    return wrong
