"""Batches of operators whose functions are pure by contract: keys, timestamps, aggregates, functions of whole batches,
conversions. A batch that fails is undone and tried in halves, down to the record that fails."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.timestamps import NO_TIME
from tailrace.state.undo_log import Journal
from tailrace.task.channels.key_readers import settled_keys
from tailrace.task.operators.aggregates.running import StatefulTask
from tailrace.task.operators.base import Emit, OperatorTask
from tailrace.task.operators.columns.conversion import record_at
from tailrace.task.operators.failures.policy import FailurePolicy, is_of_record
from tailrace.task.operators.failures.spare import Spare


class Halving:
    """The batches of one operator with a policy for records that fail. It takes the place of the operator's `process`."""

    def __init__(self, task: OperatorTask) -> None:
        self.task = task
        self.policy = task.policy = FailurePolicy(task.node, task.ctx)
        self.policy.note_call = task.note_call
        self.journal = task.journal if task.journal is not None else Journal()
        self._process = task.process

    def process(self, batch: Batch, port: int) -> None:
        """Takes a batch on an input port, without the records that fail."""
        self._take(batch, port)
        self.policy.count(len(batch))

    def _take(self, batch: Batch, port: int) -> None:
        size, spare = len(batch), Spare(tuple(batch.values)) if isinstance(batch, Rows) else None
        for left in reversed(range(self.policy.attempts if size == 1 else 1)):
            error = self._attempt(batch, port)
            if error is None:
                return
            if spare is not None:
                batch = Rows(list(spare.take()), batch.times, batch.groups, batch.split)
            if (size < 2 and not left) or not is_of_record(error):
                self.policy.fail(error, *_first(batch))
                self.task.flush_side(batch.split)
                return
        if size > 1:
            self._take(batch.slice(0, size // 2), port)
            self._take(batch.slice(size // 2, size), port)

    def _attempt(self, batch: Batch, port: int) -> Exception | None:
        """Lets the operator process a batch. Its output goes on if it succeeds; else everything is undone, and the error is
        returned."""
        task = self.task
        out, side_out = task.out, task.side_out
        emitted: list[tuple[Emit, Batch]] = []

        def keep(emit: Emit, made: Batch) -> None:
            emitted.append((emit, made))

        task.out, task.side_out = partial(keep, out), {tag: partial(keep, emit) for tag, emit in side_out.items()}
        self.journal.begin()
        try:
            self._note(batch)
            self._process(batch, port)
            self.journal.end()
        except Exception as error:
            self.journal.undo()
            if task.ctx.side:
                task.ctx.side.clear()
            return error
        finally:
            task.out, task.side_out = out, side_out
        for emit, made in emitted:
            emit(made)
        return None

    def _note(self, batch: Batch) -> None:
        """Notes the state of the keys of a batch."""
        if isinstance(self.task, StatefulTask):
            for key in dict.fromkeys(settled_keys(self.task.keys.values(batch.to_rows()))):
                for table in self.task.key_tables():
                    self.journal.note(table, key)


def _first(batch: Batch) -> tuple[Any, int]:
    """The first record of a batch, with its timestamp."""
    time = NO_TIME if batch.times is None else int(batch.times[0])
    if isinstance(batch, Rows):
        return batch.values[0], time
    assert isinstance(batch, Columns)
    with suppress(Misfit):
        return batch.slice(0, 1).to_rows().values[0], time
    return record_at(batch.data, 0), time
