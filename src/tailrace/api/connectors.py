"""The contracts of sources and sinks. Built-in ones are in `tailrace.connectors`; users subclass the same classes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from tailrace.elements.batches import Form
from tailrace.errors import TailraceError

NOTHING_YET: Sequence[Any] = ()
"""The result of a reader that has no record at the moment."""


class SourceLag(NamedTuple):
    """The distance of a reader from the present end of its split: `records` not read yet, and `seconds` since the oldest of
    them was written. None: not known."""

    records: float | None = None
    seconds: float | None = None


class Reader:
    """A reader of one split. One task calls it, in bounded steps."""

    lost: int = 0
    """Number of bytes, or of other units, that the reader can no longer read; `lost_bytes` in the job's metrics. The task
    adds it up and sets it to 0."""
    lost_unit: str = "bytes"
    """Unit of `lost`, which names the metric: "records" for `lost_records`."""

    def read(self, limit: int, now: float) -> Any:
        """At most `limit` records: a list, or a `pyarrow.RecordBatch` in columns. An empty one means that there is nothing
        at the moment, None the end of the split. `now` is the time of this step in seconds since 1970."""
        raise NotImplementedError

    @property
    def position(self) -> Any:
        """The position where reading would go on, which a checkpoint stores. A small picklable value."""
        raise NotImplementedError

    def next_at(self, now: float) -> float:
        """The time of the next read after an empty one, in seconds since 1970."""
        return now + 0.01

    def completed(self, position: Any) -> None:
        """Called behind a complete checkpoint, with the `position` that the reader had at its cut: no restart of the job
        goes back behind it, so offsets may be committed there, messages acknowledged, a slot moved on. Calls come one at a
        time, in the order of checkpoints, none of them twice; some are left out where checkpoints come faster. They come in
        a thread beside the task, while `read` goes on, so they may wait for a server; `close`, and the end of a job, wait
        for the last one, for a limited time. An error is a warning: the next checkpoint makes up for it. A worker that only
        seemed to be lost may call once more, late."""

    def lag(self, now: float) -> SourceLag | None:
        """The distance from the end of the split, for metrics; None: not known. Called at most once a second, between
        steps. It must be cheap: the worker waits for it."""
        return None

    def close(self) -> None:
        """Releases what the reader holds, such as files and connections."""


class AssignedSplit(NamedTuple):
    """A split on its way to a `SplitReader`."""

    number: int
    """The number of the split in its source. The reader and its task name the split by it; it stays the same after a
    restart, in whatever subtask the split is read then."""
    split: Any
    """The split, as the source has listed it."""
    position: Any = None
    """The position to go on from; None: the beginning of the split."""


class SplitReader:
    """A reader of all splits of one subtask, for a server where one connection serves many. One task calls it, in bounded
    steps; no call may block. `Source.split_reader` makes it.

    Splits come by `assign`, each with its number, and go by `revoke`. `read` gives records of any of them that are not
    paused. Of every split the reader keeps the position: behind the last record that `read` has returned.
    """

    lost: int = 0
    """Number of bytes, or of other units, that the reader can no longer read; `lost_bytes` in the job's metrics. The task
    adds it up and sets it to 0."""
    lost_unit: str = "bytes"
    """Unit of `lost`, which names the metric: "records" for `lost_records`."""

    def assign(self, splits: Sequence[AssignedSplit]) -> None:
        """Adds splits, each to be read from its position on."""
        raise NotImplementedError

    def revoke(self, splits: Sequence[int]) -> None:
        """Removes splits, by number. Each split whose end was returned is removed, too."""
        raise NotImplementedError

    def pause(self, splits: Collection[int]) -> None:
        """Pauses these splits, by number, and no others: `read` must return no record of a paused split, and none is lost by
        it. Called when the set changes: splits wait for slower ones (`max_drift`), or what a lost worker has read of a
        split is read once more."""
        raise NotImplementedError

    def read(self, limit: int, now: float) -> Iterable[tuple[int, Any]]:
        """At most `limit` records in all, as pairs: the number of a split, and what comes next of it: a list of records, or
        a `pyarrow.RecordBatch` in columns. A pair with None means the end of the split, one with an empty list that it was
        looked at and has nothing at the moment; only such splits become idle (`idle_after`), so name them in each read. No
        pair for a split means that nothing is known. No records at all: the task reads again at `next_at`, or after `wake`.
        `now` is the time of this step in seconds since 1970."""
        raise NotImplementedError

    def position(self, split: int) -> Any:
        """The position where reading of a split would go on, which a checkpoint stores. A small picklable value. Asked also
        for a paused split."""
        raise NotImplementedError

    def next_at(self, now: float) -> float:
        """The time of the next read after one without records, in seconds since 1970. A reader that calls `wake` returns a
        later time, as a fallback."""
        return now + 0.01

    def wake(self) -> None:
        """Lets the task read soon. To be called by the reader, from any thread, when records have come since a read that
        found none. The task sets it before it calls anything else."""

    def completed(self, positions: Mapping[int, Any]) -> None:
        """Called behind a complete checkpoint, with the position at its cut of each split that the reader had then, and the
        last position of each that has ended since the checkpoint before. All as in `Reader.completed`."""

    def lag(self, now: float) -> Mapping[int, SourceLag]:
        """The distance from the end of each split, by number, for metrics, as far as it is known. Called at most once a
        second, between steps. It must be cheap: the worker waits for it."""
        return {}

    def close(self) -> None:
        """Releases what the reader holds, such as connections and threads."""


@dataclass(frozen=True)
class SplitsChange:
    """A change of the splits of a source, which `Enumerator.discover` may return. Splits are compared by `==`."""

    new: Sequence[Any] = ()
    """Splits that were found."""
    gone: Sequence[Any] = ()
    """Known splits of which nothing can be read any more: they end where they are."""
    moved: Sequence[tuple[Any, Any]] = ()
    """Known splits that are described in another way from now on, such as by another address: pairs (before, now). Reading
    goes on from the same position."""


class Enumerator:
    """The part of a source that finds splits while the job runs. Subtask 0 of the source calls it, in bounded steps."""

    def discover(self, now: float) -> Sequence[Any] | SplitsChange | None:
        """The splits that were found since the last call, maybe none, or a `SplitsChange` if splits are gone or have moved,
        too; None when there will be no more. `now` is the time of this step in seconds since 1970. What was returned counts
        as found: it is in `position`."""
        raise NotImplementedError

    def ended(self, split: Any) -> None:
        """Called when a split of this enumerator was read to its end, or where it was when it went. With checkpoints it is
        called once for each split, as far as the position goes: a restored job repeats the calls that came after the
        position was taken."""

    def next_at(self, now: float) -> float:
        """The time of the next `discover`, in seconds since 1970."""
        return now + 1.0

    def completed(self, position: Any) -> None:
        """Called behind a complete checkpoint, with the `position` that the enumerator had at its cut: splits whose end it
        had been informed of by then are never read again, in whatever subtask they were read. All as in
        `Reader.completed`."""

    @property
    def position(self) -> Any:
        """The splits found so far. An enumerator that starts from this position finds only other splits. A small picklable
        value."""
        raise NotImplementedError

    def close(self) -> None:
        """Releases what the enumerator holds."""


class Source:
    """A source: lists splits and makes a reader for each."""

    form: Form = "rows"
    """Form of the records that readers return: "rows" for lists, "columns" for record batches."""
    bounded: bool = True
    """True if the source ends."""
    columns: tuple[str, ...] | None = None
    """The column names of the records, if they are known when the graph is written."""
    schema: Any = None
    """The schema of a source in columns, a `pyarrow.Schema` that every batch must fit; None if it is not known. Each
    subtask takes the schema of its first batch then."""
    splits_follow: ClassVar[bool] = False
    """True if the splits of a subtask follow one another: one that has ended holds event time back, as one that has nothing
    at the moment does, until the subtask gets its next splits. False: a split that has ended does not count."""
    description: ClassVar[str] = "source"
    """Name of the kind of source, for names of operators, progress reports and errors."""

    @property
    def position_format(self) -> str:
        """The name of the format of splits and positions. A job refuses a checkpoint of a source with another format. By
        default it is the name of the class. Override it if the class is renamed, or reads other positions."""
        return type(self).__qualname__

    def check(self) -> None:
        """Checks the source against its server, such as that a table exists. Called in the program, before a job starts.
        Raises `ConfigError` that names server, object and setting, and no password."""

    def splits(self, parallelism: int) -> Sequence[Any]:
        """The splits of the source, picklable. Called once, in subtask 0. A restored job takes the splits from its
        checkpoint instead."""
        raise NotImplementedError

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator | None:
        """The enumerator of a source that finds splits while it runs; `splits` is not called then. It starts at the
        beginning, or at the `position` of an earlier enumerator. None, the default: the source has `splits`."""
        return None

    def reader(self, split: Any, position: Any = None) -> Reader:
        """A reader of one split, from its beginning or from the `position` of an earlier reader of it."""
        raise NotImplementedError

    def split_reader(self, ctx: SourceContext) -> SplitReader | None:
        """A reader of all splits of one subtask, made when the subtask gets its first split. None, the default: each split
        has a `reader` of its own. A source that overrides it deals out all of its splits at once."""
        return None

    def raw_source(self) -> tuple[Source, Callable[[Any], Any]] | None:
        """The source of records that are not parsed, with the same splits and positions, and the function that parses one
        into a record of this source, for `from_source(source, on_error=...)`. None, the default: readers parse records
        themselves."""
        return None


class SinkContext(Protocol):
    """The place of a writer: its job, run and operator, and the subtask and attempt that it works in."""

    @property
    def job(self) -> str:
        """The name of the job."""

    @property
    def incarnation(self) -> int:
        """The number of this start or restart over all runs of the job. Each start and each restart has a higher one."""

    @property
    def run_id(self) -> str:
        """The id of this run: the start of the job by its program."""

    @property
    def uid(self) -> str:
        """The uid of the sink."""

    @property
    def subtask(self) -> int:
        """The index of the writer's subtask, from 0."""

    @property
    def parallelism(self) -> int:
        """The number of subtasks of the sink."""

    @property
    def attempt(self) -> int:
        """The number of times that the subtask was started before. A worker that replaces a lost one in its incarnation
        has a higher number."""


