"""Bugs to be planted in output: what is published of which checkpoint, what may be forgotten, and what may be deleted.
They show where a job is started again, from one checkpoint or another, and readers have taken away the visible output."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any
from unittest import mock

from msgspec.structs import replace as replaced

from search.planted.patches import OUTAGES, RANDOM, Bug, Patches, method
from search.scenarios import Scenario
from tailrace.connectors.remotefiles import FinishedRemote
from tailrace.coordinator.durability.checkpoints import Checkpoints, CheckpointSettings
from tailrace.coordinator.durability.durability import Durability
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.output.publish_decision import HeldOutput, OutputState, Resolution, resolve
from tailrace.coordinator.output.publishing import JobOutput
from tailrace.protocol.deployment import FailureKind, Publish, Published
from tailrace.state.end_mark import Ending
from tailrace.state.manifest import awaits_output, has_more
from tailrace.state.paths import manifest_name
from tailrace.storage.end_of_run import leave
from tailrace.storage.filesystem import Folder
from tailrace.storage.manifest_slots import Newest, holds_manifest, incarnations_in, numbers_in
from tailrace.storage.origins import Origin
from tailrace.storage.store import Store
from tailrace.task.contract.actions import ToCoordinator
from tailrace.task.worker.publishing import Publisher
from tailrace.testing.faults import Fault

MS = 1_000


def _started_again(made: Scenario) -> Scenario:
    """A scenario in which several checkpoints are kept and under way, their output is published late, and the job is
    started again from some of its moments."""
    settings = CheckpointSettings(
        interval=1 * MS, tolerated_failures=10_000, max_concurrent=3, keep=(1, 3, 5)[made.seed % 3]
    )
    faults = [Fault(turn, "delay", turn // 7, duration=(1 + turn % 4) * MS) for turn in range(40, 900, 60)]
    if made.seed % 2:
        faults.append(Fault(0, "storage", duration=25, chance=0.6, outcome="any", after="Published"))
    return replace(
        made,
        network=("slow", "fast")[made.seed // 2 % 2],
        parallelism=2,
        rate=12_000,
        n=80,
        checkpoints=settings,
        faults=tuple(faults),
        started_again=5,
    )


def _marks_fail(made: Scenario) -> Scenario:
    """The scenario of `_started_again`, where every second mark of a publication fails."""
    made = _started_again(made)
    assert made.checkpoints is not None
    faults = (Fault(1, "storage", duration=100_000, chance=0.5, only=".published"),)
    return replace(made, network="slow", checkpoints=replace(made.checkpoints, keep=5), faults=faults)


def _deletes_fail(made: Scenario) -> Scenario:
    """The scenario of `_started_again`, where most files that are to be deleted stay."""
    made = _started_again(made)
    assert made.checkpoints is not None
    faults = (Fault(1, "storage", duration=100_000, chance=0.7, only="delete "),)
    return replace(made, network="slow", checkpoints=replace(made.checkpoints, keep=1), faults=faults)


TUNES = {
    "sinks forget what a later manifest carries along": _marks_fail,
    "checkpoints are given up before they are marked": _deletes_fail,
}


def _settled_by_number() -> Patches:
    """Bug: what sinks may forget follows from the number of an unmarked manifest, not from the oldest output that it
    carries along."""

    def by_number(state: OutputState) -> Resolution:
        right = resolve(state)
        unmarked = [one.checkpoint for one in state.manifests if one.checkpoint and not one.marked]
        number = min([right.visible_through, *(checkpoint - 1 for checkpoint in unmarked)])
        return replace(right, settled=right.settled._replace(number=number))

    return [mock.patch("tailrace.coordinator.output.publishing.resolve", by_number)]


def _given_up_unmarked() -> Patches:
    """Bug: a manifest that is not kept any more counts as deleted, marked or not."""

    def surplus(self: Checkpoints, unmarked: Collection[str]) -> list[str]:
        while len(self._kept) > self.settings.keep:
            self._kept.pop(0)
        return self._unneeded_names()

    return [method(Checkpoints, "surplus", lambda _: surplus)]


def _only_the_origin_is_marked() -> Patches:
    """Bug: checkpoints before the one to start from, of its run, are not marked with it, and no decision waits for
    that."""
    needed = property(lambda self: awaits_output([one for _, one in self.later], self.manifest.run_id))
    return [method(Origin, "before", lambda _: lambda self, store: []), mock.patch.object(Origin, "is_needed", needed)]


def _later_ones_forgotten() -> Patches:
    """Bug: a start from an older checkpoint knows nothing of the later ones."""
    needed = property(lambda self: has_more([one for _, one in self.earlier], self.manifest))
    return [mock.patch.object(Origin, "is_needed", needed)]


def _marked_though_given_up() -> Patches:
    """Bug: a start that gives output up still has the checkpoint marked as published."""

    def make(published: Any) -> Any:
        def whole(self: JobOutput, report: Published, slot: int, now: int) -> Any:
            return published(self, replaced(report, skipped=False), slot, now)

        return whole

    return [method(JobOutput, "publication_done", make)]


def _marks_of_others_not_read() -> Patches:
    """Bug: a restart does not check whether another start has published the origin."""
    return [method(Coordinator, "origin_published", lambda _: lambda self: None)]


def _copies_settle() -> Patches:
    """Bug: a start in a copy of the folder makes sinks forget what they have published of the original."""

    resolution = JobOutput.resolution

    def anywhere(self: JobOutput) -> Resolution:
        right, origin = resolution.__get__(self), self.origin
        foreign: list[HeldOutput] = [one for one in self._manifests.values() if not one.checkpoint]
        settled = self.restored.is_origin and all(one.path and one.marked for one in foreign) and not origin.spare
        return replace(right, settled=right.settled._replace(restored=right.settled.restored or settled))

    return [mock.patch.object(JobOutput, "resolution", property(anywhere))]


def _lost_with_its_sink() -> Patches:
    """Bug: prepared output of a sink that is not in the dataflow any more is skipped."""

    def make(begin: Any) -> Any:
        def passing(self: Publisher, message: Publish) -> Any:
            known = [(uid, prepared) for uid, prepared in message.prepared if uid in self._sinks]
            return begin(self, replaced(message, prepared=known))

        return passing

    nothing: Any = mock.patch("tailrace.api.restore.compatibility.unpublishable", lambda prepared, nodes: {})
    return [nothing, method(Publisher, "_begin", make)]


def _no_answer_is_no() -> Patches:
    """Bug: a store that does not answer counts as one that answers that a file is not there."""

    def make(there: Any) -> Any:
        def exists(self: FinishedRemote, path: str) -> bool:
            try:
                return bool(there(self, path))
            except OSError:
                return False

        return exists

    return [method(FinishedRemote, "_there", make)]


def _marks_swept() -> Patches:
    """Bug: a coordinator that takes over sweeps away the mark that the newest checkpoint is published."""

    def make(adopt: Any) -> Any:
        def adopting(self: Checkpoints, manifest: Any, path: str, read: bool = False) -> None:
            adopt(self, manifest, path)

        return adopting

    return [method(Checkpoints, "adopt", make)]


def _coordinators_lost_in_a_row(made: Scenario) -> Scenario:
    """A scenario in which the coordinator is lost when something has become visible, and so is its successor, before it
    has a checkpoint."""
    settings = CheckpointSettings(interval=2 * MS, tolerated_failures=10_000, keep=1)
    then = Fault(40 + made.seed % 6 * 15, "lose-coordinator", after="lost the coordinator alone")
    faults = [Fault(made.seed % 5, "lose-coordinator", after="Settled"), then]
    return replace(made, checkpoints=settings, faults=tuple(faults))


def _no_mark_of_the_end() -> Patches:
    """Bug: a job that has come to its end removes its checkpoints and leaves no mark of the end."""
    return [method(Store, "mark_ended", lambda _: lambda self, incarnation, ending: None)]


def _removed_before_the_mark() -> Patches:
    """Bug: a job that is over removes its checkpoints first, and marks its end after that."""

    def leaving(store: Store, run_id: str, ending: Ending | None, surplus: list[str] | None) -> bool:
        gone = leave(store, run_id, None, surplus)
        return leave(store, run_id, ending, None) or gone

    return [mock.patch("search.ends.leave", leaving)]


def _behind_the_end() -> Patches:
    """Bug: the search for the newest checkpoint does not see that a newer run has ended."""

    def newest(folder: Folder, incarnations: list[int] | None = None, barren: list[int] | None = None) -> Newest:
        names = [name for one in incarnations_in(folder) for name in _manifests(folder, one)]
        return Newest(names[-1] if names else None)

    return [mock.patch("tailrace.storage.checkpoint_lookup.newest_in", newest)]


def _manifests(folder: Folder, incarnation: int) -> list[str]:
    names = [manifest_name(incarnation, number) for number in numbers_in(folder, incarnation)]
    return [name for name in names if holds_manifest(folder.read(name))]


def _failures_count_as_visible() -> Patches:
    """Bug: a worker whose sink has failed reports that all is visible."""

    def make(failure: Any) -> Any:
        def patched(self: Publisher, publication: Any, answer: Any) -> Any:
            failure(self, publication, answer)
            message = publication.message
            return ToCoordinator(Published(message.number, False, message.part))

        return patched

    return [method(Publisher, "_failure", make)]


def _commits_in_doubt_are_given_up() -> Patches:
    """Bug: a commit without an answer counts as one that was not done: output published with it never becomes visible, or
    twice."""

    def not_committed(_: Any) -> Any:
        def patched(self: Durability, number: int, reason: str, kind: FailureKind, now: int) -> Any:
            self.checkpoints.commit_answered()
            if number not in self.checkpoints.pending or kind is not FailureKind.STORE:
                return []
            self.checkpoints.pending[number].committing = False
            return self.abort(number, reason, now, running=True)

        return patched

    return [method(Durability, "not_committed", not_committed)]


def _the_end_waits_for_no_mark_that_failed() -> Patches:
    """Bug: the last checkpoint waits for a mark of the origin only as long as that is on its way."""

    def commit_next(commit_next: Any) -> Any:
        def patched(self: Durability, now: int, running: bool) -> Any:
            with mock.patch.object(JobOutput, "mark_visible", lambda self: []):
                return commit_next(self, now, running)

        return patched

    def not_marked(self: Durability, path: str, reason: str, now: int) -> Any:
        self.output.not_marked(path)
        return self._commit_next(now, running=True)

    return [
        method(Durability, "_commit_next", commit_next),
        method(Durability, "not_marked", lambda _: not_marked),
    ]


def _no_answers(made: Scenario) -> Scenario:
    """A scenario in which every third commit has no answer, though it was done."""
    assert made.checkpoints is not None
    faults = (Fault(1, "storage", duration=100_000, chance=0.3, outcome="unknown-done", only=".manifest"),)
    return replace(made, checkpoints=replace(made.checkpoints, tolerated_failures=10_000), faults=faults)


def _settled_for_sure() -> Patches:
    """Bug: what was settled counts as removed, whether the worker lives that was to remove it or not. It shows where a
    worker is lost at that very moment, somewhere behind a commit: in each of these starts one is."""
    forgets: Any = mock.patch.object(JobOutput, "_forgets_origin", False)
    faults: Any = mock.patch(
        "search.starts._History._faults",
        lambda history: (Fault(history.chance.randint(0, 80), "kill", 0, after="commit"),),
    )

    def make(start: Any) -> Any:
        def starting(self: JobOutput) -> Any:
            self._origin_left = False
            return start(self)

        return starting

    return [forgets, faults, method(JobOutput, "start", make)]


OUTPUT_BUGS = (
    Bug("a job that has finished leaves no mark", "counted", _no_mark_of_the_end, _started_again),
    Bug("an older run is gone on from behind one that has ended", RANDOM, _behind_the_end, seed=2),
    Bug("checkpoints are removed before the end is marked", "counted", _removed_before_the_mark, _started_again),
    Bug("a publisher says that all is visible of which a part is not", OUTAGES, _failures_count_as_visible),
    Bug("a commit without an answer counts as not done", "counted", _commits_in_doubt_are_given_up, _no_answers),
    Bug(
        "a successor sweeps away that a checkpoint is published",
        "counted",
        _marks_swept,
        _coordinators_lost_in_a_row,
        seed=22,
    ),
    Bug("a store that does not answer counts as one without the file", OUTAGES, _no_answer_is_no, seed=3),
    *(
        Bug(name, "counted", patches, TUNES.get(name, _started_again), seed)
        for name, patches, seed in (
            ("sinks forget what a later manifest carries along", _settled_by_number, 54),
            ("checkpoints are given up before they are marked", _given_up_unmarked, 18),
            ("checkpoints before the origin are not marked with it", _only_the_origin_is_marked, 1),
            ("a start from an older checkpoint takes what later ones need", _later_ones_forgotten, 14),
            ("a checkpoint is marked of which some output was given up", _marked_though_given_up, 16),
            ("a restart asks for what another start has published", _marks_of_others_not_read, 8),
            ("a start in a copy forgets what the original will ask for", _copies_settle, 3),
            ("output of a sink that is gone is passed over", _lost_with_its_sink, 11),
            ("what a lost worker was to remove counts as removed", _settled_for_sure, 0),
            ("the last checkpoint waits for no mark that failed", _the_end_waits_for_no_mark_that_failed, 63),
        )
    ),
)
