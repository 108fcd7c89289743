"""Hints for names that do not exist: names of Flink, Spark and Bytewax, which users write from habit, and misspelt ones."""

from __future__ import annotations

_OPTION = "takes it as an argument of the verb, such as map(f, {}=...)"
_VERB = "has {} for this"
_SPARK_READS = "let Spark read it: env.from_dataframe(spark.read...); for an endless input write a tr.Source"
_EVERY = (
    'key_by(...).aggregate(...) for this, such as aggregate(largest=tr.Max("x")); there are tr.Min, tr.Max and tr.Mean'
)
_JOINS = "connect(other) and a tr.CoProcessFunction for this"
_TRIGGERS = (
    "a window gives its final result when event time has passed its end, and others before and behind it with "
    "window(windows, early=tr.Every(...), late=tr.Every(...)); for anything else use timers: key_by(...).process(f)"
)
_TTL = "declare it with the state: tr.ValueState(int, ttl=tr.Ttl(3600))"
_TESTING = "use tr.testing.{}"
_SPARK_WRITES = "write a tr.Sink, or files or a table that Spark reads: tr.sinks.Parquet, tr.sinks.Table"

VERBS: dict[str, str] = {
    "uid": _OPTION.format("uid"),
    "name": _OPTION.format("name"),
    "alias": _OPTION.format("name"),
    "set_uid": _OPTION.format("uid"),
    "set_parallelism": _OPTION.format("parallelism"),
    "setParallelism": _OPTION.format("parallelism"),
    "keyBy": _VERB.format("key_by(...)"),
    "groupBy": _VERB.format("key_by(...)"),
    "group_by": _VERB.format("key_by(...)"),
    "groupby": _VERB.format("key_by(...)"),
    "flatMap": _VERB.format("flat_map(f)"),
    "where": _VERB.format("filter(f)"),
    "withColumn": _VERB.format("with_columns(name=expression) in columns, or map(f) in rows,"),
    "withColumns": _VERB.format("with_columns(name=expression) in columns, or map(f) in rows,"),
    "drop": _VERB.format("select(...)"),
    **dict.fromkeys(("selectExpr", "select_expr", "query"), _VERB.format("sql(query)")),
    "apply": _VERB.format("process(function)"),
    "transform": _VERB.format("process(function)"),
    "unionAll": _VERB.format("union(other)"),
    "merge": _VERB.format("union(other)"),
    **dict.fromkeys(
        ("left_join", "inner_join", "outer_join", "interval_join", "intervalJoin"),
        'has key_by(...).join(other, within=(before, after), how="left") for this',
    ),
    "coGroup": _VERB.format("key_by(...).co_group(other, window=...)"),
    **dict.fromkeys(("as_of", "asof", "join_asof", "temporal_join"), _VERB.format("key_by(...).join_as_of(other)")),
    "enrich": "has lookup(table, on=...) for this, and join_as_of for a table that changes",
    **dict.fromkeys(("min", "max", "mean", "avg", "min_by", "max_by", "minBy", "maxBy"), f"has {_EVERY}"),
    **dict.fromkeys(("tumbling", "tumble"), "has key_by(...).window(tr.Tumbling(...)) for this"),
    **dict.fromkeys(("sliding", "slide", "hop"), "has key_by(...).window(tr.Sliding(...)) for this"),
    **dict.fromkeys(
        ("session", "sessions", "session_window", "sessionWindow"), "has key_by(...).window(tr.Session(...)) for this"
    ),
    **dict.fromkeys(("count_window", "countWindow"), "has key_by(...).window(tr.CountWindow(...)) for this"),
    **dict.fromkeys(("cache", "persist"), "may be used several times as it is, and is computed once"),
    **dict.fromkeys(("checkpoint", "start", "run"), "is run by its environment: env.execute(name)"),
    "explain": "is a part of its environment's plan: env.explain()",
    "throttle": _VERB.format("key_by(...).rate_limit(n)"),
    "rank": "has key_by(...).top(n, by=...) for this; a window, key_by(...).window(...), has ranks of all its records",
    **dict.fromkeys(("nlargest", "nsmallest", "topk", "top_n"), _VERB.format("key_by(...).top(n, by=...)")),
    **dict.fromkeys(("unique", "dedup", "deduplicate"), _VERB.format("key_by(...).drop_duplicates()")),
    **dict.fromkeys(("shift", "lead"), _VERB.format("key_by(...).lag(n)")),
    **dict.fromkeys(("tap", "do"), _VERB.format("peek(f)")),
    **dict.fromkeys(("repartition", "coalesce"), _VERB.format("rebalance(), and parallelism=... of the next verb,")),
    **dict.fromkeys(
        ("first", "head"), "has no end of its own; give its source one, as count= of a tr.sources.Generator"
    ),
    **dict.fromkeys(("to_df", "as_dataframe"), _VERB.format("to_dataframe(...)")),
    **dict.fromkeys(("foreachBatch", "foreach_batch"), _VERB.format("sink_to(tr.sinks.ForeachBatch(f))")),
    **dict.fromkeys(("write_text", "writeAsText", "write_as_text"), _VERB.format("sink_to(tr.sinks.TextFiles(path))")),
    **dict.fromkeys(("with_timestamps", "watermark"), _VERB.format("assign_timestamps(...)")),
    "fold": _VERB.format("key_by(...).reduce(f), or key_by(...).aggregate(tr.AggregateFunction),"),
    "returns": "needs no types in rows; to_columns(schema) gives it columns",
    "schema": "has columns, their names; to_columns(schema) declares their types",
    "forward": "goes on in the same subtask unless you choose otherwise",
    "loop": _VERB.format("iterate(body)"),
    "unkey": "has no key behind the next verb",
    "getSideOutput": _VERB.format("side_output(tag)"),
    "get_side_output": _VERB.format("side_output(tag)"),
    "assignTimestampsAndWatermarks": _VERB.format("assign_timestamps(...)"),
    "withWatermark": _VERB.format("assign_timestamps(...)"),
    "sinkTo": _VERB.format("sink_to(sink)"),
    "addSink": _VERB.format("sink_to(sink)"),
    "sink": _VERB.format("sink_to(sink)"),
    "write": _VERB.format("sink_to(sink)"),
    "writeStream": _VERB.format("sink_to(sink)"),
    "print": _VERB.format("sink_to(tr.sinks.Print())"),
    "foreach": _VERB.format("sink_to(tr.sinks.Callback(f))"),
    "forEach": _VERB.format("sink_to(tr.sinks.Callback(f))"),
    "toDF": _VERB.format("to_dataframe(...)"),
    "execute": "is run by its environment: env.execute(name)",
    "collect_list": _VERB.format("collect()"),
    "toPandas": _VERB.format("to_dataframe(...), a DataFrame of Spark,"),
    **dict.fromkeys(("async_map", "async_wait", "unordered_wait", "ordered_wait"), _VERB.format("map_async(f)")),
    "map_partitions": _VERB.format("map_batches(f)"),
    "mapPartitions": _VERB.format("map_batches(f)"),
    "agg": _VERB.format("key_by(...).aggregate(name=...)"),
    "window_all": "has key_by(lambda r: 0).window(...) for this: one subtask does it all",
    "windowAll": "has key_by(lambda r: 0).window(...) for this: one subtask does it all",
    "with_watermark": _VERB.format("assign_timestamps(...)"),
    "assign_timestamps_and_watermarks": _VERB.format("assign_timestamps(...)"),
    "distinct": _VERB.format("key_by(...).drop_duplicates()"),
    "dropDuplicates": _VERB.format("key_by(...).drop_duplicates()"),
    "order_by": "has no order; sort the DataFrame that to_dataframe(...) gives",
    "orderBy": "has no order; sort the DataFrame that to_dataframe(...) gives",
    "sort": "has no order; sort the DataFrame that to_dataframe(...) gives",
    "limit": "has no end of its own; give its source one, as count= of a tr.sources.Generator",
    "take": "has no end of its own; give its source one, as count= of a tr.sources.Generator",
    "add_sink": _VERB.format("sink_to(sink)"),
    "to_pandas": _VERB.format("to_dataframe(...), a DataFrame of Spark,"),
}
"""Verb that a stream does not have -> hint. Each continues a sentence that begins with "the stream"."""

