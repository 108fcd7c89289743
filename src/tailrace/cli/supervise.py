"""`tailrace supervise`: runs a program, and starts it again when it dies. Its jobs go on from their newest checkpoints."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Annotated

import typer

from tailrace.cli.run_file import ExitOutcome
from tailrace.passwords import hide_passwords
from tailrace.retries import Retries
from tailrace.runtime.driver.program_exit import die_of
from tailrace.settings import SETTINGS

ATTEMPTS = 20
"""Number of starts in a row, each of which ends too soon, after which no other start follows."""
STEADY_SECONDS = 600.0
"""Seconds after which the end of a start is not too soon."""
PAUSES = Retries(math.inf, first=1.0, most=60.0)
"""Pauses before the starts of such a row."""
FINAL = {
    ExitOutcome.FINISHED: "it has finished",
    ExitOutcome.USAGE: "its command is wrong",
    ExitOutcome.TAKEN_OVER: "a newer start of its job has taken over",
    ExitOutcome.CANCELLED: "it was cancelled",
}
"""The ends of a program that no other start follows. It follows a failure and a signal."""
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.1
_NOT_STARTED = 126
"""The exit code of a program that the machine could not start."""


def supervise_command(
    ctx: typer.Context,
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="run and what belongs to tailrace run, or any other command."),
    ],
    attempts: Annotated[
        int, typer.Option(min=1, help="Starts in a row, each too short, after which it gives up.")
    ] = ATTEMPTS,
    steady: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long a start lasts that is not too short.")
    ] = STEADY_SECONDS,
) -> None:
    """Run a program, and start it again when it dies. Its jobs go on from their newest checkpoints."""
    raise typer.Exit(supervise(Supervisor(_process_command(ctx, command), attempts, steady)))


def _process_command(ctx: typer.Context, words: list[str]) -> list[str]:
    """The command that a process can be started with. Raises a usage error for one that never works."""
    if words[0] == "run":
        assert ctx.parent is not None
        run = ctx.parent.command.commands["run"]  # type: ignore[attr-defined]
        if run.make_context("tailrace run", words[1:]).params["dry_run"]:
            raise typer.BadParameter("a dry run starts nothing, and ends by itself", param_hint="--dry-run")
        return [sys.executable, "-m", "tailrace", *words]
    if shutil.which(words[0]) is None:
        script = words[0].partition(":")[0].endswith(".py")
        hint = f"; to run a script: tailrace supervise run {words[0]}" if script else ""
        raise typer.BadParameter(f"there is no command {words[0]!r}{hint}", param_hint="COMMAND")
    return words


@dataclass(frozen=True)
class ProgramRun:
    """One run of the program, from its start to its end."""

    number: int
    process: int
    """0 if the machine could not start it."""
    returned: int
    """The exit code; that of a signal is the number of the signal, negative."""
    seconds: float

    @property
    def code(self) -> int:
        """The exit code, as a shell gives it."""
        return 128 - self.returned if self.returned < 0 else self.returned

    def __str__(self) -> str:
        process = f" (process {self.process})" if self.process else ""
        how = f"ended with exit code {self.returned}"
        if self.returned < 0:
            memory = ", as where memory runs out," if self.returned == -signal.SIGKILL else ""
            how = f"died of {signal.Signals(-self.returned).name}{memory}"
        return f"start {self.number}{process} {how} after {self.seconds:.0f} s"


class Supervisor:
    """The supervisor of a program: starts it until it ends in a way that no other start follows, or until `attempts` starts
    in a row have each lasted less than `steady` seconds. It passes signals on, and then starts nothing any more."""

    def __init__(
        self,
        command: Sequence[str],
        attempts: int = ATTEMPTS,
        steady: float = STEADY_SECONDS,
        retries: Retries = PAUSES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._command, self._attempts, self._steady = list(command), attempts, steady
        self._retries, self._sleep = retries, sleep
        self._process: subprocess.Popen[bytes] | None = None
        self.signal = 0
        """The last signal that came; 0: none."""
        self._early = 0
        """The signal that came while no process was there to get it."""

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """Handles a signal: passes it on to the program."""
        self.signal = number
        if self._process is None:
            self._early = number
        else:
            self._process.send_signal(number)

    def run(self) -> int:
        """Runs the program to its last end. Returns the exit code of that."""
        pauses, short, number = self._retries.pauses(), 0, 0
        while True:
            number += 1
            run = self._start(number)
            short = 0 if run.seconds >= self._steady else short + 1
            why = self._end_reason(run, short)
            if why:
                _print(f"{run}: {why}")
                return run.code
            if not short:
                pauses = self._retries.pauses()
            pause = next(pauses)
            _print(f"{run}: start {number + 1} follows in {pause:.1f} s")
            self._wait(pause)
            if self.signal:
                return 128 + self.signal

    def _end_reason(self, run: ProgramRun, short: int) -> str:
        """The reason why no other start follows; empty where one does."""
        if self.signal:
            return f"{signal.Signals(self.signal).name} was passed on to it"
        final = [why for outcome, why in FINAL.items() if outcome.value == run.code]
        if final:
            return final[0]
        if short < self._attempts:
            return ""
        return f"gives up, since the last {short} starts have each lasted less than {self._steady:g} s"

    def _start(self, number: int) -> ProgramRun:
        """Runs the program once. It is in a process group of its own: a terminal sends Ctrl-C to this process only."""
        environ = {**os.environ, SETTINGS["supervised"].variable: "1"}
        began = self._retries.clock()
        try:
            process = subprocess.Popen(self._command, env=environ, stdin=subprocess.DEVNULL, process_group=0)
        except OSError as error:  # the machine has no memory or no process left
            _print(f"start {number} of {_command_text(self._command)} is not possible: {error}")
            return ProgramRun(number, 0, _NOT_STARTED, self._retries.clock() - began)
        self._process = process
        if self._early:
            process.send_signal(self._early)
        _print(f"start {number} (process {process.pid}): {_command_text(self._command)}")
        returned = process.wait()
        self._process = None
        return ProgramRun(number, process.pid, returned, self._retries.clock() - began)

    def _wait(self, seconds: float) -> None:
        """Waits before a start. A signal ends it: Python goes on with a sleep that a signal has broken off."""
        until = self._retries.clock() + seconds
        while not self.signal and (left := until - self._retries.clock()) > 0:
            self._sleep(min(left, _LOOK_SECONDS))


def supervise(supervisor: Supervisor) -> int:
    """Runs a supervisor that handles the signals of this process. Returns the exit code. Where a signal other than Ctrl-C
    has ended the program, this process ends of it as well."""
    handlers = {one: signal.getsignal(one) for one in _PASSED_ON}
    for one, before in handlers.items():
        if before is not signal.SIG_IGN:  # of nohup
            signal.signal(one, supervisor.handle)
    try:
        code = supervisor.run()
    finally:
        for one, before in handlers.items():
            signal.signal(one, before)
    if supervisor.signal not in (0, signal.SIGINT) and code == 128 + supervisor.signal:
        die_of(supervisor.signal)
    return code


def _command_text(command: Sequence[str]) -> str:
    return hide_passwords(shlex.join(command))


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it: that ends neither the program nor its supervision
        typer.echo(f"tailrace supervise: {text}", err=True)
