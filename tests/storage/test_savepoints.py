"""Savepoints as files: a folder of its own with everything in it, made whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from tailrace.errors import CheckpointCorrupt, CheckpointError, CheckpointNotFound, ConfigError, InternalError
from tailrace.state.manifest import (
    InputFile,
    Manifest,
    Prepared,
    StateFile,
    decode_manifest,
    encode_manifest,
    encode_savepoint,
    savepoint_of,
)
from tailrace.state.paths import SAVEPOINT, SAVEPOINT_BEGUN, state_file
from tailrace.storage.checkpoint_lookup import resolve
from tailrace.storage.filesystem import LocalFolder
from tailrace.storage.opening import open_folder
from tailrace.storage.origins import origin_at
from tailrace.storage.savepoints import (
    CHUNK,
    begin,
    check_place,
    copy_inputs,
    copy_savepoint,
    default_place,
    remove,
)
from tailrace.testing.memorystore import MemoryFiles

FILES = [StateFile(slot, state_file(3, 7, slot, 1), size) for slot, size in enumerate((10, CHUNK + 5))]
CHECKPOINT = Manifest(
    "routes",
    "run",
    3,
    7,
    1_700_000_000_000_000,
    128,
    2,
    FILES,
    prepared=[Prepared("sink", b"visible by now")],
    root="x",
)
WANTED = savepoint_of(CHECKPOINT)


def job_folder(path: Path) -> LocalFolder:
    """The folder of a job with one checkpoint."""
    folder = LocalFolder(str(path))
    for file in FILES:
        writer = folder.writer(file.name)
        writer.append(bytes(file.size))
        writer.close()
    folder.create("3/7.manifest", encode_manifest(CHECKPOINT))
    return folder


def names(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file())


def test_a_savepoint_is_found_by_its_folder_after_it_was_moved_and_the_job_s_folder_removed(tmp_path: Path) -> None:
    source = job_folder(tmp_path / "checkpoints" / "routes")
    place = tmp_path / "backups" / "monday"
    assert copy_savepoint(source, LocalFolder(str(place)), WANTED) == sum(file.size for file in FILES)
    shutil.rmtree(tmp_path / "checkpoints")
    moved = tmp_path / "elsewhere"
    shutil.move(place, moved)
    for expected in (moved, moved / SAVEPOINT):
        store, name = resolve(str(expected))
        assert (store.url, name, store.manifest(name)) == (str(moved), SAVEPOINT, WANTED)
    assert names(moved) == [*(file.name for file in FILES), SAVEPOINT]
    assert all((moved / file.name).stat().st_size == file.size for file in FILES)


def test_a_savepoint_has_nothing_to_publish_and_is_marked_as_it_is(tmp_path: Path) -> None:
    """What its checkpoint had prepared was visible before it was made."""
    copy_savepoint(job_folder(tmp_path / "routes"), LocalFolder(str(tmp_path / "it")), WANTED)
    origin = origin_at(*resolve(str(tmp_path / "it")))
    assert origin.manifest.prepared == [] and origin.marked() and not origin.later and not origin.earlier
    assert origin.own_path(None) == "" and not origin.is_needed


def test_a_copy_into_another_kind_of_place_has_the_same_bytes(tmp_path: Path) -> None:
    """There a file cannot have two names."""
    target = MemoryFiles(url="memory:backup")
    copy_savepoint(job_folder(tmp_path / "routes"), target, WANTED)
    assert {name: len(data) for name, data in target.contents.items() if name != SAVEPOINT} == {
        file.name: file.size for file in FILES
    }
    assert decode_manifest(bytes(target.contents[SAVEPOINT]), "it") == WANTED


def test_a_copy_stays_when_the_original_is_deleted_and_does_not_follow_links_to_it(tmp_path: Path) -> None:
    source = job_folder(tmp_path / "routes")
    copy_savepoint(source, LocalFolder(str(tmp_path / "it")), WANTED)
    source.delete([file.name for file in FILES])
    assert not any((tmp_path / "it" / file.name).is_symlink() for file in FILES)
    assert (tmp_path / "it" / FILES[0].name).read_bytes() == bytes(10)


def test_a_place_that_is_taken_is_refused_and_left_alone(tmp_path: Path) -> None:
    source = job_folder(tmp_path / "routes")
    there = LocalFolder(str(tmp_path / "it"))
    copy_savepoint(source, there, WANTED)
    before = names(tmp_path / "it")
    with pytest.raises(ConfigError, match="is a savepoint already, and is not overwritten; give this one another path"):
        copy_savepoint(source, there, WANTED)
    assert names(tmp_path / "it") == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty \(it holds notes.txt\)"):
        copy_savepoint(source, LocalFolder(str(tmp_path / "full")), WANTED)
    with pytest.raises(ConfigError, match="is no folder; a savepoint is one"):
        copy_savepoint(source, LocalFolder(str(tmp_path / "full" / "notes.txt")), WANTED)
    with pytest.raises(ConfigError, match="is in the folder of the job's checkpoints, which it cleans up"):
        copy_savepoint(source, LocalFolder(source.path_of("backup")), WANTED)
    assert names(tmp_path / "full") == ["notes.txt"]


@pytest.mark.parametrize("failing", ["a file is gone", "a file is short", "stopped", "somebody was faster"])
def test_a_copy_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    source, target = job_folder(tmp_path / "routes"), LocalFolder(str(tmp_path / "it"))
    requested: list[int] = []
    if failing == "a file is gone":
        source.delete([FILES[1].name])
    elif failing == "a file is short":
        os.truncate(source.path_of(FILES[1].name), 3)
    elif failing == "somebody was faster":

        def taken(name: str, data: bytes) -> None:
            raise FileExistsError(name)

        monkeypatch.setattr(target, "create", taken)
    with pytest.raises((OSError, CheckpointError, ConfigError)):
        copy_savepoint(
            source, target, WANTED, lambda: bool(requested.append(1)) or (failing == "stopped" and len(requested) > 2)
        )
    assert not (tmp_path / "it").exists()


INPUT = InputFile("rows", "/gone", "inputs/0/part-0.arrow", 4)


def input_at(path: Path) -> tuple[str, InputFile]:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"rows")
    return str(path), msgspec.structs.replace(INPUT, url=str(path))


def test_files_that_sources_have_left_to_read_are_in_it(tmp_path: Path) -> None:
    """With the folder of the job they go; what its state names is in the manifest."""
    source, place = job_folder(tmp_path / "routes"), tmp_path / "it"
    there = input_at(tmp_path / "routes" / "3" / "inputs" / "in-0" / "part-0.arrow")
    size = copy_savepoint(source, LocalFolder(str(place)), WANTED, inputs=[there])
    assert size == sum(file.size for file in FILES) + 4
    shutil.rmtree(tmp_path / "routes")
    assert (place / INPUT.name).read_bytes() == b"rows"
    assert resolve(str(place))[0].manifest(SAVEPOINT).inputs == [there[1]]
    again = MemoryFiles(url="memory:backup")
    copy_inputs([(str(place / INPUT.name), INPUT)], again)
    assert again.contents == {INPUT.name: b"rows"}


@pytest.mark.parametrize("size", [3, None], ids=["it has another size", "it is gone"])
def test_where_one_of_these_is_not_what_it_was_there_is_no_savepoint(tmp_path: Path, size: int | None) -> None:
    source, place = job_folder(tmp_path / "routes"), tmp_path / "it"
    url, file = input_at(tmp_path / "routes" / "3" / "inputs" / "in-0" / "part-0.arrow")
    if size is None:
        os.unlink(url)
    wanted = [(url, msgspec.structs.replace(file, size=size or 4))]
    with pytest.raises(OSError):
        copy_savepoint(source, LocalFolder(str(place)), WANTED, inputs=wanted)
    assert not place.exists()


def test_of_two_that_put_a_savepoint_into_one_place_one_is_refused(tmp_path: Path) -> None:
    """The files of both would be mixed. Where the first one was killed, its user has to remove what it left."""
    source, target = job_folder(tmp_path / "routes"), LocalFolder(str(tmp_path / "it"))
    begin(target)
    with pytest.raises(ConfigError, match="somebody writes a savepoint there, or was killed at it"):
        copy_savepoint(source, target, WANTED)
    with pytest.raises(CheckpointNotFound):
        resolve(target.url)
    remove(target, [], whole=True)
    copy_savepoint(source, target, WANTED)
    assert SAVEPOINT_BEGUN not in names(tmp_path / "it")


def test_an_empty_folder_that_was_there_before_stays_where_a_copy_fails(tmp_path: Path) -> None:
    source = job_folder(tmp_path / "routes")
    (tmp_path / "it").mkdir()
    source.delete([FILES[1].name])
    with pytest.raises(OSError):
        copy_savepoint(source, LocalFolder(str(tmp_path / "it")), WANTED)
    assert (tmp_path / "it").is_dir() and names(tmp_path / "it") == []


def test_a_manifest_is_no_savepoint_under_another_name_nor_the_other_way_round(tmp_path: Path) -> None:
    place = tmp_path / "it"
    copy_savepoint(job_folder(tmp_path / "routes"), LocalFolder(str(place)), WANTED)
    (place / "3" / "7.manifest").write_bytes((place / SAVEPOINT).read_bytes())
    with pytest.raises(CheckpointCorrupt, match="holds a savepoint: somebody has renamed or copied it"):
        resolve(str(place / "3" / "7.manifest"))
    (place / SAVEPOINT).write_bytes(encode_manifest(CHECKPOINT))
    with pytest.raises(CheckpointCorrupt, match="holds a checkpoint: somebody has renamed or copied it"):
        resolve(str(place))
    (place / SAVEPOINT).unlink()
    with pytest.raises(CheckpointNotFound):
        resolve(str(place / SAVEPOINT))


def test_a_savepoint_of_a_later_version_is_refused_with_its_version() -> None:
    data = encode_savepoint(WANTED).replace(b"tailrace-savepoint 1 ", b"tailrace-savepoint 2 ", 1)
    with pytest.raises(CheckpointCorrupt, match="it is a savepoint of version 2; this tailrace reads version 1"):
        decode_manifest(data, "it")


@pytest.mark.parametrize("change", [{"older": ["2/chk-1/w0-1.state"]}, {"prepared": CHECKPOINT.prepared}])
def test_what_would_refer_to_anything_outside_is_never_written(change: dict[str, object]) -> None:
    with pytest.raises(InternalError, match="refers to what is not in its folder"):
        encode_savepoint(msgspec.structs.replace(WANTED, **change))


def test_the_usual_place_is_beside_the_folders_of_jobs_and_no_job_s_name(tmp_path: Path) -> None:
    place = default_place("/data/checkpoints/routes", WANTED)
    assert place == "/data/checkpoints/savepoints/routes-7-20231114T221320"
    check_place(open_folder(str(tmp_path / "savepoints" / "routes-7")), str(tmp_path / "routes"))