class SourceContext(SinkContext, Protocol):
    """The place of a `SplitReader`, as `SinkContext` has it for writers."""


NO_RECORD: Any = object()
"""Value of `SinkWriter.record` while there is no record at hand."""


class SinkWriter:
    """A writer of the records of one subtask into transactions."""

    record: Any = NO_RECORD
    """The record at hand, for the error if writing it raises. Set by writers that write record by record."""

    def write(self, batch: Any) -> None:
        """Writes a batch: a list, or a `pyarrow.RecordBatch` if the sink's form is columns."""
        raise NotImplementedError

    def prepare(self) -> bytes | None:
        """Ends a transaction: makes everything written since the last `prepare` durable but not visible. Returns what
        `Sink.publish` needs to make it visible; None: nothing to publish. Called at the cut of each checkpoint and at the
        end of the input. Later writes belong to the next transaction."""
        return None

    released: bool = True
    """The answer of `release` for the next `prepare`, if the class has a `release` of its own. The task sets it."""

    def release(self) -> bool:
        """True if the next `prepare` is to prepare also what a writer keeps back in `tr.OperatorState`. Called before each
        `prepare` of a writer that overrides it. It may read clocks: the answer is recorded, so a worker that takes the place
        of a lost one gives its records to the same transactions. It must change nothing, since then it is not called."""
        return True

    def finish(self) -> None:
        """Called at the end of the input, before the last `prepare`. A writer that keeps records back in `tr.OperatorState`
        prepares them then: no later call comes."""

    def took_over(self) -> None:
        """Called if the worker of this writer has replaced a lost one while the other workers went on
        (`tr.StandbyConfig`), once all prepared output of the lost worker that is in checkpoints is published. The writer
        may now remove what writers of this subtask and incarnation with a lower `attempt` have left. Those may write more
        if they only seem to be lost; none of it will be published."""

    def close(self) -> None:
        """Releases what the writer holds, and gives up output since the last `prepare`. Prepared output stays: a checkpoint
        may refer to it."""


