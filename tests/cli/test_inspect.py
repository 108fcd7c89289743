"""`tailrace inspect`: its output for checkpoints and files, also for those that cannot be read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.state.format import BlockRef, Index, OperatorPart, TableInfo, checksum, header, tail
from tailrace.state.manifest import (
    InputFile,
    Manifest,
    OperatorRecord,
    Prepared,
    StateFile,
    encode_manifest,
    savepoint_of,
)
from tailrace.storage.opening import open_folder
from tailrace.storage.savepoints import copy_savepoint
from tailrace.storage.store import Store


class Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("something was unpickled",))


TABLES = [TableInfo("sum", "reducing", "pickle", "int")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints 1 and 2 of a job; the second refers to the first. Whoever unpickles fails."""
    store = Store(str(tmp_path), "job")
    store.claim("the-run")
    block = pickle.dumps(Trap())
    for n in (1, 2):
        older = ["1/chk-1/w0-0.state"] if n == 2 else []
        name = f"1/chk-{n}/w0-0.state"
        ref = BlockRef(0, 3, len(header()), len(block), checksum(block), 5)
        part = OperatorPart(
            "sum-1", "my sum", 0, 2, True, block, TABLES, [ref], [3] if n == 1 else [], {3: list(range(n))}
        )
        index = Index("job", 1, n, 0, 8, [*older, name], [part])
        data = header() + block + tail(index, len(header()) + len(block))
        writer = store.writer(name)
        writer.append(data)
        writer.close()
        made = Manifest(
            job="job", run_id="the-run", incarnation=1, checkpoint=n, timestamp=1_700_000_000_000_000 + n, max_parallelism=8,
            slots=1, files=[StateFile(0, name, len(data))], older=older, size=len(data),
            operators=[OperatorRecord("sum-1", "my sum", 2, [True, False], TABLES, True)],
            prepared=[Prepared("out", block), Prepared("out", block)],
        )  # fmt: skip
        store.commit(1, n - 1, n, encode_manifest(made))
    return tmp_path


def inspect(*args: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["inspect", *map(str, args)])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("path", ["", "job", "job/1", "job/1/2.manifest", "job/1/chk-2"])
def test_a_checkpoint_is_reported_for_people(folder: Path, path: str) -> None:
    code, out, err = inspect(folder / path)
    assert (code, err) == (0, "")
    for message in (
        "checkpoint 2 of job 'job'",
        "taken 2023-11-14 22:13:20+00:00 by run the-run, incarnation 1",
        "sum-1  my sum, parallelism 2, 1 finished",
        "sum: reducing int, pickle, 10 entries",
        "worker 0  1/chk-2/w0-0.state",
        "older     1/chk-1/w0-0.state",
        "out  2",
    ):
        assert message in out


def test_a_savepoint_is_reported_like_a_checkpoint_wherever_it_is(folder: Path, tmp_path: Path) -> None:
    store = Store(str(folder), "job")
    copy_savepoint(store.folder, open_folder(str(tmp_path / "saved")), savepoint_of(store.manifest("1/1.manifest")))
    (tmp_path / "saved").rename(tmp_path / "monday")
    for path in ("monday", "monday/savepoint.manifest"):
        code, out, err = inspect(tmp_path / path, "--verify")
        assert (code, err) == (0, "")
        assert "savepoint 1 of job 'job'" in out and "5 entries" in out and "1/chk-1/w0-0.state" in out
    report = json.loads(inspect(tmp_path / "monday", "--json")[1])
    assert (report["job"], report["kind"], report["older"], report["prepared"]) == ("job", "savepoint", [], {})


def test_files_that_sources_have_left_to_read_are_reported_and_looked_for(folder: Path, tmp_path: Path) -> None:
    store, rows = Store(str(folder), "job"), tmp_path / "rows.arrow"
    rows.write_bytes(b"rows")
    there = (str(rows), InputFile("rows-1", str(rows), "inputs/0/rows.arrow", 4))
    wanted = savepoint_of(store.manifest("1/1.manifest"))
    copy_savepoint(store.folder, open_folder(str(tmp_path / "saved")), wanted, inputs=[there])
    code, out, _ = inspect(tmp_path / "saved", "--verify")
    assert code == 0 and "  of source rows-1  inputs/0/rows.arrow  4 B" in out
    (tmp_path / "saved" / "inputs" / "0" / "rows.arrow").unlink()
    code, out, err = inspect(tmp_path / "saved", "--verify")
    assert code == 1 and "inputs/0/rows.arrow, which source 'rows-1' reads, is gone" in err


def test_a_checkpoint_is_reported_as_json(folder: Path) -> None:
    code, out, _ = inspect(folder, "--json", "--verify")
    report = json.loads(out)
    assert code == 0
    assert (report["job"], report["checkpoint"], report["prepared"]) == ("job", 2, {"out": 2})
    [operator] = report["operators"]
    assert operator["tables"] == [
        {"name": "sum", "kind": "reducing", "encoding": "pickle", "type": "int", "entries": 10,
         "bytes": 2 * len(pickle.dumps(Trap()))}
    ]  # fmt: skip
    assert report["files"][0]["size"] == report["size"] == (folder / "job/1/chk-2/w0-0.state").stat().st_size


def test_a_state_file_is_reported(folder: Path) -> None:
    code, out, _ = inspect(folder / "job/1/chk-2/w0-0.state")
    assert code == 0
    for message in ("worker 0 in checkpoint 2", "subtask 0 of 2, finished", "5 entries", "  1/chk-1/w0-0.state"):
        assert message in out
    report = json.loads(inspect(folder / "job/1/chk-1/w0-0.state", "--json")[1])
    assert (report["checkpoint"], report["refers_to"]) == (1, ["1/chk-1/w0-0.state"])


@pytest.mark.parametrize(
    ("file", "args", "message"),
    [
        ("1/2.manifest", [], "checksum does not match"),
        ("1/chk-2/w0-0.state", [], "cut short or damaged"),
        ("1/chk-1/w0-0.state", [], "cut short or damaged"),
    ],
)
def test_what_is_damaged_is_reported_and_exits_with_1(folder: Path, file: str, args: list[str], message: str) -> None:
    path = folder / "job" / file
    path.write_bytes(path.read_bytes()[:-1])
    code, _, err = inspect(folder, *args)
    assert code == 1 and message in err and file in err
    assert inspect(path)[0] == 1


def test_verify_reads_every_byte(folder: Path) -> None:
    path = folder / "job/1/chk-1/w0-0.state"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    assert inspect(folder)[0] == 0
    code, _, err = inspect(folder, "--verify")
    assert code == 1 and "do not match their checksum" in err


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "there is no checkpoint"),
        ("job/1/9.manifest", "in "),
        ("x.state", "is missing"),
        ("job/1/1.manifest/x", "there is no checkpoint"),
        ("job/1/1.manifest/x.state", "is missing"),
    ],
)
def test_what_is_not_there_exits_with_1(folder: Path, path: str, message: str) -> None:
    code, _, err = inspect(folder / path)
    assert code == 1 and message in err


def test_a_file_of_a_later_version_is_refused(folder: Path) -> None:
    path = folder / "job/1/chk-2/w0-0.state"
    data = bytearray(path.read_bytes())
    data[4] = 9
    path.write_bytes(data)
    assert "version 9" in inspect(path)[2]