WINDOWED: dict[str, str] = {
    **dict.fromkeys(
        ("apply", "collect_list", "to_list", "list"), "use process(function), which has all records of a window"
    ),
    **dict.fromkeys(("trigger", "evictor", "continuous_trigger"), _TRIGGERS),
    **dict.fromkeys(
        ("allowed_lateness", "allowedLateness"), "it is an argument of window(windows, allowed_lateness=...)"
    ),
    **dict.fromkeys(
        ("side_output_late_data", "sideOutputLateData", "late"),
        'records that are too late are in the side output "late" of the result: count().side_output("late")',
    ),
    **dict.fromkeys(
        ("min", "max", "mean", "avg", "min_by", "max_by", "agg"),
        'use aggregate(...), such as aggregate(largest=tr.Max("x")); there are tr.Min, tr.Max and tr.Mean',
    ),
    "fold": "use reduce(f), or aggregate(function), a tr.AggregateFunction",
    **dict.fromkeys(
        ("map", "filter", "flat_map", "map_batches", "select", "key_by", "sink_to", "collect", "to_dataframe"),
        "it is a verb of the stream that count(), sum(of), reduce(f) and aggregate(...) give",
    ),
}
"""Verb that windows do not have -> hint."""

CONNECTED: dict[str, str] = {
    **dict.fromkeys(
        ("map", "flat_map", "flatMap", "apply", "join", "transform"), "use process(function), a tr.CoProcessFunction"
    ),
    "keyBy": "use key_by(first, second)",
}
"""Verb that connected streams do not have -> hint."""

