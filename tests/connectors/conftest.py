"""What tests of connectors share: schemas of PostgreSQL on a server of theirs, and a bucket."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests import buckets
from tests.servers import Server

_numbers = itertools.count()


@pytest.fixture
def db(postgres: Server) -> Iterator[psycopg.Connection[Any]]:
    """A connection with a schema of its own. It stays: a worker that a simulation has killed may hold a lock."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        schema = f"t{connection.info.backend_pid}_{next(_numbers)}"
        connection.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}")
        yield connection


@pytest.fixture
def dsn(postgres: Server, db: psycopg.Connection[Any]) -> str:
    """The DSN of connections that work in the schema of `db`."""
    [schema] = db.execute("SELECT current_schema()").fetchone() or ()
    return f"{postgres.url}?options=-csearch_path%3D{schema}"


@pytest.fixture(scope="module")
def bucket(s3_endpoint: str) -> Iterator[str]:
    """A bucket on a server that is found as a user's own would be: by the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"AWS_ENDPOINT_URL": s3_endpoint, **buckets.ENVIRONMENT}.items():
            patch.setenv(name, value)
        yield buckets.new_bucket(s3_endpoint)
