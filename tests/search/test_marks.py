"""A transactional sink whose server writes with marks: each transaction is written once, whoever publishes."""

from __future__ import annotations

import pytest

from search.__main__ import main
from search.marks import Connection, carry_out, look

pytestmark = pytest.mark.search


def test_each_transaction_is_written_once_over_starts_from_old_checkpoints() -> None:
    covered, failed = look(range(12))
    assert not failed, "\n".join(outcome.text for outcome in failed)
    assert covered["started again from an older checkpoint"] > 0 and covered["lost the answer of a server"] > 10
    assert covered["published again by a process that should be dead"] > 20 and covered["restarted"] > 3


def test_a_seed_is_one_history() -> None:
    assert carry_out(3).covered == carry_out(3).covered


def test_what_is_lost_is_reported_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Connection, "commit", lambda self, counter, pieces: None)
    assert main(["--marks", "--seeds", "0:2"]) == 1
    message = capsys.readouterr()
    assert "transactions were never written" in message.err and "--marks --seeds 0:1" in message.err
