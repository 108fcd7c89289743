"""The output on its way to the workers that publish it, in a lane for each worker and sink."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tailrace.coordinator.checkpoint_stats import Waits
from tailrace.coordinator.decisions import Decisions, Tell
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.output.outages import SINKS, Outage
from tailrace.protocol.deployment import NotPublished, Publish, Published

SLOW = 10_000_000
"""The time that a sink may take to publish a part before the watchers are informed (microseconds)."""
PartKey = tuple[int, int, int]
"""The name of a part in reports: its number, its slot, its place among the parts of both."""


@dataclass(eq=False)
class OutputPart:
    """A part of a publication: one message for one worker and one sink."""

    slot: int
    message: Publish
    sent_at: int | None = None
    """The time of the newest send; None while the part waits for its turn."""
    failed: bool = False
    """True if the worker could not make all of it visible, and it is to be sent once more."""

    @property
    def key(self) -> PartKey:
        """The name of the part in reports."""
        return self.message.number, self.slot, self.message.part

    @property
    def uid(self) -> str:
        """The uid of its sink; empty where it only removes what was not published."""
        return self.message.prepared[0][0] if self.message.prepared else ""


class PublishingLanes:
    """The parts that are not visible, in lanes. Parts that could not be made visible are sent again, after pauses that grow,
    for `Limits.publish`.

    Invariant U3: a worker has at most one part of a sink at a time, and gets the parts of a sink in the order of their
    numbers. A part that waits or has failed holds no other lane back.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lanes: dict[tuple[int, str], deque[OutputPart]] = {}
        self._outages: dict[str, Outage] = {}
        """The outages of sinks, by uid."""
        self._failures: dict[str, NotPublished] = {}
        """The newest failures of sinks, by uid."""

    def add(self, parts: Sequence[OutputPart], now: int) -> Decisions:
        """Adds parts behind those that are there. Sends each that is the first one in its lane."""
        decided: Decisions = []
        for part in parts:
            lane = self._lanes.setdefault((part.slot, part.uid), deque())
            lane.append(part)
            if len(lane) == 1:
                decided += self._send(part, now)
        return decided

    def complete(self, report: Published, slot: int, now: int) -> Decisions | None:
        """Takes the report that a part is visible: the next one of its lane is sent. None where it is not awaited."""
        part = self._find(report.number, slot, report.part)
        if part is None:
            return None
        lane = self._lanes[part.slot, part.uid]
        lane.popleft()
        if not lane:
            del self._lanes[part.slot, part.uid]
        outage, decided = self._outages.get(part.uid), self._send(lane[0], now) if lane else []
        if outage is not None and not any(one.message.tries for one in self.heads(part.uid)):
            del self._outages[part.uid]
            decided += outage.over(now)
        return decided

    def note_failure(self, report: NotPublished, slot: int, now: int) -> Decisions:
        """Takes the report that a part is not visible. Tries of several workers at about the same time count as one."""
        part = self._find(report.number, slot, report.part)
        if part is None or part.message.tries != report.tries:
            return []
        part.failed = True
        part.message = msgspec.structs.replace(part.message, tries=part.message.tries + 1)
        self._failures[part.uid] = report
        outage = self._outages.setdefault(
            part.uid, Outage(SINKS, self._limits, self._limits.publish, "publish_timeout")
        )
        if outage.due_at is not None and outage.due_at > now:
            return []
        decided = outage.note_failure(report.reason, now)
        return [self._with_place(one, part) if isinstance(one, Cause) else one for one in decided]

    def _find(self, number: int, slot: int, at: int) -> OutputPart | None:
        """The part of this name, if its worker has it and has not reported."""
        for part in self.heads():
            if part.key == (number, slot, at) and part.sent_at is not None and not part.failed:
                return part
        return None

    @property
    def due_at(self) -> int | None:
        """The time at which parts are sent once more."""
        times = [self._outages[part.uid].due_at for part in self.heads() if part.failed and part.uid in self._outages]
        return min((at for at in times if at is not None), default=None)

    def send_again(self, now: int) -> Decisions:
        """Sends the parts once more that could not be made visible, and are due."""
        decided: Decisions = []
        for part in list(self.heads()):
            outage = self._outages.get(part.uid)
            if part.failed and (outage is None or outage.due_at is None or outage.due_at <= now):
                decided += self._send(part, now)
        return decided

    @property
    def late_at(self) -> int | None:
        """The time at which a worker has been at a part for too long."""
        return min((at for part in self.heads() if (at := self._late_at(part)) is not None), default=None)

    def _late_at(self, part: OutputPart) -> int | None:
        if part.failed or part.sent_at is None:
            return None
        outage = self._outages.get(part.uid)
        since = part.sent_at if outage is None or outage.since is None else min(part.sent_at, outage.since)
        return since + self._limits.publish

    def late(self, now: int) -> Decisions:
        """The failure of a job whose sink has not answered for too long."""
        for part in self.heads():
            at = self._late_at(part)
            if at is not None and at <= now:
                outage = self._outages.get(part.uid)
                outage = (
                    Outage(SINKS, self._limits, self._limits.publish, "publish_timeout") if outage is None else outage
                )
                return [self._with_place(outage.given_up(), part)]
        return []

    def _with_place(self, cause: Cause, part: OutputPart) -> Cause:
        """The failure with the sink and the subtask that it comes from."""
        failure = self._failures.get(part.uid)
        name = part.uid if failure is None or not failure.operator else failure.operator
        what = f"operator {name!r}, subtask {part.slot}: {cause.message}"
        trace = "" if failure is None else failure.traceback.rstrip()
        return Cause(f"{what}\n{trace}" if trace else what, cause.kind, name, part.slot)

    def waits(self, now: int) -> list[Waits]:
        """The sinks that are away, or have not come back for a while, for the job's watchers. Other threads call it, too."""
        away = [one for one in list(self._outages.values()) if one.since is not None]
        found = [Waits(one.place, one.reason, one.tries, max(0, now - (one.since or now))) for one in away]
        for (slot, uid), lane in list(self._lanes.items()):
            sent_at = lane[0].sent_at if lane and uid not in self._outages and not lane[0].failed else None
            if sent_at is not None and now - sent_at >= SLOW:
                reason = f"sink {uid!r} publishes in worker {slot}, and has not come back"
                found.append(Waits(SINKS, reason, 0, now - sent_at))
        return found

    def worker_replaced(self, slot: int, now: int) -> Decisions:
        """Sends what the lost worker of a slot had to the one that has taken its place. It may publish again what the worker
        before had published and not reported."""
        return [one for part in list(self.heads()) if part.slot == slot for one in self._send(part, now)]

    def go_on(self, now: int) -> None:
        """Goes on in the place of a lost coordinator, whose clock may have been another one."""
        for outage in self._outages.values():
            outage.since = outage.due_at = now
        for part in self.heads():
            part.sent_at = None if part.sent_at is None else now

    def clear(self) -> None:
        """Forgets everything that is under way. An outage lasts until something is visible."""
        self._lanes = {}

    def heads(self, uid: str | None = None) -> Iterator[OutputPart]:
        """The first part of each lane, or of each lane of one sink."""
        return (lane[0] for (_, whose), lane in self._lanes.items() if uid in (None, whose))

    def _send(self, part: OutputPart, now: int) -> Decisions:
        part.sent_at, part.failed = now, False
        return [Tell(part.message, part.slot)]
