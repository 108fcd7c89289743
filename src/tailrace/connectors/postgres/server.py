"""Connections to a PostgreSQL server, and errors that name the server and no password."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tailrace.errors import ConfigError

CONNECT_TIMEOUT = 10
"""Seconds that a connection may take to come up."""
SETTINGS = {
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "client_min_messages": "warning",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "5min",
}
"""Settings of each session, whatever the server's are: the texts that it sends have one meaning, and a session whose client
is gone holds no lock for ever."""

_REFUSED_LOGIN = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|is not permitted to log in|"
    r"permission denied for database|FATAL: +(role|database) .* does not exist"
)
"""A sign of a login that the server refuses, in the text of an error. libpq gives no code of an error of a connection that
did not come up, so with a server of another language than English such an error counts as one that may pass."""
_REFUSALS = ("28", "54")
"""Classes of SQLSTATE that mean no disturbance, although their errors are operational: authorization, limits of a row."""

_SET = "; ".join(f"SET {name} = '{value}'" for name, value in SETTINGS.items())
SET_LOCAL = _SET.replace("SET ", "SET LOCAL ")
"""Statements at the beginning of a transaction: a pooler may give each transaction another session of the server."""
BEGIN_READING = f"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; {SET_LOCAL}"


def client() -> ModuleType:
    """The module psycopg. Raises `ConfigError` where it is not installed."""
    try:
        import psycopg
    except ImportError:
        raise ConfigError('PostgreSQL needs psycopg 3: pip install "tailrace[postgres]"') from None
    return psycopg


class Server:
    """The address of a server and of a database in it: a URL or `host=... dbname=...`, as libpq takes it. Its repr has no
    password. Raises `ConfigError` for what is no text."""

    def __init__(self, dsn: Any, owner: str) -> None:
        if not isinstance(dsn, str) or not dsn.strip():
            raise ConfigError(
                f"{owner} takes a DSN, such as 'postgresql://user@host:5432/database', not {type(dsn).__name__}"
            )
        self.dsn, self.owner = dsn, owner

    def __repr__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The server, user and database, without a password."""
        psycopg = client()
        try:
            parts = psycopg.conninfo.conninfo_to_dict(self.dsn)
        except psycopg.Error:
            return "a server whose DSN cannot be read"
        user = f"{parts['user']}@" if parts.get("user") else ""
        host = parts.get("host") or parts.get("hostaddr") or "local"
        port = f":{parts['port']}" if parts.get("port") else ""
        return f"postgresql://{user}{host}{port}/{parts.get('dbname') or parts.get('user') or ''}"

    def connect(self, purpose: str, **more: Any) -> Any:
        """A connection in autocommit, named `tailrace PURPOSE` in `pg_stat_activity`. `more` are parameters of libpq."""
        connection = client().connect(self.dsn, **self._options(purpose), **more)
        # Not as options of the connection: poolers refuse them.
        connection.execute(_SET)
        return connection

    async def connect_async(self, purpose: str) -> Any:
        """A connection for `asyncio`, as `connect` makes them."""
        connection = await client().AsyncConnection.connect(self.dsn, **self._options(purpose))
        await connection.execute(_SET)
        return connection

    def _options(self, purpose: str) -> dict[str, Any]:
        given = client().conninfo.conninfo_to_dict(self.dsn)
        limits = {"connect_timeout": CONNECT_TIMEOUT, "keepalives_idle": 30, "tcp_user_timeout": 60_000}
        own = {"application_name": f"tailrace {purpose}", "client_encoding": "UTF8"}
        return {**limits, **given, **own, "autocommit": True, "prepare_threshold": None}

    @contextlib.contextmanager
    def checking(self, what: str) -> Iterator[Any]:
        """A connection for checks before a job starts. Raises `ConfigError`, with the server and what was checked, for each
        error of the server, and for a pooler that allows no transactions."""
        psycopg = client()
        try:
            with self.connect("check") as connection:
                with connection.transaction():
                    connection.execute("SELECT 1")
                yield connection
        except psycopg.Error as error:
            raise self.refusal(what, error) from None

    @contextlib.contextmanager
    def refusing(self, what: str) -> Iterator[None]:
        """A context that makes `ConfigError` of errors of the server that would come again."""
        psycopg = client()
        try:
            yield
        except psycopg.Error as error:
            if is_passing(error):
                raise
            raise self.refusal(what, error) from error

    def refusal(self, what: str, error: Exception) -> ConfigError:
        """The error for what the server has refused."""
        return ConfigError(f"{self.owner}: {self.name}: {what}: {self.reason(error)}")

    def reason(self, error: Exception) -> str:
        """The text of an error of the server in one line, without the password."""
        text = " ".join(str(error).split()) or type(error).__name__
        with contextlib.suppress(Exception):
            password = client().conninfo.conninfo_to_dict(self.dsn).get("password")
            text = text.replace(str(password), "***") if password else text
        return text


def passing_errors() -> tuple[type[Exception], ...]:
    """The errors that may be over at the next attempt: the server is away or ends, or two transactions were in each other's
    way. After such an error of `COMMIT` it is open if the transaction was committed."""
    psycopg = client()
    # A primary that became a standby is read-only; both come of class 25, which psycopg takes as internal.
    states = psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.IdleInTransactionSessionTimeout
    return psycopg.OperationalError, psycopg.InterfaceError, *states


def is_passing(error: Any) -> bool:
    """True if an error of the client may be over at the next attempt. A refused login is not, and neither is a row above a
    limit of the server."""
    if not isinstance(error, passing_errors()):
        return False
    code = getattr(error, "sqlstate", None) or ""
    return not code.startswith(_REFUSALS) and not _REFUSED_LOGIN.search(str(error))


def identifier(name: str) -> str:
    """A name of a column, in quotes, for a statement."""
    return '"' + name.replace('"', '""') + '"'
