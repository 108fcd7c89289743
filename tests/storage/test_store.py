"""Claims, commits, what is found, and what is swept."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, ConfigError, Fenced
from tailrace.state.manifest import Manifest, Prepared, StateFile, encode_manifest
from tailrace.state.paths import kept_file, kept_prefix, published_mark
from tailrace.storage.checkpoint_lookup import newest_start, resolve
from tailrace.storage.claim_owner import ProcessId, start_time, this_process
from tailrace.storage.remote import open_uploads
from tailrace.storage.store import Store, folder_name
from tailrace.testing.memorystore import Fault, MemoryFiles, MemoryStore, StoreTimeout

Making = Callable[..., Manifest]


def put(store: Any, *names: str) -> None:
    for name in names:
        writer = store.writer(name)
        writer.append(b"x")
        writer.close()


# The life of a job, wherever its checkpoints are.


def test_a_job_commits_and_the_next_one_finds_the_newest(url: str, manifest: Making) -> None:
    store = Store(url, "job")
    assert store.latest() is None and store.incarnations() == []
    assert store.claim("run") == 1
    for n in (1, 2, 3):
        assert store.commit(1, n - 1, n, encode_manifest(manifest(n))) == f"1/{n}.manifest"
    assert store.latest() == ("1/3.manifest", manifest(3))
    store.release(1)
    other = Store(url, "job")
    assert other.claim("run 2") == 2
    assert other.latest() == ("1/3.manifest", manifest(3))
    with pytest.raises(Fenced, match=r"newer start of job 'job' \(run run 2, .*incarnation 2: 1/4.manifest"):
        store.commit(1, 3, 4, encode_manifest(manifest(4)))
    assert other.latest() == ("1/3.manifest", manifest(3))
    other.commit(2, 0, 1, encode_manifest(manifest(4, 2)))
    assert other.latest() == ("2/1.manifest", manifest(4, 2))


def test_a_commit_done_twice_is_done_once(url: str, manifest: Making) -> None:
    store = Store(url, "job")
    data = encode_manifest(manifest(1))
    store.claim("run")
    assert store.commit(1, 0, 1, data) == store.commit(1, 0, 1, data)
    with pytest.raises(Fenced):
        store.commit(1, 0, 1, encode_manifest(manifest(2)))
    assert store.read("1/1.manifest") == data


def test_files_are_written_listed_and_deleted(url: str, manifest: Making) -> None:
    store = Store(url, "job")
    store.claim("run")
    put(store, "1/chk-1/w0-0.state", "1/chk-1/w1-0.state", "1/chk-2/w0-0.state")
    store.commit(1, 0, 1, encode_manifest(manifest(1)))
    assert store.names(1) == [
        "1/0.manifest", "1/1.manifest", "1/chk-1/w0-0.state", "1/chk-1/w1-0.state", "1/chk-2/w0-0.state", "1/claim",
        "1/ready",
    ]  # fmt: skip
    store.delete(["1/0.manifest", "1/chk-1/w0-0.state", "1/1.manifest", "1/chk-1/w1-0.state", "1/chk-9/w0-0.state"])
    assert store.names(1) == ["1/chk-2/w0-0.state", "1/claim", "1/ready"]


def test_a_manifest_that_could_not_be_deleted_goes_before_files_of_its_own(
    tmp_path: Path, manifest: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later manifest had kept a file of it, which goes with that one. It could be started from, and the file was gone."""
    store = Store(str(tmp_path), "job")
    store.claim("run")
    put(store, "1/chk-1/w0-0.state")
    store.commit(1, 0, 1, encode_manifest(manifest(1)))

    def fails(names: Any) -> None:
        raise OSError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(store.folder, "delete", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="no answer"):
                store.delete(["1/1.manifest"])
    requested: list[str] = []
    delete = store.folder.delete
    monkeypatch.setattr(store.folder, "delete", lambda names: (requested.extend(names), delete(names)))
    store.delete(["1/chk-1/w0-0.state"])
    assert requested == ["1/1.manifest", "1/chk-1/w0-0.state"]
    store.delete(["1/chk-2/w0-0.state"])
    assert requested[2:] == ["1/chk-2/w0-0.state"], "and is not asked for again"


