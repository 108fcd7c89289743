"""Reading the state of a checkpoint: what, in which order, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec
import pytest

from tailrace.elements.frame_codec import ChannelName
from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, ConfigError
from tailrace.state.format import (
    FOOTER_SIZE,
    BlockRef,
    Index,
    LogKind,
    OperatorPart,
    Placed,
    checksum,
    header,
    read_index,
    tail,
)
from tailrace.state.manifest import Manifest, Prepared, decode_manifest, encode_manifest
from tailrace.state.parts import AnewOf, BlockOf, ChainsOf, LogOf, MetaOf, ShapeOf, TablesOf
from tailrace.storage.reading import load_index, read_placed, read_state, unreadable_for_good, verify
from tailrace.storage.store import Store
from tailrace.testing.memorystore import MemoryFiles, MemoryStore

ALL = (0, 8)


@pytest.fixture
def three(maker: Any) -> tuple[MemoryStore, Manifest]:
    """Three checkpoints of two workers; the last one refers to both others. Group 5 was written anew in the second."""
    store = MemoryStore("job")
    make = maker(store, store.claim("run"))
    one0 = make.file(1, 0, [("a", 0, 0, b"a0"), ("b", 0, 1, b"b1"), ("a", 1, 0, b"A0"), ("a", 0, 3, b"a3")],
                     {"a": {0: ["."], 3: ["."]}, "b": {1: ["."]}})  # fmt: skip
    one1 = make.file(1, 1, [("a", 0, 5, b"a5"), ("a", 0, 4, b"a4")], {"a": {4: ["."], 5: ["."]}})
    make.commit(1, [one0, one1])
    two0 = make.file(2, 0, [("a", 0, 0, b"a0+")], {"a": {0: [one0.name, "."], 3: [one0.name]}, "b": {1: [one0.name]}})
    two1 = make.file(2, 1, [("a", 0, 5, b"a5=")], {"a": {4: [one1.name], 5: ["."]}})
    make.commit(2, [two0, two1], older=[one0.name, one1.name])
    three0 = make.file(3, 0, [("a", 0, 3, b"a3+"), ("a", 0, 0, b"a0++")],
                       {"a": {0: [one0.name, two0.name, "."], 3: [one0.name, "."]}, "b": {}})  # fmt: skip
    three1 = make.file(3, 1, [("a", 0, 5, b"a5=+")], {"a": {4: [one1.name], 5: [two1.name, "."]}})
    make.commit(3, [three0, three1], older=[one0.name, one1.name, two0.name, two1.name])
    found = store.latest()
    assert found is not None and found[1].checkpoint == 3
    return store, found[1]


def blocks(store: Any, manifest: Manifest, expected: dict[str, tuple[int, int]]) -> dict[tuple[str, int], list[bytes]]:
    found: dict[tuple[str, int], list[bytes]] = {}
    for part in read_state(store, manifest, expected):
        if isinstance(part, BlockOf):
            found.setdefault((part.uid, part.group), []).append(bytes(part.data))
    return found


def behind(
    store: Any, manifest: Manifest, held: dict[str, dict[int, tuple[str, ...]]]
) -> tuple[dict[tuple[str, int], list[bytes]], list[tuple[str, int]], dict[str, dict[int, tuple[str, ...]]]]:
    """What comes for somebody who holds these files: (blocks, what is to be forgotten, the chains)."""
    found: dict[tuple[str, int], list[bytes]] = {}
    anew: list[tuple[str, int]] = []
    chains: dict[str, dict[int, tuple[str, ...]]] = {}
    for part in read_state(store, manifest, {"a": ALL, "b": ALL}, held=held):
        if isinstance(part, AnewOf):
            assert not found, "what is forgotten comes before what is added"
            anew.append((part.uid, part.group))
        elif isinstance(part, BlockOf):
            found.setdefault((part.uid, part.group), []).append(bytes(part.data))
        elif isinstance(part, ChainsOf):
            chains.setdefault(part.uid, {}).update(part.chains)
    return found, anew, chains


def test_who_holds_a_part_of_a_chain_gets_what_is_behind_it(three: tuple[MemoryStore, Manifest]) -> None:
    store, manifest = three
    first, second, third = (decode(store, number) for number in (1, 2, 3))
    assert third == manifest
    _, nothing, at_first = behind(store, first, {})
    assert nothing == []
    blocks, anew, at_second = behind(store, second, at_first)
    assert blocks == {("a", 0): [b"a0+"], ("a", 5): [b"a5="]}
    assert anew == [("a", 5)], "its chain begins anew"
    blocks, anew, at_third = behind(store, third, at_second)
    assert blocks == {("a", 0): [b"a0++"], ("a", 3): [b"a3+"], ("a", 5): [b"a5=+"]}
    assert anew == [("b", 1)], "nothing is left of it"
    assert behind(store, third, at_third) == ({}, [], at_third)


def test_who_has_left_out_a_checkpoint_gets_all_that_is_behind_the_one_before(
    three: tuple[MemoryStore, Manifest],
) -> None:
    store, manifest = three
    _, _, at_first = behind(store, decode(store, 1), {})
    blocks, anew, _ = behind(store, manifest, at_first)
    assert blocks == {("a", 0): [b"a0+", b"a0++"], ("a", 3): [b"a3+"], ("a", 5): [b"a5=", b"a5=+"]}
    assert anew == [("a", 5), ("b", 1)]


def test_what_nobody_knows_is_read_as_a_whole(three: tuple[MemoryStore, Manifest]) -> None:
    store, manifest = three
    blocks, anew, _ = behind(store, manifest, {"a": {0: ("",), 6: ("",)}})
    assert blocks["a", 0] == [b"a0", b"A0", b"a0+", b"a0++"] and blocks["a", 4] == [b"a4"]
    assert anew == [("a", 0), ("a", 6)]


def decode(store: MemoryStore, number: int) -> Manifest:
    contents = store.memory.contents
    name = next(name for name in contents if name.endswith(f"/{number}.manifest"))
    return decode_manifest(bytes(contents[name]), name)


def test_chains_are_followed_oldest_first(three: tuple[MemoryStore, Manifest]) -> None:
    assert blocks(*three, {"a": ALL, "b": ALL}) == {
        ("a", 0): [b"a0", b"A0", b"a0+", b"a0++"],
        ("a", 3): [b"a3", b"a3+"],
        ("a", 4): [b"a4"],
        ("a", 5): [b"a5=", b"a5=+"],
    }


def test_only_what_is_wanted_is_read(three: tuple[MemoryStore, Manifest]) -> None:
    assert blocks(*three, {"a": (3, 5)}) == {("a", 3): [b"a3", b"a3+"], ("a", 4): [b"a4"]}
    assert blocks(*three, {"b": ALL}) == {}
    assert list(read_state(*three, {})) == []


def test_metas_and_tables_of_all_old_subtasks_come_before_blocks(three: tuple[MemoryStore, Manifest]) -> None:
    parts = list(read_state(*three, {"a": (0, 1), "b": ALL}))
    kinds = [type(part) for part in parts]
    assert kinds.index(BlockOf) == len(kinds) - kinds.count(BlockOf)
    metas = [part for part in parts if isinstance(part, MetaOf)]
    assert [(m.uid, m.subtask, m.parallelism, m.data) for m in metas] == [
        ("a", 0, 2, b"metaa"),
        ("b", 0, 2, b"metab"),
        ("a", 1, 2, b"metaa"),
    ]
    tables = [part for part in parts if isinstance(part, TablesOf)]
    assert [table.name for table in tables[0].tables] == ["sum", "seen"]
    chains = [part for part in parts if isinstance(part, ChainsOf)]
    assert chains[0].chains == {0: tuple(f"1/chk-{n}/w0-0.state" for n in (1, 2, 3))}


def test_a_block_tells_its_table(three: tuple[MemoryStore, Manifest]) -> None:
    found = [p for p in read_state(*three, {"a": (0, 1)}) if isinstance(p, BlockOf)]
    assert [(p.table.name, p.count) for p in found] == [("sum", 1), ("seen", 1), ("sum", 1), ("sum", 1)]


def test_an_old_manifest_is_read_as_it_was(three: tuple[MemoryStore, Manifest]) -> None:
    store, _ = three
    assert blocks(store, store.manifest("1/2.manifest"), {"a": ALL, "b": ALL}) == {
        ("a", 0): [b"a0", b"A0", b"a0+"],
        ("b", 1): [b"b1"],
        ("a", 3): [b"a3"],
        ("a", 4): [b"a4"],
        ("a", 5): [b"a5="],
    }


class Counting:
    """Counts the ranges of state, and how large the largest was."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ranges: list[tuple[int, int]] = []

    def size(self, name: str) -> int:
        return self.store.size(name)

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        self.ranges.append((offset, length))
        return self.store.read_range(name, offset, length)


