"""Commands that show what a running job does, and what holds it: `tailrace doctor`, `stacks` and `top`."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tailrace.cli.control import (
    SHOWN_WITHIN,
    CommandAnswer,
    JobArgument,
    JsonOption,
    answer_of,
    seconds_of,
    snapshot_of,
)
from tailrace.cli.keyboard import keys_pressed
from tailrace.cli.showing import echo, job_parts, last_failure, show
from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.passwords import hide_passwords

EXITS = {"good": 0, "warns": 1, "bad": 4}
"""Health -> the exit code of `tailrace doctor`; 2 is a wrong call, as everywhere."""
SAMPLED = ("busy", "skew")
"""Kinds of findings for which the keys that take most time are looked for."""
STACKS_WITHIN = 15.0
"""Seconds within which a job answers with the stacks of its workers."""

Timeout = Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for the answer.")]


def doctor_command(job: JobArgument, timeout: Timeout = STACKS_WITHIN, as_json: JsonOption = False) -> None:
    """Say in a sentence what holds a running job. The exit code is 0 if nothing does, 1 if it goes on, and 4 if not."""
    with CommandAnswer("doctor"):
        shot = _snapshot(job, timeout)
        if any(one.kind in SAMPLED for one in shot.findings):
            answer_of(job, {"verb": "keys"}, timeout, "has not answered")
            shot = _snapshot(job, timeout)
        if as_json:
            found = {"sentence": shot.sentence, "health": shot.health}
            echo(json.dumps({**found, "findings": msgspec.to_builtins(shot.findings)}))
        else:
            echo(_diagnosis(shot))
    raise typer.Exit(EXITS[shot.health])


def stacks_command(job: JobArgument, timeout: Timeout = STACKS_WITHIN, as_json: JsonOption = False) -> None:
    """Print the Python stacks of all workers of a running job. Also of a worker that does not come back from user code."""
    with CommandAnswer("stacks"):
        answer = answer_of(job, {"verb": "stacks"}, timeout, "has not answered")
        echo(json.dumps(answer) if as_json else "\n".join(map(_worker_text, answer["workers"])) or "no worker is there")


def top_command(
    job: JobArgument,
    every: Annotated[float, typer.Option(parser=seconds_of, help="Seconds from one look to the next.")] = 1.0,
    subtasks: Annotated[bool, typer.Option("--subtasks", help="A line for each subtask as well.")] = False,
) -> None:
    """Watch a running job in this terminal. The key q ends it. In a pipe it prints once."""
    with CommandAnswer("top"):
        shot = _snapshot(job, SHOWN_WITHIN, subtasks=subtasks)
        if not sys.stdout.isatty():
            show(*job_parts(shot))
            return
        console = Console(markup=False, emoji=False, highlight=False)
        with keys_pressed() as pressed, Live(_screen(shot), console=console, screen=True, auto_refresh=False) as live:
            due = time.monotonic()
            while "q" not in pressed(max(0.0, due - time.monotonic())):
                if time.monotonic() >= due:
                    due = time.monotonic() + max(0.1, every)
                    shot = _snapshot(shot.job.id, SHOWN_WITHIN, subtasks=subtasks)
                    live.update(_screen(shot), refresh=True)


def _snapshot(job: str, timeout: float, *, subtasks: bool = False) -> JobSnapshot:
    request = {"verb": "snapshot", "subtasks": subtasks}
    return snapshot_of(answer_of(job, request, timeout, "has not answered"))


def _diagnosis(shot: JobSnapshot) -> str:
    """The sentence, what belongs to it, and what else holds the job."""
    lines = [shot.sentence]
    for one in shot.findings[:1]:
        lines += [f"  {line}" for line in one.details.rstrip().splitlines()]
    lines += [f"also: {one.text}" for one in shot.findings[1:]]
    return "\n".join([*lines, *last_failure(shot)])


def _worker_text(worker: dict[str, Any]) -> str:
    """The stacks of a worker's threads."""
    who = (
        f"{'standby' if worker['standby'] else 'worker'} {worker['worker']}, {worker['host']}, process {worker['pid']}"
    )
    lines = [who if not worker["problem"] else f"{who}: {worker['problem']}"]
    for one in worker["threads"]:
        operator = "" if one["operator"] is None else f", in operator {one['operator']!r}"
        stack = one["stack"].rstrip("\n") or "  it waits for messages, or for time"
        lines += [f"thread {one['thread']}{operator}", stack]
    return "\n".join([*lines, ""])


def _screen(shot: JobSnapshot) -> Group:
    parts = [Text(hide_passwords(one)) if isinstance(one, str) else one for one in job_parts(shot)]
    return Group(*(line for part in parts for line in (part, Text())))