def test_a_restart_of_a_run_claims_again(url: str) -> None:
    store = Store(url, "job")
    assert [store.claim("run") for _ in range(3)] == [1, 2, 3]
    assert store.read("1/0.manifest").startswith(b"tailrace-seal by 2")
    assert store.read("2/0.manifest").startswith(b"tailrace-seal by 3")


def test_a_job_elsewhere_reads_the_files_beside_the_manifest(url: str, maker: Any) -> None:
    store = Store(url, "A Job")
    make = maker(store, store.claim("run"))
    name = make.commit(1, [make.file(1, 0, [], {})])
    again = Store.at(store.url)
    assert (again.job, again.url) == ("A Job", store.url)
    assert again.latest() == (name, store.manifest(name))
    assert again.size("1/chk-1/w0-0.state") == store.manifest(name).files[0].size


def test_a_local_store_has_a_path_for_a_url(tmp_path: Path, s3_url: str) -> None:
    assert Store(f"file://{tmp_path}", "job").url == f"{tmp_path}/job"
    assert Store(s3_url, "job").url_of("1/1.manifest") == s3_url.replace("s3a:", "s3:") + "/job/1/1.manifest"


def test_opening_a_store_makes_nothing(tmp_path: Path) -> None:
    Store(str(tmp_path / "x"), "job").latest()
    assert not os.listdir(tmp_path)


# Names.


def test_no_two_jobs_share_a_folder(tmp_path: Path) -> None:
    names = ["job", "Job", "JOB", "a/b", "a_b", "a:b", "..", ".", "", " ", "\u00e9", "e\u0301", "x" * 300, "x" * 301]
    names += ["1", "~", "\udc80", "job.0000000000000000", "CON"]
    folders = [folder_name(name) for name in names]
    assert len({folder.lower() for folder in folders}) == len(names)
    assert all(len(folder) <= 100 and not folder.startswith(".") and "/" not in folder for folder in folders)
    assert folder_name("word-count_2") == "word-count_2"
    assert folder_name("Word count").startswith("word_count.")
    store = Store(str(tmp_path), "a/b")
    store.claim("run")
    assert Store.at(store.url).job == "a/b"


# Who is alive.


def test_a_folder_that_cannot_be_made_is_reported_with_what_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "disk").symlink_to(tmp_path / "not-mounted")
    with pytest.raises(
        ConfigError, match=f"cannot be kept in {tmp_path}/disk/job: {tmp_path}/disk: is a link to .*not-mou"
    ):
        Store(str(tmp_path / "disk"), "job").make()
    Store(str(tmp_path / "new"), "job").make()
    assert list((tmp_path / "new" / "job").iterdir()) == []


def test_a_manifest_slot_that_is_not_listed_does_not_hold_up_a_start(tmp_path: Path) -> None:
    """A link that leads nowhere takes the name of a slot, and a listing does not show it: a start tried for ever to put
    its seal there."""
    Store(str(tmp_path), "job").claim("first", takeover=True)
    (tmp_path / "job" / "1" / "0.manifest").symlink_to("nowhere")
    assert Store(str(tmp_path), "job").claim("second", takeover=True) == 2
    assert (tmp_path / "job" / "1" / "1.manifest").read_text() == "tailrace-seal by 2\n"


def test_a_store_that_refuses_every_claim_is_reported() -> None:
    files = MemoryFiles()
    files.create = lambda name, data: (_ for _ in ()).throw(FileExistsError(name))  # type: ignore[method-assign]
    files.read = lambda name: b"of somebody else"  # type: ignore[method-assign]
    with pytest.raises(OSError, match="taken by others when they were claimed; does the store refuse"):
        MemoryStore("job", files).claim("run")