def test_neighbours_are_read_at_once_and_memory_stays_bounded(maker: Any, url: str) -> None:
    store = Store(url, "job")
    make = maker(store, store.claim("run"))
    size, count = 1 << 20, 12
    file = make.file(
        1, 0, [("a", 0, g % 8, bytes([g]) * size) for g in range(count)], {"a": {g: ["."] for g in range(8)}}
    )
    made = store.manifest(make.commit(1, [file]))
    counting = Counting(store)
    seen = [part.data[0] for part in read_state(counting, made, {"a": ALL}) if isinstance(part, BlockOf)]
    assert seen == list(range(count))
    large = [length for _, length in counting.ranges if length >= size]
    assert len(large) == 3 and max(large) <= 5 << 20


def test_of_a_few_groups_only_their_bytes_are_read(maker: Any) -> None:
    store = MemoryStore("job")
    make = maker(store, store.claim("run"))
    file = make.file(1, 0, [("a", 0, g, bytes(100_000)) for g in range(8)], {"a": {g: ["."] for g in range(8)}})
    counting = Counting(store)
    list(read_state(counting, store.manifest(make.commit(1, [file])), {"a": (2, 4)}))
    assert sum(length for _, length in counting.ranges if length >= 100_000) == 200_000


# What was on its way.

