"""What becomes of jobs when the program that started them ends. Each test runs a program of its own; its jobs are stubs that
end after a while, or when they are cancelled. Most programs are forked from a process that has made the stubs; those with
flags of the interpreter, and one for each way to end, start as any program does (`ran_anew`)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.warmed import Warmed

STUBS = """
import atexit, os, signal, sys, threading, time
from concurrent.futures import Future
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.jobview import JobView
from tailrace.runtime.driver.program_exit import watch
from tailrace.runtime.job import Job

class Runner(threading.Thread):
    # The stub of a job's runner, and of its monitor.
    job_name, job_id, plan, crash, failure = "the job", "id", None, None, None
    status = JobStatus.RUNNING

    def __init__(self, seconds, how):
        super().__init__()
        self.ended, self.stop = threading.Event(), threading.Event()
        self.how, self.seconds = how, seconds
        cause = Cause("the map raised", operator="map", subtask=0, record="1")
        self.view = JobView(JobStatus[how], cause=cause if how == "FAILED" else None)
        self.start()

    def run(self):
        cancelled = self.stop.wait(self.seconds)
        self.status = JobStatus["CANCELLED" if cancelled and not self.stopping else self.how]
        os.write(1, f"job {self.status}\\n".encode())
        self.ended.set()
        if self.stopping:
            self.stopping.set_result(None)

    def cancel(self):
        self.stop.set()

    refuses = False
    stopping = None

    def wish(self, wish):
        future = Future()
        if self.refuses:
            future.set_exception(RuntimeError("a reason"))
        else:
            self.stopping = future
            threading.Timer(0.2, self.stop.set).start()  # its last checkpoint is complete
        return future

def job(seconds=0.3, how="FINISHED", **options):
    runner = Runner(seconds, how)
    made = Job(runner, runner, **options)
    watch(made._leaving)
    made.wait = made._runner.ended.wait
    return made

atexit.register(print, "handlers at the exit run", flush=True)
"""
ENDLESS = "job(None); "
RAN = "handlers at the exit run\n"


_warmed: list[Warmed] = []
"""What forks the programs of this module."""


@pytest.fixture(scope="module", autouse=True)
def _forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    _warmed.append(Warmed(STUBS, tmp_path_factory.mktemp("programs")))
    yield
    _warmed.pop().close()


def ran(program: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a program with jobs."""
    return _warmed[0].ran(program)


def ran_anew(program: str, *flags: str, **options: Any) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a program that starts by itself."""
    command = [sys.executable, *flags, "-c", STUBS + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
    return done.returncode, done.stdout, done.stderr


def test_the_exit_waits_for_jobs() -> None:
    assert ran_anew("job(0.5); job(1); os.write(1, b'over\\n')") == (0, f"over\njob FINISHED\njob FINISHED\n{RAN}", "")


@pytest.mark.parametrize("code", [0, 3])
def test_sys_exit_is_an_end_like_any_other(code: int) -> None:
    assert ran(f"job(); sys.exit({code})") == (code, f"job FINISHED\n{RAN}", "")


def test_a_job_that_fails_after_the_program_is_reported_and_makes_the_exit_code_1() -> None:
    """No caller of `await_termination` is left, and what started the process looks at its exit code only."""
    code, out, err = ran_anew("job(how='FAILED'); sys.exit(0)")
    assert (code, out) == (1, f"job FAILED\n{RAN}")
    assert err == "tailrace: job 'the job' failed: the map raised\n"


def test_whether_a_failure_comes_just_before_or_after_the_last_line_makes_no_difference() -> None:
    code, out, err = ran("job(0, how='FAILED').wait()")
    assert (code, out) == (1, f"job FAILED\n{RAN}") and "the map raised" in err


TAKEN_OVER = """
from tailrace.protocol.deployment import FailureKind
one = job(0, how='FAILED')
one._runner.view = JobView(JobStatus.FAILED, cause=Cause("overtaken", FailureKind.FENCED))
one.wait()
"""


@pytest.mark.parametrize(
    "more", ["", "job(0, how='FAILED').wait(); job(0, how='CANCELLED').wait()", "one.await_termination()"]
)
def test_a_newer_start_of_a_job_makes_the_exit_code_3(more: str) -> None:
    """A supervisor must leave this start: else it would take the job back, and so on."""
    code, _, err = ran(TAKEN_OVER + more)
    assert code == 3 and "job 'the job' failed: overtaken" in err


@pytest.mark.parametrize(
    "ask", ["one.exception()", "one.status", "\ntry: one.await_termination()\nexcept Exception: pass"]
)
def test_a_failure_that_the_program_has_seen_is_the_programs(ask: str) -> None:
    assert ran(f"one = job(0, how='FAILED'); one.wait(); {ask}") == (0, f"job FAILED\n{RAN}", "")


def test_a_job_that_others_have_cancelled_is_not_taken_for_done() -> None:
    """A user cancels the worker's Spark job in Spark's own pages: the process must not end like one whose job is done."""
    code, out, err = ran("job(how='CANCELLED')")
    assert (code, out) == (130, f"job CANCELLED\n{RAN}")
    assert err == "tailrace: job 'the job' was cancelled, and not by this program\n"


def test_a_job_that_the_program_has_cancelled_ends_well() -> None:
    assert ran("job(None).cancel()") == (0, f"job CANCELLED\n{RAN}", "")


def test_an_exception_that_nobody_caught_cancels() -> None:
    """The program was to look after its endless job; who waits for the process must learn that it failed."""
    code, out, err = ran_anew(ENDLESS + "raise ValueError('a bug')")
    assert (code, out) == (1, f"job CANCELLED\n{RAN}")
    assert err.endswith(
        "ValueError: a bug\ntailrace: job 'the job' is cancelled, because the program failed (ValueError)\n"
    )


def test_a_job_may_outlive_an_exception() -> None:
    code, out, err = ran("job(1, if_program_fails='wait'); job(None); raise ValueError('a bug')")
    assert (code, out) == (1, f"job CANCELLED\njob FINISHED\n{RAN}")
    assert "job 'the job' goes on (if_program_fails='wait'), and the exit waits for it" in err


def test_an_exception_that_was_caught_cancels_nothing() -> None:
    """Consoles and test runners note what they have caught where the interpreter notes what nobody caught."""
    program = """
