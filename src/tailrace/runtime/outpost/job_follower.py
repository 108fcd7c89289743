"""The thread that follows a job whose coordinator runs on an executor (`outpost`): it carries letters, starts and ends
the Spark jobs of workers as the coordinator requests, and is to the program what a `JobRunner` is."""

from __future__ import annotations

import contextlib
import itertools
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tailrace.coordinator.job.failures import HALF_PUBLISHED, Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Strategy
from tailrace.coordinator.view.jobview import JobView
from tailrace.errors import CheckpointError, ConfigError, TailraceError
from tailrace.protocol.deployment import FailureKind
from tailrace.runtime.driver.monitor import JobEnd, ProgramMonitor
from tailrace.runtime.driver.slot_provider import SlotProvider
from tailrace.runtime.driver.user_requests import Unheard, Wish, WishFuture
from tailrace.runtime.eventloop.clock import monotonic_micros
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.outpost.mailbox import (
    Begin,
    Cancel,
    Farewell,
    Granted,
    JobOutcome,
    KillSlot,
    Letter,
    Mailbox,
    SlotOver,
    StartedAgain,
    StartSlot,
    UserRequest,
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


class CoordinatorNotStarted(ConfigError):
    """The end of the Spark job that was to run a coordinator, before the coordinator was there. The executor may have been
    lost meanwhile, so another start may succeed."""


class CoordinatorChannel(Protocol):
    """The way to a coordinator."""

    def exchange(self, letter: Letter) -> Letter:
        """Brings a letter and waits, a second at most, for one with news. Raises `CoordinatorGone`."""

    def close(self) -> None:
        """Ends the coordinator's process, which is not needed any more. Nothing of it is left when this returns, or soon
        after."""


@dataclass(frozen=True)
class Succession:
    """The way in which a job goes on whose coordinator was lost. `strategy`: whether it does, and when. `next`: from the
    reason of the loss and the last view of the job, the way to another coordinator, and its `Begin`. After its
    `CoordinatorNotStarted` the strategy decides once more."""

    strategy: Strategy
    next: Callable[[str, JobView], tuple[CoordinatorChannel, Begin]]


class Follower(threading.Thread):
    """The follower of one job, to its end. The interpreter's exit waits for it.

    It starts before the job does: a coordinator's process requires signs of life from its program. Then `begin` gives the
    job, or `abandon` ends the thread without one.
    """

    def __init__(
        self,
        post: CoordinatorChannel,
        provider: SlotProvider,
        monitor: ProgramMonitor,
        bring: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name=f"tailrace-follower-{monitor.job_name}")
        self.monitor = monitor
        self._view = JobView(JobStatus.CREATED)
        """The view of the job that came last."""
        self._post, self._provider, self._box = post, provider, Mailbox()
        self._bring = bring
        self._succession: Succession | None = None
        """None for a job that has no checkpoints to go on from."""
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Wish, WishFuture]] = {}
        self._over = False
        """True once no wish is taken any more."""
        self._lock = threading.Lock()  # guards `_waiting` and `_over`, and that `Begin` comes first in a box
        self._starts: set[tuple[int, int]] = set()
        """The starts of slots whose Spark jobs run."""
        self._era = 0
        """Number of times that all workers were given up, since they could not go on with another coordinator."""
        self._token = b""
        """The token of the job, once a worker was started; empty where workers do not wait for another coordinator."""
        self._end: JobEnd | None = None
        self._outcome: JobView | None = None
        """The view of the job at its end, once this is decided."""
        self._gone = False
        """True once the coordinator's process is gone."""
        self._abandoned = False
        self._known = threading.Event()
        """Set once the job is known, or it is known that there will be none."""
        self._cancelled = threading.Event()

    # From other threads.

    def begin(self, begin: Begin, succession: Succession | None = None) -> None:
        """Begins the job."""
        self._succession = succession
        self._send_begin(begin)
        self.monitor.open(self)
        self._known.set()

    def _send_begin(self, begin: Begin) -> None:
        """Sends a `Begin` with the time of the job: one clock for all its coordinators, whatever the clocks of their
        machines are."""
        self._box.add(replace(begin, clock=self.monitor.clock.now()))

    def abandon(self) -> None:
        """Ends the thread without a job, which could not be prepared."""
        self._abandoned = True
        self._known.set()
        self.join()

    def cancel(self) -> None:
        """Ends the job at once. After its end this does nothing."""
        self._cancelled.set()
        self._box.add(Cancel())

    def wish(self, wish: Wish) -> WishFuture:
        """Passes a user's wish to the coordinator. Returns the future of its result."""
        future: WishFuture = WishFuture()
        with self._lock:
            over = self._over
            if not over:
                number = next(self._numbers)
                self._waiting[number] = wish, future
                self._box.add(UserRequest(number, wish))
        if over:
            future.set_exception(Unheard(f"job {self.monitor.job_name!r} has ended"))
        return future

    @property
    def view(self) -> JobView:
        """The view of the job that came last, with the age that its reports have by now."""
        return self._view.with_ages(self.monitor.clock.now())

    # The thread.

    def run(self) -> None:
        try:
            self._follow()
            if not self._abandoned:
                self._finish()
        except BaseException:
            self.monitor.crash = traceback.format_exc()
            self._kill_all()
            self._provider.close(CLOSE_SECONDS)
        finally:
            self._part()
            with self._lock:
                self._over = True
                left, self._waiting = list(self._waiting.values()), {}
            for _, future in left:
                future.set_exception(Unheard(f"job {self.monitor.job_name!r} has ended"))
            self.monitor.close()  # whatever happened: users wait for it

    def _follow(self) -> None:
        while self._end is None and not self._abandoned:
            self._known.wait(PREPARING_SECONDS)  # a DataFrame's query may take its time
            if self._abandoned:
                break
            try:
                answer = self._post.exchange(self._box.letter())
            except CoordinatorGone as lost:
                if not self._token:
                    self._kill_all()
                if lost.cancelled:
                    self._cancelled.set()
                self._go_on(str(lost))
            else:
                for saying in self._box.receive(answer):
                    self._receive(saying)

    def _go_on(self, why: str) -> None:
        """Handles the loss of the coordinator: the job goes on with another one from its newest checkpoint, or has
        failed."""
        lost = why
        while lost:
            lost = self._try_another(lost)

    def _try_another(self, why: str) -> str:
        """Tries to go on with another coordinator. Returns the reason why that one is lost as well, if it is; the job has
        ended, or goes on, otherwise."""
        if self._outcome is not None:
            self._end_by_itself(self._outcome.status, self._outcome.cause)
            return ""
        if not self._provider.lives():
            self._fail(why)
            return ""
        succession = self._succession
        pause = None if succession is None else succession.strategy.delay(monotonic_micros())
        if pause is None and not self._cancelled.is_set():
            self._fail(f"the executor that runs its coordinator was lost: {why}")
        elif self._cancelled.wait((pause or 0) / 1e6):
            self._end_by_itself(JobStatus.CANCELLED, None)
        else:
            assert succession is not None
            return self._replace(succession, why)
        return ""

    def _replace(self, succession: Succession, why: str) -> str:
        """Starts another coordinator, and sends it everything that is still to be sent. Returns the reason why that could
        not be started, where another one may be."""
        self._see(replace(self._view, status=JobStatus.RESTARTING, due=False))
        self._post.close()
        try:
            self._post, begin = succession.next(why, self._view)
        except CoordinatorNotStarted as error:
            return f"{why}; {error}"
        except Exception as error:
            self._fail(f"the executor that runs its coordinator was lost ({why}), and no other took its place: {error}")
            return ""
        with self._lock:
            self._box = Mailbox()
            running = tuple(sorted(self._starts))
            self._send_begin(replace(begin, token=self._token, running=running, era=self._era))
            for number, (wish, _) in self._waiting.items():
                self._box.add(UserRequest(number, wish))
        if self._cancelled.is_set():
            self._box.add(Cancel())
        return ""

    def _fail(self, message: str) -> None:
        what = message if self._succession is not None else f"{message}; {HALF_PUBLISHED}"
        self._end_by_itself(JobStatus.FAILED, Cause(what, FailureKind.WORKER))

    def _end_by_itself(self, status: JobStatus, cause: Cause | None) -> None:
        """Ends the job without its coordinator."""
        kept: dict[str, list[bytes]] | None = None if self._succession is not None else {}
        self._kill_all()
        self._end, self._gone = JobEnd(replace(self.view, status=status, cause=cause), None, kept), True

    def _receive(self, saying: Any) -> None:
        match saying:
            case StartSlot():
                self._launch(saying.config)
            case KillSlot():
                self._provider.kill(saying.slot, saying.launch, saying.pid)
            case Granted():
                self._answer(saying)
            case StartedAgain():
                self._kill_all()
                with self._lock:
                    self._era += 1
                    self._starts = set()
            case JobOutcome():
                self._outcome = saying.view
            case JobEnd():
                self._end = saying
            case JobView():
                self._see(saying)
            case _:
                self.monitor.receive(saying)

    def _see(self, view: JobView) -> None:
        self._view = view
        self.monitor.receive(view)

    def _launch(self, config: WorkerConfig) -> None:
        era, provider, start = self._era, self._provider, (config.slot, config.launch)
        self._starts.add(start)
        self._token = config.token if config.waits else b""

        def end(slot: int, error: str | None, cancelled: bool, unfit: bool = False) -> None:
            over = not provider.lives()
            with self._lock:
                if era == self._era:
                    self._starts.discard(start)
                    self._box.add(SlotOver(*start, error, cancelled, unfit, over, era))

        provider.launch(config, end)

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
        if end.view.status is JobStatus.FINISHED:
            try:
                self._bring()
            except Exception as error:
                cause = Cause(f"its result could not be brought from the executor that has it: {error}")
                end = replace(end, view=replace(end.view, status=JobStatus.FAILED, cause=cause))
        self._view = end.view
        self.monitor.receive(end)

    def _part(self) -> None:
        """Lets the coordinator's process end."""
        self._box.add(Farewell())
        with contextlib.suppress(Exception):  # it is gone already, or ends when no letter comes any more
            if not self._gone:
                self._post.exchange(self._box.letter())
        with contextlib.suppress(Exception):
            self._post.close()
