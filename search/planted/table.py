"""Bugs to be planted, by which the search proves itself: it must find each of them. A bug is switched on in this process
only, for as long as a `with planted(name)` lasts, by replacing methods. Production code has no part of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec

from search.planted.broadcasts import BROADCAST_BUGS
from search.planted.calls import CALL_BUGS
from search.planted.changes import CHANGE_BUGS
from search.planted.channel_restore import AS_IT_WAS_BUGS
from search.planted.clocks import CLOCK_BUGS
from search.planted.columns import COLUMN_BUGS
from search.planted.duplicates import DUPLICATES_BUGS
from search.planted.feedback import FEEDBACK_BUGS
from search.planted.files import FILE_BUGS
from search.planted.flows import FLOW_BUGS
from search.planted.lifetimes import LIFETIME_BUGS
from search.planted.loop_times import LOOP_TIME_BUGS
from search.planted.loops import LOOP_BUGS
from search.planted.merged_reads import TOGETHER_BUGS
from search.planted.ordering import ORDER_BUGS
from search.planted.output import OUTPUT_BUGS
from search.planted.patches import Bug, Patches, method
from search.planted.replacements import REPLACING_BUGS
from search.planted.replay import REPLAY_BUGS
from search.planted.rescales import RESCALE_BUGS
from search.planted.servers import SERVER_BUGS
from search.planted.spans import SPAN_BUGS
from search.planted.stops import STOP_BUGS
from search.planted.succession import SUCCESSION_BUGS
from search.planted.unaligned import OVERTAKING_BUGS
from search.scenarios import MS, Scenario
from tailrace.coordinator.decisions import Decisions, Tell
from tailrace.coordinator.durability.checkpoints import Checkpoints, CheckpointSettings, PendingCheckpoint
from tailrace.coordinator.durability.durability import Durability
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.output.publishing import JobOutput
from tailrace.coordinator.workers.roster import Roster, Slot
from tailrace.elements.columns.schemas import OneSchema
from tailrace.protocol.deployment import Published, Settled
from tailrace.state.blocks import Blocks
from tailrace.state.layers import LayeredBackend
from tailrace.state.paths import is_of_checkpoint, manifest_name
from tailrace.storage.fencing import Claims
from tailrace.storage.store import Store
from tailrace.task.channels.gate import Gate
from tailrace.task.contract.actions import WriteState
from tailrace.task.contract.events import StateWritten
from tailrace.task.operators.groupchains import GroupChains
from tailrace.task.operators.sink import SinkTask
from tailrace.task.operators.sources.splits import Dealer, EnumeratorState
from tailrace.task.slice.machine import Slice
from tailrace.task.worker.machine import Worker
from tailrace.task.worker.restore import Restorer
from tailrace.testing.faults import Fault


def _aborts_and_restarts(made: Scenario) -> Scenario:
    """A scenario in which every second checkpoint fails, and now and then a worker."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, keep=1)
    faults = [Fault(20, "storage", duration=3_000, chance=0.04, outcome="error")]
    faults += [Fault(turn, "kill", turn) for turn in range(400, 3_000, 400)]
    return replace(made, network="fast", small=0, rate=12_000, n=600, checkpoints=settings, faults=tuple(faults))


