"""Frames are a wire format: their bytes are frozen, and bytes that are no frame are refused as such."""

import pickle
import random
import struct
from collections import namedtuple
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.elements.frame_codec import (
    COLUMNS,
    ROWS,
    ChannelId,
    decode,
    encode_batch,
    encode_grant,
    encode_marker,
    encoded_size,
)
from tailrace.elements.markers import Barrier, EndOfInput, IdleChannel, Watermark
from tailrace.elements.rows import row_type
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.errors import ProtocolViolation

CHANNEL = ChannelId(edge=3, source=1, target=2)
HEADER = 40


def rows_frame() -> bytes:
    times = np.array([5, -7], np.int64)
    groups = np.array([1, 65535], np.uint16)
    return encode_batch(CHANNEL, 9, 4, 100, Rows([("a", 1), None], times, groups))


# Golden bytes: header `<4sBBHIHHHHQIq`, then sections `<HHI` and their bytes.

GOLDEN = {
    "watermark": (
        encode_marker(CHANNEL, 9, 4, 100, Watermark(-5)),
        "54524652 01 03 0000 09000000 0300 0100 0200 0400 6400000000000000 00000000 fbffffffffffffff",
    ),
    "idle": (
        encode_marker(CHANNEL, 9, 4, 100, IdleChannel()),
        "54524652 01 04 0000 09000000 0300 0100 0200 0400 6400000000000000 00000000 0000000000000000",
    ),
    "end": (
        encode_marker(CHANNEL, 9, 4, 100, EndOfInput()),
        "54524652 01 05 0000 09000000 0300 0100 0200 0400 6400000000000000 00000000 0000000000000000",
    ),
    "barrier": (
        encode_marker(CHANNEL, 9, 4, 100, Barrier(CutRequest(1 << 33))),
        "54524652 01 07 0000 09000000 0300 0100 0200 0400 6400000000000000 00000000 0000000002000000",
    ),
    "barrier of a stop with a savepoint": (
        encode_marker(CHANNEL, 9, 4, 100, Barrier(CutRequest(5, CutKind.SAVEPOINT, hold=True))),
        "54524652 01 07 0100 09000000 0300 0100 0200 0400 6400000000000000 00000000 0500000000000000"
        "0500 0000 02000000 0201",
    ),
    "grant": (
        encode_grant(CHANNEL, 9, 4, 1 << 33),
        "54524652 01 06 0000 09000000 0300 0100 0200 0400 0000000000000000 00000000 0000000002000000",
    ),
    "two rows with times and key groups": (
        rows_frame(),
        "54524652 01 01 0300 09000000 0300 0100 0200 0400 6400000000000000 02000000 0000000000000000"
        # the values: [("a", 1), None] pickled by protocol 5
        "0100 0000 19000000 8005950e000000000000005d94288c0161944b0186944e652e"
        # the timestamps: 5, -7
        "0200 0000 10000000 0500000000000000 f9ffffffffffffff"
        # the key groups: 1, 65535
        "0300 0000 04000000 0100 ffff",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_bytes_of_a_frame_are_frozen(name: str) -> None:
    made, golden = GOLDEN[name]
    assert made.hex() == "".join(golden.split())


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("kind", CutKind)
def test_a_barrier_carries_the_whole_request(kind: CutKind, hold: bool) -> None:
    """A barrier may be there before the coordinator's `Trigger` is."""
    barrier = Barrier(CutRequest(7, kind, hold))
    assert decode(encode_marker(CHANNEL, 9, 4, 100, barrier)).marker() == barrier


@pytest.mark.parametrize("data", [b"", bytes(1), bytes((9, 0)), bytes(3)])
def test_a_barrier_of_an_unknown_kind_is_refused(data: bytes) -> None:
    usual = bytearray(encode_marker(CHANNEL, 9, 4, 100, Barrier(CutRequest(7, CutKind.FINAL))))
    section = len(usual) - 2
    usual[section - 4 : section] = len(data).to_bytes(4, "little")
    with pytest.raises(ProtocolViolation, match="barrier"):
        decode(bytes(usual[:section]) + data).marker()


@pytest.mark.parametrize("length", range(8))
def test_times_and_key_groups_lie_where_processors_read_them_at_once(length: int) -> None:
    batch = Rows(["x" * length], np.array([5], np.int64), np.array([7], np.uint16))
    found = decode(encode_batch(CHANNEL, 9, 4, 100, batch)).batch()
    assert found.times is not None and found.groups is not None
    assert found.times.ctypes.data % 8 == 0 and found.groups.ctypes.data % 2 == 0
    assert (found.times.tolist(), found.groups.tolist()) == ([5], [7])


def test_rows_come_back_as_they_went() -> None:
    frame = decode(rows_frame())
    assert (frame.kind, frame.channel, frame.incarnation, frame.attempt) == (ROWS, CHANNEL, 9, 4)
    assert (frame.seq, frame.count, frame.size) == (100, 2, len(rows_frame()))
    batch = frame.batch()
    assert isinstance(batch, Rows)
    assert batch.values == [("a", 1), None]
    assert batch.times is not None and batch.times.tolist() == [5, -7]
    assert batch.groups is not None and batch.groups.tolist() == [1, 65535]


def test_columns_come_back_as_they_went() -> None:
    data = pa.record_batch({"x": [1, None, 3], "name": ["a", "b", None]})
    frame = decode(encode_batch(CHANNEL, 1, 0, 7, Columns(data.slice(1), np.array([1, 2], np.int64))))
    batch = frame.batch()
    assert frame.kind == COLUMNS
    assert isinstance(batch, Columns)
    assert batch.data.equals(data.slice(1))
    assert batch.times is not None and batch.times.tolist() == [1, 2]
    assert batch.groups is None


def test_rows_of_one_class_name_their_columns_once() -> None:
    row = row_type(("origin", "not a name", "origin"))
    values = [row._make((i, "x", None)) for i in range(100)]
    frame = encode_batch(CHANNEL, 1, 0, 0, Rows(values))
    assert frame.count(b"not a name") == 1
    back = decode(frame).batch()
    assert isinstance(back, Rows)
    assert back.values == values
    assert all(type(value) is row for value in back.values)


def test_rows_of_mixed_classes_keep_each_their_own() -> None:
    values = [row_type(("a",))._make((1,)), (1,), row_type(("b",))._make((1,))]
    back = decode(encode_batch(CHANNEL, 1, 0, 0, Rows(values))).batch()
    assert isinstance(back, Rows)
    assert list(map(type, back.values)) == list(map(type, values))


Point = namedtuple("Point", "x y")


def test_a_users_named_tuple_is_pickled_as_it_is() -> None:
    assert decode(encode_batch(CHANNEL, 1, 0, 0, Rows([Point(1, 2)]))).batch().to_rows().values == [Point(1, 2)]


@pytest.mark.parametrize(
    "marker", [Watermark(0), Watermark(MIN_TIME), Watermark(MAX_TIME), IdleChannel(), EndOfInput()]
)
def test_markers_come_back_as_they_went(marker: Any) -> None:
    frame = decode(encode_marker(CHANNEL, 1, 0, 12, marker))
    assert frame.marker() == marker
    assert (frame.seq, frame.count) == (12, 0)


def test_a_grant_is_no_marker_and_rows_are_none() -> None:
    assert decode(encode_grant(CHANNEL, 1, 0, 77)).number == 77
    for data in (encode_grant(CHANNEL, 1, 0, 77), rows_frame()):
        with pytest.raises(ProtocolViolation, match="is not a marker"):
            decode(data).marker()


# What is no frame.


@pytest.mark.parametrize("cut", range(len(rows_frame())))
def test_a_frame_cut_at_any_byte_is_refused(cut: int) -> None:
    with pytest.raises(ProtocolViolation):
        decode(rows_frame()[:cut])


def test_bytes_after_the_last_section_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="1 bytes after its last section"):
        decode(rows_frame() + b"\0")


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(data)


@given(st.integers(0, HEADER - 1), st.integers(0, 255))
def test_a_changed_header_is_refused_or_is_another_good_frame(at: int, byte: int) -> None:
    data = bytearray(rows_frame())
    data[at] = byte
    try:
        frame = decode(bytes(data))
    except ProtocolViolation:
        return
    assert frame.size == len(data)


def test_the_magic_the_version_and_the_kind_are_checked() -> None:
    good = rows_frame()
    for data, why in [
        (b"XXXX" + good[4:], "not a frame: it starts with b'XXXX'"),
        (good[:4] + b"\x02" + good[5:], "version 2; this side reads version 1"),
        (good[:5] + b"\x00" + good[6:], "unknown kind 0"),
        (good[:5] + b"\x0c" + good[6:], "unknown kind 12"),
    ]:
        with pytest.raises(ProtocolViolation, match=why):
            decode(data)


def with_section(ident: int, flags: int, body: bytes) -> bytes:
    """The frame with one more section at its end."""
    data = bytearray(rows_frame() + struct.pack("<HHI", ident, flags, len(body)) + body)
    struct.pack_into("<H", data, 6, 4)
    return bytes(data)


def test_an_unknown_section_is_skipped_where_it_says_so() -> None:
    frame = decode(with_section(77, 1, b"from a later version"))
    assert frame.batch().to_rows().values == [("a", 1), None]


def test_an_unknown_section_that_must_not_be_skipped_refuses_the_frame() -> None:
    with pytest.raises(ProtocolViolation, match="section 77, which this side does not know"):
        decode(with_section(77, 0, b"must be understood"))


def test_the_number_of_records_is_checked_against_the_content() -> None:
    data = bytearray(rows_frame())
    struct.pack_into("<I", data, 28, 3)
    with pytest.raises(ProtocolViolation, match=r"e3:1->2: section 2 has 16 bytes"):
        decode(bytes(data)).batch()
    data = bytearray(encode_batch(CHANNEL, 1, 0, 0, Rows([1, 2])))
    struct.pack_into("<I", data, 28, 3)
    with pytest.raises(ProtocolViolation, match="a frame of 3 records holds 2"):
        decode(bytes(data)).batch()


def test_rows_without_values_are_refused() -> None:
    data = struct.pack("<4sBBHIHHHHQIq", b"TRFR", 1, ROWS, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(ProtocolViolation, match="section 1 is missing"):
        decode(data).batch()


# Sizes.


class Picky:
    """Says no when it is made again."""

    def __setstate__(self, state: Any) -> None:
        raise KeyError("the color")


class Demanding(Exception):
    """Cannot be made again from its arguments, as many exceptions of users."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)


def picky() -> Picky:
    made = Picky()
    made.color = "red"  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(("record", "raised"), [(picky(), KeyError), (Demanding(1, 2), TypeError)])
def test_what_the_class_of_a_record_raises_passes_through(record: Any, raised: type[Exception]) -> None:
    frame = decode(encode_batch(CHANNEL, 1, 0, 0, Rows([record])))
    with pytest.raises(raised):
        frame.batch()


@pytest.mark.parametrize("batch", ["rows", "named", "columns"])
def test_a_damaged_body_is_refused(batch: str) -> None:
    """An error of pickle or Arrow for foreign bytes was taken for the fault of a user's class."""
    row = row_type(("n", "s"))
    made: dict[str, Batch] = {
        "rows": Rows([1, "two", (3.0, None)]),
        "named": Rows([row(1, "a"), row(2, "b")]),
        "columns": Columns(pa.record_batch({"n": [1, 2, 3], "s": ["a", "b", "c"]})),
    }
    data = encode_batch(CHANNEL, 1, 0, 0, made[batch])
    start = HEADER + 8
    refused = 0
    for at in range(start, len(data)):
        for body in (bytes(len(data) - at), b"\xff" * (len(data) - at)):
            try:
                decode(data[:at] + body).batch()
            except ProtocolViolation:
                refused += 1
    assert refused > len(data) - start
    for body in (b"", b"\x80", b"noise", pickle.dumps(5)):
        with pytest.raises(ProtocolViolation, match=r"cannot be read|missing|ends within|cut short"):
            decode(with_values(data, body)).batch()


def with_values(frame: bytes, body: bytes) -> bytes:
    """A frame with the header of another one, and one section: these values."""
    fields = [*struct.unpack_from("<4sBBHIHHHHQIq", frame)]
    fields[3] = 1
    return struct.pack("<4sBBHIHHHHQIq", *fields) + struct.pack("<HHI", 1, 0, len(body)) + body


def test_the_size_of_rows_is_sampled_and_close() -> None:
    chance = random.Random(1)
    values = [("key", chance.randrange(10_000), "x" * chance.randrange(100)) for _ in range(5_000)]
    real = len(encode_batch(CHANNEL, 1, 0, 0, Rows(values)))
    assert 0.5 * real < encoded_size(Rows(values)) < 2 * real


def test_what_cannot_be_pickled_has_a_size_too() -> None:
    assert encoded_size(Rows([lambda: 1, lambda: 2])) == 512
    assert encoded_size(Rows([])) == 0
    assert encoded_size(Columns(pa.record_batch({"x": [1, 2]}))) >= 16


def test_what_pickle_raises_passes_through() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        encode_batch(CHANNEL, 1, 0, 0, Rows([lambda: 1]))
