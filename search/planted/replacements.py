"""Bugs to be planted in workers that are replaced while the others go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec

from search.campaigns.each_step import Way
from search.campaigns.replacements import (
    coordinators_lost,
    failing,
    following,
    moving,
    past_what_waits,
    replacing,
    standing_by,
)
from search.planted.patches import EACH_STEP, Bug, Patches, method
from search.scenarios import MS, Scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.durability.durability import Durability
from tailrace.coordinator.durability.incarnation_claims import IncarnationClaims
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.workers.first_failures import FirstFailures
from tailrace.coordinator.workers.replacements import Replacements
from tailrace.coordinator.workers.roster import Roster
from tailrace.coordinator.workers.standby_placement import deal
from tailrace.elements.frame_codec import ChannelId
from tailrace.elements.markers import Watermark
from tailrace.state.layers import LayeredBackend
from tailrace.state.parts import ChainsOf
from tailrace.storage.reading import _Had
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.channels.outbox import MAX_AGE
from tailrace.task.channels.spilling import Item, Shelf
from tailrace.task.failover.channel_restore import AsItWas
from tailrace.task.failover.replacement import Resumed, sweep
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.failover.replayed_steps import replay_step
from tailrace.task.failover.standby_feed import StandbyFeed
from tailrace.task.failover.standby_mirrors import Mirror
from tailrace.task.failover.withheld_output import WithheldOutput
from tailrace.task.journal.history import Cut, Did, History
from tailrace.task.journal.replayable_outbox import ReplayableOutbox
from tailrace.task.journal.sent_log import SentLog
from tailrace.task.journal.shapes import in_shape
from tailrace.task.subtask.machine import Task
from tailrace.task.worker.attempt import Attempt
from tailrace.testing.faults import Fault


def _steps_forgotten() -> Patches:
    """Bug: one step in five is in no history."""

    def make(add: Any) -> Any:
        def forgetful(self: History, entry: Any) -> None:
            if not isinstance(entry, Did) or self.end % 5:
                add(self, entry)
            else:
                add(self, Did(entry.vertex, -1, entry.now, entry.budget))

        return forgetful

    return [method(History, "add", make)]


def _truncated_early() -> Patches:
    """Bug: a history is cut off at a checkpoint that has only begun."""

    def make(add: Any) -> Any:
        def hasty(self: History, entry: Any) -> None:
            add(self, entry)
            if isinstance(entry, Cut):
                self.complete(entry.request.number)

        return hasty

    return [method(History, "add", make)]


def _sent_twice() -> Patches:
    """Bug: a replacement sends what its receivers already have."""
    return [method(ReplayableOutbox, "receiver_replaced", lambda again: lambda self, ident, *came: again(self, ident))]


def _clock_read_live() -> Patches:
    """Bug: a replayed step sees the clock of now."""

    def late(task: Task, line: int, now: int, *rest: Any) -> None:
        replay_step(task, line, now + 2 * MAX_AGE, *rest)

    return [mock.patch("tailrace.task.failover.replay.replay_step", late)]


def _lost_one_is_heard() -> Patches:
    """Bug: frames from a lost worker count, though its loss was reported."""

    def make(receive: Any) -> Any:
        def deaf(self: ReplayableSlice, frame: Any, peer: int) -> None:
            self.gone.clear()
            receive(self, frame, peer)

        return deaf

    return [method(ReplayableSlice, "receive", make)]


def _goes_on_too_soon() -> Patches:
    """Bug: a replacement goes on before it has replayed all that the lost worker did."""

    def make(go_on: Any) -> Any:
        def hasty(self: Resumed) -> Any:
            if len(self.again.left) < 8:
                self.again._entries.clear()
                for lane in self.again._lanes or ():
                    lane.entries.clear()
            return go_on(self)

        return hasty

    return [method(Resumed, "go_on", make)]


def _half_is_all() -> Patches:
    """Bug: a standby that takes a slot while it reads a checkpoint counts as having all of it."""

    def make(given_up: Any) -> Any:
        def hopeful(self: Mirror) -> None:
            self.chains = {**self.chains, **self._coming}
            given_up(self)

        return hopeful

    return [method(Mirror, "given_up", make)]


def _held_of_any_checkpoint() -> Patches:
    """Bug: a standby restores what it holds, whichever checkpoint that is of."""

    def anything(self: Mirror, manifest: Any) -> Any:
        return [*self._rest, *(ChainsOf(uid, chains) for uid, chains in self.chains.items())]

    return [method(Mirror, "everything_of", lambda _: anything)]


def _no_chain_compared() -> Patches:
    """Bug: for a key group whose chain of files begins anew, a standby skips as many files as it has of the old chain."""

    def make(behind: Any) -> Any:
        def blind(self: Any, uid: str, group: int, chain: tuple[str, ...]) -> tuple[str, ...]:
            held = self._held.get(uid, {}).get(group, ())
            self._stale.discard((uid, group))
            return chain[len(held) :]

        return blind

    return [method(_Had, "behind", make)]


def _deleted_stays() -> Patches:
    """Bug: a standby keeps what it has of a key group that it receives anew."""
    return [method(LayeredBackend, "forget", lambda forget: lambda self, group: None)]


def _spilled_is_lost() -> Patches:
    """Bug: spilled frames are not sent again to the replacement of a lost worker."""

    def make(go_again: Any) -> Any:
        def forgetful(self: SentLog, came: int) -> Any:
            again = go_again(self, came)
            return [one for one in again if not isinstance(one[1], Item) or one[1].in_memory]

        return forgetful

    return [method(SentLog, "go_again", make)]


def _spilled_in_any_order() -> Patches:
    """Bug: spilled frames are read in place of each other."""

    def make(spill: Any) -> Any:
        def mixed(self: Shelf, item: Item) -> None:
            spill(self, item)
            before = vars(self).get("before")
            if before is not None and before.uses and not before.in_memory:
                before.ref, item.ref = item.ref, before.ref
            vars(self)["before"] = item

        return mixed

    return [method(Shelf, "spill", make)]


def _overtaken_goes_nowhere() -> Patches:
    """Bug: a replacement does not send the records that the lost worker's barriers had overtaken."""
    return [method(AsItWas, "send", lambda send: lambda self, slice: None)]


