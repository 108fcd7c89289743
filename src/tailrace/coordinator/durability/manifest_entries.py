"""The entries of a checkpoint's manifest about its workers, from their acks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import msgspec

from tailrace.elements.valueclasses import merge
from tailrace.protocol.snapshot import Ack
from tailrace.state.format import TableInfo
from tailrace.state.manifest import InFlight, OperatorRecord


def in_flight(acks: list[Ack]) -> dict[str, int]:
    """Bytes that barriers have overtaken, by the uid of the operator that was to receive them."""
    found: dict[str, int] = {}
    for ack in acks:
        for uid, size in ack.overtaken.items():
            found[uid] = found.get(uid, 0) + size
    return dict(sorted(found.items()))


def operator_records(acks: list[Ack]) -> list[OperatorRecord]:
    """The records of operators, from the reports of their subtasks."""
    by_uid: dict[str, list[Any]] = {}
    for ack in acks:
        for subtask in ack.subtasks:
            for operator in subtask.operators:
                by_uid.setdefault(operator.uid, []).append((subtask.subtask, operator))
    records = []
    for uid, counts in sorted(by_uid.items()):
        counts.sort(key=lambda pair: pair[0])
        first = counts[0][1]
        stateful = any(operator.stateful for _, operator in counts)
        finished = [operator.finished for _, operator in counts]
        tables = _together([operator.tables for _, operator in counts])
        going = [operator.own for _, operator in counts if not operator.finished]
        own = _together([operator.own for _, operator in counts])
        dealt = {one.name: one.listed for one in _together(going)}
        own = [msgspec.structs.replace(one, listed=dealt.get(one.name, True)) for one in own]
        made = (first.kind, first.shape, own, first.keys)
        records.append(OperatorRecord(uid, first.name, first.parallelism, finished, tables, stateful, *made))
    return records


def differing_copies(acks: Iterable[Ack]) -> tuple[str, str] | None:
    """The operator, by name, and the broadcast state of which its subtasks have different copies; None if all are equal."""
    digests: dict[tuple[str, str], int] = {}
    for operator in [operator for ack in acks for subtask in ack.subtasks for operator in subtask.operators]:
        for table in operator.own:
            if digests.setdefault((operator.uid, table.name), table.digest) != table.digest:
                return operator.name, table.name
    return None


def _together(tables: list[list[TableInfo]]) -> list[TableInfo]:
    """The tables of several subtasks together, each table once."""
    found: dict[str, TableInfo] = {}
    for one in chain.from_iterable(tables):
        before = found.get(one.name, one)
        found[one.name] = msgspec.structs.replace(
            one,
            classes=merge(before.classes, one.classes),
            empty=before.empty and one.empty,
            listed=before.listed and one.listed,
        )
    return list(found.values())


def channels(acks: list[Ack]) -> list[InFlight]:
    """The edges that had records on their way, each once."""
    found: dict[tuple[str, str, str, int], InFlight] = {}
    for one in [one for ack in acks for one in ack.channels]:
        edge = one.source, one.tag or "", one.target, one.port
        before = found.get(edge, one)
        found[edge] = msgspec.structs.replace(one, classes=merge(before.classes, one.classes))
    return [found[edge] for edge in sorted(found)]
