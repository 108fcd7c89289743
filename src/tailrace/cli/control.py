"""Commands to running jobs of this user on this machine, from another terminal. Each goes through the door of its job."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from tailrace.cli.showing import FittingTable, echo, job_parts, show
from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.elements.byte_texts import size_text
from tailrace.elements.durations import span_seconds
from tailrace.errors import ConfigError
from tailrace.runtime.driver.control import is_called, jobs, query
from tailrace.storage.opening import absolute

SHOWN_WITHIN = 5.0
"""Seconds within which a job answers `show`."""

JobArgument = Annotated[str, typer.Argument(help="The name of a running job, or the beginning of its id.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
UnalignedOption = Annotated[
    bool, typer.Option("--unaligned", help="Do not wait for records in flight: the savepoint holds them.")
]


class Refused(Exception):
    """The failure of a command: the reason, and the exit code."""

    def __init__(self, why: str, code: int = 1) -> None:
        super().__init__(why)
        self.code = code


def seconds_of(text: str | float) -> float:
    """Seconds to wait, from a number or a text such as `5m`."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return span_seconds(text)
    except (TypeError, OverflowError) as error:
        raise typer.BadParameter(str(error)) from None


def list_command(as_json: JsonOption = False) -> None:
    """List your running jobs on this machine."""
    with CommandAnswer("list"):
        found = [who for _, who in _running()]
        if as_json:
            echo(json.dumps(found))
        elif found:
            show(FittingTable([["name", "id", "status", "process"], *map(_row, found)]))
        else:
            echo("no job of yours is running on this machine")


