"""Connections to a Redis or Valkey server, and what is checked before a job starts."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tailrace.errors import ConfigError, error_text
from tailrace.passwords import hide_passwords

T = TypeVar("T")
SCHEMES = ("redis", "rediss", "unix")
OLDEST = (7, 0)
"""The oldest Redis whose scripts replicate what they did, and not the script."""
RESPONSE_TIMEOUT = 20.0
"""Seconds without an answer after which a connection counts as broken."""
OPTIONS: dict[str, Any] = {"protocol": 2, "decode_responses": False, "socket_timeout": RESPONSE_TIMEOUT}
"""Options of every client."""


def check_url(url: Any, who: str) -> str:
    """The URL of a server, if it is one. Raises `ConfigError`."""
    if not isinstance(url, str) or not _is_url(url):
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(
            f"{who}: the server is a URL such as redis://host:6379/0, not {hide_passwords(repr(url))} ({known})"
        )
    return url


def _is_url(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in SCHEMES and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number
        return False


def client_module() -> Any:
    """The module `redis`. Raises `ConfigError` if it is not installed."""
    try:
        import redis
        import redis.asyncio
    except ImportError as error:
        raise ConfigError('the client of Redis is not installed: pip install "tailrace[redis]"') from error
    return redis


def connect(url: str) -> Any:
    """A client of the server, or of the cluster that it belongs to. Answers are bytes, in the forms of RESP 2."""
    redis, url = client_module(), _without_options(url)
    client = redis.Redis.from_url(url, **OPTIONS)
    if not is_cluster(client):
        return client
    client.close()
    return redis.RedisCluster.from_url(url, **OPTIONS)


def asynchronous(url: str) -> Any:
    """A client like that of `connect`, for `asyncio`."""
    client = connect(url)
    cluster = is_cluster(client)
    client.close()
    redis = client_module()
    kind = redis.asyncio.RedisCluster if cluster else redis.asyncio.Redis
    return kind.from_url(_without_options(url), **OPTIONS)


def _without_options(url: str) -> str:
    """A URL without our options in its query, which would go before them."""
    parts = urllib.parse.urlsplit(url)
    kept = [pair for pair in parts.query.split("&") if pair.partition("=")[0] not in OPTIONS]
    return parts._replace(query="&".join(kept)).geturl()


def is_cluster(client: Any) -> bool:
    """True if the server of a client is a node of a cluster."""
    info = client.info("cluster")
    info = info if "cluster_enabled" in info else next(iter(info.values()))  # a cluster answers for each node
    return bool(info["cluster_enabled"])


def ask(url: str, who: str, question: Callable[[Any], T]) -> T:
    """What a function of a client returns. Raises `ConfigError` for a server that does not answer it, or is too old."""
    redis = client_module()
    try:
        client = connect(url)
        try:
            info = client.info("server")
            info = info if "redis_version" in info else next(iter(info.values()))  # a cluster answers for each node
            found = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
            if found < OLDEST:
                raise ConfigError(
                    f"{who}: {hide_passwords(url)} has version {info['redis_version']}; 7.0 is the oldest"
                )
            return question(client)
        finally:
            client.close()
    except (redis.RedisError, OSError) as error:
        raise ConfigError(f"{who}: {hide_passwords(url)}: {error_text(error)}") from error


REFUSALS = ("WRONGTYPE", "NOAUTH", "WRONGPASS", "NOPERM", "ACL failure", "CROSSSLOT")
"""Beginnings of errors that come again: of a key of another type, of users and their rights. Others may pass: a server that
loads its data, has no memory left, or is a replica."""


@contextlib.contextmanager
def refusing(url: str, what: Callable[[], str]) -> Iterator[None]:
    """A context that makes `ConfigError` of errors of the server that would come again. `what` describes the object."""
    errors = client_module().exceptions
    try:
        yield
    except (errors.AuthenticationError, errors.AuthorizationError, errors.ResponseError) as error:
        if isinstance(error, errors.ResponseError) and not is_refusal(error):
            raise
        raise ConfigError(f"Redis at {hide_passwords(url)}: {what()}: {hide_passwords(error_text(error))}") from error


def is_refusal(error: Any) -> bool:
    """True if an answer of the server would come again. The client has classes for some codes, and cuts them off."""
    errors = client_module().exceptions
    kinds = (errors.NoPermissionError, errors.AuthenticationWrongNumberOfArgsError, errors.ClusterCrossSlotError)
    return isinstance(error, kinds) or str(error).startswith(REFUSALS)


def check_type(url: str, who: str, key: str, expected: str) -> None:
    """Checks that a key has a type, or does not exist. Raises `ConfigError`."""
    found = ask(url, who, lambda client: client.type(key)).decode()
    if found not in (expected, "none"):
        raise ConfigError(f"{who}: the key {key!r} of {hide_passwords(url)} is a {found}, not a {expected}")


def hash_tag(key: str) -> str | None:
    """The part of a key that decides its place in a cluster; None: all of it."""
    start = key.find("{")
    end = key.find("}", start + 1)
    return key[start + 1 : end] if start >= 0 and end > start + 1 else None


def beside(key: str, who: str) -> str:
    """The name of a key for marks, at the same place in a cluster as `key`. Raises `ConfigError` if there is none."""
    tag = hash_tag(key)
    if tag is None and "}" in key:
        raise ConfigError(f"{who}: no other key can be at the place of {key!r} in a cluster; leave the brace out")
    return f"{key}:tailrace" if tag is not None else f"{{{key}}}:tailrace"
