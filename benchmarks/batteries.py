"""The battery of a sink against its real server: how often what was killed, and how many records are lost or there twice.

Each sink is one that `tailrace.testing.check_sink` plays drawn lives of a job with. A record that is lost, or that an
exactly-once sink has twice, ends the run with the story; so a line of figures is one of a sink that held."""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import tailrace as tr
from tailrace.testing import check_sink
from tests import buckets, servers
from tests.servers.process import listens
from tests.servers.process import run as running

FIGURES = ("rounds", "messages", "publications", "kills", "freezes", "doubles", "outages", "restarts", "lost", "twice")
Made = tuple[tr.Sink, Callable[[], Iterable[int]]]
"""A sink at an empty place, and what reads the numbers that are visible there."""


@dataclass(frozen=True)
class BatterySpec:
    sink: str
    rounds: int = 20
    seed: int = 1

    @classmethod
    def of(cls, options: dict[str, str], sink: str) -> BatterySpec:
        return cls(sink, **{name: int(options[name]) for name in ("rounds", "seed") if name in options})


class Battery(NamedTuple):
    """What `check_sink` is given for one sink: `make(name)` with a name that is new each time, and its options."""

    make: Callable[[str], Made]
    options: dict[str, Any] = {}


def run(spec: BatterySpec) -> dict[str, Any]:
    """The figures of one sink. Raises `SinkFault` where it does not keep its guarantee."""
    return SINKS[spec.sink](spec)


def played(spec: BatterySpec, serving: contextlib.AbstractContextManager[Battery]) -> dict[str, Any]:
    with serving as battery, tempfile.TemporaryDirectory(prefix="tailrace-battery-") as folder:
        os.chdir(folder)  # of this process alone: sinks of files write here
        given = {"record": lambda n: {"n": n}, **battery.options}
        names = (f"b{number}" for number in itertools.count())
        report = check_sink(lambda: battery.make(next(names)), rounds=spec.rounds, seed=spec.seed, **given)
    return {name: asdict(report)[name] for name in FIGURES}


# Servers.


@contextlib.contextmanager
def kafka(**options: Any) -> Iterator[Battery]:
    from tests.connectors.kafka.brokers import Topic, messages_of

    with servers.kafka_server() as server:

        def make(_: str) -> Made:
            name = Topic(server, 2).name
            sink = tr.sinks.Kafka(server.url, name, key=lambda n: n, value="text", **options)
            return sink, lambda: [int(message.value()) for message in messages_of(server.url, name)]

        # The stand-in is not killed: behind a restart it lets frozen publishers go on, as no broker of Kafka does.
        yield Battery(make, {"record": None, **options})


@contextlib.contextmanager
def postgres(**options: Any) -> Iterator[Battery]:
    import psycopg

    with servers.postgres_server() as server:

        def make(table: str) -> Made:
            with psycopg.connect(server.url) as db:
                db.execute(f"CREATE TABLE {table} (n int PRIMARY KEY)")

            def read() -> list[int]:
                with psycopg.connect(server.url) as db:
                    return [n for (n,) in db.execute(f"SELECT n FROM {table}")]

            return tr.sinks.Postgres(server.url, table, **options), read

        yield Battery(make, {"server": server})


@contextlib.contextmanager
def redis_stream() -> Iterator[Battery]:
    from tailrace.connectors.redis.server import connect

    with servers.valkey_server() as server:

        def make(name: str) -> Made:
            def read() -> list[int]:
                return [int(fields[b"n"]) for _, fields in connect(server.url).xrange(name)]

            return tr.sinks.RedisStream(server.url, name), read

        yield Battery(make, {"server": server, "ordered": True})


@contextlib.contextmanager
def redis_hash() -> Iterator[Battery]:
    from tailrace.connectors.redis.server import connect

    with servers.valkey_server() as server:

        def make(name: str) -> Made:
            def read() -> list[int]:
                client = connect(server.url)
                return [int(client.hget(one, "n")) for one in client.scan_iter(f"{name}:*", count=1000)]

            return tr.sinks.RedisHash(server.url, key=lambda r: f"{name}:{r['n']}", marks=f"{name}-marks"), read

        yield Battery(make, {"server": server})