def test_a_second_live_job_of_a_name_is_refused(tmp_path: Path) -> None:
    first, second = Store(str(tmp_path), "job"), Store(str(tmp_path), "job")
    first.claim("one")
    with pytest.raises(ConfigError, match=f"two live jobs of one name.*run one in process {os.getpid()}"):
        second.claim("two")
    assert first.incarnations() == [1]
    assert second.live_holder() is not None
    first.claim("one")
    first.release(2)
    assert second.live_holder() is None
    assert second.claim("two") == 3


def test_takeover_fences_who_is_alive_and_who_was_overtaken_does_not_come_back(
    tmp_path: Path, manifest: Making
) -> None:
    first, second = Store(str(tmp_path), "job"), Store(str(tmp_path), "job")
    first.claim("one")
    assert second.claim("two", takeover=True) == 2
    with pytest.raises(Fenced):
        first.commit(1, 0, 1, encode_manifest(manifest(1)))
    with pytest.raises(Fenced, match=r"run two.*this one cannot restart"):
        first.claim("one")
    assert first.incarnations() == [1, 2]


@pytest.mark.parametrize("end", ["killed", "alive"])
def test_a_process_that_was_killed_holds_nothing(tmp_path: Path, end: str) -> None:
    code = f"""
from tailrace.storage.remote import open_uploads
from tailrace.storage.store import Store
Store({str(tmp_path)!r}, 'job').claim('one')
print(1, flush=True)
input()
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline()
    store = Store(str(tmp_path), "job")
    try:
        if end == "killed":
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie is dead
            assert store.claim("two") == 2
        else:
            with pytest.raises(ConfigError, match=f"process {child.pid}"):
                store.claim("two")
    finally:
        child.kill()
        child.communicate()


def test_only_a_process_of_this_host_that_began_then_counts() -> None:
    me = this_process()
    assert (me.host, me.pid) == (socket.gethostname(), os.getpid())
    assert start_time(me.pid) == me.started != ""
    assert start_time(2**22 + 1) is None
    files = MemoryFiles()

    def store(process: ProcessId) -> Store:
        return Store("", "job", folder=files, process=process)

    store(ProcessId("elsewhere", me.pid, me.started)).claim("a")
    store(ProcessId(me.host, me.pid, "earlier")).claim("b")
    store(ProcessId(me.host, 2**22 + 1, me.started)).claim("c")
    store(me).claim("d")
    with pytest.raises(ConfigError, match="run d"):
        store(me).claim("e")


def test_a_claim_that_failed_does_not_bar_the_name(manifest: Making) -> None:
    """The answer was lost, or the sealing failed: the process lives, but no job of it does."""
    for fault, operation in (("unknown-done", "create"), ("error", "entries")):
        files = MemoryFiles()
        counted: list[str] = []

        def fail(what: str, name: str, fault: Any = fault, operation: str = operation, counted: Any = counted) -> Fault:
            counted.append(what)
            return fault if what == operation and counted.count(what) == (1 if what == "create" else 3) else None

        from tailrace.testing.memorystore import _Faulty

        store = Store("", "job", folder=_Faulty(files, fail), process=this_process())
        with pytest.raises(OSError):
            store.claim("one")
        assert Store("", "job", folder=files, process=this_process()).claim("two") == 2


def test_release_covers_a_claim_that_seemed_to_fail() -> None:
    files = MemoryFiles()
    faults: list[Any] = []
    from tailrace.testing.memorystore import _Faulty

    def fail(operation: str, name: str) -> Fault:
        return faults.pop() if faults and name.endswith("claim") and operation == "create" else None

    store = Store("", "job", folder=_Faulty(files, fail), process=this_process())
    store.claim("one")
    faults.append("unknown-done")
    with pytest.raises(StoreTimeout):
        store.claim("one")
    store.release(1)
    assert {"1/closed", "2/closed"} <= set(files.contents)
    assert Store("", "job", folder=files, process=this_process()).claim("two") == 3


def test_a_store_without_conditional_writes_is_refused(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(s3_url, "job")
    monkeypatch.setattr(store.folder, "_create", {})  # as where botocore drops the condition
    with pytest.raises(ConfigError, match="If-None-Match"):
        store.claim("run")


# What is swept.


def test_sweep_takes_what_this_run_left_and_nothing_else(url: str, manifest: Making) -> None:
    other = Store(url, "job")
    other.claim("other")
    put(other, "1/chk-1/w0-0.state")
    state = StateFile(0, "1/chk-1/w0-0.state", 1)
    other.commit(1, 0, 1, encode_manifest(manifest(1, run_id="other", files=[state])))
    other.release(1)
    store = Store(url, "job")
    store.claim("run")
    needed = ["2/chk-1/w0-0.state", "2/2.manifest"]
    temporary = f"2/.1.manifest.{'0' * 32}.tmp"
    put(
        store, "2/chk-1/w0-0.state", "2/chk-1/w1-0.state", "2/chk-2/w0-0.state", "2/inputs/a.arrow", temporary, "2/mine"
    )
    put(store, kept_file(kept_prefix(2, 1, 7), 3))
    store.commit(2, 0, 1, encode_manifest(manifest(1, 2)))
    store.commit(2, 1, 2, encode_manifest(manifest(2, 2)))
    store.claim("run")
    put(store, "3/chk-1/w0-0.state", kept_file(kept_prefix(3, 1, 7), 1))
    gone = store.sweep(3, needed)
    assert sorted(gone) == sorted(
        ["2/0.manifest", "2/1.manifest", "2/chk-1/w1-0.state", "2/chk-2/w0-0.state", "2/kept/w1-7-3.frames", temporary]
    )
    assert store.names(2) == [
        "2/2.manifest",
        "2/3.manifest",
        "2/chk-1/w0-0.state",
        "2/claim",
        "2/inputs/a.arrow",
        "2/mine",
        "2/ready",
    ]
    assert store.names(3) == ["3/chk-1/w0-0.state", "3/claim", "3/kept/w1-7-1.frames", "3/ready"], "workers use these"
    assert store.sweep(3, []) == ["2/2.manifest", "2/chk-1/w0-0.state"]  # inputs stay: the run goes on
    assert sorted(store.sweep(4, [])) == ["2/inputs/a.arrow", "3/chk-1/w0-0.state", "3/kept/w1-7-1.frames"]
    assert store.names(2) == ["2/3.manifest", "2/claim", "2/mine", "2/ready"]
    there = ["1/0.manifest", "1/1.manifest", "1/2.manifest", "1/chk-1/w0-0.state", "1/claim", "1/closed", "1/ready"]
    assert store.names(1) == there


def test_a_start_removes_what_a_run_that_was_killed_has_left(url: str, manifest: Making) -> None:
    """A driver that dies sweeps nothing. State files of checkpoints that were under way stayed for ever: nobody's run, so
    nobody's to remove."""
    dead = Store(url, "job")
    dead.claim("dead")
    half_made = f"1/.1.manifest.{'0' * 32}.tmp"
    put(dead, "1/chk-1/w0-0.state", "1/chk-2/w0-0.state", "1/chk-3/w0-0.state", half_made, "1/inputs/a.arrow")
    put(dead, "1/kept/w0-1-1.frames")
    state = [StateFile(0, "1/chk-2/w0-0.state", 1)]
    dead.commit(1, 0, 2, encode_manifest(manifest(2, run_id="dead", files=state, older=["1/chk-1/w0-0.state"])))
    store = Store(url, "job")
    store.claim("run", takeover=True)
    put(store, "2/chk-3/w0-0.state")
    assert sorted(store.sweep(2)) == [half_made, "1/chk-3/w0-0.state", "1/kept/w0-1-1.frames"]
    kept = ["1/0.manifest", "1/2.manifest", "1/3.manifest", "1/chk-1/w0-0.state", "1/chk-2/w0-0.state"]
    assert store.names(1) == [*kept, "1/claim", "1/inputs/a.arrow", "1/ready"]
    assert store.names(2) == ["2/chk-3/w0-0.state", "2/claim", "2/ready"]


