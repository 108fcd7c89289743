"""The source that `env.from_streaming(df)` makes, with the streaming query that feeds it."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from tailrace.connectors.streaming.batches import DATA, QUERY, BatchFolder
from tailrace.connectors.streaming.batchfiles import written_columns
from tailrace.connectors.streaming.listing import BatchLister
from tailrace.connectors.streaming.source import StreamingBatches
from tailrace.connectors.travelling import is_local, leave_sign
from tailrace.elements.batches import Form
from tailrace.elements.durations import span_seconds
from tailrace.errors import ConfigError, GraphError
from tailrace.spark.cluster.application import application
from tailrace.spark.data.dataframe_files import plainly_named
from tailrace.spark.data.places import FilePlace
from tailrace.spark.data.schemas import arrow_schema
from tailrace.spark.data.types import check_types
from tailrace.spark.streaming.plain_columns import has_empty_struct, plain_columns
from tailrace.statedata.listings import splits_of
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.filesystem import scheme_of

WHO = "from_streaming"
DELAY = "spark.watermarkDelayMs"
"""The note that `withWatermark` leaves on its column."""
_WATERMARK_NODE = "EventTimeWatermark"
"""What `withWatermark` is called in the plan of a DataFrame."""
AVAILABLE_NOW = "available-now"
COMPRESSION = "snappy"
_COMPACT = "spark.sql.streaming.fileSink.log.compactInterval"
_starting = threading.Lock()
"""Held while a query starts: the setting above is one of the whole session."""
_AS_SPARK = {"s3": "s3a", "s3n": "s3a", "gcs": "gs"}
"""Schemes under which Spark has a filesystem by another name."""


class StreamingDataFrame(StreamingBatches):
    """The rows of a streaming DataFrame of Spark.

    - `trigger`: time between two batches (see `from_streaming`), or "available-now".
    - `watermark`: False to take no watermark over.
    """

    def __init__(self, df: Any, form: Form, trigger: Any, watermark: bool) -> None:
        _check_columns(df)
        self.trigger = _trigger(trigger)
        self.event_column, self.delay = _watermark(df) if watermark else (None, 0.0)
        super().__init__(arrow_schema(df.schema), form, self.event_column, "availableNow" in self.trigger)
        self.written = written_columns((field.name, field.dataType.simpleString()) for field in df.schema.fields)
        self.df = df
        self.over = False
        """True if the stream that a job goes on with has ended: its query is not run again."""
        self.lister: BatchLister | None = None
        """Makes the lists of the batches while the query runs."""

    # Before the workers start.

    def begin(self, place: FilePlace, keep: int) -> None:
        """Begins a new stream in a place. Raises `ConfigError` for a place that a query cannot write to."""
        if place.host is not None:
            raise ConfigError(
                f"{WHO}: the batches of a streaming query need a folder that Spark and the workers reach: give the job "
                f"checkpoints, or Environment(work_dir=...), in one that all of them do"
            )
        self.folder, self.options, self.shared = place.at(uuid.uuid4().hex).url, place.options, place.shared
        self.keep, self.over = keep, False
        if place.shared:
            leave_sign(self.folder)

    def go_on(self, checkpoint: str, uid: str, options: Mapping[str, Any] | None, shared: bool, keep: int) -> None:
        """Goes on with the stream that a checkpoint has. Raises `CheckpointError` if batches are gone that it needs, and
        `ConfigError` if the checkpoint of the query is."""
        held = [(split, at) for split, at in splits_of(StoredCheckpoint.open(checkpoint, options), uid)]
        self.options, self.shared, self.keep = options, shared, keep
        self.over = not held
        if not held:
            return
        self.folder = held[0][0]["folder"]
        batches = BatchFolder(self.folder, options)
        for split, at in held:
            batches.check_position(split["lane"], 0 if at is None else at[0])
        self.over = batches.end() is not None
        if not self.over:
            if shared:
                leave_sign(self.folder, options)  # the job may have begun where none was needed
            self._lister().look()
            batches.check_query(BatchFolder(f"{self.folder}/{QUERY}", options).folder)

    def start(self) -> Any:
        """Starts the query, and returns Spark's handle of it; None if the stream has ended. Raises `ConfigError` where Spark
        refuses it."""
        if self.over:
            return None
        assert self.folder is not None
        spark = self.df.sparkSession
        application(spark).choose_interpreter()  # the DataFrame may have functions in Python
        columns = plain_columns(self.df.schema, self.written) or ["c"]
        writer = plainly_named(self.df).selectExpr(*columns).writeStream.format("parquet")
        writer = writer.option("path", _for_spark(f"{self.folder}/{DATA}")).option("compression", COMPRESSION)
        writer = writer.option("checkpointLocation", _for_spark(f"{self.folder}/{QUERY}"))
        if self.trigger:
            writer = writer.trigger(**self.trigger)
        self.lister = self._lister()
        try:
            with _notes_apart(spark):
                return writer.start()
        except Exception as error:
            first = " ".join(str(error).strip().splitlines()[:2])
            raise ConfigError(f"{WHO}: Spark refuses the streaming query: {first}") from error

    def _lister(self) -> BatchLister:
        assert self.folder is not None
        column = None if self.event_column is None else self.df.columns.index(self.event_column)
        return BatchLister(BatchFolder(self.folder, self.options), column)

    @property
    def pause(self) -> float:
        """Seconds between two looks for batches."""
        assert self.lister is not None
        return self.lister.pause

    def list_batches(self) -> None:
        """Makes the lists of the batches that the query has committed since the last call. Raises `ConfigError` if one of
        them does not follow from the others."""
        assert self.lister is not None
        self.lister.look()

    def all_done(self) -> bool:
        """True if the query has done each batch that it has begun."""
        assert self.lister is not None
        return self.lister.all_done()

    def note_end(self) -> None:
        """Notes that the query has come to its end."""
        assert self.folder is not None
        BatchFolder(self.folder, self.options).note_end()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "df": None, "lister": None}  # these stay in the driver


@contextlib.contextmanager
def _notes_apart(spark: Any) -> Iterator[None]:
    """A context in which a query of Spark's file sink starts that never puts its notes of batches together."""
    with _starting:
        before = spark.conf.get(_COMPACT, None)
        spark.conf.set(_COMPACT, str(2**31 - 1))
        try:
            yield
        finally:
            spark.conf.unset(_COMPACT) if before is None else spark.conf.set(_COMPACT, before)


