"""Folders that live no longer than their process: who removes those of processes that were killed, and what stays."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.storage import scratch
from tailrace.storage.scratch import Scratch, remove_abandoned

Owners = Callable[[], tuple[subprocess.Popen[str], Path]]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owners]:
    """Another process with a scratch folder and a file in it."""
    program = (
        "import sys; from pathlib import Path; from tailrace.storage.scratch import Scratch\n"
        f"held = Scratch({str(tmp_path)!r}); Path(held.path, 'db').mkdir(); Path(held.path, 'db', '1.sst').write_text('x')\n"
        "print(held.path, flush=True); sys.stdin.read()"
    )
    started = []

    def start() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_what_a_killed_process_left_goes_and_what_a_live_one_holds_stays(owner: Owners, tmp_path: Path) -> None:
    """State on disk of a worker that was killed stayed for ever; each restart made another folder."""
    killed, left = owner()
    _, held = owner()
    mine = Scratch(str(tmp_path))
    assert remove_abandoned(str(tmp_path)) == []
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert remove_abandoned(str(tmp_path)) == [str(left)]
    assert not left.exists() and (held / "db" / "1.sst").exists() and Path(mine.path).is_dir()
    assert remove_abandoned(str(tmp_path)) == []
    mine.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [held.name, f"{held.name}.lock"]


def test_a_forked_child_that_lives_on_holds_the_folder(tmp_path: Path) -> None:
    """User code may fork, and what it forked may still use the files."""
    held = Scratch(str(tmp_path))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(held._handle)
    assert remove_abandoned(str(tmp_path)) == []
    os.close(writer)
    os.waitpid(child, 0)
    assert remove_abandoned(str(tmp_path)) == [held.path]


def _left(base: Path, name: str) -> Path:
    """A folder with a lock file that nobody holds."""
    (base / name).mkdir()
    (base / f"{name}.lock").write_text("")
    return base / name


def test_of_machines_that_share_a_folder_each_removes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of another machine may not be seen here: a lock that seems free proves nothing."""
    host, booted = scratch._machine()
    own, other = "0123456789ab", "ffffffff"
    assert other not in (host, booted)
    before_a_boot = _left(tmp_path, f"tailrace-scratch-{host}-{other}-{own}")
    of_a_container = _left(tmp_path, f"tailrace-scratch-{other}-{booted}-{own}")
    elsewhere = _left(tmp_path, f"tailrace-scratch-{other}-{other}-{own}")
    assert set(remove_abandoned(str(tmp_path))) == {str(before_a_boot), str(of_a_container)}
    assert elsewhere.is_dir()
    monkeypatch.setattr(scratch, "boot", lambda: "")  # machines without a known start do not count as one
    unknown = _left(tmp_path, f"tailrace-scratch-{other}-{scratch._machine()[1]}-{own}")
    assert remove_abandoned(str(tmp_path)) == [] and unknown.is_dir()


def test_nothing_but_our_own_folders_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = "-".join(scratch._machine())
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    link = tmp_path / f"tailrace-scratch-{machine}-00000000000a"
    link.symlink_to(tmp_path / "precious")
    Path(f"{link}.lock").write_text("")
    linked_lock = _left(tmp_path, f"tailrace-scratch-{machine}-00000000000b")
    Path(f"{linked_lock}.lock").unlink()
    Path(f"{linked_lock}.lock").symlink_to(tmp_path / "precious" / "file")
    without_lock = tmp_path / f"tailrace-scratch-{machine}-00000000000c"
    without_lock.mkdir()
    pipe = _left(tmp_path, f"tailrace-scratch-{machine}-00000000000d")
    Path(f"{pipe}.lock").unlink()
    os.mkfifo(f"{pipe}.lock")
    another_users = _left(tmp_path, f"tailrace-scratch-{machine}-00000000000e")
    before = sorted(str(one) for one in tmp_path.rglob("*"))
    mine = os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: mine + 1)
        assert remove_abandoned(str(tmp_path)) == []
    assert sorted(str(one) for one in tmp_path.rglob("*")) == before
    assert remove_abandoned(str(tmp_path)) == [str(another_users)]
    assert (tmp_path / "precious" / "file").read_text() == "x" and link.is_symlink()
    assert remove_abandoned(str(tmp_path / "nowhere")) == []


def test_a_lock_file_that_somebody_removes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making the file and locking it, it looks like one that was left behind."""
    original, removed = fcntl.flock, []

    def flock(handle: int, how: int) -> None:
        if not removed:
            removed.append(next(iter(tmp_path.glob("*.lock"))))
            removed[0].unlink()
        original(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    held = Scratch(str(tmp_path))
    assert f"{held.path}.lock" != str(removed[0])
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"{Path(held.path).name}", f"{Path(held.path).name}.lock"]


def test_without_locks_a_folder_is_made_and_none_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    held = Scratch(str(tmp_path))
    left = _left(tmp_path, f"tailrace-scratch-{'-'.join(scratch._machine())}-00000000000a")
    assert remove_abandoned(str(tmp_path)) == [] and left.is_dir()
    held.close()
    assert not Path(held.path).exists()


def test_what_cannot_be_removed_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = _left(tmp_path, f"tailrace-scratch-{'-'.join(scratch._machine())}-00000000000a")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda path: (_ for _ in ()).throw(OSError(errno.EBUSY, "busy")))
        assert remove_abandoned(str(tmp_path)) == []
    assert remove_abandoned(str(tmp_path)) == [str(left)]
    assert list(tmp_path.iterdir()) == []
