"""Reports to readers that a checkpoint with their positions is complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tailrace.api.connectors import Enumerator, Reader, SplitReader
from tailrace.elements.valuepickling import load_described
from tailrace.errors import error_text
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.sources.lags import Lags
from tailrace.task.operators.sources.split_readers import SplitOfMany

FAILED = "failed_completions"
"""Metric: calls of `completed` that have raised."""
_DEFAULTS = (Reader.completed, SplitReader.completed, Enumerator.completed)


def takes_reports(reader: Any) -> bool:
    """True if a reader, or an enumerator, has a `completed` of its own."""
    kind = type(reader.reader if isinstance(reader, SplitOfMany) else reader)
    return getattr(kind, "completed", Reader.completed) not in _DEFAULTS


NUMBER_OF_ENUMERATOR = -1
"""Number by which the calls of an enumerator are kept, beside those of splits."""


class ReadUpTo(NamedTuple):
    """A split, and how far it was read; or the enumerator, and how much it had found."""

    number: int
    reader: Any
    position: bytes
    ended: bool = False

    @property
    def holds_reader(self) -> bool:
        """True for the reader of one split that has ended: it is closed behind its last call."""
        return self.ended and not isinstance(self.reader, SplitOfMany)


class Completions:
    """The positions of a subtask's readers in checkpoints that may become complete. Nothing is kept for readers without a
    `completed` of their own.

    Invariant D5: the calls of a reader come in the order of checkpoints, each once, and none for a checkpoint that is not
    complete. A split that has ended is in the first of them behind its end. A replay makes none.
    """

    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self.lags = Lags(ctx)
        """The lags of the same readers."""
        self._cuts: dict[int, list[ReadUpTo]] = {}
        """How far splits were read at the cut of each checkpoint."""
        self._ended: list[ReadUpTo] = []
        """Splits that have ended, and are in no checkpoint that is known to be complete."""
        self._due: deque[list[ReadUpTo]] = deque()
        """Positions in complete checkpoints, on their way to the thread of the calls."""
        self._called: deque[Any] = deque()
        """Readers of splits that have ended, behind their last call: they are to be closed."""

    def begin(self) -> None:
        """Begins with the first reader that has a `completed`. The thread of the calls adds no name to the metrics."""
        self._ctx.metrics.counters.setdefault(FAILED, 0)

    def end_split(self, number: int, reader: Any, position: bytes) -> bool:
        """Keeps the end of a split. True if its reader must stay open until its last call."""
        self._ended.append(ReadUpTo(number, reader, position, ended=True))
        return self._ended[-1].holds_reader

    def note_cut(self, checkpoint: int, splits: Iterable[ReadUpTo]) -> None:
        """Keeps the positions at a cut."""
        found = [*(one for one in splits if takes_reports(one.reader)), *self._ended]
        if found:
            self._cuts[checkpoint] = found

    def abort(self, checkpoint: int) -> None:
        """Forgets a checkpoint that will never be complete."""
        self._cuts.pop(checkpoint, None)

    def complete(self, checkpoint: int) -> None:
        """Begins the calls for a complete checkpoint."""
        found = self._cuts.get(checkpoint)
        self._cuts = {number: cut for number, cut in self._cuts.items() if number > checkpoint}
        outside = self._ctx.services.outside
        if found is not None and not outside.repeats:
            gone = {id(one) for one in found}
            self._ended = [one for one in self._ended if id(one) not in gone]
            self._cuts = {number: [one for one in cut if id(one) not in gone] for number, cut in self._cuts.items()}
            self._due.append(found)
            outside.beside.call(self._ctx.uid, self._call)

    def closable(self) -> list[Any]:
        """Readers of ended splits that had their last call, and are to be closed now."""
        return [self._called.popleft() for _ in range(len(self._called))]

    def end(self) -> list[Any]:
        """Waits for the last calls, for a limited time. Returns the readers of ended splits that are to be closed."""
        self._ctx.services.outside.beside.wait(self._ctx.uid)
        return [*self.closable(), *(one.reader for one in self._ended if one.holds_reader)]

    def _call(self) -> None:
        """Calls the readers, in the thread of the calls. Where checkpoints come faster, some are left out."""
        due: dict[int, ReadUpTo] = {}
        while self._due:
            due |= {one.number: one for one in self._due.popleft()}
        of_many: dict[int, Any] = {}
        shared: SplitReader | None = None
        for one in due.values():
            if isinstance(one.reader, SplitOfMany):
                shared = one.reader.reader
                of_many[one.number] = load_described(one.position)
            else:
                self._try(one.reader.completed, load_described(one.position))
            if one.holds_reader:
                self._called.append(one.reader)
        if shared is not None:
            self._try(shared.completed, of_many)

    def _try(self, completed: Callable[[Any], object], position: Any) -> None:
        ctx = self._ctx
        try:
            completed(position)
        except Exception as error:
            ctx.metrics.inc(FAILED)
            ctx.services.outside.beside.warn(
                f"operator {ctx.name!r}, subtask {ctx.subtask}: completed({position!r}) of a reader raised "
                f"{error_text(error)}, behind a complete checkpoint. The job goes on; the next checkpoint makes up for it"
            )
