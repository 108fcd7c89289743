"""The environment, in which a user writes a dataflow and starts it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from tailrace.api.checks.arguments import (
    check_declared,
    check_job_name,
    check_listener,
    check_object,
    check_selector,
    check_span,
)
from tailrace.api.checks.hints import ENVIRONMENT
from tailrace.api.checks.spans import check_spans
from tailrace.api.config import (
    DEFAULT_RESTART,
    Autoscale,
    Elastic,
    checked_settings,
    checked_sizing,
    memory_bytes,
    span,
)
from tailrace.api.connectors import Sink, Source
from tailrace.api.failure_options import FAIL, Capsules, OnError, check_on_error, checked_capsules
from tailrace.api.launch import Display, JobHandle, launcher, table_source
from tailrace.api.nodes import Upstream, add_node
from tailrace.api.restore.dry_run import RestoreCheck
from tailrace.api.streams import DataStream
from tailrace.elements.batches import Form
from tailrace.elements.durations import Duration, span_seconds
from tailrace.errors import ConfigError, GraphError, short_repr
from tailrace.graph import operators as ops
from tailrace.graph.explain import as_mermaid, as_text
from tailrace.graph.graph import MAX_SUBTASKS, GraphBuilder
from tailrace.graph.picture import JobGraph
from tailrace.graph.plan import Plan, make_plan
from tailrace.spelling import missing, with_hints_of_methods


@with_hints_of_methods
class Environment:
    """A dataflow under construction, and the settings it runs with.

    - `spark`: a `SparkSession`. Without one the job takes the active session when it starts, or makes a local one with
      enough slots.
    - `parallelism`: the default for operators (2 if not given); or a `tr.Elastic`: the job has as many workers as there are
      task slots, within its bounds, and `parallelism` of the environment is the upper one.
    - `autoscale`: a `tr.Autoscale`. The load decides how many workers an elastic job has.
    - `max_parallelism`: the number of key groups.
    - `memory`: a bound of what each worker holds in its channels (bytes or a text such as "512m").
    - `copy_records`: each consumer of a record gets its own copy.
    - `checkpoint`: a `tr.CheckpointConfig`. Without one the job takes no checkpoints, and a restart begins anew.
    - `restart`: a `tr.FixedDelay`, `tr.ExponentialDelay`, `tr.FailureRate` or `tr.NoRestart`.
    - `standby`: a `tr.StandbyConfig`. The job replaces a lost worker while the other workers go on, where that is possible;
      it needs checkpoints.
    - `on_error`: the policy of every verb that takes one, for records for which user code raises: "fail" (the job fails),
      a `tr.Aside` or a `tr.Retry`.
    - `capsules`: True, or a `tr.Capsules`: a job with checkpoints keeps failed calls of user code, for `tailrace debug`.
      False: it keeps none.
    - `state_backend`: "memory", or "disk" for keyed state that is larger than memory (needs `tailrace[disk]`).
    - `debug`: the job checks its invariants, and that no operator changes a record that it received; this is slow.
    - `work_dir`: a folder or URL that driver and executors reach, through which DataFrames and results travel; it may be
      left out.
    - `slot_timeout`: how long (seconds, a `timedelta` or a text) the job waits for Spark to give it its task slots.
    - `publish_timeout`: how long a sink is called again whose server is away, while the job goes on; then the job fails.
    - `task_cpus`: the number of cores that each slot takes on a cluster; None: Spark's own setting, one core by default.
    - `progress`: a running job prints a line on standard error each second.
    - `ui`: True, or a port: the page of the program's jobs, for browsers on this machine (needs `tailrace[ui]`). `job.ui` is
      its address.
    - `listeners`: objects of PySpark's `StreamingQueryListener`, to which jobs report their start, progress and end.

    Raises `ConfigError` for a setting that is wrong or not in this version.
    """

    def __init__(
        self,
        spark: Any = None,
        *,
        parallelism: int | Elastic | None = None,
        autoscale: Autoscale | None = None,
        max_parallelism: int = 128,
        memory: int | str = "1g",
        copy_records: bool = False,
        checkpoint: Any = None,
        restart: Any = None,
        standby: Any = None,
        on_error: OnError = FAIL,
        capsules: Capsules | bool = True,
        state_backend: str = "memory",
        debug: bool = False,
        work_dir: str | None = None,
        slot_timeout: Duration = 60.0,
        publish_timeout: Duration = 600.0,
        task_cpus: float | None = None,
        progress: bool | None = None,
        ui: bool | int | None = None,
        listeners: Iterable[Any] = (),
    ) -> None:
        self.checkpoint, self.restart = checked_settings(checkpoint, restart, standby)
        if self.checkpoint is None:
            self.checkpoint = launcher_checkpoint()
            if self.checkpoint is not None and restart is None:
                self.restart = DEFAULT_RESTART
        self.standby = standby = standby if standby is not None else launcher().default_standby()
        if standby is not None and self.checkpoint is None:
            raise ConfigError(
                "standby: a worker that takes a lost one's place restores a checkpoint: give the Environment "
                'checkpoint=tr.CheckpointConfig(dir="…") (on the command line: --checkpoint-dir DIR)'
            )
        self.on_error = check_on_error(on_error, "Environment")
        self.capsules = checked_capsules(capsules)
        if state_backend not in ("memory", "disk"):
            raise ConfigError(f"state_backend must be 'memory' or 'disk', not {state_backend!r}")
        self.state_backend = state_backend
        if not isinstance(max_parallelism, int) or not 1 <= max_parallelism <= MAX_SUBTASKS:
            raise ConfigError(f"max_parallelism must be from 1 to {MAX_SUBTASKS}, not {max_parallelism!r}")
        for setting, given in (("slot_timeout", slot_timeout), ("publish_timeout", publish_timeout)):
            if span(given, setting) <= 0:
                raise ConfigError(f"{setting} must be above zero, not {given!r}")
        if task_cpus is not None and (not isinstance(task_cpus, int | float) or not 0 < task_cpus < math.inf):
            raise ConfigError(f"task_cpus must be a number of cores above zero, not {task_cpus!r}")
        parallelism = parallelism if parallelism is not None else launcher_default(max_parallelism)
        autoscale = autoscale if autoscale is not None else launcher().default_autoscale(parallelism)
        self.sizing = checked_sizing(parallelism, autoscale, self.checkpoint is not None, max_parallelism)
        chosen = parallelism if self.sizing is None else self.sizing.elastic.most
        if not isinstance(chosen, int) or isinstance(chosen, bool) or not 1 <= chosen <= max_parallelism:
            elastic = "" if isinstance(chosen, int | float) else "; an elastic job has tr.Elastic(least, most)"
            raise ConfigError(
                f"parallelism must be a whole number from 1 to max_parallelism ({max_parallelism}), not {chosen!r}{elastic}"
            )
        if spark is not None and not hasattr(spark, "createDataFrame"):
            raise ConfigError(
                f"Environment(spark): expected a SparkSession, got {type(spark).__name__} {short_repr(spark, 80)}; for "
                f'another master give SparkSession.builder.master("…").getOrCreate(), or use tailrace run --master'
            )
        self._spark = spark
        if spark is not None:
            launcher().note_session(spark)
        self.parallelism = chosen
        self.memory = memory_bytes(memory)
        self.copy_records = bool(copy_records)
        self.debug = bool(debug)
        self.work_dir = launcher().work_dir(work_dir)
        self.slot_timeout = span_seconds(slot_timeout)
        self.publish_timeout = span_seconds(publish_timeout)
        self.task_cpus = None if task_cpus is None else float(task_cpus)
        if ui is not None and (not isinstance(ui, int) or not 0 <= ui < 1 << 16):
            raise ConfigError(f"ui must be True, False or a port, not {ui!r}")
        self.display = Display(progress, ui, tuple(check_listener(one, "listeners") for one in listeners))
        self._graph = GraphBuilder(max_parallelism)
        self._graph.ended = self._finished_nodes
        self._executed: set[int] = set()
        self._runs: list[tuple[Any, frozenset[int]]] = []
        """The handles of the jobs of this environment, with the nodes that each runs."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing("an Environment", name, ENVIRONMENT, dir(type(self)))

    @property
    def spark(self) -> Any:
        """The Spark session: the given one, else the active one, else a local one that is made now. A local one has slots
        for two jobs of the environment's parallelism and its standbys, and one to spare."""
        return self._session(self.parallelism)

    def _session(self, slots: int) -> Any:
        """The Spark session, as `spark` finds it. If it makes a local one, that has twice the slots given and the slots of
        their standby processes, and one to spare."""
        if self._spark is None:
            standing_by = 0 if self.standby is None else self.standby.processes(slots)
            self._spark = launcher().session(slots + standing_by)
            launcher().note_session(self._spark)
        return self._spark

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self._graph.max_parallelism

    # Sources.

    def from_collection(self, items: Iterable[Any], **options: Any) -> DataStream:
        """A bounded stream of these items, in rows. They travel with the job: meant for small collections and tests.
        `options` are `uid`, `name` and `parallelism`."""
        return self._source(launcher().collection(items), "from_collection", options)

    def from_dataframe(self, df: Any, form: Form = "rows", **options: Any) -> DataStream:
        """A bounded stream of a Spark DataFrame: rows with names, or record batches with `form="columns"`. The DataFrame is
        materialised once, before the workers start. `options` are `uid`, `name` and `parallelism`. Raises `GraphError` for
        anything else than a DataFrame, and for a streaming one."""
        if form not in ("rows", "columns"):
            raise GraphError(f"from_dataframe: form must be 'rows' or 'columns', not {form!r}")
        if "refresh" in options:
            raise GraphError(
                "from_dataframe: a DataFrame is read once, and refresh is for lookups: a second reading gives rows, not "
                "what has changed. To look rows up in the newest version, use stream.lookup(df, on=..., refresh=...); to go "
                "on with the rows that come, env.from_table(..., follow=True) for Delta and Iceberg, or "
                "env.from_streaming(spark.readStream...); for changes, tr.sources.PostgresChanges"
            )
        if not hasattr(df, "mapInArrow") or not hasattr(df, "schema"):
            kind = type(df)
            got = (
                kind.__name__
                if kind.__module__ == "builtins"
                else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
            )
            hint = "; spark.createDataFrame(df) makes one of it" if kind.__name__ in ("DataFrame", "Table") else ""
            raise GraphError(f"from_dataframe: expected a Spark DataFrame, got {got}{hint}")
        if getattr(df, "isStreaming", False):
            raise GraphError(
                "from_dataframe: this DataFrame is a streaming one, and from_dataframe takes the rows of a DataFrame once, "
                "before the job starts; use env.from_streaming(df), or read what is there now (spark.read instead of "
                "spark.readStream)"
            )
        return self._source(launcher().dataframe_source(df, form), "from_dataframe", options)

    def from_data_source(
        self,
        source: Any,
        options: Mapping[str, Any] | None = None,
        *,
        schema: Any = None,
        form: Form = "rows",
        follow: bool | None = None,
        until: Literal["now"] | None = None,
        every: Duration = 0.05,
        **settings: Any,
    ) -> DataStream:
        """A stream of a Python Data Source of PySpark (`pyspark.sql.datasource.DataSource`), which runs in the workers,
        without Spark's micro-batches.

        - `source`: the class, or the name under which it is registered (`spark.dataSource.register`) or imported.
        - `options`: a dict of options, as `spark.read.options` takes them.
        - `schema`: DDL text, a `StructType` or a `pyarrow.Schema`, in place of the schema that the data source has.
        - `form`: "rows" with names, or "columns" for record batches.
        - `follow`: True for the stream reader of the data source, False for its batch reader, which ends; None for its
          stream reader, or the batch reader if it has none.
        - `until`: "now" for a stream reader that ends with what is there when the job starts.
        - `every`: the time between two looks of a stream reader for something new (seconds, a `timedelta` or a text).
        - `settings` are `uid`, `name` and `parallelism`.

        Raises `GraphError` for a name that is not known and for a data source that has no such reader or schema, and
        `ConfigError` for what the data source refuses when it is made.
        """
        if form not in ("rows", "columns"):
            raise GraphError(f"from_data_source: form must be 'rows' or 'columns', not {form!r}")
        reading = {"follow": follow, "until": until, "every": every}
        made = launcher().data_source(self._spark, source, options, schema, form, reading)
        return self._source(made, f"from_data_source: {made.name}", settings)

    def from_streaming(
        self,
        df: Any,
        form: Form = "rows",
        *,
        trigger: Duration | None = None,
        watermark: bool = True,
        **options: Any,
    ) -> DataStream:
        """A stream of a streaming DataFrame of Spark: rows with names, or record batches with `form="columns"`. The job
        starts the query, reads each of its batches once, and stops it.

        - `trigger`: the time from one batch to the next (seconds, a `timedelta` or a text); None: the next batch begins when
          the last one is done. "available-now": the query ends behind what is there, and so does the stream.
        - `watermark`: a column that has a watermark (`df.withWatermark`) gives the stream its timestamps and watermarks,
          with that delay; False leaves that out.
        - `options` are `uid`, `name` and `parallelism`.

        Raises `GraphError` for anything else than a streaming DataFrame, for columns that are not carried without loss, and
        for a watermark that cannot be taken over."""
        if form not in ("rows", "columns"):
            raise GraphError(f"from_streaming: form must be 'rows' or 'columns', not {form!r}")
        source = launcher().streaming_source(df, form, trigger, watermark)
        stream = self._source(source, "from_streaming", options)
        if source.event_column is None:
            return stream
        uid = options.get("uid")
        width: dict[str, Any] = {"parallelism": options.get("parallelism")}
        column = check_selector(source.event_column, stream.columns, "from_streaming")
        clock = ops.AssignTimestamps(column, check_span(source.delay, "from_streaming"), None, marks=source.marks)
        named = {"name": "watermark", "uid": uid and f"{uid}-watermark", **width}
        timed = stream._add(clock, "assign_timestamps", named, form=stream.form, columns=stream.columns)
        plain = timed.filter(source.is_data, name="without marks", **width)
        plain = plain.to_columns(source.fields, name="columns", **width)
        return plain if form == "columns" else plain.to_rows(name="rows", **width)

    def from_table(
        self,
        table: Any,
        *,
        catalog: Any = None,
        follow: bool = False,
        form: Form = "rows",
        columns: Sequence[str] | None = None,
        starting_version: int | Literal["next"] | None = None,
        skip_changes: bool = False,
        poll: float | None = None,
        storage_options: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> DataStream:
        """A stream of the rows of a Delta or Iceberg table, read by workers through `deltalake` or `pyiceberg`.

        - `table`: its path or URL; of an Iceberg table its name, `namespace.table`. What Spark knows by a name,
          `from_dataframe(spark.table(name))` reads.
        - `catalog`: the catalog of an Iceberg table, as `tr.sinks.Iceberg` takes it; None for a Delta table.
        - `follow`: False for the rows of its newest version; True to go on with those that later versions add, without end,
          version by version. A version of an Iceberg table is a snapshot.
        - `form`: "rows" with names, or "columns" for record batches; `columns`: names of the columns to read, None for all.
        - `starting_version`: only rows that this version and later ones add: its number, of Iceberg the id of a snapshot, or
          "next" for the first one that comes.
        - `skip_changes`: True to leave out versions that change or delete rows, with all that they add. By default such a
          version is an error. Versions that only rearrange files (compaction) are passed over in any case.
        - `poll`: seconds between two looks for a version; `storage_options`: as `deltalake` has them.
        - `settings` are `uid`, `name` and `parallelism`.

        Raises `GraphError` where there is no table, and `ConfigError` for one that cannot be read this way."""
        options = {
            "follow": follow,
            "columns": columns,
            "starting_version": starting_version,
            "skip_changes": skip_changes,
            "poll": poll,
        }
        made = table_source(table, catalog, form, storage_options, options)
        return self._source(made, f"from_table: {made.description}", settings)

    def from_source(self, source: Source, **options: Any) -> DataStream:
        """A stream of any source: one of `tr.sources` or your own `tr.Source`. `options` are `uid`, `name`, `parallelism`,
        and `on_error` for records that cannot be parsed, if the source has a `raw_source`. Raises `GraphError` for what is
        no source, and for `on_error` where the readers of the source parse its records."""
        check_object(source, Source, "from_source")
        given = options.pop("on_error", None)
        policy = self.on_error if given is None else check_on_error(given, "from_source")
        apart = None if policy == FAIL else source.raw_source()
        if apart is not None:
            unparsed, parse = apart
            raw = self._source(unparsed, f"from_source: {source.description}", options)
            width = {"parallelism": options.get("parallelism")}
            return raw._add(ops.Map(parse), "parse", {**width, "on_error": policy}, columns=source.columns)
        if given not in (None, FAIL):
            raise GraphError(
                f"from_source: the readers of the source {source.description} parse its records, and on_error can set none "
                f"aside; let them give raw records, and parse these with map(f, on_error=...)"
            )
        return self._source(source, f"from_source: {source.description}", options)

    def _source(self, source: Source, verb: str, options: dict[str, Any]) -> DataStream:
        root = DataStream(self, (), source.form, source.columns)
        node = add_node(root, ops.Source(source), (), verb, options, source.form, source.columns)
        return DataStream(self, ((node.id, None),), source.form, source.columns)

    # Running.

    def execute(
        self,
        name: str = "tailrace",
        *,
        from_checkpoint: str | None = None,
        allow_dropped_state: bool | Iterable[str] = False,
        if_program_fails: Literal["cancel", "wait"] = "cancel",
        if_finished: Literal["raise", "start-again"] = "raise",
    ) -> JobHandle:
        """Starts everything that has not run yet as one job and returns its handle at once.

        - `from_checkpoint`: the path of a checkpoint to go on from, or "latest" for the newest one of this job's name in the
          environment's checkpoint folder; "latest-or-new" begins anew if there is none yet.
        - `allow_dropped_state`: the uids of operators whose state may be dropped if it does not fit the dataflow any more,
          and of removed sinks whose prepared output is given up; True allows it for all.
        - `if_program_fails`: what becomes of the job when the program ends by an exception that it does not catch: the job
          is cancelled ("cancel"), or the program waits for its end ("wait").
        - `if_finished`: what "latest" and "latest-or-new" do for a job that has come to its end: they raise
          `JobAlreadyFinished` ("raise"), or start from the beginning ("start-again"), which publishes all output once more.

        Raises `GraphError` if there is nothing to run or the dataflow cannot run as written, `ConfigError` for settings,
        and `CheckpointNotFound`, `CheckpointCorrupt` or `IncompatibleState` for a checkpoint that the job cannot start
        from. The handle reports later failures.
        """
        from_checkpoint, allow_dropped_state = _start_of(from_checkpoint, allow_dropped_state)
        check_job_name(name)
        if if_program_fails not in ("cancel", "wait"):
            raise ConfigError(f"if_program_fails must be 'cancel' or 'wait', not {if_program_fails!r}")
        if if_finished not in ("raise", "start-again"):
            raise ConfigError(f"if_finished must be 'raise' or 'start-again', not {if_finished!r}")
        sinks = self._pending()
        plan = self._plan(sinks)
        check_connectors(plan)
        start = (from_checkpoint, allow_dropped_state, if_program_fails, if_finished)
        job = launcher().submit(self, plan, name, *start)
        self._note_start(job, sinks, plan)
        return job

    def check_restore(
        self, from_checkpoint: str, *, name: str = "tailrace", allow_dropped_state: bool | Iterable[str] = False
    ) -> RestoreCheck:
        """A dry run: reports which parts of a checkpoint would fit everything that has not run yet, and which would not. It
        starts and writes nothing. The arguments are those of `execute`; "latest" needs the `name` of the job. The dry run
        reads some entries of every state as a start would, not all.

        Raises `GraphError` if there is nothing to run, `ConfigError` without a checkpoint, and `CheckpointNotFound` or
        `CheckpointCorrupt` for a checkpoint that cannot be read.
        """
        found, allowed = _start_of(from_checkpoint, allow_dropped_state)
        if found is None:
            raise ConfigError("check_restore needs the path of a checkpoint, or 'latest'")
        check_job_name(name)
        return launcher().check_restore(self, self._plan(self._pending()), name, found, allowed)

    def explain(self, format: str = "text") -> str:
        """The plan of everything written so far, as `"text"` or as a `"mermaid"` flowchart, without the operators of ended
        jobs; if none is left, the plan of the last execution. Nothing runs. Raises `ConfigError` for another format."""
        if format not in ("text", "mermaid"):
            raise ConfigError(f"explain: format must be 'text' or 'mermaid', not {format!r}")
        plan = self._whole_plan()
        return as_text(plan) if format == "text" else as_mermaid(plan)

    def graph(self) -> JobGraph:
        """The graph of everything written so far, as `explain` has it: `env.graph().svg()` is a picture of it, and notebooks
        show it as one. Nothing runs."""
        return JobGraph(self._whole_plan())

    # Inside.

    def _whole_plan(self) -> Plan:
        """The plan of everything written so far without the operators of ended jobs, or that of the last execution."""
        written = {node.id for node in self._graph.valid()}
        last = set(self._runs[-1][1]) if self._runs else written
        return self._plan(written - self._finished_nodes() or last)

    def _pending(self) -> set[int]:
        """The sinks that have not run yet. No sink runs twice. Raises `GraphError` if there are none."""
        pending = self._graph.sinks() - self._executed
        if not pending:
            done = " (everything written so far has run)" if self._executed else ""
            raise GraphError(f"there is nothing to run{done}: end a stream with sink_to, collect or to_dataframe")
        self._graph.check_closed(pending)
        return pending

    def _note_start(self, job: Any, sinks: set[int], plan: Plan) -> None:
        """Records that `job` runs these sinks, so that no later execution does."""
        self._executed |= sinks
        self._runs.append((job, frozenset(node.id for node in plan.graph.nodes)))

    def _finished_nodes(self) -> set[int]:
        """The nodes of ended jobs that neither a running job nor a sink that has not run yet needs."""
        ended: set[int] = set()
        running: set[int] = set()
        for job, nodes in self._runs:
            (running if job.is_active else ended).update(nodes)
        pending = self._graph.sinks() - self._executed if ended else set()
        if pending:
            running.update(node.id for node in self._graph.subgraph(pending).nodes)
        return ended - running

    def _check_place(self, sink: Sink, verb: str) -> None:
        """Raises `GraphError` if a sink that has not run yet writes to the place of this one."""
        for ident in self._graph.sinks() - self._executed if sink.place is not None else ():
            other = self._graph.nodes[ident]
            if isinstance(other.operator, ops.Sink) and other.operator.sink.place == sink.place:
                raise GraphError(
                    f"{verb}: sink {other.name!r} has not run yet and writes to {sink.place!r} as well; a record that "
                    f"reaches both sinks would be there twice (a cell that was run twice?); choose another place, union "
                    f"the streams, or begin anew with tr.Environment()"
                )

    def _plan(self, required: set[int]) -> Plan:
        plan = make_plan(self._graph.subgraph(required))
        check_spans(plan.graph.nodes)
        if self.standby is not None and any(nest.rounds is not None and nest.rounds.span for nest in plan.nests):
            raise GraphError(
                "standby: a worker of a loop with Rounds(span=...) is not replaced, since its history does not have the "
                "input that waits for its span; leave standby= out, and the job starts again from its newest checkpoint"
            )
        return plan

    def _run_at_once(self, end: Callable[[], object], name: str) -> None:
        """Runs everything that is pending, with the sink that `end` adds, as one job, and waits for its end."""
        written = self._graph.sinks()
        end()
        try:
            job = self.execute(name)
        except BaseException:
            # The user has no reference to this sink: it must not run with later ones.
            self._executed |= self._graph.sinks() - written
            raise
        job.await_termination()

    def _check_bounded(self, upstreams: tuple[Upstream, ...], verb: str) -> None:
        """Raises `GraphError` if an unbounded source feeds a stream."""
        for node in self._graph.subgraph({node for node, _ in upstreams}).nodes:
            if isinstance(node.operator, ops.Source) and not node.operator.source.bounded:
                raise GraphError(
                    f"{verb}: source {node.name!r} is unbounded, so the result would never be complete; use sink_to and "
                    f"execute"
                )

    def _arrow_schema(self, schema: Any, verb: str) -> Any:
        if schema is None:
            raise GraphError(f'{verb}: give a schema: DDL text such as "id long, name string", or a pyarrow.Schema')
        return check_declared(schema if isinstance(schema, pa.Schema) else launcher().arrow_schema(schema), verb)


def check_connectors(plan: Plan) -> None:
    """Calls `check` of the sources and sinks of a plan. Raises one `ConfigError` with all errors."""
    wrong: list[str] = []
    for node in plan.graph.nodes:
        operator = node.operator
        checked = operator.source if isinstance(operator, ops.Source) else getattr(operator, "sink", None)
        try:
            if isinstance(checked, (Source, Sink)):
                checked.check()
        except ConfigError as error:
            wrong.append(f"{node.name}: {error}")
    if wrong:
        raise ConfigError("\n".join(wrong))


def _start_of(
    from_checkpoint: Any, allow_dropped_state: bool | Iterable[str]
) -> tuple[str | None, bool | tuple[str, ...]]:
    """The checkpoint that a job starts from, and the state that it may leave behind, checked. Raises `ConfigError`."""
    path = getattr(from_checkpoint, "__fspath__", lambda: from_checkpoint)()
    if path is not None and (not isinstance(path, str) or not path):
        raise ConfigError(f"from_checkpoint must be a path, a URL, 'latest' or 'latest-or-new', not {path!r}")
    return path, allow_dropped_state if isinstance(allow_dropped_state, bool) else tuple(allow_dropped_state)


def launcher_default(max_parallelism: int) -> int | Elastic:
    """The parallelism of an environment if the user gives none."""
    found = launcher().default_parallelism()
    return min(found, max_parallelism) if isinstance(found, int) else found


def launcher_checkpoint() -> Any:
    """The checkpoint settings of an environment if the user gives none: those of the command line, or None."""
    return launcher().default_checkpoint()
