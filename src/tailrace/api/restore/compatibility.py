"""Check that a checkpoint fits the dataflow that is to start from it, as far as that can be known before anything
starts. The tables that the operators declare are compared with the written ones, and the sinks with the sinks that have
prepared output which is not published."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from tailrace.api import connectors
from tailrace.api.functions import DECLARE_STATE
from tailrace.api.restore.kinds import CALLED, PROCESS, SINK, ends_rounds, key_columns, kind_of, shape_of, takes_timers
from tailrace.elements.valueclasses import misfits as class_misfits
from tailrace.errors import IncompatibleState
from tailrace.graph.graph import Graph, Node
from tailrace.graph.operators import (
    TWO_INPUTS,
    Aggregate,
    AsOfJoin,
    AssignTimestamps,
    BroadcastProcess,
    CoProcess,
    DropDuplicates,
    Head,
    InOrder,
    IntervalJoin,
    KeyedProcess,
    MapAsync,
    MapBatches,
    Process,
    Reduce,
    SessionSpec,
    SessionWindow,
    Sink,
    Source,
    Window,
    WindowJoin,
)
from tailrace.state.codecs import codec_for
from tailrace.state.declarations import other_class, other_type, takes, type_name
from tailrace.state.format import CALLS, JOINED, JOINING, OURS, SESSIONS, WAITING, TableInfo
from tailrace.state.handles import State, states_of
from tailrace.state.manifest import InFlight, Manifest, OperatorRecord, Prepared
from tailrace.state.operator_state import BROADCAST, OPERATOR, declared_operator_states, not_dealt_out, other_kind
from tailrace.state.ttl import plain_encoding

_AGGREGATES = {
    Reduce: "reduce",
    Aggregate: "aggregate",
    Window: "window",
    SessionWindow: "session",
    DropDuplicates: "duplicates",
}
_TIMERS = [TableInfo("timers:event", "timers"), TableInfo("timers:processing", "timers")]


def declared_tables(node: Node) -> list[TableInfo]:
    """The tables of keyed state that an operator may have, timers included."""
    operator = node.operator
    kind = _AGGREGATES.get(type(operator))
    if kind is not None:
        found = [TableInfo("aggregate", kind, type="object")]
        if isinstance(operator, Window):
            return [*found, *_TIMERS, TableInfo("firings", "firings")] if operator.triggers else [*found, _TIMERS[0]]
        return found
    if isinstance(operator, WindowJoin | AsOfJoin):
        return [JOINED, SESSIONS] if isinstance(getattr(operator, "windows", None), SessionSpec) else [JOINED]
    if isinstance(operator, IntervalJoin):
        return [JOINING if operator.suffixes is None else JOINED]
    if isinstance(operator, KeyedProcess | CoProcess):
        return [*_states(operator.fn), *_TIMERS, *_waiting(operator.in_order)]
    if isinstance(operator, BroadcastProcess):
        timed = [] if operator.key is None else _TIMERS
        return [*_states(operator.fn), *timed, *_waiting(operator.in_order)]
    if isinstance(operator, MapAsync):
        return [CALLS]
    return _states(operator.fn) if isinstance(operator, Process) else []


def _waiting(in_order: InOrder) -> list[TableInfo]:
    """The table of the records that wait for event time."""
    return [JOINED if in_order == "columns" else WAITING] if in_order else []


def _states(function: Any) -> list[TableInfo]:
    return [
        TableInfo(
            state.name,
            state.kind,
            codec_for(state.kind, state.type, state.encoding, state.name).name,
            type_name(state.type),
            aggregate=state.aggregated_by,
        )
        for state in _declarations(function).values()
    ]


def _declarations(function: Any) -> dict[str, State]:
    return states_of(function) if isinstance(function, DECLARE_STATE) else {}


def stateful(node: Node) -> bool:
    """True if an operator may have something to restore."""
    operator = node.operator
    if isinstance(operator, Source | AssignTimestamps | Sink) or declared_tables(node):
        return True
    takes_own = isinstance(operator, Process | MapBatches | BroadcastProcess)
    return takes_own and bool(declared_operator_states(getattr(operator, "fn", None)))


def check(
    records: Sequence[OperatorRecord],
    nodes: Sequence[Node],
    allow_dropped_state: bool | Collection[str] = False,
    *,
    max_parallelism: tuple[int, int] | None = None,
    prepared: Sequence[Prepared] = (),
    in_flight: Mapping[str, int] | None = None,
    channels: Sequence[InFlight] = (),
) -> None:
    """Raises one `IncompatibleState` that lists everything that does not fit, and what to do. `max_parallelism`: the
    checkpoint's and the dataflow's. `prepared`: output that sinks have prepared and may not have published. `in_flight`:
    bytes of records that were on their way to operators, by uid; `channels`: the edges that they were on."""
    wrong = misfits(
        records,
        nodes,
        allow_dropped_state,
        max_parallelism=max_parallelism,
        prepared=prepared,
        in_flight=in_flight,
        channels=channels,
    )
    if wrong:
        listed = "\n".join(f"  - {one}" for one in wrong)
        raise IncompatibleState(f"the checkpoint does not fit the dataflow:\n{listed}")


def check_manifest(manifest: Manifest, graph: Graph, allow_dropped_state: bool | Collection[str] = False) -> None:
    """Raises one `IncompatibleState` if the dataflow must not be started from the checkpoint. See `check`."""
    check(manifest.operators, graph.nodes, allow_dropped_state, **_saved_by(manifest, graph.max_parallelism))


def misfits_of(
    manifest: Manifest, nodes: Sequence[Node], max_parallelism: int, allow_dropped_state: bool | Collection[str] = False
) -> list[str]:
    """All reasons why the dataflow must not be started from the checkpoint, each a sentence; for a dry run."""
    return misfits(manifest.operators, nodes, allow_dropped_state, **_saved_by(manifest, max_parallelism))


class _SavedShape(TypedDict):
    max_parallelism: tuple[int, int]
    prepared: Sequence[Prepared]
    in_flight: Mapping[str, int]
    channels: Sequence[InFlight]


def _saved_by(manifest: Manifest, max_parallelism: int) -> _SavedShape:
    return {
        "max_parallelism": (manifest.max_parallelism, max_parallelism),
        "prepared": manifest.prepared,
        "in_flight": manifest.in_flight,
        "channels": manifest.channels,
    }


def misfits(
    records: Sequence[OperatorRecord],
    nodes: Sequence[Node],
    allow_dropped_state: bool | Collection[str] = False,
    *,
    max_parallelism: tuple[int, int] | None = None,
    prepared: Sequence[Prepared] = (),
    in_flight: Mapping[str, int] | None = None,
    channels: Sequence[InFlight] = (),
) -> list[str]:
    """All that does not fit, and what to do about it, each a sentence. The arguments are those of `check`."""
    wrong = []
    if max_parallelism is not None and max_parallelism[0] != max_parallelism[1]:
        old, new = max_parallelism
        split = f"SavepointWriter.of(path, max_parallelism={new if not new % old else 2 * old}).write(folder)"
        wrong.append(
            f"the checkpoint has max_parallelism {old} and the dataflow {new}: use Environment(max_parallelism={old}), or "
            f"start from a savepoint with {'as many' if not new % old else f'a multiple of {old}'}, tr.{split}"
        )
    by_uid = {node.uid: node for node in nodes}
    by_id = {node.id: node for node in nodes}
    preparing = {one.uid for one in prepared}
    for record in records:
        drop = may_be_dropped(record.uid, allow_dropped_state)
        wrong.extend(_misfits(record, by_uid.get(record.uid), nodes, preparing, drop))
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
    kinds = {record.uid: record.kind for record in records}
    for one in channels:
        node = by_uid.get(one.target)
        if node is not None and not may_be_dropped(one.target, allow_dropped_state):
            wrong.extend(_of_channel(one, node, kinds.get(one.target, ""), by_id.__getitem__))
    return wrong


def may_be_dropped(uid: str, allow_dropped_state: bool | Collection[str]) -> bool:
    """True if the user gives up what the operator `uid` has in the checkpoint."""
    return allow_dropped_state if isinstance(allow_dropped_state, bool) else uid in allow_dropped_state


def unpublishable(prepared: Sequence[Prepared], nodes: Sequence[Node]) -> dict[str, int]:
    """Uid of a sink -> number of its prepared transactions that no sink of the dataflow can publish."""
    able = {node.uid for node in nodes if isinstance(node.operator, Sink) and publishes(node.operator.sink)}
    found: dict[str, int] = {}
    for one in prepared:
        if one.uid not in able:
            found[one.uid] = found.get(one.uid, 0) + 1
    return found


def publishes(sink: connectors.Sink) -> bool:
    """True if a sink defines its own `publish`. The one of the base class makes nothing visible."""
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


def _misfits(
    record: OperatorRecord, node: Node | None, nodes: Sequence[Node], prepared: Collection[str], drop: bool
) -> list[str]:
    """The misfits of one operator. With `drop` its state may be left behind: only a sink that could not publish its
    prepared output is a misfit then."""
    who = f"operator {record.name!r} (uid {record.uid!r})"
    leave = f"or leave its state behind: allow_dropped_state=[{record.uid!r}]"
    if node is None:
        if drop or not record.stateful:
            return []
        held = _tables_of(record)
        what = f"; it held {held}" if held else ""
        return [
            f"{who} had state and is not in the dataflow any more{what}; give the operator that continues it "
            f"uid={record.uid!r}, {leave}"
        ]
    if record.kind == SINK and isinstance(node.operator, Sink) and record.uid in prepared:
        if record.shape != shape_of(node.operator) and publishes(node.operator.sink):
            return [f"{who} {_another_sink(record, node)}"]  # even with `drop`: the sink would publish that output
    if drop:
        return []
    if not continues(record, node):
        if not record.stateful:
            return []
        same_kind = record.kind == kind_of(node.operator)
        return [f"{who}: {_other_shape(node, record.shape)}" if same_kind else f"{who} {_another_kind(record, node)}"]
    wrong = [
        *_of_keys(record, node),
        *_of_tables(record, node, leave),
        *_of_own(record, node),
        *_of_timers(record, node, nodes, leave),
    ]
    return [f"{who}: {one}" for one in wrong]


def _tables_of(record: OperatorRecord) -> str:
    tables = [f"{table.name} ({table.kind})" for table in record.tables if table.kind not in OURS]
    own = [f"{table.name} ({table.kind} state)" for table in record.own if table.kind in (OPERATOR, BROADCAST)]
    return ", ".join([*tables, *own])


def _another_kind(record: OperatorRecord, node: Node) -> str:
    held = _tables_of(record)
    what = f"; it held {held}" if held else ""
    return (
        f"was {CALLED.get(record.kind, record.kind)} and is {node.name!r} now, {CALLED[kind_of(node.operator)]}, which "
        f"cannot go on with its state{what}; give the new operator another uid and the one that continues the old one "
        f"uid={record.uid!r}, or leave its state behind: give the new operator another uid, and "
        f"allow_dropped_state=[{record.uid!r}]"
    )


def _other_shape(node: Node, old: Sequence[str]) -> str:
    """A sentence for users: the state of an operator is made of something else now."""
    return (
        f"the checkpoint holds the state of {_shape_text(old) or 'nothing else'}, and the operator has "
        f"{_shape_text(shape_of(node.operator)) or 'nothing of that'} now; give it another uid, and leave the old state "
        f"behind: allow_dropped_state=[{node.uid!r}]"
    )


def _shape_text(parts: Sequence[str]) -> str:
    """What a state is made of, in a sentence. Of a loop the parts say only how it goes."""
    return ", ".join(f"a loop {part}" if part.startswith("in rounds") else part for part in parts)


def check_shape(node: Node, old: Sequence[str]) -> None:
    """Raises `IncompatibleState` if the state of an operator in a checkpoint is of another shape than it has now."""
    if old != shape_of(node.operator):
        raise IncompatibleState(f"operator {node.name!r} (uid {node.uid!r}): {_other_shape(node, old)}")


def unreadable(name: str, uid: str, error: Exception) -> str:
    """A sentence for users: the state in the checkpoint is of another kind of operator."""
    return (
        f"operator {name!r} (uid {uid!r}): what the checkpoint has of it is of another kind of operator ({error}); give it "
        f"another uid, and leave the old state behind: allow_dropped_state=[{uid!r}]"
    )


def continues(record: OperatorRecord, node: Node) -> bool:
    """True if an operator may go on with the state that the checkpoint has under its uid: kind and shape are equal. Also
    true for state that a user has made, which is of no kind."""
    if not record.kind:
        return True
    same = record.kind == kind_of(node.operator)
    shaped = bool(record.shape) or record.kind != PROCESS  # of a process function, older checkpoints have no shape
    return same and (not record.stateful or not shaped or record.shape == shape_of(node.operator))


def _another_sink(record: OperatorRecord, node: Node) -> str:
    was, now = ", ".join(record.shape), ", ".join(shape_of(node.operator))
    return (
        f"was the sink {was}, had prepared output that may not be published yet, and is {now} now, which cannot publish it; "
        f"give the new sink another uid"
    )


def _of_keys(record: OperatorRecord, node: Node) -> Iterator[str]:
    """Misfits of keys whose columns have changed places: the key (1, 0) would find the state of (0, 1)."""
    for old, new in zip(record.keys, key_columns(node), strict=False):
        if record.stateful and old != new and sorted(old) == sorted(new):
            yield (
                f"its key was made of the columns {', '.join(old)}, and is made of {', '.join(new)} now, so that keys would "
                f"find the state of others; name them in the old order: key_by({', '.join(map(repr, old))})"
            )


def _of_tables(record: OperatorRecord, node: Node, leave: str) -> Iterator[str]:
    """Misfits of an operator's keyed state."""
    found = {table.name: table for table in declared_tables(node)}
    states = _declarations(getattr(node.operator, "fn", None))
    for table in record.tables:
        mine = found.get(table.name)
        if table.kind in OURS or table.empty:
            continue
        if mine is None:
            if record.stateful:
                there = f"; {node.name!r} declares {', '.join(map(repr, found)) or 'no state'}"
                yield f"state {table.name!r} ({table.kind}) is not declared any more{there}; declare it, {leave}"
        elif mine.kind != table.kind:
            yield (
                f"state {table.name!r} was of kind {table.kind!r} and is declared as {mine.kind!r}; give the new state "
                f"another name, {leave}"
            )
        elif table.aggregate and mine.aggregate != table.aggregate:
            yield (
                f"state {table.name!r} holds accumulators of {table.aggregate}, and is of {mine.aggregate} now; give the "
                f"new state another name, {leave}"
            )
        else:
            kind = states[table.name].type if table.name in states else object
            yield from _of_values(table, kind, record.uid)


