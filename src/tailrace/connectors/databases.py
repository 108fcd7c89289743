"""A plain sink for databases with a DB-API driver, or an SQLAlchemy engine: batches of parameters for one statement."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from tailrace.api.connectors import Sink, SinkContext, SinkWriter
from tailrace.elements.callables import misfit_function
from tailrace.elements.columns.named_records import names_of
from tailrace.elements.rows import Row
from tailrace.errors import ConfigError, error_text
from tailrace.passwords import hide_passwords

BATCH = 1_000
"""Number of records of one `executemany`."""

_REFUSALS = ("ProgrammingError", "IntegrityError", "DataError", "NotSupportedError")
"""Names of PEP 249 for errors that come again: of the statement, its objects and rights, constraints, and values."""


class Database(Sink):
    """A sink that executes a statement for each record: at least once, with checkpoints behind each complete one. A record
    may be written again after a failure at the wrong moment: let the statement be one that may run twice, such as an upsert.

    - `connect()` returns a connection of a DB-API driver, or an SQLAlchemy engine. Called where records are published.
    - `statement`: text with placeholders of the driver, or what SQLAlchemy executes.
    - `parameters(record)`: a tuple or a dictionary. By default a tuple or dictionary is taken as it is, a row or an object
      with names as a dictionary, and any other value as a tuple of one.

    Raises `ConfigError` for wrong arguments.
    """

    description = "database"

    def __init__(
        self, connect: Callable[[], Any], statement: Any, *, parameters: Callable[[Any], Any] | None = None
    ) -> None:
        if not callable(connect):
            raise ConfigError(
                f"Database takes a function that returns a connection or an engine, not {type(connect).__name__}"
            )
        if isinstance(statement, str) and not statement.strip():
            raise ConfigError("Database: the statement is empty")
        wrong = None if parameters is None else misfit_function(parameters)
        if wrong is not None:
            raise ConfigError(f"Database: parameters {wrong}")
        self.connect, self.statement, self.parameters = connect, statement, parameters

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return _Writer(self.parameters or plain_parameters)

    def publish(self, prepared: Sequence[bytes]) -> None:
        try:
            self._execute(prepared)
        except Exception as error:
            if not is_refusal(error):
                raise
            why = hide_passwords(error_text(error))
            raise ConfigError(f"Database: the server refuses the statement {str(self.statement)!r}: {why}") from error

    def _execute(self, prepared: Sequence[bytes]) -> None:
        made = self.connect()
        is_engine = hasattr(made, "dialect")
        try:
            for one in prepared:
                records = pickle.loads(one)
                for start in range(0, len(records), BATCH):
                    part = records[start : start + BATCH]
                    if is_engine:
                        with made.begin() as connection:
                            connection.execute(_text(self.statement), part)
                    else:
                        made.cursor().executemany(self.statement, part)
            if not is_engine:
                made.commit()
        finally:
            made.dispose() if is_engine else made.close()


class _Writer(SinkWriter):
    def __init__(self, parameters: Callable[[Any], Any]) -> None:
        self._parameters = parameters
        self._records: list[Any] = []

    def write(self, batch: list[Any]) -> None:
        for self.record in batch:
            self._records.append(self._parameters(self.record))

    def prepare(self) -> bytes | None:
        if not self._records:
            return None
        records, self._records = self._records, []
        return pickle.dumps(records, 5)


def plain_parameters(record: Any) -> Any:
    """The parameters of a record: a dictionary or a tuple as they are, an object with names as a dictionary."""
    if isinstance(record, Row):
        return record.asDict()
    if isinstance(record, dict | tuple | list):
        return record
    names = names_of(record)
    return (record,) if names is None else {name: getattr(record, name) for name in names}


def is_refusal(error: Any) -> bool:
    """True if an error of a driver would come again: PEP 249 has names of classes for it, which SQLAlchemy takes over. In
    SQLite a table that is missing and a file that is locked have one class, and a code distinguishes them."""
    if any(kind.__name__ in _REFUSALS for kind in type(error).__mro__):
        return True
    return getattr(getattr(error, "orig", error), "sqlite_errorname", None) == "SQLITE_ERROR"


def _text(statement: Any) -> Any:
    """A statement as SQLAlchemy executes it."""
    if not isinstance(statement, str):
        return statement
    from sqlalchemy import text

    return text(statement)
