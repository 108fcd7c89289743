"""What the manifest of a checkpoint says of its workers, from their acks."""

from __future__ import annotations

from typing import Any

from tailrace.protocol.snapshot import Ack
from tailrace.state.manifest import OperatorRecord


def in_flight(acks: list[Ack]) -> dict[str, int]:
    """Bytes that barriers have overtaken, by the uid of the operator that was to receive them."""
    found: dict[str, int] = {}
    for ack in acks:
        for uid, size in ack.overtaken.items():
            found[uid] = found.get(uid, 0) + size
    return dict(sorted(found.items()))


def operator_records(acks: list[Ack]) -> list[OperatorRecord]:
    """The operators, from what their subtasks said."""
    by_uid: dict[str, list[Any]] = {}
    for ack in acks:
        for subtask in ack.subtasks:
            for operator in subtask.operators:
                by_uid.setdefault(operator.uid, []).append((subtask.subtask, operator))
    records = []
    for uid, said in sorted(by_uid.items()):
        said.sort(key=lambda pair: pair[0])
        first = said[0][1]
        tables = {table.name: table for _, operator in said for table in operator.tables}
        stateful = any(operator.stateful for _, operator in said)
        finished = [operator.finished for _, operator in said]
        records.append(OperatorRecord(uid, first.name, first.parallelism, finished, list(tables.values()), stateful))
    return records
