"""The address of this process, at which workers reach it."""

from __future__ import annotations

from dataclasses import replace

from tailrace.errors import ConfigError
from tailrace.runtime.network.binding import Binding, is_everywhere, is_ours, ports_of
from tailrace.runtime.network.tls import choose
from tailrace.settings import SETTINGS
from tailrace.spark.cluster.application import Application


def listen_at(app: Application) -> Binding:
    """The address at which workers reach this process: the loopback address in local modes, else the address of Spark's
    driver. The address that is bound differs from it where Spark's driver binds another one. `TAILRACE_TLS` names the
    certificates that both ends show."""
    return replace(_address(app), tls=choose(SETTINGS["tls"].read()))


def allowed_ports() -> range:
    """The ports of `TAILRACE_PORTS`. Raises `ConfigError` where they cannot be read."""
    try:
        return ports_of(SETTINGS["ports"].read())
    except ValueError as error:
        raise ConfigError(f"{SETTINGS['ports'].variable}: {error}") from error


def _address(app: Application) -> Binding:
    ports = allowed_ports()
    setting = SETTINGS["driver_host"].read()
    if app.is_local:
        return Binding(setting or "127.0.0.1", ports=ports)
    host, bind = app.address(setting)
    if bind in ("", host) or (is_everywhere(bind) and is_ours(host)):
        return Binding(host, ports=ports)  # Spark may listen everywhere; a job does so only where it must
    return Binding(bind, host, ports)