def fails():
    try:
        raise ValueError
    except ValueError as error:
        sys.last_value = sys.last_exc = error
fails()
job()
"""
    assert ran(program) == (0, f"job FINISHED\n{RAN}", "")


def test_an_interrupt_of_the_program_cancels() -> None:
    code, out, err = ran_anew(ENDLESS + "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    assert (code, out) == (-signal.SIGINT, f"job CANCELLED\n{RAN}")
    assert "because the program was interrupted" in err


def test_an_interrupt_of_the_program_cancels_all() -> None:
    code, out, _ = ran("job(None, if_program_fails='wait'); os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    assert (code, out) == (-signal.SIGINT, f"job CANCELLED\n{RAN}")


LATER = "threading.Timer(0.3, os.kill, (os.getpid(), signal.{})).start(); "


def test_an_interrupt_while_the_exit_waits_cancels() -> None:
    code, out, err = ran(ENDLESS + LATER.format("SIGINT"))
    assert (code, out, err) == (-signal.SIGINT, f"job CANCELLED\n{RAN}", "")


@pytest.mark.parametrize("where", ["in the program", "in a wait for the job", "at the exit"])
def test_sigterm_cancels_and_ends_the_process_by_that_signal(where: str) -> None:
    """Service managers stop a process by SIGTERM, and take it for stopped well where it died of that."""
    does = {"in the program": "time.sleep(60)", "in a wait for the job": "one.await_termination()", "at the exit": "0"}
    program = f"one = job(None); {LATER.format('SIGTERM')}\ntry: {does[where]}\nfinally: os.write(1, b'finally\\n')"
    code, out, err = ran(program)
    assert code == -signal.SIGTERM
    assert sorted(out.splitlines()) == sorted(["finally", "job CANCELLED", RAN.strip()]) and out.endswith(RAN)
    assert err == "tailrace: SIGTERM: job 'the job' is cancelled\n"


def test_a_second_sigterm_is_not_waited_for() -> None:
    program = "Runner.cancel = lambda self: None; " + ENDLESS
    program += "kill = lambda: os.kill(os.getpid(), signal.SIGTERM); threading.Timer(0.3, kill).start(); "
    code, out, _ = ran_anew(program + "threading.Timer(0.9, kill).start(); time.sleep(60)")
    assert (code, out) == (-signal.SIGTERM, "")


def test_sigterm_without_a_running_job_is_as_always() -> None:
    code, out, err = ran("job(0).wait(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)")
    assert (code, out, err) == (-signal.SIGTERM, "job FINISHED\n", "")


def test_a_program_with_a_handler_of_its_own_keeps_it() -> None:
    program = "signal.signal(signal.SIGTERM, lambda *a: print('mine')); job(); os.kill(os.getpid(), signal.SIGTERM)"
    assert ran(program) == (0, f"mine\njob FINISHED\n{RAN}", "")


def test_a_job_that_does_not_end_does_not_keep_a_process_that_was_told_to_end() -> None:
    program = "from tailrace.runtime.driver import program_exit; program_exit.PATIENCE = 0.5; "
    program += "Runner.cancel = lambda self: None; "
    code, out, err = ran(program + ENDLESS + "os.kill(os.getpid(), signal.SIGTERM)")
    assert (code, out) == (-signal.SIGTERM, RAN)
    assert err.endswith(
        "tailrace: 'the job' did not end within 0 s of being cancelled; the exit does not wait longer\n"
    )
    code, out, err = ran(program + ENDLESS + "raise ValueError")
    assert (code, out) == (1, RAN)


STOPPED = "job(None, on_signal='stop')"
TOLD = "tailrace: job 'the job' is being stopped, with a checkpoint at its end; another signal kills the process\n"


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("where", ["in a wait for the job", "at the exit"])
def test_where_a_signal_stops_jobs_the_program_goes_on_as_when_they_finish(number: str, where: str) -> None:
    does = "one.await_termination(); os.write(1, b'behind it\\n')" if where == "in a wait for the job" else "0"
    program = f"one = {STOPPED}; {LATER.format(number)}\ntry: {does}\nfinally: os.write(1, b'finally\\n')"
    code, out, err = ran(program)
    message = ["job FINISHED", "behind it", "finally"] if "behind" in does else ["finally", "job FINISHED"]
    assert (code, out.splitlines(), err) == (0, [*message, RAN.strip()], TOLD)


def test_a_second_signal_kills_a_process_whose_jobs_are_being_stopped() -> None:
    program = (
        f"Runner.wish = lambda self, wish: Future(); {STOPPED}; kill = lambda: os.kill(os.getpid(), signal.SIGTERM); "
    )
    program += "threading.Timer(0.3, kill).start(); threading.Timer(0.6, kill).start(); time.sleep(60)"
    assert ran(program) == (-signal.SIGTERM, "", TOLD)


def test_a_job_that_cannot_be_stopped_by_a_signal_is_cancelled_and_the_exit_code_says_so() -> None:
    code, out, err = ran(f"Runner.refuses = True; {STOPPED}; {LATER.format('SIGTERM')}")
    assert (code, out) == (130, f"job CANCELLED\n{RAN}")
    assert "job 'the job' does not stop (a reason), so it is cancelled" in err


def test_a_job_that_starts_behind_the_signal_is_cancelled_and_does_not_keep_the_process() -> None:
    program = f"one = {STOPPED}; {LATER.format('SIGTERM')}one.await_termination(); {STOPPED}"
    code, out, err = ran(program)
    assert (code, out) == (130, f"job FINISHED\njob CANCELLED\n{RAN}")
    assert "the process got a signal to end: job 'the job' is cancelled" in err


def test_a_signal_without_a_running_job_ends_the_process_also_where_it_would_stop_jobs() -> None:
    for number in ("SIGTERM", "SIGINT"):
        program = f"job(0, on_signal='stop').wait(); os.kill(os.getpid(), signal.{number}); time.sleep(60)"
        assert ran(program)[0] == -signal.Signals[number]


def test_jobs_are_those_of_the_process_that_started_them() -> None:
    """A child that the program forks (for example by multiprocessing) has a copy of everything, and none of the threads."""
    program = """
