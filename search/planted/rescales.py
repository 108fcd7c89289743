"""Bugs to be planted in changes of a job's size: in its cut and its checkpoints, in the new plan, in who keeps which key
groups, and in what follows where something fails in the middle, or task slots are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from msgspec.structs import replace as replace_struct

from search.campaigns.rescales import autoscaled, elastic, elastic_with_standbys, rescaled
from search.planted.patches import Bug, Patches, method
from search.scenarios import MS, Scenario
from tailrace.coordinator.course import Course
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.durability.durability import Durability
from tailrace.coordinator.durability.incarnation_claims import IncarnationClaims
from tailrace.coordinator.workers.autoscaling import Scaler
from tailrace.coordinator.workers.roster import Roster
from tailrace.elements.keygroups import group_range
from tailrace.storage.reading import _Had
from tailrace.task.failover.standby import Standing
from tailrace.task.worker import restore
from tailrace.task.worker.restore import Restorer
from tailrace.testing.faults import Fault


def _complete_without_new_workers() -> Patches:
    """Bug: checkpoints of the new size are complete when as many workers have acked as there were before."""

    def make(_: Any) -> Any:
        return lambda self, slots: self.output.resize(slots)

    return [method(Durability, "resize", make)]


def _the_old_plan() -> Patches:
    """Bug: workers of the new size are deployed with the plan of the size before."""

    def make(resize: Any) -> Any:
        def resized(self: Course, size: Any, now: int) -> None:
            plan = self.plan
            resize(self, size, now)
            self.plan = plan

        return resized

    return [method(Course, "_resize", make)]


def _key_groups_stay() -> Patches:
    """Bug: a worker restores the key groups that its subtasks had in the size before."""

    def make(required: Any) -> Any:
        def kept(self: Restorer) -> dict[str, tuple[int, int]]:
            before = max((record.parallelism for record in self.manifest.operators), default=1)

            def groups(subtask: int, parallelism: int, most: int) -> range:
                return group_range(subtask, max(before, subtask + 1) if self.own else parallelism, most)

            with mock.patch.object(restore, "group_range", groups):
                return dict(required(self))

        return kept

    return [method(Restorer, "required_groups", make)]


def _half_way_back() -> Patches:
    """Bug: a failure in the middle brings the plan of the size before back, but not its number of workers."""

    def make(back: Any) -> Any:
        def gone_back(self: Course, cause: Any, now: int) -> None:
            with mock.patch.object(Roster, "resize", lambda self, count, standbys: []):
                back(self, cause, now)

        return gone_back

    return [method(Course, "_back", make)]


def _any_plan() -> Patches:
    """Bug: a worker is deployed with the plan that it has read for another size, where the job keeps its size."""

    def make(deploy: Any) -> Any:
        def deployed(self: Standing, message: Any, slot: int) -> Any:
            return deploy(self, replace_struct(message, plan=self._plan) if self.spec is not None else message, slot)

        return deployed

    return [method(Standing, "deploy", make)]


def _nothing_behind() -> Patches:
    """Bug: of key groups that a worker has read ahead it reads nothing that was written since."""

    def make(behind: Any) -> Any:
        def blind(self: Any, uid: str, group: int, chain: tuple[str, ...]) -> tuple[str, ...]:
            found: tuple[str, ...] = behind(self, uid, group, chain)
            self._stale.discard((uid, group))
            return () if self._held.get(uid, {}).get(group) else found

        return blind

    return [method(_Had, "behind", make)]


def _judged_at_once() -> Patches:
    """Bug: the load of the size before counts in a new one that the load has not decided on."""

    def make(anew: Any) -> Any:
        return lambda self, now, *, changed: anew(self, now, changed=False)

    return [method(Scaler, "anew", make)]


def _shrinks_at_once() -> Patches:
    """Bug: a job shrinks as soon as fewer workers would have been enough through one span."""
    return [mock.patch("tailrace.coordinator.workers.autoscaling.CALM", 1)]


def _beyond_its_bounds() -> Patches:
    """Bug: the load decides on more workers than the job may have."""

    def make(init: Any) -> Any:
        return lambda self, settings, least, most: init(self, settings, least, most + 3)

    return [method(Scaler, "__init__", make)]


def _forgets_standbys() -> Patches:
    """Bug: where fewer workers come than were to join, standbys that were started meanwhile are forgotten."""

    def make(fewer: Any) -> Any:
        def forgetful(self: Roster, count: int, standbys: int) -> Any:
            with mock.patch.object(Roster, "_end_standbys", lambda self: []):
                return fewer(self, count, standbys)

        return forgetful

    return [method(Roster, "expect_fewer", make)]


def _waits_unaware() -> Patches:
    """Bug: a coordinator that waits for task slots does not look whether another start has taken the job over."""
    return [method(IncarnationClaims, "check_at", lambda check_at: lambda self, runs: None)]


def _two_wait(made: Scenario) -> Scenario:
    """A scenario with task slots for one driver only. It sleeps during a restart, and wakes beside its successor."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000)
    asleep = Fault(made.seed % 9, "freeze-driver", duration=(1 + made.seed % 4) * 5 * MS, after="claim done")
    faults = (Fault(40, "kill", made.seed, after="Complete"), asleep)
    return replace(made, parallelism=2, slots=2, rate=12_000, checkpoints=settings, faults=faults)


