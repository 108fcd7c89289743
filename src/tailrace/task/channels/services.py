"""The only doors through which anything nondeterministic reaches a task. A driver above the waterline stands behind them,
so a replay or a simulation can stand there instead."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tailrace.elements.spills import FrameSpill
from tailrace.graph.operators import Loop
from tailrace.graph.scope import StreamScope
from tailrace.protocol.deployment import BUCKET, BUCKETS, SUM
from tailrace.state.backend import Backend
from tailrace.task.channels.combining import Combiner
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.channels.key_readers import FieldReader
from tailrace.task.channels.outbox import Outbox, OutputEdge
from tailrace.task.channels.spilling import MakeSpill, MemorySpill, SpillPlace
from tailrace.task.channels.written_records import WrittenRecords
from tailrace.task.contract.outside import Outside
from tailrace.task.contract.tuning import Tuning

if TYPE_CHECKING:
    from random import Random

    from tailrace.task.inflight.overtaken_records import InFlightRecording

RandomFactory = Callable[[int], "Random"]
"""Function that makes a `random.Random` from a seed. Given from above: nothing below the waterline makes randomness."""


class Shared(Protocol):
    """Generators of random numbers, clocks and random bytes that all code of a process shares. Given from above, too."""

    def seed(self, seed: int) -> None:
        """Seeds the generators: from here on they give what follows from this seed (an int64)."""

    def begin_step(self, seed: int) -> None:
        """Begins a step with generators that no step has used since they were seeded: with `seed`, or with that of an
        earlier step."""

    def end_step(self) -> int | None:
        """Ends a step. Returns the seed that the generators had at its begin, if it may have used any of them."""

    def enter(self, outside: Outside) -> None:
        """Enters user code: what this thread reads of clocks and random bytes is read by way of `outside`."""

    def leave(self) -> None:
        """Leaves user code."""


@dataclass(frozen=True)
class Ends:
    """Makers of the ends of a task's channels: its gate, its outbox, the queue of a loop, the recording of records in
    flight. These are of a slice that records nothing (`task.journal` has others)."""

    gate: Callable[[list[InputChannel]], Gate] = Gate
    outbox: Callable[[list[OutputEdge], int, int, int, bool], Outbox] = Outbox
    feedback: Callable[[str, int, Callable[[], FrameSpill], int, Combiner | None, bool], FeedbackQueue] = FeedbackQueue
    inflight: Callable[..., InFlightRecording] | None = None
    """None: `InFlightRecording` itself, which lies above this module."""


@dataclass
class Services:
    """Services that one worker gives to its tasks: doors to what is outside a task, and settings of the job."""

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
    """True if the job takes checkpoints: sinks then prepare at each cut."""
    overtaking: bool = False
    """True if barriers of its checkpoints may overtake records."""
    ahead: bool = False
    """True if records that wait are written before a checkpoint finds them."""
    in_flight: frozenset[str] = frozenset()
    """Operators (uids) to which records were in flight at the restored cut. No other function is fused with theirs, so
    that the records can be handed to them."""
    inputs_closed: bool = True
    """True if channels into these operators begin closed, until what was in flight to them is read."""
    ends: Ends = field(default_factory=Ends)
    """Makers of the ends of channels."""
    decision: Callable[[bool], bool] = bool
    """Takes a decision of a step that does not follow from what came before the step, and returns it."""
    make_spill: MakeSpill | None = None
    """Makes a spill for what has no room in memory; None: it stays there."""
    feedback: dict[StreamScope, FeedbackQueue] = field(default_factory=dict)
    """Feedback queues between the tail and the head of each loop in this worker. They go with the attempt: nothing
    outlives it."""
    written: WrittenRecords = field(default_factory=WrittenRecords)
    """Records in flight in the worker's channels that are in files of checkpoints."""
    depth: int = 0
    """Number of executors whose workers may be lost at once, and are replaced while the others go on."""
    shared: Shared | None = None
    """Generators that are seeded for steps of tasks, and clocks whose readings are recorded, if steps are repeated
    when the worker is lost; None if they are not."""
    clock_read: bool = False
    """True if user code has read the clock or event time in the current step, or a timer has fired."""
    inexact: bool = False
    """True if work that is repeated behind the newest cuts may turn out otherwise, since this was last looked at."""
    outside: Outside = field(default_factory=Outside)
    """Way of user code to anything outside the job."""
    tuning: Tuning = field(default_factory=Tuning)
    stirred: dict[int, None] = field(default_factory=dict)
    """Vertices to whose tasks something has happened since their worker last looked for their work, in that order.
    Invariant K5: no other task has work, so that a step costs the same among five hundred tasks as among five.
    """
    now: int = 0
    """Clock reading of the current step, int64 microseconds. The task sets it at each step, from its event."""

    @contextmanager
    def within_user_code(self) -> Iterator[None]:
        """Context of user code whose readings of clocks and random bytes are answers of the world outside."""
        if self.shared is None:
            yield
            return
        self.shared.enter(self.outside)
        try:
            yield
        finally:
            self.shared.leave()

    def feedback_of(self, loop: Loop, subtask: int) -> FeedbackQueue:
        """Feedback queue of a loop in this worker, one for its tail and its head together."""
        found = self.feedback.get(loop.scope)
        if found is None:
            spill = self.spill_of(loop)
            merging = None
            if loop.combine_merge is not None:
                merging = Combiner(FieldReader(loop.combine_key, loop.name, subtask).values, loop.combine_merge)
            found = self.ends.feedback(loop.name, subtask, spill, loop.spill_bytes, merging, loop.rounds is not None)
            self.feedback[loop.scope] = found
        return found

    def spill_of(self, loop: Loop) -> Callable[[], FrameSpill]:
        """Maker of a spill for records that wait in a loop."""
        return self.spill(SpillPlace("feedback", loop.spill_dir))

    @property
    def exact(self) -> bool:
        """True if state and records that come back from bytes, and the order of results, must be as they were: another
        worker may go on with the steps behind them."""
        return self.depth > 0

    def note_inexact(self) -> None:
        """Takes note that a value is not what a restore from a checkpoint would make of it: what is done with it may
        differ then."""
        self.inexact = True

    def spill(self, place: SpillPlace) -> Callable[[], FrameSpill]:
        """Maker of a spill in this place; in memory where the worker has no other."""
        make = self.make_spill
        return MemorySpill if make is None else lambda: make(place)

    def random(self, *place: object) -> Random:
        """Random generator for one place (operator, subtask): equal seeds and places give equal numbers."""
        return self.random_factory(self.seed_of(*place))

    def seed_of(self, *place: object) -> int:
        """Seed of the random generator for one place."""
        text = "|".join(map(str, (self.seed, *place)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@dataclass
class Metrics:
    """Counters, gauges and histograms of one operator in one subtask, users' own ones included. A histogram is a counter
    for each bucket, and one for the sum."""

    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)

    def inc(self, name: str, by: float = 1) -> None:
        """Adds to a counter. Raises `TypeError` or `ValueError` for what is no number."""
        self.counters[name] = self.counters.get(name, 0) + float(by)

    def set(self, name: str, value: float) -> None:
        """Sets a gauge. Raises `TypeError` or `ValueError` for what is no number."""
        self.gauges[name] = float(value)

    def observe(self, name: str, value: float) -> None:
        """Adds a value to a histogram, such as seconds. Raises `TypeError` or `ValueError` for what is no number."""
        number = float(value)
        if number != number:
            raise ValueError(f"{name}: NaN is in no bucket of a histogram")
        self.inc(f"{name}{BUCKET}{bisect_left(BUCKETS, number)}")
        self.inc(f"{name}{SUM}", number)
