"""`tailrace checkpoint`: asks a running job of this user and machine for a checkpoint."""

from __future__ import annotations

import json

import typer

from tailrace.errors import ConfigError
from tailrace.runtime.control import ask, jobs


def take_checkpoint(job: str, timeout: float, as_json: bool) -> int:
    """Has the job of this name or id take a checkpoint, and prints where it is. Returns the exit code."""
    try:
        running = list(jobs())
    except ConfigError as error:
        typer.echo(f"tailrace checkpoint: {error}", err=True)
        return 2
    found = [
        (path, who) for path, who in running if who["name"] == job or (len(job) >= 4 and who["id"].startswith(job))
    ]
    if len(found) != 1:
        names = ", ".join(f"{who['name']} ({who['id'][:8]})" for _, who in running) or "none"
        what = f"several running jobs are called {job!r}; give the id of one" if found else f"no job {job!r} is running"
        typer.echo(f"tailrace checkpoint: {what}; running on this machine: {names}", err=True)
        return 2
    try:
        answer = ask(found[0][0], {"verb": "checkpoint"}, timeout)
    except TimeoutError:
        typer.echo(f"tailrace checkpoint: the job completed no checkpoint within {timeout:g} s (--timeout)", err=True)
        return 1
    if answer is None or "error" in answer:
        typer.echo(f"tailrace checkpoint: {'the job has ended' if answer is None else answer['error']}", err=True)
        return 1
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"checkpoint {answer['id']}: {answer['path']}")
        typer.echo(f"{answer['bytes']:,} bytes in {answer['duration'] * 1000:.0f} ms")
    return 0
