"""Rows of columns: the records of a batch as `Row`s, which have the names of its columns, as the rows of a
`DataFrame` have. The way back is in `elements.columns`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import lru_cache, partial
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, ClassVar

import pyarrow as pa

from tailrace.elements.columns.kinds import has_map
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.pythonlists import python_list

_named: Any = namedtuple  # its arguments are only known at run time, which type checkers do not accept
_item = tuple.__getitem__


class Row(tuple[Any, ...]):
    """A record of columns. It is a tuple, equal to a plain one and with its hash. Its values have the names of their
    columns, as in rows of PySpark: `row.x`, `row["x"]`, `"x" in row`, `row.asDict()`. Names that begin and end with two
    underscores are no attributes. Other names of columns hide methods of that name (`row.count`).

    The methods of named tuples are there for libraries that recognise a record with names by them. See decision 33.
    """

    __slots__ = ()
    __fields__: ClassVar[tuple[str, ...]] = ()
    __places__: ClassVar[dict[str, int]] = {}
    """Name of a column -> its index. A name that several columns have is left out."""
    __shown__: ClassVar[str] = "Row()"
    _fields: ClassVar[Any] = ()
    _field_defaults: ClassVar[Any] = {}

    def __new__(cls, *values: Any) -> Any:
        return _row(cls, values)

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Any:
        return _row(cls, values)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            try:
                item = self.__places__[item]
            except KeyError:
                raise ValueError(missing_column(self, item)) from None  # as PySpark does
        return _item(self, item)

    def __contains__(self, name: object) -> bool:
        return name in self.__fields__

    def __repr__(self) -> str:
        return self.__shown__ % tuple(self)

    def __reduce__(self) -> Any:
        # The class is made at run time, so a pickled row has the names of its columns, and the reader makes the class again.
        return _make_row, (self.__fields__, tuple(self))

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        """The values by name. With `recursive` rows in values, in lists and in dictionaries become dictionaries too. Raises
        `ValueError` if several columns have one name."""
        if len(self.__places__) != len(self.__fields__):
            twice = next(name for name in self.__fields__ if name not in self.__places__)
            raise ValueError(missing_column(self, twice))
        return dict(zip(self.__fields__, map(_as_dicts, self) if recursive else self, strict=True))

    def _asdict(self) -> dict[str, Any]:
        return Row.asDict(self)

    def _replace(self, **changes: Any) -> Any:
        return _row(type(self), (Row.asDict(self) | changes).values())


def _row(kind: type[Row], values: Iterable[Any]) -> Any:
    row = tuple.__new__(kind, values)
    if len(row) != len(kind.__fields__):
        raise TypeError(f"a row of {len(kind.__fields__)} columns got {len(row)} values")
    return row


def _as_dicts(value: Any) -> Any:
    if isinstance(value, Row):
        return Row.asDict(value, True)
    if isinstance(value, list):
        return list(map(_as_dicts, value))
    if isinstance(value, dict):
        return {key: _as_dicts(one) for key, one in value.items()}
    return value


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _identifier(name: str) -> str:
    """A name as Python reads it in a program: `row.ﬁ` is `row.fi`."""
    return name if name.isascii() else unicodedata.normalize("NFKC", name)


def alike_names(names: Sequence[str]) -> tuple[str, str] | None:
    """Two different names that are one in a program; None if there are none."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(_identifier(name), name)
        if other != name:
            return other, name
    return None


def missing_column(row: Row, name: str) -> str:
    """The reason, for an error, why a row has no value of this name."""
    names = row.__fields__
    alike = [one for one in names if name in (one, _identifier(one))]
    if len(alike) > 1:
        which = ", ".join(map(repr, alike))
        return f"the row has {len(alike)} columns that {name!r} may be: {which}; rename them before"
    return f"the row has no column {name!r}; it has {', '.join(map(repr, names)) or 'none'}"


@lru_cache(maxsize=1024)
def row_type(names: tuple[str, ...]) -> Any:
    """The class of the rows of these columns."""
    attributes: defaultdict[str, list[int]] = defaultdict(list)
    for at, name in enumerate(names):
        for one in {name, _identifier(name)}:
            attributes[one].append(at)
    # The fields of a named tuple are read in C; a column may have any name.
    fields = _named("Row", [f"at{at}" for at in range(len(names))])
    members: dict[str, Any] = {
        name: getattr(fields, f"at{found[0]}") if len(found) == 1 else property(partial(_several, name))
        for name, found in attributes.items()
        if not _is_dunder(name)
    }
    count = Counter(names)
    places = {name: at for at, name in enumerate(names) if count[name] == 1}
    shown = ", ".join(f"{name}=%r" for name in (one.replace("%", "%%") for one in names))
    own = {"__slots__": (), "__module__": __name__, "__fields__": names}
    more = {"__places__": places, "__shown__": f"Row({shown})", "_fields": names}
    return type("Row", (Row,), more | members | own)


