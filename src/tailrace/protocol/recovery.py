"""The restart of a job in the processes that survived.

worker                          coordinator
                          <-    Reset(attempt)     drop all tasks; messages that the worker has sent before do not count
WasReset(attempt)         ->
                          <-    Deploy(…)          as at the start (`deployment`), with what is to be restored
"""

from __future__ import annotations

from tailrace.protocol.message import Message


class Reset(Message, frozen=True):
    """A command to a worker: give up all tasks, close the links to other workers, and wait for a new `Deploy`."""

    attempt: int
    """The number of restarts of the job, this one included."""


class WasReset(Message, frozen=True):
    """A report of a worker: it runs nothing any more. What it has sent before belongs to the attempt before."""

    attempt: int
