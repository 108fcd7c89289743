"""The door of a running job: requests of other processes of the same user, and who is not let in."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.errors import ConfigError
from tailrace.log import sparing
from tailrace.runtime.driver.control import ControlDoor, Reply, folders, jobs, query
from tailrace.runtime.eventloop.selector import EventLoop


def folder() -> str:
    """The only folder for sockets, where a test has set it."""
    [one] = folders()
    return one


WHO = {"name": "routes", "id": "abcd1234", "status": "RUNNING", "pid": 1}


class Served:
    """A door in a loop of its own."""

    def __init__(self, handle: Callable[[dict[str, Any], Reply], None]) -> None:
        self.loop = EventLoop()
        self.door = ControlDoor(self.loop, handle, "routes")
        self.over = False
        self.asked: list[dict[str, Any]] = []
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while not self.over:
            self.loop.poll(1.0)
        self.door.close()
        self.loop.close()

    def close(self) -> None:
        self.over = True
        self.loop.wake()
        self.thread.join()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path))
    opened: list[Served] = []

    def serve(answer: dict[str, Any] | None = None, **who: Any) -> Served:
        def handle(request: dict[str, Any], reply: Reply) -> None:
            if request["verb"] == "who":
                reply({**WHO, **who})
                return
            one.asked.append(request)
            if answer is not None:
                reply(answer)

        one = Served(handle)
        opened.append(one)
        return one

    yield serve
    for one in opened:
        one.close()


def test_a_request_is_answered_and_the_socket_goes_with_the_door(served: Callable[..., Served]) -> None:
    one = served()
    assert query(one.door.paths[0], {"verb": "who"}, 5) == WHO
    [(path, who)] = jobs()
    assert ([path], who) == (one.door.paths, WHO)
    one.close()
    assert query(path, {"verb": "who"}, 5) is None
    assert list(jobs()) == []


def test_what_is_no_request_is_shown_out_and_others_are_served(served: Callable[..., Served]) -> None:
    one = served()
    for message in (b"not json\n", b"x" * 70_000 + b"\n"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(5)
            sock.connect(one.door.paths[0])
            try:
                sock.sendall(message)
                assert sock.recv(10) == b""
            except ConnectionError:
                pass  # its connection was closed before it had sent all
    assert query(one.door.paths[0], {"verb": "who"}, 5) == WHO


def test_only_this_user_may_enter(served: Callable[..., Served]) -> None:
    served()
    assert os.stat(folder()).st_mode & 0o077 == 0


def test_a_folder_that_others_may_enter_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path))
    os.makedirs(folder())
    os.chmod(folder(), 0o777)
    loop = EventLoop()
    door = ControlDoor(loop, lambda request, reply: None, "routes")
    assert door.paths == [] and list(Path(folder()).iterdir()) == []
    door.close()
    loop.close()


def test_the_path_of_a_socket_may_be_longer_than_the_system_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: Callable[..., Served]
) -> None:
    """The path of a socket may have some hundred bytes, and folders of users may be deep, as under Slurm."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(deep))
    one = served({"status": "CANCELLED"})
    assert len(one.door.paths[0]) > 107 and [path for path, _ in jobs()] == one.door.paths
    assert called("cancel", "routes") == (0, "job 'routes' is CANCELLED\n")
    one.close()
    assert list(deep.iterdir()) == []


def test_a_job_that_has_no_door_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path / "nowhere"))
    loop = EventLoop()
    message = "job 'routes' cannot be reached from another terminal (tailrace list, show, stop, …): "
    ControlDoor(loop, lambda request, reply: None, "routes").close()
    [nowhere] = caplog.messages
    assert nowhere.startswith(f"{message}TAILRACE_CONTROL_DIR={tmp_path}/nowhere must be the absolute path of a folder")
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path))
    monkeypatch.setattr(socket.socket, "bind", _refused)
    sparing.forget()
    ControlDoor(loop, lambda request, reply: None, "routes").close()
    assert caplog.messages[1] == f"{message}[Errno 28] No space left on device"
    assert list(tmp_path.iterdir()) == [], "no folder is left"
    loop.close()