def _several(name: str, row: Row) -> Any:
    raise AttributeError(missing_column(row, name))


def _make_row(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """A row from its pickle. The names of this function and of `elements.convert` are in checkpoints."""
    return _row(row_type(names), values)


_make_row.__module__ = "tailrace.elements.convert"


def made_rows(names: tuple[str, ...], values: list[tuple[Any, ...]]) -> list[Any]:
    """Rows from plain tuples. Raises `TypeError` unless each tuple has one value per column."""
    kind = row_type(names)
    if set(map(len, values)) <= {len(names)}:
        # As `_make`, but without a Python call for each record.
        return list(map(tuple.__new__, repeat(kind), values))
    return [_row(kind, one) for one in values]


def rows_of(batch: pa.RecordBatch) -> list[Any]:
    """The records of a batch as rows. A batch without columns gives empty tuples. Raises `Misfit` for a value that
    Python cannot hold."""
    names = tuple(batch.schema.names)
    if not batch.num_columns:
        return made_rows(names, [()] * batch.num_rows)
    columns = [plain_values(column, name) for column, name in zip(batch.columns, names, strict=True)]
    # The columns are of one length, so the rows need no check.
    return list(map(tuple.__new__, repeat(row_type(names)), zip(*columns, strict=True)))


def plain_values(column: pa.Array, name: str = "") -> list[Any]:
    """A column as Python objects; numbers and times without nulls take the short way through numpy. A map is a dict.
    Raises `Misfit`, with the `name` of the column, for a value that Python cannot hold: a time after the year 9999."""
    try:
        return _plain_values(column)
    except (ValueError, OverflowError, KeyError, TypeError, ArithmeticError) as error:
        raise Misfit(
            f"column {name!r} of {column.type} has a value that Python cannot hold: {error}; cast the column before, for "
            f"example a time to int64"
        ) from None


def _plain_values(column: pa.Array) -> list[Any]:
    kind = column.type
    result: list[Any]
    if column.null_count == 0 and len(column):
        if pa.types.is_integer(kind) or pa.types.is_float64(kind) or pa.types.is_float32(kind):
            result = column.to_numpy(zero_copy_only=False).tolist()
            return result
        if pa.types.is_date32(kind) and _in_range(column.cast(pa.int32()), _DATES):
            result = column.to_numpy(zero_copy_only=False).tolist()
            return result
        if pa.types.is_timestamp(kind) and kind.unit == "us" and _in_range(column.cast(pa.int64()), _INSTANTS):
            result = column.to_numpy(zero_copy_only=False).tolist()
            return result if kind.tz is None else _in_zone(result, pa.lib.string_to_tzinfo(kind.tz))
    return python_list(column, "strict" if has_map(kind) else None)


_DATES = (-719_162, 2_932_896)
"""First and last day that a `date` can hold, in days since 1970."""
_INSTANTS = (-62_135_596_800_000_000 + 86_400_000_000, 253_402_300_800_000_000 - 86_400_000_000 - 1)
"""First and last instant that a `datetime` can hold in any time zone, in microseconds since 1970."""


def _in_range(column: pa.Array, bounds: tuple[int, int]) -> bool:
    values = column.to_numpy()
    return bool(bounds[0] <= values.min() and values.max() <= bounds[1])


def _in_zone(times: list[datetime], zone: tzinfo) -> list[datetime]:
    """Naive datetimes in UTC as aware ones of a zone."""
    if str(zone) in ("UTC", "Etc/UTC"):
        return [one.replace(tzinfo=zone) for one in times]
    return [one.replace(tzinfo=UTC).astimezone(zone) for one in times]


def field_getter(name: str, example: Any) -> Callable[[Any], Any]:
    """The fastest way to read field `name` from records like `example`: a mapping, a row, a named tuple, or an object."""
    if isinstance(example, Mapping):
        return itemgetter(name)
    if isinstance(example, Row):
        at = example.__places__.get(name)
        if at is None:
            return itemgetter(name)  # its error has the reason
        if "." in name or _is_dunder(name) or isinstance(type(example).__dict__[name], property):
            return lambda row: _item(row, at)
        return attrgetter(name)  # which reads it in C
    if isinstance(example, tuple) and hasattr(example, "__fields__"):
        return itemgetter(name)  # a Row of PySpark: an attribute may be a method of tuples
    fields = getattr(type(example), "_fields", None)
    if fields is not None and name in fields:
        return itemgetter(fields.index(name))
    return attrgetter(name)
