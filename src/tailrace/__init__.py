"""Tailrace: stateful streaming dataflows on Spark, written in Python.

This module has the public names. Everything else is an implementation detail. What a name stands for is imported when it is
used first.
"""

from typing import TYPE_CHECKING, Any

from tailrace import versions  # first: it refuses what the rest could not run on
from tailrace.lazynames import by_name, resolve

if TYPE_CHECKING:
    from tailrace.api.aggregates import Count as Count
    from tailrace.api.aggregates import Max as Max
    from tailrace.api.aggregates import Mean as Mean
    from tailrace.api.aggregates import Min as Min
    from tailrace.api.aggregates import Sum as Sum
    from tailrace.api.calls.lookups import Cache as Cache
    from tailrace.api.config import Autoscale as Autoscale
    from tailrace.api.config import Checkpoint as Checkpoint
    from tailrace.api.config import CheckpointConfig as CheckpointConfig
    from tailrace.api.config import Elastic as Elastic
    from tailrace.api.config import ExponentialDelay as ExponentialDelay
    from tailrace.api.config import FailureRate as FailureRate
    from tailrace.api.config import FixedDelay as FixedDelay
    from tailrace.api.config import NoRestart as NoRestart
    from tailrace.api.config import Savepoint as Savepoint
    from tailrace.api.config import StandbyConfig as StandbyConfig
    from tailrace.api.connectors import AssignedSplit as AssignedSplit
    from tailrace.api.connectors import Enumerator as Enumerator
    from tailrace.api.connectors import Reader as Reader
    from tailrace.api.connectors import Sink as Sink
    from tailrace.api.connectors import SinkContext as SinkContext
    from tailrace.api.connectors import SinkWriter as SinkWriter
    from tailrace.api.connectors import Source as Source
    from tailrace.api.connectors import SourceContext as SourceContext
    from tailrace.api.connectors import SourceLag as SourceLag
    from tailrace.api.connectors import SplitReader as SplitReader
    from tailrace.api.connectors import SplitsChange as SplitsChange
    from tailrace.api.environment import Environment as Environment
    from tailrace.api.failure_options import Aside as Aside
    from tailrace.api.failure_options import Capsules as Capsules
    from tailrace.api.failure_options import Failed as Failed
    from tailrace.api.failure_options import Retry as Retry
    from tailrace.api.functions import AggregateFunction as AggregateFunction
    from tailrace.api.functions import AsyncFunction as AsyncFunction
    from tailrace.api.functions import BroadcastProcessFunction as BroadcastProcessFunction
    from tailrace.api.functions import Context as Context
    from tailrace.api.functions import CoProcessFunction as CoProcessFunction
    from tailrace.api.functions import FilterFunction as FilterFunction
    from tailrace.api.functions import FlatMapFunction as FlatMapFunction
    from tailrace.api.functions import Function as Function
    from tailrace.api.functions import KeyedProcessFunction as KeyedProcessFunction
    from tailrace.api.functions import MapBatchesFunction as MapBatchesFunction
    from tailrace.api.functions import MapFunction as MapFunction
    from tailrace.api.functions import ProcessFunction as ProcessFunction
    from tailrace.api.functions import ReduceFunction as ReduceFunction
    from tailrace.api.functions import WindowFunction as WindowFunction
    from tailrace.api.loops.options import Combine as Combine
    from tailrace.api.loops.options import RoundFigures as RoundFigures
    from tailrace.api.loops.options import Rounds as Rounds
    from tailrace.api.restore.dry_run import RestoreCheck as RestoreCheck
    from tailrace.api.restore.savepoints import SavepointWriter as SavepointWriter
    from tailrace.api.restore.savepoints import read_state as read_state
    from tailrace.api.spill import Spill as Spill
    from tailrace.api.streams import CoLoopFunction as CoLoopFunction
    from tailrace.api.streams import ConnectedStreams as ConnectedStreams
    from tailrace.api.streams import DataStream as DataStream
    from tailrace.api.streams import KeyedStream as KeyedStream
    from tailrace.api.streams import LoopFunction as LoopFunction
    from tailrace.api.streams import WindowedStream as WindowedStream
    from tailrace.api.windows.functions import WindowBounds as WindowBounds
    from tailrace.api.windows.windows import CountWindow as CountWindow
    from tailrace.api.windows.windows import Every as Every
    from tailrace.api.windows.windows import Global as Global
    from tailrace.api.windows.windows import Session as Session
    from tailrace.api.windows.windows import Sliding as Sliding
    from tailrace.api.windows.windows import Tumbling as Tumbling
    from tailrace.connectors import lookups as lookups
    from tailrace.connectors import sinks as sinks
    from tailrace.connectors import sources as sources
    from tailrace.connectors.files.rolling import Roll as Roll
    from tailrace.connectors.kafka.avro import KafkaAvro as KafkaAvro
    from tailrace.connectors.kafka.protobuf import KafkaProtobuf as KafkaProtobuf
    from tailrace.connectors.kafka.records import KafkaRecord as KafkaRecord
    from tailrace.connectors.transactional import TransactionalSink as TransactionalSink
    from tailrace.coordinator.job.lifecycle import JobStatus as JobStatus
    from tailrace.coordinator.view.slices import Failover as Failover
    from tailrace.coordinator.view.slices import SliceStandby as SliceStandby
    from tailrace.coordinator.view.slices import SliceStatus as SliceStatus
    from tailrace.errors import CheckpointCorrupt as CheckpointCorrupt
    from tailrace.errors import CheckpointError as CheckpointError
    from tailrace.errors import CheckpointNotFound as CheckpointNotFound
    from tailrace.errors import ConfigError as ConfigError
    from tailrace.errors import GraphError as GraphError
    from tailrace.errors import IncompatibleState as IncompatibleState
    from tailrace.errors import InternalError as InternalError
    from tailrace.errors import JobAlreadyFinished as JobAlreadyFinished
    from tailrace.errors import JobFailed as JobFailed
    from tailrace.errors import RescaleError as RescaleError
    from tailrace.errors import ScopeError as ScopeError
    from tailrace.errors import SlotsError as SlotsError
    from tailrace.errors import StateAccessError as StateAccessError
    from tailrace.errors import TailraceError as TailraceError
    from tailrace.errors import TypeMismatch as TypeMismatch
    from tailrace.errors import UidError as UidError
    from tailrace.errors import UserCodeError as UserCodeError
    from tailrace.graph.scope import StreamScope as StreamScope
    from tailrace.state.broadcast_state import BroadcastState as BroadcastState
    from tailrace.state.handles import AggregatingState as AggregatingState
    from tailrace.state.handles import ListState as ListState
    from tailrace.state.handles import MapState as MapState
    from tailrace.state.handles import ReducingState as ReducingState
    from tailrace.state.handles import ValueState as ValueState
    from tailrace.state.operator_state import OperatorState as OperatorState
    from tailrace.state.ttl import Ttl as Ttl

