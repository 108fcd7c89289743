"""The decision how many workers a job needs, by its load: a pure function of the last snapshots of the load.

A snapshot has the work of all workers, as a number of workers that are always busy, and the lag of the sources. *Demand* is
the work that the input brings. Where the job keeps up it is the work that is done. Where the lag grows, less is done than
comes: with a lag that grows by half a second per second, twice as much comes. The job needs `demand / target_busy` workers.

Two things damp the decision. The job grows by the mean of the last `cooldown`, no sooner than a `cooldown` behind the last
change. It shrinks by the highest demand in `CALM` such spans, all of which have passed since the last change; and a size
that is nearly enough, or nearly too much, is left as it is (`BAND`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tailrace.coordinator.actions import Autoscaled
from tailrace.protocol.deployment import SubtaskReport

CALM = 5
"""The number of spans of `cooldown` through which fewer workers would have been enough, before the job shrinks."""
LOOKS = 10
"""Looks at the load in each such span."""
BAND = 0.1
"""The share of the target by which demand may be above it, or has to be below it, without a change."""
MOST_GROWTH = 4.0
"""The factor by which a job grows at once, at most: what is measured at its limit is not exact."""
HELD_UP = 0.9
"""The busy share from which on a worker holds up the others, where records wait for it."""
WAITING = 1 << 20
"""Bytes that wait in the channels of a worker from which on it counts as behind."""
NOTED = 0.1
"""The share of the tolerated lag up to which its growth is not looked at: figures of sources come now and then."""


@dataclass(frozen=True)
class ScaleSettings:
    """The settings of the decision."""

    target_busy: float = 0.7
    """The share of their time that workers are to be busy."""
    lag: float = 30.0
    """The lag of a source, in seconds, that is tolerated."""
    cooldown: int = 30_000_000
    """The time from one change to the next one, at least, and over which the load is measured (int64 microseconds)."""


@dataclass(frozen=True)
class Load:
    """The load of a job since the snapshot before."""

    at: int
    """The time of the snapshot (int64 microseconds)."""
    busy: float
    """The work, as a number of workers that are always busy."""
    busiest: float = 0.0
    """The busy share of the busiest worker."""
    queued: int = 0
    """The bytes that wait for the busiest worker."""
    lag: float | None = None
    """The lag of the source that is farthest behind, in seconds; None where no source knows it."""
    counted: bool = False
    """True if the lag is the time that unread records take at the speed with which sources read."""


def decide(
    settings: ScaleSettings, loads: Sequence[Load], workers: int, least: int, most: int, changed_at: int
) -> Autoscaled | None:
    """The decision on another number of workers; None where the number is right. `loads`: the snapshots since the last
    change at `changed_at`, the oldest first."""
    if len(loads) < 2 or loads[-1].at - changed_at < settings.cooldown:
        return None
    now = loads[-1].at
    spans = [_between(loads, now - (n + 1) * settings.cooldown, now - n * settings.cooldown) for n in range(CALM)]
    demand, why = _demand(settings, spans[0], workers)
    required = _count_for(demand / (1 + BAND), settings)
    if required > workers and workers < most:
        after = min(most, max(workers + 1, _count_for(demand, settings)), math.ceil(workers * MOST_GROWTH))
        return Autoscaled(workers, after, why)
    if workers <= least or now - changed_at < CALM * settings.cooldown:
        return None
    peak, why = max((_demand(settings, span, workers) for span in spans if span), key=lambda found: found[0])
    after = max(least, _count_for(peak / (1 - BAND), settings))
    return Autoscaled(workers, after, f"for {CALM} times the cooldown at most: {why}") if after < workers else None


def _between(loads: Sequence[Load], after: int, until: int) -> list[Load]:
    return [load for load in loads if after < load.at <= until]


def _count_for(demand: float, settings: ScaleSettings) -> int:
    return math.ceil(demand / settings.target_busy - 1e-9)


def _demand(settings: ScaleSettings, span: Sequence[Load], workers: int) -> tuple[float, str]:
    """The demand in a span, as a number of workers that are always busy, and its reason in words."""
    if not span:
        return 0.0, "nothing is known"
    count = len(span)
    busy, busiest = sum(load.busy for load in span) / count, sum(load.busiest for load in span) / count
    queued = min(load.queued for load in span)
    why = f"workers are busy {busy / workers:.0%} of their time"
    if queued >= WAITING and busiest >= HELD_UP and busiest * workers > busy:
        busy, why = busiest * workers, f"{queued:,} bytes wait for a worker that is busy {busiest:.0%} of its time"
    pace, lag, how = _pace(settings, span)
    busy, why = busy / pace, why + how
    if lag > settings.lag:
        busy *= min(MOST_GROWTH, 1 + lag / settings.lag)
        why += f"; the lag is {lag:.0f} s, and {settings.lag:g} s are tolerated"
    return busy, why


def _pace(settings: ScaleSettings, span: Sequence[Load]) -> tuple[float, float, str]:
    """The work that is done as a share of the work that comes, the lag, and what has become of the lag in words."""
    known = [load for load in span if load.lag is not None]
    if len(known) < 2:
        return 1.0, 0.0, ""
    first, last = known[0].lag or 0.0, known[-1].lag or 0.0
    slope = (last - first) / ((known[-1].at - known[0].at) / 1e6)
    if last - first > NOTED * settings.lag:
        pace = 1 / (1 + slope) if known[-1].counted else 1 - slope
        return max(1 / MOST_GROWTH, pace), last, f", and the lag has grown from {first:.0f} to {last:.0f} s"
    if first - last > NOTED * settings.lag and last <= settings.lag:
        pace = min(MOST_GROWTH, 1 / max(1 / MOST_GROWTH, 1 + slope) if known[-1].counted else 1 - slope)
        return pace, last, f", and the lag has fallen from {first:.0f} to {last:.0f} s"
    return 1.0, last, ""


@dataclass(frozen=True)
class _Figures:
    """The figures of one worker by its newest report. Reports come at moments of their own, and looks at others, so what has
    been done is divided by the time between reports."""

    at: int
    """The time of the report; of the look, where a step is under way that has not come back (int64 microseconds)."""
    worked: int
    read: int
    """The records that its sources have read."""
    share: float = 0.0
    """The share of its time that it was busy, up to the report from the one before."""
    pace: float = 0.0
    """The records that its sources read in a second, meanwhile."""

    @staticmethod
    def of(found: Sequence[SubtaskReport], now: int) -> _Figures:
        """The figures of a worker at a look."""
        hangs = any(one.under_way_micros for one in found)
        age = 0 if hangs else min((one.age_micros for one in found), default=0)
        return _Figures(
            now - age,
            sum(one.worked_micros for one in found),
            sum(one.records_in for one in found if one.source),
        )

    def since(self, before: _Figures) -> _Figures:
        """The figures with what the worker has done since the report before; that report's where no other has come."""
        span = self.at - before.at
        if span <= 0:
            return before
        share = min(1.0, max(0, self.worked - before.worked) / span)
        return replace(self, share=share, pace=max(0, self.read - before.read) * 1e6 / span)