@pytest.mark.parametrize("place", ["{}/nowhere", "{}/file", "here"])
def test_a_folder_for_sockets_that_is_none_is_not_taken_for_one_without_jobs(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tailrace list` printed that no job is running."""
    (tmp_path / "file").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", place.format(tmp_path))
    for command in (["list"], ["show", "routes"], ["stop", "routes"]):
        called = CliRunner().invoke(app, command)
        assert called.exit_code == 2 and "must be the absolute path of a folder that is there" in called.output, command


def _refused(*args: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("of_job", ["a service", "a login", "a login that has ended"])
@pytest.mark.parametrize("of_shell", ["a service", "a login", "another login"])
def test_jobs_are_found_from_any_shell_of_their_user(
    of_job: str, of_shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service has no XDG_RUNTIME_DIR, a login may have one of its own, and takes it along when it ends."""
    fixed, login, other = (tmp_path / name for name in ("fixed", "login", "other"))
    for one in (fixed, login, other):
        one.mkdir()
    monkeypatch.setattr("tailrace.runtime.driver.control.FIXED", str(fixed))
    monkeypatch.delenv("TAILRACE_CONTROL_DIR", raising=False)

    def settings(whose: str) -> None:
        if whose == "a service":
            monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        else:
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(other if whose == "another login" else login))

    settings(of_job)
    one = Served(lambda request, reply: reply(WHO))
    try:
        if of_job == "a login that has ended":
            shutil.rmtree(login)
        settings(of_shell)
        assert [who for _, who in jobs() if who == WHO] == [WHO], "and once, though it has two sockets"
    finally:
        one.close()
    assert [file for place in (fixed, login, other) for file in place.glob("*/*")] == []


def test_a_folder_that_is_somebody_elses_hides_no_job_of_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAILRACE_CONTROL_DIR", raising=False)
    fixed, login = tmp_path / "fixed", tmp_path / "login"
    for one in (fixed, login):
        one.mkdir()
    monkeypatch.setattr("tailrace.runtime.driver.control.FIXED", str(fixed))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(login))
    (fixed / f"tailrace-{os.getuid()}").mkdir(mode=0o755)
    job = Served(lambda request, reply: reply(WHO))
    try:
        assert [path for path, who in jobs() if who == WHO] == [job.door.paths[0]]
        assert [Path(path).parents[1] for path in job.door.paths if path.startswith(str(tmp_path))] == [login]
    finally:
        job.close()


def test_sockets_of_processes_that_are_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path))
    os.makedirs(folder(), mode=0o700)
    left = os.path.join(folder(), f"{2**22 + 1}-dead.sock")  # above the largest pid there can be
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(left)
    assert list(jobs()) == []
    assert not os.path.exists(left)


def _somebody_elses(tmp_path: Path, how: str) -> Path:
    """A folder in the place of ours, with things in it that are not ours to touch. Where they really are."""
    there = tmp_path / "private" if how == "a link" else Path(folder())
    there.mkdir(mode=0o755 if how == "open to others" else 0o700)
    if how == "a link":
        os.symlink(there, folder())
    (there / "id_ed25519").write_text("secret")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(there / f"{2**22 + 1}-dead.sock"))
    return there


@pytest.mark.parametrize("how", ["a link", "open to others", "another user's"])
def test_in_a_folder_that_is_not_this_users_own_nothing_is_touched(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp anybody may make a link with the name of our folder. The command followed it, and removed each file there
    that was no live socket: the user's own keys, if the link led to them."""
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path))
    there = _somebody_elses(tmp_path, how)
    if how == "another user's":
        mine = os.getuid()
        monkeypatch.setattr("tailrace.runtime.driver.control.folders", lambda path=folder(): [path])
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    before = sorted(os.listdir(there))
    loop = EventLoop()
    door = ControlDoor(loop, lambda request, reply: None, "routes")
    with pytest.raises(ConfigError, match="nothing in it is touched; remove it, or set TAILRACE_CONTROL_DIR"):
        list(jobs())
    called = CliRunner().invoke(app, ["checkpoint", "routes"])
    assert called.exit_code == 2 and "the folder for the sockets of your jobs" in called.output
    door.close()
    loop.close()
    assert sorted(os.listdir(there)) == before


@pytest.fixture
def short() -> Iterator[str]:
    """A folder with a short name: the path of a socket has at most 107 bytes, and pytest's own folders may be longer."""
    with tempfile.TemporaryDirectory(prefix="tr-", dir="/tmp") as folder:
        yield folder


def test_only_sockets_of_jobs_are_removed(short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", short)
    os.makedirs(folder(), mode=0o700)
    gone = 2**22 + 1
    names = ["config", f"{gone}-notes.txt", f"{gone}-a.sock.bak", "0-a.sock", "-1-a.sock", "x-a.sock", f"{gone}-b.sock"]
    for name in names:
        Path(folder(), name).write_text("mine")
    os.symlink("config", Path(folder(), f"{gone}-c.sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(os.path.join(folder(), f"{2**64}-d.sock"))  # a number that no process can have
    assert list(jobs()) == []
    assert sorted(os.listdir(folder())) == sorted([*names, f"{gone}-c.sock"])


# Commands from another terminal.

DONE = {"id": 7, "path": "/c/routes/1/7.manifest", "bytes": 5656, "duration": 0.0125}


def test_a_checkpoint_of_a_job_by_name_or_id(served: Callable[..., Served]) -> None:
    served(DONE)
    by_name = CliRunner().invoke(app, ["checkpoint", "routes"])
    assert by_name.exit_code == 0
    assert by_name.output == "checkpoint 7: /c/routes/1/7.manifest\n5.5 KiB in 12 ms\n"
    by_id = CliRunner().invoke(app, ["checkpoint", "abcd", "--json"])
    assert by_id.exit_code == 0 and json.loads(by_id.output) == DONE


def test_a_job_that_is_not_there_is_a_wrong_call_and_those_that_are_are_named(served: Callable[..., Served]) -> None:
    served(DONE)
    called = CliRunner().invoke(app, ["checkpoint", "other"])
    assert called.exit_code == 2
    assert "no job 'other' is running; running on this machine: routes (abcd1234)" in called.output


def test_a_checkpoint_that_failed_is_reported(served: Callable[..., Served]) -> None:
    served({"error": "checkpoint 3 of job 'routes': the disk is full"})
    called = CliRunner().invoke(app, ["checkpoint", "routes"])
    assert (called.exit_code, "the disk is full" in called.output) == (1, True)


def test_a_checkpoint_that_does_not_come_in_time_is_reported(served: Callable[..., Served]) -> None:
    served(None)
    called = CliRunner().invoke(app, ["checkpoint", "routes", "--timeout", "0.2"])
    assert (called.exit_code, "no checkpoint within 0.2 s" in called.output) == (1, True)


def called(*args: str) -> tuple[int, str]:
    """The exit code of a command, and its output."""
    ended = CliRunner().invoke(app, list(args))
    return ended.exit_code, ended.output


def test_the_running_jobs_are_listed(served: Callable[..., Served]) -> None:
    assert called("list") == (0, "no job of yours is running on this machine\n")
    assert called("list", "--json") == (0, "[]\n")
    served()
    served(name="flights by day", id="0123456789", status="RESTARTING", pid=4711)
    table = """\
name            id        status      process
flights by day  01234567  RESTARTING     4711
routes          abcd1234  RUNNING           1
"""
    assert called("list") == (0, table)
    code, output = called("list", "--json")
    assert (code, [one["name"] for one in json.loads(output)]) == (0, ["flights by day", "routes"])


def test_a_savepoint_is_made_where_the_command_says_or_in_the_usual_place(
    served: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path is one of the terminal's folder: the job may have another."""
    monkeypatch.chdir(tmp_path)
    one = served(DONE)
    assert called("savepoint", "routes")[1].startswith("savepoint 7: /c/routes/1/7.manifest")
    called("savepoint", "routes", "before the change")
    called("savepoint", "routes", "s3://bucket/saved", "--json")
    assert [request["path"] for request in one.asked] == ["", str(tmp_path / "before the change"), "s3://bucket/saved"]


STOPPED = {"status": "FINISHED", **DONE}


@pytest.mark.parametrize(
    ("options", "drain", "savepoint"),
    [
        ([], False, None),
        (["--drain"], True, None),
        (["--savepoint"], False, ""),
        (["--savepoint", "--drain"], True, ""),
        (["--savepoint", "/saved/here"], False, "/saved/here"),
        (["--savepoint=/saved/here"], False, "/saved/here"),
    ],
)
def test_a_stop_says_how_it_is_to_end(
    served: Callable[..., Served], options: list[str], drain: bool, savepoint: str | None
) -> None:
    one = served(STOPPED)
    code, output = called("stop", "routes", *options)
    kind = "checkpoint" if savepoint is None else "savepoint"
    assert (code, output.splitlines()[0]) == (0, f"{kind} 7: /c/routes/1/7.manifest")
    assert output.splitlines()[-1] == "job 'routes' has stopped"
    assert one.asked == [{"verb": "stop", "drain": drain, "savepoint": savepoint}]
    assert json.loads(called("stop", "routes", "--json")[1]) == STOPPED


def test_a_stop_that_leaves_no_checkpoint_says_so(served: Callable[..., Served]) -> None:
    served({"status": "FINISHED"})
    assert called("stop", "routes") == (0, "no checkpoint is left: the job retains none\njob 'routes' has stopped\n")


def test_a_job_that_was_to_stop_and_ended_otherwise_has_not_stopped(served: Callable[..., Served]) -> None:
    served({"status": "FAILED", **DONE})
    code, output = called("stop", "routes")
    assert (code, "did not stop in order: it is FAILED" in output) == (1, True)


def test_a_cancelled_job_is_reported_when_it_has_ended(served: Callable[..., Served]) -> None:
    one = served({"status": "CANCELLED"})
    assert called("cancel", "routes") == (0, "job 'routes' is CANCELLED\n")
    assert json.loads(called("cancel", "routes", "--json")[1]) == {"status": "CANCELLED"}
    assert one.asked == 2 * [{"verb": "cancel"}]


@pytest.mark.parametrize(
    ("options", "path", "unaligned"),
    [([], "", False), (["/saved/here"], "/saved/here", False), (["--unaligned"], "", True)],
)
def test_a_job_is_cancelled_behind_a_savepoint(
    served: Callable[..., Served], options: list[str], path: str, unaligned: bool
) -> None:
    one = served(DONE)
    code, output = called("cancel", "routes", "--savepoint", *options)
    assert (code, output.splitlines()[-1]) == (0, "job 'routes' is cancelled")
    assert one.asked == [{"verb": "savepoint", "path": path, "unaligned": unaligned, "cancels": True}]


def test_a_cancel_that_is_unaligned_without_a_savepoint_is_a_wrong_call(served: Callable[..., Served]) -> None:
    one = served(DONE)
    code, output = called("cancel", "routes", "--unaligned")
    assert (code, "give --savepoint" in output, one.asked) == (2, True, [])


@pytest.mark.parametrize("command", ["show", "doctor", "stacks", "checkpoint", "savepoint", "stop", "cancel"])
def test_every_command_says_what_is_running_what_went_wrong_and_what_took_too_long(
    served: Callable[..., Served], command: str
) -> None:
    code, output = called(command, "routes")
    assert (code, output) == (2, f"tailrace {command}: no job 'routes' is running; running on this machine: none\n")
    one = served({"error": "it does not want to"})
    assert called(command, "routes") == (1, f"tailrace {command}: it does not want to\n")
    one.close()
    served(None)
    code, output = called(command, "routes", "--timeout", "0.2")
    assert (code, "within 0.2 s (--timeout)" in output) == (1, True)
    served(None, id="ffff")
    code, output = called(command, "routes")
    assert (code, "several running jobs are called 'routes'; give the id of one" in output) == (2, True)
