"""Files become visible once each, whoever stops in between and whatever readers take away.

Actors (publishers, a reader, somebody who deletes what he should not) take turns at every operation on the folder, so a
schedule of turns is all there is to an interleaving, and all of them are tried. A publisher may be stopped before any of
its operations; then the next one does everything again, as the next attempt of a job does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

import tailrace as tr
from tailrace.connectors import folders, hidden, remotefiles
from tailrace.connectors.publishing import Finished, make_visible, settle
from tests.connectors.test_sinks import Place

Step = Callable[[str], None]


class Disk:
    """One file: whether it is under cover, visible, has a trace; and how often it became visible."""

    def __init__(self) -> None:
        self.covered, self.visible, self.traced = True, False, False
        self.shown = 0
        self.taken = 0


class OneFile(Finished):
    """A file whose publication is a rename. `step` is called before each operation, and may raise."""

    name = "out/part"
    trace = "out/.part.publishing"

    def __init__(self, disk: Disk, step: Step) -> None:
        self.disk, self.step = disk, step

    def is_covered(self) -> bool:
        self.step("covered")
        return self.disk.covered

    def visible(self) -> bool:
        self.step("visible")
        return self.disk.visible

    def has_trace(self) -> bool:
        self.step("traced")
        return self.disk.traced

    def leave_trace(self) -> None:
        self.step("leave_trace")
        self.disk.traced = True

    def uncover(self) -> None:
        self.step("uncover")
        if self.disk.covered:
            self.disk.covered, self.disk.visible = False, True
            self.disk.shown += 1

    def remove_trace(self) -> None:
        self.step("remove_trace")
        self.disk.traced = False

    def sync(self) -> None:
        self.step("sync")


class OneCopied(OneFile):
    """One on a store without rename: a copy, then the removal of the cover."""

    def uncover(self) -> None:
        self.step("copy")
        if not self.disk.covered:
            return
        self.disk.visible = True
        self.disk.shown += 1
        self.step("remove cover")
        self.disk.covered = False


class Stopped(Exception):
    """A publisher dies here."""


def runs(choices: int) -> Iterator[tuple[list[int], Callable[[], int]]]:
    """Every sequence of choices below `choices` that a run makes, each once: (what was chosen, what chooses)."""
    prefix: list[int] = []
    while True:
        made: list[int] = []

        def choose(prefix: list[int] = prefix, made: list[int] = made) -> int:
            made.append(prefix[len(made)] if len(made) < len(prefix) else 0)
            return made[-1]

        yield made, choose
        while made and made[-1] == choices - 1:
            made.pop()
        if not made:
            return
        prefix[:] = [*made[:-1], made[-1] + 1]


GO, STOP, TAKE = range(3)


def publish_until_done(disk: Disk, choose: Callable[[], int], make: type[OneFile], stops: int = 2) -> int:
    """Publishers, one after the other as each is stopped, while a reader takes what it sees at any moment: how often one
    was stopped."""
    left = stops

    def step(what: str) -> None:
        nonlocal left
        chosen = choose()
        if chosen == TAKE and disk.visible:
            disk.visible = False
            disk.taken += 1
        elif chosen == STOP and left:
            left -= 1
            raise Stopped

    while True:
        try:
            make_visible([make(disk, step)])
        except Stopped:
            continue
        return stops - left


def test_a_file_is_visible_once_wherever_publishers_stop_and_whenever_it_is_taken() -> None:
    """Publishers stop at any operation, and a reader takes the file at any moment it is visible. It was visible exactly
    once, and nobody takes it for lost, whether it was taken before the first publisher came to its end or not."""
    seen = set()
    for made, choose in runs(3):
        disk = Disk()
        stopped = publish_until_done(disk, choose, OneFile)
        assert disk.shown == 1 and not disk.covered, made
        assert disk.taken + disk.visible == 1, made
        make_visible([OneFile(disk, lambda what: None)])  # and again, before the mark: a restart
        assert disk.shown == 1, made
        settle([OneFile(disk, lambda what: None)])
        assert not disk.traced
        seen.add((stopped, disk.taken))
    assert seen == set(product(range(3), range(2)))


def test_two_publishers_at_once_make_it_visible_once() -> None:
    """The worker of an attempt that is over has not noticed, and publishes beside the new one: in every interleaving of
    their operations with a reader's."""
    for made, choose in runs(3):
        disk = Disk()
        waiting = {0: both(disk), 1: both(disk)}
        while waiting:
            chosen = choose()
            if chosen == 2:
                disk.visible = False
                chosen = min(waiting)
            one = waiting.get(chosen, waiting[min(waiting)])
            if next(one, None) is None:
                waiting = {n: publisher for n, publisher in waiting.items() if publisher is not one}
        assert disk.shown == 1, made