@contextlib.contextmanager
def nats() -> Iterator[Battery]:
    from tests.connectors.nats.test_nats import Streams

    with servers.nats_server() as server:

        def make(name: str) -> Made:
            streams = Streams(server.url)
            streams.make(name)
            streams.client.close()  # before anything is forked

            def read() -> list[int]:
                fresh = Streams(server.url)
                with contextlib.closing(fresh.client):
                    return [json.loads(one)["n"] for one in fresh.records(name)]

            return tr.sinks.Nats(server.url, f"{name}.n"), read

        yield Battery(make, {"server": server, "ordered": True})


@contextlib.contextmanager
def database() -> Iterator[Battery]:
    def make(name: str) -> Made:
        path = os.path.abspath(f"{name}.db")
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE t (n int)")

        def read() -> list[int]:
            with contextlib.closing(sqlite3.connect(path)) as db:
                return [n for (n,) in db.execute("SELECT n FROM t")]

        return tr.sinks.Database(lambda: sqlite3.connect(path), "INSERT INTO t VALUES (:n)"), read

    yield Battery(make, {"guarantee": "at-least-once"})


# Files and lake tables.


@contextlib.contextmanager
def text_files() -> Iterator[Battery]:
    def make(name: str) -> Made:
        path = os.path.abspath(name)
        return tr.sinks.TextFiles(path), lambda: [int(line) for file in _parts(path) for line in open(file)]

    yield Battery(make, {"record": None})


def _parts(folder: str) -> list[str]:
    return glob.glob(f"{folder}/**/part-*", recursive=True)


@contextlib.contextmanager
def parquet_folders() -> Iterator[Battery]:
    from pyarrow import parquet

    def make(name: str) -> Made:
        path = os.path.abspath(name)
        sink = tr.sinks.Parquet(path, "n long, third int", partition_by=["third"])
        return sink, lambda: [n for file in _parts(path) for n in parquet.ParquetFile(file).read()["n"].to_pylist()]

    yield Battery(make, {"record": lambda n: {"n": n, "third": n % 3}})


@contextlib.contextmanager
def json_s3() -> Iterator[Battery]:
    def moto(_: object, port: int) -> servers.Server:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        return servers.Server("moto", f"http://127.0.0.1:{port}", port, command, lambda: listens(port))

    with running(moto) as server:
        os.environ.update(AWS_ENDPOINT_URL=server.url, **buckets.ENVIRONMENT)

        def make(_: str) -> Made:
            url = f"s3://{buckets.new_bucket(server.url)}/out"

            def read() -> list[int]:
                import fsspec

                store = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
                names = [name for name in store.find(url) if name.rpartition("/")[2].startswith("part-")]
                return [json.loads(line)["n"] for name in names for line in store.cat_file(name).splitlines()]

            return tr.sinks.Json(url, "n long"), read

        yield Battery(make)


def table(module: str, spec: BatterySpec, options: dict[str, Any]) -> dict[str, Any]:
    """The figures of a lake table, whose battery is a program of its own: threads of its library do not survive a fork."""
    with tempfile.TemporaryDirectory(prefix="tailrace-battery-") as folder:
        command = [sys.executable, "-m", f"tests.connectors.lake.{module}", folder]
        command += [str(spec.rounds), str(spec.seed), json.dumps(options)]
        found = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        )
    return {name: found[name] for name in FIGURES}


def _lake(module: str, **options: Any) -> Callable[[BatterySpec], dict[str, Any]]:
    return lambda spec: table(module, spec, options)


def _served(
    serve: Callable[..., contextlib.AbstractContextManager[Battery]], **options: Any
) -> Callable[[BatterySpec], dict[str, Any]]:
    return lambda spec: played(spec, serve(**options))


SINKS: dict[str, Callable[[BatterySpec], dict[str, Any]]] = {
    "kafka": _served(kafka),
    "kafka at least once": _served(kafka, guarantee="at-least-once"),
    "postgres append": _served(postgres),
    "postgres upsert": _served(postgres, mode="upsert", keys=["n"]),
    "redis stream": _served(redis_stream),
    "redis hash": _served(redis_hash),
    "nats": _served(nats),
    "database at least once": _served(database),
    "text files": _served(text_files),
    "parquet in folders": _served(parquet_folders),
    "json in s3": _served(json_s3),
    "delta": _lake("delta_battery"),
    "iceberg": _lake("iceberg_battery"),
}
