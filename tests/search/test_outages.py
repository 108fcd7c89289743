"""A sink of files on a store that goes out of reach: what is seen is every record, once."""

from __future__ import annotations

import pytest

from search.__main__ import main
from search.outages import Store, carry_out, look

pytestmark = pytest.mark.search


def test_each_record_is_seen_once_whenever_the_store_does_not_answer() -> None:
    covered, failed = look(range(12))
    assert not failed, "\n".join(outcome.text for outcome in failed)
    assert covered["refused by the store of a sink"] > 50 and covered["waited for the place of a sink"] > 10


def test_a_seed_is_one_history() -> None:
    assert carry_out(3).covered == carry_out(3).covered


def test_what_is_lost_is_reported_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Store, "mv", lambda self, one, two, **options: self.rm_file(one))
    assert main(["--outages", "--seeds", "5:6"]) == 1
    message = capsys.readouterr()
    assert "60 of 60 lines were never seen" in message.err and "--outages --seeds 5:6" in message.err
    assert message.out.startswith("1 runs")
