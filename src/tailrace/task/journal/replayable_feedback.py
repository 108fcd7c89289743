"""The feedback queue of a loop in a worker that may be replaced: it records what is taken in each step, and takes that
when the step is replayed."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.elements.batches import Batch, concat
from tailrace.elements.markers import WaveMark
from tailrace.elements.spills import FrameSpill
from tailrace.errors import InternalError
from tailrace.task.channels.combining import Combiner
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.journal.facts import Facts
from tailrace.task.operators.loops import HeadTask


class ReplayableFeedback(FeedbackQueue):
    """A feedback queue that takes and merges as one in another worker that does the same steps. So it merges nothing
    across a cut."""

    def __init__(
        self,
        who: str,
        subtask: int,
        make_spill: Callable[[], FrameSpill],
        memory_bytes: int,
        combine: Combiner | None,
        in_rounds: bool,
        facts: Facts,
        sizes: Facts,
        on_inexact: Callable[[], None],
    ) -> None:
        """`facts`: what is taken. `sizes`: the sizes by which records are merged. `on_inexact` is called if records come
        back from the spill as something else than they were."""
        super().__init__(who, subtask, make_spill, memory_bytes, combine, in_rounds)
        self.facts, self._shelf.on_inexact = facts, on_inexact
        if self._combined is not None:
            self._combined.measured = sizes.as_kept

    def take(self, limit: int) -> Batch | WaveMark | None:
        facts = self.facts
        if facts.again:
            return self._take_again(facts.of(0), facts.of(0))
        taken = super().take(limit)
        facts.of(taken.wave if isinstance(taken, WaveMark) else 0)
        facts.of(len(taken) if isinstance(taken, Batch) else 0)
        return taken

    def _take_again(self, wave: int, count: int) -> Batch | WaveMark | None:
        """Feedback that was taken when this step was done first. The queue does not have the marker of a wave that was
        there before the cut: it is made anew."""
        if wave:
            found = next((one for one in self._ready if isinstance(one, WaveMark) and one.wave == wave), None)
            if found is not None:
                self._ready.remove(found)
            return WaveMark(wave)
        parts = self.take_records(count)
        return None if not parts else parts[0] if len(parts) == 1 else concat(parts)

    def take_records(self, count: int) -> list[Batch]:
        """The next `count` records, which were taken when this was done first. Raises `InternalError` if they are not
        there."""
        parts = list[Batch]()
        while count:
            part = super().take(count)
            if not isinstance(part, Batch):
                raise InternalError(
                    f"Y1: {count} records are to be taken again that have not come back to {self.who!r}"
                )
            parts.append(part)
            count -= len(part)
        return parts

    def barrier(self, checkpoint: int) -> None:
        if not self.ended:
            self.keep_apart()
        super().barrier(checkpoint)

    def cut(self, checkpoint: int) -> None:
        self.seal()  # a task that goes on from this cut finds what waits as it was, and merges no more with it
        super().cut(checkpoint)


def feedback_of(head: HeadTask) -> ReplayableFeedback:
    """Queue of a head of a replayable slice."""
    assert isinstance(head.queue, ReplayableFeedback)
    return head.queue
