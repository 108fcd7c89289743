"""A checkpoint of a loop whose files are of version 1: with what was on its way in the entry of the loop's head. The bytes
in `feedback_in_version_1.json` were written by the last tailrace that wrote them."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from search.stories import Story
from search.watchers.checker import WatchedFiles
from tailrace.cli.inspect import inspect
from tailrace.elements.frames import ChannelName
from tailrace.state.format import BlockRef, ChannelLog, Index, LogPiece, OperatorPart, checksum, read_index
from tailrace.state.parts import LogOf
from tailrace.storage.reading import load_index, read_state, verify
from tailrace.testing.memorystore import MemoryStore

CONTENT: dict[str, bytes] = {
    name: base64.b64decode(data)
    for name, data in json.loads((Path(__file__).parent / "feedback_in_version_1.json").read_text()).items()
}
MANIFEST = "1/1.manifest"


class Visits(tr.KeyedProcessFunction):
    """How often each key has come by."""

    n = tr.ValueState(int, default=0)

    def process(self, value: tuple[int, int], ctx: tr.Context) -> Iterator[Any]:
        self.n.value += 1
        yield value[0], value[1] - 1, self.n.value


def program(env: tr.Environment) -> tr.DataStream:
    """Each number goes around 25 times, or one or two more, and is emitted with their number."""

    def body(stream: tr.DataStream) -> Any:
        visited = stream.key_by(lambda r: r[0]).process(Visits(), uid="visits", name="visits")
        left = visited.filter(lambda r: r[1] == 0).map(lambda r: (r[0], r[2]))
        return visited.filter(lambda r: r[1] > 0).map(lambda r: r[:2]), left

    numbers = env.from_collection([(k, 25 + k % 3) for k in range(24)], uid="numbers")
    return numbers.iterate(body, uid="loop", name="loop")


def files() -> WatchedFiles:
    made = WatchedFiles([])
    made.url = "memory:written-by-version-1"
    made.contents = dict(CONTENT)
    return made


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_job_goes_on_from_it(parallelism: int) -> None:
    """Every number had been read by then and was on its way: none of them comes twice, or is lost."""
    story = Story.begin(f"version 1 at {parallelism}")
    world = story.simulation(program, parallelism=parallelism, origin=(files(), MANIFEST))
    story.finished(world)
    assert world.covered["records of feedback restored"] == 24
    story.is_right(Counter((k, 25 + k % 3) for k in range(24)))


def test_what_was_on_its_way_is_a_log_as_in_any_other(tmp_path: Path) -> None:
    store = MemoryStore("story", files())
    manifest = store.manifest(MANIFEST)
    verify(store, manifest)
    logs = [log for file in manifest.files for log in load_index(store, file.name).logs]
    assert [(log.channel.target, log.channel.port, log.channel.target_subtask) for log in logs] == [
        ("loop", 1, 0),
        ("loop", 1, 1),
    ]
    parts = [part for part in read_state(store, manifest, {"loop": (0, 128)}) if isinstance(part, LogOf)]
    assert [part.parallelism for part in parts] == [2] * 6
    assert sum(part.count for part in parts) == 24


def test_inspect_tells_what_was_on_its_way(tmp_path: Path) -> None:
    for name, data in CONTENT.items():
        path = tmp_path / "story" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    whole = inspect(str(tmp_path / "story" / MANIFEST), every_byte=True)
    assert "on its way around the loop: 24 records, 624 B" in whole
    one = inspect(str(tmp_path / "story" / "1/chk-1/w1-1.state"))
    assert "on its way around the loop: 10 records, 224 B" in one
    assert "[1] -> loop:1[1]: 10 records, 224 B, 2 pieces" in one


def test_the_round_that_feedback_waits_for_stands_where_the_key_group_was() -> None:
    part = OperatorPart("loop", "loop", 1, 2, feedback=[BlockRef(0, 4, 8, 3, 77, 2)])
    data = msgspec.msgpack.encode(Index("job", 1, 1, 1, 8, operators=[part]))
    index = read_index(data, checksum(data), "it")
    assert index.logs == [
        ChannelLog(ChannelName("", None, "loop", 1, 0, 1, 1), 2, [LogPiece(8, 3, 77, 2, file=-1, start=0, round=4)])
    ]
    assert index.operators[0].feedback == []
