"""`tailrace ui`: the page of the running jobs of this user on this machine."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from tailrace.cli.showing import echo
from tailrace.errors import ConfigError
from tailrace.settings import SETTINGS


def ui_command(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", help="Names or ids of jobs; all where none is given.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port; the first free one from 4140 on.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name under which a proxy shows the page; may be repeated."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Give no orders to jobs.")] = False,
) -> None:
    """Show your running jobs on this machine in a browser. It goes on until Ctrl-C."""
    from tailrace.runtime.network.tls import for_browsers
    from tailrace.ui.guard import LOOPBACK, Guard, host_names
    from tailrace.ui.jobs import MachineJobs
    from tailrace.ui.server import PageServer

    try:
        names = host_names([*(allow_host or ()), SETTINGS["ui_hosts"].read() or ""])
        if host not in LOOPBACK and not names:
            raise ConfigError(
                f"--host {host} lets other machines in: name those under which they reach this one (--allow-host NAME)"
            )
        guard = Guard(names, read_only or bool(SETTINGS["ui_read_only"].read()))
        tls = for_browsers(SETTINGS["tls"].read())
        server = PageServer(MachineJobs(jobs or ()), guard, host=host, port=port, tls=tls)
    except ConfigError as error:
        echo(f"tailrace ui: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"the page of jobs is at {server.link()}")
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: over.set())
    try:
        while not over.wait(3600.0):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
