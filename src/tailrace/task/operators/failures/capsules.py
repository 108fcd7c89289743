"""Capsules of failed calls: what is written down of a call of user code, so that it can be made again elsewhere."""

from __future__ import annotations

import pickle
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from tailrace.api.failure_options import NOTING, Capsules
from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.timestamps import NO_TIME
from tailrace.errors import UserCodeError, error_text, short_repr
from tailrace.graph import operators as ops
from tailrace.graph.graph import Node
from tailrace.passwords import hide_passwords
from tailrace.state.codecs import immutable
from tailrace.state.tables import MISSING, StateTable
from tailrace.task.contract.capsule import Capsule
from tailrace.task.contract.failedcall import NOTHING, FailedCall
from tailrace.task.contract.usercode import raised_text
from tailrace.task.contract.variables import frames_of, sources_of
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.failures.rows import GuardedRows
from tailrace.task.operators.functions import FunctionTask
from tailrace.task.operators.stateless import FusedRows

CALLS = ("record", "timer", "open", "finish")
"""The kinds of calls that can be made again."""
_PURE = (ops.AssignTimestamps, ops.Aggregate, ops.Reduce, ops.Windowed, ops.Select, ops.FilterColumns, ops.ToColumns)
"""Operators whose functions are pure by contract: they leave records and accumulators as they are."""
_BY_RECORD = (FunctionTask, FusedRows, GuardedRows)
"""Operators that make a call for each row of a batch in columns."""
_COVERED = (*NOTING, *_PURE, ops.MapBatches, ops.Sink)
"""Operators whose calls can be made again."""
_SCANNED = 1_000_000
"""Number of entries of a table in which those of one key are looked for."""


def is_covered(node: Node, call: FailedCall) -> bool:
    """True if a call of this operator can be made again outside of its job."""
    operator = node.operator
    if call.what not in CALLS or not isinstance(operator, _COVERED):
        return False
    if call.what == "record" and call.record is NOTHING and call.batch is None:
        return False
    # Writers of Tailrace's own sinks write to places of the job.
    return not isinstance(operator, ops.Sink) or not _is_ours(operator.sink)


