"""Names of Flink, Spark and Bytewax for the verbs of streams here, for users who write those from habit."""

from __future__ import annotations

_OPTION = "takes it as an argument of the verb, say map(f, {}=...)"
_VERB = "has {} for this"

INSTEAD: dict[str, str] = {
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
    "apply": _VERB.format("process(function)"),
    "transform": _VERB.format("process(function)"),
    "unionAll": _VERB.format("union(other)"),
    "merge": _VERB.format("union(other)"),
    "join": "has connect(other) and a tr.CoProcessFunction for this",
    "getSideOutput": _VERB.format("side_output(tag)"),
    "get_side_output": _VERB.format("side_output(tag)"),
    "assignTimestampsAndWatermarks": _VERB.format("assign_timestamps(...)"),
    "withWatermark": _VERB.format("assign_timestamps(...)"),
    "sinkTo": _VERB.format("sink_to(sink)"),
    "addSink": _VERB.format("sink_to(sink)"),
    "sink": _VERB.format("sink_to(sink)"),
    "write": _VERB.format("sink_to(sink)"),
    "writeStream": _VERB.format("sink_to(sink)"),
    "print": _VERB.format("sink_to(tr.sinks.Callback(print))"),
    "foreach": _VERB.format("sink_to(tr.sinks.Callback(f))"),
    "forEach": _VERB.format("sink_to(tr.sinks.Callback(f))"),
    "toDF": _VERB.format("to_dataframe(...)"),
    "execute": "is run by its environment: env.execute(name)",
}


def instead_of(name: str) -> str:
    """Our verb for a name that a stream does not have."""
    return INSTEAD.get(name, "has no such verb")
