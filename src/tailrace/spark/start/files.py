"""The files of a job that starts: rows of DataFrames that it reads, and places for its results."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from tailrace.connectors.results import Result
from tailrace.connectors.sinks import Collect, Table
from tailrace.graph.graph import Node
from tailrace.graph.operators import Sink, Source
from tailrace.graph.plan import Plan
from tailrace.runtime.outpost.hosted_folder import Host, forget, host_of
from tailrace.spark.data.dataframe_files import DataFrame, DataFrameSource
from tailrace.spark.data.places import Places
from tailrace.spark.data.streaming import Streaming
from tailrace.spark.data.tables import prepare_table
from tailrace.spark.streaming.dataframe import StreamingDataFrame
from tailrace.spark.streaming.foreach import ForeachBatch, foreach_place
from tailrace.statedata.inputs import moved_inputs
from tailrace.storage.origins import Origin
from tailrace.task.operators.columns.expected import expected_schema


def results_of(plan: Plan) -> list[Result]:
    """The sinks of a dataflow whose result the program reads."""
    operators = [node.operator for node in plan.graph.nodes]
    return [one.sink for one in operators if isinstance(one, Sink) and isinstance(one.sink, Result)]


def prepare_files(spark: Any, plan: Plan, places: Places, origin: Origin | None, keep: int = 1) -> Host | None:
    """Materialises DataFrames that are read, gives streaming queries and result sinks their folders, and finds tables.
    Returns the host through which workers reach the driver's folder, if the job uses that folder. `keep`: the number of
    checkpoints that the job keeps.

    Nothing is materialised for operators that go on from a checkpoint, which knows the files of their sources.
    """
    restored = frozenset() if origin is None else frozenset(record.uid for record in origin.manifest.operators)
    for node in plan.graph.nodes:
        operator = node.operator
        if isinstance(operator, Source) and isinstance(operator.source, DataFrameSource):
            if node.uid in restored:
                operator.source.note_restore(places.store_options, _moved_inputs(places, origin, node))
            else:
                place, durable = places.inputs()
                operator.source.materialise(place.at(f"in-{node.id}"), durable=durable)
        elif isinstance(operator, Source) and isinstance(operator.source, StreamingDataFrame):
            stream = operator.source
            if origin is not None and node.uid in restored:
                stream.go_on(f"{origin.folder}/{origin.path}", node.uid, places.store_options, places.shared, keep)
            else:
                stream.begin(places.inputs()[0].at(f"stream-{node.id}"), keep)
        elif isinstance(operator, Sink) and isinstance(operator.sink, Result):
            place = places.results().at(f"out-{node.id}")
            operator.sink.bind(place.url, place.options, shared=place.shared)
            operator.sink.begin()
            if place.host is not None and isinstance(operator.sink, Collect):  # a DataFrame may outlive its sink
                weakref.finalize(operator.sink, forget, place.url).atexit = False
            if isinstance(operator.sink, DataFrame):
                operator.sink.prepare(spark, partial(expected_schema, plan.graph, node))
        elif isinstance(operator, Sink) and isinstance(operator.sink, Streaming):
            operator.sink.prepare(spark, places, node.uid, partial(expected_schema, plan.graph, node))
        elif isinstance(operator, Sink) and isinstance(operator.sink, ForeachBatch):
            operator.sink.bind(spark, foreach_place(places, node.uid), begins_anew=origin is None)
        elif isinstance(operator, Sink) and isinstance(operator.sink, Table):
            prepare_table(spark, operator.sink)
    return _host(plan)


def _moved_inputs(places: Places, origin: Origin | None, node: Node) -> dict[str, str]:
    """What `moved_inputs` gives for a source of a job that starts. A job with checkpoints has copies of the files, since the
    savepoint is the user's."""
    if origin is None or all(one.uid != node.uid for one in origin.manifest.inputs):
        return {}
    place, durable = places.inputs()
    if durable:
        place.make()
    into = (place.folder(), f"in-{node.id}") if durable else None
    return moved_inputs(origin.folder, origin.manifest, node.uid, into, places.store_options)


def _host(plan: Plan) -> Host | None:
    """The host through which workers reach the driver's folder, if the job uses that folder."""
    places: list[str] = []
    for node in plan.graph.nodes:
        operator = node.operator
        if isinstance(operator, Source) and isinstance(operator.source, DataFrameSource):
            places += operator.source.paths
        elif isinstance(operator, Sink) and isinstance(operator.sink, Result):
            places.append(operator.sink.directory or "")
    return next(filter(None, map(host_of, places)), None)
