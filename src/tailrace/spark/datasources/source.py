"""The source that a program gets for a Python Data Source."""

from __future__ import annotations

from typing import Any

from tailrace.api.connectors import Source
from tailrace.elements.batches import Form
from tailrace.errors import GraphError
from tailrace.spark.datasources.batch import BatchSource
from tailrace.spark.datasources.classes import class_of
from tailrace.spark.datasources.declared import VERB, Declared


def data_source(spark: Any, given: Any, options: Any, schema: Any, form: Form, follow: bool | None) -> Source:
    """A source that runs a Python Data Source. `spark` is a session in which a name is looked up, or None for the active
    one, if there is one. Raises `GraphError` and `ConfigError` for what cannot be read."""
    declared = Declared(class_of(given, spark if spark is not None else _active_session()), options, schema)
    batch = None if follow else declared.reader("reader")
    if batch is None:
        raise GraphError(f"{VERB}: the data source {declared.name!r} has no reader")
    return BatchSource(declared, batch, form)


def _active_session() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
