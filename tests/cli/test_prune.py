"""`tailrace prune`: what it removes, and what it prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tailrace as tr
from tailrace.cli.main import app
from tailrace.state.manifest import Manifest, Prepared, encode_manifest
from tailrace.storage.store import Store


@dataclass(frozen=True)
class Place:
    """Where a writer stands."""

    job: str
    incarnation: int
    run_id: str
    uid: str = "lines"
    subtask: int = 0
    parallelism: int = 1
    attempt: int = 0


def prune(*args: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["prune", *map(str, args)])
    return done.exit_code, done.stdout, done.stderr


def run_of(folder: Path, job: str, run_id: str, ends: bool = True) -> str:
    """A run with one checkpoint, whose sink has a file under cover that was never published: its path."""
    store = Store(str(folder / "checkpoints"), job)
    incarnation = store.claim(run_id, takeover=True)
    writer = tr.sinks.TextFiles(str(folder / "out")).writer(Place(job, incarnation, run_id))
    writer.write(["a"])
    token = writer.prepare()
    assert token is not None
    manifest = Manifest(job, run_id, incarnation, 1, 0, 8, 1, [], prepared=[Prepared("lines", token)])
    store.commit(incarnation, 0, 1, encode_manifest(manifest))
    if ends:
        store.release(incarnation)
    [hidden] = [str(path) for path in (folder / "out").iterdir() if run_id in path.name]
    return hidden


def test_older_runs_go_with_what_they_had_under_cover(tmp_path: Path) -> None:
    old, older = (run_of(tmp_path, "visits", run) for run in ("aaaa", "bbbb"))
    new, other = run_of(tmp_path, "visits", "cccc"), run_of(tmp_path, "others", "dddd")
    checkpoints = tmp_path / "checkpoints"
    before = sorted(checkpoints.rglob("*"))
    message = f"job 'visits': would go: 2 runs, 12 files in {checkpoints}/visits\n"
    code, out, _ = prune(checkpoints, "--dry-run")
    assert (code, out) == (0, f"job 'others': would go: 0 runs, 0 files in {checkpoints}/others\n{message}")
    assert sorted(checkpoints.rglob("*")) == before and Path(old).exists()
    code, out, _ = prune(checkpoints)
    assert code == 0 and message.replace("would go", "removed") in out
    assert f"job 'visits': removed: what these runs had left under cover in {tmp_path}/out" in out
    assert [Path(one).exists() for one in (old, older, new, other)] == [False, False, True, True]
    assert sorted(path.name for path in (checkpoints / "visits").iterdir()) == ["3"]
    assert prune(checkpoints / "visits")[1].startswith("job 'visits': removed: 0 runs, 0 files")


def test_so_many_runs_are_kept_as_somebody_says(tmp_path: Path) -> None:
    files = [run_of(tmp_path, "visits", run) for run in ("aaaa", "bbbb", "cccc")]
    assert prune(tmp_path / "checkpoints", "--keep-runs", 2)[0] == 0
    assert [Path(one).exists() for one in files] == [False, True, True]


def test_a_job_that_has_just_begun_is_left_alone_and_others_are_not(tmp_path: Path) -> None:
    hidden = [run_of(tmp_path, "visits", run) for run in ("aaaa", "bbbb")] + [run_of(tmp_path, "a", "cccc")]
    run_of(tmp_path, "a", "dddd")
    Store(str(tmp_path / "checkpoints"), "visits").claim("eeee")
    code, out, err = prune(tmp_path / "checkpoints")
    assert code == 1 and "run eeee of job 'visits' has begun" in err and "so nothing is removed" in err
    assert "job 'a': removed: 1 runs" in out
    assert [Path(one).exists() for one in hidden] == [True, True, False]


@pytest.mark.parametrize("what", ["", "nowhere"])
def test_where_no_job_has_begun_it_says_so(tmp_path: Path, what: str) -> None:
    code, _, err = prune(tmp_path / what)
    assert (code, err) == (1, f"tailrace prune: no job has begun in {tmp_path / what}\n")