def _check_columns(df: Any) -> None:
    if not getattr(df, "isStreaming", False) or not hasattr(df, "writeStream"):
        raise GraphError(
            f"{WHO}: expected a streaming DataFrame, as spark.readStream makes; use from_dataframe for others"
        )
    twice = sorted({name for name in df.columns if df.columns.count(name) > 1})
    if twice:
        raise GraphError(
            f"{WHO}: the DataFrame has several columns named {', '.join(map(repr, twice))}; rename them, as with "
            f"df.toDF(...)"
        )
    check_types(df.schema, WHO, void=True)
    for field in df.schema.fields:
        if has_empty_struct(field.dataType):
            raise GraphError(
                f"{WHO}: column {field.name!r} has a struct without fields, which no file has; leave it out"
            )


def _trigger(trigger: Any) -> dict[str, Any]:
    """Keywords of Spark's `trigger`. Raises `GraphError`."""
    if trigger is None:
        return {}
    if trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    try:
        seconds = span_seconds(trigger)
    except (TypeError, ValueError, ConfigError, OverflowError) as error:
        raise GraphError(
            f"{WHO}: trigger is the time from one batch to the next, such as 1.5 or '10 seconds', or {AVAILABLE_NOW!r}: "
            f"{error}"
        ) from None
    return {"processingTime": f"{round(seconds * 1000)} milliseconds"}


def _watermark(df: Any) -> tuple[str | None, float]:
    """The event-time column of a DataFrame and the delay of its watermark in seconds; (None, 0) where it has none. Raises
    `GraphError` for one that cannot be taken over."""
    marked = [field for field in df.schema.fields if DELAY in (field.metadata or {})]
    if not marked:
        return None, 0.0
    remedy = "leave it out with watermark=False, and give the stream its timestamps with assign_timestamps"
    if len(marked) > 1:
        names = ", ".join(repr(field.name) for field in marked)
        raise GraphError(
            f"{WHO}: the DataFrame has several columns with a watermark, {names}, and a stream has one; {remedy}"
        )
    field = marked[0]
    kind = type(field.dataType).__name__
    if kind not in ("TimestampType", "TimestampNTZType"):
        raise GraphError(
            f"{WHO}: the watermark of the DataFrame is on {field.name!r}, which is {kind} and no timestamp; {remedy}"
        )
    if (count := _plan_text(df).count(_WATERMARK_NODE)) > 1:
        raise GraphError(
            f"{WHO}: the DataFrame has {count} watermarks, as those of a union or a join of streams, and Spark goes by the "
            f"one that is behind: call withWatermark once, behind the union; or {remedy}"
        )
    return field.name, float(field.metadata[DELAY]) / 1000.0


def _plan_text(df: Any) -> str:
    """The plan of a DataFrame, of classic Spark or of Connect."""
    classic = getattr(df, "_jdf", None)
    return str(classic.queryExecution().analyzed() if classic is not None else df._explain_string(extended=True))


def _for_spark(place: str) -> str:
    """A path or URL as Spark takes it. Spark would read a path without a scheme as one of its default filesystem."""
    if is_local(place):
        return place if place.startswith("file:") else f"file://{place}"
    scheme, _, rest = place.partition(":")
    return f"{_AS_SPARK.get(scheme_of(place), scheme)}:{rest}"
