"""While a worker runs, Python looks for garbage rarely; and behind it the process is as it was."""

from __future__ import annotations

import gc

import pytest

from tailrace.runtime.worker.python_settings import rare_collections


@pytest.fixture(autouse=True)
def nothing_frozen() -> object:
    """And thresholds that are no worker's: those of tests are threads of one process, and may end in another order."""
    before = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_was_there_before_is_looked_through_again_behind_it() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_freeze_count() > 0 and gc.get_threshold() != before
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


def test_what_a_process_was_forked_with_stays_frozen() -> None:
    """Behind each job a worker looked through all that it has of `spark.daemon`, and kept the next job waiting meanwhile."""
    gc.freeze()
    frozen = gc.get_freeze_count()
    later = [[] for _ in range(1000)]
    with rare_collections():
        assert gc.get_freeze_count() <= frozen
    assert 0 < gc.get_freeze_count() <= frozen and len(later) == 1000
