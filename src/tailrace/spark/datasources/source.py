"""The source that a program gets for a Python Data Source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.api.connectors import Source
from tailrace.elements.batches import Form
from tailrace.errors import GraphError
from tailrace.spark.datasources.batch import BatchSource
from tailrace.spark.datasources.classes import class_of
from tailrace.spark.datasources.declared import VERB, Declared, ReadingMode
from tailrace.spark.datasources.stream import StreamSource


def data_source(spark: Any, given: Any, options: Any, schema: Any, form: Form, reading: Mapping[str, Any]) -> Source:
    """A source that runs a Python Data Source. `spark` is a session in which a name is looked up, or None for the active
    one, if there is one. Raises `GraphError` and `ConfigError` for what cannot be read."""
    how = ReadingMode(**reading)
    declared = Declared(class_of(given, spark if spark is not None else _active_session()), options, schema)
    if how.follow is not False:
        for method, simple in (("streamReader", False), ("simpleStreamReader", True)):
            reader = declared.reader(method)
            if reader is not None:
                return StreamSource(declared, reader, simple, form, how)
    reader = None if how.follow or how.until else declared.reader("reader")
    if reader is None:
        kind = {True: "stream reader", False: "batch reader", None: "stream reader" if how.until else "reader"}
        raise GraphError(f"{VERB}: the data source {declared.name!r} has no {kind[how.follow]}")
    return BatchSource(declared, reader, form)


def _active_session() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