def both(disk: Disk) -> Iterator[str]:
    """`make_visible` as steps: what it does between two looks at the disk is one of them."""
    one = OneFile(disk, lambda what: None)
    if one.is_covered():
        yield "covered"
        one.leave_trace()
        yield "leave_trace"
        one.uncover()
        yield "uncover"
        return
    yield "not covered"
    if not one.visible():
        yield "not visible"
        assert one.has_trace(), "it was taken for lost"


@pytest.mark.parametrize("make", [OneFile, OneCopied])
def test_a_file_that_vanished_and_was_never_visible_is_lost_for_every_publisher(make: type[OneFile]) -> None:
    """A file under cover is removed before it was ever published. No publisher leaves a trace of what it has not
    seen, so no later one takes it for published: each of them reports it as lost."""
    for _, choose in runs(2):
        disk = Disk()
        disk.covered = False

        def step(what: str, choose: Callable[[], int] = choose) -> None:
            if choose() == STOP:
                raise Stopped

        for _ in range(3):
            with pytest.raises((FileNotFoundError, Stopped)):
                make_visible([make(disk, step)])
            assert not disk.traced and disk.shown == 0
        with pytest.raises(FileNotFoundError, match="its records are lost"):
            make_visible([make(disk, lambda what: None)])


def test_what_cannot_be_reported_on_a_store_without_rename_is_published_again_and_never_lost() -> None:
    """A publisher stops between the copy and the removal of the cover, and a reader takes the copy meanwhile: it looks as
    if the copy had never been made. It is made again. Everywhere else it is visible once."""
    twice = 0
    for made, choose in runs(3):
        disk = Disk()
        publish_until_done(disk, choose, OneCopied, stops=1)
        assert disk.shown >= 1 and not disk.covered, made
        twice += disk.taken > 1
    assert twice


def test_nothing_of_a_publication_is_visible_where_one_of_its_files_is_lost() -> None:
    disks = [Disk(), Disk()]
    disks[1].covered = False
    with pytest.raises(FileNotFoundError):
        make_visible([OneFile(disk, lambda what: None) for disk in disks])
    assert disks[0].shown == 0 and not disks[0].traced


# The real thing.


def prepared_file(folder: Path, **place: Any) -> tuple[Any, bytes]:
    sink = tr.sinks.TextFiles(str(folder))
    writer = sink.writer(Place(**place))
    writer.write(["a"])
    prepared = writer.prepare()
    assert prepared is not None
    return sink, prepared


def test_what_a_reader_took_counts_as_published_until_nobody_asks_again(tmp_path: Path) -> None:
    sink, prepared = prepared_file(tmp_path)
    sink.publish([prepared])
    [file] = tmp_path.glob("part-*")
    file.unlink()
    tr.sinks.TextFiles(str(tmp_path)).publish([prepared])  # another attempt, which knows nothing but the bytes
    assert list(tmp_path.glob("part-*")) == []
    sink.settled([prepared])
    assert list(tmp_path.iterdir()) == []


def test_the_text_of_an_error_says_how_to_go_on(tmp_path: Path) -> None:
    """A file that an earlier version published, and somebody has moved, left no trace. The user can confirm that it was."""
    sink, prepared = prepared_file(tmp_path)
    [hidden] = tmp_path.iterdir()
    hidden.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        sink.publish([prepared])
    trace = str(caught.value).rpartition("create the empty file ")[2].partition(",")[0]
    Path(trace).touch()
    sink.publish([prepared])


