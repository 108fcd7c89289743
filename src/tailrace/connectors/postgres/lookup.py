"""Lookups of rows of PostgreSQL tables, for `stream.lookup`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tailrace.api.functions import AsyncFunction, Context
from tailrace.connectors.postgres.server import Server, identifier, passing_errors
from tailrace.connectors.postgres.target import describe
from tailrace.elements.rows import made_rows
from tailrace.errors import ConfigError


class Postgres(AsyncFunction):
    """A lookup of rows: `stream.lookup(tr.lookups.Postgres(dsn, "customers", key="id"), on="customer")`. The answer is the
    row with that key, with the names of its columns, or None. Keys of calls that run at the same time travel in one query.

    - `dsn`: the server and database; `table`: the name of the table, as in SQL.
    - `key`: the column of the key, or a list of columns for keys that are tuples. A key that several rows have fails.
    - `columns`: the columns of the answer; None: all.

    Raises `ConfigError` for wrong arguments, and in the worker for what the server does not have.
    """

    def __init__(self, dsn: str, table: str, key: str | Sequence[str], columns: Sequence[str] | None = None) -> None:
        self.server = Server(dsn, "lookups.Postgres")
        if not isinstance(table, str) or not table:
            raise ConfigError(f"lookups.Postgres: table is the name of a table, not {table!r}")
        self.single = isinstance(key, str)
        self.keys = [key] if isinstance(key, str) else list(key)
        if not self.keys or not all(isinstance(one, str) and one for one in (*self.keys, *(columns or ()))):
            raise ConfigError("lookups.Postgres: key and columns are names of columns")
        self.table, self.columns = table, columns
        self._statement = ""
        self._connection: Any = None
        self._turn: asyncio.Lock | None = None
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        """Keys that go with the next query."""
        self._queries: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Postgres({self.server.name!r}, {self.table!r}, key={self.keys!r})"

    async def open(self, ctx: Context) -> None:  # type: ignore[override]
        self._turn = asyncio.Lock()
        self._statement = await asyncio.to_thread(self._query_text)

    def _query_text(self) -> str:
        """The query for keys. Raises `ConfigError` for what the server does not have."""
        with self.server.checking(f"table {self.table!r} (table=)") as connection:
            found = describe(connection, self.table)
        names = self.keys + list(self.columns or ())
        missing = [one for one in names if found is not None and one not in found.columns]
        if found is None or missing:
            why = "there is none that this user sees" if found is None else f"it has no column {missing[0]!r}"
            raise ConfigError(f"lookups.Postgres: {self.server.name}: table {self.table!r}: {why}")
        arrays = ", ".join(f"%s::{identifier(found.columns[one].kind)}[]" for one in self.keys)
        given = ", ".join(f"k{at}" for at in range(len(self.keys)))
        same = " AND ".join(f"t.{identifier(one)} = k.k{at}" for at, one in enumerate(self.keys))
        answer = ", ".join(f"t.{identifier(one)}" for one in (self.columns or found.columns))
        return (
            f"SELECT k.place, {answer} FROM unnest({arrays}) WITH ORDINALITY AS k({given}, place) "
            f"JOIN {found.name} AS t ON {same}"
        )

    async def call(self, value: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append((value, answer))
        return await answer

    def _send(self) -> None:
        """Sends a query for all that wait."""
        waiting, self._waiting = self._waiting, []
        query = asyncio.ensure_future(self._query(waiting))
        self._queries.add(query)
        query.add_done_callback(self._queries.discard)

    async def _query(self, waiting: Sequence[tuple[Any, asyncio.Future[Any]]]) -> None:
        try:
            answers: list[Any] = await self._answers([value for value, _ in waiting])
        except Exception as error:
            answers = [error] * len(waiting)
        for (_, future), answer in zip(waiting, answers, strict=True):
            if future.done():  # it was given up
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def _answers(self, values: Sequence[Any]) -> list[Any]:
        """The row of each key, None where there is none, or an error."""
        lists = [list(values)] if self.single else [list(one) for one in zip(*values, strict=True)]
        assert self._turn is not None
        async with self._turn:
            names, rows = await self._fetch(lists)
        answers: list[Any] = [None] * len(values)
        for (place, *_), row in zip(rows, made_rows(names, [row[1:] for row in rows]), strict=True):
            taken = answers[place - 1] is not None
            answers[place - 1] = (
                ValueError(f"several rows of {self.table} have the key {values[place - 1]!r}") if taken else row
            )
        return answers

    async def _fetch(self, lists: list[list[Any]]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Runs the query. A connection that the server has closed is made anew, once."""
        fresh = self._connection is None or self._connection.closed
        if fresh:
            self._connection = await self.server.connect_async("lookup")
        try:
            cursor = await self._connection.execute(self._statement, lists)
            return tuple(one.name for one in cursor.description[1:]), await cursor.fetchall()
        except passing_errors():
            await self._connection.close()
            if fresh:
                raise
        return await self._fetch(lists)

    async def close(self) -> None:  # type: ignore[override]
        if self._connection is not None:
            await self._connection.close()
