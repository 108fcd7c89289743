"""Serialization of a job's plan and the user's functions for the workers."""

from __future__ import annotations

import os
import pickle
import platform
import socket
import sys
from typing import Any

from pyspark import cloudpickle

from tailrace.elements.byte_texts import size_text
from tailrace.errors import GraphError, error_text
from tailrace.graph.graph import Node
from tailrace.spark.shipping import program
from tailrace.spark.shipping.modules import bring_up_to_date, versions_here
from tailrace.task.contract.jobspec import JobSpec

JOB_BYTES = 63 << 20
"""The largest job: each worker is sent it in one message."""


def dump_job(spec: JobSpec, *, stays: bool = False) -> bytes:
    """Pickles a job with the places where this process finds its modules, and their versions. Raises `GraphError` naming
    the operator whose function cannot be pickled. `stays`: only this process will load it, with the modules that it has,
    so versions are left out: to look at hundreds of files takes milliseconds."""
    try:
        body = program.dump(spec)
    except Exception as error:
        raise _unpicklable(spec, error) from error
    places = [os.path.abspath(place) for place in sys.path if not place or os.path.exists(place)]
    versions = {} if stays else versions_here()
    return pickle.dumps((places, body, versions, program.THIS_PROCESS), 5)


def check_size(spec: JobSpec, blob: bytes) -> None:
    """Raises `GraphError`, naming the largest operator, for a job that is too large to travel in one message."""
    if len(blob) <= JOB_BYTES:
        return
    largest = max(spec.plan.graph.nodes, key=lambda node: len(cloudpickle.dumps(node.operator)))
    raise GraphError(
        f"the job with its functions and collections has {size_text(len(blob))}, and at most {size_text(JOB_BYTES)} travel "
        f"to the workers; most of it is in operator {largest.name!r}: from_collection is for small collections, and what a "
        f"function needs can be read in open()"
    )


def load_job(data: bytes) -> JobSpec:
    """Unpickles a job in a worker. It looks for modules in the worker's own places first, then in the driver's. It imports
    anew the modules that were changed since an earlier job of this process. Raises `ImportError`, naming the missing
    module and this process."""
    places, body, versions, origin = pickle.loads(data)
    if origin != program.THIS_PROCESS:
        bring_up_to_date(versions)
    for place in places:
        if place not in sys.path and os.path.exists(place):
            sys.path.append(place)
    try:
        spec: JobSpec = program.load(body)
    except ImportError as error:
        where = f"{socket.gethostname()}, Python {platform.python_version()}, {sys.executable}"
        raise ImportError(f"{error}; on {where}", name=error.name, path=error.path) from error
    return spec


def _unpicklable(spec: JobSpec, error: Exception) -> GraphError:
    for node in spec.plan.graph.nodes:
        try:
            cloudpickle.dumps((node.operator, node.inputs))
        except Exception as again:
            return GraphError(
                f"operator {node.name!r}: {_culprit(node)} cannot be pickled and sent to the workers "
                f"({error_text(again)}); make what it refers to inside the function or in open(), instead of "
                f"outside"
            )
    return GraphError(f"the job cannot be pickled: {error_text(error)}")


def _culprit(node: Node) -> str:
    for field in ("fn", "reduce", "sink", "source"):
        found = getattr(node.operator, field, None)
        if found is not None:
            return f"its {field if field in ('sink', 'source') else 'function'} ({_short(found)})"
    return "its function"


def _short(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))
