"""The contracts of sources and sinks. Built-in ones are in `tailrace.connectors`; users subclass the same classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from tailrace.elements.batches import Form

NOTHING_YET: Sequence[Any] = ()
"""What a reader returns when it has no record at the moment."""


class Reader:
    """Reads one split. Called by one task only, in bounded steps."""

    lost: int = 0
    """Bytes that the reader had seen and can no longer read: counted as `lost_bytes` in the job's metrics."""

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


class Enumerator:
    """Finds the splits of a source while the job runs. Lives in subtask 0 of the source and is called in bounded steps."""

    def discover(self, now: float) -> Sequence[Any] | None:
        """The splits that were found since the last call, maybe none; None when there will be no more. `now` is the
        time of this step in seconds. Returned splits count as found: they are in `position`."""
        raise NotImplementedError

    def ended(self, split: Any) -> None:
        """A split that it found was read to its end. With checkpoints it hears this once for each split, as far as its
        position knows: a restored job repeats the calls that came behind."""

    def next_at(self, now: float) -> float:
        """When to look again, in seconds."""
        return now + 1.0

    @property
    def position(self) -> Any:
        """The splits found so far: an enumerator made from it finds only others. A small picklable value."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives back what the enumerator holds."""


class Source:
    """Lists splits and makes a reader for each."""

    form: Form = "rows"
    bounded: bool = True
    columns: tuple[str, ...] | None = None
    """The column names of what it emits, where they are known when the graph is written."""
    schema: Any = None
    """Of a source in columns, where it is known: a `pyarrow.Schema` that every batch must fit. Else it is that of the first
    batch in each subtask."""
    description: ClassVar[str] = "source"

    @property
    def position_format(self) -> str:
        """How splits and positions are to be read: a checkpoint of a source with another format is refused. By default the
        name of the class. Give one of your own where the class gets another name, or reads other positions."""
        return type(self).__qualname__

    def splits(self, parallelism: int) -> Sequence[Any]:
        """The splits of the source, picklable. Called once, in subtask 0: a job that is restored reads the splits of its
        checkpoint."""
        raise NotImplementedError

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator | None:
        """For a source that finds splits while it runs, instead of `splits`: an enumerator, from the start or from a
        position that an earlier one gave."""
        return None

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
    @property
    def attempt(self) -> int: ...


NO_RECORD: Any = object()


class SinkWriter:
    """Writes the records of one subtask into a transaction."""

    record: Any = NO_RECORD
    """The record at hand, for the error when writing it raises; for writers that go record by record."""

    def write(self, batch: Any) -> None:
        """Takes a batch: a list, or a `pyarrow.RecordBatch` when the sink's form is columns."""
        raise NotImplementedError

    def prepare(self) -> bytes | None:
        """The end of a transaction: makes everything written since the last `prepare` durable but not visible, and says
        how to publish it. None: nothing to publish. Called at the cut of each checkpoint and at the end of the input;
        what is written from here on belongs to the next transaction."""
        return None

    def took_over(self) -> None:
        """Called where the worker of this writer has taken the place of one that was lost while the others went on
        (`tr.StandbyConfig`), once all is published that checkpoints have of the lost one: what writers of this subtask and
        incarnation with a lower `attempt` have left can be removed. They may write more, if they only seem to be lost;
        none of it will be published."""

    def close(self) -> None:
        """Gives back what the writer holds. Gives up output since the last `prepare`; prepared output stays, because a
        checkpoint may refer to it."""


class Sink:
    """Makes a writer for each subtask and publishes what writers prepared."""

    form: Form | None = "rows"
    """The form it wants; None takes either."""
    description: ClassVar[str] = "sink"

    @property
    def out_of_reach(self) -> tuple[type[Exception], ...]:
        """Exceptions by which it, or a writer of its, says that the place it writes to is out of reach: a full disk, a store
        that does not answer. What raised one is tried again, after pauses that grow, for `storage_patience`, and the restart
        strategy is not asked: `publish` while records go on, a writer by a restart. Of `OSError`, those that say that a path
        is wrong or forbidden are none."""
        return ()

    @property
    def place(self) -> str | None:
        """Where the output goes, if two sinks of one execution that write there are a mistake; else None."""
        return None

    def writer(self, ctx: SinkContext) -> SinkWriter:
        """A writer for one subtask; called in the task."""
        raise NotImplementedError

    def publish(self, prepared: Sequence[bytes]) -> None:
        """Makes prepared writes visible; called in a task once the checkpoint that has them is complete, or, without
        checkpoints, once every subtask has prepared. Publishing twice must be harmless, whole or in part, also where
        readers have taken the output away since: after a failure nobody knows how far the call before has come."""

    def settled(self, prepared: Sequence[bytes]) -> None:
        """Called in a task: these were published, and no checkpoint will ask for them again. Notes that `publish` keeps
        of having published them can go. After a failure this call may never come."""

    def recover(self, run_ids: Sequence[str], incarnation: int, uid: str) -> None:
        """After a restart, once the checkpoint's output is published: removes what writers of this sink (`uid`) in
        these runs and in lower incarnations left unpublished. Nothing needs it any more. Called in a task."""

    def published(self) -> None:
        """Something of this sink was published; called on the object that the user has, in the driver."""


_WRONG_PATHS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def is_out_of_reach(sink: Any, error: BaseException) -> bool:
    """Whether an error of a sink, or of a writer of its, says that its place is out of reach."""
    return isinstance(error, getattr(sink, "out_of_reach", ())) and not isinstance(error, _WRONG_PATHS)
