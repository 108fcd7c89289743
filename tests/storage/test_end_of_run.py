"""The end of a run: what it leaves in the folder of its job, and what the next start finds there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, JobAlreadyFinished
from tailrace.state.end_mark import Ending
from tailrace.state.manifest import encode_manifest
from tailrace.state.paths import ended_mark
from tailrace.storage.checkpoint_lookup import newest_start, resolve
from tailrace.storage.end_of_run import leave
from tailrace.storage.filesystem import LocalFolder
from tailrace.storage.store import Store
from tailrace.testing.memorystore import MemoryStore

from .conftest import manifest_of


def run_of(store: Store, run_id: str, *numbers: int) -> int:
    """A run claims the job and completes these checkpoints: its incarnation."""
    incarnation = store.claim(run_id, takeover=True)
    after = 0
    for number in numbers:
        manifest = manifest_of(number, incarnation, run_id=run_id)
        store.commit(incarnation, after, number, encode_manifest(manifest))
        after = number
    return incarnation


def files_of(incarnation: int, *numbers: int) -> list[str]:
    return [f"{incarnation}/{number}.manifest" for number in numbers]


def ending(run_id: str, status: str = "FINISHED", **more: Any) -> Ending:
    return Ending("job", run_id, status, 1_700_000_000_000_000, 7, **more)


def test_behind_a_run_that_has_ended_well_latest_says_so_and_no_older_run_is_gone_on_from(url: str) -> None:
    """The first run was killed, and its checkpoint is there; the second one went on from that, and ended."""
    run_of(Store(url, "job"), "first", 1, 2)
    second = Store(url, "job")
    incarnation = run_of(second, "second", 3, 4)
    assert newest_start(Store(url, "job")) == "2/4.manifest"
    assert leave(second, "second", ending("second"), files_of(incarnation, 3, 4))
    for or_new in (False, True):
        with pytest.raises(
            JobAlreadyFinished, match=r"job 'job' has finished already, at 2023-11-14T22:13:20.000Z"
        ) as found:
            newest_start(Store(url, "job"), or_new=or_new)
        assert (found.value.job, found.value.run_id, found.value.ended_at) == ("job", "second", 1_700_000_000.0)
        assert 'if_finished="start-again"' in str(found.value)
        assert not isinstance(found.value, tr.CheckpointError), "who begins anew where there is none would do so here"
    assert newest_start(Store(url, "job"), start_again=True) is None, "from the beginning, and not from the first run's"
    assert Store(url, "job").latest() is None
    for folder in (url, f"{url}/job"):
        with pytest.raises(CheckpointNotFound, match=r"no checkpoint"):
            resolve(folder)
    assert resolve(f"{url}/job/1/2.manifest")[1] == "1/2.manifest", "by its path it is found"


def test_starts_that_came_to_nothing_behind_it_change_nothing(url: str) -> None:
    first = Store(url, "job")
    leave(first, "first", ending("first"), files_of(run_of(first, "first", 1), 1))
    run_of(Store(url, "job"), "barren")
    with pytest.raises(JobAlreadyFinished, match="run first"):
        newest_start(Store(url, "job"), or_new=True)
    run_of(Store(url, "job"), "again", 1)
    assert newest_start(Store(url, "job")) == "3/1.manifest", "this one was started again, and is not over"


@pytest.mark.parametrize("status", ["STOPPED", "CANCELLED", "FAILED"])
def test_behind_a_run_that_keeps_none_of_its_checkpoints_nothing_is_gone_on_from(url: str, status: str) -> None:
    """The run has published: to go on from an older run's checkpoint, or to begin anew, would do so once more."""
    run_of(Store(url, "job"), "first", 1)
    second = Store(url, "job")
    saved = "file:/saved" if status == "STOPPED" else ""
    leave(second, "second", ending("second", status, savepoint=saved), files_of(run_of(second, "second", 2), 2))
    text = rf"run second of job 'job' ended as {status} at .* and keeps none .*retain=\"never\".*if_finished=\"start-again\""
    for or_new in (False, True):
        with pytest.raises(CheckpointNotFound, match=text) as found:
            newest_start(Store(url, "job"), or_new=or_new)
        assert ("start from its savepoint, file:/saved" in str(found.value)) is bool(saved)
    assert newest_start(Store(url, "job"), or_new=True, start_again=True) is None


def test_a_checkpoint_that_a_finished_run_keeps_is_for_who_names_it(url: str) -> None:
    store = Store(url, "job")
    incarnation = run_of(store, "run", 1, 2)
    assert not leave(store, "run", ending("run", checkpoint=f"{incarnation}/2.manifest"), None)
    with pytest.raises(JobAlreadyFinished, match=r"Its last checkpoint stays \(1/2.manifest\)"):
        newest_start(Store(url, "job"))
    assert resolve(f"{url}/job")[1] == resolve(url)[1] == "1/2.manifest"
    found = Store(url, "job").latest()
    assert found is not None and found[0] == "1/2.manifest"