@pytest.mark.parametrize(
    "had", ["no checkpoint", "none but its pointer", "one, deleted by hand since", "one after a restart"]
)
def test_inputs_of_a_run_go_where_nobody_can_have_gone_on_from_it(had: str, manifest: Making) -> None:
    """A DataFrame is written as a whole for each start. Of runs that were killed before their first checkpoint each one
    stayed. Where there was a checkpoint, a later run may have gone on from it, and its sources still read the files."""
    files = MemoryFiles()
    dead = MemoryStore("job", files)
    dead.claim("dead")
    put(dead, "1/inputs/in-0/part-0.arrow")
    if had == "one after a restart":
        dead.claim("dead")
    if had == "none but its pointer":  # killed between the two
        dead.folder.create("1/0.manifest", b"tailrace-next 1\n")
    elif had != "no checkpoint":
        dead.commit(len(dead.incarnations()), 0, 1, encode_manifest(manifest(1, run_id="dead")))
    between = MemoryStore("job", files)
    between.claim("between")
    if had == "one, deleted by hand since":
        files.delete(["1/1.manifest"])
    store = MemoryStore("job", files)
    store.claim("run")
    gone = store.sweep(store.incarnations()[-1])
    assert gone == (["1/inputs/in-0/part-0.arrow"] if had in ("no checkpoint", "none but its pointer") else [])


