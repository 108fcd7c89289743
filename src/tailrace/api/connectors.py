"""The contracts of sources and sinks. Built-in ones are in `tailrace.connectors`; users subclass the same classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from tailrace.elements.batches import Form

NOTHING_YET: Sequence[Any] = ()
"""What a reader returns when it has no record at the moment."""


class Reader:
    """Reads one split. Called by one task only, in bounded steps."""

    def read(self, limit: int, now: float) -> Any:
        """At most `limit` records: a list, or a `pyarrow.RecordBatch` in columns; an empty one when there is nothing
        at the moment; None at the end of the split. `now` is the time of this step in seconds."""
        raise NotImplementedError

    @property
    def position(self) -> Any:
        """Where reading would go on: what a checkpoint stores. A small picklable value."""
        raise NotImplementedError

    def next_at(self, now: float) -> float:
        """After an empty read: when to ask again, in seconds."""
        return now + 0.01

    def close(self) -> None:
        """Gives back what the reader holds."""


class Source:
    """Lists splits and makes a reader for each."""

    form: Form = "rows"
    bounded: bool = True
    columns: tuple[str, ...] | None = None
    """The column names of what it emits, where they are known when the graph is written."""
    description: ClassVar[str] = "source"

    def splits(self, parallelism: int) -> Sequence[Any]:
        """The splits of the source, the same ones each time; called in a task. Subtask i reads splits i, i + p, …"""
        raise NotImplementedError

    def reader(self, split: Any, position: Any = None) -> Reader:
        """A reader of one split, from its beginning or from a position that a reader of it gave."""
        raise NotImplementedError


class SinkContext(Protocol):
    """Where a writer stands."""

    @property
    def job(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def run_id(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def subtask(self) -> int: ...
    @property
    def parallelism(self) -> int: ...


NO_RECORD: Any = object()


class SinkWriter:
    """Writes the records of one subtask into a transaction."""

    record: Any = NO_RECORD
    """The record at hand, for the error when writing it raises; for writers that go record by record."""

    def write(self, batch: Any) -> None:
        """Takes a batch: a list, or a `pyarrow.RecordBatch` when the sink's form is columns."""
        raise NotImplementedError

    def prepare(self) -> bytes | None:
        """Makes everything written so far durable but not visible, and says how to publish it. None: nothing to
        publish."""
        return None

    def close(self) -> None:
        """Gives back what the writer holds. Without a `prepare` before, what was written is given up."""


class Sink:
    """Makes a writer for each subtask and publishes what writers prepared."""

    form: Form | None = "rows"
    """The form it wants; None takes either."""
    description: ClassVar[str] = "sink"

    def writer(self, ctx: SinkContext) -> SinkWriter:
        """A writer for one subtask; called in the task."""
        raise NotImplementedError

    def publish(self, prepared: Sequence[bytes]) -> None:
        """Makes prepared writes visible; called in a task after the job's other end of the transaction is safe.
        Publishing twice must be harmless."""
