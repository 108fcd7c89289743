"""The client of Kafka: its settings, and errors in words that name the server, the object and the setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tailrace.errors import ConfigError

R = TypeVar("R")
Options = Mapping[str, Any]
PATIENCE = 10.0
"""Seconds without an answer after which a server counts as out of reach."""
OF_ALL = {"log_level": 2, "client.id": "tailrace"}
"""Settings of each client. What it would write to standard error comes back in errors."""
LOGIN_OPTIONS = "options sasl.mechanism, sasl.username, sasl.password"
OURS = [
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "isolation.level",
    "metadata.broker.list",
    "transactional.id",
]
"""Settings that an argument decides, or that exactness depends on."""


class KafkaUnreachable(ConnectionError):
    """The error for a broker that does not answer, or that cannot serve at the moment. The job tries again."""


def library() -> Any:
    """The package of the client. Raises `ConfigError` if it is not installed."""
    try:
        import confluent_kafka
    except ImportError:
        raise ConfigError('Kafka needs its client: pip install "tailrace[kafka]"') from None
    return confluent_kafka


def check_servers(servers: Any, who: str) -> str:
    """The servers as text: "host:port,host:port". Raises `ConfigError` for anything else."""
    if isinstance(servers, (list, tuple)) and servers and all(isinstance(one, str) for one in servers):
        servers = ",".join(servers)
    if not isinstance(servers, str) or not servers.strip():
        raise ConfigError(f'{who} takes servers as "host:port,host:port", or a list of them, not {servers!r}')
    return servers


def check_options(options: Any, who: str) -> dict[str, Any]:
    """A copy of the client's settings. Raises `ConfigError` for those that are not the user's to set."""
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigError(f'{who} takes options as a dict, such as {{"security.protocol": "SASL_SSL"}}')
    for name in options:
        if name in OURS:
            raise ConfigError(f"{who}: options may not set {name!r}: {_argument_for(name)}")
    return dict(options)


def _argument_for(name: str) -> str:
    arguments = {
        "bootstrap.servers": "servers",
        "metadata.broker.list": "servers",
        "group.id": "group",
        "isolation.level": "isolation",
        "auto.offset.reset": "start",
    }
    return f"it is the argument {arguments[name]}" if name in arguments else "what is exact depends on it"


def new_client(kind: Callable[[dict[str, Any]], R], servers: str, options: Options, own: Options) -> R:
    """A client of this kind. Raises `ConfigError` for settings that it refuses."""
    settings = {**OF_ALL, **options, **own, "bootstrap.servers": servers}
    try:
        return kind(settings)
    except library().KafkaException as error:
        text = error.args[0].str()
        for name, value in options.items():  # an invalid value is shown, and may be the password in the wrong place
            text = text.replace(f'"{value}"', "...") if f'"{name}"' in text and value else text
        raise ConfigError(f"Kafka at {servers}: the client refuses options: {text}") from None


def topics_of(servers: str, options: Options) -> dict[str, int]:
    """The topics of a server, each with its number of partitions. Raises `ConfigError` for a server that does not answer."""
    errors: list[Any] = []
    admin = _admin(servers, options, errors)
    try:
        found = admin.list_topics(timeout=PATIENCE)
    except library().KafkaException as error:
        admin.poll(0)
        raise ConfigError(_unreachable(servers, [*errors, error.args[0]])) from None
    return {name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None}


def _admin(servers: str, options: Options, errors: list[Any]) -> Any:
    from confluent_kafka.admin import AdminClient

    return new_client(AdminClient, servers, options, {"error_cb": errors.append})


def _unreachable(servers: str, errors: list[Any]) -> str:
    kinds = library().KafkaError
    settings = {
        kinds._AUTHENTICATION: f" ({LOGIN_OPTIONS})",
        kinds.SASL_AUTHENTICATION_FAILED: f" ({LOGIN_OPTIONS})",
        kinds._SSL: " (options security.protocol, ssl.ca.location)",
    }
    shown = next((one for one in errors if one.code() in settings), errors[0])
    hint = settings.get(shown.code(), " (argument servers, option security.protocol)")
    return f"Kafka at {servers} cannot be used: {shown.str()}{hint}"


def is_refused_login(error: Any, options: Options) -> bool:
    """True if an error of the client means a user name or a password that the server refuses. With tokens and tickets it
    may mean that the service that makes them is away."""
    kinds = library().KafkaError
    mechanism = str(options.get("sasl.mechanism", options.get("sasl.mechanisms", ""))).upper()
    named = mechanism.startswith(("PLAIN", "SCRAM"))
    return named and error.code() in (kinds._AUTHENTICATION, kinds.SASL_AUTHENTICATION_FAILED)


def check_topics(servers: str, options: Options, topics: list[str]) -> dict[str, int]:
    """The topics of a server. Raises `ConfigError` if it does not answer, or lacks one of these topics."""
    library()
    found = topics_of(servers, options)
    missing = [topic for topic in topics if topic not in found]
    if missing:
        raise ConfigError(
            f"Kafka at {servers} has no topic {' and no topic '.join(map(repr, missing))} that this user may see; "
            f"create it, with as many partitions as you want to read at the same time"
        )
    return found


def calls(servers: str, what: str, call: Callable[[], R]) -> R:
    """The result of a call of the client. Raises `KafkaUnreachable` where to try again may help, else `ConfigError`."""
    try:
        return call()
    except library().KafkaException as error:
        raise in_words(servers, what, error.args[0]) from error


def in_words(servers: str, what: str, error: Any) -> Exception:
    """An error of the client as one of ours."""
    text = f"Kafka at {servers}: {what}: {error.str()} ({error.name()})"
    return KafkaUnreachable(text) if error.retriable() or error.code() in _passing() else ConfigError(text)


def _passing() -> set[int]:
    """Codes of errors that pass by themselves, beside those that the client calls retriable."""
    kinds = library().KafkaError
    names = (
        "_TRANSPORT _ALL_BROKERS_DOWN _RESOLVE _TIMED_OUT _MSG_TIMED_OUT _WAIT_COORD _STATE _FENCED _FATAL _PURGE_QUEUE "
        "_PURGE_INFLIGHT _DESTROY _RETRY REQUEST_TIMED_OUT LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION "
        "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR CONCURRENT_TRANSACTIONS "
        "INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING PRODUCER_FENCED NOT_ENOUGH_REPLICAS UNKNOWN_PRODUCER_ID "
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND UNSTABLE_OFFSET_COMMIT KAFKA_STORAGE_ERROR BROKER_NOT_AVAILABLE INVALID_TXN_STATE "
        "OUT_OF_ORDER_SEQUENCE_NUMBER"
    )
    return {getattr(kinds, name) for name in names.split() if hasattr(kinds, name)}