def test_nothing_goes_of_an_earlier_run_whose_manifests_cannot_all_be_read(tmp_path: Path, manifest: Making) -> None:
    dead = Store(str(tmp_path), "job")
    dead.claim("dead")
    put(dead, "1/chk-1/w0-0.state", "1/chk-2/w0-0.state")
    dead.commit(1, 0, 1, encode_manifest(manifest(1, run_id="dead"))[:-1])
    store = Store(str(tmp_path), "job")
    store.claim("run", takeover=True)
    for _ in range(2):
        with pytest.raises(CheckpointCorrupt):
            store.sweep(2)
    store.mark_swept()
    assert {"1/chk-1/w0-0.state", "1/chk-2/w0-0.state"} < set(store.names(1)) and "2/swept" not in store.names(2)


@pytest.mark.parametrize("by", ["its own run", "the next one"])
def test_uploads_of_lost_workers_are_given_up(by: str, s3_url: str) -> None:
    """What was written of a file that is not complete has no name in S3: a sweep by names does not see it, and it is paid
    for until somebody looks for it."""
    store = Store(f"{s3_url}/some", "job")
    neighbour = Store(f"{s3_url}/some", "job-2")
    store.claim("run"), neighbour.claim("run")
    lost = [store.writer("1/chk-1/w0-1.state"), neighbour.writer("1/chk-1/w0-1.state")]
    for writer in lost:
        writer.append(bytes(20 << 20))
        writer._file.close = lambda: None  # type: ignore[attr-defined]  # its process is gone
    if by == "the next one":
        store = Store(f"{s3_url}/some", "job")
    store.claim("run" if by == "its own run" else "next", takeover=True)
    alive = store.writer("2/chk-1/w0-1.state")
    alive.append(bytes(20 << 20))
    uploads = lambda: sorted(key for key, _ in open_uploads(store.folder.fs, s3_url[6:], "some/"))  # type: ignore[attr-defined]  # noqa: E731
    others = "some/job-2/1/chk-1/w0-1.state"
    assert uploads() == [others, "some/job/1/chk-1/w0-1.state", "some/job/2/chk-1/w0-1.state"]
    store.sweep(2)
    assert uploads() == [others, "some/job/2/chk-1/w0-1.state"]
    alive.close()
    assert uploads() == [others] and store.size("2/chk-1/w0-1.state") == 20 << 20


