"""Restarting a job in the processes that survived.

worker                          coordinator
                          <-    Reset(attempt)     drop what you run; whatever you said before does not count
WasReset(attempt)         ->
                          <-    Deploy(…)          as at the start (`deployment`), with what is to be restored
"""

from __future__ import annotations

from tailrace.protocol.message import Message


class Reset(Message, frozen=True):
    """Give up all tasks, close the links to other workers, and wait for a new `Deploy`."""

    attempt: int
    """How many times the job was restarted, this one included."""


class WasReset(Message, frozen=True):
    """Nothing of what the worker ran is left. What came from it before belongs to the attempt before."""

    attempt: int
