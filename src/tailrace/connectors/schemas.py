"""Schemas that users give to sources and sinks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailrace.api.checks.arguments import check_declared


def declared_schema(schema: Any, who: str) -> pa.Schema:
    """The Arrow schema of a `pyarrow.Schema`, a `StructType` or DDL text. Raises `GraphError` for a schema with two columns
    of one name."""
    from tailrace.api.launch import launcher

    return check_declared(schema if isinstance(schema, pa.Schema) else launcher().arrow_schema(schema), who)