_PUBLIC: dict[str, str] = {
    **dict.fromkeys(
        (
            "Sessions",
            "SessionWindow",
            "SessionWindows",
            "SessionWindower",
            "EventTimeSessionWindows",
            "DynamicEventTimeSessionWindows",
            "ProcessingTimeSessionWindows",
        ),
        "use tr.Session",
    ),
    **dict.fromkeys(
        ("TumblingWindow", "TumblingEventTimeWindows", "TumblingWindows", "TumblingWindower", "Tumble"),
        "use tr.Tumbling",
    ),
    **dict.fromkeys(
        ("SlidingWindow", "SlidingEventTimeWindows", "SlidingWindows", "SlidingWindower", "Slide", "Hop"),
        "use tr.Sliding",
    ),
    **dict.fromkeys(("Window", "Windows"), "windows are tr.Tumbling, tr.Sliding and tr.Session"),
    **dict.fromkeys(
        ("TumblingProcessingTimeWindows", "SlidingProcessingTimeWindows"),
        "windows are in event time; use timers in processing time: ctx.set_timer(processing_time=...)",
    ),
    "Kafka": "use tr.sources.Kafka or tr.sinks.Kafka",
    **dict.fromkeys(("CountWindows", "CountTumblingWindow"), "use tr.CountWindow"),
    **dict.fromkeys(
        ("EventTimeTrigger", "CountTrigger", "ContinuousEventTimeTrigger", "ProcessingTimeTrigger", "Trigger"),
        _TRIGGERS,
    ),
    **dict.fromkeys(("GlobalWindow", "GlobalWindows"), "use tr.Global"),
    "StreamExecutionEnvironment": "use tr.Environment",
    "Dataflow": "use tr.Environment",
    "StreamingContext": "use tr.Environment",
    "ValueStateDescriptor": "declare a tr.ValueState on the class of the function",
    "ListStateDescriptor": "declare a tr.ListState on the class of the function",
    "MapStateDescriptor": "declare a tr.MapState on the class of the function",
    "State": "declare a tr.ValueState, tr.ListState or tr.MapState on the class of the function",
    "WatermarkStrategy": "use stream.assign_timestamps(...)",
    "ProcessWindowFunction": "use tr.WindowFunction",
    "RichMapFunction": "use tr.MapFunction",
    "RichFlatMapFunction": "use tr.FlatMapFunction",
    **dict.fromkeys(("StateTtlConfig", "StateTTL", "TTL", "TTLConfig"), _TTL),
    **dict.fromkeys(
        ("RocksDB", "RocksDBStateBackend", "EmbeddedRocksDBStateBackend"),
        'use tr.Environment(state_backend="disk")',
    ),
    **dict.fromkeys(("OutputTag", "SideOutput"), "a tag is a text: ctx.emit(tag, value), and stream.side_output(tag)"),
    **dict.fromkeys(
        ("Types", "TypeInformation"), 'records in rows need no types; columns have a schema: to_columns("id long")'
    ),
    **dict.fromkeys(("Duration", "Time"), 'durations are seconds, a timedelta or a text such as "5 minutes"'),
    **dict.fromkeys(
        ("AsyncDataStream", "RichAsyncFunction"), "a stream has map_async(f), with an async def or a tr.AsyncFunction"
    ),
    "BroadcastStream": "use tr.BroadcastProcessFunction: stream.connect(other.broadcast()).process(...)",
    **dict.fromkeys(
        ("CheckpointMode", "CheckpointingMode"), 'use tr.CheckpointConfig(dir, mode="aligned"), or another mode'
    ),
    **dict.fromkeys(
        ("Restart", "RestartStrategy", "RestartStrategies"),
        "use tr.FixedDelay, tr.ExponentialDelay, tr.FailureRate or tr.NoRestart",
    ),
    **dict.fromkeys(("SinkFunction", "RichSinkFunction"), "use tr.Sink"),
    **dict.fromkeys(("SourceFunction", "RichSourceFunction"), "use tr.Source"),
    **dict.fromkeys(
        ("RichFunction", "RuntimeContext"), "functions have the methods prepare, open and close: use tr.ProcessFunction"
    ),
    "Standby": "use tr.StandbyConfig",
    "Join": f"a stream has {_JOINS}",
    "Timer": "use ctx.set_timer(event_time=...) or ctx.set_timer(processing_time=...) in a tr.KeyedProcessFunction",
    "Job": "env.execute(name) returns a job",
    "Config": "use arguments of tr.Environment",
    "Settings": "use arguments of tr.Environment",
    **{name: _TESTING.format(name) for name in ("simulate", "harness", "audit", "Fault")},
    "KeyedBroadcastProcessFunction": "use tr.BroadcastProcessFunction: keyed.connect(other.broadcast()).process(...)",
    "KeyedCoProcessFunction": "use tr.CoProcessFunction",
    "run": "use env.execute(name), or tr.testing.run(env)",
    "execute": "use env.execute(name)",
    "Collect": "use tr.sinks.Collect",
    "Callback": "use tr.sinks.Callback",
    "Print": "use tr.sinks.Print",
    "Table": "use tr.sinks.Table; a table is read by env.from_dataframe(spark.table(name))",
    "DataFrame": "use env.from_dataframe(df), and tr.sinks.DataFrame or stream.to_dataframe(...)",
    "Sequence": "use tr.sources.Sequence",
    "Generator": "use tr.sources.Generator",
    "TextFiles": "use tr.sources.TextFiles or tr.sinks.TextFiles",
    "Parquet": "use tr.sources.Parquet or tr.sinks.Parquet",
    **dict.fromkeys(("Postgres", "PostgreSQL"), "use tr.sources.Postgres or tr.sinks.Postgres"),
}