def _time_first() -> Patches:
    """Bug: markers of event time that were in flight come before the records that were in front of them."""

    def make(in_shape: Any) -> Any:
        def hasty(shape: Any, pieces: Any, what: str) -> Any:
            return sorted(in_shape(shape, pieces, what), key=lambda one: not isinstance(one, Watermark))

        return hasty

    return [mock.patch("tailrace.task.failover.channel_restore.in_shape", make(in_shape))]


def _waves_forgotten() -> Patches:
    """Bug: the marker of a wave that waited in a loop's feedback at the cut is gone."""
    return [mock.patch.object(FeedbackQueue, "marks", property(lambda self: [], lambda self, marks: None))]


def _swept_too_soon() -> Patches:
    """Bug: the output that a lost worker left is removed when its replacement goes on, though some of it may not be
    published yet."""

    def make(go_on: Any) -> Any:
        def hasty(self: Attempt) -> Any:
            actions = go_on(self)
            if actions is not None:
                sweep(self.slice)
            return actions

        return hasty

    return [method(Attempt, "go_on", make)]


def _goes_on_unclaimed() -> Patches:
    """Bug: the successor of a lost coordinator goes on under the incarnation of that one."""

    def make(take_over: Any) -> Any:
        def hasty(self: Coordinator, why: str, now: int) -> None:
            with mock.patch.object(IncarnationClaims, "note_deployment", lambda claims: None):
                take_over(self, why, now)

        return hasty

    return [method(Coordinator, "take_over", make)]


def _replaced_for_ever() -> Patches:
    """Bug: a worker is replaced for each failure, though that comes again and again."""

    def make(refusal: Any) -> Any:
        def forgetful(self: Replacements, cause: Any, status: Any) -> Any:
            with mock.patch.object(FirstFailures, "first", lambda self, cause: None):
                return refusal(self, cause, status)

        return forgetful

    return [method(Replacements, "refusal", make)]


