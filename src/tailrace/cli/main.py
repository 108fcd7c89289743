"""The `tailrace` command. Exit codes: 0 finished, 1 failed, 2 usage, 3 taken over by a newer start, 130 cancelled."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace import __version__
from tailrace.cli import control
from tailrace.cli.commands import Commands
from tailrace.cli.debug import debug_command
from tailrace.cli.inspect import inspect_command
from tailrace.cli.prune import prune_command
from tailrace.cli.run import run_command
from tailrace.cli.supervise import supervise_command
from tailrace.cli.ui import ui_command
from tailrace.cli.watching import doctor_command, stacks_command, top_command

# Plain help: boxes cut the names of options on a terminal of 80 columns.
app = typer.Typer(
    cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


app.command("list")(control.list_command)
app.command("show")(control.show_command)
app.command("doctor")(doctor_command)
app.command("top")(top_command)
app.command("stacks")(stacks_command)
app.command("checkpoint")(control.checkpoint_command)
app.command("savepoint")(control.savepoint_command)
app.command("stop", cls=control.WithBareSavepoint)(control.stop_command)
app.command("rescale")(control.rescale_command)
app.command("cancel", cls=control.WithBareSavepoint)(control.cancel_command)
app.command("ui")(ui_command)
app.command("inspect")(inspect_command)
app.command("debug")(debug_command)
app.command("prune")(prune_command)
app.command("supervise", context_settings={"allow_interspersed_args": False})(supervise_command)
app.command("run", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})(run_command)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stateful streaming dataflows on Spark."""
