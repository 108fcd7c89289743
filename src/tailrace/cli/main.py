"""The `tailrace` command. Exit codes: 0 finished, 1 failed, 2 usage, 130 cancelled."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tailrace import __version__
from tailrace.cli.checkpoint import take_checkpoint
from tailrace.cli.inspect import inspect_command
from tailrace.cli.run import Outcome, run_file
from tailrace.spark.defaults import DEFAULTS

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """The entry point of the console script."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


app.command("inspect")(inspect_command)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stateful streaming dataflows on Spark."""


@app.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
def run(
    file: Annotated[
        str, typer.Argument(metavar="FILE.py[:function]", help="A script, or a function of it that takes env.")
    ],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments for it.")] = None,
    master: Annotated[str | None, typer.Option(help="Spark master, such as local[4].")] = None,
    parallelism: Annotated[
        int | None, typer.Option(min=1, help="Parallelism of operators that are given none.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show a progress line.")] = True,
    start: Annotated[
        str | None, typer.Option("--from", metavar="PATH", help="A checkpoint to go on from, or latest.")
    ] = None,
    allow_dropped_state: Annotated[
        bool, typer.Option("--allow-dropped-state", help="With --from: leave behind state that does not fit any more.")
    ] = False,
    checkpoint_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Take checkpoints into this folder or URL.")
    ] = None,
    checkpoint_interval: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Between checkpoints; 0: only on request.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="Of checkpoints: aligned.")] = None,
) -> None:
    """Run a dataflow to its end."""
    settings = dict(_setting(one) for one in conf or [])
    DEFAULTS.from_checkpoint, DEFAULTS.allow_dropped_state = start, allow_dropped_state
    DEFAULTS.checkpoint_dir, DEFAULTS.checkpoint_interval, DEFAULTS.mode = checkpoint_dir, checkpoint_interval, mode
    outcome = run_file(file, args or [], master=master, parallelism=parallelism, conf=settings, progress=progress)
    if outcome is Outcome.USAGE:
        raise typer.Exit(2)
    sys.stdout.flush()
    raise typer.Exit(outcome.value)


@app.command()
def checkpoint(
    job: Annotated[str, typer.Argument(help="The name of a running job, or the beginning of its id.")],
    timeout: Annotated[float, typer.Option(help="How many seconds to wait for it.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Take a checkpoint of a running job of yours on this machine."""
    raise typer.Exit(take_checkpoint(job, timeout, as_json))


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint="--conf")
    return key, value