__version__ = "0.1.0"

_NAMES = {
    "tailrace.api.aggregates": "Count Max Mean Min Sum",
    "tailrace.api.calls.lookups": "Cache",
    "tailrace.api.config": (
        "Autoscale Checkpoint CheckpointConfig Elastic ExponentialDelay FailureRate FixedDelay NoRestart "
        "Savepoint StandbyConfig"
    ),
    "tailrace.api.connectors": (
        "AssignedSplit Enumerator Reader Sink SinkContext SinkWriter Source SourceContext SourceLag "
        "SplitReader SplitsChange"
    ),
    "tailrace.api.environment": "Environment",
    "tailrace.api.failure_options": "Aside Capsules Failed Retry",
    "tailrace.api.functions": (
        "AggregateFunction AsyncFunction BroadcastProcessFunction CoProcessFunction Context FilterFunction "
        "FlatMapFunction Function KeyedProcessFunction MapBatchesFunction MapFunction ProcessFunction "
        "ReduceFunction WindowFunction"
    ),
    "tailrace.api.loops.options": "Combine RoundFigures Rounds",
    "tailrace.api.restore.dry_run": "RestoreCheck",
    "tailrace.api.restore.savepoints": "SavepointWriter read_state",
    "tailrace.api.spill": "Spill",
    "tailrace.api.streams": "CoLoopFunction ConnectedStreams DataStream KeyedStream LoopFunction WindowedStream",
    "tailrace.api.windows.functions": "WindowBounds",
    "tailrace.api.windows.windows": "CountWindow Every Global Session Sliding Tumbling",
    "tailrace.connectors.files.rolling": "Roll",
    "tailrace.connectors.kafka.avro": "KafkaAvro",
    "tailrace.connectors.kafka.protobuf": "KafkaProtobuf",
    "tailrace.connectors.kafka.records": "KafkaRecord",
    "tailrace.connectors.lookups": "lookups",
    "tailrace.connectors.sinks": "sinks",
    "tailrace.connectors.sources": "sources",
    "tailrace.connectors.transactional": "TransactionalSink",
    "tailrace.coordinator.job.lifecycle": "JobStatus",
    "tailrace.coordinator.view.slices": "Failover SliceStandby SliceStatus",
    "tailrace.errors": (
        "CheckpointCorrupt CheckpointError CheckpointNotFound ConfigError GraphError IncompatibleState "
        "InternalError JobAlreadyFinished JobFailed RescaleError ScopeError SlotsError StateAccessError "
        "TailraceError TypeMismatch UidError UserCodeError"
    ),
    "tailrace.graph.scope": "StreamScope",
    "tailrace.state.broadcast_state": "BroadcastState",
    "tailrace.state.handles": "AggregatingState ListState MapState ReducingState ValueState",
    "tailrace.state.operator_state": "OperatorState",
    "tailrace.state.ttl": "Ttl",
}
"""Module -> public names that it has."""
_PLACES = dict(by_name(_NAMES))
_ROOMS = {room: f"tailrace.{room}" for room in ("errors", "graphs", "spark", "testing")}
"""Rooms that are public as a whole. Production never needs `testing`, and writing a dataflow needs no Spark."""

__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    found = resolve(__name__, name, _PLACES | _ROOMS)
    if found is None:
        from tailrace.api.checks.hints import PUBLIC
        from tailrace.spelling import missing

        raise missing("tailrace", name, PUBLIC, __all__)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
