"""Each row that Spark gives a job is in every sink once, whoever is killed."""

from __future__ import annotations

import pytest

from search.campaigns.spark_kills import VICTIMS, look

pytestmark = pytest.mark.spark


@pytest.mark.exhaustive
@pytest.mark.timeout(600)  # a program that is killed and started again, on executors of its own
def test_each_row_is_in_every_sink_once_whoever_is_killed() -> None:
    assert look(0, ["query", "reader", "worker", "executor", "driver"]).wrong == []


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_each_row_is_in_every_sink_once_though_each_is_killed_twenty_times() -> None:
    assert look(1, [victim for victim in VICTIMS for _ in range(20)]).wrong == []