def test_a_sweep_lists_no_more_after_many_restarts(manifest: Making) -> None:
    """Each restart listed every incarnation that the run had had."""
    files = MemoryFiles()
    listed: list[str] = []
    files.fail = lambda operation, name: listed.append(name) if operation == "entries" else None  # type: ignore[misc]
    store = MemoryStore("job", files)
    needed = ["1/1.manifest", "1/chk-1/w0.state"]
    counts = []
    for i in range(1, 40):
        store.claim("run")
        put(store, f"{i}/chk-1/w0.state", f"{i}/chk-2/w0.state")
        if i == 1:
            store.commit(1, 0, 1, encode_manifest(manifest(1)))
        listed.clear()
        store.sweep(i, needed)
        assert store.latest() is not None
        counts.append(len(listed))
    assert max(counts[5:]) == counts[-1] == counts[5] < 15
    assert store.names(1) == ["1/1.manifest", "1/2.manifest", "1/chk-1/w0.state", "1/claim", "1/ready"]
    assert all("chk-" not in name for i in range(2, 39) for name in store.names(i))


def test_a_start_looks_back_to_who_has_swept_before_and_not_further() -> None:
    files = MemoryFiles()
    counts = []
    for i in range(1, 20):
        listed: list[str] = []
        files.fail = lambda operation, name, listed=listed: listed.append(name)  # type: ignore[misc]
        store = MemoryStore("job", files)
        store.claim(f"run {i}")
        put(store, f"{i}/chk-1/w0.state")
        assert store.sweep(i) == ([f"{i - 1}/chk-1/w0.state"] if i > 1 else [])
        assert store.abandoned_runs() == ([f"run {i - 1}"] if i > 1 else [])
        store.mark_swept()
        counts.append(len(listed))
    assert counts[2] == counts[-1]


def test_who_dies_before_everything_is_removed_leaves_it_to_the_next_one() -> None:
    files = MemoryFiles()
    for run in ("first", "second"):
        store = MemoryStore("job", files)
        put(store, f"{store.claim(run)}/chk-1/w0.state")
    third = MemoryStore("job", files)
    third.claim("third")
    third.mark_swept()  # it has not swept, and reports nothing
    last = MemoryStore("job", files)
    last.claim("last")
    assert last.abandoned_runs() == ["first", "second", "third"]
    assert sorted(last.sweep(4)) == ["1/chk-1/w0.state", "2/chk-1/w0.state"]


def test_output_is_abandoned_where_nobody_will_publish_it(tmp_path: Path, manifest: Making) -> None:
    """A run that was killed before its first checkpoint has left hidden files; the start after it knows of its claim."""
    url = str(tmp_path / "checkpoints")
    prepared = [Prepared("sink", b"x")]
    for run, what in [
        ("lost", "nothing"),
        ("unpublished", "prepared"),
        ("published", "marked"),
        ("kept", "without output"),
    ]:
        store = Store(url, "job")
        i = store.claim(run, takeover=True)
        if what != "nothing":
            made = manifest(i, i, run_id=run, prepared=prepared if what != "without output" else [])
            store.commit(i, 0, i, encode_manifest(made))
        if what == "marked":
            store.folder.create(published_mark(f"{i}/{i}.manifest"), b"published\n")
    damaged = Store(url, "job")
    damaged.commit(damaged.claim("damaged", takeover=True), 0, 1, b"no manifest")
    store = Store(url, "job")
    store.claim("run", takeover=True)
    assert store.abandoned_runs() == ["kept", "lost", "published"]


def test_a_copy_of_a_folder_says_nothing_of_the_runs_of_the_original(tmp_path: Path) -> None:
    """The original goes on where it was, and writes into the same outputs as who starts from the copy: what it has under
    cover is not for that one to remove."""
    Store(str(tmp_path / "original"), "job").claim("alive", takeover=True)
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    (tmp_path / "link").symlink_to(tmp_path / "original")
    for place, runs in (("copy", []), ("link", ["alive"])):
        store = Store(str(tmp_path / place), "job")
        store.claim(f"from the {place}", takeover=True)
        assert store.abandoned_runs() == runs