def test_a_run_that_was_overtaken_marks_nothing_and_removes_nothing(url: str) -> None:
    """The run sleeps between its last checkpoint and its end, and another start goes on from that checkpoint meanwhile."""
    zombie = Store(url, "job")
    incarnation = run_of(zombie, "zombie", 1)
    run_of(Store(url, "job"), "newer")
    assert not leave(zombie, "zombie", ending("zombie"), files_of(incarnation, 1))
    assert not zombie.folder.exists(ended_mark(incarnation))
    assert newest_start(Store(url, "job")) == "1/1.manifest"


@pytest.mark.parametrize("failing", ["create 1/ended", "delete"])
@pytest.mark.parametrize("fault", ["error", "unknown-done", "unknown-not-done"])
def test_whatever_fails_at_the_end_nothing_is_published_once_more(failing: str, fault: Any) -> None:
    """Without a mark the last checkpoint stays, and a start goes on from it, which has nothing left to do."""
    files = MemoryStore("job").memory
    run_of(MemoryStore("job", files), "older", 1)
    store = MemoryStore("job", files, fail=lambda operation, name: fault if failing in f"{operation} {name}" else None)
    failing = failing.replace("1/", "2/")
    run_of(store, "run", 2)
    with pytest.raises(OSError, match=r"by a fault|no answer"):
        leave(store, "run", ending("run"), files_of(2, 2))
    marked = failing == "delete" or fault == "unknown-done"
    try:
        assert newest_start(MemoryStore("job", files)) == "2/2.manifest" and not marked
    except JobAlreadyFinished:
        assert marked


def test_a_mark_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    store = Store(str(tmp_path), "job")
    store.mark_ended(run_of(store, "run", 1), ending("run"))
    (tmp_path / "job/1/ended").write_bytes(b"{")
    for call in (store.latest, lambda: newest_start(store, or_new=True, start_again=True)):
        with pytest.raises(CheckpointCorrupt, match="job/1/ended, the mark of the end of a run, cannot be read"):
            call()


def test_the_mark_outlives_all_sweeps(tmp_path: Path) -> None:
    first = Store(str(tmp_path), "job")
    leave(first, "first", ending("first"), files_of(run_of(first, "first", 1), 1))
    later = Store(str(tmp_path), "job")
    run_of(later, "later")
    later.sweep(2)
    assert (tmp_path / "job/1/ended").exists()


def test_a_job_none_of_whose_checkpoints_is_complete_is_told_so(tmp_path: Path) -> None:
    run_of(Store(str(tmp_path), "classes"), "run")
    text = "there is no checkpoint of job 'classes' in .*: job 'classes' has none that is complete"
    with pytest.raises(CheckpointNotFound, match=text):
        newest_start(Store(str(tmp_path), "classes"))


class Vanishing(LocalFolder):
    """A folder whose job deletes a checkpoint just before somebody reads it."""

    def read(self, name: str) -> bytes:
        if name.endswith(".manifest"):
            self.delete([name])
        return super().read(name)


def test_a_checkpoint_that_goes_while_it_is_looked_for_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of(Store(str(tmp_path), "job"), "first", 1, 2)
    monkeypatch.setattr("tailrace.storage.checkpoint_lookup.open_folder", lambda url, options=None: Vanishing(url))
    with pytest.raises(CheckpointNotFound, match="job 'job' has none that is complete"):
        resolve(f"{tmp_path}/job/1/chk-7")


def test_a_start_while_the_run_ends_finds_its_end_and_does_not_begin_anew(url: str) -> None:
    """The run goes between two looks of the start: it has listed a checkpoint, and when it reads it, that is gone."""
    old, new = Store(url, "job"), Store(url, "job")
    run_of(old, "first", 1)
    read = new.folder.read
    left: list[bool] = []

    def raced(name: str) -> bytes:
        if name == "1/1.manifest" and not left:
            left.append(leave(old, "first", ending("first"), files_of(1, 1)))
        return read(name)

    new.folder.read = raced  # type: ignore[method-assign]
    with pytest.raises(JobAlreadyFinished):
        newest_start(new, or_new=True)
    assert left == [True]


def test_a_start_while_the_run_goes_on_finds_its_newer_checkpoint(url: str) -> None:
    old, new = Store(url, "job"), Store(url, "job")
    run_of(Store(url, "job"), "first", 1)
    incarnation = run_of(old, "second", 2)
    read = new.folder.read
    gone: list[str] = []

    def raced(name: str) -> bytes:
        if name == "2/2.manifest" and not gone:
            manifest = manifest_of(3, incarnation, run_id="second")
            gone.append(old.commit(incarnation, 2, 3, encode_manifest(manifest)))
            old.delete([name])
        return read(name)

    new.folder.read = raced  # type: ignore[method-assign]
    assert newest_start(new, or_new=True) == "2/3.manifest"
    assert gone == ["2/3.manifest"]