def _of_values(table: TableInfo, kind: Any, uid: str) -> Iterator[str]:
    """Misfits of the values of a state that is declared as type `kind` now."""
    if not takes(table.type, plain_encoding(table.encoding), table.classes, kind):
        yield other_type(table.name, table.type, type_name(kind), uid)
        return
    for why in class_misfits(table.classes, kind):
        yield other_class(table.name, why, uid)


def _of_own(record: OperatorRecord, node: Node) -> Iterator[str]:
    """Misfits of what an operator held beside keyed state."""
    function = getattr(node.operator, "fn", None)
    declared = {} if function is None else declared_operator_states(function)
    for table in record.own:
        state = declared.get(table.name)
        # A sink's writer declares its states in the task.
        if table.kind not in (OPERATOR, BROADCAST) or isinstance(node.operator, Sink):
            yield from (other_class(table.name, why, record.uid) for why in class_misfits(table.classes))
        elif table.empty:
            continue
        elif state is None:
            yield (
                f"the checkpoint holds {table.kind} state {table.name!r}, which is not declared any more; declare it again, "
                f"or leave it behind: allow_dropped_state=[{record.uid!r}]"
            )
        elif table.kind != state.kind:
            leave = f"or leave it behind: allow_dropped_state=[{record.uid!r}]"
            yield f"{other_kind(table.name, table.kind, state.kind)}, {leave}"
        else:
            yield from _of_values(table, state.type, record.uid)
        if table.kind == OPERATOR and node.parallelism != record.parallelism and not table.listed:
            yield not_dealt_out(table.name, table.type, record.parallelism, node.parallelism)