SOURCES: dict[str, str] = {
    **dict.fromkeys(("CSV", "CsvFiles"), "use tr.sources.Csv(path)"),
    **dict.fromkeys(("JSON", "JsonFiles", "JsonLines"), "use tr.sources.Json(path)"),
    "Delta": "use env.from_table(path)",
    **dict.fromkeys(("Table", "Iceberg", "Jdbc", "JDBC"), _SPARK_READS),
    **dict.fromkeys(
        ("Kinesis", "Pulsar", "Socket", "Http", "Rabbit", "Mqtt"),
        'there is no such source; write a tr.Source (its contract is in the guide, "A source of your own"), or have files '
        "followed: tr.sources.TextFiles(path, follow=True)",
    ),
    "KafkaSource": "use tr.sources.Kafka(servers, topic)",
    "Files": "use tr.sources.TextFiles or tr.sources.Parquet",
    "FileSource": "use tr.sources.TextFiles or tr.sources.Parquet",
    "DataFrame": "use env.from_dataframe(df)",
    "Rate": "use tr.sources.Sequence(0, None, rate=...)",
    "Range": "use tr.sources.Sequence(start, end)",
}
"""Name that `tr.sources` does not have -> hint."""

SINKS: dict[str, str] = {
    "CSV": "use tr.sinks.Csv",
    **dict.fromkeys(("JSON", "JsonFiles"), "use tr.sinks.Json"),
    **dict.fromkeys(("Jdbc", "JDBC"), _SPARK_WRITES),
    **dict.fromkeys(
        ("Kinesis", "Pulsar", "Http", "Elasticsearch"),
        'there is no such sink; write a tr.Sink (its contract is in the guide, "A sink of your own"), or use '
        "tr.sinks.Callback(f)",
    ),
    "Redis": "use tr.sinks.RedisStream, or tr.sinks.RedisHash for the newest record of each key",
    "KafkaSink": "use tr.sinks.Kafka(servers, topic)",
    "Console": "use tr.sinks.Print()",
    "StdOut": "use tr.sinks.Print()",
    "Foreach": "use tr.sinks.Callback(f)",
    "Files": "use tr.sinks.TextFiles or tr.sinks.Parquet",
}
"""Name that `tr.sinks` does not have -> hint."""

