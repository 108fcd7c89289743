"""A coordinator on an executor: the process that hosts it for a program which executors cannot reach.

It serves a folder, as a driver does (`hosted_folder`), and takes letters (`mailbox`) at the same port. Short Spark tasks
bring both. The coordinator listens at a port of its own, and its workers reach it there as they would reach a driver. The
program starts and ends their Spark jobs, since no other process can.

A program that has died cannot be told from one that is silent. So the job is cancelled, and the process ends, when no
letter has come for `SILENCE_SECONDS`.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.succession.machine import LoggedCoordinator
from tailrace.coordinator.view.jobview import JobView
from tailrace.errors import error_text
from tailrace.runtime.driver.coordinator import JobRunner
from tailrace.runtime.driver.monitor import JobEnd, JobMonitor, News
from tailrace.runtime.driver.slot_provider import Leaving, Room, SlotEnded
from tailrace.runtime.driver.user_requests import Wish, WishFuture
from tailrace.runtime.eventloop.clock import JobClock, monotonic_micros
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.outpost.hosted_folder import FileRequest, FileResponse, FolderHost
from tailrace.runtime.outpost.mailbox import (
    Begin,
    Cancel,
    Farewell,
    Granted,
    JobOutcome,
    KillSlot,
    Mailbox,
    SlotOver,
    StartedAgain,
    StartSlot,
    StoreAt,
    UserRequest,
)
from tailrace.runtime.outpost.succession import Reunion
from tailrace.storage.end_of_run import Awaited
from tailrace.storage.store import Store

LETTER = "letter"
"""The verb of a request that brings a letter. Its answer is another letter, with the number zero if it is not worth the
way."""
SILENCE_SECONDS = 60.0
PREPARING_SECONDS = 600.0
"""Seconds of silence after which the process ends before the job begins: a DataFrame's query may keep all of Spark busy."""
_LOOK_SECONDS = 0.2


class Outpost(FolderHost):
    """The folder and letter box of the process, until `stay` returns."""

    def __init__(
        self,
        at: Binding,
        limit: int,
        *,
        token: bytes | None = None,
        silence: float = SILENCE_SECONDS,
        preparing: float = PREPARING_SECONDS,
    ) -> None:
        self._silence, self._preparing = silence, preparing
        self._at = at
        self._box = Mailbox()
        self._runner: FarRunner | None = None
        self._received_at = time.monotonic()
        self._over = threading.Event()
        self._forsaken = False
        """True once the program counts as dead."""
        self._scratch = tempfile.mkdtemp(prefix="tailrace-outpost-")
        try:
            super().__init__(self._scratch, at, limit, token)
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def answer(self, request: FileRequest, data: bytes) -> tuple[FileResponse, bytes]:
        if self._forsaken:
            raise OSError("the job was cancelled, since its program was silent for too long")
        if request.verb != LETTER:
            if self._runner is not None and self._runner.monitor.ended.is_set():
                self._received_at = time.monotonic()  # the program fetches the job's result
            return super().answer(request, data)
        self._received_at = time.monotonic()
        for saying in self._box.receive(pickle.loads(data)):
            self._receive(saying)
        answer = self._box.letter()
        return FileResponse(number=len(answer.said) or int(self._over.is_set())), pickle.dumps(answer, 5)

    def stay(self) -> str:
        """Serves until the program sends its farewell, or is silent for too long. Returns the reason of its end."""
        try:
            while not self._over.wait(_LOOK_SECONDS):
                silent = time.monotonic() - self._received_at
                if silent > (self._preparing if self._runner is None else self._silence):
                    self._forsaken = True
                    return f"the program was silent for {silent:.0f} s"
            return "the program has said farewell"
        finally:
            if self._runner is not None:
                self._runner.abandoned.set()
                self._runner.cancel()
                self._runner.slots.forsaken()
                self._runner.monitor.ended.wait(30.0)
            self.close()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _receive(self, saying: Any) -> None:
        runner = self._runner
        match saying:
            case Begin():
                self._begin(saying)
            case Farewell():
                self._over.set()
            case _ if runner is None:
                pass  # a job that has not begun has nothing to end
            case SlotOver():
                runner.slots.over(saying)
            case Cancel():
                runner.cancel()
            case UserRequest():
                runner.wish(saying.wish).add_done_callback(partial(self._grant, runner, saying.number))

    def _begin(self, begin: Begin) -> None:
        try:
            self._runner = FarRunner(begin, self._at, self._box)
        except Exception as error:  # the storage of checkpoints is out of reach from here
            cause = Cause(f"the coordinator cannot begin on its executor: {error_text(error)}")
            self._box.add(JobEnd(JobView(JobStatus.FAILED, begin.clock, cause=cause), None, None))
        else:
            self._runner.start()

    def _grant(self, runner: FarRunner, number: int, future: WishFuture) -> None:
        """Passes on the result of a wish, behind a view that shows it."""
        error = future.exception()
        self._box.add(runner.view)
        self._box.add(Granted(number, None, str(error)) if error is not None else Granted(number, future.result()))


