"""The descent of a server: whether its log holds what was read before.

A standby that becomes the primary goes on with the log from where it was, on a *timeline* of its own. What the former
primary had written behind that place is lost, and other records come to stand there. So a place is on a timeline, and a
server holds it if it comes before the place at which the server's history leaves that timeline.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from tailrace.connectors.postgres.server import Server, client
from tailrace.errors import ConfigError

_NOW = """
SELECT (SELECT system_identifier::text FROM pg_control_system()), substr(pg_walfile_name(at), 1, 8), at - '0/0'::pg_lsn
FROM pg_current_wal_insert_lsn() AS at
"""


class LogPlace(NamedTuple):
    """A place in the log of a server."""

    system: str
    """The identity of the server, which its standbys share."""
    timeline: int
    """The timeline; 0 if it is not known."""
    lsn: int


def place_now(connection: Any) -> LogPlace:
    """The place behind all that the connection can see. The server must be a primary."""
    system, timeline, lsn = connection.execute(_NOW).fetchone()
    return LogPlace(system, int(timeline, 16), int(lsn))


def identify(replication: Any) -> LogPlace:
    """The place up to which the server has its log, by a connection for replication."""
    system, timeline, flushed, _ = replication.execute("IDENTIFY_SYSTEM").fetchone()
    return LogPlace(system, int(timeline), lsn_of(flushed))


def check_descent(place: LogPlace, now: LogPlace, server: Server) -> None:
    """Raises `ConfigError` if the server, which is at `now`, is another one than that of `place`, or has lost what was
    before it."""
    if place.system != now.system:
        raise ConfigError(
            "it is another server than that of the checkpoint: start the job anew, without the checkpoint"
        )
    end = now.lsn
    if place.timeline not in (0, now.timeline):
        end = min(end, _fork(server, place.timeline, now.timeline))
    if place.lsn > end:
        raise ConfigError(
            f"the server has the log of the checkpoint up to {lsn_text(end)}, and the checkpoint has what was written up "
            f"to {lsn_text(place.lsn)}: it has lost commits (a failover, or a backup). Start the job from an older "
            f"savepoint, or anew"
        )


def _fork(server: Server, before: int, now: int) -> int:
    """The place at which the history of a timeline leaves an earlier one; 0 if it has never been on that."""
    psycopg = client()
    try:
        with contextlib.closing(server.connect("history", replication="database")) as connection:
            _, content = connection.execute(f"TIMELINE_HISTORY {now}").fetchone()
    except psycopg.errors.InsufficientPrivilege as error:
        raise _unknown(error) from None
    except psycopg.OperationalError as error:
        if "replication" not in str(error).lower():
            raise  # it may be over at the next attempt
        raise _unknown(error) from None
    text = content.decode() if isinstance(content, bytes) else content
    lines = [line.split("\t") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return next((lsn_of(fields[1]) for fields in lines if int(fields[0]) == before), 0)


def _unknown(error: Exception) -> ConfigError:
    return ConfigError(
        f"the server has failed over to another one, and whether commits that were read are lost is for a user with "
        f"REPLICATION to know ({' '.join(str(error).split())}): ALTER ROLE ... REPLICATION, or start the job anew"
    )


def lsn_of(text: str) -> int:
    """A place in the log, from what PostgreSQL writes for it."""
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_text(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
