"""The part of a standby that follows the worker of a slice (`protocol.hot_standby`): an attempt, until that gives up or
takes the worker's place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tailrace.elements.frame_codec import decode
from tailrace.protocol.deployment import Deploy
from tailrace.protocol.hot_standby import Follow, NotFollowed
from tailrace.protocol.message_codec import StandbyCommand
from tailrace.protocol.replay import Resume
from tailrace.protocol.standby import Hold, StandBy, TakeSlot
from tailrace.task.channels.services import Services
from tailrace.task.contract.actions import Action, ClosePeers, ToCoordinator
from tailrace.task.contract.events import PlacedRead, PlacedUnreadable, StatePartRead, StateRead, StateUnreadable
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.failover.parallel_replay import NeedsOneOrder
from tailrace.task.failover.standby import Standing
from tailrace.task.failover.standby_mirrors import Mirror
from tailrace.task.worker.followed_attempt import FollowingAttempt

MORE_COMES = "more than records goes around its loop; it follows again, step by step, from the next checkpoint on"

MakeServices = Callable[[JobSpec, Deploy, Mirror], Services]


class HotStandby:
    """The attempt that a standby follows, if it follows any. An error in it ends it, and nothing else: no worker depends on
    it."""

    def __init__(
        self,
        standing: Standing,
        numbers: Iterator[int],
        services: MakeServices,
        require: Callable[[Iterable[Action]], None],
        text_of: Callable[[BaseException], str],
    ) -> None:
        """`require`: takes actions; `text_of`: the text of an error for the user."""
        self._standing, self._numbers, self._services = standing, numbers, services
        self._require, self._text_of = require, text_of
        self.followed: FollowingAttempt | None = None
        self._slot = 0
        """The slice that is followed."""
        self._in_order = set[int]()
        """The slices whose loops are followed in one order: more than passing records on has come in their histories."""
        self.close_errors: list[BaseException] = []

    def take(self, message: StandbyCommand, epoch: int) -> StandBy | Hold | TakeSlot | None:
        """Takes a message to a standby; returns it, if it is one to any standby."""
        if isinstance(message, Follow):
            self._begin(message, epoch)
            return None
        if isinstance(message, TakeSlot) and self.followed is not None:
            self._require([ClosePeers()])  # the worker that was followed is lost
            if self.followed.slot != message.slot:
                self.end()
        return message

    def _begin(self, follow: Follow, epoch: int) -> None:
        """Begins to follow the worker of a slice, if the standby still holds the state that it is to begin with."""
        self.end()
        self._slot, deploy = follow.slot, follow.resume.deploy
        lent = self._standing.lend(follow.slot, follow.resume.checkpoint)
        if lent is None:
            self._require([ToCoordinator(NotFollowed(follow.slot, ""))])
            return
        spec, mirror = lent

        def act() -> list[Action]:
            services = self._services(spec, deploy, mirror)
            self.followed = FollowingAttempt(
                spec, epoch, follow, services, self._numbers, mirror, follow.slot in self._in_order
            )
            return self.followed.begin(deploy)

        self._guard(act)

    def _guard(self, act: Callable[[], Iterable[Action] | None]) -> None:
        try:
            self._require(act() or ())
        except NeedsOneOrder:
            self._in_order.add(self._slot)
            self.give_up(MORE_COMES)
        except BaseException as error:
            self.give_up(self._text_of(error))

    def give_up(self, reason: str) -> None:
        """Follows no more, and reports why."""
        self.end()
        self._require([ToCoordinator(NotFollowed(self._slot, reason))])

    def end(self) -> None:
        """Follows no more."""
        attempt, self.followed = self.followed, None
        if attempt is not None:
            self.close_errors += attempt.close()
            self._require([ClosePeers()])

    def receive(self, data: bytes) -> None:
        """Takes what the worker has sent."""
        attempt = self.followed
        if attempt is not None:
            self._guard(lambda: attempt.receive(decode(data)))

    def take_answer(self, event: StatePartRead | StateRead | StateUnreadable | PlacedRead | PlacedUnreadable) -> bool:
        """Takes an answer of the storage. False if it is none to the attempt."""
        attempt = self.followed
        if attempt is None or not (attempt.awaits_state(event.number) or attempt.awaits_records(event.number)):
            return False
        match event:
            case StatePartRead():
                self._guard(lambda: attempt.restore(event.part))
            case StateRead():
                self._guard(attempt.end_restore)
            case PlacedRead():
                self._guard(lambda: attempt.records_read(event.number, event.data))
            case StateUnreadable() | PlacedUnreadable():
                self.give_up(event.reason)
        return True

    def follow_on(self, answers: bool) -> bool:
        """Goes on following. `answers`: see `Flush`. Returns whether anything was done."""
        attempt = self.followed
        if attempt is None:
            return False
        self._guard(lambda: attempt.follow_on(answers))
        return attempt.moved

    def successor(self, resume: Resume) -> FollowingAttempt | None:
        """The attempt, if it can go on in the place of the lost worker. Else it ends, and the result is None."""
        attempt = self.followed
        if attempt is None or not attempt.fits(resume):
            self.end()
            return None
        self.followed = None
        self._standing.is_followed()
        return attempt