def test_many_aborted_checkpoints_leave_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path), "job")
    store.claim("run")
    before = store.names(1)
    for n in range(200):
        name = f"1/chk-{n}/w0-0.state"
        if n % 2:
            store.folder.writer(name).discard()
        else:
            os.makedirs(tmp_path / f"job/1/chk-{n}")
            (tmp_path / "job" / name).write_bytes(b"x")
            store.delete([name])
    assert store.names(1) == before and sorted(os.listdir(tmp_path / "job/1")) == ["claim", "ready"]


# What a user names.


@pytest.fixture
def jobs(tmp_path: Path, manifest: Making) -> str:
    return made_jobs(str(tmp_path / "checkpoints"), manifest)


def made_jobs(url: str, manifest: Making) -> str:
    """Job `a` with two checkpoints in each of two incarnations, the newer of job `B`, and `c` without one."""
    for job, run in (("a", "r1"), ("a", "r2"), ("B", "r3"), ("c", "r4")):
        store = Store(url, job)
        i = store.claim(run)
        for k in range(2 if job != "c" else 0):
            n = 10 * i + k + (100 if job == "B" else 0)
            store.commit(i, k, k + 1, encode_manifest(manifest(n, i, job=job, run_id=run)))
        store.release(i)
    return url


@pytest.mark.parametrize(
    ("path", "checkpoint"),
    [
        ("a/1/1.manifest", 10),
        ("a/2/2.manifest", 21),
        ("a/1", 11),
        ("a/2/", 21),
        ("a/1/chk-10", 10),
        ("a", 21),
        ("", 111),
        (f"{folder_name('B')}/1/chk-110", 110),
    ],
)
def test_a_checkpoint_is_found_by_what_the_user_names(jobs: str, path: str, checkpoint: int) -> None:
    store, name = resolve(f"{jobs}/{path}" if path else jobs)
    assert store.manifest(name).checkpoint == checkpoint


def test_checkpoints_in_s3_are_found_as_well(s3_url: str, manifest: Making) -> None:
    url = made_jobs(s3_url, manifest)
    for path, name in (("", "1/2.manifest"), ("/a", "2/2.manifest"), ("/a/1/1.manifest", "1/1.manifest")):
        assert resolve(url + path)[1] == name
    with pytest.raises(CheckpointNotFound, match="there are the jobs 'B', 'a', 'c'"):
        newest_start(Store(url, "b"))


def test_a_job_may_be_called_almost_like_a_checkpoint(tmp_path: Path, manifest: Making) -> None:
    store = Store(str(tmp_path), "chk-a")
    store.commit(store.claim("run"), 0, 1, encode_manifest(manifest(1, job="chk-a")))
    assert resolve(f"{tmp_path}/chk-a")[1] == "1/1.manifest"


def test_latest_is_the_newest_of_the_job(jobs: str) -> None:
    assert newest_start(Store(jobs, "a")) == "2/2.manifest"
    store, name = resolve(jobs, job="a")
    assert store.manifest(name).checkpoint == 21


@pytest.mark.parametrize(
    ("path", "runs"),
    [
        (
            "a/1/8.manifest",
            "there is no .*a/1/8.manifest: in .*a there are 2/2.manifest, 2/1.manifest, 1/2.manifest, 1/1.manif",
        ),
        ("a/1/3.manifest", "not a checkpoint: it marks the end of incarnation 1"),
        ("a/1/chk-99", "there is no complete checkpoint .*chk-99: in .* there are"),
        ("c", "no checkpoint of job 'c' in .*: job 'c' has none"),
        ("c/1", "there is no checkpoint in .*c/1: job 'c' has none"),
        ("nowhere", "no checkpoint in .*nowhere: the folder is empty, or does not exist"),
        ("nowhere/1/1.manifest", "the folder is empty, or does not exist"),
        ("plain", "there is no checkpoint in .*plain: it is a file, and none of a checkpoint"),
        ("plain/1/2.manifest", "there is no .*plain/1/2.manifest: it is a file"),
        ("plain/1/chk-2", "there is no complete checkpoint .*: it is a file"),
        ("plain/savepoint.manifest", "there is no .*plain/savepoint.manifest"),
    ],
)
def test_what_is_not_there_is_reported_with_what_is(jobs: str, path: str, runs: str) -> None:
    Path(jobs, "plain").write_text("a script, say")
    with pytest.raises(CheckpointNotFound, match=runs):
        resolve(f"{jobs}/{path}")


