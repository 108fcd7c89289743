"""Bugs to be planted in publishing by each worker for itself. They show where sinks publish into a server that is slow or
away (`search.servers`)."""

from __future__ import annotations

from typing import Any
from unittest import mock

from search.planted.patches import SERVERS, Bug, Patches, method
from tailrace.coordinator.output.lanes import PublishingLanes
from tailrace.coordinator.output.publishing import JobOutput
from tailrace.protocol.deployment import NotPublished, Published


def _failed_parts_are_given_up() -> Patches:
    """Bug: a part that failed is sent again only as long as no other part of its sink succeeds."""

    def make(done: Any) -> Any:
        def patched(self: PublishingLanes, report: Published, slot: int, now: int) -> Any:
            decided = done(self, report, slot, now)
            self._outages = {}
            return decided

        return patched

    due = property(lambda self: min((at for one in self._outages.values() if (at := one.due_at)), default=None))
    return [method(PublishingLanes, "complete", make), mock.patch.object(PublishingLanes, "due_at", due)]


def _parts_behind_a_failure_go_first() -> Patches:
    """Bug: what was prepared behind a part that failed does not wait for it."""

    def make(not_done: Any) -> Any:
        def patched(self: PublishingLanes, report: NotPublished, slot: int, now: int) -> Any:
            decided = not_done(self, report, slot, now)
            for lane in self._lanes.values():
                if len(lane) > 1 and lane[0].failed:
                    lane.rotate(-1)
                    decided += [] if lane[0].failed else self._send(lane[0], now)
            return decided

        return patched

    return [method(PublishingLanes, "note_failure", make)]


def _replacements_publish_nothing() -> Patches:
    """Bug: only the worker of the first slot is sent again what a lost one had to publish."""

    def make(replaced: Any) -> Any:
        return lambda self, slot, now: replaced(self, slot, now) if slot == 0 else []

    return [method(PublishingLanes, "worker_replaced", make)]


def _leftovers_go_first() -> Patches:
    """Bug: leftovers are removed while other workers still publish what the restored checkpoint had prepared."""

    def make(send: Any) -> Any:
        def patched(self: JobOutput, number: int, prepared: Any, recover: Any, now: int) -> Any:
            decided = send(self, number, prepared, recover, now)
            sent = self._sent[number]
            if sent.last is None:
                return decided
            last, sent.last, sent.parts = sent.last, None, sent.parts + 1
            return [*self.lanes.add([last], now), *decided]

        return patched

    return [method(JobOutput, "_send", make)]


SERVER_BUGS = (
    Bug("a part that failed is given up when another one succeeds", SERVERS, _failed_parts_are_given_up),
    Bug(
        "what comes behind a part that failed does not wait for it", SERVERS, _parts_behind_a_failure_go_first, seed=11
    ),
    Bug("a replacement is not sent what a lost worker had to publish", SERVERS, _replacements_publish_nothing, seed=28),
    Bug("leftovers are removed before all workers have published", SERVERS, _leftovers_go_first, seed=3),
)
