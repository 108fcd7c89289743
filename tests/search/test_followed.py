"""A job that follows files while they grow, are rotated and appear: each line is published once."""

from __future__ import annotations

import pytest

from search.__main__ import main
from search.followed import carry_out, look
from tailrace.connectors.followed import FollowedFile

pytestmark = pytest.mark.search


def test_each_line_is_published_once_whatever_happens_to_files_and_workers() -> None:
    covered, failed = look(range(16))
    assert not failed, "\n".join(outcome.text for outcome in failed)
    assert covered["rotated a followed file"] > 100 and covered["restarted"] > 3 and covered["replaced a worker"] > 0


def test_a_seed_is_one_history() -> None:
    assert carry_out(3).covered == carry_out(3).covered


def test_what_is_lost_is_reported_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader that is made anew begins behind what there is."""
    monkeypatch.setattr(FollowedFile, "_in_sight", lambda self: self._end("is gone"))
    assert main(["--followed", "--seeds", "0:9"]) == 1
    message = capsys.readouterr()
    assert "lines were never published" in message.err and "--followed --seeds" in message.err
