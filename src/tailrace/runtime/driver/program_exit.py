"""The end of a process's jobs when its main program ends.

- By its last line or `sys.exit`: the exit waits for them. A failure then is printed on stderr, since the program can no
  longer read it, and the exit code is 1.
- By an uncaught exception: they are cancelled, since the program no longer looks after them; except jobs whose user
  requested that they go on (`execute(..., if_program_fails="wait")`).
- By SIGTERM: they are cancelled, and the process ends of the signal. Programs that handle SIGTERM themselves do so.
- By Ctrl-C while the exit waits: as by SIGTERM.
- By either signal, with `tailrace run --on-signal stop`: they are stopped, with a checkpoint at their end, and the
  program goes on as it does when they have finished. A second signal kills it.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - registers before us what it does at the exit: the last goes first
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from tailrace.coordinator.durability.stopping import Aim
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import JobFailed
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.driver.user_requests import Runner, Stop

PATIENCE = 25.0
"""Seconds that the exit waits for cancelled jobs. A SIGKILL often follows a SIGTERM half a minute later."""
CANCELLED_FROM_OUTSIDE = 130
"""The exit code when a job that the exit waited for was cancelled, but not by this program; `tailrace run` has it, too."""
TAKEN_OVER = 3
"""The exit code when a newer start of a job has taken over: to start this program again would end that one."""


@dataclass(eq=False)
class EndingJob:
    """A job as the end of the process sees it."""

    monitor: ProgramMonitor
    runner: Runner
    why: Callable[[], Exception | None]
    """The reason why it failed, once it has."""
    if_program_fails: Literal["cancel", "wait"] = "cancel"
    on_signal: Literal["cancel", "stop"] = "cancel"
    """The effect of SIGTERM on it, and with `stop` also of Ctrl-C."""
    seen: bool = False
    """True once the program has read how it ended."""
    cancelled: bool = False
    """True once the program has cancelled it."""

    @property
    def name(self) -> str:
        return self.monitor.job_name

    @property
    def is_active(self) -> bool:
        return not self.monitor.ended.is_set()

    @property
    def unseen(self) -> JobStatus | None:
        """FAILED or CANCELLED, if the program has neither seen nor caused it. Else None."""
        status = self.monitor.status
        if self.is_active or self.seen or status is JobStatus.FINISHED:
            return None
        return None if status is JobStatus.CANCELLED and self.cancelled else status

    def cancel(self) -> None:
        self.cancelled = True
        self.runner.cancel()


_watched: list[EndingJob] = []
_signal: list[int] = []
"""The signal that ends this process, once there was one."""
_to_stop = threading.Event()
"""Set once a signal has come that stops the jobs of this process."""
_stopper: list[threading.Thread] = []
"""The thread that stops jobs after a signal. A signal handler may run in the middle of anything, where no lock may be
taken and no thread started."""


def watch(job: EndingJob) -> None:
    """Adds a job to those that the end of this process takes care of."""
    # The others have nothing left to report.
    _watched[:] = [one for one in _watched if one.is_active or one.unseen is not None]
    _watched.append(job)
    if _to_stop.is_set():
        _print(f"the process got a signal to end: job {job.name!r} is cancelled")
        job.runner.cancel()
    elif threading.current_thread() is threading.main_thread():
        _heed_signals(job.on_signal == "stop")


def _heed_signals(stops: bool) -> None:
    """Sets signal handlers, except where the program has set its own."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _handle_stop if stops else _handle_termination)
    if stops and not _interactive() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle_stop)
    if stops and not _stopper:
        _stopper.append(threading.Thread(target=_stop_on_signal, name="tailrace-signals", daemon=True))
        _stopper[0].start()


def _handle_stop(number: int, frame: FrameType | None) -> None:
    """Handles a signal that stops the jobs, while the program goes on. A second signal, of either kind, kills it."""
    running = _running()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL if running else signal.default_int_handler)
    if running:
        _to_stop.set()
    else:  # also in a process that was forked from the one whose jobs these are
        os.kill(os.getpid(), number)


def _stop_on_signal() -> None:
    _to_stop.wait()
    stopping = []
    for job in _running():
        _print(f"job {job.name!r} is being stopped, with a checkpoint at its end; another signal kills the process")
        stopping.append((job, job.runner.wish(Stop(Aim()))))
    for job, future in stopping:
        error = future.exception()
        if error is not None and job.is_active:
            _print(f"job {job.name!r} does not stop ({error}), so it is cancelled")
            job.runner.cancel()


