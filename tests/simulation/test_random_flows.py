"""Under every fault a random dataflow has the result of a plain interpreter: some seeds of the search through them.
`python -m search --random` goes further, and prints the command that repeats what it finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from search.__main__ import main
from search.random_flows.drawing import draw
from search.random_flows.hunting import hunt
from search.random_flows.running import carry_out

FIRST, LAST, CHUNK = 0, 22, 11


@pytest.mark.parametrize("first", range(FIRST, LAST, CHUNK))
def test_a_random_flow_comes_to_what_the_interpreter_says(first: int) -> None:
    found = hunt(range(first, first + CHUNK))
    assert not found.failed, "\n".join(outcome.text for outcome in found.failed)


def test_a_loop_with_a_new_operator_comes_to_rest_anew() -> None:
    """Seed 1065: the operator comes in a later run, into a loop that was at rest before. What `finish` was called for
    then is called for again, since the new operator has not been called; so no check may count the calls over both
    runs."""
    assert carry_out(draw(1065)).wrong == []


def test_timestamps_that_a_loop_had_assigned_are_reported_before_it_is_taken_to_be_at_rest() -> None:
    """Seed 10114: a finished loop begins anew, with one more operator. The one that assigns timestamps had come so far
    before; it reported that when a wave had gone through it already, and the coordinator let event time end beside
    it."""
    assert carry_out(draw(10114)).wrong == []


def test_times_of_a_loop_that_no_record_brings_to_their_end_are_not_drawn_where_its_input_never_ends() -> None:
    """Seed 700037: a function in the loop had times of its own, and with them held back the windows behind the loop."""
    assert carry_out(draw(700037)).wrong == []


def test_keyed_state_on_disk_gives_the_same() -> None:
    pytest.importorskip("rocksdict")
    covered: Counter[str] = Counter()
    for seed in (1, 3, 8):
        run = draw(seed)
        outcome = carry_out(replace(run, disk=run.world.checkpoints is not None))
        covered.update(outcome.covered)
        assert not outcome.wrong, outcome.text
    assert covered["backends on disk"] and covered["restarted"]


def test_a_failure_comes_with_its_story_cut_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sink that writes nothing loses every record of every flow."""
    monkeypatch.setattr("search.watchers.checker._Writer.write", lambda self, batch: None)
    assert main(["--random", "--seeds", "0:1", "--shrink"]) == 1
    message = capsys.readouterr()
    assert "python -m search --random --seeds 0:1 --trace" in message.err
    assert "were lost" in message.err and "cut down, with seed 0" in message.err
    assert "1 runs" in message.out and "operator" in message.out


def test_a_flow_that_never_ends_says_what_each_task_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.random_flows.running.LEAST", 10)
    monkeypatch.setattr("search.random_flows.running.EACH", 0)
    outcome = carry_out(draw(0))
    assert "did not end" in outcome.wrong[0]
    assert any(line.startswith("worker 0") for line in outcome.idle)