AB = ChannelName("a", None, "b", 0, 0, 0, 1)
AC = ChannelName("a", "late", "c", 1, 2, 0, 1)


@pytest.fixture
def under_way(maker: Any) -> tuple[MemoryStore, Manifest]:
    """Two checkpoints of a worker; the second has of the first what nobody had read since, and a part of another frame."""
    store = MemoryStore("job")
    make = maker(store, store.claim("run"))
    one = make.file(1, 0, [], {"b": {}, "c": {}}, {AB: [b"first", b"second", b"third"], AC: [b"beside"]})
    make.commit(1, [one])
    pieces = load_index(store, one.name).logs[0].pieces
    part = msgspec.structs.replace(pieces[1], start=3, groups=(2, 4), round=5)
    two = make.file(2, 0, [], {"b": {}, "c": {}}, {AB: [(one.name, part), (one.name, pieces[2]), b"fourth"]})
    make.commit(2, [two], older=[one.name])
    found = store.latest()
    assert found is not None
    return store, found[1]


def logged(store: Any, manifest: Manifest, *uids: str) -> list[LogOf]:
    return [part for part in read_state(store, manifest, dict.fromkeys(uids, ALL)) if isinstance(part, LogOf)]


def test_what_was_on_its_way_is_reported_by_channel_whoever_wrote_the_plan(
    under_way: tuple[MemoryStore, Manifest],
) -> None:
    store, _ = under_way
    first = store.manifest("1/1.manifest")
    assert [(part.channel, bytes(part.data)) for part in logged(store, first, "b", "c")] == [
        (AB, b"first"),
        (AB, b"second"),
        (AB, b"third"),
        (AC, b"beside"),
    ]
    assert [part.channel for part in logged(store, first, "c")] == [AC]
    assert logged(store, first, "a") == [], "it is for whom it was on its way to"
    assert str(AC) == "a/late[0] -> c:1[1]"


