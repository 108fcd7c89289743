"""Lines of compressed files that are damaged, and of files with very long lines."""

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tailrace.connectors.files.blocks import FRAMED, crc32c
from tailrace.connectors.lines import CHUNK, LineReader, Splitter

COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
    ".lz4": lambda data: pa.compress(data, codec="lz4", asbytes=True),
    ".snappy": lambda data: hadoop(data, "snappy"),
    ".br": lambda data: pa.compress(data, codec="brotli", asbytes=True),
    "-hadoop.lz4": lambda data: hadoop(data, "lz4_raw"),
}


def hadoop(data: bytes, codec: str) -> bytes:
    """Bytes in a block, as Hadoop writes them."""
    packed = pa.compress(data, codec=codec, asbytes=True) if data else b""
    head = len(data).to_bytes(4, "big")
    return head + len(packed).to_bytes(4, "big") + packed if data else head


def framed(data: bytes) -> bytes:
    """Bytes in a frame of Snappy."""
    crc = crc32c(data)
    check = (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
    body = check + pa.compress(data, codec="snappy", asbytes=True)
    return b"\0" + len(body).to_bytes(3, "little") + body


def read(path: Path, limit: int = 1000) -> list[str]:
    reader = LineReader(str(path), 0)
    found: list[str] = []
    while (lines := reader.read(limit, 0.0)) is not None:
        found += lines
    reader.close()
    return found


def members(random: Random) -> list[bytes]:
    """The bytes of a few members; some are empty, and lines and characters go on from one to the next."""
    whole = "".join(f"line {i} {'é' * random.randint(0, 5)}\n" for i in range(random.randint(1, 40))).encode()
    cuts = sorted(random.randint(0, len(whole)) for _ in range(random.randint(0, 4)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@pytest.mark.parametrize("end", COMPRESSED)
@pytest.mark.parametrize("seed", range(20))
def test_all_members_are_read_or_the_damage_is_an_error(end: str, seed: int, tmp_path: Path) -> None:
    """Behind the first member Python's bz2 and lzma take what is damaged for the end of the file."""
    random = Random(seed)
    parts = members(random)
    expected = b"".join(parts).decode().split("\n")[:-1]
    packed = [COMPRESSED[end](part) for part in parts]
    path = tmp_path / f"f{end}"
    path.write_bytes(b"".join(packed))
    assert read(path, random.choice([1, 7, 1000])) == expected

    data = b"".join(packed)
    ends = {sum(map(len, packed[:count])) for count in range(len(packed) + 1)}
    for size in random.sample(sorted(set(range(len(data))) - ends), 20):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=rf"f{end}, behind byte \d+: cannot be read"):
            read(path)
    path.write_bytes(data + b"rubbish rubbish")
    with pytest.raises(ValueError, match=rf"f{end}, behind byte \d+: cannot be read"):
        read(path)


@pytest.mark.parametrize("end", [".gz", ".bz2", ".xz"])
def test_a_damaged_byte_drops_no_line(end: str, tmp_path: Path) -> None:
    """Each byte of the second member. Some do not concern the lines: the time in a header, for example."""
    expected = ["a", "b", "c"]
    first, second = COMPRESSED[end](b"a\n"), COMPRESSED[end](b"b\nc\n")
    path = tmp_path / f"f{end}"
    refused = 0
    for at in range(len(second)):
        path.write_bytes(first + second[:at] + bytes([second[at] ^ 0x55]) + second[at + 1 :])
        try:
            found = read(path)
        except ValueError as error:
            refused += 1
            assert "cannot be read" in str(error)
        else:
            assert found == expected, at
    assert refused > len(second) // 2


@pytest.mark.parametrize("end", [".gz", ".bz2", ".xz"])
def test_zeros_behind_a_member_are_padding(end: str, tmp_path: Path) -> None:
    path = tmp_path / f"f{end}"
    path.write_bytes(COMPRESSED[end](b"a\nb\n") + bytes(512) + COMPRESSED[end](b"c\n") + bytes(40_000))
    assert read(path) == ["a", "b", "c"]


def test_a_long_line_is_put_together_once() -> None:
    """While it comes its pieces are kept as they are: no piece is copied for each piece behind it."""
    splitter, chunk = Splitter("f", 0), b"x" * CHUNK
    before = sys.getrefcount(chunk)
    for _ in range(100):
        splitter.add(chunk)
        assert splitter.lines(10) == []
    assert sys.getrefcount(chunk) == before + 100 and splitter.rest() == 100 * CHUNK
    splitter.add(b"y\nz\nrest")
    assert list(map(len, splitter.lines(10))) == [100 * CHUNK + 1, 1]
    assert sys.getrefcount(chunk) == before
    assert (splitter.last(), splitter.at) == (["rest"], 100 * CHUNK + 8)


@pytest.mark.parametrize("seed", range(30))
def test_lines_and_places_are_those_of_the_file(seed: int) -> None:
    random = Random(seed)
    data = "".join(random.choice(["", "a", "é" * 9, "x" * 300, "\r"]) + "\n" for _ in range(60)).encode() + b"end"
    splitter, found, given = Splitter("f", 0, 16), list[Any](), 0
    while given < len(data):
        size = random.randint(1, 200)
        splitter.add(data[given : given + size])
        given = min(len(data), given + size)
        while lines := splitter.lines(random.randint(1, 9)):
            found += lines
            assert splitter.before == data[max(0, splitter.at - 16) : splitter.at]
        assert splitter.at + splitter.rest() == given and splitter.tail() == data[max(0, given - 16) : given]
    assert found + splitter.last() == [line.removesuffix("\r") for line in data.decode().split("\n")]
    assert splitter.at == len(data)


def test_framed_snappy_is_read_and_its_checksums_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "f.snappy"
    first = FRAMED + framed(b"one\n") + b"\xfe\x03\0\0pad" + FRAMED
    path.write_bytes(first + framed("two\né\n".encode()))
    assert read(path) == ["one", "two", "é"]
    data = path.read_bytes()
    for at in range(len(first) + 4, len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"f\.snappy, behind byte 0: cannot be read|behind byte 4: cannot be read"):
            read(path)
    path.write_bytes(FRAMED + b"\x02\x01\0\0x")
    with pytest.raises(ValueError, match="a frame of the unknown kind 2"):
        read(path)


def test_a_checksum_is_that_of_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