def _first_cause_forgotten() -> Patches:
    """Bug: a restart has the failure as its cause that came last."""
    return [method(Replacements, "first_cause", lambda first: lambda self, cause: cause)]


def _forgotten_with_any_checkpoint() -> Patches:
    """Bug: a failure is forgotten when a checkpoint is complete that was triggered before it."""

    def make(complete: Any) -> Any:
        return lambda self, checkpoint: complete(self, 1 << 60)

    return [method(FirstFailures, "complete", make)]


def _failing_at_commits(made: Scenario) -> Scenario:
    """A scenario in which user code raises while a manifest is on its way, and raises again in the replacement."""
    last = (f"worker {made.seed % 2} => coordinator Ack {number}" for number in (1, 2, 4))
    faults = tuple(Fault(made.seed % 5, "raise", made.seed, 1, after=ack, times=2) for ack in last)
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, keep=1)
    made = replace(replacing(made), network="slow", rate=40_000, n=600, checkpoints=settings, parallelism=2)
    return replace(made, spares=1, faults=faults)


def _thawed_one_is_heard() -> Patches:
    """Bug: the coordinator takes messages of a worker that was frozen, and that another one has replaced."""
    return [method(Roster, "holds", lambda _: lambda self, index, epoch: self.at(index).connected)]


def _counted_once_more() -> Patches:
    """Bug: what goes to a replacement once more counts in a loop once more."""

    def make(again: Any) -> Any:
        def counting(self: ReplayableOutbox, ident: ChannelId, came: int = 0) -> None:
            again(self, ident, came)
            self.channels[ident].marks += 1

        return counting

    return [method(ReplayableOutbox, "receiver_replaced", make)]


def _nothing_had() -> Patches:
    """Bug: a hot standby that takes a place does not know what it has of what others have kept."""
    return [method(Resumed, "_has", lambda _: lambda self, slot: [])]


def _withheld_lost() -> Patches:
    """Bug: a hot standby forgets what its sinks have withheld."""

    def make(release: Any) -> Any:
        def forgetful(self: WithheldOutput) -> None:
            self._log.clear()
            release(self)

        return forgetful

    return [method(WithheldOutput, "release", make)]


def _steps_not_followed() -> Patches:
    """Bug: steps that a complete checkpoint drops from the history have not gone to the hot standby."""
    return [method(StandbyFeed, "keep_history", lambda _: lambda self, history: None)]


def _slices_dealt_anew() -> Patches:
    """Bug: a hot standby is given the slice of a worker that it does not follow."""
    return [mock.patch("tailrace.coordinator.workers.standbys.deal", lambda *args: deal(*args[:5]))]


def _followed_for_long(made: Scenario) -> Scenario:
    """A scenario in which a worker is lost when its hot standby has followed it through several checkpoints."""
    made = following(made)
    settings = CheckpointSettings(interval=10 * MS, tolerated_failures=10_000)
    made = replace(made, network="fast", rate=5_000, n=600, checkpoints=settings, parallelism=2, depth=1, spares=2)
    return replace(made, faults=(Fault(200, "kill", made.seed % 2, after="commit 4 done"),))


def _followed_in_one_executor(made: Scenario) -> Scenario:
    """The scenario of `_followed_for_long` with all processes in one executor, as in local mode, and with checkpoints that
    come before the next standby is ready."""
    settings = CheckpointSettings(interval=2 * MS, tolerated_failures=10_000)
    made = replace(_followed_for_long(made), executor_slots=8, checkpoints=settings, n=300)
    return replace(made, faults=(Fault(40, "kill", 0, after="commit 3 done"),))


def _before_the_commit() -> Patches:
    """Bug: a replacement restores the newest complete checkpoint, though the manifest of the next one is on its way."""

    def make(query: Any) -> Any:
        def hasty(self: Replacements) -> Any:
            with mock.patch.object(Durability, "committing", False):
                return query(self)

        return hasty

    return [method(Replacements, "query", make)]