def _handle_termination(number: int, frame: FrameType | None) -> None:
    """Handles a signal that ends the process. `SystemExit` ends what the program was doing, so that `finally` blocks run."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one is not waited for
    running = _running()
    if not running:  # also in a process that was forked from the one whose jobs these are
        os.kill(os.getpid(), number)
        return
    _signal.append(number)
    for job in running:
        _print(f"SIGTERM: job {job.name!r} is cancelled")
        job.cancel()
    raise SystemExit(128 + number)


def _at_exit() -> None:
    """Runs when the main program is over. The interpreter is whole, but from Python 3.12 on it starts no thread any more."""
    failed = None if _interactive() else _uncaught()
    try:
        if not _signal:
            _after_program(failed)
    except KeyboardInterrupt:
        _signal.append(signal.SIGINT)
    except SystemExit:  # of SIGTERM
        pass
    if _signal:
        number = _signal[0]
        _cancel_all()
        _last(lambda: die_of(number))
    elif not _interactive():
        _report_unseen(failed)


def _after_program(failed: BaseException | None) -> None:
    """Waits for the jobs that go on without the program, and cancels the others."""
    if failed is not None:
        interrupted = isinstance(failed, KeyboardInterrupt)
        why = "was interrupted" if interrupted else f"failed ({type(failed).__name__})"
        staying = [] if interrupted else [job for job in _running() if job.if_program_fails == "wait"]
        for job in _running():
            if job in staying:
                _print(
                    f"the program {why}; job {job.name!r} goes on (if_program_fails='wait'), and the exit waits for it"
                )
            else:
                _print(f"job {job.name!r} is cancelled, because the program {why}")
        _cancel_all(staying)
    elif _interactive() and _running():
        _print(f"waiting for {', '.join(repr(job.name) for job in _running())}; Ctrl-C cancels")
    while running := _running():  # a thread of the program may still start one
        running[0].monitor.ended.wait()


def _cancel_all(but: Sequence[EndingJob] = ()) -> None:
    """Cancels jobs and waits for their end. A process does not hang because of a job that does not end."""
    deadline = time.monotonic() + PATIENCE
    ending = [job for job in _running() if job not in but]
    for job in ending:
        job.cancel()
    late: list[str] = []
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # a second signal is not waited for
        late = [job.name for job in ending if not job.monitor.ended.wait(max(0.0, deadline - time.monotonic()))]
    if late:
        _print(
            f"{', '.join(map(repr, late))} did not end within {PATIENCE:.0f} s of being cancelled; the exit does not wait "
            f"longer"
        )
        number = _signal[0] if _signal else 0
        _leave(lambda: die_of(number) if number else os._exit(1))


def _running() -> list[EndingJob]:
    return [job for job in _watched if job.is_active]


def is_taken_over(error: BaseException | None) -> bool:
    """True for the failure of a job that a newer start has taken over."""
    return isinstance(error, JobFailed) and error.taken_over


def _report_unseen(failed: BaseException | None) -> None:
    """Prints the unseen ends of jobs, and sets the exit code for the parent process. `failed` has ended the program."""
    codes = {TAKEN_OVER} if is_taken_over(failed) else set()
    for job in _watched:
        ended = job.unseen
        if ended is JobStatus.FAILED:
            error = job.why()
            _print(str(error))
            codes.add(TAKEN_OVER if is_taken_over(error) else 1)
        elif ended is JobStatus.CANCELLED:
            _print(f"job {job.name!r} was cancelled, and not by this program")
            codes.add(CANCELLED_FROM_OUTSIDE)
    code = next((one for one in (TAKEN_OVER, 1, CANCELLED_FROM_OUTSIDE) if one in codes), 0)
    if code:
        _last(lambda: os._exit(code))


def _uncaught() -> BaseException | None:
    """The exception that has ended the main program, as the interpreter noted it before it printed it. Other code notes
    its exceptions in this place, too, and these have left less than the whole stack."""
    found = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = getattr(found, "__traceback__", None)
    if isinstance(found, BaseException) and trace is not None and trace.tb_frame.f_back is None:
        return found
    return None


def _interactive() -> bool:
    """True if a user types the program: errors before the exit were seen, and the exit code is not read."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _last(end: Callable[[], object]) -> None:
    """Ends the process by `end`, once all threads of the program have ended. From then on the interpreter has no way of
    its own to change how it ends."""
    atexit.register(_leave, end)  # the last to be registered is the first to be called, and calls the others


def _leave(end: Callable[[], object]) -> None:
    """Ends the process by `end`, after all other exit handlers."""
    atexit.unregister(_leave)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or None, or without a reader
            stream.flush()
    end()


def die_of(number: int) -> None:
    """Ends the process by the signal, as its parent process expects."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _print(text: str) -> None:
    with contextlib.suppress(Exception):  # there may be no stderr any more
        print(f"tailrace: {text}", file=sys.stderr, flush=True)


def _run_at_exit() -> None:
    try:
        _at_exit()
    except BaseException:  # the interpreter would print it in a form that is hard to read
        traceback.print_exc()


# Before the threads are joined, where an interrupt would be taken for a fault of the interpreter. `concurrent.futures`
# registers its exit here, too. A Python without this hook waits for the jobs all the same, and less politely.
getattr(threading, "_register_atexit", atexit.register)(_run_at_exit)
os.register_at_fork(after_in_child=_watched.clear)  # jobs belong to the process that started them