def _late_frames(made: Scenario) -> Scenario:
    """A scenario in which a link is slow when the attempt to which it belongs ends."""
    faults: list[Fault] = []
    for turn in range(60, 1_500, 150):
        faults += [Fault(turn, "delay", turn // 10 + i, duration=(4 + i) * MS) for i in range(4)]
        faults.append(Fault(turn + 20, "cut-link", turn))
    return replace(made, parallelism=3, network="fast", rate=12_000, faults=tuple(faults))


def _replacements(made: Scenario) -> Scenario:
    """A scenario in which workers freeze for longer than their lease, are replaced, and wake up."""
    faults = [Fault(turn, "freeze", turn // 10, duration=85 * MS) for turn in range(60, 2_000, 90)]
    faults += [Fault(turn, "respawn", turn // 10) for turn in range(100, 2_000, 270)]
    return replace(made, parallelism=2, rate=12_000, network="slow", faults=tuple(faults))


def _late_words(made: Scenario) -> Scenario:
    """A scenario in which messages of workers are slow, and the attempt ends meanwhile."""
    faults: list[Fault] = []
    for turn in range(60, 1_500, 150):
        faults += [Fault(turn, "delay", turn // 10 + i, duration=(4 + i) * MS) for i in range(6)]
        faults.append(Fault(turn + 10, "cut-link", turn))
    faults.append(Fault(1, "kill", 1, after="SubtasksFinished"))
    return replace(made, parallelism=2, network="uneven", rate=24_000, faults=tuple(faults))


def _overlaps_of_what_comes_and_goes(made: Scenario) -> Scenario:
    """A scenario in which several checkpoints are under way, of state of which little is written as a whole. Now and then
    the coordinator's message on one of them comes after the next cut."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, max_concurrent=3, keep=1)
    faults = [Fault(turn, "delay", turn // 7, duration=(1 + turn % 5) * MS) for turn in range(40, 3_000, 30)]
    return replace(
        made,
        network=("in small steps", "uneven")[made.seed % 2],
        parallelism=(2, 3)[made.seed % 2],
        max_parallelism=(16, 128)[made.seed // 2 % 2],
        small=0,
        rate=24_000,
        n=600,
        checkpoints=settings,
        faults=tuple(faults),
    )


def _words_that_come_after_barriers(made: Scenario) -> Scenario:
    """A scenario in which the coordinator's messages to some workers are two or three checkpoints late, and barriers come
    by way of another worker."""
    settings = CheckpointSettings(interval=200, tolerated_failures=10_000, max_concurrent=3, keep=1)
    late = (1 + made.seed % 6) * MS // 2
    faults = [Fault(turn, "delay", 2 + turn % 2, duration=late) for turn in range(40, 6_000, 10)]
    return replace(
        made,
        network="fast",
        parallelism=3,
        small=0,
        rate=12_000,
        n=300,
        window=None,
        checkpoints=settings,
        faults=tuple(faults),
    )


def _no_alignment() -> Patches:
    return [method(Gate, "block", lambda _: lambda self, ident: None)]


def _overwriting_commits() -> Patches:
    def commit(self: Store, incarnation: int, after: int, number: int, data: bytes, needs: Sequence[str] = ()) -> str:
        name = manifest_name(incarnation, number)
        self.folder.delete([name])
        self.folder.create(name, data)
        return name

    return [method(Store, "commit", lambda _: commit)]


def _no_seals() -> Patches:
    return [mock.patch("tailrace.storage.fencing.seal_before", lambda folder, incarnation: None)]


def _no_pointers() -> Patches:
    """Bug: checkpoints take their numbers as slots, and no pointer names the next one: a seal is behind the last one
    taken. The check that finds a newer claim where seals were removed is switched off here."""

    def make(commit: Any) -> Any:
        def gaping(
            self: Store, incarnation: int, after: int, number: int, data: bytes, needs: Sequence[str] = ()
        ) -> str:
            name: str = commit(self, incarnation, number - 1, number, data, needs)
            return name

        return gaping

    unseen = method(Claims, "newer", lambda _: lambda self, incarnation: None)
    return [method(Store, "commit", make), unseen]


def _old_workers_heard() -> Patches:
    return [method(Roster, "holds", lambda _: lambda self, index, epoch: self.slots[index].connected)]


def _old_attempts_heard() -> Patches:
    clean = property(lambda self: True, lambda self, value: None)
    return [mock.patch.object(Slot, "clean", clean)]


def _old_frames_read() -> Patches:
    def make(receive: Any) -> Any:
        return lambda self, frame, peer: receive(
            self, msgspec.structs.replace(frame, incarnation=self.incarnation), peer
        )

    return [method(Slice, "receive", make)]


def _publish_before_commit() -> Patches:
    def make(commit_next: Any) -> Any:
        def early(self: Durability, now: int, running: bool) -> Decisions:
            decided: Decisions = commit_next(self, now, running)
            made = self.checkpoints.committing
            return (
                [*decided, *self.output._publish(made.checkpoint, made.prepared, now)] if decided and made else decided
            )

        return early

    def once(publish: Any) -> Any:
        def first(self: JobOutput, number: int, prepared: Any, now: int) -> Decisions:
            sent = vars(self).setdefault("sent_early", set())
            if number in sent:
                return []  # the commit publishes nothing more
            sent.add(number)
            found: Decisions = publish(self, number, prepared, now)
            return found

        return first

    return [method(Durability, "_commit_next", make), method(JobOutput, "_publish", once)]


def _publish_with_every_checkpoint() -> Patches:
    """Bug: the output of a complete checkpoint is published with the next one as well."""

    def make(manifest: Any) -> Any:
        def forgetful(self: Checkpoints, pending: Any, carried: Any, incarnation: int, *rest: Any) -> Any:
            newest, self.newest = self.newest, 0
            try:
                return manifest(self, pending, carried, incarnation, *rest)
            finally:
                self.newest = newest

        return forgetful

    return [method(Checkpoints, "manifest", make)]


def _forget_before_the_mark() -> Patches:
    """Bug: sinks forget what they have published as soon as it is visible, and the mark may never be made."""

    def make(published: Any) -> Any:
        def early(self: JobOutput, report: Published, slot: int, now: int) -> Decisions | None:
            decided = published(self, report, slot, now)
            return None if decided is None else [*decided, Tell(Settled(report.number, report.number == 0), slot)]

        return early

    return [method(JobOutput, "publication_done", make)]


def _forget_before_a_commit() -> Patches:
    """Bug: sinks forget what they have published as soon as that is marked. Another driver may have read the manifest
    before."""

    def make(marked: Any) -> Any:
        def early(self: Durability, path: str, now: int, running: bool) -> Decisions:
            decided, output = marked(self, path, now, running), self.output
            output._due = output.resolution.settled
            return [*decided, *output._settle()]

        return early

    return [method(Durability, "mark_done", make)]


def _carried_files_deleted() -> Patches:
    """Bug: a manifest does not name the older files that hold data of sinks, and retention deletes them."""

    def make(manifest: Any) -> Any:
        def forgetful(self: Checkpoints, pending: Any, carried: Any, incarnation: int, *rest: Any) -> Any:
            made = manifest(self, pending, carried, incarnation, *rest)
            report = {name for ack in pending.acks.values() for name in ack.older}
            return msgspec.structs.replace(made, older=sorted(report))

        return forgetful

    return [method(Checkpoints, "manifest", make)]


def _much_prepared(made: Scenario) -> Scenario:
    """A scenario in which all that sinks prepare goes into files, links are slow, and workers die before it is
    published."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, max_concurrent=3, keep=1)
    faults = [Fault(i, "kill", i, after=f"commit {2 + 3 * i} done") for i in range(4)]
    return replace(made, network="slow", chunk=1, rate=12_000, checkpoints=settings, faults=tuple(faults))


def _overlapping(made: Scenario) -> Scenario:
    """A scenario in which several checkpoints are under way, on slow links."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, max_concurrent=3, keep=1)
    return replace(made, network="uneven", rate=12_000, checkpoints=settings)


def _crashes_at_publications(made: Scenario) -> Scenario:
    """A scenario in which the driver dies now and then when something has become visible."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, keep=1)
    faults = [Fault(made.seed % 4, "crash-driver", after="Published"), Fault(1, "crash-driver", after="commit 9 done")]
    return replace(made, rate=12_000, checkpoints=settings, faults=tuple(faults))


def _sleeping_drivers(made: Scenario) -> Scenario:
    """A scenario in which the driver freezes when something has become visible, another one takes over, and the first one
    wakes up."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, max_concurrent=2, keep=1)
    faults = [Fault(made.seed % 4, "freeze-driver", duration=(1 + made.seed % 3) * MS, after="Publish")]
    faults.append(Fault(made.seed % 5, "freeze-driver", duration=2 * MS, after="commit 9 done"))
    return replace(made, network="slow", rate=12_000, checkpoints=settings, faults=tuple(faults))


def _killed_runs_forgotten() -> Patches:
    """Bug: a start knows of the run whose checkpoint it goes on from, and of no other."""
    return [method(Store, "abandoned_runs", lambda abandoned: lambda self, *more: [])]


def _drivers_that_die_early(made: Scenario) -> Scenario:
    """A scenario in which the second driver dies when its sinks have prepared, and before its first commit."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, keep=1)
    faults = [Fault(0, "crash-driver", after="commit 1 done"), Fault(made.seed % 6, "crash-driver", after="Ack 2")]
    return replace(made, network="fast", rate=12_000, checkpoints=settings, faults=tuple(faults))


def _ack_before_durable() -> Patches:
    def make(required: Any) -> Any:
        def early(self: Worker, actions: Any) -> None:
            before = list(actions)
            required(self, before)
            for action in before:
                if isinstance(action, WriteState) and action.last:
                    self.handle(StateWritten(action.checkpoint, 0))

        return early

    return [method(Worker, "_require", make)]


def _stale_restore() -> Patches:
    def make(claimed: Any) -> Any:
        def forgetful(self: Coordinator, incarnation: int, manifest: Any, path: str, now: int) -> None:
            claimed(self, incarnation, None, path, now)

        return forgetful

    return [method(Coordinator, "claim_done", make)]


def _forgotten_schemas() -> Patches:
    return [method(OneSchema, "to_bytes", lambda saved: lambda self: None)]


def _forgotten_timer() -> Patches:
    def make(put: Any) -> Any:
        def forgetful(self: Blocks, table: Any, group: int, key: Any, value: Any, data: Any) -> None:
            if table.info.kind != "timers" or value % 7:
                put(self, table, group, key, value, data)

        return forgetful

    def one_by_one(self: Blocks, table: Any, group: int, keys: list[Any], values: list[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.put(table, group, key, value, None)

    return [method(Blocks, "put", make), method(Blocks, "put_values", lambda put_values: one_by_one)]


def _forgotten_keys() -> Patches:
    def make(abort: Any) -> Any:
        def forgetful(self: LayeredBackend, checkpoint: int) -> None:
            abort(self, checkpoint)
            self.generations = [one for one in self.generations if one.checkpoint != checkpoint]

        return forgetful

    return [method(LayeredBackend, "abort", make)]


def _forgotten_transactions() -> Patches:
    def abort(self: SinkTask, checkpoint: int) -> None:
        self.unconfirmed = [one for one in self.unconfirmed if one[0] != checkpoint]

    return [method(SinkTask, "abort", lambda _: abort)]


def _split_in_flight() -> Patches:
    def state(self: Dealer, position: bytes | None) -> EnumeratorState:
        return EnumeratorState(list(self.unassigned.items()), self.next, self.over, position)

    return [method(Dealer, "state", lambda _: state)]


def _no_finished_flags() -> Patches:
    return [method(Restorer, "_over", lambda _: lambda self, *args: False)]


def _greedy_deletion() -> Patches:
    def unneeded(self: Checkpoints) -> list[str]:
        needed = {name for kept in self._kept for name in kept.names if kept is self._kept[-1]}
        names = sorted(name for name in self._sizes if name not in needed or is_of_checkpoint(name))
        for name in names:
            del self._sizes[name]
        return names

    return [method(Checkpoints, "_unneeded_names", lambda _: unneeded)]


def _chains_that_begin_with_a_delta() -> Patches:
    def make(extend: Any) -> Any:
        def partial(self: GroupChains, checkpoint: int, file: str, full: Any, changed: Any, written: Any) -> Any:
            chains, _ = extend(self, checkpoint, file, full, changed, written)
            return chains, sorted(full)

        return partial

    return [method(GroupChains, "extend", make)]


def _acks_are_not_looked_at() -> Patches:
    return [method(PendingCheckpoint, "needs", lambda _: lambda self: self.base)]


def _unanswered_forgotten() -> Patches:
    def make(unneeded: Any) -> Any:
        def forgetful(self: Checkpoints) -> Any:
            self._unanswered = set()
            return unneeded(self)

        return forgetful

    return [method(Checkpoints, "_unneeded_names", make)]


def _killed_while_manifests_are_on_their_way(made: Scenario) -> Scenario:
    """A scenario in which several checkpoints are under way that build on older ones, one is kept, and workers die around
    commits."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, max_concurrent=4, keep=1)
    faults = [Fault(made.seed % 3, "kill", made.seed, after=f"commit {n}") for n in (2 + made.seed % 4, 7, 11)]
    network = "in small steps" if made.seed % 2 else made.network
    made = replace(made, network=network, parallelism=2, rate=None, checkpoints=settings)
    return replace(made, restarts=("fixed", 0), faults=tuple(faults))


BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        Bug("alignment is skipped", "counted", _no_alignment, seed=4),
        Bug("a commit overwrites what is there", "counted", _overwriting_commits, seed=2),
        Bug("a claim does not seal what was before", "counted", _no_seals, seed=2),
        Bug("no pointer goes in front of a number behind a gap", "counted", _no_pointers, seed=13),
        Bug("a worker that was replaced is heard", "finished", _old_workers_heard, _replacements),
        Bug("messages from before a reset count", "finished", _old_attempts_heard, _late_words, seed=1),
        Bug("frames of an older attempt are read", "counted", _old_frames_read, _late_frames, seed=4),
        Bug("sinks publish before the commit", "counted", _publish_before_commit),
        Bug(
            "what is complete is published with every checkpoint",
            "counted",
            _publish_with_every_checkpoint,
            _overlapping,
        ),
        Bug(
            "sinks forget what they published before it is marked",
            "counted",
            _forget_before_the_mark,
            _crashes_at_publications,
        ),
        Bug(
            "sinks forget what they published before a later commit",
            "counted",
            _forget_before_a_commit,
            _sleeping_drivers,
        ),
        Bug("a start forgets runs that were killed", "counted", _killed_runs_forgotten, _drivers_that_die_early),
        Bug(
            "files with what sinks prepared are deleted before it is published",
            "counted",
            _carried_files_deleted,
            _much_prepared,
            seed=2,
        ),
        Bug("a worker acks before its file is durable", "counted", _ack_before_durable),
        Bug("a restart does not look for the newest checkpoint", "counted", _stale_restore, seed=4),
        Bug("a timer is forgotten at the snapshot", "in_event_time", _forgotten_timer),
        Bug("schemas are found out again behind a restore", "of_one_type", _forgotten_schemas, seed=4),
        Bug("the keys of an aborted checkpoint are forgotten", "sparse", _forgotten_keys, _aborts_and_restarts, seed=4),
        Bug(
            "what a sink prepared for an aborted checkpoint is forgotten",
            "counted",
            _forgotten_transactions,
            _aborts_and_restarts,
            seed=1,
        ),
        Bug("a split under way is lost", "in_short_splits", _split_in_flight, seed=4),
        Bug("operators that had finished finish again", "finished", _no_finished_flags, seed=9),
        Bug("files that a checkpoint needs are deleted", "counted", _greedy_deletion),
        Bug(
            "a chain begins with a file that does not hold the whole group",
            "toggled",
            _chains_that_begin_with_a_delta,
            _overlaps_of_what_comes_and_goes,
            seed=26,
        ),
        Bug(
            "files that a manifest on its way needs are deleted",
            "apart",
            _unanswered_forgotten,
            _killed_while_manifests_are_on_their_way,
            seed=7,
        ),
        Bug(
            "files that an ack refers to are deleted",
            "toggled",
            _acks_are_not_looked_at,
            _words_that_come_after_barriers,
            seed=3,
        ),
        *OUTPUT_BUGS,
        *SERVER_BUGS,
        *FILE_BUGS,
        *FEEDBACK_BUGS,
        *LIFETIME_BUGS,
        *LOOP_BUGS,
        *LOOP_TIME_BUGS,
        *SPAN_BUGS,
        *FLOW_BUGS,
        *OVERTAKING_BUGS,
        *REPLAY_BUGS,
        *REPLACING_BUGS,
        *SUCCESSION_BUGS,
        *AS_IT_WAS_BUGS,
        *TOGETHER_BUGS,
        *RESCALE_BUGS,
        *STOP_BUGS,
        *CHANGE_BUGS,
        *CLOCK_BUGS,
        *ORDER_BUGS,
        *COLUMN_BUGS,
        *CALL_BUGS,
        *BROADCAST_BUGS,
        *DUPLICATES_BUGS,
    )
}


@contextlib.contextmanager
def plant(name: str) -> Iterator[None]:
    """A context in which this bug is planted."""
    with contextlib.ExitStack() as stack:
        for patch in BUGS[name].patches():
            stack.enter_context(patch)
        yield
