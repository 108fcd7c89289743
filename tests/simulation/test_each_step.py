"""One event at each step of short runs: every so-manieth turn here, and each turn by hand
(`search.campaigns.each_step`)."""

from __future__ import annotations

from collections import Counter

import pytest

from search.campaigns.each_step import EVENTS, PAIRS, POLICIES, STANDBYS, Way, each_step, ways
from search.programs.golden import PROGRAMS
from search.scenarios import run_scenario

pytestmark = pytest.mark.search
PROGRAM = {"raise": "joined", "cut-link": "joined", "executor": "windowed", "move": "visited", "move-late": "visited"}
"""The program of an event; others happen to a running count."""


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_at_any_step_changes_no_output(event: str, exhaustive: bool) -> None:
    """Under two of the policies, each with another kind of standby. By hand under all, and every hundredth turn."""
    program = PROGRAM.get(event, "counted")
    if exhaustive:
        taken, every = [*ways([program], [event])], 100
    else:
        taken, every = [Way(program, event), Way(program, event, "capped", "started")], 250
    (steps,) = each_step(taken, every)
    assert steps.failed == []
    assert steps.covered["took effect"] > 0, steps.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("event", PAIRS)
def test_an_event_at_any_step_behind_another_one_changes_no_output(event: str) -> None:
    (steps,) = each_step(ways(["counted"], [event]), 150)
    assert steps.failed == []
    assert steps.covered["took effect"] > 0, steps.text


def test_every_program_meets_every_event_under_every_policy_with_every_kind_of_standby() -> None:
    taken = [*ways(PROGRAMS, ["kill", "rescale+kill"])]
    assert {way.program for way in taken} == set(PROGRAMS)
    replaced = {(way.policy, way.standbys) for way in taken if way.program == "visited"}
    assert replaced == {(policy, kind) for policy in POLICIES for kind in STANDBYS}
    assert {way.standbys for way in taken if not PROGRAMS[way.program].replaced} == {"none"}


def test_a_command_repeats_its_run() -> None:
    way = Way("counted", "rescale+kill", "capped", "started", seed=3)
    first, second = way.at(40, 900).faults
    assert (first.kind, first.turn, first.which in (1, 3)) == ("rescale", 300, True)
    assert (second.kind, second.turn) == ("kill", 340)
    assert way.at(40, 900) == way.at(40, 900)
    assert "--event rescale+kill --policy capped --standbys started --seed 3 --at 40" in way.command(40)


def test_a_hot_standby_begins_anew_where_barriers_have_overtaken_what_it_made() -> None:
    """A worker is lost soon after the barriers of a checkpoint that has records in flight. The standby had sent its own
    barriers behind these records, and its readers have them behind the barriers of the worker: the standby went on, had not
    made what others had of it, and the job started again and blamed the user's code."""
    made, covered = Way("windowed", "move-late", "unaligned", "hot"), Counter[str]()
    for turn in (853, *range(875, 895, 5)):
        verdict = run_scenario(made.at(turn, made.turns()[0]))
        assert verdict.wrong == []
        covered.update(verdict.covered)
    assert covered["a standby takes a slot"] > 2 and covered["a hot standby went on"] == 0
    assert covered["restarted"] == 0
