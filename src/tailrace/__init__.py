"""Tailrace: stateful streaming dataflows on Spark, written in Python.

This module has the public names. Everything else is an implementation detail.
"""

from typing import Any

from tailrace import versions  # first: it refuses what the rest could not run on
from tailrace.api.aggregates import Count, Max, Mean, Min, Sum
from tailrace.api.calls.lookups import Cache
from tailrace.api.checks.hints import PUBLIC, missing, with_hints
from tailrace.api.config import (
    Autoscale,
    Checkpoint,
    CheckpointConfig,
    Elastic,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    Savepoint,
    StandbyConfig,
)
from tailrace.api.connectors import (
    AssignedSplit,
    Enumerator,
    Reader,
    Sink,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceLag,
    SplitReader,
    SplitsChange,
)
from tailrace.api.environment import Environment
from tailrace.api.failing import Aside, Capsules, Failed, Retry
from tailrace.api.functions import (
    AggregateFunction,
    AsyncFunction,
    BroadcastProcessFunction,
    Context,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapBatchesFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    WindowFunction,
)
from tailrace.api.loops.options import Combine, RoundFigures, Rounds
from tailrace.api.restore.dry_run import RestoreCheck
from tailrace.api.restore.savepoints import SavepointWriter
from tailrace.api.spill import Spill
from tailrace.api.streams import (
    CoLoopFunction,
    ConnectedStreams,
    DataStream,
    KeyedStream,
    LoopFunction,
    WindowedStream,
)
from tailrace.api.windows.functions import WindowBounds
from tailrace.api.windows.windows import CountWindow, Every, Global, Session, Sliding, Tumbling
from tailrace.connectors import KafkaAvro, KafkaProtobuf, KafkaRecord, Roll, TransactionalSink, lookups, sinks, sources
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.slices import Failover, SliceStandby, SliceStatus
from tailrace.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointNotFound,
    ConfigError,
    GraphError,
    IncompatibleState,
    InternalError,
    JobAlreadyFinished,
    JobFailed,
    RescaleError,
    ScopeError,
    SlotsError,
    StateAccessError,
    TailraceError,
    TypeMismatch,
    UidError,
    UserCodeError,
)
from tailrace.graph.scope import StreamScope
from tailrace.state.broadcast_state import BroadcastState
from tailrace.state.handles import AggregatingState, ListState, MapState, ReducingState, ValueState
from tailrace.state.operator_state import OperatorState
from tailrace.state.ttl import Ttl

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Imported at the first use only: production never needs `testing`, and writing a dataflow needs no Spark.
    if name in ("testing", "spark"):
        import importlib

        return importlib.import_module(f"tailrace.{name}")
    raise missing("tailrace", name, PUBLIC, __all__)


__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "Aside",
    "AssignedSplit",
    "AsyncFunction",
    "Autoscale",
    "BroadcastProcessFunction",
    "BroadcastState",
    "Cache",
    "Capsules",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointCorrupt",
    "CheckpointError",
    "CheckpointNotFound",
    "CoLoopFunction",
    "CoProcessFunction",
    "Combine",
    "ConfigError",
    "ConnectedStreams",
    "Context",
    "Count",
    "CountWindow",
    "DataStream",
    "Elastic",
    "Enumerator",
    "Environment",
    "Every",
    "ExponentialDelay",
    "Failed",
    "Failover",
    "FailureRate",
    "FilterFunction",
    "FixedDelay",
    "FlatMapFunction",
    "Function",
    "Global",
    "GraphError",
    "IncompatibleState",
    "InternalError",
    "JobAlreadyFinished",
    "JobFailed",
    "JobStatus",
    "KafkaAvro",
    "KafkaProtobuf",
    "KafkaRecord",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "LoopFunction",
    "MapBatchesFunction",
    "MapFunction",
    "MapState",
    "Max",
    "Mean",
    "Min",
    "NoRestart",
    "OperatorState",
    "ProcessFunction",
    "Reader",
    "ReduceFunction",
    "ReducingState",
    "RescaleError",
    "RestoreCheck",
    "Retry",
    "RoundFigures",
    "Rounds",
    "Savepoint",
    "SavepointWriter",
    "ScopeError",
    "Session",
    "Sink",
    "SinkContext",
    "SinkWriter",
    "SliceStandby",
    "SliceStatus",
    "Sliding",
    "SlotsError",
    "Source",
    "SourceContext",
    "SourceLag",
    "Spill",
    "SplitReader",
    "SplitsChange",
    "StandbyConfig",
    "StateAccessError",
    "StreamScope",
    "Sum",
    "TailraceError",
    "TransactionalSink",
    "Ttl",
    "Tumbling",
    "TypeMismatch",
    "UidError",
    "UserCodeError",
    "ValueState",
    "WindowBounds",
    "WindowFunction",
    "WindowedStream",
    "lookups",
    "sinks",
    "sources",
]

_WRITTEN: tuple[type, ...] = (Environment, DataStream, KeyedStream, ConnectedStreams, WindowedStream, SavepointWriter)
_MADE: tuple[type, ...] = (
    *(
        CheckpointConfig,
        ExponentialDelay,
        FailureRate,
        FixedDelay,
        NoRestart,
        StandbyConfig,
        Elastic,
        Autoscale,
        Spill,
        Rounds,
        Combine,
    ),
    *(Count, Max, Mean, Min, Sum, ValueState, ListState, MapState, ReducingState, AggregatingState, OperatorState),
    BroadcastState,
    *(sources.Sequence, sources.Generator, sources.TextFiles, sources.Parquet),
    *(sinks.TextFiles, sinks.Parquet, sinks.Table, sinks.Collect, sinks.Print, sinks.Callback),
)
for _class in _WRITTEN:
    with_hints(_class, methods=True)
for _class in _MADE:
    with_hints(_class)
