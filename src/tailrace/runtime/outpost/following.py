"""The thread that follows a job whose coordinator runs on an executor (`outpost`): it carries letters, starts and ends
the Spark jobs of workers as the coordinator requests, and is to the program what a `JobRunner` is."""

from __future__ import annotations

import contextlib
import itertools
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from tailrace.coordinator.job.failures import HALF_PUBLISHED, Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Strategy
from tailrace.coordinator.stats import Books, CheckpointStats
from tailrace.coordinator.view.progress import ProgressMaker
from tailrace.coordinator.view.slices import Slices
from tailrace.errors import CheckpointError, TailraceError
from tailrace.graph.plan import Plan
from tailrace.protocol.deployment import FailureKind, SubtaskReport
from tailrace.runtime.driver.announcing import Announcer
from tailrace.runtime.driver.answering import Answering
from tailrace.runtime.driver.coordinator import ANNOUNCE_SECONDS, RECENT, REPORTED
from tailrace.runtime.driver.requests import Unheard, Wish, WishFuture
from tailrace.runtime.driver.slots import SlotProvider
from tailrace.runtime.driver.warning import warn
from tailrace.runtime.eventloop.clock import JobClock, monotonic_micros
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.outpost.mailbox import (
    Begin,
    Cancel,
    Ended,
    Farewell,
    Granted,
    JobOutcome,
    KillSlot,
    Letter,
    Made,
    Mailbox,
    SlotOver,
    StartSlot,
    UserRequest,
    View,
    Warned,
)

CLOSE_SECONDS = 5.0
PREPARING_SECONDS = 60.0
"""Seconds between signs of life before the job is known."""


class CoordinatorGone(TailraceError):
    """The loss of the process with the coordinator: it is gone, or cannot be reached. The text gives the reason."""

    def __init__(self, why: str, cancelled: bool = False) -> None:
        super().__init__(why)
        self.cancelled = cancelled
        """True if a user has cancelled its Spark job, and requires the job to end."""


class CoordinatorChannel(Protocol):
    """The way to a coordinator."""

    def exchange(self, letter: Letter) -> Letter:
        """Brings a letter and waits, a second at most, for one with news. Raises `CoordinatorGone`."""
        ...

    def close(self) -> None:
        """Ends the coordinator's process, which is not needed any more. Nothing of it is left when this returns, or soon
        after."""
        ...


