"""Results and DataFrames in places that are no local path: published by marks, read in windows, and never by halves."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors import hidden, travelling
from tailrace.connectors.filesinks import remove_unfinished
from tailrace.connectors.sinks import Collect
from tailrace.connectors.sources import ArrowFiles
from tailrace.connectors.travelling import Reading, Writing, folder_of
from tailrace.errors import ConfigError
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.outpost.hosted_folder import FolderHost
from tailrace.storage.filesystem import Folder
from tests import buckets


class Place(NamedTuple):
    url: str
    options: dict[str, Any] | None

    def folder(self) -> Folder:
        return folder_of(self.url, self.options)

    def sink(self, name: str) -> Collect:
        made = Collect()
        made.bind(f"{self.url}/{name}", self.options)
        return made


@pytest.fixture(params=["s3", "driver"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from places(request, tmp_path)


def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "s3":
        endpoint = request.getfixturevalue("s3_endpoint")
        yield Place(f"s3a://{buckets.new_bucket(endpoint)}/job", buckets.options(endpoint))
        return
    host = FolderHost(str(tmp_path / "served"), Binding("127.0.0.1"), 1 << 30)
    yield Place(f"{host.host.url}/job", None)
    host.close()


def context(subtask: int = 0, incarnation: int = 1, run_id: str = "run") -> Any:
    return SimpleNamespace(
        attempt=0, job="job", incarnation=incarnation, run_id=run_id, uid="sink", subtask=subtask, parallelism=2
    )


def written(sink: Collect, records: list[Any], **where: Any) -> bytes:
    writer = sink.writer(context(**where))
    writer.write(records)
    token = writer.prepare()
    writer.close()
    assert token is not None
    return token


def name_of(token: bytes) -> str:
    return hidden.plain_name(token).rpartition("/")[2]


@pytest.fixture
def sink(place: Place) -> Collect:
    return place.sink("out")


def files(place: Place) -> list[str]:
    return [entry.name.rpartition("/")[2] for entry in place.folder().entries("out")]


def test_a_result_is_what_was_published(sink: Collect) -> None:
    one, two = written(sink, [1, 2], subtask=1), written(sink, [3], subtask=0)
    assert sink.result() == []
    sink.publish([one])
    assert sink.result() == [1, 2]
    copy = pickle.loads(pickle.dumps(sink))  # another worker is the publisher after a restart
    copy.publish([one, two])
    copy.settled([one, two])
    assert sink.result() == [3, 1, 2] and len(sink.files()) == 2


def test_a_result_can_be_brought_to_this_machine_before_its_place_goes(
    sink: Collect, place: Place, tmp_path: Path
) -> None:
    sink.publish([written(sink, [1, 2], subtask=1), written(sink, [3], subtask=0)])
    written(sink, [4], incarnation=2)  # and not published
    sink.bring(str(tmp_path / "brought"))
    place.folder().delete(f"out/{one.rpartition('/')[2]}" for one in files(place))
    sink.note_end()
    assert sink.brought and sink.result() == [3, 1, 2]


def test_what_another_run_has_prepared_is_no_part_of_it(sink: Collect, place: Place) -> None:
    other = place.sink("out2")
    sink.publish([written(other, [1])])
    assert sink.result() == [] and other.result() == []


def test_a_file_that_is_gone_is_named_and_nothing_is_published(sink: Collect, place: Place) -> None:
    one, two = written(sink, [1]), written(sink, [2], subtask=1)
    place.folder().delete([f"out/{name_of(two)}"])
    with pytest.raises(FileNotFoundError, match=r"part-00001-.*not there any more"):
        sink.publish([one, two])
    assert sink.result() == []


@pytest.fixture(params=["s3", "driver", "this machine"])
def somewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """As `place`, or a local path."""
    if request.param == "this machine":
        yield Place(str(tmp_path / "job"), None)
    else:
        yield from places(request, tmp_path)


def removed(place: Place, ending: str = "") -> list[str]:
    """What somebody removes: the files below a place whose names end so."""
    names = [entry.name for entry in place.folder().walk() if entry.name.endswith(ending)]
    place.folder().delete(names)
    return names


def test_an_empty_result_is_reported_from_one_that_is_gone(somewhere: Place) -> None:
    """A cleaner of temporary files, or of old prefixes of a bucket, removed the folder: the result was empty, without
    an error."""
    sink = somewhere.sink("out")
    sink.begin()
    assert sink.result() == []
    written(sink, [1])
    assert sink.result() == []
    sink.publish([written(sink, [2], subtask=1)])
    assert sink.result() == [2]
    assert removed(somewhere)
    with pytest.raises(ConfigError, match=r"/out is not there any more, .*collect sink.* Run the job again.*work_dir"):
        sink.result()


def test_a_folder_that_was_gone_for_a_while_has_not_all_of_the_result(somewhere: Place) -> None:
    """The job went on, and made the folder anew: what it published from then on was taken for all of the result."""
    sink = somewhere.sink("out")
    sink.begin()
    sink.publish([written(sink, [1])])
    removed(somewhere)
    sink.publish([written(sink, [2], subtask=1)])
    sink.note_end()
    for _ in range(2):
        with pytest.raises(ConfigError, match="/out is not there any more"):
            sink.result()


def test_each_file_of_a_result_must_be_there_when_its_job_has_ended(somewhere: Place) -> None:
    sink = somewhere.sink("out")
    sink.begin()
    one, two = written(sink, [1]), written(sink, [2], subtask=1)
    sink.publish([one, two])
    sink.note_end()
    assert sink.result() == [1, 2]
    assert [name for name in removed(somewhere) if name.endswith(travelling.SEEN)]
    with pytest.raises(ConfigError, match=rf"{name_of(one)} is not there any more, and with it records"):
        sink.result()


def test_a_result_that_was_empty_when_its_job_ended_stays_empty(somewhere: Place) -> None:
    """Nothing of it can be lost."""
    sink = somewhere.sink("out")
    sink.begin()
    sink.note_end()
    removed(somewhere)
    assert sink.result() == []


def test_a_file_that_was_published_and_is_gone_is_named(sink: Collect, place: Place) -> None:
    """The mark of the file was there without it, and its records were missing in the result."""
    one, two = written(sink, [1]), written(sink, [2], subtask=1)
    sink.publish([one, two])
    removed(place, name_of(two))
    with pytest.raises(ConfigError, match=rf"out/{name_of(two)} is not there any more"):
        sink.result()


def test_a_file_that_comes_while_its_folder_is_listed_is_there(
    sink: Collect, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores list in pages: the file came behind the first one, and its mark before the second one."""
    token = written(sink, [1])
    sink.publish([token])
    folder = type(place.folder())
    listed = folder.entries
    monkeypatch.setattr(
        folder, "entries", lambda *of: [entry for entry in listed(*of) if not entry.name.endswith(name_of(token))]
    )
    assert sink.result() == [1]


