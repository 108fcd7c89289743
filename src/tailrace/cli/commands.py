"""The choice of a command of `tailrace`: hints for a name that is none, and for options in the wrong place."""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from tailrace.spelling import closest

_MEANT = {
    "start": "run",
    "submit": "run",
    "ps": "list",
    "ls": "list",
    "htop": "top",
    "diagnose": "doctor",
    "jstack": "stacks",
    "py-spy": "stacks",
    "jobs": "list",
    "status": "show",
    "info": "show",
    "kill": "cancel",
    "watch": "supervise",
    "restart": "supervise",
}


class Commands(TyperGroup):
    """The commands, with a hint where the user names one that does not exist."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names. `tailrace help` is `tailrace --help`."""
        name = args[0]
        if name == "help" and self.get_command(ctx, name) is None:
            args = [*args[1:2], "--help"]
            if len(args) == 1:
                typer.echo(ctx.get_help())
                ctx.exit()
            name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}.{_hint(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def _hint(name: str, commands: list[str]) -> str:
    if name.partition(":")[0].endswith(".py") or os.path.isfile(name):
        return f" To run a script: tailrace run {name}"
    meant = _MEANT.get(name) or closest(name, commands)
    return "" if meant is None else f" Did you mean {meant}?"


def options_behind(args: list[str], ours: list[str]) -> list[str]:
    """Options of `tailrace run` among the arguments of a script: an option behind the script belongs to the script."""
    return sorted({one.partition("=")[0] for one in args} & set(ours))