def _gives_up(made: Scenario) -> Scenario:
    """A scenario in which a job is about to get more workers, and a failure lets all begin anew in the size before."""
    raised = [Fault(turns, "raise", 0, after="asked for the size") for turns in (10, 40, 160)]
    return replace(_grows(made), faults=(Fault(30, "rescale", 3), *raised))


def _grows(made: Scenario) -> Scenario:
    """A scenario in which a job gets more workers, which are lost soon after."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000)
    faults = [
        Fault(30, "rescale", 3),
        Fault(20, "kill", 2, after="size 3: done"),
        Fault(200, "kill", 1, after="size 3: done"),
    ]
    return replace(made, parallelism=1, network="fast", rate=12_000, checkpoints=settings, faults=tuple(faults))


def _grows_and_fails(made: Scenario) -> Scenario:
    """A scenario in which a job gets more workers, and loses some on its way there."""
    killed = [Fault(turns, "kill", turns, after="resizing from") for turns in range(6, 60, 9)]
    return replace(_grows(made), faults=(Fault(30, "rescale", 3), *killed))


RESCALE_BUGS = (
    Bug(
        "a checkpoint is complete without the workers that have joined",
        "counted",
        _complete_without_new_workers,
        _grows,
    ),
    Bug("a new size has the plan of the old one", "counted", _the_old_plan, rescaled),
    Bug("workers keep their key groups in a new size", "counted", _key_groups_stay, _grows),
    Bug("a change of size goes half of the way back", "counted", _half_way_back, _grows_and_fails),
    Bug("workers take another plan than that of their size", "counted", _any_plan, _gives_up),
    Bug("what came since it was read ahead is left out", "counted", _nothing_behind, rescaled),
    Bug("fewer workers begin with the plan of more", "counted", _the_old_plan, elastic, seed=3),
    Bug("a new size is judged by the load of the one before", "counted", _judged_at_once, autoscaled),
    Bug("a size that is too large for a moment is given up", "counted", _shrinks_at_once, autoscaled, seed=3),
    Bug("the load decides on more workers than there may be", "counted", _beyond_its_bounds, autoscaled),
    Bug(
        "standbys of a size that does not come are forgotten",
        "counted",
        _forgets_standbys,
        elastic_with_standbys,
        seed=5,
    ),
    Bug("two drivers wait for the slots of each other", "counted", _waits_unaware, _two_wait, seed=3),
)
