"""Changes of the size of a job on request of its user, in the program that has started it: the plan of the new size, the
task slots for it, and the plan that the job's watchers know."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.coordinator.actions import Resizing
from tailrace.coordinator.workers.rescaling import ElasticSizes, JobSize
from tailrace.errors import ConfigError, RescaleError, SlotsError
from tailrace.graph.plan import Plan
from tailrace.graph.sizes import Sizes, plan_of_size, size_text
from tailrace.runtime.driver.user_requests import ChangeSize, Runner, WishFuture

SizeMaker = Callable[[Plan, str], JobSize]
"""A function that makes the size of a job with this plan, described by this text. Raises `GraphError` and `ConfigError`."""
SlotHolder = Callable[[int], None]
"""A function that makes the job hold this number of task slots. Raises `SlotsError`, with the numbers, where there are too
few; the job then holds what it held."""


class SizeChanges:
    """The changes of one job's size."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        make: SizeMaker,
        hold: SlotHolder,
        held: int,
        elastic: ElasticSizes | None = None,
    ) -> None:
        """`held`: the number of task slots that the job holds. `elastic`: the sizes of a job that also changes its size by
        itself."""
        self._name, self._make, self._hold, self._elastic = name, make, hold, elastic
        self.plan = plan
        """The plan of the size that the job has, or is about to have."""
        self._held = held
        self._other: Plan | None = None
        """The plan that is requested; once the job moves to it, the plan before."""
        self._lock = threading.Lock()

    def request(self, runner: Runner, sizes: Sizes) -> WishFuture:
        """Requests another size. Raises `GraphError`, `ConfigError` (`SlotsError` is one) or `RescaleError` where the job
        cannot have it, before anything happens to the job."""
        with self._lock:
            if self._other is not None:
                raise RescaleError(f"job {self._name!r} changes its size already; wait for that")
            if self._elastic is not None:
                self._check_elastic(sizes)
            plan = plan_of_size(self.plan, sizes)
            if plan == self.plan and self._elastic is None:
                future = WishFuture()
                future.set_result(plan.slots)
                return future
            size = self._make(plan, size_text(sizes))
            before, needed = self._held, size.processes
            self._hold(max(before, needed))
            self._other, self._held = plan, max(before, needed)
        future = runner.wish(ChangeSize(size))
        future.add_done_callback(lambda done: self._settle(before if done.exception() else needed))
        return future

    def note(self, news: Resizing) -> None:
        """Takes the report that the job moves to another size, or back."""
        with self._lock:
            if self._elastic is not None:  # it changes its size by itself as well, and has one parallelism
                self.plan = plan_of_size(self.plan, news.after)
                self._hold_what_it_needs(self._elastic)
            elif self._other is not None:
                self.plan, self._other = self._other, self.plan

    def _settle(self, needed: int) -> None:
        with self._lock:
            self._other = None
            if self._elastic is not None:
                self._hold_what_it_needs(self._elastic)
                return
            self._hold(needed)
            self._held = needed

    def _hold_what_it_needs(self, elastic: ElasticSizes) -> None:
        needed = elastic.processes(self.plan.slots)
        with contextlib.suppress(SlotsError):  # its workers are there all the same
            self._hold(needed)
            self._held = needed

    def _check_elastic(self, sizes: Sizes) -> None:
        elastic = self._elastic
        assert elastic is not None
        if not isinstance(sizes, int):
            raise ConfigError("rescale: an elastic job (tr.Elastic) has one parallelism; give a number")
        if not elastic.least <= sizes <= elastic.most:
            raise ConfigError(
                f"rescale: expected a parallelism from {elastic.least} to {elastic.most}, the bounds of the job's "
                f"tr.Elastic, not {sizes}"
            )


def checked_sizes(given: Any) -> Sizes:
    """A size as a user gives it. Raises `ConfigError`."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if isinstance(given, Mapping) and given and all(isinstance(uid, str) for uid in given):
        return dict(given)
    raise ConfigError(f"rescale: expected a parallelism, or a dictionary of parallelisms by uid, not {given!r}")
