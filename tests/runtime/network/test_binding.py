"""Where a process listens: one address, others that dial another one, and ports for a firewall."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.errors import ConfigError
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.network.binding import ANY_PORT, Binding, ports_of
from tailrace.runtime.network.listener import Listener
from tailrace.spark.cluster.classic import Classic
from tailrace.spark.slots.worker_launch import SparkSlots
from tests.ports import free_ports

TOKEN = bytes(range(32))


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    found = EventLoop()
    yield found
    found.close()


def test_the_first_port_that_is_free_is_taken_and_the_last_is_the_limit() -> None:
    ports = free_ports(2)
    at = Binding("127.0.0.1", ports=ports)
    first, second = at.listen(), at.listen()
    try:
        assert [sock.getsockname()[1] for sock in (first, second)] == list(ports)
        with pytest.raises(OSError, match=f"ports {ports[0]}-{ports[1]} of 127.0.0.1 taken"):
            at.listen()
    finally:
        first.close()
        second.close()


def test_a_port_is_free_again_as_soon_as_its_listener_is_closed() -> None:
    at = Binding("127.0.0.1", ports=free_ports(1))
    with at.listen() as listening, socket.create_connection(listening.getsockname()) as client:
        accepted, _ = listening.accept()
        accepted.close()  # the end that closes first remembers the connection for a minute
        client.close()
    at.listen().close()


def test_what_is_bound_and_what_is_dialed_are_reported_apart(loop: EventLoop) -> None:
    """A container listens at its own addresses, and workers dial that of the machine it runs on."""
    for bound in ("127.0.0.1", "0.0.0.0"):
        listener = Listener(TOKEN, Binding(bound, "spark.example.org"), loop, lambda link: None)
        assert listener.address[0] == "spark.example.org" and listener.address[1] > 0
        listener.close()


@pytest.mark.parametrize(("bound", "dialed"), [("", ""), ("0.0.0.0", ""), ("::", ""), ("0.0.0.0", "0.0.0.0")])
def test_what_nobody_can_dial_is_no_place_to_listen(bound: str, dialed: str) -> None:
    with pytest.raises(ValueError, match="one address"):
        Binding(bound, dialed).listen()


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        (None, ANY_PORT), ("", ANY_PORT), ("40000", range(40000, 40001)), ("40000-40002", range(40000, 40003)),
        (" 1 - 2 ", range(1, 3)),
    ],
)  # fmt: skip
def test_ports_are_one_or_a_range_with_both_ends(text: str | None, ports: range) -> None:
    assert ports_of(text) == ports


@pytest.mark.parametrize("text", ["x", "-1", "0", "70000", "5-3", "1-2-3", "40000-", "40000:40010"])
def test_other_texts_are_no_ports(text: str) -> None:
    with pytest.raises(ValueError, match="port"):
        ports_of(text)


# The driver.


def slots_on(master: str, **conf: str) -> Any:
    """The slots of a session with these settings, `_` for the dot."""
    settings = {name.replace("_", "."): value for name, value in conf.items()}
    context = SimpleNamespace(master=master, _conf=settings)
    found = SparkSlots.__new__(SparkSlots)
    found.app = Classic(context)
    return found


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("TAILRACE_DRIVER_HOST", "TAILRACE_PORTS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("conf", "given", "at"),
    [
        ({"spark_driver_host": "127.0.0.1"}, None, Binding("127.0.0.1")),
        ({"spark_driver_host": "127.0.0.1", "spark_driver_bindAddress": "0.0.0.0"}, None, Binding("127.0.0.1")),
        (
            {"spark_driver_host": "192.0.2.1", "spark_driver_bindAddress": "0.0.0.0"},
            None,
            Binding("0.0.0.0", "192.0.2.1"),
        ),
        ({"spark_driver_host": "here", "spark_driver_bindAddress": "127.0.0.1"}, None, Binding("127.0.0.1", "here")),
        ({"spark_driver_host": "here"}, "127.0.0.1", Binding("127.0.0.1")),
        ({"spark_driver_host": "here", "spark_driver_bindAddress": "127.0.0.1"}, "gate", Binding("127.0.0.1", "gate")),
    ],
)
def test_a_driver_listens_where_its_settings_say(
    plain: pytest.MonkeyPatch, conf: dict[str, str], given: str | None, at: Binding
) -> None:
    """Spark's `bindAddress` is bound, its `host` is dialed, unless the variable names another one. All addresses of a
    machine are bound only where the one that is dialed is none of them."""
    if given is not None:
        plain.setenv("TAILRACE_DRIVER_HOST", given)
    assert slots_on("spark://there:7077", **conf).listen_at() == at


def test_in_local_mode_it_is_the_loopback_address(plain: pytest.MonkeyPatch) -> None:
    plain.setenv("TAILRACE_PORTS", "40000-40010")
    assert slots_on("local[2]").listen_at() == Binding("127.0.0.1", ports=range(40000, 40011))


def test_a_wrong_range_of_ports_is_a_wrong_setting(plain: pytest.MonkeyPatch) -> None:
    plain.setenv("TAILRACE_PORTS", "40010-40000")
    with pytest.raises(ConfigError, match="TAILRACE_PORTS: ports are from 1 to 65535, the smaller one first"):
        slots_on("local[2]").listen_at()
