"""Bugs to be planted in coordinators that go on in the place of lost ones."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from search.campaigns.replacements import coordinators_alone
from search.planted.patches import Bug, Patches, method
from search.scenarios import MS, Scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.succession.conversations import Conversations
from tailrace.coordinator.succession.eventlog import EventLog
from tailrace.task.worker.conversation import Conversation
from tailrace.testing.faults import Fault


def _lost_again_and_again(made: Scenario) -> Scenario:
    """A scenario in which each coordinator is lost soon, on a network on which some messages take much longer."""
    faults = tuple(Fault(turn, "lose-coordinator") for turn in range(70 + made.seed, 2_500, 61))
    settings = CheckpointSettings(interval=1 * MS)
    return dataclasses.replace(made, network="uneven", parallelism=3, checkpoints=settings, faults=faults, log=1 << 20)


def _leaves_too_soon() -> Patches:
    """Bug: actions leave a coordinator before a mirror has the events behind them."""

    def make(release: Any) -> Any:
        def hasty(self: EventLog) -> None:
            self.out += [action for _, action in self._held]
            self._held.clear()

        return hasty

    return [method(EventLog, "release", make)]


def _sent_again() -> Patches:
    """Bug: a worker sends another coordinator what is in the log already."""

    def make(forget: Any) -> Any:
        return lambda self, count: None

    return [method(Conversation, "_forget", make)]


def _received_again() -> Patches:
    """Bug: another coordinator sends workers what they have received."""

    def make(go_on: Any) -> Any:
        def repeats(self: Conversations, workers: Any) -> Any:
            less = {key: max(has.received - 1, self._of[key].first) for key, has in workers.items()}
            return go_on(self, {key: replace(has, received=less[key]) for key, has in workers.items()})

        return repeats

    return [method(Conversations, "go_on", make)]


SUCCESSION_BUGS = (
    Bug("an action leaves before its event is kept", "counted", _leaves_too_soon, _lost_again_and_again, seed=2),
    Bug("an event is handled twice by another coordinator", "counted", _sent_again, coordinators_alone),
    Bug("another coordinator sends again what was received", "counted", _received_again, coordinators_alone),
)
