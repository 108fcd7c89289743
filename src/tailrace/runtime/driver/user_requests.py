"""Wishes of users to a running job, for which they wait: values, because the coordinator may be in another process."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from tailrace.coordinator.durability.stopping import Aim
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.view.jobview import JobView
from tailrace.coordinator.workers.rescaling import JobSize
from tailrace.errors import CheckpointError

WishFuture = Future[Any]
"""The result of a wish: `CheckpointStats`, `SavepointStats` (or None, for a stop that leaves neither), what a close look has
shown, the number of workers of a job that has another size, or a `CheckpointError` or `RescaleError` with the reason why
there is none."""
LOOK_SECONDS = 2.0
"""Seconds for which workers look on which keys their time goes."""


class Unheard(CheckpointError):
    """The error of a wish to a job that had ended before its coordinator received or answered it."""


@dataclass(frozen=True)
class TakeCheckpoint:
    """A wish for a checkpoint, now."""


@dataclass(frozen=True)
class TakeSavepoint:
    """A wish for a savepoint, now."""

    target: str = ""
    """The path or URL of its folder; empty for the usual one."""
    unaligned: bool = False
    """True if its barriers go past records that wait."""
    cancels: bool = False
    """True if the job is cancelled when it is there."""


@dataclass(frozen=True)
class Stop:
    """A wish for the end of the job, in order."""

    aim: Aim


@dataclass(frozen=True)
class ChangeSize:
    """A wish for another size of the job."""

    size: JobSize


@dataclass(frozen=True)
class FailJob:
    """A wish of what the job depends on: it cannot go on, for this reason."""

    reason: str


@dataclass(frozen=True)
class InspectWorkers:
    """A wish for the stacks of all threads of the workers. `seconds`: so long they look on which keys their time goes."""

    seconds: float = 0.0


Wish = TakeCheckpoint | TakeSavepoint | Stop | ChangeSize | FailJob | InspectWorkers


class Runner(Protocol):
    """A runner of a job, as its users see it."""

    @property
    def view(self) -> JobView:
        """The newest view of the job."""

    def cancel(self) -> None:
        """Ends the job at once. After its end this does nothing."""

    def wish(self, wish: Wish) -> WishFuture:
        """Passes a user's wish to the coordinator. Returns the future of its result."""


def put(machine: Coordinator, wish: Wish, future: WishFuture, now: int) -> None:
    """Hands a wish to a coordinator. The result is an action that carries the future. Close looks at the workers are no
    matter of the coordinator's."""
    match wish:
        case TakeCheckpoint():
            machine.checkpoint(future, now)
        case TakeSavepoint():
            machine.savepoint(future, wish.target, now, unaligned=wish.unaligned, cancels=wish.cancels)
        case Stop():
            machine.stop(future, wish.aim, now)
        case ChangeSize():
            machine.rescale(future, wish.size, now)
        case FailJob():
            machine.fail(wish.reason, now)
            future.set_result(None)
        case InspectWorkers():
            raise AssertionError("the runner carries it out")
        case _:
            assert_never(wish)


def wish_of(request: dict[str, Any]) -> Wish | None:
    """The wish in a request of another process of this user; None if it is no known one."""
    match request.get("verb"):
        case "checkpoint":
            return TakeCheckpoint()
        case "savepoint":
            unaligned, cancels = bool(request.get("unaligned")), bool(request.get("cancels"))
            return TakeSavepoint(str(request.get("path") or ""), unaligned, cancels)
        case "stop":
            place = request.get("savepoint")
            return Stop(Aim(bool(request.get("drain")), None if place is None else str(place)))
        case "stacks":
            return InspectWorkers()
    return None


def result_of(future: WishFuture) -> dict[str, Any]:
    """The result of a wish, in a form for another process."""
    error = future.exception()
    if error is not None:
        return {"error": str(error)}
    stats = future.result()
    if stats is None:
        return {}
    if isinstance(stats, dict):
        return stats
    if isinstance(stats, int):
        return {"workers": stats}
    return {"id": stats.id, "path": stats.path, "bytes": stats.size, "duration": stats.duration / 1e6}
