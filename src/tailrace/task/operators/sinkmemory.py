"""What the subtasks of a sink save: what their writer keeps, and the schema of what came in columns."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pyarrow as pa

from tailrace.elements.columns.schemas import OneSchema, described
from tailrace.errors import IncompatibleState
from tailrace.state.backend import MetaPart
from tailrace.state.operator_state import Subtask


class _Saved(msgspec.Struct, array_like=True):
    states: bytes | None
    """What the writer declares as `tr.OperatorState`."""
    schema: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Saved | dict[str, msgspec.Raw])


def saved(states: bytes | None, schema: pa.Schema | None) -> bytes | None:
    """Both in one. Without a schema it is the states alone."""
    return states if schema is None else _encoder.encode(_Saved(states, schema.serialize().to_pybytes()))


def restored(parts: list[MetaPart], where: Subtask) -> tuple[list[MetaPart], OneSchema]:
    """What the writers of the old subtasks kept, and the schema that this subtask begins with: its own, else the one of
    all the others. Raises `IncompatibleState` where these have several."""
    both = [_split(part) for part in parts]
    own = [
        schema
        for part, schema in both
        if schema is not None and (part.subtask, part.parallelism) == (where.subtask, where.parallelism)
    ]
    one = OneSchema()
    for schema in own or [schema for _, schema in both if schema is not None]:
        before = one.schema
        if not one.join(schema):
            raise IncompatibleState(
                f"operator {where.name!r} (uid {where.uid!r}): its subtasks were given columns of different types, "
                f"({described(before)}) and ({described(schema)}), so that nobody knows which go on here: start from a "
                f"checkpoint before that, with to_columns(schema) before the sink, or keep the parallelism"
            )
    return [part for part, _ in both], one


def _split(part: MetaPart) -> tuple[MetaPart, pa.Schema | None]:
    read = None if part.data is None else _decoder.decode(part.data)
    if not isinstance(read, _Saved):
        return part, None
    return replace(part, data=read.states), pa.ipc.read_schema(pa.py_buffer(read.schema))
