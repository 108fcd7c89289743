"""The source of a table that a user names: `env.from_table`."""

from __future__ import annotations

import os
from typing import Any

from tailrace.api.connectors import Source
from tailrace.connectors.hidden import normal, protocol_of
from tailrace.connectors.lake.deltasource import DeltaRows
from tailrace.connectors.lake.icebergsource import IcebergRows
from tailrace.errors import GraphError


def table_source(table: Any, catalog: Any, form: Any, storage_options: Any, options: dict[str, Any]) -> Source:
    """A source of a table: Iceberg in a catalog, or Delta at a path or URL. Raises `GraphError` for what is no table that it
    reads."""
    if form not in ("rows", "columns"):
        raise GraphError(f"from_table: form must be 'rows' or 'columns', not {form!r}")
    if catalog is not None:
        if storage_options is not None:
            raise GraphError("from_table: storage_options are for a Delta table; those of Iceberg are in the catalog")
        return IcebergRows(catalog, table, form=form, **options)
    if not isinstance(table, str | os.PathLike) or not os.fspath(table):
        raise GraphError(f"from_table: a table is a path or URL, not {table!r}")
    path = normal(table)
    if protocol_of(path) is None and not os.path.isdir(os.path.join(path, "_delta_log")):
        raise GraphError(
            f"from_table: there is no Delta table at {path} (no folder _delta_log). For an Iceberg table give its catalog, "
            f"from_table(name, catalog=...); for one that Spark knows by a name, or of another format, "
            f"env.from_dataframe(spark.table(...)) reads what is there now"
        )
    return DeltaRows(path, form=form, storage_options=storage_options, **options)
