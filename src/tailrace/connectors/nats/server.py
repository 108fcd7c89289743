"""Connections to NATS, and what is checked before a job starts. The client is asynchronous: it runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from tailrace.errors import ConfigError, error_text
from tailrace.passwords import hide_passwords

T = TypeVar("T")
CONNECT_TIMEOUT = 5.0
REQUEST_TIMEOUT = 10.0
"""Seconds until a request without an answer has failed."""

NO_STREAM = 10059
"""Code of the server's error for a stream that does not exist."""


def check_servers(servers: Any, who: str) -> list[str]:
    """The URLs of servers of one cluster. Raises `ConfigError`."""
    found = [servers] if isinstance(servers, str) else list(servers) if isinstance(servers, Sequence) else []
    if not found or not all(isinstance(one, str) and "://" in one for one in found):
        raise ConfigError(
            f"{who}: servers is a URL such as nats://host:4222, or a list of them, not {hide_passwords(repr(servers))}"
        )
    return found


def client_module() -> Any:
    """The module `nats`. Raises `ConfigError` if it is not installed."""
    try:
        import nats
        import nats.js.errors
    except ImportError as error:
        raise ConfigError('the client of NATS is not installed: pip install "tailrace[nats]"') from error
    return nats


class NatsClient:
    """A connection, whose work is done in a thread of its own. It serves until it is lost: whoever needs it opens another
    one. The client's own way back would hold requests whose answers never come, each until its time is up."""

    def __init__(self, servers: Sequence[str], options: Mapping[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tailrace-nats", daemon=True)
        self._thread.start()
        self.refused: list[str] = []
        """Refused rights, of which the server sends no answer to the request."""
        self._lost = asyncio.Event()
        try:
            self.connection: Any = self._do(self._connect(servers, options), CONNECT_TIMEOUT + REQUEST_TIMEOUT)
        except BaseException:
            self._stop()
            raise
        self.jetstream: Any = self.connection.jetstream(timeout=REQUEST_TIMEOUT)

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = 3 * REQUEST_TIMEOUT) -> T:
        """The result of a coroutine, which the thread runs. Raises `ConnectionError` as soon as the connection is lost."""
        return self._do(self._unless_lost(work), timeout)

    def _do(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError as error:
            future.cancel()
            if str(error):
                raise
            raise TimeoutError("the server gives no answer") from None

    async def _unless_lost(self, work: Coroutine[Any, Any, T]) -> T:
        task, lost = asyncio.ensure_future(work), asyncio.ensure_future(self._lost.wait())
        try:
            if not self._lost.is_set():
                await asyncio.wait((task, lost), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ConnectionError("the connection to the server was lost")
            return task.result()
        finally:
            for one in (task, lost):
                one.cancel()
            await asyncio.gather(task, lost, return_exceptions=True)

    async def _connect(self, servers: Sequence[str], options: Mapping[str, Any]) -> Any:
        async def note(error: Exception) -> None:  # others are of the connection, or of requests
            if "permissions violation" in str(error).lower():
                self.refused[:] = [error_text(error)]

        async def note_loss() -> None:
            self._lost.set()

        # A connection is tried twice with each server: whoever needs it tries again in its own way.
        own = {"disconnected_cb": note_loss, "allow_reconnect": False, "max_reconnect_attempts": 1}
        connection = client_module().NATS()
        given = {"connect_timeout": CONNECT_TIMEOUT, "reconnect_time_wait": 0.2, "error_cb": note, **options, **own}
        await connection.connect(servers=list(servers), **given)
        self._lost.clear()  # a first try may have failed
        return connection

    def close(self) -> None:
        """Closes the connection and ends the thread."""
        with suppress(Exception):
            self._do(self.connection.close(), CONNECT_TIMEOUT)
        self._stop()

    def _stop(self) -> None:
        with suppress(Exception):
            self._do(_cancel_others(), CONNECT_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONNECT_TIMEOUT)
        if not self._loop.is_running():
            self._loop.close()


async def _cancel_others() -> None:
    """Ends what the client has left running in its loop."""
    others = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def refusing(servers: Sequence[str], what: str, client: NatsClient | None = None) -> Iterator[None]:
    """A context that makes `ConfigError` of errors of the server that would come again: a stream that does not exist, a
    login or a right that is refused."""
    nats = client_module()
    if client is not None:
        client.refused.clear()
    try:
        yield
    except (nats.errors.Error, OSError) as error:
        code = getattr(error, "err_code", None)
        missing = isinstance(error, nats.js.errors.NotFoundError) and code in (None, NO_STREAM)  # None: for a subject
        login = isinstance(error, nats.errors.AuthorizationError) or "authorization violation" in str(error).lower()
        why = " ".join(client.refused) if client is not None else ""
        if missing:
            why = "the server has no such stream"
        if not (missing or login or why):
            raise
        shown = hide_passwords(", ".join(servers))
        raise ConfigError(f"NATS at {shown}: {what}: {hide_passwords(why or error_text(error))}") from error


def ask(
    servers: Sequence[str], options: Mapping[str, Any], who: str, question: Callable[[Any], Coroutine[Any, Any, T]]
) -> T:
    """What a coroutine of a JetStream context returns. Raises `ConfigError` for a server that does not answer it."""
    nats = client_module()
    shown = hide_passwords(", ".join(servers))
    try:
        client = NatsClient(servers, options)
        try:
            return client.run(question(client.jetstream))
        finally:
            client.close()
    except nats.js.errors.NotFoundError as error:
        raise ConfigError(f"{who}: {shown} has no such stream ({error.description})") from error
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise ConfigError(f"{who}: {shown}: {hide_passwords(error_text(error))}") from error
