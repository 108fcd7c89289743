"""Spark tables as sinks: finds or creates the table, and makes Spark refresh it when there are more rows in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.connectors.sinks import Table
from tailrace.errors import ConfigError
from tailrace.spark.data.schemas import arrow_schema, spark_schema
from tailrace.spark.data.texts import limits_of, plain_texts
from tailrace.spark.data.types import check_types


@dataclass(frozen=True)
class Found:
    """Description of a table, as Spark reports it."""

    provider: str
    kind: str
    location: str
    partitioned: bool
    bucketed: bool
    name: str
    """Name with catalog and database, quoted."""


def prepare_table(spark: Any, sink: Table) -> None:
    """Gives the sink the folder and the columns of its table; creates the table where it does not exist. Raises
    `ConfigError`, with what to do instead, for a table into which files cannot publish rows."""
    name = sink.name
    try:
        if not spark.catalog.tableExists(name):
            _create(spark, sink)
        columns = spark.table(name).schema
        found = describe(spark, name)
    except ConfigError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(f"table {name!r}: Spark refuses it: {first}") from None
    _check(name, found)
    limits = limits_of(columns, name)
    columns = plain_texts(columns)
    check_types(columns, f"table {name!r}")
    if sink.schema is not None:
        _check_columns(name, columns, spark_schema(sink.schema))
    # Columns are found by name, so the order that the user gave, in which records may be tuples, stays.
    schema = sink.schema if sink.schema is not None else arrow_schema(columns)
    whole = found.name  # the user may have switched to another database by then
    sink.bind(found.location, schema, lambda: spark.catalog.refreshTable(whole), limits)


def describe(spark: Any, name: str) -> Found:
    """The description of a table, by `DESCRIBE TABLE EXTENDED`."""
    rows = [(row.col_name.strip(), row.data_type) for row in spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()]
    names = [column for column, _ in rows]
    # Columns come first, and may have any name: facts about the table itself stand after this heading.
    after = next((i for i, column in enumerate(names) if column.startswith("# Detailed Table Information")), len(rows))
    details = dict(rows[after + 1 :])
    partitioned = any(column in ("# Partition Information", "# Partitioning") for column in names)
    parts = [details.get(part) for part in ("Catalog", "Database", "Table")]
    return Found(
        (details.get("Provider") or "").lower(),
        details.get("Type") or "",
        details.get("Location") or "",
        partitioned,
        (details.get("Num Buckets") or "-1") not in ("-1", "0"),
        ".".join("`" + part.replace("`", "``") + "`" for part in parts if part) if parts[-1] else name,
    )


def _create(spark: Any, sink: Table) -> None:
    if sink.schema is None:
        raise ConfigError(
            f"table {sink.name!r} does not exist; create it, or give Table(..., schema=...) to have it created"
        )
    spark.catalog.createTable(sink.name, source="parquet", schema=spark_schema(sink.schema))


def _check(name: str, found: Found) -> None:
    instead = "write with tr.sinks.Parquet into a folder and load it from there, or take another table"
    if found.kind.upper() == "VIEW" or not found.location:
        raise ConfigError(
            f"table {name!r} has no files of its own (it is a view, or a table of another system); {instead}"
        )
    if found.provider != "parquet":
        raise ConfigError(
            f"table {name!r} has the format {found.provider or 'unknown'!r}, and this sink writes parquet; {instead}"
        )
    if found.partitioned:
        raise ConfigError(f"table {name!r} is partitioned, and this sink writes into one folder; {instead}")
    if found.bucketed:
        raise ConfigError(f"table {name!r} is bucketed, and the files of this sink belong to no bucket; {instead}")


def _check_columns(name: str, there: Any, given: Any) -> None:
    """Raises `ConfigError` where two Spark schemas differ in more than the order of columns."""
    ours, theirs = _types_of(given), _types_of(there)
    for column in [*theirs, *ours]:
        if ours.get(column) != theirs.get(column):
            raise ConfigError(
                f"table {name!r} has the columns {_text(theirs)}, and the schema given is {_text(ours)}; column {column!r} "
                f"differs: give the table's own schema, or none"
            )


def _types_of(schema: Any) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _text(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