def test_who_takes_one_workers_place_gets_what_the_channels_of_that_one_had(maker: Any) -> None:
    """Of what barriers have overtaken: the readers' halves that are its own, and its own half of what it had sent, whoever
    was to read that. Behind a log comes what its records were on the channel."""
    store = MemoryStore("job")
    make = maker(store, store.claim("run"))
    to_me, from_me = AB._replace(source_subtask=0, target_subtask=1), AB._replace(source_subtask=1, target_subtask=0)
    logs = {to_me: [b"received"], from_me: [b"sent"]}
    one = make.file(1, 0, [], {"b": {}}, logs)
    make.commit(1, [one])
    manifest = store.manifest("1/1.manifest")
    index = load_index(store, one.name)
    kinds = {to_me: LogKind.RECEIVED, from_me: LogKind.SENT}
    for log in index.logs:
        log.kind, log.shape = kinds[log.channel], [1]
    for worker, expected in ((1, {to_me, from_me}), (0, set())):
        with mock.patch("tailrace.storage.reading.load_index", lambda *_: index):
            parts = list(read_state(store, manifest, {}, worker=worker))
        assert {part.channel for part in parts if isinstance(part, LogOf)} == expected
        assert {(part.channel, *part.shape) for part in parts if isinstance(part, ShapeOf)} == {
            (one, 1) for one in expected
        }


def test_a_log_goes_on_in_files_of_earlier_checkpoints(under_way: tuple[MemoryStore, Manifest]) -> None:
    """Bytes that a checkpoint has written are not written again by the next one."""
    store, manifest = under_way
    part, whole, fresh = logged(store, manifest, "b")
    assert [bytes(one.data) for one in (part, whole, fresh)] == [b"second", b"third", b"fourth"]
    assert (part.start, part.groups, part.round) == (3, (2, 4), 5)
    assert (whole.start, whole.groups, whole.round) == (0, None, 0)
    assert b"second" not in store.memory.contents[manifest.files[0].name]
    verify(store, manifest)


def test_a_log_whose_bytes_are_damaged_or_gone_is_refused(under_way: tuple[MemoryStore, Manifest]) -> None:
    store, manifest = under_way
    older, own = "1/chk-1/w0-0.state", bytes(store.memory.contents["1/chk-2/w0-0.state"])
    damage(store.memory, "1/chk-2/w0-0.state", lambda d: d.__setitem__(8, d[8] ^ 1))
    with pytest.raises(CheckpointCorrupt, match=r"1/chk-2/w0-0\.state is damaged"):
        logged(store, manifest, "b")
    store.memory.contents["1/chk-2/w0-0.state"] = own
    damage(store.memory, older, lambda d: d.__setitem__(14, d[14] ^ 1))
    with pytest.raises(CheckpointCorrupt, match=f"{older} is damaged"):
        logged(store, manifest, "b")
    store.memory.delete([older])
    with pytest.raises(CheckpointCorrupt, match=f"{older} is missing"):
        verify(store, manifest)


def test_a_log_in_a_file_that_is_not_named_is_refused(maker: Any) -> None:
    store = MemoryStore("job")
    make = maker(store, store.claim("run"))
    file = make.file(1, 0, [], {"b": {}}, {AB: [b"first"]})
    index = load_index(store, file.name)
    index.logs[0].pieces[0] = msgspec.structs.replace(index.logs[0].pieces[0], file=0)
    data = header() + b"first"
    store.memory.contents[file.name] = data + tail(index, len(data))
    with pytest.raises(CheckpointCorrupt, match="refers to file 0 of 0"):
        logged(store, store.manifest(make.commit(1, [file])), "b")


