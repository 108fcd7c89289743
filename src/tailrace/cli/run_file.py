"""The run of a script, or of a function that builds a dataflow, to the end of every job that it has started."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from types import FunctionType, TracebackType
from typing import Any

from tailrace.api.environment import Environment
from tailrace.cli.program import load_as_main, run_as_main
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import OWN_FOLDER, GraphError, JobAlreadyFinished, JobFailed, TailraceError, error_text
from tailrace.runtime.driver.program_exit import PATIENCE, is_taken_over
from tailrace.runtime.job import JOBS, Job
from tailrace.spark.cluster.defaults import DEFAULTS


class ExitOutcome(Enum):
    """Outcome of a program, with the exit code."""

    FINISHED = 0
    FAILED = 1
    USAGE = 2
    TAKEN_OVER = 3
    """A newer start of a job has taken over."""
    CANCELLED = 130


def run_file(
    target: str,
    args: list[str],
    *,
    master: str | None = None,
    parallelism: str | None = None,
    conf: dict[str, str] | None = None,
    progress: bool = True,
) -> ExitOutcome:
    """Runs `FILE.py` as a script, or `FILE.py:function` with an environment of its own, to the end of all its jobs."""
    path, _, function = target.partition(":") if not os.path.exists(target) else (target, "", "")
    if not os.path.isfile(path):
        print(f"tailrace run: there is no file {path!r}", file=sys.stderr)
        return ExitOutcome.USAGE
    _settings(master, parallelism, conf or {}, progress)
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.argv = [path, *args]
    try:
        if function:
            outcome = _call(path, function, args)
            if outcome is not None:
                return outcome
        else:
            run_as_main(path)
            _report_no_job(path)
        return _await_all()
    except KeyboardInterrupt:
        return _cancel_all()
    except SystemExit as leaving:  # the script's own, or of SIGTERM
        if leaving.code in (None, 0):
            return _await_all()
        _cancel_all()
        raise
    except JobAlreadyFinished as error:
        print(error, file=sys.stderr)
        if any(job.run_id == error.run_id for job in JOBS):  # of this program: its rest has never run
            _after_failure()
            return ExitOutcome.FAILED
        return _await_all()
    except TailraceError as error:
        print(f"{error_text(error)}", file=sys.stderr)
        _after_failure()
        return ExitOutcome.TAKEN_OVER if is_taken_over(error) else ExitOutcome.FAILED
    except Exception as error:  # the script's own; its jobs must not keep the process
        traceback.print_exception(error.with_traceback(_of_the_script(error.__traceback__)))
        _after_failure()
        return ExitOutcome.FAILED


def _settings(master: str | None, parallelism: str | None, conf: dict[str, str], progress: bool) -> None:
    DEFAULTS.master, DEFAULTS.parallelism, DEFAULTS.progress = master, parallelism, progress
    DEFAULTS.conf = conf
    # A script that builds its own session gets the same settings, except those that it sets.
    remote = master is not None and master.startswith("sc://")
    if master is not None and remote:
        os.environ["SPARK_REMOTE"] = master
        return
    submit = [*(["--master", master] if master else [])]
    for key, value in conf.items():
        submit += ["--conf", f"{key}={value}"]
    if submit:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(submit)} pyspark-shell"


def _call(path: str, name: str, args: list[str]) -> ExitOutcome | None:
    """Calls the function. Executes the sinks that it built and did not run."""
    function = load_as_main(path).get(name)
    if not callable(function):
        print(f"tailrace run: {path!r} has no function {name!r}", file=sys.stderr)
        return ExitOutcome.USAGE
    env = Environment()
    arguments = [env, *args] if _takes(function, len(args) + 1) else args
    if not _takes(function, len(arguments)):
        print(
            f"tailrace run: {name}{inspect.signature(function)} takes neither env and the arguments {args} nor these alone",
            file=sys.stderr,
        )
        return ExitOutcome.USAGE
    function(*arguments)
    if env._graph.sinks() - env._executed:
        env.execute(name)
    elif not JOBS:
        raise GraphError(f"{name} started no job and ended no stream of env in a sink; call sink_to")
    return None


def _report_no_job(path: str) -> None:
    """Warns of a script that started no job."""
    if JOBS:
        return
    builds = [
        name
        for name, value in vars(sys.modules["__main__"]).items()
        if isinstance(value, FunctionType)
        and value.__code__.co_filename == path
        and "env" in inspect.signature(value).parameters
    ]
    what = f"run one of its functions (tailrace run {path}:{builds[0]}), or " if builds else ""
    print(
        f"tailrace run: {path} has started no job; {what}end a stream in a sink and call env.execute(name)",
        file=sys.stderr,
    )


def _of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of Tailrace in front of the script's; None where the script could not even be
    read."""
    at = trace
    while at is not None and at.tb_frame.f_code.co_filename.startswith(OWN_FOLDER):
        at = at.tb_next
    return at


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*([None] * count))
    except TypeError:
        return False
    return True


def _await_all() -> ExitOutcome:
    outcome = ExitOutcome.FINISHED
    for job in list(JOBS):
        try:
            job.await_termination()
        except JobFailed as error:
            print(error, file=sys.stderr)
            if outcome is not ExitOutcome.TAKEN_OVER:
                outcome = ExitOutcome.TAKEN_OVER if is_taken_over(error) else ExitOutcome.FAILED
        if job.status is JobStatus.CANCELLED and outcome is ExitOutcome.FINISHED:
            outcome = ExitOutcome.CANCELLED
    return outcome


def _after_failure() -> None:
    staying = [job for job in JOBS if job._leaving.if_program_fails == "wait"]
    _cancel_all(staying)
    for job in staying:
        try:
            job.await_termination()
        except JobFailed as error:
            print(error, file=sys.stderr)


def _cancel_all(but: Sequence[Job] = ()) -> ExitOutcome:
    jobs = [job for job in JOBS if job not in but]
    for job in jobs:
        job.cancel()
    for job in jobs:
        if job.is_active:
            job._leaving.monitor.ended.wait(PATIENCE)
    return ExitOutcome.CANCELLED
