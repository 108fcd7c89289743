"""Streams and their verbs: a verb appends a node to the graph and returns the stream of its results; nothing runs.

A stream, a keyed one, connected ones, windows and the body of a loop are in one module, because a user goes by their verbs
from each to the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow.compute as pc

from tailrace.api import joins
from tailrace.api.aggregates import BuiltinAggregate, Count, Sum, is_builtin
from tailrace.api.checks.arguments import (
    check_at_end,
    check_callable,
    check_counted,
    check_format,
    check_merge,
    check_names,
    check_object,
    check_process,
    check_selector,
    check_sessions,
    check_span,
    check_time_column,
    check_zone,
    named_aggregates,
    title_of,
)
from tailrace.api.checks.event_time import check_behind_source, check_clock_options, check_in_order, check_lifetimes
from tailrace.api.checks.hints import CONNECTED, VERBS, WINDOWED
from tailrace.api.checks.side_outputs import failed_of, side_of
from tailrace.api.connectors import Sink
from tailrace.api.failure_options import FAIL, HasKey, OnError, Retry, check_on_error
from tailrace.api.functions import (
    AggregateFunction,
    AsyncFunction,
    BroadcastProcessFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    MapBatchesFunction,
    MapFunction,
    ReduceFunction,
    Span,
    WindowFunction,
    takes_context,
)
from tailrace.api.launch import launcher
from tailrace.api.loops.loops import LoopStream, stream_inside, write_loop
from tailrace.api.loops.options import Combine, LoopCall, Rounds
from tailrace.api.nodes import Dataflow, Upstream, add_node, check_together
from tailrace.api.spill import Spill
from tailrace.api.verbs import everyday
from tailrace.api.verbs.columns import check_alike, condition, is_spark_column, selection
from tailrace.api.verbs.two_streams import broadcast_process, co_process
from tailrace.api.windows.functions import CountedWindows, Gather, check_window_function, window_call
from tailrace.api.windows.windows import CountSpec, check_bounds, check_triggers
from tailrace.elements.batches import Form
from tailrace.errors import GraphError, TypeMismatch, written_here
from tailrace.graph import graph
from tailrace.graph import operators as ops
from tailrace.graph.operators import (
    AtEnd,
    BatchFormat,
    FiringInterval,
    How,
    IfAhead,
    Operator,
    Partitioning,
    Priority,
    Selector,
    SessionSpec,
    Triggers,
    WhenAllIdle,
    WindowSpec,
)
from tailrace.graph.scope import StreamScope
from tailrace.spelling import instead_of, missing, with_hints_of_methods

SinkT = TypeVar("SinkT", bound=Sink)


@with_hints_of_methods
class DataStream(LoopStream):
    """A stream of records in one of two forms, `rows` or `columns`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            keyed = "has no key; call key_by(...) before it" if hasattr(KeyedStream, name) else None
            like = keyed or instead_of(name, VERBS, dir(KeyedStream)) or "has no such verb"
            raise AttributeError(f"{name}: the stream {like.replace('did you', 'has no such verb; did you')}")

    def __init__(
        self,
        env: Dataflow,
        upstreams: tuple[Upstream, ...],
        form: Form,
        columns: tuple[str, ...] | None = None,
        partitioning: Partitioning | None = None,
    ) -> None:
        super().__init__(env, upstreams, form, columns)
        self._partitioning = partitioning if partitioning is not None else ops.Forward()

    # Stateless verbs.

    def map(self, f: Callable[[Any], Any] | MapFunction, **options: Any) -> DataStream:
        """The stream of `f(record)` for each record. A stream in columns is converted to rows with names. `options` of
        every verb are `uid`, `name` and `parallelism`, and where it runs user code `on_error`: "fail" (the job fails with a
        record for which `f` raises), a `tr.Aside` or a `tr.Retry`. Raises `GraphError` if `f` is no function of one
        argument."""
        check_callable(f, 1, title_of("map", options), MapFunction)
        return self._as_rows()._add(ops.Map(f), "map", options)

    def filter(self, f: Callable[[Any], Any] | FilterFunction | pc.Expression | str, **options: Any) -> DataStream:
        """The stream of the records for which `f` is true. In columns `f` may be an expression of `pyarrow.compute`, a
        Column of PySpark (`F.col("x") > 3`) or the name of a column; a record for which it is null is not kept. Raises
        `GraphError` for anything else, and `TypeMismatch` for an expression on a stream in rows."""
        if isinstance(f, pc.Expression) or is_spark_column(f) or (isinstance(f, str) and self.form == "columns"):
            operator = condition(self, f, title_of("filter", options))
            return self._add(operator, "filter", options, form="columns", columns=self.columns)
        check_callable(f, 1, title_of("filter", options), FilterFunction)
        rows = self._as_rows()
        return rows._add(ops.Filter(f), "filter", options, columns=rows.columns)

    def flat_map(self, f: Callable[[Any], Any] | FlatMapFunction, **options: Any) -> DataStream:
        """The stream of the records that `f` makes of each record, any number: `f` yields, returns an iterable, or returns
        None. Raises `GraphError` if `f` is no function of one argument."""
        check_callable(f, 1, title_of("flat_map", options), FlatMapFunction)
        return self._as_rows()._add(ops.FlatMap(f), "flat_map", options)

    def select(
        self,
        *columns: str | Mapping[str, Any],
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        on_error: OnError | None = None,
        **named: Any,
    ) -> DataStream:
        """A stream in columns with these columns, in this order. A column of this stream is given by name, a new one as an
        expression of `pyarrow.compute`, `select("id", total=pc.field("x") + pc.field("y"))`, or in a dictionary by name, or
        as a Column of PySpark. Raises `GraphError` for an unknown column or an expression that cannot be computed, and
        `TypeMismatch` for a stream in rows."""
        options = {"uid": uid, "name": name, "parallelism": parallelism, "on_error": on_error}
        operator = selection(self, columns, named, title_of("select", options), name, keeps=False)
        names = tuple(column for column, _ in operator.columns)
        return self._add(operator, "select", options, form="columns", columns=names)

    def with_columns(
        self,
        columns: Mapping[str, Any] | None = None,
        /,
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        on_error: OnError | None = None,
        **named: Any,
    ) -> DataStream:
        """A stream in columns with added or replaced columns: `with_columns(x=pc.field("x") * 2)`. Each is an expression of
        `pyarrow.compute` over the columns of this stream, or the name of one. Raises `GraphError` for an unknown column or
        an expression that cannot be computed, and `TypeMismatch` for a stream in rows."""
        options = {"uid": uid, "name": name, "parallelism": parallelism, "on_error": on_error}
        given = () if columns is None else (columns,)
        operator = selection(self, given, named, title_of("with_columns", options), name, keeps=True)
        new = [column for column, _ in operator.columns if column not in (self.columns or ())]
        names = None if self.columns is None else (*self.columns, *new)
        return self._add(operator, "with_columns", options, form="columns", columns=names)

    def sql(self, query: str, **options: Any) -> DataStream:
        """A stream in columns with the results of a query: `sql("select a, b + 1 as c from stream where a > 2")`, a SELECT
        of Spark's SQL without groups, joins and windows, for each record on its own. Its results are Spark's. Raises
        `GraphError` for what is not translated, with its place in the text, `TypeMismatch` for a stream whose types are not
        declared, and `ConfigError` without the package sqlglot."""
        return everyday.sql(self, query, options)  # type: ignore[no-any-return]

    def map_batches(
        self,
        f: Callable[[Any], Any] | MapBatchesFunction,
        *,
        schema: Any = None,
        timestamps: str | None = None,
        format: BatchFormat = "arrow",
        **options: Any,
    ) -> DataStream:
        """The stream of the batches that `f` makes of each batch: one, several or none. A batch is a `pyarrow.RecordBatch`;
        with `format` "pandas" or "polars" a DataFrame of that package. The result is in columns, and so are the side outputs
        to which an `f(batch, ctx)` emits. `schema` (DDL text, `StructType` or `pyarrow.Schema`) is the schema of the batches
        given to `f`. A stream in rows needs it; a stream in columns is converted to it, as by `to_columns`. With
        `timestamps` these batches have their timestamps in a column of this name, and the batches that `f` makes must have
        it too. On a keyed stream the batches of a subtask hold all records of its own keys, and no others.

        Raises `TypeMismatch` for a stream in rows without `schema`, and `GraphError` for wrong arguments."""
        verb = title_of("map_batches", options)
        check_callable(f, 2 if takes_context(f) else 1, verb, MapBatchesFunction)
        operator = ops.MapBatches(f, check_time_column(timestamps, verb), check_format(format, verb))
        plain = self.form == "columns" and schema is None
        columns = self if plain else self._as_columns(schema, verb, options.get("parallelism"))
        return columns._add(operator, "map_batches", options, form="columns")

    def to_rows(self, **options: Any) -> DataStream:
        """The stream in rows with names."""
        return self if self.form == "rows" else self._add(ops.ToRows(), "to_rows", options, columns=self.columns)

    def to_columns(self, schema: Any, **options: Any) -> DataStream:
        """The stream in columns, as record batches of `schema` (DDL text, `StructType` or `pyarrow.Schema`). Of a stream in
        columns it takes the columns that the schema names. A value that the schema would change fails the job. Raises
        `GraphError` for a schema that is missing or has two columns of one name."""
        arrow = self.env._arrow_schema(schema, title_of("to_columns", options))
        return self._add(ops.ToColumns(arrow), "to_columns", options, form="columns", columns=tuple(arrow.names))

    def process(self, fn: Any, *, at_end: AtEnd = "wait", **options: Any) -> DataStream:
        """The stream of the records that a `ProcessFunction`, or a plain `f(value, ctx)`, emits for each record. Raises
        `GraphError` for a function that does not fit, such as one with keyed state or timers."""
        check_process(fn, title_of("process", options), keyed=False)
        return self._as_rows()._add(ops.Process(fn, check_at_end(at_end)), "process", options)

    def batch(self, n: int, timeout: Span | None = None, **options: Any) -> DataStream:
        """The stream of lists of `n` records, in the order in which they came; of a keyed stream each list has records of
        one key. A list is also emitted when its first record has waited for `timeout` (seconds, a `timedelta` or a text)
        of the clock, and at the end of the input. Lists have no right timestamps: windows belong in front. Raises
        `TypeMismatch` for a stream in columns, and `GraphError` for wrong arguments and in a loop."""
        return everyday.batches(self, n, timeout, options)  # type: ignore[no-any-return]

    def sample(self, fraction: float, *, by: Selector | None = None, seed: int = 0, **options: Any) -> DataStream:
        """The stream of about this share of the records, chosen at random. With `by`, a function or a column, it has all
        records with the chosen values of `by`: a hash with `seed` chooses them, so they are the same in every run and every
        stream. Raises `GraphError` for wrong arguments."""
        return everyday.sample(self, fraction, by, seed, options)  # type: ignore[no-any-return]

    def split(self, f: Any, into: Sequence[str] | None = None, **options: Any) -> tuple[DataStream, ...]:
        """Two streams: of the records for which `f` is true, and of all others. With `into`, names, a stream for each name
        in that order: `f` gives the name of the stream of a record, and another name fails. In columns `f` is a column or an
        expression, and there are two streams. Raises `GraphError` for wrong arguments, and `TypeMismatch` for a function on
        a stream in columns."""
        return everyday.split(self, f, into, options)

    def lookup(
        self,
        table: Any,
        on: Any = None,
        *,
        how: Literal["left", "inner"] = "left",
        refresh: Span | None = None,
        cache: everyday.Cache | None = None,
        capacity: int = 100,
        timeout: Span | None = 10.0,
        ordered: bool | Literal["key"] = True,
        retry: Retry | None = None,
        **options: Any,
    ) -> DataStream:
        """The stream of the records with the row that has their key in `table`: a DataFrame of pandas, polars or Spark, or a
        `pyarrow.Table`, with one row for each key. `on` names the columns of the key, in both. In columns the other columns
        of the table come behind those of the stream; in rows there are pairs (record, row). A record without a row has null
        or None ("left"), or goes ("inner"); so does one whose key is null. The table is read once, here, and travels with
        the program. With `refresh` a worker reads the table anew, at the start and after each such time:
        `table` is a function without arguments that returns one, or the DataFrame `spark.read.parquet(path)`. A reading that
        fails is a warning, and the last version stays; ten in a row fail the job.

        With an `async def` or a `tr.AsyncFunction` in place of the table there are pairs (record, `await f(key)`). The key
        is `on(record)` or a column; without `on` it is that of a keyed stream, or the record. `f` returns None for what is
        not there. With a `cache` (`tr.Cache`) answers are used for later records of the key. The options of calls
        are those of `map_async`. Raises `GraphError` for wrong arguments, and for a key that is there twice."""
        calls = capacity, timeout, ordered, retry, None
        return everyday.lookup(self, table, on, how, refresh, cache, calls, options)  # type: ignore[no-any-return]

    def explode(self, column: str, *, outer: bool = False, **options: Any) -> DataStream:
        """The stream in columns of a record for each item of the list in `column`, in its place. A record without items
        goes, or with `outer` stays with null. Raises `TypeMismatch` for a stream in rows, and `GraphError` for a column
        that is none or has no lists."""
        return everyday.explode(self, column, outer, options)  # type: ignore[no-any-return]

    def peek(self, fn: Callable[[Any], Any] | None = None, n: int = 20, **options: Any) -> DataStream:
        """The stream as it is. Its first `n` records of each subtask, or what `fn` returns of them, are printed where the
        program runs that has started the job. An `fn` that returns None prints itself. After a restart of the job the first
        records since then are printed. Raises `GraphError` for wrong arguments."""
        return everyday.peek(self, fn, n, options)  # type: ignore[no-any-return]

    def map_async(
        self,
        f: Callable[[Any], Awaitable[Any]] | AsyncFunction,
        capacity: int = 100,
        timeout: Span | None = 10.0,
        ordered: bool | Literal["key"] = True,
        retry: Retry | None = None,
        batch: int | None = None,
        **options: Any,
    ) -> DataStream:
        """The stream of the results of `await f(record)`: `f` is an `async def` or a `tr.AsyncFunction`. Calls run beside
        the dataflow. After a restart those without a result are made again.

        - `capacity`: the largest number of records of a subtask whose results have not gone on; then it reads no more.
        - `timeout`: the time for a call with all of its attempts (seconds, a `timedelta` or a text); None: no limit.
        - `ordered`: True for results in the order of the input; False for any order between two watermarks; "key" for the
          order of each key of a keyed stream, whose calls are made one after the other.
        - `retry` (`tr.Retry`): a call that raises is made again, after `wait`.
        - `batch`: the largest number of records of one call. `f` takes a list of records, and returns a list of results.

        Raises `GraphError` for wrong arguments, and in a loop."""
        calls = capacity, timeout, ordered, retry, batch
        return everyday.map_async(self, f, calls, options)  # type: ignore[no-any-return]

    # Time.

    def assign_timestamps(
        self,
        f: Selector,
        out_of_orderness: Span = 0.0,
        *,
        idle_after: Span | None = None,
        when_all_idle: WhenAllIdle = "wait",
        most_ahead: Span | None = None,
        if_ahead: IfAhead = "aside",
        max_drift: Span | None = None,
        zone: str | None = None,
        **options: Any,
    ) -> DataStream:
        """The stream with a timestamp for each record: `f(record)` or a column, as seconds since 1970, `datetime`, `date`
        or None. The watermark stays `out_of_orderness` behind the largest timestamp. A split or input that is empty for
        `idle_after` does not hold the watermark back until its next record; time in which the subtask is busy does not
        count.

        - `when_all_idle`: while all splits or inputs of a subtask are idle its watermark stays ("wait"), or goes on as the
          clock does ("advance").
        - `most_ahead`: the largest time by which a timestamp may be ahead of the clock. `if_ahead`: a record beyond that
          goes to the side output "ahead" ("aside"), has that time instead ("clamp"), or fails the job ("fail").
        - `max_drift`: a split that is farther ahead of the slowest split of its subtask is not read on until that has
          caught up. Only directly behind a source.
        - `zone`: the time zone of timestamps without one, such as "Europe/Berlin": wall clock times and dates there. Of an
          hour that occurs twice it is the first pass; a time that the zone skips fails.

        Spans are seconds, a `timedelta` or a text. Raises `GraphError` for wrong arguments."""
        verb = title_of("assign_timestamps", options)
        selector = check_selector(f, self.columns, verb)
        spans = [None if span is None else check_span(span, verb) for span in (idle_after, most_ahead, max_drift)]
        clock = check_clock_options(self, spans[0], when_all_idle, if_ahead, verb)
        lateness, (idle, ahead, drift) = check_span(out_of_orderness, verb), spans
        of_zone = None if zone is None else check_zone(zone, verb)
        operator = ops.AssignTimestamps(selector, lateness, idle, clock[0], ahead, clock[1], drift, of_zone)
        stream = self._add(operator, "assign_timestamps", options, form=self.form, columns=self.columns)
        if max_drift is not None:
            check_behind_source(stream, verb)
        return stream

    # Keys and partitionings.

    def key_by(
        self, *key: Selector, name: str | None = None, on_error: OnError | None = None, uid: str | None = None
    ) -> KeyedStream:
        """The stream by key: records of equal keys go to one subtask, in order. The key is a function, a column, or several
        columns: `key_by("country", "city")`. With an `on_error` of its own, or the environment's, a key that is a function
        of rows is computed once more, by an operator with this `uid` before the others, which sets failed records aside.
        Raises `GraphError` for an unknown column, and for what is no key."""
        verb = name or "key_by"
        if len(key) > 1 and not all(isinstance(one, str) for one in key):
            raise GraphError(
                f"{verb}: several keys must all be column names; for anything else give one function that returns a tuple"
            )
        if not key:
            raise GraphError(f"{verb}: give a function, a column, or several columns")
        selector = check_selector(key if len(key) > 1 else key[0], self.columns, verb)
        written = written_here("key_by")
        policy = self.env.on_error if on_error is None else check_on_error(on_error, verb)
        if policy == FAIL or not callable(selector) or self.form == "columns":
            if on_error not in (None, FAIL):
                raise GraphError(f"{verb}: only a key that is a function of rows takes on_error; call to_rows() before")
            return KeyedStream(self.env, self._upstreams, self.form, self.columns, selector, written)
        rows = DataStream(self.env, self._upstreams, "rows", self.columns)
        keyed = rows._add(ops.Filter(HasKey(selector)), verb, {"on_error": policy, "uid": uid}, columns=self.columns)
        return KeyedStream(self.env, keyed._upstreams, "rows", self.columns, selector, written)

    def rebalance(self) -> DataStream:
        """The stream, dealt round robin to all subtasks of the next operator."""
        return self._with_partitioning(ops.Rebalance())

    def shuffle(self) -> DataStream:
        """The stream, dealt uniformly at random to the subtasks of the next operator."""
        return self._with_partitioning(ops.Shuffle())

    def rescale(self) -> DataStream:
        """The stream, dealt round robin: each subtask sends to a contiguous share of the subtasks of the next operator."""
        return self._with_partitioning(ops.Rescale())

    def broadcast(self) -> DataStream:
        """The stream, with every record sent to every subtask of the next operator."""
        return self._with_partitioning(ops.Broadcast())

    def partition_by(self, f: Callable[[Any], int]) -> DataStream:
        """The stream, with each record sent to subtask `f(record)` modulo the number of subtasks of the next operator.

        After a start at another parallelism each subtask calls `f` again for feedback that was on its way around a loop.
        `f` must be deterministic there: the job fails with `IncompatibleState` if it gives two results for one record.
        Raises `GraphError` if `f` is no function of one argument.
        """
        check_callable(f, 1, "partition_by")
        return self._with_partitioning(ops.Custom(f))

    def _with_partitioning(self, partitioning: Partitioning) -> DataStream:
        return DataStream(self.env, self._upstreams, self.form, self.columns, partitioning)

    # More than one stream.

    def union(self, *others: DataStream) -> DataStream:
        """The records of several streams of one form, in no particular order between them. Raises `TypeMismatch` for
        streams of different forms or columns, `GraphError` for streams that are partitioned differently or belong to
        different environments, and `ScopeError` for streams of different loops."""
        streams = [self, *others]
        for other in others:
            if not isinstance(other, DataStream) or isinstance(other, KeyedStream) != isinstance(self, KeyedStream):
                raise TypeMismatch(
                    f"union: expected a {type(self).__name__}, got {type(other).__name__}; key the union instead, "
                    f"a.union(b).key_by(...), or use connect"
                )
            check_together(self, other, "union")
            if other.form != self.form:
                raise TypeMismatch("union: one stream is in rows, the other in columns; use to_rows() or to_columns()")
            if other._partitioning != self._partitioning:
                raise GraphError("union: the streams are partitioned differently; partition the union instead")
            if self.form == "columns":
                check_alike(self, other, "union")
        columns = self.columns if all(s.columns == self.columns for s in streams) else None
        upstreams = tuple(up for stream in streams for up in stream._upstreams)
        return DataStream(self.env, upstreams, self.form, columns, self._partitioning)

    def connect(self, other: DataStream) -> ConnectedStreams:
        """This stream and another one, which may be of another type, for one `CoProcessFunction`. Raises `TypeMismatch`,
        `GraphError` or `ScopeError` unless `other` is a stream of this environment and loop."""
        check_together(self, other, "connect")
        return ConnectedStreams(self, other)

    def side_output(self, tag: str) -> DataStream:
        """The records that the operator emits to `tag` by `ctx.emit(tag, value)`. The tag of the late records of a window,
        of a join, or of a function that is called in order, is "late"; that of records that
        `assign_timestamps(most_ahead=...)` puts aside is "ahead". A side output of `map_batches` is in columns. Records
        that fail (`on_error=tr.Aside(tag)`) are `tr.Failed` in rows. Raises `GraphError` if the operator has no such side
        output."""
        late = joins.late_of_windows(self, tag)
        if late is not None:
            return late  # type: ignore[no-any-return]
        failed = failed_of(self, tag)
        if failed:
            return DataStream(self.env, tuple((node.id, tag) for node in failed), "rows")
        node = side_of(self, tag)
        if not isinstance(node.operator, ops.Windowed | ops.AssignTimestamps):
            batches = isinstance(node.operator, ops.MapBatches)
            return DataStream(self.env, ((node.id, tag),), "columns" if batches else "rows")
        if isinstance(node.operator, ops.AssignTimestamps):
            return DataStream(self.env, ((node.id, tag),), node.form, node.columns)
        before = self.env._graph.nodes[node.inputs[0].source]
        columns = before.columns if len(node.inputs) == 1 else None
        return DataStream(self.env, ((node.id, tag),), before.form, columns)

    # Loops.

    def iterate(
        self,
        f: Callable[[DataStream], Any] | LoopFunction,
        *,
        rounds: Rounds | None = None,
        priority: Priority = "adaptive",
        combine: Combine | None = None,
        spill: Spill | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Any:
        """A loop over this stream. Its body `f` is called once, now, with a stream of this stream's records and of all
        feedback. It returns `(feedback, output)`. The feedback is a stream, a list of streams, or None. The output is a
        stream, or a tuple, list or dict of streams; `iterate` returns streams outside of the loop in that shape.

        A loop whose sources end comes to an end by itself, once nothing is left in it.

        - `rounds` (`tr.Rounds`): the body sees the feedback of one round only in the next one.
        - `priority`: the choice between waiting input and waiting feedback. "adaptive" prefers feedback, but not all of the
          time; "feedback-first" takes input only if no feedback waits.
        - `combine` (`tr.Combine`): merges feedback that waits.
        - `spill` (`tr.Spill`): how much of the feedback waits in memory.

        Raises `ConfigError` for wrong options, `GraphError` or `TypeMismatch` for a body that returns something else, and
        `ScopeError` if it returns a stream that is not in the loop.
        """
        call = LoopCall("iterate", rounds, priority, combine, spill, uid, name, parallelism)
        return write_loop(self, f, call, (LoopFunction, CoLoopFunction), separate=False)

    def iterate_with_feedback(
        self,
        f: Callable[[ConnectedStreams], Any] | CoLoopFunction,
        *,
        rounds: Rounds | None = None,
        priority: Priority = "adaptive",
        combine: Combine | None = None,
        spill: Spill | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        feedback_schema: Any = None,
    ) -> Any:
        """A loop whose feedback is of another type than its input. It is like `iterate`, but the body gets connected
        streams: `first` is the input and `second` the feedback. The feedback is in rows, or in columns of `feedback_schema`
        (DDL text, `StructType` or `pyarrow.Schema`)."""
        call = LoopCall(
            "iterate_with_feedback", rounds, priority, combine, spill, uid, name, parallelism, feedback_schema
        )
        return write_loop(self, f, call, (CoLoopFunction, LoopFunction), separate=True)

    def enter(self, scope: StreamScope) -> DataStream:
        """This stream inside of the loop of `scope`, as one more of its inputs: `rules.enter(stream.scope)`. Raises
        `ScopeError` if this stream is not around that loop."""
        stream = DataStream(self.env, self._upstreams, self.form, self.columns)
        inside: DataStream = stream_inside(stream, scope)
        return self if inside is stream else inside._with_partitioning(self._partitioning)

    # Ends.

    def sink_to(self, sink: SinkT, **options: Any) -> SinkT:
        """Ends the stream in a sink, and returns the sink. It runs with the environment's next execution. Raises
        `GraphError` for what is no sink, and if another sink that has not run yet writes to its place; `TypeMismatch` if
        the sink takes columns without a schema and the stream is in rows."""
        verb = title_of("sink_to", options)
        check_object(sink, Sink, verb)
        self.env._check_place(sink, verb)
        if sink.form == "columns" and self.form == "rows" and getattr(sink, "schema", None) is None:
            raise TypeMismatch(
                f"{verb}: the {sink.description} sink takes columns, and the stream is in rows; give the sink a schema, or "
                f"call to_columns(schema) before"
            )
        self._add(ops.Sink(sink), f"sink: {sink.description}", options, form=self.form)
        return sink

    def collect(self) -> list[Any]:
        """The list of the records of this stream: runs the job and waits for its end. Raises `GraphError` for an unbounded
        stream, and `JobFailed` with the cause if the job fails."""
        self.env._check_bounded(self._upstreams, "collect")
        sink = launcher().collect_sink()
        self.env._run_at_once(lambda: self.sink_to(sink, name="collect"), "collect")
        return list(sink.result())

    def show(self, n: int = 20) -> None:
        """Prints the first `n` records as a table: runs the job and waits for its end. Raises `GraphError` for an unbounded
        stream, and `JobFailed` with the cause if the job fails."""
        self.env._check_bounded(self._upstreams, "show")
        everyday.show(self, n)

    def to_dataframe(self, schema: Any = None) -> Any:
        """A Spark DataFrame of the records of this stream: runs the job and waits for its end. `schema` is DDL text, a
        `StructType` or a `pyarrow.Schema`; a stream in columns does not need it. Raises `GraphError` for an unbounded
        stream or a missing schema, and `JobFailed` with the cause if the job fails."""
        self.env._check_bounded(self._upstreams, "to_dataframe")
        if schema is None and self.form != "columns":
            raise GraphError(
                'to_dataframe: a stream of rows needs a schema: to_dataframe(schema="vertex string, miles double")'
            )
        sink = launcher().dataframe_sink(schema)
        self.env._run_at_once(lambda: self.sink_to(sink, name="to_dataframe"), "to_dataframe")
        return sink.dataframe()

    def to_streaming(
        self, name: str, schema: Any = None, *, retain: Literal["until-read", "always"] = "until-read", **options: Any
    ) -> Any:
        """Ends the stream in a sink whose output Spark reads while the job runs: `spark.readStream.format("tailrace")`.
        Returns the sink, whose `read_stream()` gives the streaming DataFrame once `env.execute` has started the job, and
        `read()` what is published by then. The job needs checkpoints.

        - `name`: the name and the uid of the sink. Readers give it as `sink`.
        - `schema`: DDL text, a `StructType` or a `pyarrow.Schema`; a stream in columns does not need it.
        - `retain`: "until-read" removes output that all streaming queries have read; "always" keeps it, for batches and
          views.

        Raises `GraphError` for a name that is none, and for a missing schema."""
        if retain not in ("until-read", "always"):
            raise GraphError(f"to_streaming: retain must be 'until-read' or 'always', not {retain!r}")
        if not isinstance(name, str) or not name:
            raise GraphError(f"to_streaming takes the name of the output, not {name!r}")
        if schema is None and self.form != "columns":
            raise GraphError(
                f'to_streaming: a stream of rows needs a schema: to_streaming({name!r}, "vertex string, miles double")'
            )
        return self.sink_to(launcher().streaming_sink(schema, retain), **{"uid": name, "name": name, **options})

    # Inside.

    def _as_rows(self) -> DataStream:
        return self if self.form == "rows" else self._add(ops.ToRows(), "to_rows", {}, columns=self.columns)

    def _as_columns(self, schema: Any, verb: str, parallelism: int | None) -> DataStream:
        if schema is None:
            raise TypeMismatch(f"{verb}: the stream is in rows; give schema= or call to_columns(schema) before")
        return self.to_columns(schema, on_error=FAIL)

    def _add(
        self,
        operator: Operator,
        name: str,
        options: dict[str, Any],
        *,
        form: Form = "rows",
        columns: tuple[str, ...] | None = None,
    ) -> DataStream:
        return self._of(add_node(self, operator, self._edges(self._partitioning), name, options, form, columns))

    def _of(self, node: graph.Node, tag: str | None = None, columns: tuple[str, ...] | None = None) -> DataStream:
        """The output of a node, or its side output `tag`, in rows or in the given columns."""
        if tag is not None:
            return DataStream(self.env, ((node.id, tag),), "rows" if columns is None else "columns", columns)
        return DataStream(self.env, ((node.id, None),), node.form, node.columns)


@with_hints_of_methods
class KeyedStream(DataStream):
    """A stream whose records of equal keys go to one subtask, with state per key. It has every verb of a stream: the next
    operator gets the records by key. The stream of its results has no key until `key_by` is called again."""

    def __init__(
        self,
        env: Dataflow,
        upstreams: tuple[Upstream, ...],
        form: Form,
        columns: tuple[str, ...] | None,
        key: Selector,
        written: str,
    ) -> None:
        super().__init__(env, upstreams, form, columns, ops.Hash(key, written))
        self.key = key
        self._written = written
        """The user's line that called `key_by`, for errors."""

    def union(self, *others: DataStream) -> DataStream:
        """The records of several streams that are keyed by equal columns or one function, by that key. Raises `GraphError`
        for streams with different keys; see also `DataStream.union`."""
        for other in others:
            if isinstance(other, KeyedStream) and other.key != self.key:
                raise GraphError(
                    "union: the streams are keyed differently; key the union instead: a.union(b).key_by(...)"
                )
        both = super().union(*others)
        return KeyedStream(self.env, both._upstreams, both.form, both.columns, self.key, self._written)

    def process(self, fn: Any, *, at_end: AtEnd = "wait", in_order: bool = False, **options: Any) -> DataStream:
        """The stream of the records that a `KeyedProcessFunction`, or a plain `f(value, ctx)`, emits for each record, with
        state and timers. At the end of the input the job waits for pending timers of processing time (`at_end="wait"`), or
        drops them (`"drop"`). With `in_order` records and timers of event time come in the order of their times, when the
        watermark has passed them; late records go to the side output "late". Raises `GraphError` for a function that does
        not fit, and for `in_order` in a loop or without event time."""
        verb = title_of("process", options)
        check_process(fn, verb, keyed=True)
        inputs = [self._edges(self._partitioning)]
        check_lifetimes(fn, [self], inputs, verb)
        ordered = check_in_order(in_order, [self], inputs, verb)
        return self._add(ops.KeyedProcess(fn, self.key, check_at_end(at_end), ordered), "process", options)

    def enter(self, scope: StreamScope) -> KeyedStream:
        """This stream inside of the loop of `scope`, with its key. Raises `ScopeError` if this stream is not around that
        loop."""
        stream = DataStream(self.env, self._upstreams, self.form, self.columns)
        inside: DataStream = stream_inside(stream, scope)
        if inside is stream:
            return self
        return KeyedStream(self.env, inside._upstreams, self.form, self.columns, self.key, self._written)

    def reduce(self, f: Callable[[Any, Any], Any] | ReduceFunction, **options: Any) -> DataStream:
        """The stream of merged values: `f` merges each record into the value of its key, and the result is emitted. Raises
        `GraphError` if `f` is no function of two arguments."""
        check_callable(f, 2, title_of("reduce", options), ReduceFunction)
        return self._add(ops.Reduce(self.key, f), "reduce", options)

    def drop_duplicates(
        self, within: Span | None = None, *, keep: Literal["first", "last"] = "first", **options: Any
    ) -> DataStream:
        """The stream of one record of each key. A record is dropped if one of its key was kept whose time is at most
        `within` (seconds, a `timedelta` or a text) before or behind its own; without `within` at any time. Time is event
        time, and late records go to the side output "late"; of a stream without timestamps it is the clock. State is the
        key with the times of its kept records, until event time has passed them by `within`; without `within` for ever.

        With `keep` "last" the last record of each key is emitted when the span that its first one began is over, or at
        the end of the input. Its timestamp is then the end of the span. State is the key with one record, and a stream in
        columns is converted to rows with names. Raises `GraphError` for wrong arguments, and in a loop for all but
        `drop_duplicates()`."""
        return everyday.drop_duplicates(self, within, keep, options)  # type: ignore[no-any-return]

    def top(self, n: int, *, by: Selector, ascending: bool = False, **options: Any) -> DataStream:
        """The stream of changes of the `n` best records of each key so far, as rows (key, op, rank, value): with `op` "-"
        the record `value` leaves the place `rank`, and all behind it move up; with "+" it comes in at the place `rank`, and
        all from there move down. The best has rank 1. `by` is a function or a column whose largest value is the best; with
        `ascending` the smallest. Of equal records the one that came first is before the others. A record for which `by`
        gives None or NaN fails. Raises `GraphError` for wrong arguments."""
        return everyday.top(self, n, by, ascending, options)  # type: ignore[no-any-return]

    def lag(self, n: int = 1, *, of: Selector | None = None, in_order: bool = False, **options: Any) -> DataStream:
        """The stream of pairs of each record and the record of its key `n` places before it, None where there is none; with
        `of`, a function or a column, that value of the earlier record. Places are in the order in which records came, or
        with `in_order` in the order of their times. Raises `GraphError` for wrong arguments, and what
        `process(fn, in_order=True)` raises."""
        return everyday.lag(self, n, of, in_order, options)  # type: ignore[no-any-return]

    def rate_limit(self, n: int, per: Span = 1.0, **options: Any) -> DataStream:
        """The stream of at most `n` records of each key in each span of `per` (seconds, a `timedelta` or a text) of the
        clock, which begins with a record. Others go to the side output "over". Raises `GraphError` for wrong arguments."""
        return everyday.rate_limit(self, n, per, options)  # type: ignore[no-any-return]

    def describe(self, *of: Selector, **options: Any) -> DataStream:
        """The stream of (key, count, mean, min, max) of a value, a function or a column, or of several columns with their
        names in front; one for each record, in columns one per distinct key and batch. Raises `GraphError` for anything
        else, and for an unknown column."""
        statistics = everyday.statistics(of, title_of("describe", options))
        return self._aggregate(tuple(statistics.items()), "describe", options)

    def count(self, **options: Any) -> DataStream:
        """The stream of (key, count), one for each record; in columns one per distinct key and batch."""
        return self._aggregate((("count", Count()),), "count", options)

    def sum(self, of: Selector, **options: Any) -> DataStream:
        """The stream of (key, sum), one for each record; in columns one per distinct key and batch. `of` is a function or a
        column. Raises `GraphError` for an unknown column."""
        return self._aggregate((("sum", Sum(of)),), "sum", options)

    def aggregate(
        self,
        aggregate: AggregateFunction | None = None,
        /,
        *,
        name: str | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
        on_error: OnError | None = None,
        **named: AggregateFunction,
    ) -> DataStream:
        """The stream of (key, result, …), one for each record; in columns one per distinct key and batch. It takes one
        aggregate function, or several by name: `aggregate(count=tr.Count(), total=tr.Sum("x"))`. Raises `GraphError` for
        anything else, and for an unknown column."""
        options = {"name": name, "uid": uid, "parallelism": parallelism, "on_error": on_error}
        return self._aggregate(named_aggregates(aggregate, named, options), "aggregate", options)

    def window(
        self,
        windows: WindowSpec | SessionSpec | CountSpec,
        *,
        allowed_lateness: Span = 0.0,
        early: FiringInterval | None = None,
        late: FiringInterval | None = None,
        discarding: bool = False,
        bounds: ops.Bounds = "seconds",
    ) -> WindowedStream:
        """The records of each key by windows: of event time (`tr.Tumbling`, `tr.Sliding`, `tr.Session`), of so many records
        (`tr.CountWindow`), or of all (`tr.Global`). A tumbling or sliding window that has fired fires again if a record for
        it comes within `allowed_lateness` (seconds, a `timedelta` or a text). Later records go to the side output "late".
        `early` and `late` (`tr.Every`) say when a window fires before and behind its final result. Results then have
        `firing` and `number`, and with `discarding` only what came since the one before. `bounds="datetime"` gives `start`
        and `end` as datetimes (in columns timestamps) in the zone of the windows, else in UTC. Raises `GraphError` for wrong
        arguments, for windows that have no end in a loop, and for other windows with an allowed lateness."""
        if not isinstance(windows, WindowSpec | SessionSpec | CountSpec):
            raise GraphError(f"window: expected windows, such as tr.Tumbling(...) or tr.Session(...), got {windows!r}")
        lateness = check_span(allowed_lateness, "window")
        if isinstance(windows, CountSpec):
            check_counted(windows.partial_at_end, lateness, self.scope.level)
        if isinstance(windows, SessionSpec):
            check_sessions(windows.gap_of, lateness, self.scope.level, self.columns)
        triggers = check_triggers(windows, early, late, discarding, lateness, self.scope.level)
        return WindowedStream(self, windows, lateness, triggers, check_bounds(windows, bounds))

    def join(
        self,
        other: KeyedStream,
        *,
        within: tuple[Span, Span] | None = None,
        window: WindowSpec | SessionSpec | None = None,
        how: How = "inner",
        select: Callable[[Any, Any], Any] | None = None,
        suffixes: tuple[str, str] | None = None,
        **options: Any,
    ) -> DataStream:
        """The stream of the pairs (a, b) of a record of this stream and one of `other` with equal keys. Either `b.time -
        a.time` is `within` `(before, after)`, both bounds included: seconds, a `timedelta` or a text; then a pair has the
        later time of the two. Or both are in one `window` of event time, and all comes out when that is over; a session
        goes over both streams.

        - `how`: "inner"; "left", "right" or "full", with (a, None) or (None, b) for records without a partner; "semi" or
          "anti": the records a that have one, or have none, each once. These come when the watermark has passed all times
          of a partner, and have the last of these times.
        - `select`: a function of a and b that makes the result.
        - `suffixes`: where both streams are in columns a pair is one row: the columns of a, then those of b, without
          those of the key that have the same name there. Behind other names that both have, suffixes are put: `("_x", "_y")`
          if none are given. null stands for a record that is not there.

        Late records of both streams go to the side output "late", in rows. Raises `GraphError` for wrong arguments, for
        streams without key or event time, and in a loop; `TypeMismatch` for streams of two forms, and for what is not there
        in columns; `ScopeError` for streams of two loops."""
        return joins.write_join(self, other, within, window, how, select, suffixes, options)  # type: ignore[no-any-return]

    def co_group(
        self,
        other: KeyedStream,
        *,
        window: WindowSpec | SessionSpec,
        select: Callable[[list[Any], list[Any]], Any] | None = None,
        **options: Any,
    ) -> DataStream:
        """The stream of the pairs (records, others) of the lists of records of this stream and of `other`, for each key and
        window of event time with records of either. `select`: a function of both lists that makes the result. Where both
        streams are in columns a result is a row: the columns of the key, and `first` and `second`, the lists. Late records
        go to the side output "late". Raises what `join` does."""
        return joins.write_co_group(self, other, window, select, options)  # type: ignore[no-any-return]

    def join_as_of(
        self,
        other: KeyedStream,
        *,
        keep: Span | None = None,
        how: How = "inner",
        load_until: float | datetime | None = None,
        select: Callable[[Any, Any], Any] | None = None,
        suffixes: tuple[str, str] | None = None,
        **options: Any,
    ) -> DataStream:
        """The stream of the pairs (a, b) of each record of this stream and the version of its key as of its time: the
        newest record of `other` that is not later. A pair comes when the watermarks of both streams have passed a, and has
        its time.

        - `keep`: how long a version counts: seconds, a `timedelta` or a text. None: until the next one.
        - `how`: "inner"; "left", with (a, None) where there is no version; "semi" or "anti", the records a that have one,
          or have none.
        - `load_until`: a time, seconds since 1970 or a `datetime`. A record before it waits until all versions up to it are
          there, and has the version as of that time; its result has that time.
        - `select`: a function of a and b that makes the result.
        - `suffixes`: where both streams are in columns, as for `join`.

        Late records of both streams go to the side output "late". Raises what `join` does."""
        return joins.write_as_of(self, other, keep, how, load_until, select, suffixes, options)  # type: ignore[no-any-return]

    def join_changes(
        self,
        other: KeyedStream,
        *,
        how: How = "inner",
        ttl: joins.Ttl | None = None,
        select: Callable[[Any, Any], Any] | None = None,
        **options: Any,
    ) -> DataStream:
        """The stream of changes of the join of two tables, each of which comes as a stream of changes: ("+", record) for a
        record that comes, ("-", record) for an equal one that goes. A result is ("+", (a, b)) or ("-", (a, b)), and has the
        time of the change that it comes from. Needs no event time, and works in loops.

        - `how`: as for `join`; records without a partner come as (a, None) and go when a partner comes. Results of "semi"
          and "anti" are ("+", a) and ("-", a).
        - `ttl`: how long a record is kept. One that is over goes without a change: results that it has made stay. None: it
          is kept until it is taken back.
        - `select`: a function of a and b that makes the result of a change.

        Raises `GraphError` for wrong arguments and for streams without key, `TypeMismatch` for streams in columns,
        `ScopeError` for streams of two loops. A record that is no change, or is taken back without having come, is an error
        of the record; with `ttl` the latter is counted as `unknown_records`."""
        return joins.write_changes(self, other, how, ttl, select, options)  # type: ignore[no-any-return]

    def _aggregate(
        self, aggregates: tuple[tuple[str, AggregateFunction], ...], verb: str, options: dict[str, Any]
    ) -> DataStream:
        for _, one in aggregates:
            of = getattr(one, "of", None)
            if of is not None:
                check_selector(of, self.columns, title_of(verb, options))
        stream, form = self._aggregate_input(aggregates)
        columns = (*ops.key_columns(stream.key), *(n for n, _ in aggregates)) if form == "columns" else None
        check_names(columns or (), title_of(verb, options))
        return stream._add(ops.Aggregate(self.key, aggregates), verb, options, form=form, columns=columns)

    def _as_columns(self, schema: Any, verb: str, parallelism: int | None) -> DataStream:
        if schema is None:
            raise TypeMismatch(f"{verb}: the stream is in rows; give schema= or call to_columns(schema) before key_by")
        # The key is computed before the conversion: it may be the user's function of rows.
        arrow = self.env._arrow_schema(schema, verb)
        operator, wide = ops.ToColumns(arrow), {"parallelism": parallelism, "on_error": FAIL}
        return self._add(operator, "to_columns", wide, form="columns", columns=tuple(arrow.names))

    def _aggregate_input(
        self, aggregates: tuple[tuple[str, AggregateFunction], ...], *fields: Selector | None
    ) -> tuple[KeyedStream, Form]:
        """The stream that an aggregate reads, and the form of its results: in columns if the stream is in columns and Arrow
        can compute all of it; else in rows. `fields`: what else is read of each record."""
        if self.form == "rows":
            return self, "rows"
        by_name = not any(map(callable, (self.key, *fields))) and all(
            isinstance(f, BuiltinAggregate) and is_builtin(f) and (f.of is None or isinstance(f.of, str))
            for _, f in aggregates
        )
        needs_value = any(
            isinstance(f, BuiltinAggregate) and f.of is None and not isinstance(f, Count) for _, f in aggregates
        )
        if by_name and aggregates and not needs_value:
            return self, "columns"
        rows = DataStream(self.env, self._upstreams, self.form, self.columns)._as_rows()
        return KeyedStream(self.env, rows._upstreams, "rows", self.columns, self.key, self._written), "rows"


@with_hints_of_methods
class ConnectedStreams:
    """Two streams that one `CoProcessFunction` reads, made by `connect`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing("connected streams", name, CONNECTED, dir(type(self)))

    def __init__(self, first: DataStream, second: DataStream) -> None:
        self.first = first
        self.second = second

    @property
    def scope(self) -> StreamScope:
        """The loops that both streams are in."""
        return self.first.scope

    @property
    def _keys(self) -> tuple[Selector | None, Selector | None]:
        return getattr(self.first, "key", None), getattr(self.second, "key", None)

    def key_by(self, first: Selector, second: Selector) -> ConnectedStreams:
        """Both streams, keyed: records of equal keys meet in one subtask and share state. A key is a function, a column
        name, or several names. Raises `GraphError` if a stream is keyed already, and for an unknown column."""
        if any(key is not None for key in self._keys):
            raise GraphError("connect(...).key_by: a stream is keyed already; key both before or both here")
        return ConnectedStreams(self.first.key_by(first), self.second.key_by(second))

    def process(
        self,
        fn: CoProcessFunction | BroadcastProcessFunction,
        *,
        at_end: AtEnd = "wait",
        in_order: bool = False,
        ordered: bool = False,
        **options: Any,
    ) -> DataStream:
        """The records that `fn` emits: its `process1` is called for each record of the first stream, `process2` for each of
        the second. A `BroadcastProcessFunction` takes a second stream that is broadcast, and a first one with or without a
        key. `at_end` says what becomes of pending timers of processing time at the end of both inputs: the job waits for
        them ("wait") or drops them ("drop"). With `in_order` records of both streams and timers of event time
        come in the order of their times, of one time those of the first stream first, when the watermark has passed them;
        late records go to the side output "late". Raises `GraphError` for a function that does not fit the streams, and for
        `in_order` in a loop, without keys or without event time; `ScopeError` if the streams are not in one loop."""
        verb = title_of("process", options)
        if isinstance(fn, BroadcastProcessFunction):
            in_time = in_order or ordered
            return self.first._of(broadcast_process(self.first, self.second, fn, at_end, in_time, options, verb))
        in_order = in_order or ordered
        return self.first._of(co_process(self.first, self.second, fn, at_end, in_order, options, verb))


@with_hints_of_methods
class WindowedStream:
    """The records of each key by window. Results are rows (key, start, end, …) with `start` and `end` in float seconds since
    1970; their timestamp is the window's last microsecond, or the end of a session. Results of windows that do not depend
    on time are rows (key, …). A key of columns has the names of the
    columns, any other key is called `key`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing("a windowed stream", name, WINDOWED, dir(type(self)))

    def __init__(
        self,
        keyed: KeyedStream,
        windows: WindowSpec | SessionSpec | CountSpec,
        allowed_lateness: int,
        triggers: Triggers | None,
        bounds: str | None,
    ) -> None:
        self._keyed = keyed
        self._windows = windows
        self._lateness = allowed_lateness
        self._triggers = triggers
        self._bounds = bounds

    @property
    def _labels(self) -> tuple[str, ...]:
        """The names of what a result has behind the results of the functions."""
        return () if self._triggers is None else ops.FIRING_COLUMNS

    @property
    def scope(self) -> StreamScope:
        """The loops that this stream is in."""
        return self._keyed.scope

    def reduce(self, f: Callable[[Any, Any], Any] | ReduceFunction, **options: Any) -> DataStream:
        """The stream of (key, start, end, value): `f` merges the records of each window into one value. Raises `GraphError`
        if `f` is no function of two arguments."""
        check_callable(f, 2, title_of("window.reduce", options), ReduceFunction)
        return self._add((), f, "window.reduce", options)

    def count(self, **options: Any) -> DataStream:
        """The stream of (key, start, end, count), one for each key and window."""
        return self._add((("count", Count()),), None, "window.count", options)

    def sum(self, of: Selector, **options: Any) -> DataStream:
        """The stream of (key, start, end, sum), one for each key and window. `of` is a function or a column. Raises
        `GraphError` for an unknown column."""
        return self._add((("sum", Sum(of)),), None, "window.sum", options)

    def aggregate(
        self,
        aggregate: AggregateFunction | None = None,
        /,
        *,
        name: str | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
        on_error: OnError | None = None,
        **named: AggregateFunction,
    ) -> DataStream:
        """The stream of (key, start, end, result, …), one for each key and window. It takes one aggregate function, whose
        result is named `value`, or several by name. Raises `GraphError` for anything else, and for an unknown column."""
        options = {"name": name, "uid": uid, "parallelism": parallelism, "on_error": on_error}
        aggregates = named_aggregates(aggregate, named, options, default="value")
        return self._add(aggregates, None, "window.aggregate", options)

    def process(
        self,
        fn: Callable[[Any, Any, list[Any], Any], Any] | WindowFunction,
        *,
        name: str | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
        on_error: OnError | None = None,
    ) -> DataStream:
        """The records that a `WindowFunction`, or a plain `f(key, window, records, ctx)`, emits for each window. It is given
        all records of the window, which has `window.start` and `window.end`. The window has the `uid`, the operator that
        calls the function the same with `-function` behind. Raises `GraphError` for a function that does not fit."""
        check_window_function(fn, title_of("window.process", {"name": name}))
        options = {"name": name, "uid": uid, "parallelism": parallelism, "on_error": on_error}
        return self._call(Gather(), fn, "window.process", options, None)

    def top(self, n: int, *, by: Selector, ascending: bool = False, **options: Any) -> DataStream:
        """The stream of the `n` best records of each window, as rows (key, start, end, rank, value): a row for each record
        `value`, the best first, with rank 1. `by` and `ascending` are those of `KeyedStream.top`. Raises `GraphError` for
        wrong arguments."""
        return everyday.ranks(self, n, by, ascending, "window.top", options)  # type: ignore[no-any-return]

    def rank(self, *, by: Selector, ascending: bool = False, **options: Any) -> DataStream:
        """The stream of all records of each window, as rows (key, start, end, rank, value). Equal records have one rank: one
        more than the number of records before them. See `top`."""
        return everyday.ranks(self, None, by, ascending, "window.rank", options)  # type: ignore[no-any-return]

    def describe(self, *of: Selector, **options: Any) -> DataStream:
        """The stream of (key, start, end, count, mean, min, max), one for each key and window; see
        `KeyedStream.describe`."""
        statistics = everyday.statistics(of, title_of("window.describe", options))
        return self._add(tuple(statistics.items()), None, "window.describe", options)

    def _call(
        self, aggregate: AggregateFunction, fn: Any, verb: str, options: dict[str, Any], columns: tuple[str, ...] | None
    ) -> DataStream:
        """The records that a function emits for each list of records that an aggregate gives for a window."""
        policy, gap = options.get("on_error"), getattr(self._windows, "gap_of", None)
        before = policy if gap is not None or not isinstance(aggregate, Gather) else None
        gathered = self._add((("records", aggregate),), None, verb, {**options, "on_error": before})
        name, uid = options.get("name"), options.get("uid")
        where = self.scope.level, title_of(verb, options)
        operator = window_call(fn, self._keyed.key, self._windows, self._lateness, *where)
        calling = {
            **options,
            "name": None if name is None else f"{name}-function",
            "uid": None if uid is None else f"{uid}-function",
            "on_error": policy if isinstance(aggregate, Gather) else FAIL,
        }
        if isinstance(operator, ops.KeyedProcess):
            gathered = gathered.key_by(operator.key, on_error=FAIL)
        return gathered._add(operator, "window.function", calling, columns=columns)

    def _add(
        self, aggregates: tuple[tuple[str, AggregateFunction], ...], reduce: Any, verb: str, options: dict[str, Any]
    ) -> DataStream:
        for _, one in aggregates:
            of = getattr(one, "of", None)
            if of is not None:
                check_selector(of, self._keyed.columns, title_of(verb, options))
        w = self._windows
        if isinstance(w, CountSpec):
            return self._add_counted(w, aggregates, reduce, verb, options)
        fields = (w.gap_of,) if isinstance(w, SessionSpec) else ()
        stream, form = self._keyed._aggregate_input(aggregates, *fields)
        if reduce is not None:
            form = "rows"
        names = [name for name, _ in aggregates] or ["value"]
        columns = (*ops.key_columns(stream.key), "start", "end", *names, *self._labels)
        operator: ops.Windowed
        if isinstance(w, SessionSpec):
            for title, one in aggregates:
                check_merge(one, f"{title_of(verb, options)}: {title}")
            operator = ops.SessionWindow(stream.key, w.gap, w.gap_of, aggregates, reduce, self._bounds)
        else:
            times = w.size, w.slide, w.offset, self._lateness
            operator = ops.Window(stream.key, *times, aggregates, reduce, w.calendar, self._triggers, self._bounds)
        check_names(columns, title_of(verb, options))
        return stream._add(operator, verb, options, form=form, columns=columns)

    def _add_counted(
        self,
        spec: CountSpec,
        aggregates: tuple[tuple[str, AggregateFunction], ...],
        reduce: Any,
        verb: str,
        options: dict[str, Any],
    ) -> DataStream:
        key = self._keyed.key
        columns = (*ops.key_columns(key), *([name for name, _ in aggregates] or ["value"]), *self._labels)
        check_names(columns, title_of(verb, options))
        fn = CountedWindows(spec, aggregates, reduce, columns, isinstance(key, tuple), self._triggers)
        rows = DataStream(self._keyed.env, self._keyed._upstreams, self._keyed.form, self._keyed.columns)._as_rows()
        stream = KeyedStream(rows.env, rows._upstreams, "rows", rows.columns, key, self._keyed._written)
        return stream._add(ops.KeyedProcess(fn, key, "drop"), verb, options, columns=columns)


class LoopFunction:
    """The body of a loop as an object, for `iterate`. A plain function may take its place."""

    def loop(self, stream: DataStream) -> Any:
        """Writes the body, from the stream of input and feedback. Returns `(feedback, output)`."""
        raise NotImplementedError


class CoLoopFunction:
    """The body of a loop whose feedback is of another type than its input, for `iterate_with_feedback`. A plain function
    may take its place."""

    def loop(self, connected: ConnectedStreams) -> Any:
        """Writes the body, from the input (`connected.first`) and the feedback (`connected.second`). Returns
        `(feedback, output)`."""
        raise NotImplementedError