def test_feedback_in_the_entry_of_its_operator_is_refused() -> None:
    """The version of the file does not show it; without an error the records would be lost."""
    part = OperatorPart("loop", "loop", 1, 2, feedback=[BlockRef(0, 4, 8, 3, 77, 2)])
    data = msgspec.msgpack.encode(Index("job", 1, 1, 1, 8, operators=[part]))
    with pytest.raises(
        CheckpointCorrupt, match=r"it: a build of tailrace before 0\.1\.0 .*: start without that checkpoint"
    ):
        read_index(data, checksum(data), "it")


# What is refused.


def damage(files: MemoryFiles, name: str, change: Callable[[bytearray], object]) -> None:
    data = bytearray(files.contents[name])
    change(data)
    files.contents[name] = bytes(data)


LAST = "1/chk-3/w0-0.state"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (LAST, lambda d: d.__setitem__(0, 0), "not a state file"),
        (LAST, lambda d: d.__setitem__(4, 4), "version 4; this tailrace reads version 3"),
        (LAST, lambda d: d.__setitem__(4, 2), "version 2; this tailrace reads version 3"),
        (LAST, lambda d: d.pop(), "cut short or damaged"),
        (LAST, lambda d: d.__delitem__(slice(3, None)), "not a state file"),
        (LAST, lambda d: d.clear(), "not a state file"),
        (LAST, lambda d: d.__setitem__(-FOOTER_SIZE - 1, d[-FOOTER_SIZE - 1] ^ 1), "checksum of its index"),
        (LAST, lambda d: d.__setitem__(8, d[8] ^ 1), "do not match their checksum"),
        ("1/chk-1/w0-0.state", lambda d: d.__setitem__(8, d[8] ^ 1), "do not match their checksum"),
        ("1/chk-1/w1-0.state", lambda d: d.__delitem__(slice(-30, None)), "cut short or damaged"),
    ],
)
def test_what_is_damaged_is_named(
    three: tuple[MemoryStore, Manifest], name: str, change: Callable[[bytearray], object], message: str
) -> None:
    store, manifest = three
    damage(store.memory, name, change)
    with pytest.raises(CheckpointCorrupt, match=message) as caught:
        list(read_state(store, manifest, {"a": ALL}))
    assert name in str(caught.value)
    with pytest.raises(CheckpointCorrupt):
        verify(store, manifest)


@pytest.mark.parametrize("name", [LAST, "1/chk-2/w0-0.state", "1/chk-1/w0-0.state"])
def test_a_file_that_is_missing_is_named(three: tuple[MemoryStore, Manifest], name: str) -> None:
    store, manifest = three
    store.delete([name])
    with pytest.raises(CheckpointCorrupt, match=f"{name} is missing"):
        list(read_state(store, manifest, {"a": ALL}))


def test_a_file_of_another_checkpoint_is_refused(three: tuple[MemoryStore, Manifest]) -> None:
    store, manifest = three
    store.memory.contents[LAST] = store.memory.contents["1/chk-2/w0-0.state"]
    with pytest.raises(CheckpointCorrupt, match="was written by worker 0 for checkpoint 2"):
        list(read_state(store, manifest, {"a": ALL}))


@pytest.mark.parametrize("copied", ["1/chk-1/w0-0.state", "1/chk-2/w1-0.state"])
def test_an_earlier_file_in_whose_place_another_one_lies_is_refused(
    three: tuple[MemoryStore, Manifest], copied: str
) -> None:
    """A user puts files back from a backup, and one of them into the place of another. It has the same operators, and its
    checksums are right: what it holds was taken for the part of a chain that is gone."""
    store, manifest = three
    contents = store.memory.contents
    contents["1/chk-2/w0-0.state"] = contents[copied]
    with pytest.raises(
        CheckpointCorrupt, match=r"1/chk-2/w0-0.state was written by worker . for checkpoint . .*renamed or copied"
    ):
        list(read_state(store, manifest, {"a": ALL}))


