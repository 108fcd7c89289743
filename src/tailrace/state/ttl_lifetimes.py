"""The lifetimes of the entries of one table while a job runs: which of them are over, and what checkpoints keep of it.

Each call has one time. By event time it is the timestamp of the record or timer, or the watermark where that is later; by
processing time it is the recorded clock reading of the step. So a replay of the step finds the same entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from tailrace.elements.timestamps import LAST_TIME, MIN_TIME
from tailrace.errors import StateAccessError
from tailrace.state.ttl import UNSTAMPED, SharedTimes, Ttl, living, unwrap


class CallClocks(Protocol):
    """The clocks of an operator: its context."""

    current_key: Any

    @property
    def run_id(self) -> str:
        """The run."""

    @property
    def incarnation(self) -> int:
        """The number of the attempt within the run."""

    def call_time(self, event: bool) -> int:
        """The time of the call that is under way, on one of the clocks: int64 microseconds, `NO_TIME` if it has none. The
        step counts as one that has read the clock."""

    def passed_time(self, event: bool) -> int:
        """The clock reading of the step, or the watermark."""


Floor = tuple[int, int, int, int]
"""Key groups [first, last), the time that they had reached, and the time of the last writes to them that were over."""


class Expiry(msgspec.Struct, array_like=True):
    """The state of a `Lifetime` in a checkpoint. Times are int64 microseconds on the clock of its stamps."""

    stamps: str
    """The name of the clock (`Ttl.stamps`)."""
    reached: int
    """The time at the cut."""
    dead: int
    """Entries that were written then or before are over."""
    since: int
    """The time that counts as the write of entries without one; `UNSTAMPED` if it is not known yet."""
    offset: int
    """The time for which the job did not run, where it does not count."""
    pending: bool
    """True if the attempt has not read the clock."""
    attempt: tuple[str, int]
    """The run, and the number of the attempt within it."""
    floors: list[Floor] = []
    """Key groups that were further."""

    def dead_in(self, group: int) -> int:
        """The time of the last writes to a key group that are over."""
        return max((dead for first, last, _, dead in self.floors if first <= group < last), default=self.dead)

    def lives_in(self, group: int) -> Callable[[int], bool]:
        """A test of the time of a write to a key group: true if that entry lived at the cut."""
        dead, since = self.dead_in(group), self.since
        return lambda stamp: (since if stamp == UNSTAMPED else stamp) > dead or since == stamp == UNSTAMPED


class ExpiryOf(NamedTuple):
    """What a checkpoint has of an old subtask, and the key groups [first, last) of that."""

    groups: tuple[int, int]
    expiry: Expiry


class Lifetime:
    """The lifetime of the entries of one table in one subtask.

    Invariant B12: an entry that was over at a cut, or for a call, is never given to a later call, whatever the clock, the
    parallelism or the declared lifetime is then.
    """

    def __init__(
        self, ttl: Ttl, name: str, clocks: CallClocks, group_of: Callable[[Any], int], note: Callable[[int], object]
    ) -> None:
        self.ttl = ttl
        self.span = ttl.span
        self.on_read = ttl.refresh == "read"
        self.expired = note
        """A function that counts expired entries."""
        self._name = name
        self._clocks = clocks
        self._event = ttl.clock == "event"
        self._stops = ttl.clock_stops_with_job
        self._group_of = group_of
        self._times = SharedTimes()
        """Times of writes by event time."""
        self._since = UNSTAMPED
        self._offset = 0
        self._reached = MIN_TIME
        """The watermark as far as it was read; on the clock, the time of the restored cut."""
        self._pending = True
        """True if this attempt has not read the clock."""
        self._dead = self._furthest = MIN_TIME
        """The largest times in `_floors`."""
        self._floors: list[Floor] = []
        """What key groups had reached at the restored cut: their time never goes back, at whatever parallelism."""

    def now(self) -> int:
        """The time of the call under way; `MIN_TIME` where event time has not begun."""
        time = self._clocks.call_time(self._event)
        if self._event:
            time = max(time, self._watermark())
            if time == MIN_TIME:
                return MIN_TIME
        if self._pending:
            self._begin(time)
        if self._offset:  # else one object stands for all that a step writes
            time -= self._offset
        return time if time >= self._furthest else max(time, self._floor(self._clocks.current_key)[2])

    def written_now(self) -> int:
        """The time of a write. Raises `StateAccessError` where event time has not begun."""
        time = self.now()
        if time == MIN_TIME:
            raise StateAccessError(
                f"state {self._name!r} has a ttl by event time, and event time has not begun: the record has no timestamp "
                f"and no watermark has come; call assign_timestamps before, on every input, or take tr.Ttl(..., "
                f'clock="processing")'
            )
        return self._times.of(time) if self._event else time

    def _watermark(self) -> int:
        """The watermark. Its end is no time: it stands where it was before."""
        time = self._clocks.passed_time(event=True)
        if self._reached < time < LAST_TIME:
            self._reached = time
        return self._reached

    def begin(self) -> None:
        """Begins an attempt, if it has not begun and the time is known."""
        if self._pending:
            self._clocks.call_time(self._event)
            time = self._watermark() if self._event else self._clocks.passed_time(event=False)
            if time > MIN_TIME:
                self._begin(time)

    def _begin(self, time: int) -> None:
        """Begins an attempt: the clock goes on, and entries without a time count as written now."""
        self._pending = False
        if self._stops and self._reached > MIN_TIME:
            self._offset = time - self._reached
        if self._since == UNSTAMPED:
            self._since = time - self._offset

    def lives(self, key: Any, now: int) -> Callable[[int], bool]:
        """A test of the time of a write to this key: true if that entry lives at the time `now`."""
        horizon, since = self._horizon(key, now), self._since
        return lambda stamp: (since if stamp == UNSTAMPED else stamp) > horizon or since == stamp == UNSTAMPED

    def is_over(self, key: Any, stamp: int, now: int) -> bool:
        """True if an entry of this key that was written at `stamp` is over at the time `now`."""
        if stamp == UNSTAMPED:
            stamp = self._since
            if stamp == UNSTAMPED:
                return False
        return stamp + self.span <= now or (stamp <= self._dead and stamp <= self._floor(key)[3])

    def _horizon(self, key: Any, now: int) -> int:
        """The time of the last write to this key that is over at the time `now`."""
        horizon = now - self.span
        return max(horizon, self._floor(key)[3]) if horizon < self._dead else horizon

    def _floor(self, key: Any) -> Floor:
        """What the key group of a key had reached at the restored cut."""
        group = self._group_of(key)
        here = [one for one in self._floors if one[0] <= group < one[1]]
        return group, group + 1, max([MIN_TIME, *(one[2] for one in here)]), max([MIN_TIME, *(one[3] for one in here)])

    def swept_at(self) -> int | None:
        """The time that no later call is before; None if it is not known yet."""
        time = self._watermark() if self._event else self._clocks.passed_time(event=False)
        return None if self._pending or time == MIN_TIME else time - self._offset

    def end_of(self, stamp: int) -> int:
        """The time at which an entry is over."""
        return (self._since if stamp == UNSTAMPED else stamp) + self.span

    def visible(self, kind: str, entries: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """The values of these entries, without what is over at the time that no later call is before."""
        now = self.swept_at()
        for key, held in entries:
            left = held if now is None else living(kind, held, self.lives(key, now))
            if left is not None:
                yield key, unwrap(kind, left)

    # Checkpoints.

    def save(self) -> Expiry:
        """The state at a cut."""
        passed = self.swept_at()
        reached = self._reached if passed is None else passed
        dead = MIN_TIME if passed is None else max(passed - self.span, MIN_TIME)
        floors = [(first, last, time, max(old, time - self.span)) for first, last, time, old in self._floors]
        floors = [one for one in floors if one[2] > reached or one[3] > dead]
        return Expiry(self.ttl.stamps, reached, dead, self._since, self._offset, self._pending, self._attempt, floors)

    @property
    def _attempt(self) -> tuple[str, int]:
        return self._clocks.run_id, self._clocks.incarnation

    def restore(self, parts: Sequence[ExpiryOf], anew: bool) -> None:
        """Goes on from a checkpoint, with what it has of old subtasks. Those with another clock, or none, do not count.
        `anew`: it has entries without a time that count as written when the clock is read first."""
        known = [one for one in parts if one.expiry.stamps == self.ttl.stamps]
        same = bool(known) and all(one.expiry.attempt == self._attempt for one in known)
        self._pending = not same or any(one.expiry.pending for one in known)
        if not known:
            return
        if same or not anew:
            self._since = max(one.expiry.since for one in known)
        self._reached = (min if self._event else max)(one.expiry.reached for one in known)
        self._offset = max(one.expiry.offset for one in known) if same else 0
        self._floors = [(*one.groups, one.expiry.reached, one.expiry.dead) for one in known]
        self._floors += [floor for one in known for floor in one.expiry.floors]
        self._furthest = max(reached for _, _, reached, _ in self._floors)
        self._dead = max(dead for *_, dead in self._floors)
