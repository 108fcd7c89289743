"""Programs that change between two starts: a dry run and a start agree, and what runs on loses and mixes up nothing."""

from __future__ import annotations

import pytest

from search.changes import draw, look, main, run
from search.program_versions import FORMS, OPERATORS, PLACES

pytestmark = pytest.mark.search


def test_what_fits_runs_and_what_does_not_is_refused_before_anything_runs() -> None:
    covered, failed = look(range(120))
    assert not failed, "\n".join(outcome.text for outcome in failed)
    for what in ("refused", "went on", "went on, changed", "had records in flight"):
        assert covered[what] > 8, covered


def test_every_operator_and_every_place_is_drawn() -> None:
    changes = [draw(seed) for seed in range(600)]
    assert {change.old.operator for change in changes} == {*OPERATORS, *PLACES}
    assert {change.old.form for change in changes} == set(FORMS)
    assert any(change.old.fields != change.new.fields for change in changes)


def test_a_seed_is_one_story() -> None:
    assert draw(3) == draw(3)
    assert run(draw(3)).covered == run(draw(3)).covered


def test_what_is_wrong_is_reported_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("search.program_versions.misplacement", lambda held, n: "is not what it was")
    monkeypatch.setattr("search.program_versions.judge", lambda held, n: "is not what it was")
    assert main(["--seeds", "0:200"]) == 1
    message = capsys.readouterr()
    assert "objects have values in other fields" in message.err
    assert "python -m search.changes --seeds " in message.err