def _of_timers(record: OperatorRecord, node: Node, nodes: Sequence[Node], leave: str) -> Iterator[str]:
    """Misfits of timers, of the keys of a round that was not over, and of records that wait for event time."""
    if not record.kind:
        return  # state that a user has made, which has none
    function = getattr(node.operator, "fn", None)
    there = {table.name for table in declared_tables(node)}
    takes = takes_timers(function) or not isinstance(node.operator, KeyedProcess | CoProcess | BroadcastProcess)
    for table in record.tables:
        if table.empty:
            continue
        if table.kind == "timers" and not (takes and table.name in there):
            yield f"there are timers in the checkpoint, and {node.name!r} has no on_timer; give it one, {leave}"
        elif table.kind == "rounds" and not (ends_rounds(function) and _in_rounds(node, nodes)):
            yield f"a round was not over in the checkpoint, and {node.name!r} has no on_round_end now; give it one, {leave}"
        elif table.kind == WAITING.kind and table.name not in there and there & {WAITING.name, JOINED.name}:
            now, before = ("columns", "rows") if JOINED.name in there else ("rows", "columns")
            yield (
                f"records wait in {before} in the checkpoint, and what comes to {node.name!r} waits in {now} now; give it a "
                f"stream in {before}, {leave}"
            )
        elif table.kind == WAITING.kind and table.name not in there:
            yield (
                f"records wait for event time in the checkpoint, and {node.name!r} is not called in order now; give it "
                f"process(..., in_order=True), {leave}"
            )