class FarSlots:
    """The slots of a job whose Spark jobs the program starts: it is requested to in letters. A `SlotProvider`."""

    def __init__(self, at: Binding, box: Mailbox, era: int = 0, left: Collection[tuple[int, int]] = ()) -> None:
        """`era`: see `Begin`. `left`: the starts of slots that a lost coordinator has requested, and that still run."""
        self._at, self._box, self._era = at, box, era
        self._lock = threading.Lock()  # guards `_ended` and `_left`: ends come in another thread
        self._ended: dict[tuple[int, int], SlotEnded] = {}
        self._left = set(left)
        """The starts of a lost coordinator whose ends nobody awaits yet."""
        self._lives = True

    def listen_at(self) -> Binding:
        return self._at

    def launch(self, config: WorkerConfig, ended: SlotEnded) -> None:
        with self._lock:
            self._ended[config.slot, config.launch] = ended
        self._box.add(StartSlot(config))

    def over(self, report: SlotOver) -> None:
        """Takes the program's report that a start of a slot has ended."""
        self._lives = self._lives and not report.over
        start = report.slot, report.launch
        with self._lock:
            if report.era != self._era:
                return
            self._left.discard(start)
            ended = self._ended.pop(start, None)
        if ended is not None:
            ended(report.slot, report.error, report.cancelled, report.unfit)

    @property
    def left(self) -> set[tuple[int, int]]:
        """The starts of slots that a lost coordinator has requested, and that still run."""
        with self._lock:
            return set(self._left)

    def adopt(self, ended: Callable[[int], SlotEnded]) -> set[tuple[int, int]]:
        """Takes on the starts of slots that a lost coordinator has requested, and that still run. Returns them: of no
        other one will the end be reported."""
        with self._lock:
            left, self._left = self._left, set()
            self._ended |= {start: ended(start[1]) for start in left}
        return left

    def forget(self) -> None:
        """Forgets all starts: their ends do not count any more."""
        with self._lock:
            self._era += 1
            self._left.clear()
            self._ended.clear()

    def forsaken(self) -> None:
        """Ends all slots: the program is gone, and will report no end of a start of a slot any more."""
        with self._lock:
            starts = [*self._left, *self._ended]
        for slot, launch in starts:
            self.over(SlotOver(slot, launch, None, False, False, True, self._era))

    def watch(self, leaving: Leaving, room: Room | None = None) -> None:
        """Does nothing: workers themselves see that their executors are decommissioned (`runtime.worker.executor_end`)."""

    def kill(self, slot: int, launch: int, pid: int | None) -> None:
        self._box.add(KillSlot(slot, launch, pid))

    def executor(self, slot: int, launch: int) -> str | None:
        """Returns None: Spark Connect does not give the id."""
        return None

    def lives(self) -> bool:
        return self._lives

    def close(self, timeout: float) -> None:
        """Does nothing: the program waits for its threads."""


class LetterMonitor(JobMonitor):
    """The monitor of a job whose program is elsewhere: it passes all news on in letters."""

    def __init__(self, job_name: str, clock: JobClock, box: Mailbox) -> None:
        super().__init__(job_name, clock)
        self._box = box

    def receive(self, news: News) -> None:
        self._box.add(news)


