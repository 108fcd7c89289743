"""What workers keep in the storage of checkpoints: in files of many frames, made beside their work, and gone with it."""

import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.errors import TailraceError
from tailrace.retries import Retries
from tailrace.runtime.worker.main_loop import WorkerProcess
from tailrace.storage.filesystem import LocalFolder
from tailrace.storage.storedspill import BEHIND, StoredSpill
from tailrace.task.channels.spilling import SpillPlace
from tailrace.task.contract.jobspec import Kept

PREFIX = "3/kept/w1-2"
WHAT = "what is kept"


class Store(LocalFolder):
    """A store that refuses some requests: the next ones to make or to read a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.refuses = 0
        self.carried_out = False
        """Whether it makes the file all the same."""
        self.reads = 0
        self.made: list[str] = []

    def create(self, name: str, data: bytes) -> None:
        if not self.refuses or self.carried_out:
            super().create(name, data)
            self.made.append(name)
        self.refuse()

    def read(self, name: str) -> bytes:
        self.refuse()
        self.reads += 1
        return super().read(name)

    def refuse(self) -> None:
        if self.refuses:
            self.refuses -= 1
            raise ConnectionError("out of reach")


def spill_in(store: LocalFolder, part_bytes: int = 1_000, tries: int = 3) -> StoredSpill:
    spill = StoredSpill(store, PREFIX, WHAT, part_bytes)
    spill._retries = Retries(within=60.0, tries=tries, first=0.0)
    return spill


def settled(spill: StoredSpill) -> StoredSpill:
    """All requests to the storage so far are done."""
    done = threading.Event()
    spill._do(done.set)
    assert done.wait(20)
    return spill


def files(path: Path) -> list[str]:
    return sorted(one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file())


def test_bytes_come_back_as_they_were_and_files_go_with_what_is_in_them(tmp_path: Path) -> None:
    chance = random.Random(1)
    spill = spill_in(Store(tmp_path))
    stored = {spill.append(data): data for data in (chance.randbytes(chance.randrange(1, 900)) for _ in range(100))}
    settled(spill)
    assert len(files(tmp_path)) > 10 and all(name.startswith(PREFIX) for name in files(tmp_path))
    assert spill.held == sum(map(len, stored.values()))
    order = list(stored)
    chance.shuffle(order)
    for ref in order:
        assert spill.read(ref) == stored[ref]
        spill.release(ref)
    settled(spill)
    assert (spill.held, files(tmp_path)) == (0, [])


def test_a_file_that_is_read_in_order_is_read_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spill = spill_in(store)
    refs = [spill.append(bytes([n]) * 100) for n in range(35)]
    settled(spill)
    assert [spill.read(ref) for ref in refs] == [bytes([n]) * 100 for n in range(35)]
    assert store.reads == 3, "the last five are not in a file"


def test_what_is_let_go_before_a_file_is_full_never_becomes_one(tmp_path: Path) -> None:
    spill = spill_in(Store(tmp_path))
    for _ in range(50):
        spill.release(spill.append(bytes(900)))
    assert settled(spill)._numbers == 1 and files(tmp_path) == []


def test_where_the_store_is_slow_what_comes_waits(tmp_path: Path) -> None:
    """Memory holds a bounded part of it."""
    begun, go_on = threading.Event(), threading.Event()
    appended = list[int]()
    behind = list[int]()

    class Slow(Store):
        def create(self, name: str, data: bytes) -> None:
            begun.set()
            assert go_on.wait(20)
            behind.append(len(appended) - len(self.made))
            super().create(name, data)

    store = Slow(tmp_path)
    spill = spill_in(store, part_bytes=10)

    def work() -> None:
        for n in range(20):
            spill.append(bytes(10))
            appended.append(n)

    worker = threading.Thread(target=work)
    worker.start()
    assert begun.wait(20)
    go_on.set()
    worker.join(20)
    settled(spill)
    assert len(store.made) == len(appended) == 20
    assert max(behind) <= BEHIND


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_store_that_is_out_of_reach_for_a_while_is_asked_again(tmp_path: Path, carried_out: bool) -> None:
    store = Store(tmp_path)
    store.carried_out = carried_out
    spill = spill_in(store)
    store.refuses = 2
    ref = spill.append(b"x" * 1_000)
    settled(spill)
    assert len(files(tmp_path)) == 1
    store.refuses = 2
    assert spill.read(ref) == b"x" * 1_000


@pytest.mark.parametrize("seconds", [0.05, 7.0, 600.0, 1_800.0])
def test_it_is_requested_as_long_as_the_job_is_patient(tmp_path: Path, seconds: float) -> None:
    """And at most ten seconds after it is back. A worker makes its spill so, by the settings of its job."""
    machine = SimpleNamespace(
        spec=SimpleNamespace(kept=Kept(1 << 20), storage_patience=seconds), incarnation=1, slot=2, epoch=3
    )
    worker: Any = SimpleNamespace(machine=machine, _open_store=lambda _: SimpleNamespace(folder=Store(tmp_path)))
    spill = WorkerProcess._make_spill(worker, SpillPlace(WHAT, stored=True))
    assert isinstance(spill, StoredSpill)
    assert spill._retries.within == seconds and spill._retries.tries is None and spill._retries.most <= 10.0


def test_one_that_stays_out_of_reach_is_an_error_that_says_where_how_much_and_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spill = spill_in(store)
    ref = spill.append(b"x" * 1_000)
    settled(spill)
    store.refuses = 3
    with pytest.raises(
        TailraceError, match=rf"^what is kept cannot be read back from .*{PREFIX}-1.frames: ConnectionError"
    ):
        spill.read(ref)
    store.refuses = 3
    spill.append(b"y" * 1_000)
    settled(spill)
    with pytest.raises(TailraceError) as raised:
        spill.append(b"z")
    text = str(raised.value)
    assert f"{tmp_path}/{PREFIX}-2.frames: ConnectionError: out of reach; 2,000 bytes of it" in text
    assert text.startswith("what is kept has no room in memory") and "Spill(memory_bytes=...)" in text
    assert spill.read(ref) == b"x" * 1_000


def test_what_somebody_else_has_written_there_is_not_taken_for_it(tmp_path: Path) -> None:
    spill = spill_in(Store(tmp_path))
    ref = spill.append(b"x" * 1_000)
    settled(spill)
    (name,) = files(tmp_path)
    (tmp_path / name).write_bytes(b"y" * 1_000)
    with pytest.raises(TailraceError, match=r"what is kept is damaged in .*w1-2-1\.frames"):
        spill.read(ref)


def test_closing_removes_all_files_and_makes_no_more(tmp_path: Path) -> None:
    held_up, go_on = threading.Event(), threading.Event()

    class Slow(Store):
        def create(self, name: str, data: bytes) -> None:
            if name.endswith("-3.frames"):
                held_up.set()
                assert go_on.wait(20)
            super().create(name, data)

    store = Slow(tmp_path)
    spill = spill_in(store)
    for _ in range(4):
        spill.append(bytes(1_000))
    assert held_up.wait(20)
    spill.close()
    go_on.set()
    spill.settle()
    assert (spill.held, files(tmp_path)) == (0, [])
    assert not any(name.endswith("-4.frames") for name in store.made)


def test_closing_what_was_never_used_is_harmless(tmp_path: Any) -> None:
    spill = spill_in(Store(tmp_path))
    spill.close()
    spill.settle()
    assert files(tmp_path) == []
