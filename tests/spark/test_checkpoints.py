"""Checkpoints as users see them, on real Spark: requested, kept or removed, started from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.errors import Fenced
from tailrace.storage.store import Store
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark


class Count(tr.KeyedProcessFunction):
    """Pairs of the key and how many there were of it."""

    n = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
        self.n.value += 1
        yield (ctx.key, self.n.value)


def counting(
    jobs: Any,
    out: Path,
    end: int | None,
    rate: float | None = None,
    *,
    fn: Any = None,
    parallelism: int = 2,
    uid: str = "count",
    **settings: Any,
) -> tr.Environment:
    """A dataflow with checkpoints in the folder of the test."""
    settings = {"interval": None, **settings}
    config = tr.CheckpointConfig(jobs.folder / "checkpoints", **settings)
    env = jobs.env(parallelism=parallelism, checkpoint=config, restart=tr.NoRestart())
    numbers = env.from_source(tr.sources.Sequence(0, end, rate=rate), uid="numbers")
    counted = numbers.key_by(lambda x: x % 10).process(fn or Count(), uid=uid)
    counted.sink_to(tr.sinks.TextFiles(str(out)), uid="out")
    return env


def lines(*outs: Path) -> list[str]:
    return sorted(line for out in outs for path in out.glob("[!._]*") for line in path.read_text().splitlines())


def expected(end: int) -> list[str]:
    return sorted(str((key, n + 1)) for key in range(10) for n in range(len(range(key, end, 10))))


def store(jobs: Any, name: str = "job") -> Store:
    return Store(str(jobs.folder / "checkpoints"), name)


def manifests(jobs: Any, name: str = "job") -> dict[int, Any]:
    """The checkpoints that can be started from, by their numbers."""
    found = {}
    for path in (jobs.folder / "checkpoints" / name).glob("*/*.manifest"):
        try:
            manifest = store(jobs, name).manifest(f"{path.parent.name}/{path.name}")
        except Exception:  # a seal
            continue
        found[manifest.checkpoint] = manifest
    return found


def state_files(jobs: Any, name: str = "job") -> set[str]:
    root = jobs.folder / "checkpoints" / name
    return {str(path.relative_to(root)) for path in root.rglob("*.state")}


def needed(found: dict[int, Any]) -> set[str]:
    return {name for one in found.values() for name in [*one.older, *(file.name for file in one.files)]}


# On request.


def test_one_now(jobs: Any) -> None:
    job = jobs.start(counting(jobs, jobs.out, None, 2000))
    assert job.checkpoints == [] and lines(jobs.out) == []
    first = job.checkpoint(timeout=20)
    second = job.checkpoint(20)
    assert job.checkpoints == [first, second]
    assert (first.id, second.id) == (1, 2)
    assert first.bytes > 0 and 0 < first.duration < 5 and first.inflight_bytes == 0
    assert abs(first.timestamp - time.time()) < 60
    parts = {name: first.details[name] for name in ("trigger", "alignment", "freeze", "write")}
    assert all(0 <= part <= first.duration for part in parts.values())
    assert sum(parts.values()) == pytest.approx(first.duration, abs=0.002)
    assert Path(first.path).is_file()
    assert waited(lambda: lines(jobs.out))
    assert waited(lambda: (job.last_progress or {}).get("tailrace", {}).get("checkpoints", {}).get("completed") == 2)
    job.cancel()
    job.await_termination(20)
    with pytest.raises(tr.CheckpointError, match="has ended"):
        job.checkpoint()


def test_none_without_settings(jobs: Any) -> None:
    job = jobs.endless()
    with pytest.raises(tr.CheckpointError, match="checkpoint=CheckpointConfig"):
        job.checkpoint(10)
    assert job.checkpoints == []


def test_many_at_once_and_of_many_threads(jobs: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    job = jobs.start(counting(jobs, jobs.out, None, 2000, max_concurrent=3))
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: job.checkpoint(20), range(24)))
    assert {one.id for one in taken} <= {one.id for one in job.checkpoints}
    assert len({one.id for one in taken}) < 24  # a second request meanwhile gets the same checkpoint
    job.cancel()


def test_they_go_on_when_some_sources_have_ended(jobs: Any) -> None:
    env = jobs.env(checkpoint=tr.CheckpointConfig(jobs.folder / "checkpoints", interval=None))
    short = env.from_collection(range(10))
    long = env.from_source(tr.sources.Sequence(10, 3000, rate=3000))
    short.union(long).key_by(lambda x: x % 10).process(Count()).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env)
    done = [job.checkpoint(20) for _ in range(5)]
    assert [one.id for one in done] == [1, 2, 3, 4, 5]
    assert job.await_termination(150)
    assert lines(jobs.out) == expected(3000)


# What lies in the folder afterwards.


def ended(jobs: Any, how: str, **settings: Any) -> Any:
    """A job with three checkpoints or more that has ended."""

    def fn(x: int) -> int:
        if how == "FAILED" and marker.exists():
            raise ValueError("boom")
        return x

    marker = jobs.folder / "fail now"
    config = tr.CheckpointConfig(jobs.folder / "checkpoints", interval=0.05, **settings)
    env = jobs.env(checkpoint=config, restart=tr.NoRestart())
    end = 3000 if how == "FINISHED" else None
    numbers = env.from_source(tr.sources.Sequence(0, end, rate=3000), uid="numbers").map(fn)
    counted = numbers.key_by(lambda x: x % 10).process(Count(), uid="count")
    counted.sink_to(tr.sinks.TextFiles(str(jobs.out)), uid="out")  # as in `counting`: the job may go on as that one
    job = jobs.start(env)
    assert waited(lambda: len(job.checkpoints) >= 3)
    if how == "FAILED":
        marker.touch()
    elif how == "CANCELLED":
        job.cancel()
    assert waited(lambda: not job.is_active)
    assert str(job.status) == how
    return job


@pytest.mark.parametrize("how", ["FINISHED", "CANCELLED", "FAILED"])
@pytest.mark.parametrize("retain", ["never", "on-cancellation", "always"])
def test_retain(jobs: Any, retain: str, how: str) -> None:
    job = ended(jobs, how, retain=retain, keep=2)
    kept = manifests(jobs)
    if retain == "always" or (retain == "on-cancellation" and how != "FINISHED"):
        assert sorted(kept) == [one.id for one in job.checkpoints[-2:]]
        assert state_files(jobs) == needed(kept)
        assert all(Path(one.path).is_file() for one in job.checkpoints[-2:])
    else:
        assert kept == {} and state_files(jobs) == set()
        with pytest.raises(tr.JobAlreadyFinished if how == "FINISHED" else tr.CheckpointNotFound, match="if_finished"):
            counting(jobs, jobs.folder / "again", 10).execute("job", from_checkpoint="latest")


def test_no_more_than_keep_while_the_job_runs(jobs: Any) -> None:
    job = jobs.start(counting(jobs, jobs.out, None, 2000, keep=1))
    for _ in range(6):
        job.checkpoint(20)
        assert waited(lambda: len(manifests(jobs)) == 1)
        assert waited(lambda: state_files(jobs) == needed(manifests(jobs)))
    job.cancel()


# Starting from one.


def stopped(jobs: Any, out: Path, end: int, **how: Any) -> tr.Checkpoint:
    """The one checkpoint of a job that was cancelled on its way; what was visible by then is in `out`."""
    job = jobs.start(counting(jobs, out, end, 4000, **how))
    assert waited(lambda: any(path.stat().st_size for path in out.glob(".*")))
    taken = job.checkpoint(20)
    job.cancel()
    job.await_termination(20)
    assert str(job.status) == "CANCELLED"
    return taken


def finish(jobs: Any, env: tr.Environment, name: str, **options: Any) -> Any:
    job = env.execute(name, **options)
    jobs.started.append(job)
    assert job.await_termination(150)
    return job


def test_one_checkpoint_is_started_from_many_times_and_by_several_jobs_at_once(jobs: Any) -> None:
    end, first = 20_000, jobs.folder / "first"
    taken = stopped(jobs, first, end)
    before = state_files(jobs)

    outs = [jobs.folder / f"out {i}" for i in range(4)]
    finish(jobs, counting(jobs, outs[0], end), "job", from_checkpoint=taken.path)
    assert sorted([*lines(first), *lines(outs[0])]) == expected(end)
    assert 0 < len(lines(first)) < end
    assert before <= state_files(jobs)  # another run's checkpoint is not ours to remove

    paced = [counting(jobs, outs[i], end, 8000, parallelism=i, interval=0.1) for i in (1, 2)]
    both = [env.execute(f"other {i}", from_checkpoint=Path(taken.path)) for i, env in enumerate(paced)]
    jobs.started += both
    assert all(job.await_termination(150) for job in both)
    with pytest.raises(tr.JobAlreadyFinished, match=r"job 'job' has finished already, at "):
        counting(jobs, outs[3], end).execute("job", from_checkpoint="latest")
    finish(jobs, counting(jobs, outs[3], end, parallelism=3), "job", from_checkpoint=taken.path)
    for out in outs[1:]:
        assert lines(first, out) == expected(end)
    assert before <= state_files(jobs)


def test_a_job_that_takes_no_checkpoints_may_start_from_one(jobs: Any) -> None:
    end = 20_000
    taken = stopped(jobs, jobs.out, end)
    env = jobs.env(parallelism=1)
    numbers = env.from_source(tr.sources.Sequence(0, end), uid="numbers")
    counted = numbers.key_by(lambda x: x % 10).process(Count(), uid="count")
    counted.sink_to(tr.sinks.TextFiles(str(jobs.folder / "rest")), uid="out")
    finish(jobs, env, "another", from_checkpoint=taken.path)
    assert lines(jobs.out, jobs.folder / "rest") == expected(end)
    assert 0 < len(lines(jobs.out)) < end


def test_latest_of_nothing(jobs: Any) -> None:
    with pytest.raises(tr.CheckpointNotFound, match="no checkpoint of job 'job'"):
        counting(jobs, jobs.out, 10).execute("job", from_checkpoint="latest")
    with pytest.raises(tr.CheckpointNotFound, match="nowhere"):
        counting(jobs, jobs.out, 10).execute("job", from_checkpoint=str(jobs.folder / "nowhere"))
    with pytest.raises(tr.ConfigError, match="CheckpointConfig"):
        env = jobs.env()
        env.from_collection([1]).sink_to(tr.sinks.TextFiles(str(jobs.out)))
        env.execute("job", from_checkpoint="latest")


def test_two_live_jobs_of_one_name(jobs: Any) -> None:
    job = jobs.start(counting(jobs, jobs.out, None, 2000))
    with pytest.raises(tr.ConfigError, match="two live jobs of one name"):
        counting(jobs, jobs.folder / "second", 10).execute("job")
    job.checkpoint(20)
    job.cancel()
    job.await_termination(20)
    finish(jobs, counting(jobs, jobs.folder / "second", 10), "job")


def test_a_driver_that_was_overtaken_commits_nothing_more(jobs: Any) -> None:
    job = jobs.start(counting(jobs, jobs.out, None, 2000, interval=0.05))
    assert waited(lambda: len(job.checkpoints) >= 2)
    incarnation = store(jobs).claim("another run", takeover=True)
    with pytest.raises(tr.JobFailed, match=r"taken over|sealed|Fenced"):
        job.await_termination(20)
    last = job.checkpoints[-1].id
    assert max(manifests(jobs)) == last  # and its checkpoints are there for the other one
    other = store(jobs)
    with pytest.raises(Fenced):
        other.commit(incarnation - 1, last, last + 1, b"too late")


# A changed dataflow.


class Lists(tr.KeyedProcessFunction):
    """The state of `Count` by another kind."""

    n = tr.ListState(int)

    def process(self, value: int, ctx: Any) -> Iterator[Any]:
        self.n.add(value)
        yield (ctx.key, len(self.n.get()))


class More(Count):
    """Another state beside that of `Count`."""

    last = tr.ValueState(int)

    def process(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
        self.last.value = value
        return super().process(value, ctx)


class Renamed(tr.KeyedProcessFunction):
    """The state of `Count` under another name."""

    m = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
        self.m.value += 1
        yield (ctx.key, self.m.value)


@pytest.fixture
def checkpoint(jobs: Any) -> tr.Checkpoint:
    return stopped(jobs, jobs.folder / "first", 20_000)


def test_what_does_not_fit_is_named_and_may_be_dropped(jobs: Any, checkpoint: tr.Checkpoint) -> None:
    end, first = 20_000, jobs.folder / "first"

    def start(out: str, allow: Any = False, **changed: Any) -> list[str]:
        env = counting(jobs, jobs.folder / out, end, **changed)
        finish(jobs, env, out, from_checkpoint=checkpoint.path, allow_dropped_state=allow)
        return lines(first, jobs.folder / out)

    with pytest.raises(tr.IncompatibleState, match=r"uid 'count'.*not in the dataflow any more"):
        start("a", uid="tally")
    with pytest.raises(tr.IncompatibleState, match="'n' was of kind 'value' and is declared as 'list'"):
        start("b", fn=Lists())
    with pytest.raises(tr.IncompatibleState, match=r"'n' \(value\) is not declared any more.*'m'"):
        start("c", fn=Renamed())
    with pytest.raises(tr.IncompatibleState, match="uid 'count'"):
        start("d", allow=["something else"], uid="tally")

    seen = len(lines(first))
    anew = start("e", allow=["count"], uid="tally")  # counts begin again at 1; nothing is lost or repeated
    assert len(anew) == end and anew.count("(0, 1)") == 2 and seen
    anew = start("f", allow=True, fn=Renamed())
    assert len(anew) == end and anew.count("(0, 1)") == 2
    assert start("g", fn=More()) == expected(end)


def test_the_number_of_key_groups_stays(jobs: Any, checkpoint: tr.Checkpoint) -> None:
    env = jobs.env(max_parallelism=64)
    env.from_source(tr.sources.Sequence(0, 10), uid="numbers").sink_to(tr.sinks.TextFiles(str(jobs.out)))
    with pytest.raises(tr.IncompatibleState, match="max_parallelism=128"):
        env.execute("job", from_checkpoint=checkpoint.path)


def test_a_savepoint_outlives_the_job_s_folder_and_is_gone_on_from_wherever_it_was_moved(jobs: Any) -> None:
    """At another parallelism, by a job of another name with a folder of its own. Both together have each result once."""
    before, after = jobs.folder / "before", jobs.folder / "after"
    job = counting(jobs, before, None, 500.0, interval=0.1).execute("saved")
    assert waited(lambda: len(lines(before)) > 100)
    saved = job.savepoint(jobs.folder / "backup", timeout=60)
    usual = job.savepoint(timeout=60)
    assert isinstance(saved, tr.Savepoint) and saved.path == str(jobs.folder / "backup") and saved.id < usual.id
    assert Path(usual.path).parent == jobs.folder / "checkpoints" / "savepoints"
    with pytest.raises(tr.CheckpointError, match="is a savepoint already, and is not overwritten"):
        job.savepoint(jobs.folder / "backup", timeout=60)
    job.cancel()
    assert job.await_termination(60)
    shutil.rmtree(jobs.folder / "checkpoints")
    shutil.move(jobs.folder / "backup", jobs.folder / "moved")
    end = 3_000
    env = counting(jobs, after, end, parallelism=1)
    assert env.execute("other", from_checkpoint=str(jobs.folder / "moved")).await_termination(60)
    first, rest = lines(before), set(lines(after))
    assert len(rest) == len(lines(after)) and rest < set(expected(end))
    assert set(expected(end)) - rest <= set(first), (
        "what the second job has not written, the first one has made visible"
    )


def test_a_savepoint_has_what_is_left_of_a_dataframe_wherever_it_was_moved(jobs: Any) -> None:
    """The job is cancelled behind a savepoint, goes on elsewhere and leaves one again, from which a job without checkpoints
    goes on. All that was before is gone by then, and the DataFrame is not read again."""

    def env(number: int, rows: int, parallelism: int, checkpoint: Any) -> tr.Environment:
        env = jobs.env(parallelism=parallelism, checkpoint=checkpoint)
        stream = env.from_dataframe(jobs.spark.range(0, rows, 1, 6), uid="rows").map(slowly, uid="slowly")
        stream.key_by(lambda x: x % 10).process(Count(), uid="count").sink_to(
            tr.sinks.TextFiles(str(jobs.folder / f"out{number}")), uid="out"
        )
        return env

    def left_by(number: int, rows: int, parallelism: int, origin: str | None) -> str:
        folder = jobs.folder / f"checkpoints{number}"
        checkpoint = tr.CheckpointConfig(folder, interval=0.1)
        job = env(number, rows, parallelism, checkpoint).execute(f"job{number}", from_checkpoint=origin)
        jobs.started.append(job)
        assert waited(lambda: lines(jobs.folder / f"out{number}"))
        saved = job.cancel(savepoint=jobs.folder / f"saved{number}", timeout=60)
        assert job.await_termination(60) and list(Path(saved.path).glob("inputs/*/part-*.arrow"))
        moved = shutil.move(saved.path, jobs.folder / f"moved{number}")
        for one in (folder, *([] if origin is None else [origin])):
            shutil.rmtree(one)
        return str(moved)

    second = left_by(1, 0, 3, left_by(0, 1_200, 2, None))
    assert env(2, 0, 1, None).execute("job2", from_checkpoint=second).await_termination(60)
    assert lines(*(jobs.folder / f"out{number}" for number in range(3))) == expected(1_200)


def slowly(row: Any) -> int:
    time.sleep(0.001)
    return int(row.id)
