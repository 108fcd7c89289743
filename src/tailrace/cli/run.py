"""`tailrace run`: the options of a script or a function that is run, as the settings of its jobs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tailrace.cli.commands import options_behind
from tailrace.cli.run_file import ExitOutcome, run_file
from tailrace.errors import ConfigError
from tailrace.settings import SETTINGS
from tailrace.spark.cluster.defaults import DEFAULTS, checked_master


def _option(name: str, **more: Any) -> Any:
    """The option of a setting, as typer takes it."""
    one = SETTINGS[name]
    flag, _, metavar = one.option.partition(" ")

    def check(value: Any) -> Any:
        if value is not None and one.choices and value not in one.choices:
            raise typer.BadParameter(f"expected {', '.join(one.choices)}, got {value!r}")
        return value

    flags = f"--{flag.removeprefix('--no-')}/{flag}" if flag.startswith("--no-") else flag
    return typer.Option(flags, metavar=metavar or None, help=one.help, callback=check, **more)


def run_command(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE.py[:function]", help="A script, or a function in it that builds a dataflow.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script or function.")
    ] = None,
    master: Annotated[str | None, _option("master")] = None,
    parallelism: Annotated[str | None, _option("parallelism")] = None,
    autoscale: Annotated[bool, _option("autoscale")] = False,
    conf: Annotated[list[str] | None, _option("conf")] = None,
    ship: Annotated[bool, _option("ship")] = False,
    progress: Annotated[bool, _option("progress")] = True,
    start: Annotated[str | None, _option("from_checkpoint")] = None,
    if_finished: Annotated[str | None, _option("if_finished")] = None,
    allow_dropped_state: Annotated[bool, _option("allow_dropped_state")] = False,
    dry_run: Annotated[bool, _option("dry_run")] = False,
    checkpoint_dir: Annotated[str | None, _option("checkpoint_dir")] = None,
    checkpoint_interval: Annotated[float | None, _option("checkpoint_interval", min=0)] = None,
    mode: Annotated[str | None, _option("mode")] = None,
    alignment_timeout: Annotated[str | None, _option("alignment_timeout")] = None,
    max_inflight_bytes: Annotated[int | None, _option("max_inflight_bytes", min=0)] = None,
    standby: Annotated[int | None, _option("standby", min=0)] = None,
    on_signal: Annotated[str | None, _option("on_signal")] = None,
    work_dir: Annotated[str | None, _option("work_dir")] = None,
    ui: Annotated[bool, _option("ui")] = False,
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
    if dry_run and start is None:
        raise typer.BadParameter("a dry run needs --from, the checkpoint to look at", param_hint="--dry-run")
    settings = dict(_setting(one) for one in conf or [])
    DEFAULTS.ship = ship
    DEFAULTS.from_checkpoint, DEFAULTS.allow_dropped_state = start, allow_dropped_state
    DEFAULTS.by_command, DEFAULTS.if_finished = True, "raise" if if_finished is None else "start-again"
    DEFAULTS.dry_run, DEFAULTS.on_signal = dry_run, on_signal
    DEFAULTS.checkpoint_dir, DEFAULTS.checkpoint_interval, DEFAULTS.mode = checkpoint_dir, checkpoint_interval, mode
    DEFAULTS.alignment_timeout, DEFAULTS.max_inflight_bytes = alignment_timeout, max_inflight_bytes
    DEFAULTS.work_dir, DEFAULTS.standby, DEFAULTS.ui = work_dir, standby, ui or None
    DEFAULTS.parallelism, DEFAULTS.autoscale = parallelism, autoscale
    try:
        DEFAULTS.default_parallelism()
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
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
