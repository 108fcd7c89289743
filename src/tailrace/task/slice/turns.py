"""The turns of the tasks of one worker."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.task.subtask.machine import Task

PATIENCE = 16
"""Steps without a read of a source, if there are sources, after which a source comes first."""
ROUNDS = 4
"""Steps per task by which tasks with a cut to make may be ahead of the turns. Then all tasks take turns until this is
made up for."""


class Turns:
    """The order in which the tasks of a worker are stepped. All tasks but the sources take turns, each one step, from
    upstream to downstream; a source has its turn only when none of them has anything to do.

    So what comes to a task while the others have their turns waits, and is read together. If the most downstream task
    always came first, what is ahead would stay ahead: each exchange parts a batch, nothing would ever put the parts
    together, and behind some tens of exchanges each record would be a batch of its own. Sources wait, so that a worker
    does not fill up with records which it cannot process yet.

    Two rules keep sources from waiting for ever. They come first after the head of a loop has read feedback: a busy loop
    always has something to do. And they come first from time to time in any case: records from other workers may never
    cease.

    A task that is to make a cut comes before all others: otherwise checkpoints would wait until busy tasks rest. If
    checkpoints come, and are given up, faster than all tasks can cut, some task always has a cut to make. So in the long
    run tasks with a cut get no more extra steps than there are turns.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        """`tasks`: the most downstream one first."""
        self._tasks = tasks
        self._others = [task for task in reversed(tasks) if task.chain.source is None]
        self._sources = [task for task in reversed(tasks) if task.chain.source is not None]
        self._behind = {task.id: at + 1 for row in (self._others, self._sources) for at, task in enumerate(row)}
        """The index in its row behind each task, by id."""
        self._other = self._source = 0
        """The indices of the tasks that have the next turn, in the row of others and in that of sources."""
        self._waited = 0
        """Steps since a source was read or came first; `PATIENCE` while sources are to come first."""
        self._first: list[Task] = []
        """Tasks that the last `to_cut` moved to the front."""
        self._owed = 0
        """Extra steps that these tasks got and the others have not yet been compensated for."""
        self._makes_up = False
        """True while no task is moved to the front, until the others are compensated."""

    def to_cut(self) -> list[Task]:
        """The tasks that are to make a cut, and come before the others."""
        self._first = (
            [] if self._makes_up else [task for task in self._tasks if task.checkpoints.may_cut(task.services.now)]
        )
        return self._first

    def order(self) -> list[Task]:
        """All tasks in the order in which they are looked at."""
        others, sources = self._others, self._sources
        others = others[self._other :] + others[: self._other]
        sources = sources[self._source :] + sources[: self._source]
        return sources + others if self._waited >= PATIENCE else others + sources

    def note_step(self, task: Task) -> None:
        """Notes that this task has done something."""
        before = bool(self._first) and any(task is one for one in self._first)
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
