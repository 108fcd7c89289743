"""Schemas as users write them: DDL text, types of Spark, types of Arrow."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pyarrow as pa

from tailrace.errors import GraphError
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.spark.cluster.session import active_or_local
from tailrace.spark.data.types import check_types, leaves

_DDL_TYPES = {
    **{name: name for name in ("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary")},
    **{name: name for name in ("date", "timestamp", "timestamp_ntz")},
    "tinyint": "byte",
    "smallint": "short",
    "int": "integer",
    "bigint": "long",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
"""Spark's own name for each type name of DDL."""


def arrow_schema(schema: Any) -> pa.Schema:
    """DDL text, a `StructType` or a `pyarrow.Schema` as a `pyarrow.Schema`. Raises `GraphError` for anything else."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if isinstance(schema, pa.Schema):
        return schema
    struct = struct_type(schema, "a schema")
    check_types(struct, "schema", void=True)
    # TIMESTAMP is a moment. From 4.1 on PySpark takes the zone that it is shown in as an argument.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(struct, **zone)


def struct_type(schema: Any, who: str) -> Any:
    """DDL text, a `StructType` or a `pyarrow.Schema` as a `StructType`. Raises `GraphError` for anything else."""
    from pyspark.sql.types import StructType

    if isinstance(schema, pa.Schema):
        return spark_schema(schema)
    if isinstance(schema, str):
        schema = _from_ddl(schema)
    if not isinstance(schema, StructType):
        raise GraphError(
            f'{who} is DDL text such as "id long, name string", a StructType or a pyarrow.Schema, not {schema!r}'
        )
    return schema


def spark_schema(schema: pa.Schema) -> Any:
    """A `pyarrow.Schema` as a `StructType`. A timestamp without a zone is TIMESTAMP_NTZ: without an argument PySpark 4.0
    and 4.1 take it for TIMESTAMP, a moment in the session's zone."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _from_ddl(text: str) -> Any:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    if SparkSession.getActiveSession() is None:
        # Spark parses DDL in its JVM. For a plain list of columns none is started: a session made here would not know how
        # many slots the job needs, and a test without Spark would wait for it.
        plain = _plain_ddl(text)
        if plain is not None:
            return StructType.fromJson({"type": "struct", "fields": plain})
        active_or_local(DEFAULTS.most_workers() + 1, DEFAULTS.spark_master(), DEFAULTS.conf)
    try:
        return StructType.fromDDL(text)
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise GraphError(f"the schema {text!r} cannot be read: {first}") from None


def _plain_ddl(text: str) -> list[dict[str, Any]] | None:
    """The fields of DDL that consists of names and simple types only; else None."""
    fields: list[dict[str, Any]] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([A-Za-z_]\w*)(?:\s*:\s*|\s+)(\w+)\s*", part)
        kind = None if found is None else _DDL_TYPES.get(found[2].lower())
        if found is None or kind is None:
            return None
        fields.append({"name": found[1], "type": kind, "nullable": True, "metadata": {}})
    return fields


def spark_columns(schema: pa.Schema, who: str) -> pa.Schema:
    """The columns as Spark has them, to which a sink casts its own: strings of 32-bit lengths without dictionaries, times
    in microseconds, moments in UTC. Raises `GraphError` for a column that no type of Spark can take."""
    from pyspark.sql.types import DecimalType

    for field in schema:
        try:
            found = spark_schema(pa.schema([field]))
        except Exception as error:
            first = str(error).strip().splitlines()[0]
            raise GraphError(
                f"{who}: column {field.name!r} is {field.type}, and Spark has no such type: {first}"
            ) from None
        check_types(found, who)
        found_type: Any = found.fields[0].dataType
        for path, kind in leaves(found_type, field.name):
            if isinstance(kind, DecimalType) and not 0 <= kind.scale <= kind.precision <= 38:
                raise GraphError(f"{who}: column {path!r} is {field.type}, and Spark's decimals have at most 38 digits")
    return arrow_schema(spark_schema(schema))