class FarRunner(JobRunner):
    """The runner of a job for a program that reads of it in letters."""

    def __init__(self, begin: Begin, at: Binding, box: Mailbox) -> None:
        machine, store = begin.machine, begin.store
        self.slots, self._box, self._lost = FarSlots(at, box, begin.era, begin.running), box, begin.lost
        self._term = 0 if store is None else store.term
        self._begun, self._cancelled = threading.Event(), threading.Event()
        self._early: list[tuple[Wish, WishFuture]] = []
        """Wishes that came before the job had begun, or gone on behind the loss of a coordinator."""
        self.abandoned = threading.Event()
        """Set once the program will receive nothing more."""
        clock = JobClock()
        clock.follow(begin.clock)
        monitor = LetterMonitor(machine.job, clock, box)
        now = clock.now if machine.waits else monotonic_micros  # one clock for all coordinators of the job
        place = None if store is None else store_at(store, machine.run_id)
        super().__init__(machine, self.slots, monitor, place, begin.token, now)
        if self.store is not None and store is not None and store.origin is not None:
            folder, name = store.origin
            options = store.options
            self.store.origin_marked = lambda: Store.at(folder, options).is_published(name)

    def _start_machine(self) -> None:
        if not self._lost:
            super()._start_machine()
        elif not self._go_on():
            self._box.add(StartedAgain())
            self.slots.forget()
            self.machine.take_over(self._lost, self._now())
        self._begun.set()
        if self._cancelled.is_set():
            self.machine.cancel(self._now())
        for wish, future in self._early:
            self._put(wish, future)

    def cancel(self) -> None:
        """Ends the job at once, or as soon as it has begun."""
        self._cancelled.set()
        if self._begun.is_set():
            super().cancel()

    def _put(self, wish: Wish, future: WishFuture) -> None:
        if self._begun.is_set():
            super()._put(wish, future)
        else:
            self._early.append((wish, future))

    def _go_on(self) -> bool:
        """Goes on with the workers of a lost coordinator, where there are such. Returns False where all start again."""
        machine, slots = self.machine, self.slots
        if not slots.left or not isinstance(machine, LoggedCoordinator) or self.store is None:
            return False
        machine.begin_term(self._term)
        reunion = Reunion(machine, self.store, self._workers, self._loop)
        reason = reunion.go_on(self._lost, lambda: slots.left, self._now, self._cancelled.is_set)
        if reason:
            self._lost = f"{self._lost}; no other one could go on with its workers: {reason}"
            return False
        machine.checkpoints.clock_offset = self._clock.now() - self._now()
        self.monitor.receive(self.view)
        self._end_old_starts(machine)
        return True

    def _end_old_starts(self, machine: LoggedCoordinator) -> None:
        """Reports the starts of slots that have ended while there was no coordinator, and ends those that were to end."""
        running = self.slots.adopt(self._end_of)
        for start in [start for place in machine.roster.places for start in sorted(place.running)]:
            if start not in running:
                error = "it ended while the job had no coordinator"
                machine.slot_ended(start[0], error, self._now(), launch=start[1])
        for start in [start for place in machine.roster.places for start in sorted(place.unwanted & running)]:
            self.slots.kill(*start, None)

    def _end_storage(self) -> Awaited | None:
        """Ends the storage once the program knows how the job has ended. Otherwise the program would go on after the loss
        of this process, and from the beginning if the checkpoints are gone by then."""
        self._box.add(JobOutcome(self.view))
        while not self._box.all_received and not self.abandoned.wait(_LOOK_SECONDS / 4):
            pass
        if self._box.all_received or self.store is None:
            return super()._end_storage()
        return self.store.end(None)  # the program may come back, and go on from what is there


def store_at(place: StoreAt, run_id: str) -> Store:
    """The checkpoint folder of a job that another process of the same run has claimed."""
    store = Store(place.folder, place.job, place.options)
    store.hold(run_id, place.term)
    return store
