"""Context of an operator: what its user function may use of its task (see `api.functions.Context`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from tailrace.api.checks.hints import CONTEXT
from tailrace.api.functions import Context
from tailrace.elements.plainkeys import plain_key
from tailrace.elements.timestamps import LAST_TIME, MIN_TIME, NO_TIME, ceil_micros, floor_micros, seconds
from tailrace.errors import StateAccessError
from tailrace.graph.scope import StreamScope
from tailrace.spelling import missing
from tailrace.state.handles import NoKey
from tailrace.task.channels.copies import own_copy
from tailrace.task.channels.services import Metrics, Services
from tailrace.task.contract.cut_state import CutState
from tailrace.task.operators.timer_heap import Timers

if TYPE_CHECKING:
    from random import Random

FARTHEST_TIMER = 365_250 * 86_400 * 1_000_000
"""Limit of a timer of the clock, counted from now (int64 microseconds): a thousand years. A timer that is farther away is
a mistake, or in another unit, and an input that has ended would wait for it."""


_OUTSIDE = StreamScope()


@dataclass(frozen=True, slots=True)
class Stamped:
    """A record on its way out of a function, with the timestamp that the function gives it (int64 microseconds)."""

    value: Any
    time: int


@dataclass(eq=False, slots=True)
class ContextCutState(CutState):
    """State of a context at a cut that no checkpoint holds, beside its figures."""

    watermark_time: int = MIN_TIME
    round: int | None = None
    """Current round, in a loop in rounds."""
    round_time: int = NO_TIME
    """In rounds by spans of event time: the end of the current span, while one of its rounds ends."""
    called: int = 0
    """Number of records for which a function with a policy for failed ones was called in this attempt."""
    failed: int = 0
    """Number of records among them that went aside."""
    last_failure: str = ""


class KeyBlock:
    """A block of a call in which another key is the key at hand."""

    __slots__ = ("_before", "_ctx", "_key")

    def __init__(self, ctx: OperatorContext, key: Any) -> None:
        self._ctx, self._key, self._before = ctx, key, ctx.current_key

    def __enter__(self) -> None:
        self._before, self._ctx.current_key = self._ctx.current_key, self._key

    def __exit__(self, *_: object) -> None:
        ctx = self._ctx
        if ctx.current_key is not self._key:
            raise StateAccessError(
                f"operator {ctx.name!r}: the block of ctx.at({self._key!r}) ends while the key at hand is another one; end "
                f"blocks in the opposite order in which they began, and yield nothing to other code of yours inside of one"
            )
        ctx.current_key = self._before


class OperatorContext(ContextCutState):
    """Context of one operator in one subtask. The task sets it anew for each record."""

    __slots__ = (
        "_epoch", "_own_attempt", "_place_in_loops", "_random", "all_keys", "answers", "current_key", "current_time",
        "event_timers", "metrics", "name", "no_key", "parallelism", "processing_timers", "services", "side", "stamping",
        "subtask", "time_domain", "uid",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        uid: str,
        subtask: int,
        parallelism: int,
        attempt: int,
        services: Services,
        scope: StreamScope = _OUTSIDE,
        loop: str | None = None,
    ) -> None:
        super().__init__()
        self._place_in_loops = scope, loop
        self.name = name
        self.uid = uid
        self.subtask = subtask
        self.parallelism = parallelism
        self._own_attempt = attempt
        self.services = services
        self.metrics = Metrics()
        self.no_key = NoKey(name)
        self.current_key: Any = self.no_key
        self.current_time = NO_TIME
        self.time_domain: Literal["event", "processing"] = "event"
        self.event_timers: Timers | None = None
        self.processing_timers: Timers | None = None
        self.side: dict[str, tuple[list[Any], list[int]]] | None = None
        """Records that were emitted to side outputs and not yet sent on; None if there are no side outputs."""
        self.all_keys: Callable[[tuple[Any, ...]], Iterator[Any]] | None = None
        """The way through all keys; None where a function must not go through them."""
        self.stamping = False
        """True if the function has given a record a timestamp of its own since its last output was sent on."""
        self.answers: list[tuple[bool, Any]] | None = None
        """What `call` has returned (True) or raised (False) in the call under way; None where nobody keeps it."""
        self._random: Random | None = None
        self._epoch = 0

    # In place of `__getattr__`, which makes each use of each attribute slower, also of those that there are.
    def _missing(self, name: str) -> str:
        """The reason, for an error, why a context has no attribute of this name."""
        return str(missing("the context of a function", name, CONTEXT, dir(Context)))

    def cut_state(self) -> dict[str, Any]:
        return super().cut_state() | {"counters": self.metrics.counters, "gauges": self.metrics.gauges}

    def set_cut_state(self, state: dict[str, Any]) -> None:
        super().set_cut_state(state)
        self.metrics.counters, self.metrics.gauges = state["counters"], state["gauges"]  # user code may keep `metrics`

    @property
    def job(self) -> str:
        return self.services.job

    @property
    def scope(self) -> StreamScope:
        return self._place_in_loops[0]

    @property
    def loop(self) -> str | None:
        return self._place_in_loops[1]

    @property
    def checkpoint(self) -> int:
        return self._epoch

    @property
    def attempt(self) -> int:
        readings = self.services.outside.readings
        return self._own_attempt if readings is None else readings.attempt(self._own_attempt)

    @property
    def incarnation(self) -> int:
        return self.services.incarnation

    @property
    def run_id(self) -> str:
        return self.services.run_id

    @property
    def key(self) -> Any:
        if self.current_key is self.no_key:
            raise StateAccessError(
                f"operator {self.name!r}: ctx.key was read where there is no key; read it in a call for a key, after key_by"
            )
        return self.current_key

    @property
    def timestamp(self) -> float | None:
        return None if self.current_time == NO_TIME else self.current_time / 1_000_000

    @property
    def watermark(self) -> float:
        self.services.clock_read = True
        time = self.watermark_time
        if time == MIN_TIME:
            return -inf
        return inf if time >= LAST_TIME else seconds(time)

    def stamped(self, value: Any, timestamp: Any) -> Stamped:
        self.stamping = True
        return Stamped(value, NO_TIME if timestamp is None else floor_micros(timestamp))

    def emit(self, tag: str, value: Any, timestamp: Any = None) -> None:
        if self.side is None:
            raise StateAccessError(
                f"operator {self.name!r}: only process functions and map_batches have side outputs; use process(...)"
            )
        found = self.side.get(tag)
        if found is None:
            found = self.side[tag] = ([], [])
        found[0].append(own_copy(value) if self.services.copy_records else value)
        found[1].append(self.current_time if timestamp is None else floor_micros(timestamp))

    def set_timer(self, *unnamed: Any, event_time: Any = None, processing_time: Any = None) -> None:
        timers, time = self._timer(event_time, processing_time, unnamed)
        if timers is self.processing_timers and time - self.services.now > FARTHEST_TIMER:
            raise OverflowError(
                f"operator {self.name!r}: a processing-time timer at {processing_time!r} is more than a thousand years "
                f"away, and the end of the input would wait for it; numbers are seconds"
            )
        timers.set(self.key, time)

    def delete_timer(self, *unnamed: Any, event_time: Any = None, processing_time: Any = None) -> None:
        timers, time = self._timer(event_time, processing_time, unnamed)
        timers.delete(self.key, time)

    def _timer(self, event_time: Any, processing_time: Any, unnamed: tuple[Any, ...]) -> tuple[Timers, int]:
        if unnamed or (event_time is None) == (processing_time is None):
            raise StateAccessError(
                f"operator {self.name!r}: give a timer either event_time= or processing_time=: "
                f"ctx.set_timer(event_time=ctx.timestamp + 60)"
            )
        timers = self.event_timers if processing_time is None else self.processing_timers
        if timers is None:
            raise StateAccessError(
                f"operator {self.name!r}: its function has no on_timer, which a timer calls; use a tr.KeyedProcessFunction "
                f"with an on_timer of its own: on_timer(self, timestamp, ctx)"
                if self.current_key is not self.no_key
                else f"operator {self.name!r}: timers need a keyed stream; use key_by before, and a tr.KeyedProcessFunction "
                f"with an on_timer of its own"
            )
        given = event_time if processing_time is None else processing_time
        # A timer later than that would be due when a loop is over, and as a float its time is the same.
        return timers, min(ceil_micros(given), LAST_TIME)

    def now(self) -> float:
        self.services.clock_read = True
        return self.services.now / 1_000_000

    def call_time(self, event: bool) -> int:
        """The time of the call under way, for state with a time to live; `NO_TIME` if it has none by event time."""
        self.services.clock_read = True
        return self.current_time if event else self.services.now

    def passed_time(self, event: bool) -> int:
        """The clock reading of the step, or the watermark, for state with a time to live."""
        return self.watermark_time if event else self.services.now

    @property
    def random(self) -> Random:
        if self._random is None:
            self._random = self.services.random(*self._place)
        return self._random

    @property
    def seed(self) -> int:
        """Seed of the random numbers since the last cut."""
        return self.services.seed_of(*self._place)

    def random_state(self) -> Any:
        """State of the generator of random numbers; None if no code has used it."""
        return None if self._random is None else self._random.getstate()

    @property
    def _place(self) -> tuple[object, ...]:
        return self.uid, self.subtask, self.services.incarnation, self._epoch

    def begin_epoch(self, checkpoint: int) -> None:
        """Begins what is behind the cut of this checkpoint. Random numbers begin anew there, also of a generator that the
        user has kept: a task that goes on from the checkpoint gets the same ones."""
        self._epoch = checkpoint
        if self._random is not None:
            self._random.seed(self.services.seed_of(*self._place))

    def keys(self, *states: Any) -> Iterator[Any]:
        if self.all_keys is None:
            raise StateAccessError(
                f"operator {self.name!r}: ctx.keys(...) goes through all keys of a subtask, which only process_broadcast of "
                f"a tr.BroadcastProcessFunction can; elsewhere there is the key at hand, ctx.key"
            )
        return self.all_keys(states)

    def at(self, key: Any) -> KeyBlock:
        if self.parallelism != 1 or self.current_key is self.no_key:
            why = (
                "it has no key at hand here; use it in a call for a key, after key_by"
                if self.parallelism == 1
                else "the state of other keys may be in other subtasks; give the operator parallelism=1"
            )
            raise StateAccessError(f"operator {self.name!r}: ctx.at(key): {why}")
        return KeyBlock(self, plain_key(key))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        answers = self.answers
        if answers is None:
            return self.services.outside.request(lambda: function(*args))
        try:
            found = self.services.outside.request(lambda: function(*args))
        except Exception as error:
            answers.append((False, error))
            raise
        answers.append((True, found))
        return found

    def without_key(self) -> None:
        """Leaves keyed calls: state, timers and `key` are out of reach."""
        self.current_key = self.no_key
        self.current_time = NO_TIME
