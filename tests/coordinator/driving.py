"""One driver for all tests of the coordinator: a job of which the test plays the workers, the storage and the clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.coordinator.actions import Commit, Delete, Send
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Fixed, Strategy
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.loops.termination import NestSpec
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.output.origin import StartFrom
from tailrace.protocol.deployment import Deployed, FailureKind, Hello, Published
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.snapshot import Ack, Transaction, Trigger
from tailrace.state.manifest import Manifest, decode_manifest

S = JobStatus
SECOND = 1_000_000
LIMITS = Limits(
    slots=60 * SECOND, lease=10 * SECOND, leave=3 * SECOND, finish=30 * SECOND, calm=5 * SECOND, gone=9 * SECOND
)
PAUSE = 5
"""Seconds before a restart, by default."""
_POINTER = "1/0.manifest"
"""In front of the first manifest of the incarnation. That it goes is tested in test_checkpoints."""


class Job:
    """A coordinator with its workers, Spark and storage. By default there are two slots, checkpoints on
    request, and three restarts."""

    def __init__(
        self,
        *,
        slots: int = 2,
        checkpoints: bool = True,
        restarts: Strategy | None = None,
        start_from: Manifest | None = None,
        folder: str = "",
        path: str = "",
        before: Sequence[str] = (),
        spare_origin: bool = False,
        abandoned: Sequence[str] = (),
        nests: Sequence[NestSpec] = (),
        standbys: int | None = None,
        replicas: int = 1,
        depth: int = 1,
        hot: bool = False,
        executors: Sequence[str] = (),
        elastic: Any = None,
        **settings: Any,
    ) -> None:
        """`executors`: the executor of each slot's first worker; none of them knows one where there are none."""
        self.executors = executors
        self.machine = Coordinator(
            "job",
            1,
            slots,
            b"the plan",
            LIMITS,
            run_id="run",
            checkpoints=CheckpointSettings(**settings, origin="here") if checkpoints else None,
            restarts=restarts if restarts is not None else Fixed(3, PAUSE * SECOND),
            start_from=StartFrom(start_from, folder, path, before, spare_origin),
            abandoned=abandoned,
            nests=nests,
            standbys=standbys,
            replicas=replicas,
            depth=depth,
            hot=hot,
            elastic=elastic,
        )
        self.now = 100 * SECOND
        self.epochs = [0] * slots
        self.path = "1/1.manifest"
        self.disk: list[Manifest] = []
        """What was committed, the newest last."""

    @property
    def status(self) -> JobStatus:
        return self.machine.status

    # Its actions.

    def actions(self, kind: Any = object) -> list[Any]:
        """Actions of one kind since the last call."""
        actions, self.machine.actions = self.machine.actions, []
        return [action for action in actions if isinstance(action, kind)]

    def sent(self, kind: Any = object) -> list[tuple[int, Any]]:
        """Messages of one kind to workers since the last call: (slot, message)."""
        return [(a.slot, a.message) for a in self.actions(Send) if isinstance(a.message, kind)]

    def said(self, kind: Any = object) -> list[Any]:
        """Messages of one kind to workers since the last call, without the slots."""
        return [message for _, message in self.sent(kind)]

    # Workers.

    def start(self) -> Job:
        self.machine.start(self.now)
        return self

    def hello(self, slot: int, **other: Any) -> int | None:
        """The worker of a slot joins, from the newest start of the slot."""
        slots = self.machine.roster.slots
        launch = max(1, slots[slot].launches) if 0 <= slot < len(slots) else 1
        usual = {"slot": slot, "host": f"h{slot}", "port": slot, "pid": 10 + slot, "job": "job", "incarnation": 1}
        epoch = self.machine.hello(Hello(**{**usual, "launch": launch, **other}), self.now)
        if epoch is not None:
            self.epochs[slot] = epoch
        return epoch

    def says(self, slot: int, message: Any, epoch: int | None = None) -> None:
        self.machine.message(slot, self.epochs[slot] if epoch is None else epoch, message, self.now)

    def all_say(self, message: Any) -> None:
        for slot in range(len(self.epochs)):
            self.says(slot, message)

    def lose(self, slot: int) -> None:
        """The link of a worker closes."""
        self.machine.link_lost(slot, self.epochs[slot], "reset", self.now)

    def ended(self, slot: int, error: str | None = None, launch: int | None = None) -> None:
        self.machine.slot_ended(slot, error, self.now, launch=launch)

    def run(self) -> Job:
        """Starts and comes to RUNNING."""
        self.start()
        for slot in range(len(self.epochs)):
            self.hello(slot, **({"host": "h", "executor": self.executors[slot]} if self.executors else {}))
        return self.deployed()

    def deployed(self) -> Job:
        """All have deployed; where something is to be published or removed before the start, it is."""
        self.all_say(Deployed())
        if self.status is not S.RUNNING:
            self.says(0, Published(0))
        assert self.status is S.RUNNING
        self.actions()
        return self

    def published(self, number: int = 0) -> None:
        """The workers report, part by part, that all output of a number is visible."""
        lanes = self.machine.durability.output.lanes
        while parts := [part for part in lanes.heads() if part.message.number == number]:
            for part in parts:
                self.says(part.slot, Published(number, part=part.message.part))

    # The clock.

    def wait(self, seconds: float) -> None:
        """Time goes by; whoever is there gives signs of life."""
        for _ in range(int(seconds) or 1):
            self.now += int(seconds * SECOND / (int(seconds) or 1))
            for slot in range(len(self.epochs)):
                self.machine.heartbeat(slot, 10 + slot, self.now)
            self.machine.tick(self.now)

    def silence(self, seconds: float) -> None:
        """Time goes by, and nobody gives a sign of life."""
        self.now += int(seconds * SECOND)
        self.machine.tick(self.now)

    # Checkpoints, and answers of the storage.

    def trigger(self) -> int:
        """A user requests a checkpoint, and it begins."""
        self.machine.checkpoint("somebody", self.now)
        [(_, first), (_, second)] = self.sent(Trigger)
        assert first == second
        return int(first.checkpoint)

    def trigger_of_all(self) -> int:
        """As `trigger`, with any number of workers."""
        self.machine.checkpoint("somebody", self.now)
        numbers = {message.checkpoint for message in self.said(Trigger)}
        assert len(numbers) == 1
        return int(numbers.pop())

    def trigger_later(self) -> int:
        """As `trigger`, where `Trigger` goes out some time later: the storage is out of reach."""
        self.machine.checkpoint("somebody", self.now)
        self.wait(20)
        return int(self.said(Trigger)[0].checkpoint)

    def ack(self, slot: int, number: int, *prepared: bytes, older: tuple[str, ...] = ()) -> None:
        name = f"1/chk-{number}/w{slot}-{self.epochs[slot]}.state"
        self.says(slot, Ack(number, name, 10, list(older), [], [Transaction("sink", one) for one in prepared]))

    def acked(self) -> Commit:
        """A checkpoint that all have acked: its manifest is on its way."""
        number = self.trigger()
        for slot in range(2):
            self.ack(slot, number, b"of %d" % slot)
        [commit] = self.actions(Commit)
        return commit

    def commit(self, commit: Commit | None = None) -> None:
        """The storage has created the manifest."""
        if commit is None:
            [commit] = self.actions(Commit)
        self.disk.append(decode_manifest(commit.data, "it"))
        self.path = path = f"{commit.incarnation}/{commit.checkpoint}.manifest"
        self.machine.commit_done(commit.checkpoint, path, f"url/{path}", self.now)
        self.machine.actions = [action for action in self.machine.actions if action != Delete([_POINTER])]

    def complete(self, *prepared: bytes) -> int:
        """A whole checkpoint."""
        number = self.trigger()
        self.ack(0, number, *prepared)
        self.ack(1, number)
        self.commit()
        return number

    def claimed(self, incarnation: int = 2) -> None:
        """The storage has given us an incarnation, and found what there is."""
        newest = self.disk[-1] if self.disk else None
        path = "" if newest is None else self.path
        self.machine.claim_done(incarnation, newest, path, self.now)

    def fails(self) -> None:
        """The job fails, for a reason that is not one worker's."""
        self.machine.course.fail(self.now, Cause("it broke", FailureKind.USER))

    def restart(self) -> Job:
        """The job fails, and all comes that is needed for the next deployment."""
        self.fails()
        return self.restart_goes_on()

    def restart_goes_on(self) -> Job:
        """All comes that is needed for the next deployment."""
        self.claimed(self.machine.incarnation + 1)
        self.all_say(WasReset(self.machine.attempts.restarts))
        self.wait(PAUSE)
        return self
