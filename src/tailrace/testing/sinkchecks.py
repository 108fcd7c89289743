"""Checks for implementers of a sink: drawn lives of a job, in which everything that uses the sink is stopped at any step.

`check_sink(make)` plays the coordinator. Writers and publishers are processes, so that they can be killed, and frozen and
thawed later; the server is real. Every record has a number of its own, so that a look at what is visible tells which
transactions were lost, written twice, or written though no checkpoint has them.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tailrace.api.connectors import Sink
from tailrace.errors import ConfigError
from tailrace.testing.sinkworkers import CutStep, SinkAnswer, SinkProcess, WriterPlace, batch_of

TRIES = 14
"""Number of tries of a publication, and more while `patience` lasts; the last ones are left alone."""
FAULTLESS = 8
"""Number of tries at the end of a publication in which nothing goes wrong."""
HOLDS_OTHERS = 0.4
"""Seconds until a frozen process is thawed because another one may wait for what it holds."""
Guarantee = Literal["exactly-once", "at-least-once"]


class ServerControl(Protocol):
    """The server of a sink under test. It may also have `freeze()` and `thaw()`."""

    def kill(self) -> None:
        """Ends the server at once."""

    def restart(self) -> None:
        """Starts the server with its data, and returns when it serves."""


class SinkFault(AssertionError):
    """The error for a sink that does not keep its guarantee. Its text has the seed and the story."""


@dataclass
class SinkReport:
    """The figures of `check_sink`."""

    rounds: int = 0
    messages: int = 0
    """Number of records in committed transactions."""
    publications: int = 0
    kills: int = 0
    """Number of processes that were killed while they published."""
    freezes: int = 0
    """Number of processes that were frozen while they published, and went on later."""
    doubles: int = 0
    """Number of publications by two processes at a time."""
    outages: int = 0
    """Number of times that the server was killed, restarted or paused."""
    restarts: int = 0
    """Number of restarts, replacements and starts of the job."""
    lost: int = 0
    twice: int = 0
    """Number of records that were visible more than once, which an at-least-once sink allows."""
    seconds: float = 0.0


@dataclass(eq=False)
class _Output:
    """What one writer wrote between two cuts."""

    writer: tuple[str, int]
    """Run and subtask."""
    numbers: list[int]
    prepared: bytes | None
    visible: bool = False
    """True if it must be visible."""
    settled: bool = False
    """True if it is never published again."""


class _WorkerLost(Exception):
    """The process of the writers is gone."""


@dataclass
class _Setting:
    """The arguments of `check_sink`."""

    guarantee: Guarantee
    record: Callable[[int], Any]
    server: ServerControl | None
    ordered: bool
    patience: float


def check_sink(
    make: Callable[[], tuple[Sink, Callable[[], Iterable[int]]]],
    *,
    guarantee: Guarantee = "exactly-once",
    record: Callable[[int], Any] | None = None,
    server: ServerControl | None = None,
    ordered: bool = False,
    rounds: int = 20,
    seed: int = 0,
    patience: float = 30.0,
) -> SinkReport:
    """Checks that a sink keeps its guarantee, whatever is killed when. Raises `SinkFault`, with the seed, if it does not.

    - `make()`: a sink that writes to a place of its own, and a function that returns the numbers of the records that are
      visible there, in any order. Called once for each round.
    - `guarantee`: "exactly-once" or "at-least-once", which allows a record to be visible more than once, and before the
      checkpoint that has it.
    - `record(n)`: the record with number `n`; in rows the number itself by default, in columns `{"n": n}`.
    - `server`: an object with `kill()` and `restart()`, and `freeze()` and `thaw()` if it can; the server is then away,
      slow or restarted in the middle of publications, too.
    - `ordered`: True if the place keeps the order of each subtask's records, and the function returns them in order.
    - `rounds`: the number of drawn stories; round `i` follows `seed + i`.
    - `patience`: the seconds after which a call of the sink counts as stuck. On a machine that gives this process no time
      they last longer.
    """
    if guarantee not in ("exactly-once", "at-least-once"):
        raise ConfigError(f'check_sink: guarantee is "exactly-once" or "at-least-once", not {guarantee!r}')
    report, start = SinkReport(), time.monotonic()
    for number in range(seed, seed + rounds):
        sink, read = make()
        default = (lambda n: {"n": n}) if sink.form == "columns" else (lambda n: n)
        batch_of(sink, [(record or default)(0)])  # imports here, once, what makes batches of columns
        setting = _Setting(guarantee, record or default, server, ordered, patience)
        story = _Story(number, sink, read, setting, report)
        try:
            story.play()
        except SinkFault as fault:
            lines = "\n".join(story.lines[-40:])
            raise SinkFault(f"{sink!r}, seed {number}: {fault}\n{lines}\nseed={number}, rounds=1 repeats it") from None
        finally:
            story.end()
        report.rounds += 1
    report.seconds = time.monotonic() - start
    return report


@dataclass
class _Run:
    """One run of the job."""

    run_id: str
    incarnation: int
    attempts: list[int]
    checkpoints: list[list[_Output]] = field(default_factory=list)
    """The new output of each complete checkpoint."""
    pending: list[_Output] = field(default_factory=list)
    """Output that is in no complete checkpoint yet."""


class _Story:
    """One drawn life of a job."""

    def __init__(
        self, seed: int, sink: Sink, read: Callable[[], Iterable[int]], setting: _Setting, report: SinkReport
    ) -> None:
        self._chance, self._report, self._setting = random.Random(seed), report, setting
        self._fork = lambda: SinkProcess(sink, read, setting.record)
        self._reader = self._fork()
        self._worker: SinkProcess | None = None
        self._others: list[SinkProcess] = []
        """Processes that only publish, with their connections."""
        self._frozen: list[SinkProcess] = []
        self._steps: Counter[int] = Counter()
        """The steps of the last publication, at each depth."""
        self._outputs: list[_Output] = []
        self._numbers = 0
        self._failures = 0
        """Number of requests to the worker that have failed one after the other."""
        self._runs: list[_Run] = []
        self.lines: list[str] = []
        """The story in words."""

    @property
    def _run(self) -> _Run:
        return self._runs[-1]

    def play(self) -> None:
        """Plays the story, and compares what is visible on the way."""
        self._start("first", 1)
        steps = [self._checkpoint, self._checkpoint, self._checkpoint, self._again, self._restart, self._replace]
        for step in [self._checkpoint, *self._chance.choices([*steps, self._next_run], k=12), self._checkpoint]:
            try:
                if self._worker is None:
                    self._restart()
                step()
            except _WorkerLost:
                self._leave_worker()
            if self._chance.random() < 0.3:
                self._compare()
        self._thaw()
        self._compare()
        self._report.messages += sum(len(one.numbers) for one in self._outputs if one.visible)

    def end(self) -> None:
        """Ends all processes."""
        for one in (self._reader, self._worker, *self._others, *self._frozen):
            if one is not None:
                one.kill()

    # The job.

    def _start(self, why: str, incarnation: int) -> None:
        run_id = f"{self._chance.getrandbits(128):032x}"
        self._runs.append(_Run(run_id, incarnation, [0] * self._chance.randint(1, 3)))
        self._say(f"{why} run {run_id[:6]}, incarnation {incarnation}, {len(self._run.attempts)} subtasks")
        self._open()

    def _open(self) -> None:
        self._worker = self._fork()
        self._use("open", [self._place(subtask) for subtask in range(len(self._run.attempts))])

    def _place(self, subtask: int) -> WriterPlace:
        run = self._run
        return WriterPlace(
            "job", run.run_id, run.incarnation, "sink", subtask, len(run.attempts), run.attempts[subtask]
        )

    def _use(self, request: str, *args: Any) -> Any:
        """The result of a request to the worker. Raises `_WorkerLost` if it fails, as the job would restart."""
        if self._worker is None:
            raise _WorkerLost
        self._worker.send(request, *args)
        answer = self._receive(self._worker)
        if answer is None or answer.error:
            self._say(f"{request} failed: {answer and answer.error}")
            self._failures += 1
            if self._failures > TRIES:
                raise SinkFault(f"{request} fails again and again: {answer and answer.error}")
            raise _WorkerLost
        self._failures = 0
        return answer.result

    def _write(self, subtask: int) -> _Output:
        """Has a writer write and prepare a transaction."""
        output = _Output((self._run.run_id, subtask), [], None)
        self._outputs.append(output)
        for size in self._chance.choices([1, 2, 5], k=self._chance.randint(0, 3)):
            batch = list(range(self._numbers, self._numbers + size))
            self._numbers += size
            output.numbers += batch
            self._use("write", subtask, batch)
        output.prepared = self._use("prepare", subtask)
        return output

    def _checkpoint(self) -> None:
        run = self._run
        run.pending += [self._write(subtask) for subtask in range(len(run.attempts))]
        if self._chance.random() < 0.15:
            self._say("checkpoint given up")
            return
        self._commit()
        if self._chance.random() < 0.1:
            self._say("the job fails before it publishes")
            raise _WorkerLost
        self._publish(run.checkpoints[-1])

    def _commit(self) -> None:
        """Completes a checkpoint with the pending output."""
        run = self._run
        run.checkpoints.append(run.pending)
        run.pending = []
        words = [f"{one.writer[1]}: {one.numbers}" for one in run.checkpoints[-1] if one.numbers]
        self._say(f"checkpoint {len(run.checkpoints)} complete: {'; '.join(words)}")

    def _again(self) -> None:
        """Publishes once more some of what is visible."""
        known = [one for run in self._runs for outputs in run.checkpoints for one in outputs if not one.settled]
        if known:
            first = self._chance.randrange(len(known))
            self._say("publishes again")
            self._publish(known[first : first + self._chance.randint(1, 6)])
        if self._chance.random() < 0.3:
            self._settle(known[: self._chance.randint(0, len(known))])

    def _settle(self, outputs: Sequence[_Output]) -> None:
        prepared = [one.prepared for one in outputs if one.prepared is not None]
        for one in outputs:
            one.settled = True
        if prepared:
            self._use("settled", prepared)

    def _leave_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _restart(self) -> None:
        """Restarts the job from its newest checkpoint."""
        run = self._run
        self._leave_worker()
        run.incarnation, run.attempts, run.pending = run.incarnation + 1, [0] * len(run.attempts), []
        self._say(f"restart: incarnation {run.incarnation}")
        self._report.restarts += 1
        self._restore(run.checkpoints[-1] if run.checkpoints else [], [run.run_id])
        self._open()

    def _restore(self, outputs: list[_Output], run_ids: list[str]) -> None:
        """Publishes the output of the restored checkpoint, and removes what else these runs have left."""
        publisher = self._publish(outputs)
        if not run_ids:
            return
        for run in self._runs:
            for one in [one for each in run.checkpoints for one in each if run.run_id in run_ids]:
                one.settled = one.settled or one not in outputs
        self._call(publisher or self._other(), "recover", run_ids, self._run.incarnation, "sink")

    def _replace(self) -> None:
        """Replaces a lost writer, which may have prepared for a checkpoint that completes."""
        run, subtask = self._run, self._chance.randrange(len(self._run.attempts))
        self._report.restarts += 1
        in_flight = self._chance.random() < 0.5
        if in_flight:
            run.pending += [self._write(one) for one in range(len(run.attempts))]
        else:
            run.pending = [one for one in run.pending if one.writer[1] != subtask]
        run.attempts[subtask] += 1
        self._say(f"subtask {subtask} is replaced: attempt {run.attempts[subtask]}")
        self._use("open", [self._place(subtask)])
        if in_flight:
            self._write(subtask)  # for the same checkpoint, which has what the lost writer prepared
            self._commit()
            self._publish(run.checkpoints[-1])
        self._use("took_over", subtask)

    def _next_run(self) -> None:
        """Starts another run: from the newest checkpoint, from an older one, or without any."""
        self._leave_worker()
        self._report.restarts += 1
        kind = self._chance.choice(["newest", "newest", "older", "older", "savepoint", "none"])
        old, incarnation = self._run, self._run.incarnation + 1
        known = [each for run in self._runs for each in run.checkpoints if not any(one.settled for one in each)]
        if kind == "newest" and old.checkpoints:
            self._restore(old.checkpoints[-1], [old.run_id])
        elif kind == "older" and known:
            self._publish(self._chance.choice(known))
        elif old.checkpoints:  # nobody else publishes what is committed
            self._publish(old.checkpoints[-1])
        self._start(f"from {kind}:", 1 if kind == "none" else incarnation)

    # Publishing.

    def _publish(self, outputs: Sequence[_Output]) -> SinkProcess | None:
        """Has output published, in spite of what goes wrong. Returns the process that has published it."""
        prepared = [one.prepared for one in outputs if one.prepared is not None]
        publisher = self._publish_prepared(prepared) if prepared else None
        for one in outputs:
            one.visible = True
        return publisher

    def _publish_prepared(self, prepared: list[bytes]) -> SinkProcess:
        error, start = "", time.monotonic()
        for number in itertools.count():
            if number >= TRIES and time.monotonic() - start > self._setting.patience:
                break
            faults = ["kill", "kill", "kill", "freeze", "two", "none", *(["server"] if self._setting.server else [])]
            fault = self._chance.choice(faults) if number < TRIES - FAULTLESS else "none"
            process = self._other() if self._worker is None or self._chance.random() < 0.5 else self._worker
            answer = self._attempt(process, prepared, fault)
            self._report.publications += 1
            if answer is None:
                continue
            if not answer.error:
                self._steps = answer.steps or self._steps
                return process
            error = answer.error
            self._say(f"publishing raised {error.splitlines()[0]}")
            time.sleep(min(0.5, 0.01 * 2 ** min(number, 6)))
        raise SinkFault(f"publishing fails again and again: {error}")

    def _attempt(self, process: SinkProcess, prepared: list[bytes], fault: str) -> SinkAnswer | None:
        """Has one process publish, while a fault happens. Returns its answer, if it gives any."""
        if fault == "server":
            return self._attempt_beside_server(process, prepared)
        cut = self._draw_cut(fault)
        process.send("publish", prepared, cut=cut)
        second = self._other(process) if fault == "two" else None
        if second is not None:
            self._report.doubles += 1
            second.send("publish", prepared[: self._chance.randint(1, len(prepared))])
        answer = self._receive(process)
        if second is not None and self._receive(second) is None:
            self._drop(second)
        if answer is None:
            self._drop(process)
            self._say(f"the publisher is {'killed' if process.gone else 'frozen'} at step {cut and cut[:2]}")
        return answer

    def _draw_cut(self, fault: str) -> CutStep | None:
        if fault not in ("kill", "freeze") or not self._steps:
            return None
        depth = self._chance.choice(sorted(self._steps))
        number = self._chance.randint(1, self._steps[depth])
        return CutStep(depth, number, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    def _attempt_beside_server(self, process: SinkProcess, prepared: list[bytes]) -> SinkAnswer | None:
        """Has one process publish while the server is away, or goes away, or does not answer for a while."""
        server = self._setting.server
        assert server is not None
        self._report.outages += 1
        kind = self._chance.choice(["away", "dies", "bounce", *(["slow"] if hasattr(server, "freeze") else [])])
        self._say(f"the server: {kind}")
        if kind in ("away", "bounce"):
            server.kill()
        if kind == "bounce":
            server.restart()
        if kind == "slow":
            server.freeze()  # type: ignore[attr-defined]
        process.send("publish", prepared)
        time.sleep(self._chance.random() * (0.2 if kind == "slow" else 0.02))
        if kind == "dies":
            server.kill()
        if kind == "slow":
            server.thaw()  # type: ignore[attr-defined]
        elif kind != "bounce":
            time.sleep(0.05)
            server.restart()
        answer = self._receive(process)
        if answer is None:
            self._drop(process)
        return answer

    def _other(self, but: SinkProcess | None = None) -> SinkProcess:
        """A process that only publishes: a new one, or one that has published before."""
        known = [one for one in self._others if one is not but]
        if known and self._chance.random() < 0.6:
            return self._chance.choice(known)
        if len(known) == 3:
            self._others.remove(known[0])
            known[0].kill()
        self._others.append(self._fork())
        return self._others[-1]

    def _call(self, process: SinkProcess, request: str, *args: Any) -> None:
        """Has a process do something that must succeed in the end."""
        for number in range(TRIES):
            process.send(request, *args)
            answer = self._receive(process)
            if answer is None:
                self._drop(process)
                process = self._other()
            elif not answer.error:
                return
            time.sleep(min(0.5, 0.01 * 2**number))
        raise SinkFault(f"{request} fails again and again: {answer and answer.error}")

    def _drop(self, process: SinkProcess) -> None:
        """Takes a process that was killed or frozen out of use."""
        if process is self._worker:
            self._worker = None
        if process in self._others:
            self._others.remove(process)
        if process.gone:
            self._report.kills += 1
        else:
            self._report.freezes += 1
            self._frozen.append(process)
            if len(self._frozen) > 2:
                self._thaw(1)

    def _receive(self, process: SinkProcess) -> SinkAnswer | None:
        """The answer of a process. Frozen ones are thawed if it may wait for what they hold."""
        with suppress(TimeoutError):
            return process.receive(HOLDS_OTHERS if self._frozen else self._setting.patience)
        if self._frozen:
            self._say("a process waits, and frozen ones are thawed")
            self._thaw()
            with suppress(TimeoutError):
                return process.receive(self._setting.patience)
        raise SinkFault(f"a call of the sink takes more than {self._setting.patience} s")

    def _thaw(self, most: int | None = None) -> None:
        """Lets frozen processes go on and end what they were doing."""
        going, self._frozen = self._frozen[:most], self._frozen[len(self._frozen[:most]) :]
        for one in going:
            one.thaw()
        for one in going:
            with suppress(TimeoutError):
                one.receive(self._setting.patience)
            one.kill()

    # What is visible.

    def _compare(self) -> None:
        """Compares what is visible with what must be."""
        for _ in range(TRIES):
            self._reader.send("read")
            answer = self._receive(self._reader)
            if answer is not None and not answer.error:
                break
            time.sleep(0.1)
        else:
            raise SinkFault(f"the function that reads fails: {answer and answer.error}")
        counts = Counter(answer.result)
        due = [n for one in self._outputs if one.visible for n in one.numbers]
        lost = [n for n in due if not counts[n]]
        twice = [n for n, count in counts.items() if count > 1]
        early = [] if self._setting.guarantee == "at-least-once" else sorted(counts.keys() - set(due))
        self._report.twice = max(self._report.twice, len(twice))
        if lost:
            raise SinkFault(f"lost: {_few(lost)} of {len(due)} records")
        if twice and self._setting.guarantee == "exactly-once":
            raise SinkFault(f"twice: {_few(twice)} of {len(due)} records")
        if early:
            raise SinkFault(f"visible, and in no complete checkpoint: {_few(early)}")
        if self._setting.ordered:
            self._compare_order(answer.result)

    def _compare_order(self, numbers: Sequence[int]) -> None:
        writers = {n: one.writer for one in self._outputs for n in one.numbers}
        newest: dict[tuple[str, int], int] = {}
        for n in numbers:
            before = newest.get(writers[n], -1)
            if n < before:
                raise SinkFault(f"order: {before} came before {n}, which the subtask wrote earlier")
            newest[writers[n]] = n

    def _say(self, line: str) -> None:
        self.lines.append(f"  {len(self.lines)}. {line}")


def _few(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return f"{', '.join(map(str, numbers[:10]))}{more}"
