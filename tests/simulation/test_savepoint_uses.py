"""What savepoints are for: each use once, from the savepoint of a simulated job that was stopped in the middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles
from tailrace.coordinator.actions import StopEnded
from tailrace.coordinator.durability.stopping import Aim
from tailrace.state.paths import SAVEPOINT
from tailrace.statedata.fitting import restore_check
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.filesystem import LocalFolder
from tailrace.storage.store import Store
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles

END, KEYS = 300, 10
WANTED = Counter((key, n) for key in range(KEYS) for n in range(1, END // KEYS + 1))


class Count(tr.KeyedProcessFunction):
    """Pairs of the key and how many there were of it."""

    count = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        yield ctx.key, self.count.value


class Last(tr.KeyedProcessFunction):
    """What an upgrade adds: triples with the number before. It counts under the name that the state had."""

    count = tr.ValueState(int, default=0)
    before = tr.ValueState(int, default=-1)

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        known, self.before.value = self.before.value, value
        yield ctx.key, self.count.value, known


def environment(parallelism: int, **settings: Any) -> tr.Environment:
    return tr.Environment(parallelism=parallelism, checkpoint=tr.CheckpointConfig("memory", interval=0.004), **settings)


def flow(env: tr.Environment, book: str, fn: Any = Count, uid: str = "counts") -> None:
    numbers = env.from_source(tr.sources.Sequence(0, END, rate=12_000.0), uid="numbers")
    numbers.key_by(lambda n: n % KEYS).process(fn(), uid=uid).sink_to(Ledger(book), uid="ledger")


@pytest.fixture
def books() -> Iterator[None]:
    yield
    for name in [name for name in BOOKS if name.startswith("used ")]:
        del BOOKS[name]


@pytest.fixture
def stopped(books: None) -> tuple[WatchedFiles, Counter[Any]]:
    """The folder of a savepoint, alone, and what was visible when it was there."""
    book = BOOKS["used first"] = Book()
    env = environment(2)
    flow(env, "used first")
    world = prepared_simulation(env, name="first", seed=4, files=WatchedFiles([book]))
    assert world.run_until("v1[0] read")
    for _ in range(80):
        world.turn()
    received: list[StopEnded] = []
    world.coordinator.stop(received.append, Aim(savepoint="memory:backup"), world.now)
    world.coordinate(world.driver)
    while not world.coordinator.status.final:
        world.turn()
    assert received[0].savepoint is not None and 0 < len(book.records()) < END
    return alone(world.storage.savepoints["memory:backup"]), Counter(book.records())


def alone(there: MemoryFiles, url: str = "memory:moved") -> WatchedFiles:
    files = WatchedFiles([], url)
    files.contents = {name: bytes(data) for name, data in there.contents.items()}
    files.lineage[SAVEPOINT] = frozenset()
    return files


def gone_on(folder: WatchedFiles, parallelism: int = 2, name: str = "second", **how: Any) -> Counter[Any]:
    """What a job of another name makes visible that starts from there, with checkpoints in a folder of its own."""
    book = BOOKS[f"used {name}"] = Book()
    env = environment(parallelism, **how.pop("settings", {}))
    flow(env, f"used {name}", how.pop("fn", Count), how.pop("uid", "counts"))
    files = WatchedFiles([book], f"memory:{name}")
    world = prepared_simulation(
        env, name=name, seed=5, run_id=name, files=files, origin=(folder, SAVEPOINT), **{"small": 0, **how}
    )
    world.run()
    assert world.coordinator.status.name == "FINISHED", world.coordinator.cause
    assert book.wrong == [] and files.wrong == []
    return Counter(book.records())


def test_to_recover_when_the_folder_of_the_job_is_lost(stopped: Any) -> None:
    folder, before = stopped
    assert before + gone_on(folder) == WANTED


@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_to_rescale(stopped: Any, parallelism: int) -> None:
    folder, before = stopped
    assert before + gone_on(folder, parallelism) == WANTED


def test_to_change_the_graph_of_the_job(stopped: Any) -> None:
    """A dry run lists what is new, and what has no place any more; that must be given up by name."""
    folder, before = stopped
    stored = StoredCheckpoint(Store("moved", "first", folder=folder), SAVEPOINT)
    env = environment(2)
    flow(env, "used first", uid="counted anew")
    check = restore_check(stored, env._graph.nodes, stored.manifest.max_parallelism)
    assert not check.fits and "counts" in str(check)
    with pytest.raises(tr.IncompatibleState, match="counts"):
        gone_on(folder, uid="counted anew")
    found = gone_on(folder, uid="counted anew", allow_dropped_state=("counts",))
    assert found.total() == END - before.total() and all(n <= END // KEYS for _, n in found)
    assert {(key, 1) for key in range(KEYS)} <= set(found), "the source goes on, and the new operator begins"


def test_to_upgrade_an_operator_whose_state_goes_on(stopped: Any) -> None:
    """Another class, under the same uid: the state that it still has goes on, and what it adds begins with its default."""
    folder, before = stopped
    found = gone_on(folder, fn=Last)
    assert before + Counter((key, n) for key, n, _ in found.elements()) == WANTED
    assert sum(1 for _, _, known in found.elements() if known == -1) == KEYS


def test_to_switch_the_state_backend(stopped: Any, tmp_path: Path) -> None:
    folder, before = stopped
    assert before + gone_on(folder, disk=str(tmp_path), settings={"state_backend": "disk"}) == WANTED


def test_to_fork_one_job_into_two(stopped: Any) -> None:
    """Neither knows of the other, and each has the rest."""
    folder, before = stopped
    files = dict(folder.contents)
    assert before + gone_on(folder, name="blue") == WANTED
    assert before + gone_on(folder, 3, name="green") == WANTED
    assert folder.contents == files, "nobody writes into a savepoint"


def test_to_move_to_another_folder_or_filesystem(stopped: Any, tmp_path: Path) -> None:
    """File by file, as any tool copies them: from a store of objects to a disk, there elsewhere, and back."""
    folder, before = stopped
    disk = LocalFolder(str(tmp_path / "here"))
    for name, data in folder.contents.items():
        writer = disk.writer(name)
        writer.append(bytes(data))
        writer.close()
    (tmp_path / "here").rename(tmp_path / "there")
    stored = StoredCheckpoint.open(str(tmp_path / "there"))
    counts = {key: n for one in stored.entries("counts", {"count"}, (0, 128)) for key, n in one.entries.items()}
    assert counts == {key: max(n for one, n in before if one == key) for key in range(KEYS)}, "and to export"
    back = MemoryFiles(url="memory:back")
    back.contents = {entry.name: stored.store.folder.read(entry.name) for entry in stored.store.folder.walk()}
    assert before + gone_on(alone(back, "memory:back")) == WANTED
