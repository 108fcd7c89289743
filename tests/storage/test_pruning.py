"""What dead runs have left goes; what a manifest needs that stays is there for whoever reads it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import CheckpointCorrupt, CheckpointsRemoved, ConfigError, Fenced, TailraceError
from tailrace.state.end_mark import Ending
from tailrace.state.manifest import Prepared, encode_manifest
from tailrace.state.paths import is_input
from tailrace.storage.checkpoint_lookup import newest_start
from tailrace.storage.manifest_slots import is_seal
from tailrace.storage.pruning import check_settled
from tailrace.storage.reading import verify
from tailrace.storage.store import Store
from tailrace.testing.memorystore import MemoryStore

from .conftest import Maker, manifest_of


@dataclass
class Made:
    """A run that a test has made."""

    run_id: str
    store: Store
    incarnation: int
    manifests: list[str] = field(default_factory=list)
    ended: bool = False


def made(chance: random.Random, files: Any, number: int, known: list[str]) -> Made:
    """A run at random: barren, killed, or ended; its checkpoints refer to files of its own and, now and then, of any run
    before. Some of its manifests it has deleted itself."""
    store = MemoryStore("job", files)
    run = Made(f"run{number}", store, store.claim(f"run{number}", takeover=True))
    if chance.random() < 0.3:
        store.writer(f"{run.incarnation}/inputs/in-0/part.arrow").close()
    if chance.random() < 0.3:
        return run
    maker, chain = Maker(store, run.incarnation), [chance.choice(known)] if known and chance.random() < 0.4 else []
    for checkpoint in range(1, chance.randint(2, 5)):
        file = maker.file(checkpoint, 0, [("sum", 0, 3, b"x" * checkpoint)], {"sum": {3: [*chain, "."]}})
        older = [*chain]
        chain = [*chain, file.name] if chance.random() < 0.7 else [file.name]
        known.append(file.name)
        run.manifests.append(maker.commit(checkpoint, [file], older=older, run_id=run.run_id))
    if chance.random() < 0.3:
        run.store.delete([run.manifests.pop(0)])
    if run.manifests and chance.random() < 0.3:
        run.ended = True
        store.mark_ended(run.incarnation, Ending("job", run.run_id, "FINISHED", 5, 9))
        store.release(run.incarnation)
    return run


def found(files: Any) -> tuple[str | None, str]:
    try:
        return newest_start(MemoryStore("job", files), or_new=True), ""
    except TailraceError as error:
        return None, type(error).__name__


@pytest.mark.parametrize("seed", range(150))
def test_whatever_runs_have_left_every_checkpoint_that_stays_can_be_read(seed: int) -> None:
    chance = random.Random(seed)
    files, known = MemoryStore("job").memory, list[str]()
    runs = [made(chance, files, number, known) for number in range(chance.randint(1, 7))]
    store, keep = MemoryStore("job", files), chance.randint(1, 4)
    readable = {name for name in files.contents if name.endswith(".manifest")} & {n for r in runs for n in r.manifests}
    readable = {name for name in readable if can_be_read(store, name)}
    counting = [run for run in runs if run.manifests or run.ended]
    spare = chance.sample([run.run_id for run in runs], chance.choice([0, 0, 1]))
    staying = [run for run in runs if run in counting[-keep:] or run is runs[-1] or run.run_id in spare]
    before, requested = found(files), set(files.contents)

    gone = store.prune(keep, spare)

    assert {run.run_id for run in gone.runs} == {run.run_id for run in runs if run not in staying}
    assert found(files) == before, "the next start goes on from where it would have"
    for name in [name for run in staying for name in run.manifests]:
        assert name in files.contents and (can_be_read(store, name) or name not in readable)
    needed = {each for run in staying for name in run.manifests for each in needs(store, name)}
    for run in [run for run in runs if run not in staying]:
        left = {name for name in files.contents if name.startswith(f"{run.incarnation}/")}
        inputs = {name for name in requested if name.startswith(f"{run.incarnation}/") and is_input(name)}
        if run in counting and inputs:
            assert inputs <= left, "a run of another job may have gone on from its checkpoint, and read them"
            left -= inputs | {
                name for name in left if name.endswith(("/claim", "/ready")) or is_seal(store.folder, name)
            }
        assert left <= needed
        with pytest.raises((Fenced, CheckpointsRemoved)):  # its driver sleeps, and wakes up
            run.store.commit(run.incarnation, 8, 9, encode_manifest(manifest_of(9, run.incarnation, run_id=run.run_id)))
    assert store.prune(keep, spare).names == [], "a second time there is nothing left"
    later = MemoryStore("job", files)
    assert later.claim("next", takeover=True) == runs[-1].incarnation + 1
    kept_inputs = {name for name in files.contents if is_input(name)}
    later.sweep(runs[-1].incarnation + 1)
    later.prune(keep, spare)
    barren = {run.incarnation for run in runs if run not in counting}
    gone_too = {name for name in kept_inputs if name not in files.contents}
    assert {int(name.partition("/")[0]) for name in gone_too} <= barren


def needs(store: Store, name: str) -> list[str]:
    manifest = store.manifest(name)
    return [*(file.name for file in manifest.files), *manifest.older]


def can_be_read(store: Store, name: str) -> bool:
    """Whether a start from it could restore all of its state."""
    try:
        verify(store, store.manifest(name))
    except (CheckpointCorrupt, FileNotFoundError):
        return False
    return True


def test_in_a_folder_of_any_kind(url: str) -> None:
    first, second = Store(url, "job"), Store(url, "job")
    first.commit(first.claim("first"), 0, 1, encode_manifest(manifest_of(1, 1, run_id="first")))
    second.commit(second.claim("second", takeover=True), 0, 1, encode_manifest(manifest_of(1, 2, run_id="second")))
    assert [run.run_id for run in second.prune(1).runs] == ["first"]
    assert second.incarnations() == [2] and newest_start(Store(url, "job")) == "2/1.manifest"


def test_where_a_manifest_that_stays_cannot_be_read_nothing_goes(tmp_path: Path) -> None:
    store = Store(str(tmp_path), "job")
    for run_id in ("first", "second"):
        incarnation = store.claim(run_id, takeover=True)
        store.commit(incarnation, 0, 1, encode_manifest(manifest_of(1, incarnation, run_id=run_id)))
        store = Store(str(tmp_path), "job")
    (tmp_path / "job/2/1.manifest").write_bytes(b"broken")
    with pytest.raises(CheckpointCorrupt):
        store.prune(1)
    assert (tmp_path / "job/1/1.manifest").exists()
    (tmp_path / "job/2/1.manifest").write_bytes((tmp_path / "job/1/1.manifest").read_bytes())
    (tmp_path / "job/1/1.manifest").write_bytes(b"broken")
    store.prune(1)
    assert not (tmp_path / "job/1").exists(), "one of those that go may be broken"


def test_a_run_that_may_go_on_from_any_of_them_is_waited_for(tmp_path: Path) -> None:
    """The run has claimed, and has no checkpoint yet: it is unknown from which one it has started."""
    first, second = Store(str(tmp_path), "job"), Store(str(tmp_path), "job")
    first.commit(first.claim("first"), 0, 1, encode_manifest(manifest_of(1, 1, run_id="first")))
    check_settled(first.folder)
    second.claim("second", takeover=True)
    with pytest.raises(
        ConfigError, match=r"run second of job 'job' has begun, in process \d+ of .* and has no checkpoint"
    ):
        check_settled(first.folder)
    second.release(2)
    check_settled(first.folder)


def test_a_start_that_keeps_few_runs_counts_the_output_of_dead_ones_as_abandoned(manifest: Callable[..., Any]) -> None:
    """The output of a dead run is named by checkpoints that go, so no start will publish it."""
    files = MemoryStore("job").memory
    for run_id in ("first", "second"):
        store = MemoryStore("job", files)
        incarnation = store.claim(run_id, takeover=True)
        made_ = manifest(1, incarnation, run_id=run_id, prepared=[Prepared("sink", b"hidden")])
        store.commit(incarnation, 0, 1, encode_manifest(made_))
    store = MemoryStore("job", files)
    store.claim("third", takeover=True)
    assert store.abandoned_runs() == []
    assert store.dead(1) == ["first"] and store.abandoned_runs(store.dead(1)) == ["first"]
