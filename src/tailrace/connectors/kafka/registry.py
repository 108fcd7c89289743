"""Schema registries: the ids of schemas, in the wire format of Confluent (a zero byte, and the id in four bytes)."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from tailrace.elements.columns.named_records import names_of
from tailrace.errors import ConfigError, ServiceUnreachable, error_text
from tailrace.passwords import hide_passwords

R = TypeVar("R")
HEADER = struct.Struct(">bI")
LOGIN_SETTING = "registry={'url': ..., 'basic.auth.user.info': 'user:password'}"


def id_of(data: bytes) -> int:
    """The id of the schema that a value begins with. Raises `ValueError` if it has none."""
    if len(data) < HEADER.size or data[0] != 0:
        raise ValueError("it does not begin with the id of a schema: a zero byte, and the id in four bytes")
    return int(HEADER.unpack_from(data)[1])


class SchemaRegistry:
    """A schema registry, reached by the client of Confluent. The client keeps what it has fetched, by id; it is made in the
    process that uses it."""

    def __init__(self, registry: str | Mapping[str, Any], who: str) -> None:
        config = {"url": registry} if isinstance(registry, str) else dict(registry or {})
        if not isinstance(config.get("url"), str) or "://" not in config["url"]:
            raise ConfigError(
                f"{who}: registry is the URL of a schema registry, such as 'http://host:8081', or a dict of settings of "
                f"Confluent's client with 'url'"
            )
        self.url: str = config["url"]
        self._config = config
        self._made: Any = None

    def __repr__(self) -> str:
        return repr(hide_passwords(self.url))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def schema(self, id: int, form: str | None = None) -> Any:
        """The schema with this id. Raises `ValueError` for an id that the registry does not know."""
        return self.call(f"schema {id}", lambda client: client.get_schema(id, fmt=form))

    def register(self, subject: str, schema: Any) -> int:
        """The id of a schema of a subject, which is registered if it is new. Raises `ConfigError` if the registry refuses
        it."""
        return int(self.call(f"subject {subject!r}", lambda client: client.register_schema(subject, schema)))

    def version(self, subject: str, version: Any = "latest") -> Any:
        """A version of a subject, with its `schema` and its number."""
        return self.call(f"subject {subject!r}", lambda client: client.get_version(subject, version))

    def check(self) -> None:
        """Raises `ConfigError` or `ServiceUnreachable` for a registry that refuses the login, or does not answer."""
        with contextlib.suppress(ValueError):  # some have no such request, and answer
            self.call("types of schemas", lambda client: client.get_schema_types())

    def close(self) -> None:
        """Closes the connections. A later call opens new ones."""
        if self._made is not None:
            self._made.close()
            self._made = None

    def call(self, what: str, call: Callable[[Any], R]) -> R:
        """The result of a call of the client. Raises `ServiceUnreachable` where another try may help, `ValueError` for what
        the registry does not have, else `ConfigError` in its words."""
        library = registry_library()
        try:
            if self._made is None:
                self._made = new_client(library, self._config)
            return call(self._made)
        except library.SchemaRegistryError as error:
            where = f"the schema registry at {hide_passwords(self.url)}: {what}"
            if error.http_status_code >= 500 or error.http_status_code in (408, 429):
                raise ServiceUnreachable(f"{where}: {error}") from None
            if error.http_status_code == 404:
                raise ValueError(f"{where}: {error.error_message}") from None
            hint = f" ({LOGIN_SETTING})" if error.http_status_code in (401, 403) else ""
            raise ConfigError(f"{where}: {error}{hint}") from None
        except library.TransportError as error:
            where = f"the schema registry at {hide_passwords(self.url)} does not answer"
            raise ServiceUnreachable(f"{where}: {hide_passwords(error_text(error))}") from None


def new_client(library: Any, config: Mapping[str, Any]) -> Any:
    """A client with these settings. Raises `ConfigError` for settings that it refuses."""
    try:
        return library.SchemaRegistryClient(dict(config))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the client of the schema registry refuses its settings: {error}") from None


class _Library:
    """The parts of Confluent's client that are used."""

    def __init__(self) -> None:
        import httpx2
        from confluent_kafka import schema_registry as package

        self.SchemaRegistryClient, self.SchemaRegistryError = package.SchemaRegistryClient, package.SchemaRegistryError
        self.Schema, self.SchemaReference = package.Schema, package.SchemaReference
        self.TransportError = httpx2.TransportError


def registry_library() -> Any:
    """The client of registries. Raises `ConfigError` if it is not installed."""
    try:
        return _Library()
    except ImportError:
        raise ConfigError('a schema registry needs its client: pip install "tailrace[registry]"') from None


def check_format(form: RegistryFormat, subject: str | None) -> None:
    """Checks a format against its registry, before a job starts. Raises `ConfigError`."""
    try:
        form.check(subject)
    except (ServiceUnreachable, ValueError) as error:
        raise ConfigError(str(error)) from None
    finally:
        form.registry.close()  # workers may be forked from here


class RegistryFormat:
    """The base of formats whose values begin with the id of a schema."""

    registry: SchemaRegistry
    subject: str | None = None

    def __call__(self, data: Any) -> Any:
        """The record of a value that is not None."""
        raise NotImplementedError

    def columns(self, schema: pa.Schema) -> Callable[[Sequence[Any]], pa.RecordBatch] | None:
        """A function that makes a batch in this schema of records, None among them; None if they are dicts. Raises
        `ConfigError` for a schema whose columns the records cannot have."""
        return None

    def check(self, subject: str | None) -> None:
        """Checks the format against the registry, before a job starts; with a `subject`, that it takes what is written."""
        raise NotImplementedError

    def encoder(self, subject: str) -> Callable[[Any], bytes | None]:
        """A function that encodes records as values for a subject."""
        raise NotImplementedError


def fields_of(record: Any) -> Any:
    """A record with names of fields as a dict; another record as it is."""
    names = None if isinstance(record, Mapping) else names_of(record)
    if names is None:
        return record
    return (
        dict(zip(names, record, strict=True))
        if isinstance(record, tuple)
        else {one: getattr(record, one) for one in names}
    )
