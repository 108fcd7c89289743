"""The only doors through which anything nondeterministic reaches a task: a driver above the waterline stands behind
them, so a replay or a simulation can stand there instead."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tailrace.graph.operators import Loop
from tailrace.graph.scope import StreamScope
from tailrace.state.backend import Backend
from tailrace.task.channels.combining import Combiner
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.channels.keys import FieldReader
from tailrace.task.channels.sent_log import WHAT, Keeping
from tailrace.task.channels.spilling import FrameSpill, MakeSpill, MemorySpill, SpillPlace
from tailrace.task.channels.written_records import WrittenRecords
from tailrace.task.contract.facts import Facts
from tailrace.task.contract.recorded_answers import Outside
from tailrace.task.contract.tuning import Tuning

if TYPE_CHECKING:
    from random import Random

RandomFactory = Callable[[int], "Random"]
"""Makes a `random.Random` from a seed. Given from above: nothing below the waterline makes randomness."""


class Shared(Protocol):
    """The generators of random numbers that all code of a process shares. Given from above, too."""

    def seed(self, seed: int) -> None:
        """From here on they give what follows from this seed (an int64)."""

    def used(self) -> bool:
        """Whether any of them may have been used since then."""


@dataclass
class Services:
    """What one worker gives to its tasks."""

    random_factory: RandomFactory
    job: str = "job"
    incarnation: int = 1
    run_id: str = ""
    seed: int = 0
    max_parallelism: int = 128
    copy_records: bool = False
    debug: bool = False
    make_backend: Callable[[str, int], Backend] | None = None
    """Makes the state backend of an operator (uid) in a subtask; None for one in memory that is never frozen."""
    allow_dropped_state: bool | tuple[str, ...] = False
    """Operators (uids) whose state may be left behind where it does not fit any more, or True for all."""
    checkpointing: bool = False
    """Whether the job takes checkpoints: sinks then prepare at each cut."""
    overtaking: bool = False
    """Whether barriers of its checkpoints may overtake records."""
    ahead: bool = False
    """Whether records that wait are written before a checkpoint finds them."""
    in_flight: frozenset[str] = frozenset()
    """The operators (uids) to which records were in flight at the restored cut: no other function is fused with theirs, so
    that they can be handed to them."""
    replaces: bool = False
    """Whether the worker takes the place of a lost one: its functions are fused as they were there, and its channels begin
    open."""
    sizes: Facts | None = None
    """Where sizes of what tasks send are kept, likewise."""
    make_spill: MakeSpill | None = None
    """Makes a place for what has no room in memory; None: it stays there."""
    kept_bytes: int = 0
    """So much of what went to other workers is kept in memory."""
    kept_in: SpillPlace = SpillPlace(WHAT)  # noqa: RUF009 - it is frozen
    """And the rest here."""
    feedback: dict[StreamScope, FeedbackQueue] = field(default_factory=dict)
    """Between the tail and the head of each loop in this worker. They go with the attempt: nothing outlives it."""
    written: WrittenRecords = field(default_factory=WrittenRecords)
    """Which records in flight in its channels are in files of checkpoints."""
    facts: Facts | None = None
    """Where what its tasks do is kept for who may have to do it again."""
    depth: int = 0
    """How many workers may be lost at once, and are replaced while the others go on."""
    history_bytes: int = 0
    """So much memory the histories of all workers may take together, which each of them has; 0: any."""
    shared: Shared | None = None
    """Seeded before each step of a task, where that is done again if its worker is lost; None: it is not."""
    clock_asked: bool = False
    """Whether user code has asked for the clock in the current step."""
    inexact: bool = False
    """Whether something that is done again behind the newest cuts may be done otherwise, since this was looked at last."""
    outside: Outside = field(default_factory=Outside)
    """What user code asks of the world goes through it."""
    tuning: Tuning = field(default_factory=Tuning)
    stirred: dict[int, None] = field(default_factory=dict)
    """The vertices whose tasks something has happened to since their worker last looked what they want done, in that order.
    Invariant K5: no other task wants anything, so that a step costs the same among five hundred tasks as among five."""
    now: int = 0
    """The clock reading of the current step, int64 microseconds. Set by the task at each step, from its event."""

    def feedback_of(self, loop: Loop, subtask: int) -> FeedbackQueue:
        """The queue of a loop in this worker, the same one for its tail and its head."""
        found = self.feedback.get(loop.scope)
        if found is None:
            spill = self._spill(SpillPlace("feedback", loop.spill_dir))
            merging = None
            if loop.combine_merge is not None:
                merging = Combiner(FieldReader(loop.combine_key, loop.name, subtask).values, loop.combine_merge)
            found = FeedbackQueue(loop.name, subtask, spill, loop.spill_bytes, merging, loop.rounds is not None)
            found.remember(self.facts, self.sizes, self.note_inexact if self.depth else None)
            self.feedback[loop.scope] = found
        return found

    def note_inexact(self) -> None:
        """Some value is not what one would be that goes on from a checkpoint: what is done with it may be something else."""
        self.inexact = True

    def keeping(self) -> Keeping:
        """Where a slice keeps what went to others."""
        budget = self.kept_bytes if self.tuning.kept is None else self.tuning.kept
        return Keeping(self._spill(self.kept_in), budget)

    @property
    def most_history(self) -> int:
        """Bytes that the histories of all workers may take; 0: any."""
        return self.history_bytes if self.tuning.history is None else self.tuning.history

    def _spill(self, place: SpillPlace) -> Callable[[], FrameSpill]:
        make = self.make_spill
        return MemorySpill if make is None else lambda: make(place)

    def random(self, *place: object) -> Random:
        """A random generator for one place (operator, subtask): the same seed and place give the same numbers."""
        return self.random_factory(self.seed_of(*place))

    def seed_of(self, *place: object) -> int:
        """The seed of that generator."""
        text = "|".join(map(str, (self.seed, *place)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@dataclass
class Metrics:
    """Counters and gauges of one operator in one subtask, users' own ones included."""

    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)

    def inc(self, name: str, by: float = 1) -> None:
        """Adds to a counter. Raises `TypeError` or `ValueError` for what is no number."""
        self.counters[name] = self.counters.get(name, 0) + float(by)

    def set(self, name: str, value: float) -> None:
        """Sets a gauge. Raises `TypeError` or `ValueError` for what is no number."""
        self.gauges[name] = float(value)
