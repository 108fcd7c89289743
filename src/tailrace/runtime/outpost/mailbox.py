"""The letters between a program and the coordinator of its job, if the coordinator is on an executor. Short Spark tasks
carry them, since no executor can reach the program (decision 22).

A carrier may be lost, or come twice, or late. So each end keeps a saying until the other one has received it, and repeats
it in each letter; an end takes a repeated saying only once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.view.jobview import JobView
from tailrace.runtime.driver.user_requests import Wish
from tailrace.runtime.network.config import WorkerConfig


@dataclass(frozen=True)
class Letter:
    """A letter from one end to the other."""

    heard: int
    """Number of sayings of the other end that this end has received."""
    first: int
    """The number of the first of `said`; they count from one."""
    said: tuple[Any, ...]


class Mailbox:
    """One end of the exchange. Its methods may be called from any thread.

    Invariant J5: each saying is taken once, and in the order in which it was said: `heard` grows by one with each.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unheard: deque[Any] = deque()
        """Sayings of this end that the other one may not have received."""
        self._first = 1
        """The number of the first of these sayings."""
        self._received = 0

    def add(self, saying: Any) -> None:
        """Adds a saying to the next letter."""
        with self._lock:
            self._unheard.append(saying)

    @property
    def all_received(self) -> bool:
        """True once the other end has received every saying."""
        return not self._unheard

    def letter(self) -> Letter:
        """The letter to send now."""
        with self._lock:
            return Letter(self._received, self._first, tuple(self._unheard))

    def receive(self, letter: Letter) -> Sequence[Any]:
        """The sayings in a letter that are new."""
        with self._lock:
            while self._unheard and self._first <= letter.heard:
                self._unheard.popleft()
                self._first += 1
            skip = self._received + 1 - letter.first
            new = letter.said[skip:] if skip >= 0 else ()
            self._received += len(new)
            return new


# Sayings of the program:


@dataclass(frozen=True)
class StoreAt:
    """The checkpoint folder of a job, and the checkpoint that it starts from, if it has one."""

    folder: str
    job: str
    options: dict[str, Any] | None = field(repr=False)
    origin: tuple[str, str] | None = None
    """The folder of the origin's job, and the origin's name there."""
    term: int = 0
    """Number of coordinators of the run that were lost before."""


@dataclass(frozen=True)
class Begin:
    """The beginning of a job. The coordinator has done nothing yet; its plan is bytes to it."""

    machine: Coordinator
    store: StoreAt | None
    lost: str = ""
    """The reason why the process that held the coordinator until now is gone, if there was one: the job goes on from its
    newest checkpoint."""
    clock: int = 0
    """The time of the job (int64 microseconds since 1970), by the clock of its program."""
    token: bytes = field(default=b"", repr=False)
    """The token of the job, where a process was lost that knew it; empty where no worker has it."""
    running: tuple[tuple[int, int], ...] = ()
    """The starts of slots whose Spark jobs run: their workers may wait for another coordinator."""
    era: int = 0
    """Number of times that coordinators of the run have started all workers again."""


@dataclass(frozen=True)
class SlotOver:
    """The end of a slot's Spark job: see `SlotEnded`. `over`: no Spark job can be started any more. `era`: that of its
    start. Each coordinator that starts all workers again numbers the starts from the beginning."""

    slot: int
    launch: int
    error: str | None
    cancelled: bool
    unfit: bool
    over: bool
    era: int = 0


@dataclass(frozen=True)
class Cancel:
    """A request to end the job at once."""


@dataclass(frozen=True)
class UserRequest:
    """A wish of a user, who waits for the result; the program has given it the number."""

    number: int
    wish: Wish


@dataclass(frozen=True)
class Farewell:
    """The end of the exchange: the program needs nothing more, and the coordinator's process ends."""


# Sayings of the coordinator, beside all news of the job (`runtime.driver.monitor`):


@dataclass(frozen=True)
class StartSlot:
    """A request to start a worker."""

    config: WorkerConfig


@dataclass(frozen=True)
class KillSlot:
    """A request to end a start of a slot."""

    slot: int
    launch: int
    pid: int | None


@dataclass(frozen=True)
class Granted:
    """The result of a wish, or, in `refused`, the reason why there is none."""

    number: int
    result: Any
    refused: str = ""


@dataclass(frozen=True)
class StartedAgain:
    """A report that the coordinator starts all workers again: those of a lost coordinator are not needed any more."""


@dataclass(frozen=True)
class JobOutcome:
    """The end of the job, once it is decided: no other coordinator is to go on with it."""

    view: JobView
