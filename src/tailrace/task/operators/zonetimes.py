"""Wall clock times of a zone as instants."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc


def instant_in(value: Any, zone: ZoneInfo) -> Any:
    """The instant of a wall clock time or of the midnight of a date, in a zone; any other value as it is. Of an hour that
    occurs twice it is the first pass, unless the value says `fold`. Raises `OverflowError` for a time that a zone skips."""
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return value
    elif isinstance(value, date):
        value = datetime.combine(value, time())
    else:
        return value
    found = value.replace(tzinfo=zone)
    if found.astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0) != value.replace(fold=0):
        raise OverflowError(f"{value.isoformat(' ')} never was in {zone.key}: clocks there were put forward")
    return found


def column_in(column: pa.Array, zone: ZoneInfo) -> pa.Array:
    """A column of wall clock times, or of dates, as instants; any other column as it is. See `instant_in`. Raises
    `pa.ArrowInvalid` for a time that a zone skips."""
    kind = column.type
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("s"), safe=False)
    elif not pa.types.is_timestamp(kind) or kind.tz is not None:
        return column
    return pc.assume_timezone(column, zone.key, ambiguous="earliest", nonexistent="raise")
