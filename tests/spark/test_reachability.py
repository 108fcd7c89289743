"""Where coordinators run, as far as it is known without a cluster. What follows from it is in `test_connect`."""

from __future__ import annotations

import pytest

import tailrace as tr
from tailrace.spark.slots.reachability import is_out_of_reach


def test_a_setting_that_is_none_or_that_a_classic_session_cannot_have_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classic = object()
    assert not is_out_of_reach(classic, 1.0)
    monkeypatch.setenv("TAILRACE_COORDINATOR", "driver")
    assert not is_out_of_reach(classic, 1.0)
    monkeypatch.setenv("TAILRACE_COORDINATOR", "executor")
    with pytest.raises(tr.ConfigError, match="only a session of Spark Connect can have a coordinator on an executor"):
        is_out_of_reach(classic, 1.0)
    monkeypatch.setenv("TAILRACE_COORDINATOR", "cluster")
    with pytest.raises(tr.ConfigError, match="TAILRACE_COORDINATOR must be 'driver' or 'executor', not 'cluster'"):
        is_out_of_reach(classic, 1.0)
