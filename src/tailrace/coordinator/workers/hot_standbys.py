"""Hot standbys: which standby follows the worker of which slice (`protocol.hot_standby`)."""

from __future__ import annotations

import msgspec

from tailrace.coordinator.actions import NotHot, Send
from tailrace.coordinator.decisions import Decisions, Tell
from tailrace.coordinator.durability.durability import Durability
from tailrace.coordinator.workers.places import name_of_executor
from tailrace.coordinator.workers.replacement_phases import Takeovers
from tailrace.coordinator.workers.roster import Roster
from tailrace.coordinator.workers.standbys import Standby
from tailrace.protocol.deployment import Peer
from tailrace.protocol.hot_standby import Feed, Feeds, Follow, NotFollowed
from tailrace.protocol.replay import Resume
from tailrace.state.manifest import encode_manifest


class HotStandbys:
    """The hot standbys of one job. Each follows the worker of one slice, from the newest checkpoint on, whose state it
    holds. Where a standby gives up, or is lost, the next begins behind the next checkpoint."""

    def __init__(self, enabled: bool, roster: Roster, durability: Durability, takeovers: Takeovers) -> None:
        self._enabled, self._roster, self._durability, self._takeovers = enabled, roster, durability, takeovers

    def begin(self, place: Standby) -> Decisions:
        """Asks the worker whose slice a standby holds to feed it, unless one is followed already. Called when the standby
        holds the state of a checkpoint."""
        newest, hello = self._durability.newest, place.hello
        if not self._enabled or place.follows is not None or len(place.holding) != 1 or hello is None:
            return []
        slot = place.holding[0]
        worker = self._roster.slots[slot]
        followed = any(one.follows == slot for one in self._roster.standbys.all)
        if followed or self._takeovers.active or newest is None or place.held != newest[0] or not worker.deployed:
            return []
        place.follows, place.follows_from, place.attempt = slot, newest[0], 0
        peer = Peer(place.index, hello.host, hello.port, place.epoch, name_of_executor(hello))
        return [Tell(Feed(peer, newest[0]), slot)]

    def feeds(self, slot: int, message: Feeds | NotFollowed, plan: bytes) -> Decisions:
        """Makes a standby follow a worker that feeds it. If the worker does not, the standby is one like any other."""
        if isinstance(message, NotFollowed):
            return []  # it has taken the slot meanwhile
        place = self._roster.at(message.place)
        if not isinstance(place, Standby) or place.follows != slot:
            return []
        if not message.possible:
            place.follow_none()
            return [NotHot(place.index, slot, message.reason)] if message.reason else []
        if place.attempt or place.follows_from != message.checkpoint:
            return []
        resume = self._resume(slot, message.checkpoint, plan)
        if resume is None:
            place.follow_none()
            return []
        place.attempt = resume.deploy.attempt
        return [Send(place.index, place.epoch, Follow(slot, resume))]

    def _resume(self, slot: int, checkpoint: int, plan: bytes) -> Resume | None:
        """What a standby needs to follow the worker of a slice; None if a newer checkpoint is complete, or the history is
        not known."""
        durability, takeovers, worker = self._durability, self._takeovers, self._roster.slots[slot]
        history, newest, restored = takeovers.copy_of(slot), durability.newest, durability.output.restored
        if newest is None or newest[0] != checkpoint or takeovers.active:
            return None
        if not any(number == checkpoint for number, _ in history.cuts):
            return None
        takeovers.resumes += 1
        peers = [one for one in self._roster.peers() if one.slot == slot]
        deploy = restored.deploy(plan, peers, durability.claims.deployed, worker.attempt + takeovers.resumes)
        manifest = encode_manifest(msgspec.structs.replace(newest[1], prepared=[]))
        deploy = msgspec.structs.replace(deploy, manifest=manifest, folder="", own=True)
        in_flight = [] if restored.manifest is None else [*restored.manifest.in_flight]
        return Resume(deploy, checkpoint, history, [], in_flight=in_flight)

    def not_followed(self, place: Standby, message: Feeds | NotFollowed) -> Decisions:
        """Notes that a standby has given up."""
        if not isinstance(message, NotFollowed) or place.follows != message.slot:
            return []
        place.follow_none()
        return [NotHot(place.index, message.slot, message.reason)] if message.reason else []

    def note_loss(self, slot: int) -> None:
        """Notes that the worker of a slice is lost: who has followed it follows none any more."""
        for place in self._roster.standbys.all:
            if place.follows == slot:
                place.follow_none()

    def anew(self) -> None:
        """Notes that all workers begin anew."""
        for place in self._roster.standbys.all:
            place.follow_none()