def _overtaken_unknown() -> Patches:
    """Bug: a hot standby goes on, though barriers of the lost worker have overtaken what its own ones have not."""

    def make(resume: Any) -> Any:
        def hasty(self: Replacements, plan: bytes) -> Any:
            newest = self._durability.newest
            if newest is not None and any(self._roster.slots[slot].hot for slot in self._takeovers.active):
                newest = newest[0], msgspec.structs.replace(newest[1], in_flight={})
            with mock.patch.object(self._durability, "newest", newest):
                return resume(self, plan)

        return hasty

    return [method(Replacements, "resume", make)]


REPLACING_BUGS = (
    Bug(
        "a worker is replaced while a manifest is on its way",
        EACH_STEP,
        _before_the_commit,
        lambda _: Way("counted", "kill", standbys="started"),
        seed=32,
    ),
    Bug(
        "a hot standby goes on behind what was overtaken",
        EACH_STEP,
        _overtaken_unknown,
        lambda _: Way("windowed", "move-late", "unaligned", "hot"),
        seed=178,
    ),
    Bug("a hot standby does not know what it has", "counted", _nothing_had, _followed_for_long),
    Bug("a hot standby is given another slice", "counted", _slices_dealt_anew, _followed_in_one_executor),
    Bug("what a hot standby withheld is lost", "counted", _withheld_lost, _followed_for_long),
    Bug("a hot standby misses steps", "windowed", _steps_not_followed, following, seed=3_002),
    Bug("a step is in no history", "counted", _steps_forgotten, replacing),
    Bug("a history is cut off early", "counted", _truncated_early, replacing),
    Bug("a replaced worker sends what others have", "counted", _sent_twice, replacing),
    Bug("what is done again sees the clock of now", "joined", _clock_read_live, replacing, seed=23),
    Bug("a lost worker is heard by the others", "by_classes", _lost_one_is_heard, replacing, seed=7),
    Bug("a worker that has moved is heard by the others", "by_classes", _lost_one_is_heard, moving, seed=11),
    Bug("a replaced worker goes on too soon", "counted", _goes_on_too_soon, replacing, seed=4),
    Bug("what was spilled is lost", "counted", _spilled_is_lost, replacing, seed=1),
    Bug("spilled frames are given back for each other", "counted", _spilled_in_any_order, replacing, seed=1),
    Bug("half of a reading counts as all", "counted", _half_is_all, standing_by, seed=29),
    Bug("a standby compares no chains", "counted", _no_chain_compared, standing_by, seed=14),
    Bug("a standby restores any checkpoint that it holds", "counted", _held_of_any_checkpoint, standing_by, seed=12),
    Bug("a standby forgets nothing", "reminded", _deleted_stays, standing_by, seed=3),
    Bug("what was overtaken is lost with a worker", "counted", _overtaken_goes_nowhere, past_what_waits, seed=3),
    Bug("event time in flight comes before its records", "windowed", _time_first, past_what_waits, seed=260),
    Bug("what a lost worker left is removed too soon", "in_processing_time", _swept_too_soon, standing_by, seed=12),
    Bug("what goes once more counts once more", "amplified", _counted_once_more, replacing, seed=9),
    Bug("the marker of a wave is lost with a worker", "wandered", _waves_forgotten, past_what_waits, seed=1),
    Bug("the successor of a coordinator claims nothing", "counted", _goes_on_unclaimed, coordinators_lost, seed=2),
    Bug("a worker is replaced for each failure", "counted", _replaced_for_ever, failing),
    Bug("the first failure of its way is not the cause", "counted", _first_cause_forgotten, failing),
    Bug(
        "an older checkpoint makes a failure forgotten",
        "counted",
        _forgotten_with_any_checkpoint,
        _failing_at_commits,
        seed=1,
    ),
    Bug("a worker that was frozen and replaced is heard", "counted", _thawed_one_is_heard, failing, seed=13),
)