def _is_ours(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == __name__.partition(".")[0]


def capsule_of(error: UserCodeError, node: Node, subtask: int, settings: Capsules) -> Capsule | None:
    """The capsule of a failed call of an operator; None for a call that cannot be made again. The operator must have done
    nothing since."""
    call = error.call
    if not isinstance(call, FailedCall) or not is_covered(node, call):
        return None
    cause = error.__cause__ if error.__cause__ is not None else error
    frames = frames_of(cause.__traceback__, settings.redact)
    capsule = Capsule(
        job="",
        operator=node.name,
        uid=node.uid,
        kind=type(node.operator).__name__,
        subtask=subtask,
        what=call.what,
        error=_plain(raised_text(cause)),
        error_class=type(cause).__name__,
        message=_plain(str(error)),
        written=error.written,
        record="" if call.record is NOTHING else short_repr(call.record),
        time=call.time,
        watermark=call.watermark,
        timer=call.timer,
        domain=call.domain,
        port=call.input_port,
        frames=frames,
        sources=sources_of(frames),
    )
    parts = _Parts(capsule, call)
    parts.fill(settings.limit)
    return msgspec.structs.replace(capsule, **parts.found)


def _plain(text: str) -> str:
    return hide_passwords(text).encode(errors="backslashreplace").decode()


class _Parts:
    """The values of a capsule, each pickled by itself: one that cannot be pickled leaves a gap."""

    def __init__(self, capsule: Capsule, call: FailedCall) -> None:
        self.capsule = capsule
        self.call = call
        self.operator: OperatorTask | None = call.operator
        self.found: dict[str, Any] = {}
        """Fields of the capsule, as far as they are found out here."""

    def fill(self, limit: int) -> None:
        """Adds the values, as far as they fit."""
        capsule, call, operator = self.capsule, self.call, self.operator
        batch = _batch_of(call)
        if batch is not None:
            times = None if batch.times is None else batch.times.tolist()
            values = batch.data if isinstance(batch, Columns) else batch.values
            self._add("batch", (batch.form, values, times), "the record")
            if len(batch) > 1 or isinstance(batch, Columns):
                self.found["record"] = capsule.record or f"a batch of {len(batch)} records"
        ctx = None if operator is None else _context_of(operator, capsule.operator)
        if ctx is not None:
            self._facts_of(ctx)
        if operator is not None:
            self._state_of(operator, batch)
            self._inexact(operator, batch)
        while sum(map(len, capsule.parts.values())) > limit:
            largest = max(capsule.parts, key=lambda name: len(capsule.parts[name]))
            size = len(capsule.parts.pop(largest))
            capsule.gaps.append(f"{largest} is left out: it has {size:,} bytes (tr.Capsules(max_bytes=...))")

    def _add(self, name: str, value: Any, what: str) -> bool:
        try:
            self.capsule.parts[name] = pickle.dumps(value, 5)
        except Exception as error:  # of whatever type: `__reduce__` is the user's
            self.capsule.gaps.append(f"{what} cannot be pickled: {_plain(error_text(error))}")
            return False
        return True

    def _facts_of(self, ctx: OperatorContext) -> None:
        where = {"parallelism": ctx.parallelism, "attempt": ctx.attempt, "round": ctx.round}
        self.found |= {**where, "now": ctx.services.now, "seed": ctx.seed}
        policy = None if self.operator is None else self.operator.policy
        if policy is not None and policy.random_before is not None:
            self._add("random", policy.random_before, "the generator of random numbers")
        if policy is not None and ctx.answers:
            self._add("answers", ctx.answers, "an answer to ctx.call")

    def _state_of(self, operator: OperatorTask, batch: Batch | None) -> None:
        if isinstance(operator, FunctionTask):
            with suppress(UserCodeError):  # a value that cannot be saved, which is no matter of this failure
                self.found["own_state"] = operator.snapshot(0)
        keys = self._keys(operator, batch)
        if not keys or operator.backend is None:
            return
        self.found["key"] = _plain(short_repr(keys[0])) if len(keys) == 1 else f"{len(keys)} keys"
        self._add("key", keys[0], "the key")
        state: dict[str, list[tuple[Any, Any]]] = {}
        for table in operator.backend.tables.values():
            entries = self._entries(table, keys)
            if entries:
                state[table.name] = entries
        if state:
            self._add("state", state, "the state of the key")

    def _keys(self, operator: OperatorTask, batch: Batch | None) -> list[Any]:
        if self.call.key is not NOTHING:
            return [self.call.key]
        reader: Any = getattr(operator, "keys", None)
        if isinstance(reader, list):
            reader = reader[self.call.input_port]
        if reader is None or batch is None or self.call.what != "record":
            return []
        try:
            return list(dict.fromkeys(reader.values(batch.to_rows())))
        except Exception:  # the function of the key is the one that has failed
            return []

    def _entries(self, table: StateTable, keys: list[Any]) -> list[tuple[Any, Any]]:
        group_by = table.group_by
        if group_by is None:
            return [(key, found) for key in keys if (found := table.get(key, MISSING)) is not MISSING]
        these = set(keys)
        found = [(entry, value) for entry, value in islice(table.items(), _SCANNED) if group_by(entry) in these]
        if len(table) > _SCANNED:
            self.capsule.gaps.append(f"{table.name} may have more entries of the key than those that are here")
        return found

    def _inexact(self, operator: OperatorTask, batch: Batch | None) -> None:
        """Adds what the failed call may have changed before it raised, where nobody has kept it as it was."""
        capsule, policy, kind = self.capsule, operator.policy, operator.node.operator
        if capsule.what in ("open", "finish"):
            return
        if policy is None and isinstance(operator, FunctionTask):
            capsule.gaps.append(
                "state, timers and the record are as the failed call left them; when it has failed a second time, or with "
                "tr.Capsules(exact=True), they are as they were before it"
            )
        elif policy is None and not isinstance(kind, _PURE) and not _immutable(batch):
            capsule.gaps.append("the record is as the failed call left it")
        if policy is not None and policy.journal_gap:
            capsule.gaps.append(policy.journal_gap)


def _immutable(batch: Batch | None) -> bool:
    return not isinstance(batch, Rows) or all(map(immutable, batch.values))


def _context_of(operator: OperatorTask, name: str) -> OperatorContext:
    return next((one for one in operator.contexts() if one.name == name), operator.ctx)


def _batch_of(call: FailedCall) -> Batch | None:
    """The records of the call: the one that failed, with its timestamp, or the whole batch where no record is known."""
    if call.what != "record":
        return None
    batch, record = call.batch, call.record
    if record is NOTHING or (isinstance(batch, Columns) and not isinstance(call.operator, _BY_RECORD)):
        return batch
    time = call.time
    if isinstance(batch, Rows):
        at = next((i for i, value in enumerate(batch.values) if value is record), None)
        if at is not None and time == NO_TIME and batch.times is not None:
            time = int(batch.times[at])
    return Rows([record], None if time == NO_TIME else np.array([time], np.int64))