PUBLIC: dict[str, str] = {
    **SOURCES,
    **SINKS,
    **dict.fromkeys(
        SOURCES.keys() & SINKS.keys(),
        "there is none; have Spark read or write it, or write a tr.Source or a tr.Sink (their contracts are in the guide)",
    ),
    **_PUBLIC,
}
"""Name that `tr` does not have -> hint."""

ENVIRONMENT: dict[str, str] = {
    "run": "use execute(name)",
    "start": "use execute(name)",
    "submit": "use execute(name)",
    "execute_async": "execute(name) returns at once",
    "add_source": "use from_source(source)",
    "addSource": "use from_source(source)",
    "source": "use from_source(source)",
    "input": "use from_source(source)",
    "from_elements": "use from_collection(items)",
    "from_list": "use from_collection(items)",
    "fromCollection": "use from_collection(items)",
    "from_pandas": "use from_dataframe(spark.createDataFrame(df))",
    "from_kafka": "use from_source(tr.sources.Kafka(servers, topic))",
    **dict.fromkeys(
        ("from_text", "from_file", "from_files", "from_folder", "text", "text_file"),
        "use from_source(tr.sources.TextFiles(path))",
    ),
    **dict.fromkeys(("parquet", "from_parquet"), "use from_source(tr.sources.Parquet(path))"),
    **dict.fromkeys(
        ("csv", "read_csv", "from_csv", "json", "read_json", "table", "sql"),
        "let Spark read it: from_dataframe(spark.read...)",
    ),
    **dict.fromkeys(("range", "from_range", "from_sequence"), "use from_source(tr.sources.Sequence(start, end))"),
    **dict.fromkeys(("from_generator", "from_iterable"), "use from_source(tr.sources.Generator(f))"),
    **dict.fromkeys(("add_sink", "addSink"), "it is a verb of a stream: stream.sink_to(sink)"),
    **dict.fromkeys(("conf", "config", "set_config", "get_config"), "settings are arguments of tr.Environment"),
    "restart_strategy": "give it to tr.Environment(restart=tr.FixedDelay(...))",
    "jobs": "execute(name) returns a job; keep it",
    "close": "jobs end by themselves, or by job.stop() and job.cancel()",
    "read_text": "use from_source(tr.sources.TextFiles(path))",
    "read_text_file": "use from_source(tr.sources.TextFiles(path))",
    "readTextFile": "use from_source(tr.sources.TextFiles(path))",
    "from_text_files": "use from_source(tr.sources.TextFiles(path))",
    "read_parquet": "use from_source(tr.sources.Parquet(path))",
    "read": "use from_source(source), or from_dataframe(spark.read...)",
    "readStream": "use from_streaming(spark.readStream...), or from_source(source)",
    "set_parallelism": "give it to tr.Environment(parallelism=...)",
    "setParallelism": "give it to tr.Environment(parallelism=...)",
    "set_max_parallelism": "give it to tr.Environment(max_parallelism=...)",
    "enable_checkpointing": "give it to tr.Environment(checkpoint=tr.CheckpointConfig(dir=..., interval=...))",
    "enableCheckpointing": "give it to tr.Environment(checkpoint=tr.CheckpointConfig(dir=..., interval=...))",
    "set_restart_strategy": "give it to tr.Environment(restart=tr.FixedDelay(...))",
    "set_state_backend": "give it to tr.Environment(state_backend=...)",
    "await_termination": "it is a method of the job: env.execute(name).await_termination()",
    "awaitTermination": "it is a method of the job: env.execute(name).await_termination()",
    "stop": "it is a method of the job: env.execute(name).stop()",
    "cancel": "it is a method of the job: env.execute(name).cancel()",
    "collect": "it is a method of a stream: stream.collect()",
    "print": "it is stream.sink_to(tr.sinks.Print())",
}
"""Name that an environment does not have -> hint."""