class Scaler:
    """The snapshots of one job's load, and the decisions by them."""

    def __init__(self, settings: ScaleSettings, least: int, most: int) -> None:
        self._settings, self._least, self._most = settings, least, most
        self.loads = deque[Load](maxlen=LOOKS * CALM + LOOKS)
        self._workers: list[_Figures] = []
        """The figures of each worker at the last look; none before the first one of an attempt."""
        self._changed_at = 0
        self.look_at = 0
        """The time of the next look (int64 microseconds)."""
        self.last: Autoscaled | None = None
        """The newest decision."""

    def anew(self, now: int, *, changed: bool) -> None:
        """Begins with an attempt of the job. `changed`: in another size; what was measured before does not count."""
        self._workers = []
        self.look_at = now + self._settings.cooldown // LOOKS
        if changed:
            self.loads.clear()
            self._changed_at = now

    def look(self, reports: Sequence[Sequence[SubtaskReport]], now: int) -> Autoscaled | None:
        """Takes the newest figures of each worker. Returns the decision on another number of workers, if there is one."""
        self.look_at = now + max(1, self._settings.cooldown // LOOKS)
        load = self._load(reports, now)
        if load is None:
            return None
        self.loads.append(load)
        found = decide(self._settings, self.loads, len(reports), self._least, self._most, self._changed_at)
        if found is not None:
            self.last, self._changed_at = found, now
            self.loads.clear()
        return found

    def _load(self, reports: Sequence[Sequence[SubtaskReport]], now: int) -> Load | None:
        """The load at the newest reports; None at the first look of an attempt."""
        before, self._workers = self._workers, [_Figures.of(found, now) for found in reports]
        if len(before) != len(reports):
            return None
        workers = self._workers = [new.since(old) for new, old in zip(self._workers, before, strict=True)]
        shares = [one.share for one in workers]
        busiest = max(range(len(shares)), key=lambda slot: shares[slot], default=0)
        queued = sum(one.queued_bytes for one in reports[busiest]) if reports else 0
        return Load(now, sum(shares), max(shares, default=0.0), queued, *self._lag(reports))

    def _lag(self, reports: Sequence[Sequence[SubtaskReport]]) -> tuple[float | None, bool]:
        """The lag of the source that is farthest behind, and whether it is counted in records."""
        found = [one.metrics for slot in reports for one in slot if one.source]
        seconds = [value for metrics in found for name, value in metrics.items() if _is(name, "lag_seconds")]
        if seconds:
            return max(seconds), False
        records = [value for metrics in found for name, value in metrics.items() if _is(name, "lag_records")]
        pace = sum(one.pace for one in self._workers)
        return (sum(records) / pace if records and pace else None), True


def _is(name: str, lag: str) -> bool:
    return name.rpartition(".")[2] == lag
