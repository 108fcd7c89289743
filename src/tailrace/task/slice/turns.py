"""Whose turn it is among the tasks of one worker."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.task.subtask.machine import Task

PATIENCE = 16
"""After so many steps in which no source was read, though there are some, the next one is asked first."""
ROUNDS = 4
"""Tasks that are to cut come before all others for so many steps of each, more than are made up for; then all take turns
until these are."""


class Turns:
    """All tasks but the sources take turns, each one step, from upstream to downstream; a source only where none of them
    has anything to do.

    So what comes to a task while the others have their turns waits, and is read together. If the most downstream task were
    always asked first, what is ahead would stay ahead: each exchange parts a batch, nothing would ever put the parts
    together, and behind some tens of exchanges each record would be a batch of its own. Sources wait, so that a worker
    does not fill up with records which it cannot process yet.

    Two things keep sources from waiting for ever. They come first where the head of a loop has read feedback: a busy loop
    always has something to do. And they do from time to time in any case: records from other workers may never cease.

    A task that is to make a cut comes before all others: checkpoints would wait until busy tasks rest. Where checkpoints
    come, and are given up, faster than all tasks can cut, some always are to; so in the long run no more steps are theirs
    than there are turns.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        """`tasks`: the most downstream one first."""
        self._tasks = tasks
        self._others = [task for task in reversed(tasks) if task.chain.source is None]
        self._sources = [task for task in reversed(tasks) if task.chain.source is not None]
        self._behind = {task.id: at + 1 for row in (self._others, self._sources) for at, task in enumerate(row)}
        """Where the next one is in its row."""
        self._other = self._source = 0
        """Who has the next turn in each row."""
        self._waited = 0
        """How many steps were done since a source was read, or came first; `PATIENCE` where sources are to come first."""
        self._first: list[Task] = []
        """Those that came before all others when this was asked last."""
        self._owed = 0
        """How many steps of such tasks no turns have made up for."""
        self._makes_up = False
        """Whether nobody comes before others until they have."""

    def to_cut(self) -> list[Task]:
        """Those that are to make a cut, and come before the others."""
        self._first = [] if self._makes_up else [task for task in self._tasks if task.has_cut_to_make]
        return self._first

    def order(self) -> list[Task]:
        """All tasks in the order in which they are asked."""
        others, sources = self._others, self._sources
        others = others[self._other :] + others[: self._other]
        sources = sources[self._source :] + sources[: self._source]
        return sources + others if self._waited >= PATIENCE else others + sources

    def stepped(self, task: Task) -> None:
        """This task has done something."""
        before = any(task is one for one in self._first)
        self._owed = self._owed + 1 if before else max(0, self._owed - 1)
        self._makes_up = self._owed > 0 if self._makes_up else self._owed >= ROUNDS * len(self._tasks)
        self._first = []
        behind = self._behind[task.id]
        if task.chain.source is not None:
            self._source = behind % len(self._sources)
            self._waited = 0
        else:
            self._other = behind % len(self._others)
            had_nothing = self._waited >= PATIENCE  # the source that came first
            self._waited = PATIENCE if task.work.brought_in else 1 if had_nothing else self._waited + 1