def test_a_chain_without_its_beginning_is_refused(maker: Any) -> None:
    store = MemoryStore("job")
    make = maker(store, store.claim("run"))
    one = make.file(1, 0, [("a", 0, 1, b"x")], {"a": {1: ["."]}})
    two = make.file(2, 0, [("a", 0, 2, b"y")], {"a": {2: [one.name, "."]}})
    name = make.commit(2, [two], older=[one.name])
    with pytest.raises(CheckpointCorrupt, match="lacks the whole of key group 2 of 'a'"):
        list(read_state(store, store.manifest(name), {"a": ALL}))


def test_a_sound_checkpoint_is_verified(three: tuple[MemoryStore, Manifest]) -> None:
    verify(*three)
    assert load_index(three[0], LAST).checkpoint == 3


def test_what_sinks_prepared_is_read_from_a_file_and_checked() -> None:
    store = MemoryStore("job")
    incarnation = store.claim("run")
    writer = store.writer("1/chk-1/w0-0.state")
    writer.append(b"before-the rows-behind")
    writer.close()
    good = Placed("1/chk-1/w0-0.state", 7, 8, checksum(b"the rows"))
    assert read_placed(store, good) == b"the rows"
    for wrong, message in (
        (msgspec.structs.replace(good, offset=8), "damaged: the prepared output of a sink, 8 bytes at 8"),
        (msgspec.structs.replace(good, length=80), "damaged"),
        (msgspec.structs.replace(good, file="1/chk-1/gone.state"), "is missing"),
    ):
        with pytest.raises(CheckpointCorrupt, match=message):
            read_placed(store, wrong)
        with pytest.raises(CheckpointCorrupt, match=message):
            verify(store, Manifest("job", "run", incarnation, 1, 0, 8, 0, [], prepared=[Prepared("rows", wrong)]))


def test_a_manifest_has_what_sinks_prepared_or_its_place() -> None:
    within = Manifest("job", "run", 1, 1, 0, 8, 0, [], prepared=[Prepared("rows", b"a")])
    pointing = msgspec.structs.replace(within, prepared=[Prepared("rows", Placed("1/chk-1/w0-0.state", 8, 9, 2**63))])
    for manifest in (within, pointing):
        data = encode_manifest(manifest)
        assert data.startswith(b"tailrace-manifest 2 ")
        assert decode_manifest(data, "it") == manifest
    with pytest.raises(CheckpointCorrupt, match="it is a manifest of version 1; this tailrace reads version 2"):
        decode_manifest(encode_manifest(within).replace(b"manifest 2", b"manifest 1", 1), "it")


@pytest.mark.parametrize(
    ("error", "for_good"),
    [
        (CheckpointCorrupt("cut short"), True),
        (CheckpointNotFound("no such checkpoint"), True),
        (FileNotFoundError("w0-0.state"), True),
        (ConfigError("install s3fs"), True),
        (PermissionError("the token has expired"), False),
        (TimeoutError("no answer"), False),
        (OSError("connection reset"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_only_what_stays_wrong_is_not_read_again(error: Exception, for_good: bool) -> None:
    """The job fails where a restart would find the same, and starts again where the store may answer next time."""
    assert unreadable_for_good(error) is for_good


def test_who_looks_at_one_table_gets_its_blocks_and_nothing_in_flight(three: tuple[MemoryStore, Manifest]) -> None:
    store, manifest = three
    first = next(iter(load_index(store, manifest.files[0].name).operators)).tables
    parts = list(read_state(store, manifest, {"a": ALL}, tables={first[0].name}))
    found = [part for part in parts if isinstance(part, BlockOf)]
    assert found and {part.table.name for part in found} == {first[0].name}
    assert not [part for part in parts if isinstance(part, LogOf)]
    assert not [part for part in read_state(store, manifest, {"a": ALL}, tables=()) if isinstance(part, BlockOf)]
