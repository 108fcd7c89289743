"""TLS and SASL settings reach the client, and no text shows a secret. The server is a listener that shakes hands only."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tailrace as tr
from tailrace.api.connectors import AssignedSplit
from tailrace.connectors.kafka import client, enumerator, transactions
from tailrace.connectors.kafka.enumerator import PartitionSplit
from tailrace.connectors.transactional import Scope
from tailrace.errors import ConfigError
from tailrace.runtime.network import tls
from tests.connectors.kafka.test_reader import Place, read_until

SECRET = "hunter-of-secrets"
VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
"""Keys of requests."""
UNSUPPORTED_VERSION, REFUSED = 35, 58


class Doorkeeper:
    """A server that asks for a user name and a password, notes them, and refuses them."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self.logins: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as requests:
                while size := requests.read(4):
                    request = requests.read(struct.unpack(">i", size)[0])
                    answer = request[4:8] + self._answer(*struct.unpack(">hh", request[:4]), request)
                    connection.sendall(struct.pack(">i", len(answer)) + answer)
        except OSError:
            pass  # the client has gone, or does not trust the certificate

    def _answer(self, key: int, version: int, request: bytes) -> bytes:
        if key == VERSIONS:
            known = b"".join(struct.pack(">hhh", one, 0, 1) for one in (VERSIONS, HANDSHAKE, AUTHENTICATE))
            return struct.pack(">hi", UNSUPPORTED_VERSION if version else 0, 3) + known
        if key == HANDSHAKE:
            return struct.pack(">hih", 0, 1, 5) + b"PLAIN"
        assert key == AUTHENTICATE
        self.logins.append(request[-len(f"\0me\0{SECRET}") :])
        return struct.pack(">hh", REFUSED, 7) + b"no such" + struct.pack(">iq", 0, 0)

    def close(self) -> None:
        self._listener.close()


class Door(NamedTuple):
    """A server, and the settings of clients that reach it."""

    keeper: Doorkeeper
    options: dict[str, Any]


@pytest.fixture(params=["SASL_PLAINTEXT", "SASL_SSL"])
def door(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    for module in (client, transactions, enumerator):
        monkeypatch.setattr(module, "PATIENCE", 1.0)
    options = {"security.protocol": request.param, "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    context = None
    if request.param == "SASL_SSL":
        certificate, key, authority = tls.make().texts()
        for name, text in (("certificate", certificate), ("key", key), ("authority", authority)):
            (tmp_path / name).write_text(text)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
        options |= {"ssl.ca.location": str(tmp_path / "authority"), "ssl.endpoint.identification.algorithm": "none"}
    keeper = Doorkeeper(context)
    yield Door(keeper, {**options, "sasl.password": SECRET})
    keeper.close()


def by_source(door: Door) -> Any:
    tr.sources.Kafka(door.keeper.address, "t", options=door.options).check()


def by_sink(door: Door) -> Any:
    tr.sinks.Kafka(door.keeper.address, "t", options=door.options).check()


def by_transaction(door: Door) -> Any:
    tr.sinks.Kafka(door.keeper.address, "t", options=door.options).transaction(Scope("run", "out", 0))


@pytest.mark.parametrize("use", [by_source, by_sink, by_transaction])
def test_a_login_reaches_the_server_and_is_shown_by_nothing(
    door: Door, use: Callable[[Door], Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError, match=r"sasl\.password") as refused:
        use(door)
    assert set(door.keeper.logins) == {f"\0me\0{SECRET}".encode()}
    assert door.keeper.address in str(refused.value)
    printed = capfd.readouterr()
    assert SECRET not in f"{refused.value!r}{refused.value}{caplog.text}{printed.out}{printed.err}"


def test_the_consumer_of_a_reader_logs_in(door: Door, capfd: pytest.CaptureFixture[str]) -> None:
    reader = tr.sources.Kafka(door.keeper.address, "t", options=door.options).split_reader(Place())
    reader.assign([AssignedSplit(0, PartitionSplit("t", 0, 0, None))])
    read_until(reader, lambda *_: bool(door.keeper.logins))
    reader.close()
    assert set(door.keeper.logins) == {f"\0me\0{SECRET}".encode()}
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err


def test_a_server_whose_certificate_is_not_trusted_is_an_error_with_the_setting(door: Door) -> None:
    if door.options["security.protocol"] == "SASL_SSL":
        del door.options["ssl.ca.location"]
        with pytest.raises(ConfigError, match=r"certificate verify failed.*ssl\.ca\.location"):
            by_source(door)
        assert door.keeper.logins == []
