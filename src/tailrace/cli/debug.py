"""`tailrace debug CAPSULE`: makes a failed call of user code again, under pdb, or writes it as a test."""

from __future__ import annotations

import linecache
import os
import pdb
import re
import sysconfig
from bdb import BdbQuit
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated

import typer

from tailrace.cli.showing import echo
from tailrace.elements.timestamps import MIN_TIME, NO_TIME
from tailrace.errors import OWN_FOLDER, TailraceError, UserCodeError, short_repr
from tailrace.runtime.capsules.rerun import CapsuleHarness, read_capsule, same_error
from tailrace.task.contract.capsule import Capsule, encode_capsule
from tailrace.task.contract.usercode import FUSED, raised_text

_STDLIB = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))


def debug_command(
    capsule: Annotated[
        str, typer.Argument(metavar="CAPSULE", help="The capsule of a failed call: the error of the job names it.")
    ],
    as_test: Annotated[
        bool, typer.Option("--as-test", help="Write the call as a test, with the capsule beside it.")
    ] = False,
    into: Annotated[str, typer.Option(metavar="DIR", help="With --as-test: the folder of the test.")] = ".",
    run: Annotated[bool, typer.Option("--run", help="Make the call without a debugger.")] = False,
) -> None:
    """Make a failed call of user code again, under pdb. It has the state and the code that it had in the job."""
    try:
        found = read_capsule(capsule)
        if as_test:
            for path in write_test(found, Path(into)):
                echo(str(path))
            return
        echo(description(found))
        again = CapsuleHarness(found, current=False)
        echo("\n".join(f"state {name} = {short_repr(value)}" for name, value in again.state.items()) or "no state")
        _restore_sources(found)
        ended = _made_again(again, debugger=not run)
    except TailraceError as error:
        echo(f"tailrace debug: {error}", err=True)
        raise typer.Exit(1) from None
    echo(ended)
    raise typer.Exit(0 if ended.startswith("the call failed as in the job") else 1)


def description(capsule: Capsule) -> str:
    """A capsule as text for a terminal."""
    lines = [
        f"job {capsule.job!r}, operator {capsule.operator!r}, subtask {capsule.subtask}: {capsule.error}",
        *([f"record {capsule.record}"] if capsule.record else []),
        *([f"key {capsule.key}"] if capsule.key else []),
        *([f"timestamp {capsule.time / 1e6}"] if capsule.time != NO_TIME and capsule.timer is None else []),
        *([f"timer at {capsule.timer / 1e6}, {capsule.domain} time"] if capsule.timer is not None else []),
        *([f"watermark {capsule.watermark / 1e6}"] if capsule.watermark != MIN_TIME else []),
        *([capsule.written] if capsule.written else []),
    ]
    for frame in capsule.frames:
        lines.append(f"  {frame.file}:{frame.line}, in {frame.function}")
        lines += [f"    {name} = {value}" for name, value in frame.locals]
    return "\n".join([*lines, *(f"note: {gap}" for gap in capsule.gaps)])


class _UserPdb(pdb.Pdb):
    """A debugger that stops in code of the user only."""

    def stop_here(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        ours = file.startswith((OWN_FOLDER, *_STDLIB)) and "site-packages" not in file
        return not (ours or file == FUSED or file.startswith("<frozen")) and super().stop_here(frame)


def _made_again(again: CapsuleHarness, debugger: bool) -> str:
    """Makes the call, and returns a sentence on how it has ended."""
    try:
        again.open()
        if debugger:
            _UserPdb(nosigint=True).runcall(again.call)
        else:
            again.call()
    except BdbQuit:
        return "the debugger was left before the call ended"
    except UserCodeError as error:
        cause = error.__cause__ if error.__cause__ is not None else error
        if isinstance(cause, BdbQuit):
            return "the debugger was left before the call ended"
        if debugger:
            echo(f"{raised_text(cause)}; this is the frame that raised it")
            again.hold_key()
            _look_at(cause.__traceback__)
        else:
            echo(str(error))
        if same_error(error, again.capsule):
            return f"the call failed as in the job: {again.capsule.error}"
        return f"the call failed otherwise than in the job ({again.capsule.error}): {raised_text(cause)}"
    return f"the call did not fail this time; it gave {short_repr(again.outputs)}"


def _look_at(trace: TracebackType | None) -> None:
    """Lets the user look at the frame that has raised an error."""
    if trace is not None:
        after = _UserPdb(nosigint=True)
        after.reset()
        after.interaction(None, trace)


def _restore_sources(capsule: Capsule) -> None:
    """Shows code as it was, where its files are gone or have changed."""
    for file, text in capsule.sources.items():
        if "".join(linecache.getlines(file)) != text:
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


_TEST = '''"""A call that has failed in job {job}: operator {operator}.

Written by `tailrace debug --as-test`. The call has the record, the key and the state that it had in the job. The code is the
program's of today: the test passes when the call does not fail.
"""

from pathlib import Path

import tailrace as tr

CAPSULE = Path(__file__).with_name({capsule!r})


def test_{name}() -> None:
    # {error}
    # record: {record}
    # key: {key}
    harness = tr.testing.harness(tr.testing.read_capsule(CAPSULE))
    harness.rerun()
'''


def write_test(capsule: Capsule, folder: Path) -> list[Path]:
    """Writes a test of a failed call, and its capsule beside it. Returns the two files. An existing file is not
    replaced."""
    name = re.sub(r"\W+", "_", capsule.operator).strip("_").lower() or "call"
    stem = f"{name}_{capsule.incarnation}_{capsule.subtask}"
    test, beside = folder / f"test_{stem}.py", folder / f"{stem}.capsule"
    folder.mkdir(parents=True, exist_ok=True)
    for path in (test, beside):
        if path.exists():
            raise TailraceError(f"{path} is there already; give another folder with --into")
    beside.write_bytes(encode_capsule(capsule))
    one_line = {name: " ".join(text.split()) for name, text in _words(capsule).items()}
    test.write_text(_TEST.format(capsule=beside.name, name=stem, **one_line), encoding="utf-8")
    return [test, beside]


def _words(capsule: Capsule) -> dict[str, str]:
    named = {"job": repr(capsule.job), "operator": repr(capsule.operator), "error": capsule.error}
    return {**named, "record": capsule.record or "none", "key": capsule.key or "none"}