def test_a_sweep_leaves_the_traces_of_what_may_be_requested_again(tmp_path: Path) -> None:
    """After a restart the publisher publishes what the checkpoint has and then sweeps. Until that checkpoint is marked,
    another restart requests it again."""
    sink, prepared = prepared_file(tmp_path)
    prepared_file(tmp_path, subtask=1)
    sink.publish([prepared])
    _, older = prepared_file(tmp_path, subtask=2)
    tr.sinks.TextFiles(str(tmp_path)).publish([older])
    again = tr.sinks.TextFiles(str(tmp_path))
    again.publish([prepared])
    again.recover(["run"], 2, "sink")
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("."))
    assert left == [".part-00000-run-0001-1978baf2-000000.txt" + hidden.TRACE]
    tr.sinks.TextFiles(str(tmp_path)).recover(["run"], 2, "sink")
    assert all(not path.name.startswith(".") for path in tmp_path.iterdir())


# A store that does not answer.


class Flaky(MemoryFileSystem):
    """Goes out of reach at the first rename or copy. Its `exists` is fsspec's own, which several filesystems keep: it
    returns False as well where the store did not answer."""

    protocol = "flaky"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    exists = AbstractFileSystem.exists
    armed = down = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://")))

    def info(self, path: str, **options: Any) -> Any:
        self._answer()
        return super().info(path, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        Flaky.down = Flaky.armed
        self._answer()
        super().cp_file(path1, path2, **options)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        Flaky.down = Flaky.armed
        self._answer()
        super().mv(path1, path2, **options)

    def _answer(self) -> None:
        if Flaky.down:
            raise ConnectionError("out of reach")


@pytest.mark.parametrize("renaming", [False, True])
def test_a_store_that_goes_out_of_reach_while_a_file_becomes_visible_has_not_published_it(
    renaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the outage that broke the rename the file seemed not to be under cover any more either, so it counted as
    published: it was marked, its trace went, and the next start removed the hidden file, which nobody had ever seen."""
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    Flaky.store.clear()
    if renaming:
        monkeypatch.setattr(remotefiles, "_RENAMING", {"flaky"})
    file = folders.folder_at("flaky://b/out").create(hidden.name_of(0, "aaaaaaaa", 1, "sink", 0, ".txt"))
    file.stream.write(b"x\n")
    prepared = file.finish()
    sink = tr.sinks.TextFiles("flaky://b/out")
    Flaky.armed = True
    try:
        with pytest.raises(ConnectionError, match="out of reach"):
            sink.publish([prepared])
    finally:
        Flaky.armed = Flaky.down = False
    sink.publish([prepared])
    visible = [name for name in Flaky.store if not name.rpartition("/")[2].startswith(".")]
    assert [Flaky.store[name].getvalue() for name in visible] == [b"x\n"]


def test_a_copy_that_goes_on_behind_its_answer_keeps_its_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of Azure may. It is not made again when it has ended."""
    copied: list[str] = []

    def cp_file(self: Flaky, path1: str, path2: str, **options: Any) -> None:
        copied.append(path2)
        self.pipe_file(path2, b"")

    fsspec.register_implementation("flaky", Flaky, clobber=True)
    Flaky.store.clear()
    monkeypatch.setattr(Flaky, "cp_file", cp_file)
    file = folders.folder_at("flaky://b/out").create(hidden.name_of(0, "aaaaaaaa", 1, "sink", 0, ".txt"))
    file.stream.write(b"x\n")
    prepared = file.finish()
    sink = tr.sinks.TextFiles("flaky://b/out")
    with pytest.raises(OSError, match="has 0 of 2 bytes: its copy has not ended"):
        sink.publish([prepared])
    assert len([name for name in Flaky.store if name.endswith(hidden.COVER)]) == 1
    Flaky.store[f"/{copied[0].partition('://')[2]}"].write(b"x\n")
    sink.publish([prepared])
    visible = [name for name in Flaky.store if not name.rpartition("/")[2].startswith(".")]
    assert [Flaky.store[name].getvalue() for name in visible] == [b"x\n"] and len(copied) == 1
    assert not [name for name in Flaky.store if name.endswith(hidden.COVER)]
