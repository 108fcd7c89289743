"""A few seeds of the search that stops jobs, takes savepoints and cancels at moments of chance."""

from __future__ import annotations

import pytest

from search.stops import look, resizing

pytestmark = pytest.mark.search


def test_whatever_is_asked_of_a_job_each_result_is_there_once() -> None:
    covered, failed = look(range(12))
    assert [one.text for one in failed] == []
    requested = {what for what in covered if what.startswith("answered: ")}
    assert {"answered: stop", "answered: drain", "answered: savepoint"} <= requested, requested
    assert covered["forked from a savepoint"] and covered["compared"]


def test_so_it_is_where_jobs_change_their_size_meanwhile() -> None:
    covered, failed = look(range(6), tune=resizing)
    assert [one.text for one in failed] == []
    assert covered["changed the size"] and covered["answered: stop"], covered
    assert covered["forked from a savepoint"] and covered["compared"]
