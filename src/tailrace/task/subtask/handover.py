"""The way of a batch from one operator of a chain to the next: copies, and the watch for changed records."""

from __future__ import annotations

from weakref import proxy

from tailrace.elements.batches import Batch, Rows
from tailrace.errors import UserCodeError, short_repr
from tailrace.task.channels.copies import copy_of, fingerprint, unpicklable
from tailrace.task.channels.services import Services
from tailrace.task.operators.base import Emit, OperatorTask


def into(operator: OperatorTask, debug: bool, giver: OperatorTask | None) -> Emit:
    """An emitter into the first input of an operator. In debug runs it watches the records. They count as output of
    `giver`, if one is given."""
    process = operator.process
    giver = (
        None if giver is None else proxy(giver)
    )  # it holds this emitter: nothing is to wait for the collector of circles

    def emit(batch: Batch) -> None:
        operator.taken += len(batch)
        if giver is not None:
            giver.given += len(batch)
        before = fingerprint(batch) if debug else None
        try:
            process(batch, 0)
        except UserCodeError as error:
            operator.note_batch(error, batch, 0)
            raise
        check_unchanged(batch, before, operator.node.name, operator.ctx.subtask)

    return emit


def check_unchanged(batch: Batch, before: list[int] | None, operator: str, subtask: int) -> None:
    """Raises `UserCodeError` if an operator changed a record that was handed to it."""
    if before is None or not isinstance(batch, Rows):
        return
    for value, old, new in zip(batch.values, before, fingerprint(batch) or [], strict=True):
        if old != new:
            raise UserCodeError(
                "the operator changed a record that it received (it is now as shown); records are shared: change a "
                "copy, or set copy_records=True",
                operator=operator,
                subtask=subtask,
                record=short_repr(value),
            )


def handing_over(operator: OperatorTask, emit: Emit, services: Services) -> Emit:
    """An emitter that passes on a copy if the job requests it: the operator may keep the record, and so may several
    receivers."""
    if not services.copy_records:
        return emit

    def copying(batch: Batch) -> None:
        try:
            copy = copy_of(batch)
        except Exception as error:
            raise unpicklable(
                batch.to_rows().values, error, operator.node.name, operator.ctx.subtask, "be copied"
            ) from error
        emit(copy)

    return copying
