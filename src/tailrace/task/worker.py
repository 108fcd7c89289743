"""A worker as a machine: joins, deploys its slice, steps it, reports, leaves. Its drivers are `runtime.worker`, which
has sockets and a clock, and the simulator, which has neither.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace.elements.frames import decode as decode_frame
from tailrace.errors import InternalError, ProtocolViolation, TailraceError, UserCodeError
from tailrace.graph.operators import Sink
from tailrace.protocol.deployment import (
    AnyMessage,
    Deploy,
    Deployed,
    Failed,
    FailureKind,
    Leave,
    Peer,
    Phase,
    Progress,
    Publish,
    Published,
    Start,
    SubtasksFinished,
    Welcome,
    next_phase,
)
from tailrace.task.functions import with_own_functions
from tailrace.task.idle import Idle, Reason
from tailrace.task.machine import Task
from tailrace.task.services import RandomFactory, Services
from tailrace.task.slice import Slice, ToPeer
from tailrace.task.usercode import user_traceback


@dataclass(frozen=True)
class JobSpec:
    """What a worker needs to know: the content of `Deploy.plan`, once unpickled."""

    job: str
    incarnation: int
    plan: Any
    memory: int
    run_id: str = ""
    seed: int = 0
    copy_records: bool = False
    debug: bool = False


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """An action: this message goes to the coordinator."""

    message: AnyMessage


@dataclass(frozen=True, slots=True)
class ConnectPeers:
    """An action: connect to these workers; then call `peers_connected`."""

    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """An action: the worker is done. `lost` when nobody told it so."""

    reason: str


Action = ToCoordinator | ConnectPeers | Exit | ToPeer


class Worker:
    """One worker slot's machine.

    Invariant K1: after `LEFT` no task is stepped and nothing is sent.
    Invariant K2: `Failed` is said at most once, and no task is stepped after it.
    """

    def __init__(
        self, slot: int, load: Callable[[bytes], JobSpec], random_factory: RandomFactory, attempt: int = 0
    ) -> None:
        self.slot = slot
        self.phase = Phase.JOINING
        self.epoch = 0
        self.failed = False
        self.slice: Slice | None = None
        self.spec: JobSpec | None = None
        self.actions: list[Action] = []
        self._closed = False
        self.close_errors: list[BaseException] = []
        """What user functions raised in `close`: reported by the driver, never the cause of a failure."""
        self._load = load
        self._random_factory = random_factory
        self._attempt = attempt

    # Events.

    def control(self, message: AnyMessage) -> None:
        """A message from the coordinator."""
        if self.phase is Phase.LEFT:
            return
        if self.failed and not isinstance(message, Leave):
            return  # the coordinator had not heard yet
        self.phase = next_phase(self.phase, message)
        if isinstance(message, Welcome):
            self.epoch = message.epoch
        elif isinstance(message, Deploy):
            self._guarded(lambda: self._deploy(message))
        elif isinstance(message, Start):
            pass  # from here on the driver steps the tasks
        elif isinstance(message, Publish):
            self._guarded(lambda: self._publish(message))
        elif isinstance(message, Leave):
            self._leave(message.reason)

    def peers_connected(self) -> None:
        """All links to other workers are up."""
        if not self.failed and self.phase is Phase.DEPLOYED:
            self._say(Deployed())

    def frame(self, data: bytes, peer: int) -> None:
        """Bytes from another worker. A broken frame is that worker's fault and fails the job, naming it."""
        if self.slice is None or self.failed or self.phase is Phase.LEFT:
            return
        try:
            self.slice.receive(decode_frame(data), peer)
        except ProtocolViolation as error:
            self._fail(FailureKind.PEER, f"worker {peer} broke the protocol: {error}", peer=peer)
        self._collect()

    def peer_lost(self, peer: int, reason: str) -> None:
        """A link to another worker closed. Once everything is finished that is how it should be."""
        if self.phase in (Phase.RUNNING, Phase.DEPLOYED) and not self.failed:
            self._fail(FailureKind.PEER, f"lost the connection to worker {peer}: {reason}", peer=peer)

    def coordinator_lost(self, reason: str) -> None:
        """The coordinator's link closed: nobody will tell us anything any more."""
        if self.phase is not Phase.LEFT:
            self._leave(f"lost the coordinator: {reason}")

    def cannot_connect(self, reason: str) -> None:
        """The driver could not carry out `ConnectPeers`."""
        self._fail(FailureKind.PEER, reason)

    # Steps.

    @property
    def stepping(self) -> bool:
        """Whether tasks may be stepped now."""
        return self.phase is Phase.RUNNING and not self.failed

    def tasks(self) -> list[Task]:
        """The tasks in the order in which they are asked: downstream first."""
        return self.slice.tasks if self.slice is not None else []

    def step(self, task: Task, now: int, budget: int) -> Idle | None:
        """One step of one task; a failure of user code becomes `Failed`. The step after everybody's last one closes the
        user's functions: what the tasks sent is on its way by then, and the end of the job, which is a matter of seconds,
        need not wait for them."""
        assert self.slice is not None
        if self.slice.finished:
            self._finish()
            return None
        try:
            idle = self.slice.step(task, now, budget)
        except BaseException as error:
            self._fail_by(error, task.vertex.name)
            return Idle(Reason.FINISHED)
        self._collect()
        return idle

    def flush(self) -> bool:
        """Nothing else is to do. True when something gathered went."""
        if self.slice is None or not self.stepping:
            return False
        try:
            flushed = self.slice.flush()
        except BaseException as error:
            self._fail_by(error)
            return False
        self._collect()
        return flushed

    def report(self, busy: dict[int, int], elapsed: int, refused: dict[str, int]) -> None:
        """Time to say how it goes."""
        if self.slice is not None and self.phase in (Phase.RUNNING, Phase.FINISHED) and not self.failed:
            self._say(Progress(self.slice.reports(busy), elapsed, refused))

    def internal_error(self, error: BaseException) -> None:
        """The driver caught what nobody should have raised."""
        self._fail(FailureKind.INTERNAL, "inside tailrace: " + "".join(traceback.format_exception(error)))

    # Inside.

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ImportError as error:
            what = f"worker {self.slot} cannot import {error.name or error}"
            self._fail(FailureKind.IMPORT, f"{what}: install it there, or ship it with the job ({error})")
        except TailraceError as error:
            self._fail_by(error)
        except Exception as error:  # unpickling a plan runs users' __setstate__ and module code
            self._fail(FailureKind.USER, f"{type(error).__name__}: {error}\n{user_traceback(error)}")
        except BaseException as error:
            self._fail_by(error)

    def _deploy(self, message: Deploy) -> None:
        spec = self.spec = self._load(message.plan)
        services = Services(
            random_factory=self._random_factory,
            job=spec.job,
            incarnation=spec.incarnation,
            run_id=spec.run_id,
            seed=spec.seed,
            max_parallelism=spec.plan.graph.max_parallelism,
            copy_records=spec.copy_records,
            debug=spec.debug,
        )
        plan = with_own_functions(spec.plan, keep_first=True)
        self.slice = Slice(plan, self.slot, self._attempt, services, spec.memory)
        self.slice.open()
        wanted = self.slice.peers()
        self.actions.append(ConnectPeers(tuple(peer for peer in message.peers if peer.slot in wanted)))

    def _publish(self, message: Publish) -> None:
        assert self.spec is not None
        for ident, prepared in message.prepared:
            node = self.spec.plan.graph.node(ident)
            assert isinstance(node.operator, Sink)
            try:
                node.operator.sink.publish(prepared)
            except Exception as error:
                raise UserCodeError(
                    f"publishing raised {type(error).__name__}: {error}",
                    operator=node.name,
                    subtask=self.slot,
                    user_traceback=user_traceback(error),
                ) from error
        self._say(Published())

    def _finish(self) -> None:
        assert self.slice is not None
        self._close()
        self.phase = Phase.FINISHED
        self._say(SubtasksFinished([one for task in self.slice.tasks for one in task.prepared()]))

    def _leave(self, reason: str) -> None:
        self.phase = Phase.LEFT
        self._close()
        self.actions.append(Exit(reason))

    def _close(self) -> None:
        if self.slice is not None and not self._closed:
            self._closed = True
            self.close_errors = self.slice.close()

    def _fail_by(self, error: BaseException, operator: str | None = None) -> None:
        """Sorts what was raised by whose fault it is. `operator` is what ran, where an error does not say it itself."""
        if isinstance(error, UserCodeError):
            where = {"operator": error.operator, "subtask": error.subtask, "record": error.record}
            self._fail(FailureKind.USER, str(error), **where)
        elif isinstance(error, InternalError | ProtocolViolation):
            self._fail(FailureKind.INTERNAL, str(error))
        elif isinstance(error, TailraceError):
            self._fail(FailureKind.USER, str(error))
        elif isinstance(error, Exception):
            self.internal_error(error)
        else:  # sys.exit() and the like: user code wants to end a process that is not its own
            what = f"user code raised {error!r}, which would end the worker's process; let it raise an Exception"
            place = operator if operator is not None else "opening or publishing"
            trace = user_traceback(error)
            self._fail_by(UserCodeError(what, operator=place, subtask=self.slot, user_traceback=trace))

    def _fail(self, kind: FailureKind, message: str, **where: Any) -> None:
        if not self.failed and self.phase is not Phase.LEFT:
            self.failed = True
            self._say(Failed(kind.value, sendable(message), **where))

    def _say(self, message: AnyMessage) -> None:
        self.actions.append(ToCoordinator(message))

    def _collect(self) -> None:
        if self.slice is not None and self.slice.actions:
            self.actions.extend(self.slice.actions)
            self.slice.actions.clear()


def sendable(text: str, limit: int = 20_000) -> str:
    """A text as it can be sent: what a user's error says may hold half a surrogate pair, or all of their data."""
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n[…]\n{text[-limit // 2 :]}"
    return text.encode(errors="replace").decode()
