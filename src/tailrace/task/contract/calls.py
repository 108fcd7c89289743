"""Asynchronous calls of user code: the contract between an operator that requests them and the driver that makes them.

An operator opens its function here. Its calls begin by an action (`contract.actions.BeginCalls`), which a replay does not
carry out. An event reports how many were answered (`contract.events.CallsAnswered`), and the operator takes the answers
during a step, by `contract.outside`: so they are in whatever log that has.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn, Protocol

from tailrace.graph.operators import MapAsync


class Answer(NamedTuple):
    """The answer to one call."""

    numbers: tuple[int, ...]
    """The numbers of the records of the call."""
    results: list[Any]
    """The results, in the order of the records; empty for a call that has failed."""
    where: str | None = None
    """For a call that has failed: the user's line that raised, or an empty text. `AsyncCalls.raise_error` has the error."""


class AsyncCalls(Protocol):
    """The asynchronous calls of a worker."""

    def open(self, uid: str, operator: MapAsync, ctx: Any) -> None:
        """Opens the function of an operator. Raises what its `open` raises."""

    def close(self, uid: str) -> None:
        """Cancels all calls of an operator, drops their answers, and closes its function. Raises what that raises."""

    def take(self, uid: str, count: int) -> list[Answer]:
        """Takes the next answers of an operator, of which so many were reported at least."""

    def raise_error(self, uid: str, number: int) -> NoReturn:
        """Raises the error of a failed call that was taken, once. `number` is that of its first record."""
