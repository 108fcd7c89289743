"""A Python Data Source with its options and its schema, as a program has declared it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

from tailrace.elements.durations import Duration, span_seconds
from tailrace.errors import ConfigError, GraphError, TailraceError, error_text
from tailrace.spark.data.schemas import arrow_schema, struct_type
from tailrace.spark.data.types import check_types

VERB = "from_data_source"


class ReadingMode:
    """The settings of `from_data_source` on how a data source is read. Raises `ConfigError` for wrong ones."""

    def __init__(self, follow: Any = None, until: Any = None, every: Duration = 0.05) -> None:
        if follow not in (None, True, False):
            raise ConfigError(f"{VERB}: follow must be True, False or None, not {follow!r}")
        if until not in (None, "now") or (until is not None and follow is False):
            raise ConfigError(
                f"{VERB}: until is 'now', for a stream reader that ends with what is there, not {until!r}"
            )
        try:
            self.every = span_seconds(every)
        except (TypeError, OverflowError) as error:
            raise ConfigError(f"{VERB}: every: {error}") from None
        if self.every < 0:
            raise ConfigError(f"{VERB}: every must not be negative, not {every!r}")
        self.follow, self.until = follow, until


class Declared:
    """A data source, made in the program as Spark makes one in its driver. The readers that it makes are copied to the
    workers: each use gets a copy of its own, as each task of Spark does."""

    def __init__(self, kind: type[DataSource], options: Mapping[str, Any] | None, schema: Any) -> None:
        self.name = str(self._call(kind, "name", kind.name))
        made = options_of(options, self.name)
        self.source: DataSource = self._call(kind, "__init__", lambda: kind(options=made))
        given = self._call(kind, "schema", self.source.schema) if schema is None else schema
        self.schema = struct_type(given, f"{VERB}: {self.name}")
        names = list(self.schema.names)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise GraphError(f"{VERB}: {self.name} has several columns named {', '.join(map(repr, twice))}")
        check_types(self.schema, f"{VERB}: {self.name}")
        self.arrow_schema = arrow_schema(self.schema)

    def __repr__(self) -> str:  # options may have a password
        return f"data source {self.name!r}"

    def reader(self, method: str) -> Any:
        """The reader that a method of the data source makes; None if the data source has none."""
        made = getattr(self.source, method)
        if getattr(type(self.source), method, None) is getattr(DataSource, method):
            return None
        try:
            return self._call(type(self.source), method, lambda: made(schema=self.schema))
        except NotImplementedError:
            return None

    def _call(self, kind: type, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (TailraceError, NotImplementedError) as error:
            if what != "schema" or isinstance(error, TailraceError):
                raise
            raise GraphError(f"{VERB}: {kind.__name__} has no schema(); give one: schema='id long, ...'") from None
        except Exception as error:
            raise ConfigError(f"{VERB}: {kind.__name__}.{what} raised {error_text(error)}") from error


def options_of(given: Mapping[str, Any] | None, name: str) -> Any:
    """Options as a data source gets them: texts, whose names may be in any case of letters. Raises `ConfigError` for what is
    no mapping of names."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    if given is not None and not (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
        raise ConfigError(f"{VERB}: {name}: options must be a dict of names and values, such as {{'path': '...'}}")
    texts = {key: _text(value) for key, value in (given or {}).items() if value is not None}
    return CaseInsensitiveDict(texts)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ReaderCopies:
    """A reader of the user's, of which each use gets a copy. The reader itself is never used: copies are as it was made."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self._bytes: bytes | None = None

    def take(self) -> Any:
        """A copy."""
        if self._bytes is None:
            self._bytes = cloudpickle.dumps(self.reader)
        return cloudpickle.loads(self._bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bytes": None}
