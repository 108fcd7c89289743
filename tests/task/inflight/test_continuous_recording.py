"""What waits is written into the file of the next checkpoint before its cut, which then refers to it there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId
from tailrace.protocol.snapshot import Abort, Declined, Trigger
from tailrace.state.manifest import Manifest
from tailrace.storage.reading import load_index
from tailrace.task.contract.events import Encode, StateNotWritten
from tailrace.task.worker.checkpoints import WorkerCheckpoints
from tailrace.task.worker.machine import Worker
from tests.task.channels.test_written_records import lives
from tests.task.inflight.test_overtaking import PROGRAMS, Fleet


def behind(name: str = "shuffle", seed: int = 0) -> Fleet:
    """A job with one checkpoint, and everything that waits now in the file of the second one."""
    fleet = Fleet(PROGRAMS[name][0], 2, seed=seed, ahead=True, window=600)
    fleet.deploy(None, incarnation=1)
    fleet.turns(60)
    fleet.taken()
    fleet.turns(40)
    return written(fleet)


def written(fleet: Fleet) -> Fleet:
    for worker in fleet.workers:
        while worker.encoding:
            worker.handle(Encode(0, 5))
            fleet.carry()
    return fleet


def checkpoints(worker: Worker) -> WorkerCheckpoints:
    assert worker._attempt is not None
    return worker._attempt.checkpoints


def files_in_progress(fleet: Fleet) -> list[int]:
    """The checkpoints that somebody has begun a file for, which is not complete."""
    return sorted({number for worker in fleet.workers for number in checkpoints(worker)._pending})


def referred_within(fleet: Fleet, manifest: Manifest) -> Counter[str]:
    """How many records in flight a checkpoint found in its own files, and how many it wrote behind its cut."""
    found: Counter[str] = Counter()
    for file in manifest.files:
        index = load_index(fleet.disk, file.name)
        for piece in (piece for log in index.logs for piece in log.pieces if piece.count):
            how = "older" if piece.file >= 0 else "here"
            found[how if piece.stop < 0 else f"{how}, a part"] += piece.count
    return found


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_with_what_waits_written_ahead_a_job_that_goes_on_elsewhere_loses_and_repeats_nothing(name: str) -> None:
    for seed in range(3):
        got, referred, _ = lives(name, seed, [[2, 3, 2, 2, 3], [3, 2, 2, 2, 2], [2, 3, 1, 2, 1]][seed], ahead=True)
        assert got == PROGRAMS[name][1], f"{name}, seed {seed}"
        assert referred, "checkpoints refer to earlier ones as ever"


@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_a_cut_writes_of_each_channel_only_what_came_behind_what_was_written(seed: int) -> None:
    fleet = behind(seed=seed)
    ends = [{at: n for one in checkpoints(worker)._ahead for at, n in one._seen.items()} for worker in fleet.workers]
    began = [
        {at for task in worker.tasks() for at, one in task.gate.channels.items() if one.reading}
        for worker in fleet.workers
    ]
    late: list[tuple[ChannelId, int, int]] = []
    for worker, seen, half in zip(fleet.workers, ends, began, strict=True):
        _note_frames(worker, seen, half, late)
    manifest = fleet.taken()
    assert late == []
    assert referred_within(fleet, manifest)["here, a part"] > 10, "there was something, and it is referred to"


def _note_frames(worker: Worker, seen: dict[ChannelId, int], half: set[ChannelId], late: list[Any]) -> None:
    """Notes records that are written though they were before."""
    mine = checkpoints(worker)
    take = mine._may_refer_to

    def noting(builder: Any, frame: Any, piece: Any) -> None:
        late.extend(one for one in frame.holds if one[0] not in half and one[1] < seen.get(one[0], 0))
        take(builder, frame, piece)

    mine._may_refer_to = noting  # type: ignore[method-assign]


def test_nothing_is_written_before_the_first_checkpoint_and_nothing_twice_without_one() -> None:
    fleet = Fleet(PROGRAMS["shuffle"][0], 2, ahead=True)
    fleet.deploy(None, incarnation=1)
    assert files_in_progress(written(fleet.turns(40))) == []
    fleet.taken()
    written(fleet.turns(40))
    assert files_in_progress(fleet) == [2]
    assert not any(worker.encoding for worker in fleet.workers)


def test_what_was_written_for_a_checkpoint_that_is_never_taken_is_written_again_for_the_next() -> None:
    """The number of the second one was used up, and no worker received it."""
    fleet = behind()
    fleet.number = 7
    manifest = fleet.taken()
    assert [file.name for file in manifest.files if "chk-8" not in file.name] == []
    assert not fleet.writing, "nothing of the file of checkpoint 2 stays"
    fleet.turns(40)
    assert files_in_progress(written(fleet)) == [9]


def test_after_a_checkpoint_that_was_given_up_what_waits_is_written_once_more() -> None:
    fleet = behind()
    fleet.say(Abort(2))
    while any(fleet.words):
        fleet.turn()
    assert files_in_progress(written(fleet)) == [3]
    fleet.number = 2
    manifest = fleet.taken()
    assert referred_within(fleet, manifest)["here, a part"] > 10
    fleet.to_the_end()
    assert Counter(fleet.out) == PROGRAMS["shuffle"][1]


def test_a_file_that_cannot_be_written_before_its_cut_harms_no_checkpoint() -> None:
    fleet = behind()
    for worker in fleet.workers:
        worker.handle(StateNotWritten(2, "the disk is full"))
    fleet.carry()
    assert not fleet.writing and files_in_progress(written(fleet)) == [], "it waits for a checkpoint that can be"
    assert not any(isinstance(message, Declined) for _, message in fleet.said)
    fleet.taken()
    fleet.turns(20)
    assert files_in_progress(written(fleet)) == [3]


def test_a_file_that_cannot_be_written_behind_its_cut_fails_its_checkpoint() -> None:
    fleet = behind()
    fleet.number += 1
    fleet.say(Trigger(CutRequest(2, overtakes_after=0)))
    while any(fleet.words) or any(t.checkpoints.may_cut(t.services.now) for t in fleet.workers[0].tasks()):
        fleet.turn()
    fleet.workers[0].handle(StateNotWritten(2, "the disk is full"))
    fleet.carry()
    assert [message.checkpoint for _, message in fleet.said if isinstance(message, Declined)] == [2]


def test_a_job_that_ends_leaves_no_file_that_was_begun_for_a_checkpoint_to_come() -> None:
    fleet = behind()
    assert fleet.writing or files_in_progress(fleet) == [2]
    for worker in fleet.workers:
        worker._close()
    fleet.carry()
    assert not fleet.writing and not [name for name in fleet.disk.files if "chk-2" in name]