class Sink:
    """A sink: makes a writer for each subtask and publishes what writers prepared."""

    form: Form | None = "rows"
    """The form of the batches that the writers take; None: either form."""
    description: ClassVar[str] = "sink"
    """Name of the kind of sink, for names of operators, progress reports and errors."""
    one_publisher: ClassVar[bool] = False
    """True if one worker publishes what all subtasks have prepared, because `publish` compares it, or `recover` must know
    it. By default the worker of each subtask publishes what that subtask has prepared."""

    @property
    def out_of_reach(self) -> tuple[type[Exception], ...]:
        """Exceptions that mean, raised by a writer, that its place is out of reach: a full disk, a store that does not
        answer. The job restarts after growing pauses, for `storage_patience`, whatever its restart strategy is. Subclasses
        of `OSError` for a path that is wrong or forbidden do not count. What `publish` raises does not need it: see
        `permanent`."""
        return ()

    @property
    def permanent(self) -> tuple[type[Exception], ...]:
        """Exceptions of `publish` and `recover` after which no other try would help: the attempt fails at once. After any
        other one the call is made again, after growing pauses, for `publish_timeout`, while records go on. By default
        errors of the program: `TypeError`, `AttributeError`, `NameError`, `ImportError`, `NotImplementedError`. Errors of
        Tailrace, and those of `OSError` for a path that is wrong or forbidden, are permanent in any case."""
        return _OF_THE_PROGRAM

    @property
    def place(self) -> str | None:
        """The place that the output goes to, if two sinks of one execution must not both write there; else None."""
        return None

    def check(self) -> None:
        """Checks the sink against its server, such as that a table may be written. Called in the program, before a job
        starts. Raises `ConfigError` that names server, object and setting, and no password."""

    def writer(self, ctx: SinkContext) -> SinkWriter:
        """A writer for one subtask. Called in the task."""
        raise NotImplementedError

    def publish(self, prepared: Sequence[bytes]) -> None:
        """Makes prepared writes visible. Called once the checkpoint that has them is complete, or, without checkpoints, once
        every subtask has prepared. To publish twice must be harmless, whole or in part, even if readers have taken the
        output away since: after a failure the job cannot know how far the previous call came.

        `publish`, `settled` and `recover` run in a thread of the worker that steps no task: one call of a sink at a time,
        while `write` and `prepare` of its writers may run beside it. The prepared writes of a subtask are published in
        order. A call may take long, and may raise while a server is away: it is made again (see `permanent`), and what was
        prepared after it waits."""

    def settled(self, prepared: Sequence[bytes]) -> None:
        """Called when these were published and no checkpoint will require them again. The sink may remove the notes by
        which its `publish` knows what is published. After a failure this call may never come. Where it raises, what it was
        given comes again with the next call, and the log of the worker has a warning."""

    def recover(self, run_ids: Sequence[str], incarnation: int, uid: str) -> None:
        """Removes what writers of this sink (`uid`) left unpublished in these runs and in lower incarnations: nothing needs
        it any more. Called in one worker after a restart, once all output of the checkpoint is published, by whichever
        worker. It must leave the notes by which `publish` knows what is published, except in a sink with `one_publisher`,
        whose own object has published it."""

    def published(self) -> None:
        """Called in the driver, on the user's own object, when output of this sink was published."""

    def close(self) -> None:
        """Releases what `publish` holds, such as connections. Called in the thread of `publish`, when a worker publishes no
        more with this object. What it raises is a warning."""


_OF_THE_PROGRAM = (TypeError, AttributeError, NameError, ImportError, NotImplementedError)
_WRONG_PATHS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def is_out_of_reach(sink: Any, error: BaseException) -> bool:
    """True if an error of a sink, or of one of its writers, means that its place is out of reach."""
    return isinstance(error, getattr(sink, "out_of_reach", ())) and not isinstance(error, _WRONG_PATHS)


def is_permanent(sink: Any, error: BaseException) -> bool:
    """True if an error of a sink that publishes would come again, however often it is tried."""
    permanent = getattr(sink, "permanent", _OF_THE_PROGRAM)
    return not isinstance(error, Exception) or isinstance(error, (TailraceError, *_WRONG_PATHS, *permanent))
