"""Work beside a task, in threads of the driver: calls of user code that may wait, and readers that wake their task."""

from __future__ import annotations

from collections.abc import Callable


def _wake_nobody() -> None:
    """Does nothing: nobody sleeps."""


class Beside:
    """What a driver does beside the tasks of its worker. This one has no threads: it works at once."""

    def waker(self, uid: str) -> Callable[[], object]:
        """A function, for any thread, that wakes the source with this uid (`contract.events.ReaderWoken`)."""
        return _wake_nobody

    def call(self, uid: str, call: Callable[[], object]) -> None:
        """Makes a call for an operator, which raises nothing: one at a time, in order."""
        call()

    def wait(self, uid: str) -> None:
        """Waits for the calls of an operator, for a limited time."""

    def warn(self, text: str) -> None:
        """Writes a warning to the log."""