one = job(None)
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
child = os.fork()
if not child:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
one.cancel()
"""
    code, out, err = ran_anew(program, "-Wignore")
    assert (code, out, err) == (0, f"15\n{RAN}5\njob CANCELLED\n{RAN}", "")


def test_what_a_person_types_is_waited_for_with_a_word() -> None:
    code, out, err = ran_anew("job(how='FAILED'); 1/0", "-i", stdin=subprocess.DEVNULL)
    assert (code, out) == (0, f"job FAILED\n{RAN}")
    assert err.rstrip().endswith("tailrace: waiting for 'the job'; Ctrl-C cancels")


THREADS = """
from concurrent.futures import ThreadPoolExecutor
from tailrace.spark.slots.threads import SlotThreads

pool = ThreadPoolExecutor(1)
pool.submit(int).result()
slots = SlotThreads("job", 2)

class Restarts(Runner):
    def run(self):
        time.sleep(0.3)  # the main thread has ended
        print(pool.submit(int).result(), flush=True)
        ran, gone = threading.Semaphore(0), threading.Event()
        for i in range(5):  # more than there are threads: those that wait run when others have ended
            slots.run(lambda i=i: (gone.wait(0 if i > 1 else 0.2), ran.release)[1])
        print(all(ran.acquire(timeout=20) for _ in range(5)), flush=True)
        slots.close(5)
        self.how = "FINISHED"
        super().run()

Runner = Restarts
job(0)
"""


def test_a_job_that_outlives_its_program_uses_executors_and_launches_workers_again() -> None:
    """The program has ended and its job runs on. What talks to an object store looks up names and reads in executors, which
    the interpreter shuts down at its exit, the ones registered last first: that must come after our wait. And from
    Python 3.12 on no thread can be started then, while a worker that is lost needs one."""
    assert ran_anew(THREADS) == (0, f"0\nTrue\njob FINISHED\n{RAN}", "")


def test_many_objects_are_deleted_where_no_thread_can_be_started() -> None:
    program = """
from tailrace.storage.remote import ObjectFolder

class Deletes(Runner):
    def run(self):
        threading.main_thread().join(0.3)
        folder = ObjectFolder.__new__(ObjectFolder)
        folder.root, gone = "", []
        folder._delete = gone.append
        folder.delete(["a", "b", "c"])
        print(sorted(gone), flush=True)
        super().run()

Runner = Deletes
job(0)
"""
    assert ran(program) == (0, f"['/a', '/b', '/c']\njob FINISHED\n{RAN}", "")
