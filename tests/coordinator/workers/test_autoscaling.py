"""The number of workers by the load: single decisions, and a day of a job with two peaks and a flash crowd."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from tailrace.coordinator.workers.autoscaling import Load, Scaler, ScaleSettings, decide
from tailrace.protocol.deployment import SubtaskReport

SECOND = 1_000_000
SETTINGS = ScaleSettings(target_busy=0.7, lag=30.0, cooldown=30 * SECOND)


def loads(seconds: int, **given: Any) -> list[Load]:
    """Snapshots each three seconds; a figure may depend on the second."""
    made = []
    for second in range(3, seconds + 1, 3):
        figures = {name: value(second) if callable(value) else value for name, value in given.items()}
        made.append(Load(second * SECOND, **figures))
    return made


def decided(found: list[Load], workers: int = 4, most: int = 16) -> int:
    answer = decide(SETTINGS, found, workers, 1, most, 0)
    return workers if answer is None else answer.after


def test_it_grows_so_that_workers_are_busy_for_their_share() -> None:
    assert decided(loads(30, busy=3.8)) == 6


def test_it_waits_for_the_cooldown() -> None:
    assert decided(loads(27, busy=3.8)) == 4


def test_it_shrinks_only_when_fewer_would_have_been_enough_all_the_time() -> None:
    assert decided(loads(147, busy=0.6)) == 4
    assert decided(loads(150, busy=0.6)) == 1
    assert decided(loads(150, busy=lambda second: 2.6 if 20 < second <= 60 else 0.6)) == 4


def test_a_size_that_is_nearly_right_stays() -> None:
    for busy in (2.2, 2.5, 2.8, 3.0):
        assert decided(loads(600, busy=busy)) == 4


def test_a_growing_lag_tells_how_much_comes() -> None:
    """Workers that are busy all the time do not tell how much more there is: the lag grows by half a second per second."""
    assert decided(loads(30, busy=4.0, lag=lambda second: second / 2)) == 12
    assert decided(loads(30, busy=4.0, lag=lambda second: second / 2, counted=True)) == 9


def test_above_the_lag_that_is_tolerated_it_catches_up() -> None:
    assert decided(loads(30, busy=4.0, lag=60.0)) == 16
    assert decided(loads(30, busy=4.0, lag=3_600.0), most=100) == 16  # four times as many at once, at most


def test_a_lag_that_falls_keeps_the_workers_until_it_is_gone() -> None:
    assert decided(loads(150, busy=4.0, lag=lambda second: 200.0 - second)) >= 4


def test_one_worker_that_holds_up_the_others_counts() -> None:
    assert decided(loads(30, busy=1.6, busiest=1.0, queued=8 << 20)) == 6
    assert decided(loads(30, busy=1.6, busiest=1.0, queued=0)) == 4


def test_it_stays_within_its_bounds() -> None:
    assert decided(loads(30, busy=4.0), most=4) == 4
    assert decide(SETTINGS, loads(150, busy=0.0), 3, 3, 9, 0) is None
    assert decided(loads(150, busy=0.0)) == 1


@pytest.mark.parametrize("lag", [0.0, -5.0, 1e300, math.inf])
def test_strange_figures_lead_to_no_error(lag: float) -> None:
    assert 1 <= decided(loads(150, busy=4.0, lag=lag), workers=4) <= 16


def test_each_decision_has_its_reason() -> None:
    found = decide(SETTINGS, loads(30, busy=4.0, lag=lambda second: 30.0 + second / 2), 4, 1, 16, 0)
    assert found is not None
    assert "workers are busy 100% of their time, and the lag has grown from 32 to 45 s" in found.reason
    assert "30 s are tolerated" in found.reason


def report(busy: float, slot: int = 0, **other: Any) -> SubtaskReport:
    return SubtaskReport(0, slot, source=True, busy_micros=round(busy * SECOND), **other)


def test_figures_of_workers_become_loads_and_begin_anew_with_an_attempt() -> None:
    scaler = Scaler(SETTINGS, 1, 8)
    scaler.anew(0, changed=True)
    answers = []
    for second in range(3, 100, 3):
        answers.append(scaler.look([[report(second)], [report(second, 1)]], second * SECOND))
    first, *_ = [one for one in answers if one is not None]
    assert (first.before, first.after) == (2, 3)
    scaler.anew(100 * SECOND, changed=False)  # busy times begin at zero again
    assert scaler.look([[report(0)], [report(0, 1)]], 103 * SECOND) is None


def test_looks_between_two_reports_change_nothing() -> None:
    """Reports come each half second, and with a short cooldown there are several looks between two."""
    settings = ScaleSettings(cooldown=2 * SECOND)
    scaler, answers = Scaler(settings, 1, 8), []
    scaler.anew(0, changed=True)
    for look in range(1, 20):
        now = look * SECOND // 5
        age = now % (SECOND // 2)
        done = (now - age) / SECOND
        metrics = {"numbers.lag_records": 500.0}
        slots = [
            [report(done, slot, age_micros=age, records_in=round(50 * done), metrics=metrics)] for slot in range(2)
        ]
        answers.append(scaler.look(slots, now))
        if look == 9:
            assert {(load.busy, load.busiest, load.lag) for load in [*scaler.loads][3:]} == {(2.0, 1.0, 10.0)}
    [found] = [one for one in answers if one is not None]
    assert (found.before, found.after) == (2, 3)


def test_records_that_a_source_has_not_read_are_seconds_at_its_speed() -> None:
    scaler = Scaler(SETTINGS, 1, 8)
    scaler.anew(0, changed=True)
    for second in (3, 6):
        metrics = {"numbers.lag_records": 500.0, "numbers.lag_records[3]": 9e9}
        scaler.look([[report(second, records_in=100 * second, metrics=metrics)]], second * SECOND)
    assert scaler.loads[-1].lag == 5.0 and scaler.loads[-1].counted


# A day.

STEP = 6
"""Seconds from one look at the load to the next."""


@dataclass
class Day:
    """A day of a job whose workers each do so many records in a second. Behind a change of size nothing is done
    for a step."""

    workers: int
    per_worker: float = 1_000.0
    backlog: float = 0.0
    busy_until: float = 0.0
    hours: float = 0.0
    worst_lag: float = 0.0
    late: int = 0

    def step(self, at: float, load: float, seconds: int = 1) -> float:
        """Some seconds. Returns the time for which each worker was busy."""
        capacity = 0.0 if at < self.busy_until else self.workers * self.per_worker * seconds
        done = min(capacity, self.backlog + load * seconds)
        self.backlog += load * seconds - done
        self.hours += self.workers * seconds / 3600
        lag = self.backlog / load
        self.worst_lag, self.late = max(self.worst_lag, lag), self.late + seconds * (lag > 60.0)
        return done / (self.workers * self.per_worker)


def load_at(second: float) -> float:
    """Records per second: little at night, peaks at nine and at eight in the evening, a flash crowd at two, and noise."""
    hour = second / 3600
    peaks = 5_500 * math.exp(-((hour - 9) ** 2) / 2) + 6_500 * math.exp(-((hour - 20) ** 2) / 3)
    crowd = 6_000.0 if 14 <= hour < 14.25 else 0.0
    return (600 + peaks + crowd) * (1 + 0.1 * math.sin(second / 7) + 0.05 * math.sin(second / 61))


def day(most: int, scaled: bool) -> tuple[Day, list[tuple[float, int, int]]]:
    """A day, with the changes of size: (second, before, after)."""
    made = Day(2 if scaled else most)
    scaler, changes = Scaler(SETTINGS, 1, most), list[tuple[float, int, int]]()
    scaler.anew(0, changed=True)
    worked = 0.0
    for second in range(0, 86_400, STEP):
        worked += made.step(second, load := load_at(second), STEP)
        if scaled and second >= made.busy_until:
            lag = {"lag_seconds": made.backlog / load}
            reports = [[report(worked, slot, metrics=lag)] for slot in range(made.workers)]
            found = scaler.look(reports, second * SECOND)
            if found is not None:
                changes.append((second, found.before, found.after))
                made.workers, made.busy_until, worked = found.after, second + STEP + 1, 0.0
                scaler.anew(second * SECOND, changed=True)
    return made, changes


def test_a_day_with_two_peaks_and_a_flash_crowd_takes_fewer_slot_hours_within_the_lag() -> None:
    fixed, none = day(13, scaled=False)
    scaled, changes = day(13, scaled=True)
    assert not none and fixed.worst_lag < 1.0
    assert scaled.hours < 0.5 * fixed.hours
    assert scaled.worst_lag < 120.0 and scaled.late < 300  # the crowd comes within a second
    assert len(changes) < 60
    turns = [(a, b) for a, b in pairwise(changes) if (a[2] - a[1]) * (b[2] - b[1]) < 0]
    assert len(turns) <= 12  # up and down again: the two peaks, the crowd, and what overshoots
    assert all(after[0] - before[0] >= 30 for before, after in pairwise(changes))


def test_a_load_that_stays_is_left_alone_after_it_has_found_its_size() -> None:
    made, scaler, changes, worked = Day(1), Scaler(SETTINGS, 1, 16), [], 0.0
    scaler.anew(0, changed=True)
    for second in range(7_200):
        worked += made.step(second, 5_000 * (1 + 0.08 * math.sin(second / 5)))
        if second % 3 == 0:
            reports = [
                [report(worked, slot, metrics={"lag_seconds": made.backlog / 5_000})] for slot in range(made.workers)
            ]
            found = scaler.look(reports, second * SECOND)
            if found is not None:
                changes.append(second)
                made = replace(made, workers=found.after)
                worked = 0.0
                scaler.anew(second * SECOND, changed=True)
    assert changes and max(changes) < 1_200 and 7 <= made.workers <= 9