def test_what_was_not_published_is_removed(sink: Collect, place: Place) -> None:
    published, prepared = written(sink, [1]), written(sink, [2], subtask=1)
    written(sink, [3], incarnation=2)
    begun = sink.writer(context(incarnation=3))
    begun.write([4])
    sink.publish([published])
    sink.recover(["run"], 2, "sink")
    assert name_of(published) in files(place) and name_of(prepared) not in files(place)
    begun.close()
    remove_unfinished(sink, "run", "sink")
    assert len(files(place)) == 2  # the file that was published, and its mark
    assert sink.result() == [1]


def test_a_file_is_read_in_windows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(travelling, "WINDOW_BYTES", 100)
    monkeypatch.setattr(travelling, "PIECE_BYTES", 64)
    folder, data = place.folder(), os.urandom(1000)
    file = Writing(folder.writer("file"))
    for at in range(0, 1000, 7):
        file.write(data[at : at + 7])
    assert file.tell() == 1000
    file.complete()
    reading = Reading(folder, "file")
    assert reading.read(10) == data[:10] and reading.read(150) == data[10:160]
    assert reading.seek(-30, io.SEEK_END) == 970 and reading.read() == data[970:] and reading.read(5) == b""
    reading.seek(20)
    assert io.BufferedReader(reading).read() == data[20:]


def test_rows_of_a_dataframe_are_read_on_from_any_position(place: Place) -> None:
    folder = place.folder()
    file = Writing(folder.writer("part.arrow"))
    batches = [pa.record_batch({"id": list(range(at, at + 100))}) for at in range(0, 1000, 100)]
    with pa.ipc.new_file(file, batches[0].schema) as arrow:
        for batch in batches:
            arrow.write_batch(batch)
    file.complete()
    source = ArrowFiles([folder.url_of("part.arrow")], ("id",), "rows")
    source.options = place.options
    for position in (None, 0, 1, 99, 100, 999, 1000):
        reader = source.reader(source.paths[0], position)
        found: list[Any] = []
        while (rows := reader.read(64, 0.0)) is not None:
            found += [row.id for row in rows]
        assert found == list(range(position or 0, 1000)) and reader.position == 1000
    with pytest.raises(ConfigError, match="is not there any more: the files of a DataFrame"):
        source.reader(folder.url_of("another.arrow"))


def test_a_folder_that_is_another_one_for_this_process_is_reported(tmp_path: Path) -> None:
    """On a cluster whose machines have no common folder each executor made one of this name, and the result was empty."""
    sink = tr.sinks.Collect()
    sink.bind(str(tmp_path / "out"), shared=True)
    with pytest.raises(ConfigError, match=r"out is no folder that driver and executors share: on .* it does not have"):
        sink.writer(context())
    travelling.leave_sign(str(tmp_path / "out"))
    sink.publish([written(sink, [1])])
    assert sink.result() == [1]