CONTEXT: dict[str, str] = {
    "output": "yield the value, or emit(tag, value) for a side output",
    "collect": "yield the value, or emit(tag, value) for a side output",
    "side_output": "use emit(tag, value)",
    "timer_service": "use set_timer(event_time=...) or set_timer(processing_time=...)",
    "timerService": "use set_timer(event_time=...) or set_timer(processing_time=...)",
    "register_timer": "use set_timer(event_time=...) or set_timer(processing_time=...)",
    "register_event_time_timer": "use set_timer(event_time=...)",
    "register_processing_time_timer": "use set_timer(processing_time=...)",
    "delete_event_time_timer": "use delete_timer(event_time=...)",
    "current_watermark": "use watermark",
    "get_current_key": "use key",
    "get_state": "declare the state on the class of the function: n = tr.ValueState(int)",
    "state": "declare the state on the class of the function: n = tr.ValueState(int)",
    "time": "use now() for the clock, timestamp for event time",
    "element_timestamp": "use timestamp",
    "counter": "use metrics.inc(name, by)",
    "log": "use the module logging",
}
"""Name that a context does not have -> hint."""

JOB: dict[str, str] = {
    "wait": "use await_termination()",
    "join": "use await_termination()",
    "result": "use await_termination(), and read the sinks that have results: tr.sinks.Collect, tr.sinks.DataFrame",
    "awaitTermination": "use await_termination()",
    "processAllAvailable": "use await_termination()",
    "isActive": "use is_active",
    "lastProgress": "use last_progress",
    "recentProgress": "use recent_progress",
    "kill": "use cancel()",
    "state": "use status",
    "savepoints": "use savepoint(path)",
}
"""Name that a job does not have -> hint."""