class Follower(threading.Thread):
    """The follower of one job, to its end. The interpreter's exit waits for it.

    It starts before the job does: a coordinator's process requires signs of life from its program. Then `begin` gives the
    job, or `abandon` ends the thread without one. `again` gives a new way when the coordinator was lost, and its `Begin`;
    None for a job that has no checkpoints to go on from.
    """

    def __init__(
        self,
        name: str,
        run_id: str,
        plan: Plan,
        post: CoordinatorChannel,
        provider: SlotProvider,
        on_progress: Callable[[dict[str, Any], JobStatus], None] | None = None,
        on_end: Callable[..., None] | None = None,
        on_published: Iterable[tuple[str, Callable[[], object]]] = (),
        bring: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name=f"tailrace-follower-{name}")
        self.job_name = name
        self.job_id = self.run_id = run_id
        self.status = JobStatus.CREATED
        self.ended = threading.Event()
        self.progress: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.crash: str | None = None
        self.cause: Cause | None = None
        self.again: Callable[[str, int], tuple[CoordinatorChannel, Begin]] | None = None
        self.strategy: Strategy | None = None
        """The rule for whether, and when, a job goes on whose coordinator was lost."""
        self._view, self._viewed_at = View(JobStatus.CREATED), monotonic_micros()
        self._post, self._provider, self._box = post, provider, Mailbox()
        self._on_progress, self._on_end, self._bring = on_progress, on_end, bring
        self._announcer = Announcer(name, on_published)
        self._door: Answering | None = None
        """The door for requests of other processes of this user, while there is a job."""
        self._plan = plan
        self._clock = JobClock()
        self._maker = ProgressMaker(run_id, run_id, name, plan, self._clock.now())
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Wish, WishFuture]] = {}
        self._lock = threading.Lock()  # guards `_waiting`
        self._starts: set[tuple[int, int]] = set()
        """The starts of slots whose Spark jobs run."""
        self._end: Ended | None = None
        self._outcome: JobOutcome | None = None
        self._gone = False
        """True once the coordinator's process is gone."""
        self._abandoned = False
        self._known = threading.Event()
        """Set once the job is known, or it is known that there will be none."""
        self._cancelled = threading.Event()

    # From other threads.

    def begin(self, begin: Begin) -> None:
        """Begins the job."""
        self._say(begin)
        self._door = Answering(self, self._plan, self.wish)
        self._door.start()
        self._known.set()

    def _say(self, begin: Begin) -> None:
        """Sends a `Begin` with the time of the job: one clock for all its coordinators, whatever the clocks of their
        machines are."""
        self._box.say(replace(begin, clock=self._clock.now()))

    def abandon(self) -> None:
        """Ends the thread without a job, which could not be prepared."""
        self._abandoned = True
        self._known.set()
        self.join()

    def cancel(self) -> None:
        """Ends the job at once. After its end this does nothing."""
        self._cancelled.set()
        self._box.say(Cancel())

    def wish(self, wish: Wish) -> WishFuture:
        """Passes a user's wish to the coordinator. Returns the future of its result."""
        future: WishFuture = WishFuture()
        with self._lock:
            over = self.ended.is_set()
            if not over:
                number = next(self._numbers)
                self._waiting[number] = wish, future
                self._box.say(UserRequest(number, wish))
        if over:
            future.set_exception(Unheard(f"job {self.job_name!r} has ended"))
        return future

    @property
    def restarts(self) -> int:
        """Number of restarts after failures."""
        return self._view.restarts

    @property
    def history(self) -> list[CheckpointStats]:
        """The last complete checkpoints, the newest last."""
        return [] if self._view.books is None else list(self._view.books.history)

    @property
    def reports(self) -> list[SubtaskReport]:
        """The newest reports of the workers on their subtasks."""
        since = monotonic_micros() - self._viewed_at
        reports = (report for slot in self._view.slots for report in slot.reports)
        return [msgspec.structs.replace(one, age_micros=one.age_micros + since) for one in reports]

    @property
    def slices(self) -> Slices:
        """The state of each slice: where it runs, which processes hold its state, and how it was replaced."""
        return self._view.slices

    @property
    def books(self) -> Books | None:
        """The figures of the checkpoints; None for a job that takes none."""
        return self._view.books

    def refused(self) -> dict[str, int]:
        """Connections refused at the coordinator's and the workers' ports, by reason."""
        return dict(self._view.refused)

    # The thread.

    def run(self) -> None:
        try:
            self._follow()
            if self._abandoned:
                self._announcer.close(0.0)
            else:
                self._finish()
        except BaseException:
            self.crash = traceback.format_exc()
            self._kill_all()
            self._provider.close(CLOSE_SECONDS)
        finally:
            self._part()
            if self.crash is not None or not self.status.final:
                self.status = JobStatus.FAILED
            with self._lock:
                self.ended.set()  # whatever happened: users wait for it
                left, self._waiting = list(self._waiting.values()), {}
            for _, future in left:
                future.set_exception(Unheard(f"job {self.job_name!r} has ended"))
            if self._door is not None:
                self._door.close()

    def _follow(self) -> None:
        while self._end is None and not self._abandoned:
            self._known.wait(PREPARING_SECONDS)  # a DataFrame's query may take its time
            if self._abandoned:
                break
            try:
                answer = self._post.exchange(self._box.letter())
            except CoordinatorGone as lost:
                self._kill_all()
                if lost.cancelled:
                    self._cancelled.set()
                self._go_on(str(lost))
            else:
                for saying in self._box.receive(answer):
                    self._hear(saying)

    def _go_on(self, why: str) -> None:
        """Handles the loss of the coordinator: the job goes on with another one from its newest checkpoint, or has
        failed."""
        if self._outcome is not None:
            self._end_by_itself(self._outcome.status, self._outcome.cause)
            return
        if not self._provider.lives():
            self._fail(why)
            return
        pause = None if self.strategy is None or self.again is None else self.strategy.delay(monotonic_micros())
        if pause is None and not self._cancelled.is_set():
            self._fail(f"the executor that runs its coordinator was lost: {why}")
        elif self._cancelled.wait((pause or 0) / 1e6):
            self._end_by_itself(JobStatus.CANCELLED, None)
        else:
            self._replace(why)

    def _replace(self, why: str) -> None:
        """Starts another coordinator, and sends it everything that is still to be sent."""
        assert self.again is not None
        self.status = JobStatus.RESTARTING
        self._post.close()
        try:
            self._post, begin = self.again(why, self.restarts)
        except Exception as error:
            self._fail(f"the executor that runs its coordinator was lost ({why}), and no other took its place: {error}")
            return
        self._box = Mailbox()
        self._say(begin)
        with self._lock:
            for number, (wish, _) in self._waiting.items():
                self._box.say(UserRequest(number, wish))
        if self._cancelled.is_set():
            self._box.say(Cancel())

    def _fail(self, message: str) -> None:
        what = message if self.again is not None else f"{message}; {HALF_PUBLISHED}"
        self._end_by_itself(JobStatus.FAILED, Cause(what, FailureKind.WORKER))

    def _end_by_itself(self, status: JobStatus, cause: Cause | None) -> None:
        """Ends the job without its coordinator."""
        kept: dict[str, list[bytes]] | None = None if self.again is not None else {}
        self._end, self._gone = Ended(replace(self._view, status=status), cause, None, kept), True

    def _hear(self, saying: Any) -> None:
        match saying:
            case StartSlot():
                self._launch(saying.config)
            case KillSlot():
                self._provider.kill(saying.slot, saying.launch, saying.pid)
            case View():
                self._see(saying)
            case Warned():
                warn(self.job_name, saying.what)
            case Made():
                self._announcer.announce()
            case Granted():
                self._answer(saying)
            case JobOutcome():
                self._outcome = saying
            case Ended():
                self._end = saying

    def _launch(self, config: WorkerConfig) -> None:
        box, provider, start = self._box, self._provider, (config.slot, config.launch)
        self._starts.add(start)

        def ended(slot: int, error: str | None, cancelled: bool, unfit: bool = False) -> None:
            self._starts.discard(start)
            box.say(SlotOver(*start, error, cancelled, unfit, not provider.lives()))

        provider.launch(config, ended)

    def _see(self, view: View) -> None:
        self._view, self._viewed_at = view, monotonic_micros()
        if not view.status.final:
            self.status = view.status
        if view.due and view.status in REPORTED:
            self._report(view.status)

    def _report(self, status: JobStatus) -> None:
        view = self._view
        self.progress.append(self._maker.make(view.slots, self._clock.now(), view.books, view.restarts, view.slices))
        if self._on_progress is not None:
            with contextlib.suppress(Exception):  # a broken display must not break the job
                self._on_progress(self.progress[-1], status)

    def _answer(self, granted: Granted) -> None:
        with self._lock:
            _, future = self._waiting.pop(granted.number, (None, None))
        if future is None:
            return
        if granted.refused:
            future.set_exception(CheckpointError(granted.refused))
        else:
            future.set_result(granted.result)

    def _kill_all(self) -> None:
        """Ends the Spark jobs of all workers. Workers that noticed the loss of their coordinator have left already."""
        for slot, launch in list(self._starts):
            self._provider.kill(slot, launch, None)

    # The end.

    def _finish(self) -> None:
        end = self._end
        assert end is not None
        self._provider.close(CLOSE_SECONDS)
        status, self.crash, self.cause = end.view.status, end.crash, end.cause
        self._view = end.view
        if status is JobStatus.FINISHED:
            try:
                self._bring()
            except Exception as error:
                status = JobStatus.FAILED
                self.cause = Cause(f"its result could not be brought from the executor that has it: {error}")
        self._announcer.close(ANNOUNCE_SECONDS if status is JobStatus.FINISHED else 0.0)
        if self._on_end is not None and end.kept is not None:
            with contextlib.suppress(Exception):  # tidying up changes nothing about how the job ended
                self._on_end(status, end.kept)
        self.status = status
        if any(slot.reports for slot in self._view.slots):
            self._report(status)

    def _part(self) -> None:
        """Lets the coordinator's process end."""
        self._box.say(Farewell())
        with contextlib.suppress(Exception):  # it is gone already, or ends when no letter comes any more
            if not self._gone:
                self._post.exchange(self._box.letter())
        with contextlib.suppress(Exception):
            self._post.close()