def show_command(
    job: JobArgument,
    timeout: Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for the answer.")] = SHOWN_WITHIN,
    subtasks: Annotated[bool, typer.Option("--subtasks", help="A line for each subtask as well.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how a running job goes. Its progress, last checkpoint and operators, and where its slices run."""
    with CommandAnswer("show"):
        shown = answer_of(job, {"verb": "snapshot", "subtasks": subtasks}, timeout, "has not answered")
        if as_json:
            echo(msgspec.json.encode(shown).decode())  # null for what is no finite number
        else:
            show(*job_parts(snapshot_of(shown)))


def checkpoint_command(
    job: JobArgument,
    timeout: Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for the checkpoint.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Take a checkpoint of a running job of yours on this machine."""
    with CommandAnswer("checkpoint"):
        made = answer_of(job, {"verb": "checkpoint"}, timeout, "completed no checkpoint")
        echo(json.dumps(made) if as_json else _summary("checkpoint", made))


def savepoint_command(
    job: JobArgument,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]", help="The folder to make, a path or URL; the usual place where none is given."
        ),
    ] = None,
    unaligned: UnalignedOption = False,
    timeout: Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for the savepoint.")] = 3600.0,
    as_json: JsonOption = False,
) -> None:
    """Take a savepoint of a running job. It is a whole checkpoint in a folder of its own that no job deletes."""
    with CommandAnswer("savepoint"):
        request = {"verb": "savepoint", "path": absolute(path) if path else "", "unaligned": unaligned}
        made = answer_of(job, request, timeout, "completed no savepoint")
        echo(json.dumps(made) if as_json else _summary("savepoint", made))


def stop_command(
    job: JobArgument,
    drain: Annotated[
        bool, typer.Option("--drain", help="End the sources instead, and come to the end as if the input had.")
    ] = False,
    savepoint: Annotated[
        str | None,
        typer.Option(
            metavar="[PATH]", help="End with a savepoint: in this folder, or in the usual place where none is given."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for the end of the job.")] = 3600.0,
    as_json: JsonOption = False,
) -> None:
    """Stop a running job in order. Its last act is a checkpoint, and a start from it goes on where it stood."""
    with CommandAnswer("stop"):
        place = absolute(savepoint) if savepoint else savepoint
        request = {"verb": "stop", "drain": drain, "savepoint": place}
        ended = answer_of(job, request, timeout, "has not ended", "; it goes on stopping, and `cancel` ends it at once")
        if ended["status"] != "FINISHED":
            raise Refused(f"the job did not stop in order: it is {ended['status']}")
        if as_json:
            echo(json.dumps(ended))
            return
        what = "savepoint" if savepoint is not None else "checkpoint"
        echo(_summary(what, ended) if "path" in ended else "no checkpoint is left: the job retains none")
        echo(f"job {job!r} has stopped")


def rescale_command(
    job: JobArgument,
    size: Annotated[
        list[str],
        typer.Argument(metavar="N | UID=N ...", help="The parallelism; or that of some operators, by their uids."),
    ],
    timeout: Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for the new size.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Change the size of a running job. It goes on where it stands, with more workers or fewer."""
    with CommandAnswer("rescale"):
        request = {"verb": "rescale", "size": _size(size)}
        made = answer_of(job, request, timeout, "has not another size", "; it may have it later")
        echo(
            json.dumps(made)
            if as_json
            else f"job {job!r} runs with {made['workers']} worker{'s' * (made['workers'] != 1)}"
        )


def _size(given: list[str]) -> int | dict[str, int]:
    """A size from the words of a command. Raises `Refused`."""
    try:
        if len(given) == 1 and "=" not in given[0]:
            return int(given[0])
        return {uid: int(count) for uid, _, count in (word.rpartition("=") for word in given)}
    except ValueError:
        raise Refused(f"expected a number, or UID=NUMBER for some operators, not {' '.join(given)!r}", 2) from None


def cancel_command(
    job: JobArgument,
    savepoint: Annotated[
        str | None,
        typer.Option(
            metavar="[PATH]", help="Take a savepoint first: in this folder, or in the usual place where none is given."
        ),
    ] = None,
    unaligned: UnalignedOption = False,
    timeout: Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for the end of the job.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """End a running job at once. Nothing more becomes visible; its complete checkpoints stay."""
    with CommandAnswer("cancel"):
        if savepoint is not None:
            place = savepoint and absolute(savepoint)
            request = {"verb": "savepoint", "path": place, "unaligned": unaligned, "cancels": True}
            made = answer_of(job, request, timeout, "completed no savepoint", "; it is cancelled once that is there")
            echo(json.dumps(made) if as_json else f"{_summary('savepoint', made)}\njob {job!r} is cancelled")
            return
        if unaligned:
            raise Refused("--unaligned is for a savepoint: give --savepoint, or leave it out", 2)
        ended = answer_of(job, {"verb": "cancel"}, timeout, "was requested to end, and has not ended")
        echo(json.dumps(ended) if as_json else f"job {job!r} is {ended['status']}")


class WithBareSavepoint(TyperCommand):
    """A command whose option `--savepoint` may have no value: the savepoint then goes to the usual place."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        whole: list[str] = []
        for at, arg in enumerate(args):
            whole.append(arg)
            if arg == "--savepoint" and (at + 1 == len(args) or args[at + 1].startswith("-")):
                whole.append("")
        return super().parse_args(ctx, whole)


class CommandAnswer:
    """A context that prints on stderr why a command failed."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refused | ConfigError):
            echo(f"tailrace {self._command}: {error}", err=True)
            raise typer.Exit(error.code if isinstance(error, Refused) else 2) from None


def _running() -> list[tuple[str, dict[str, Any]]]:
    return sorted(jobs(), key=lambda found: (found[1]["name"], found[1]["id"]))


def answer_of(job: str, request: dict[str, Any], timeout: float, late: str, then: str = "") -> dict[str, Any]:
    """The answer of the job with this name or id. `late`: what the job has not done in time; `then`: what that means for
    the user."""
    deadline = time.monotonic() + timeout
    path = _door_of(job)
    try:
        answer = query(path, request, max(0.001, deadline - time.monotonic()))
    except TimeoutError:
        raise Refused(f"the job {late} within {timeout:g} s (--timeout){then}") from None
    except (OSError, ValueError) as error:
        raise Refused(f"the job cannot be reached: {error}") from None
    if answer is None:
        raise Refused("the job has ended")
    if "error" in answer:
        raise Refused(answer["error"])
    return answer


def snapshot_of(answer: dict[str, Any]) -> JobSnapshot:
    """The snapshot in the answer of a job."""
    try:
        return msgspec.convert(answer, JobSnapshot)
    except msgspec.ValidationError as error:
        raise Refused(f"the job runs with another version of Tailrace: {error}") from None


def _door_of(job: str) -> str:
    running = _running()
    found = [path for path, who in running if is_called(who, job)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{who['name']} ({who['id'][:8]})" for _, who in running) or "none"
    what = f"several running jobs are called {job!r}; give the id of one" if found else f"no job {job!r} is running"
    raise Refused(f"{what}; running on this machine: {names}", 2)


def _summary(what: str, made: dict[str, Any]) -> str:
    return f"{what} {made['id']}: {made['path']}\n{size_text(made['bytes'])} in {made['duration'] * 1000:.0f} ms"


def _row(who: dict[str, Any]) -> list[str]:
    return [who["name"], who["id"][:8], who["status"], str(who["pid"])]
