"""Lost workers are replaced while the others go on: whatever a job does, and whenever they are lost, its output is as if
nothing had happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tailrace.testing.mirrored import Mirrored
from tailrace.testing.random_flows.drawing import drawn
from tailrace.testing.random_flows.running import carry_out
from tailrace.testing.replacing import past_what_waits, past_what_waits_run, replacing, replacing_run, standing_by
from tailrace.testing.scenarios import run_scenario, scenario
from tailrace.testing.search import search

pytestmark = pytest.mark.search
REPLACED = "replaced a worker"
IN_FLIGHT = "lost a worker that had records in flight at the newest checkpoint"


def test_golden_programs_are_right_though_workers_are_lost_again_and_again() -> None:
    covered, failed = search(range(24), tune=replacing)
    assert [one.wrong for one in failed] == []
    assert covered[REPLACED] > 20
    assert covered["lost a worker that is not replaced"] > 0, "where all start again, that is covered as well"


def test_standbys_take_the_slots_of_lost_workers_and_are_lost_themselves() -> None:
    covered, failed = search(range(100, 130), tune=standing_by)
    assert [one.wrong for one in failed] == []
    assert covered[REPLACED] > 15 and covered["a standby takes a slot"] > 20
    assert covered["lost a standby"] > 10 and covered["lost a worker that is not replaced"] > 0


def test_what_a_standby_holds_of_a_slice_is_what_a_whole_reading_gives() -> None:
    looked = Mirrored()
    for seed in range(40, 100):
        verdict = run_scenario(standing_by(scenario(seed)), shadows=looked)
        assert verdict.wrong == [], verdict.command
    assert looked.compared > 15


def test_random_dataflows_are_right_though_workers_are_lost_again_and_again() -> None:
    covered: Counter[str] = Counter()
    for seed in range(16):
        outcome = carry_out(replacing_run(drawn(seed)))
        assert outcome.wrong == [], outcome.told
        covered.update(outcome.covered)
    assert covered[REPLACED] > 8


def test_with_all_other_faults_beside_they_are_right() -> None:
    covered: Counter[str] = Counter()
    for seed in range(12):
        verdict = run_scenario(replace(scenario(seed), replaces=True))
        assert verdict.wrong == [], verdict.command
        covered.update(verdict.covered)
    assert covered[REPLACED] > 0


def test_workers_are_replaced_though_the_newest_checkpoint_holds_records_in_flight() -> None:
    covered, failed = search(range(49, 68), tune=past_what_waits)
    assert [one.wrong for one in failed] == []
    assert covered[IN_FLIGHT] > 8 and covered[REPLACED] > 12


def test_random_dataflows_are_right_though_workers_are_lost_with_records_in_flight() -> None:
    """With seed 7 a worker is lost while a wave of its loop is under way, whose marker waits among what comes back."""
    covered: Counter[str] = Counter()
    for seed in range(6, 10):
        outcome = carry_out(past_what_waits_run(drawn(seed)))
        assert outcome.wrong == [], outcome.told
        covered.update(outcome.covered)
    assert covered[REPLACED] > 5 and covered[IN_FLIGHT] > 0
