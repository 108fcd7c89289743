"""Statistics of the columns of a Parquet file, from its footer, as the log of a Delta table has them."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

LONGEST = 64
"""Characters in the longest text that is a smallest or largest value."""
MOST_COLUMNS = 32
"""Number of the first columns that have statistics, as in Spark."""


def statistics_of(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    """The statistics of a file as JSON: the number of its rows, and of each plain column the number of nulls and the
    smallest and largest value, as far as the footer has them."""
    smallest, largest, nulls = {}, {}, {}
    leaves = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    for field in list(schema)[:MOST_COLUMNS]:
        leaf = leaves.get(field.name)
        if leaf is None or pa.types.is_nested(field.type):
            continue
        groups = [metadata.row_group(i).column(leaf).statistics for i in range(metadata.num_row_groups)]
        if all(one is not None and one.has_null_count for one in groups):
            nulls[field.name] = sum(one.null_count for one in groups)
        known = [one for one in groups if one is not None and one.has_min_max]
        empty = [one for one in groups if one is not None and not one.has_min_max and not one.num_values]
        if known and len(known) + len(empty) == len(groups):
            low, high = (
                _json_value(min(one.min for one in known), False),
                _json_value(max(one.max for one in known), True),
            )
            if low is not None and high is not None:
                smallest[field.name], largest[field.name] = low, high
    return json.dumps(
        {"numRecords": metadata.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
    )


def _json_value(value: Any, upper: bool) -> Any:
    """A smallest or largest value for JSON; None for one of a kind that has none. Times have milliseconds there, so the
    largest one is rounded up."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return value if len(value) <= LONGEST else None
    if isinstance(value, datetime):
        cut = value.replace(microsecond=value.microsecond // 1000 * 1000)
        if upper and cut != value:
            cut += timedelta(milliseconds=1)
        return cut.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if cut.tzinfo else "")
    return value.isoformat() if isinstance(value, date) else value if isinstance(value, int) else None
