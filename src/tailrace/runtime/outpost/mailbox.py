"""What a program and the coordinator of its job say to each other where the coordinator is on an executor: letters, which
are carried by short Spark tasks, since no executor can reach the program (decision 22).

A carrier may be lost, or come twice, or late. So each end keeps what it has said until the other one has heard it, and says
it again in each letter; who hears something twice takes it once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.coordinator.actions import Told
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.stats import Books
from tailrace.coordinator.view.slices import Slices
from tailrace.protocol.deployment import SubtaskReport
from tailrace.runtime.driver.requests import Wish
from tailrace.runtime.network.config import WorkerConfig


@dataclass(frozen=True)
class Letter:
    """One letter."""

    heard: int
    """How many sayings of the other end have been heard."""
    first: int
    """The number of the first of `said`; they count from one."""
    said: tuple[Any, ...]


class Mailbox:
    """One end. Its methods may be called from any thread.

    Invariant J5: each saying is taken once, and in the order in which it was said: `heard` grows by one with each.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unheard: deque[Any] = deque()
        """Sayings of this end that the other one may not have heard."""
        self._first = 1
        """The number of the first of them."""
        self._heard = 0

    def say(self, saying: Any) -> None:
        """It goes with the next letter."""
        with self._lock:
            self._unheard.append(saying)

    @property
    def all_heard(self) -> bool:
        """Whether the other end has heard all that was said."""
        return not self._unheard

    def letter(self) -> Letter:
        """What to send now."""
        with self._lock:
            return Letter(self._heard, self._first, tuple(self._unheard))

    def receive(self, letter: Letter) -> Sequence[Any]:
        """What a letter says that is new."""
        with self._lock:
            while self._unheard and self._first <= letter.heard:
                self._unheard.popleft()
                self._first += 1
            skip = self._heard + 1 - letter.first
            new = letter.said[skip:] if skip >= 0 else ()
            self._heard += len(new)
            return new


# The program says:


@dataclass(frozen=True)
class StoreAt:
    """The checkpoint folder of a job, and the checkpoint that it starts from, where it has one."""

    folder: str
    job: str
    options: dict[str, Any] | None = field(repr=False)
    origin: tuple[str, str] | None = None
    """The job's folder that it lies in, and its name there."""
    term: int = 0
    """How many coordinators of the run were lost before."""


@dataclass(frozen=True)
class Begin:
    """The job begins. The coordinator has done nothing yet; its plan is bytes to it."""

    machine: Coordinator
    store: StoreAt | None
    lost: str = ""
    """Why the process that has held the coordinator until now is gone, where there was one: the job goes on from its newest
    checkpoint."""
    clock: int = 0
    """What time it is for the job (int64 microseconds since 1970), by its program."""


@dataclass(frozen=True)
class SlotOver:
    """The Spark job of a slot has ended: see `SlotEnded`. `over`: no Spark job can be started any more."""

    slot: int
    launch: int
    error: str | None
    cancelled: bool
    unfit: bool
    over: bool


@dataclass(frozen=True)
class Cancel:
    """The job is to end at once."""


@dataclass(frozen=True)
class UserRequest:
    """Somebody wants something, and waits for it; the number is theirs."""

    number: int
    wish: Wish


@dataclass(frozen=True)
class Farewell:
    """The program needs nothing more: the coordinator's process ends."""


# The coordinator says:


@dataclass(frozen=True)
class StartSlot:
    """A worker is to be started."""

    config: WorkerConfig


@dataclass(frozen=True)
class KillSlot:
    """A start of a slot is to be ended."""

    slot: int
    launch: int
    pid: int | None


@dataclass(frozen=True)
class SlotFigures:
    """What a slot's worker has reported last."""

    reports: Sequence[SubtaskReport]


@dataclass(frozen=True)
class View:
    """The job as the coordinator sees it."""

    status: JobStatus
    restarts: int = 0
    slots: Sequence[SlotFigures] = ()
    refused: dict[str, int] = field(default_factory=dict)
    books: Books | None = None
    slices: Slices = field(default_factory=Slices)
    due: bool = False
    """Whether it is time for a progress report."""


@dataclass(frozen=True)
class Warned:
    """Something goes wrong in the job: the program's log is to have it, too."""

    what: Told


@dataclass(frozen=True)
class Made:
    """Sinks have published something."""


@dataclass(frozen=True)
class Granted:
    """What has become of a wish: its result, or, where that text is not empty, why there is none."""

    number: int
    result: Any
    refused: str = ""


@dataclass(frozen=True)
class JobOutcome:
    """How the job ends, once that is decided: no other coordinator is to go on with it."""

    status: JobStatus
    cause: Cause | None


@dataclass(frozen=True)
class Ended:
    """The job has ended. `kept` is prepared output that stays, as for the `on_end` of a `JobRunner`; None where that is
    not known."""

    view: View
    cause: Cause | None
    crash: str | None
    kept: dict[str, list[bytes]] | None
