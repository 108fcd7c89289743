"""The `tailrace` command. Exit codes: 0 finished, 1 failed, 2 usage, 130 cancelled."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tailrace import __version__
from tailrace.api.config import MODES
from tailrace.cli import control
from tailrace.cli.commands import Commands, options_behind
from tailrace.cli.inspect import inspect_command
from tailrace.cli.prune import prune_command
from tailrace.cli.run import ExitOutcome, run_file
from tailrace.errors import ConfigError
from tailrace.spark.cluster.defaults import DEFAULTS, checked_master

# Plain help: boxes cut the names of options on a terminal of 80 columns.
app = typer.Typer(
    cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


app.command("list")(control.list_command)
app.command("show")(control.show_command)
app.command("checkpoint")(control.checkpoint_command)
app.command("savepoint")(control.savepoint_command)
app.command("stop", cls=control.WithBareSavepoint)(control.stop_command)
app.command("cancel")(control.cancel_command)
app.command("inspect")(inspect_command)
app.command("prune")(prune_command)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stateful streaming dataflows on Spark."""


@app.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
def run(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE.py[:function]", help="A script, or a function in it that builds a dataflow.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script or function.")
    ] = None,
    master: Annotated[str | None, typer.Option(help="Spark master, such as local[4].")] = None,
    parallelism: Annotated[
        int | None, typer.Option(min=1, help="Parallelism of operators that do not state theirs.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
    ] = None,
    ship: Annotated[
        bool,
        typer.Option("--ship", help="Ship tailrace and your imported modules to the executors, which may lack them."),
    ] = False,
    progress: Annotated[bool, typer.Option(help="Show a progress line.")] = True,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PATH", help="The checkpoint to start from: its path, latest, or latest-or-new."
        ),
    ] = None,
    if_finished: Annotated[
        str | None,
        typer.Option(
            metavar="start-again", help="With --from latest: run a job that has come to its end from the beginning."
        ),
    ] = None,
    allow_dropped_state: Annotated[
        bool, typer.Option("--allow-dropped-state", help="With --from: drop state that no longer fits.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="With --from: say what of the checkpoint fits the first job, and start nothing."
        ),
    ] = False,
    checkpoint_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Take checkpoints into this folder or URL.")
    ] = None,
    checkpoint_interval: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Time between checkpoints (default: 1); 0: only on request."),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="The mode of checkpoints: aligned, unaligned or unaligned-max-inflight.")
    ] = None,
    standby: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Replace lost workers alone; N processes per four workers stand by."),
    ] = None,
    on_signal: Annotated[
        str | None,
        typer.Option(metavar="stop|cancel", help="What SIGINT and SIGTERM do to jobs (default: cancel). Twice kills."),
    ] = None,
    work_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Send DataFrames and results through this folder or URL.")
    ] = None,
) -> None:
    """Run a script, or a function in it, and wait for its jobs."""
    try:
        master = None if master is None else checked_master(master, "--master")
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    misplaced = options_behind(args or [], [name for one in ctx.command.params for name in one.opts])
    if misplaced:
        typer.echo(
            f"tailrace run: {', '.join(misplaced)} is an argument of {file}, since it stands behind it; an option of "
            f"tailrace run stands before the script",
            err=True,
        )
    if mode is not None and mode not in MODES:
        raise typer.BadParameter(f"expected {', '.join(MODES)}, got {mode!r}", param_hint="--mode")
    if dry_run and start is None:
        raise typer.BadParameter("a dry run needs --from, the checkpoint to look at", param_hint="--dry-run")
    if on_signal not in (None, "stop", "cancel"):
        raise typer.BadParameter(f"expected stop or cancel, got {on_signal!r}", param_hint="--on-signal")
    if if_finished not in (None, "start-again"):
        raise typer.BadParameter(f"expected start-again, got {if_finished!r}", param_hint="--if-finished")
    settings = dict(_setting(one) for one in conf or [])
    DEFAULTS.ship = ship
    DEFAULTS.from_checkpoint, DEFAULTS.allow_dropped_state = start, allow_dropped_state
    DEFAULTS.by_command, DEFAULTS.if_finished = True, "raise" if if_finished is None else "start-again"
    DEFAULTS.dry_run, DEFAULTS.on_signal = dry_run, on_signal
    DEFAULTS.checkpoint_dir, DEFAULTS.checkpoint_interval, DEFAULTS.mode = checkpoint_dir, checkpoint_interval, mode
    DEFAULTS.work_dir, DEFAULTS.standby = work_dir, standby
    outcome = run_file(file, args or [], master=master, parallelism=parallelism, conf=settings, progress=progress)
    if outcome is ExitOutcome.USAGE:
        raise typer.Exit(2)
    sys.stdout.flush()
    raise typer.Exit(outcome.value)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint="--conf")
    return key, value