def _in_rounds(node: Node, nodes: Sequence[Node]) -> bool:
    heads = [one for one in nodes if isinstance(one.operator, Head) and one.scope == node.scope]
    return any(isinstance(one.operator, Head) and one.operator.loop.rounds is not None for one in heads)


# Records in flight.


def goes_to(source: str, tag: str | None, port: int, node: Node, node_of: Callable[[int], Node]) -> int | None:
    """The input of an operator for records that were in flight from this source (uid, side output) to this port. It is the
    input that the source feeds now. If the source feeds none, an operator with one input keeps the port. None if the input
    cannot be known: the operator has two inputs, or no input of that number."""
    fed = _fed_by(source, tag, node, node_of)
    if fed:
        return port if port in fed else fed[0]
    if isinstance(node.operator, TWO_INPUTS):
        return None
    back = isinstance(node.operator, Head) and port != 0  # port of the loop's feedback, which comes over no edge
    return port if back or any(edge.port == port for edge in node.inputs) else None


def _fed_by(source: str, tag: str | None, node: Node, node_of: Callable[[int], Node]) -> list[int]:
    """The inputs of an operator that this source feeds."""
    return [edge.port for edge in node.inputs if (node_of(edge.source).uid, edge.tag) == (source, tag)]


def _of_channel(one: InFlight, node: Node, kind: str, node_of: Callable[[int], Node]) -> Iterator[str]:
    """Misfits of records that were in flight on one edge. `kind`: the kind of operator that was to receive them."""
    who = f"operator {node.name!r} (uid {node.uid!r})"
    port = goes_to(one.source, one.tag, one.port, node, node_of)
    if port is None or (kind not in ("", kind_of(node.operator)) and not _fed_by(one.source, one.tag, node, node_of)):
        side = "" if one.tag is None else f", side output {one.tag!r}"
        yield (
            f"{who}: records of {one.source!r}{side} were in flight to its input {one.port}, and {one.source!r} does not "
            f"feed it any more; start the dataflow as it was, or from a checkpoint without records in flight (a stop takes "
            f"one), or give them up: allow_dropped_state=[{node.uid!r}]"
        )
    elif isinstance(node.operator, BroadcastProcess) and port == 1:
        yield (
            f"{who}: records of {one.source!r} were in flight to it, and are broadcast to it now: subtasks that had read "
            f"different ones would have different broadcast state; start from a checkpoint without records in flight (a "
            f"stop takes one), or give them up: allow_dropped_state=[{node.uid!r}]"
        )
    for why in class_misfits(one.classes):
        yield (
            f"{who}: records in flight to it cannot be read: {why}; start with the old class, or from a checkpoint "
            f"without records in flight (a stop takes one)"
        )