def test_latest_of_an_unknown_job_names_the_jobs(jobs: str) -> None:
    with pytest.raises(CheckpointNotFound, match=r"no checkpoint of job 'A' in .*: there are the jobs 'B', 'a', 'c'"):
        newest_start(Store(jobs, "A"))


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        (lambda data: data[:-1], "checksum does not match"),
        (lambda data: data.replace(b'"checkpoint": 21', b'"checkpoint": 22'), "checksum does not match"),
        (
            lambda data: data.replace(b"manifest 2 ", b"manifest 3 ", 1),
            "version 3; this tailrace reads version 2",
        ),
        (lambda data: b"", "not a checkpoint manifest"),
        (lambda data: b"\x00\xff" * 50, "not a checkpoint manifest"),
    ],
)
def test_a_damaged_manifest_is_never_skipped(tmp_path: Path, manifest: Making, change: Any, runs: str) -> None:
    store = Store(str(tmp_path), "a")
    store.claim("run")
    store.commit(1, 0, 1, encode_manifest(manifest(20)))
    store.commit(1, 1, 2, encode_manifest(manifest(21)))
    file = tmp_path / "a/1/2.manifest"
    file.write_bytes(change(file.read_bytes()))
    for call in (
        store.latest,
        lambda: resolve(str(file)),
        lambda: resolve(str(tmp_path)),
        lambda: newest_start(Store(str(tmp_path), "a")),
    ):
        with pytest.raises(CheckpointCorrupt, match=runs):
            call()
    assert file.exists()


@pytest.mark.parametrize(
    ("moved", "place"),
    [("1/2.manifest", "1/9.manifest"), ("1/2.manifest", "2/9.manifest"), ("1/2.manifest", "1/old.manifest")],
)
def test_a_manifest_that_was_copied_or_renamed_is_no_checkpoint(
    tmp_path: Path, manifest: Making, moved: str, place: str
) -> None:
    """A user keeps a checkpoint by hand, as `9.manifest` beside the others. It has the largest number, but not the newest
    state: a start from it would go back without a word, and publish once more what was published since."""
    store = Store(str(tmp_path), "a")
    store.claim("run")
    for n in (1, 2, 3):
        store.commit(1, n - 1, n, encode_manifest(manifest(n)))
    store.release(1)
    Store(str(tmp_path), "a").claim("next")
    file = tmp_path / "a" / place
    shutil.copy(tmp_path / "a" / moved, file)
    runs = (
        f"{place} holds checkpoint 2 of incarnation 1: somebody has renamed or copied it. Move it back to 1/2.manifest"
    )
    calls = [lambda: resolve(str(file))]
    if file.stem.isdecimal():
        calls += [
            store.latest,
            lambda: resolve(str(tmp_path)),
            lambda: newest_start(Store(str(tmp_path), "a")),
        ]
    for call in calls:
        with pytest.raises(CheckpointCorrupt, match=runs):
            call()
    file.unlink()
    latest = store.latest()
    assert latest is not None and latest[0] == "1/3.manifest"


def test_the_claim_says_who(tmp_path: Path) -> None:
    store = Store(str(tmp_path), "My job")
    store.claim("run")
    runs = json.loads(store.read("1/claim"))
    assert (runs["job"], runs["run_id"], runs["pid"]) == ("My job", "run", os.getpid())
