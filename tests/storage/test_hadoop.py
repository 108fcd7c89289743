"""HDFS, as far as it can be tested without one: a local folder behind pyarrow, and a libhdfs that renames as HDFS does."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow.fs import LocalFileSystem

from tailrace.errors import ConfigError
from tailrace.storage.hadoop import Hadoop
from tailrace.storage.remote import HadoopFolder, open_remote


class Lib:
    """libhdfs on local files. Its rename replaces nothing, its delete spares what is not empty."""

    def __init__(self) -> None:
        self.connected = 0

    def hdfsNewBuilder(self) -> int:
        return 1

    def hdfsBuilderSetNameNode(self, builder: int, host: bytes) -> None:
        self.host = host

    def hdfsBuilderSetNameNodePort(self, builder: int, port: int) -> None: ...

    def hdfsBuilderConnect(self, builder: int) -> int:
        self.connected += 1
        return 7

    def hdfsRename(self, fs: int, path: bytes, to: bytes) -> int:
        assert fs == 7
        try:
            os.link(path, to)
        except FileExistsError:
            return -1
        os.unlink(path)
        return 0

    def hdfsDelete(self, fs: int, path: bytes, recursive: int) -> int:
        assert not recursive
        try:
            os.rmdir(path)
        except OSError:
            return -1
        return 0


@pytest.fixture
def folder(tmp_path: Path) -> HadoopFolder:
    root = f"{tmp_path}/checkpoints"
    return HadoopFolder("hdfs://name" + root, ArrowFSWrapper(LocalFileSystem()), root, Hadoop("name", 0, lib=Lib()))


def test_a_name_is_created_once(folder: HadoopFolder) -> None:
    folder.create("1/claim", b"first")
    with pytest.raises(FileExistsError):
        folder.create("1/claim", b"second")
    assert folder.read("1/claim") == b"first"
    assert [entry.name for entry in folder.walk()] == ["1/claim"]


def test_of_many_threads_exactly_one_creates(folder: HadoopFolder) -> None:
    def create(i: int) -> bool:
        try:
            folder.create("slot", b"%d" % i)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(16)))
    assert won.count(True) == 1 and folder.read("slot") == b"%d" % won.index(True)


def test_files_are_written_read_and_deleted(folder: HadoopFolder) -> None:
    writer = folder.writer("1/chk-1/w0.state")
    writer.append(b"0123456789")
    writer.close()
    assert folder.read_range("1/chk-1/w0.state", 3, 4) == b"3456"
    assert [tuple(entry) for entry in folder.entries("1/chk-1")] == [("1/chk-1/w0.state", False, 10)]
    folder.delete(["1/chk-1/w0.state", "1/chk-1/other"])
    assert folder.entries("1") == []
    discarded = folder.writer("1/chk-2/w0.state")
    discarded.append(b"x")
    discarded.discard()
    assert list(folder.walk()) == []


def test_one_connection_serves_all(folder: HadoopFolder) -> None:
    for i in range(3):
        folder.create(f"{i}", b"x")
    assert folder.hadoop._lib.connected == 1
    assert folder.hadoop._lib.host == b"name"


def test_without_a_hadoop_it_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    with pytest.raises(ConfigError, match="HADOOP_HOME"):
        open_remote("hdfs://name:8020/x", {})
