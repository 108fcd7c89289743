"""Sinks that publish into a server which is slow, away, or gives no answer."""

from __future__ import annotations

import pytest

from search.__main__ import main
from search.servers import carry_out, look
from search.watchers.checker import ServerLedger

pytestmark = pytest.mark.search


def test_each_record_is_visible_once_and_in_order_whatever_the_server_does() -> None:
    """And without any fault but those of the server no job starts again."""
    covered, failed = look(range(20))
    assert not failed, "\n".join(outcome.text for outcome in failed)
    assert covered["a sink that publishes was refused"] > 100
    assert covered["waited for the place of a sink"] > 50 and covered["replaced a worker"] > 0


def test_a_seed_is_one_history() -> None:
    assert carry_out(3).covered == carry_out(3).covered


def test_what_is_lost_is_reported_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ServerLedger, "publish", lambda self, prepared: None)
    assert main(["--servers", "--seeds", "0:2"]) == 1
    message = capsys.readouterr()
    assert "60 records of 60 were lost" in message.err and "--servers --seeds 0:1" in message.err
