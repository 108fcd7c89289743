"""The checkpoint that a job starts from, held against its dataflow before anything starts. Needs no Spark session."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.spark.cluster.defaults import Defaults
from tailrace.spark.start.start_checkpoint import find_origin, warn_of_later
from tailrace.state.manifest import Manifest, Prepared, encode_manifest
from tailrace.storage.store import Store


def dataflow(folder: Path, uid: str) -> tuple[tr.Environment, Any]:
    env = tr.Environment(parallelism=1, checkpoint=tr.CheckpointConfig(folder / "checkpoints"))
    env.from_collection([1]).sink_to(tr.sinks.TextFiles(str(folder / "out")), uid=uid)
    return env, env._plan(env._pending())


def test_a_start_without_the_sink_of_output_that_waits_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "checkpoints"), "job")
    prepared = [Prepared("lines", b"a")]
    manifest = Manifest("job", "run", store.claim("run"), 1, 0, 128, 1, [], prepared=prepared)
    name = store.commit(1, 0, 1, encode_manifest(manifest))
    found = find_origin(*dataflow(tmp_path, "lines"), "job", "latest", False)
    assert found is not None and found.manifest.prepared == prepared
    with pytest.raises(tr.IncompatibleState, match="allow_dropped_state=\\['lines'\\]"):
        find_origin(*dataflow(tmp_path, "rows"), "job", "latest", False)
    assert find_origin(*dataflow(tmp_path, "rows"), "job", "latest", ("lines",)) is not None
    store.mark_published(name)
    assert find_origin(*dataflow(tmp_path, "rows"), "job", "latest", False) is not None, "nothing of it is lost"


def test_latest_or_new_begins_anew_only_where_there_is_no_checkpoint_yet(tmp_path: Path) -> None:
    """What a service manager starts is the same command the first time and ever after. A checkpoint that is there, and
    cannot be read, is an error: to begin anew would be a wrong result."""
    assert find_origin(*dataflow(tmp_path, "lines"), "job", "latest-or-new", False) is None
    with pytest.raises(tr.ConfigError, match="there is none of job 'job'"):
        dataflow(tmp_path, "lines")[0].check_restore("latest-or-new", name="job")
    store = Store(str(tmp_path / "checkpoints"), "job")
    name = store.commit(1, 0, 1, encode_manifest(Manifest("job", "run", store.claim("run"), 1, 0, 128, 1, [])))
    found = find_origin(*dataflow(tmp_path, "lines"), "job", "latest-or-new", False)
    assert found is not None and found.manifest.checkpoint == 1
    assert dataflow(tmp_path, "lines")[0].check_restore("latest-or-new", name="job").fits
    assert find_origin(*dataflow(tmp_path, "lines"), "another", "latest-or-new", False) is None
    (tmp_path / "checkpoints" / "job" / name).write_bytes(b"broken")
    with pytest.raises(tr.CheckpointCorrupt):
        find_origin(*dataflow(tmp_path, "lines"), "job", "latest-or-new", False)
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.TextFiles(str(tmp_path / "out")), uid="lines")
    with pytest.raises(tr.ConfigError, match=r'from_checkpoint="latest-or-new" needs checkpoint.*--checkpoint-dir DIR'):
        find_origin(env, env._plan(env._pending()), "job", "latest-or-new", False)


@pytest.mark.parametrize("form", ["~/checkpoints", "file:{}/checkpoints", "file://{}/checkpoints", "checkpoints"])
def test_a_folder_of_checkpoints_is_the_same_however_its_path_is_written(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of a home folder, and of `file:/…`, were made below the folder at hand, as `~` and `file:`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = form.format(tmp_path)
    store = Store(str(tmp_path / "checkpoints"), "job")
    store.commit(1, 0, 1, encode_manifest(Manifest("job", "run", store.claim("run"), 1, 0, 128, 1, [])))
    env = tr.Environment(parallelism=1, checkpoint=tr.CheckpointConfig(path))
    env.from_collection([1]).sink_to(tr.sinks.TextFiles(str(tmp_path / "out")), uid="lines")
    for expected in ("latest", f"{path}/job", f"{path}/job/1/1.manifest"):
        found = find_origin(env, env._plan(env._pending()), "job", expected, False)
        assert found is not None and found.manifest.checkpoint == 1, expected


def test_options_of_the_command_that_do_nothing_are_reported(tmp_path: Path) -> None:
    """A user who sets where checkpoints go must learn that they go elsewhere."""
    env, _ = dataflow(tmp_path, "lines")
    assert Defaults().overrides(env) == []
    mine = str(tmp_path / "checkpoints")
    assert Defaults(checkpoint_dir=mine, parallelism=1).overrides(env) == []
    message = Defaults(checkpoint_dir="elsewhere", parallelism=4, standby=1, work_dir="there").overrides(env)
    assert message[:2] == [
        "--parallelism 4 does nothing, because the Environment is given a parallelism of its own",
        "--checkpoint-dir elsewhere does nothing, because the Environment is given a checkpoint of its own",
    ]
    assert [one.split()[0] for one in message[2:]] == ["--standby", "--work-dir"]


def test_to_go_back_is_allowed_and_what_it_costs_is_said(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "checkpoints"), "job")
    store.claim("run")
    older, newer = (
        store.commit(1, n, n + 1, encode_manifest(Manifest("job", "run", 1, n + 1, 0, 128, 1, []))) for n in range(2)
    )
    back = find_origin(*dataflow(tmp_path, "lines"), "job", store.url_of(older), False)
    assert back is not None and [path for path, _ in back.later] == [newer]
    with pytest.warns(UserWarning, match="is not the newest of this job, which is 1/2.manifest.*is written again"):
        warn_of_later(back, store)
    elsewhere = Store(str(tmp_path / "checkpoints"), "another")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_later(back, elsewhere)
        warn_of_later(find_origin(*dataflow(tmp_path, "lines"), "job", "latest", False), store)


def test_a_dry_run_tells_what_fits_and_starts_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "checkpoints"), "job")
    manifest = Manifest("job", "run", store.claim("run"), 1, 0, 128, 1, [], prepared=[Prepared("lines", b"a")])
    path = store.url_of(store.commit(1, 0, 1, encode_manifest(manifest)))
    before = sorted(map(str, tmp_path.rglob("*")))
    env, _ = dataflow(tmp_path, "lines")
    assert env.check_restore("latest", name="job").fits
    env, _ = dataflow(tmp_path, "rows")
    found = env.check_restore(path)
    assert isinstance(found, tr.RestoreCheck) and found.path == path
    assert not found.fits and "sink '?' (uid 'lines') had prepared output" in found.misfits[0]
    assert env.check_restore(path, allow_dropped_state=["lines"]).dropped
    assert sorted(map(str, tmp_path.rglob("*"))) == before
    with pytest.raises(tr.CheckpointNotFound, match="there are the jobs 'job'"):
        env.check_restore("latest", name="another")
    with pytest.raises(tr.ConfigError, match="check_restore needs the path of a checkpoint"):
        env.check_restore(None)  # type: ignore[arg-type]
