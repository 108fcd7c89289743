"""What the coordinator and one worker do grows with the number of workers, not with its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("benchmarks.scale")

import tailrace
from benchmarks.scale import Played, dataflow, of_coordinator, of_worker, overtaking

OURS = str(Path(tailrace.__file__).parent)
FEW, TIMES = 12, 4
ALMOST = 1.15
"""What is a part of the work for each worker may grow with the logarithm of their number."""


def lines(act: Callable[[], Any]) -> int:
    """How many lines of tailrace are run by something; each turn of a loop runs its lines anew."""
    count = 0

    def inside(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return inside

    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: inside if frame.f_code.co_filename.startswith(OURS) else None)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def life(job: str, workers: int) -> dict[str, int]:
    """The lines of each moment in the life of a job."""
    played = Played(dataflow(job, workers), workers)
    moments: dict[str, Callable[[], Any]] = {"deploy": played.deploy, "second": played.second}
    if job == "keyed":
        moments |= {"first": played.checkpoint, "checkpoint": played.checkpoint, "abort": played.abort}
        moments |= {"restart": played.restart, "end": played.end}
    if job == "nest":
        moments |= {"first wave": lambda: played.wave(0), "wave": lambda: played.wave(1)}
    if job == "rounds":
        moments |= {"first round": lambda: played.round(0), "round": lambda: played.round(1)}
    return {name: lines(moment) for name, moment in moments.items()}


@pytest.mark.parametrize("job", ["keyed", "nest", "rounds"])
def test_the_coordinator_does_at_most_so_many_times_as_much_for_so_many_times_as_many_workers(job: str) -> None:
    few, many = life(job, FEW), life(job, TIMES * FEW)
    assert few.keys() == many.keys()
    too_much = {name: many[name] / few[name] for name in few if many[name] > TIMES * ALMOST * few[name]}
    assert not too_much


@pytest.mark.parametrize("job", ["keyed", "nest"])
def test_a_worker_does_at_most_so_many_times_as_much_for_its_channels(job: str) -> None:
    few, many = (lines(lambda n=n: of_worker(dataflow(job, n), n)) for n in (FEW, TIMES * FEW))  # type: ignore[misc]
    assert many <= TIMES * ALMOST * few


def test_so_it_does_where_barriers_overtake() -> None:
    few, many = (lines(lambda n=n: overtaking(dataflow("keyed", n), 0)) for n in (100, TIMES * 100))  # type: ignore[misc]
    assert many <= TIMES * few


def test_a_plan_is_made_into_bytes_once() -> None:
    figures = of_coordinator(Played(dataflow("keyed", 5), 5), "keyed")
    assert figures["deploys_made"] == 1
    assert figures["deploy_bytes_in_all"] == 5 * figures["deploy_bytes"] > 5 * figures["plan_bytes"]
    assert figures["files"] == 5
