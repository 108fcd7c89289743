"""`tr.testing.run` and `tr.testing.simulate`: a job without Spark, in this process, with its results at hand."""

import gc
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr


def doubled(env: tr.Environment, n: int = 5) -> tr.DataStream:
    return env.from_source(tr.sources.Sequence(0, n)).map(lambda x: 2 * x)


@pytest.mark.parametrize("how", [tr.testing.run, tr.testing.simulate])
def test_a_result_lives_as_long_as_its_sink(how: Any) -> None:
    env = tr.Environment(parallelism=2)
    out = doubled(env).sink_to(tr.sinks.Collect())
    how(env)  # the job's handle is not kept
    del env
    gc.collect()
    folder = Path(out.directory)
    assert sorted(out.result()) == sorted(out.result()) == [0, 2, 4, 6, 8]
    assert folder.is_dir()
    del out
    gc.collect()
    assert not folder.exists()


def test_run_raises_what_made_the_job_fail_and_simulate_returns_the_job() -> None:
    def failing() -> tr.Environment:
        env = tr.Environment(parallelism=2)
        doubled(env).map(lambda x: 1 // (x - 4), name="bad").sink_to(tr.sinks.Collect())
        return env

    with pytest.raises(tr.JobFailed, match="operator 'bad', subtask 0, record 4: ZeroDivisionError"):
        tr.testing.run(failing())
    job = tr.testing.simulate(failing(), seed=1, name="doubling")
    assert job.status is tr.JobStatus.FAILED
    error = job.exception()
    assert error is not None and (error.job, error.operator, error.record) == ("doubling", "bad", "4")
    with pytest.raises(tr.JobFailed, match="job 'doubling' failed"):
        job.await_termination()


def test_a_finished_job_says_so() -> None:
    env = tr.Environment(parallelism=2)
    doubled(env).sink_to(tr.sinks.Callback(lambda record: None))
    job = tr.testing.run(env)
    assert (job.status, job.exception(), job.await_termination()) == (tr.JobStatus.FINISHED, None, True)


def test_figures_are_per_vertex_and_subtask() -> None:
    env = tr.Environment(parallelism=2)
    doubled(env, 10).key_by(lambda x: x).count().sink_to(tr.sinks.Callback(lambda record: None))
    figures = tr.testing.run(env).metrics()
    assert (figures["records_in"], figures["records_out"]) == (10, 10)
    subtasks = [(one["vertex"], one["subtask"]) for one in figures["subtasks"]]
    assert len(set(subtasks)) == len(subtasks) == 4
    assert sum(one["records_in"] for one in figures["subtasks"]) == 20


def test_plain_functions_run_as_they_are_and_here(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    env = tr.Environment(parallelism=1)
    doubled(env, 3).map(seen.append).sink_to(tr.sinks.Print("> "))
    tr.testing.run(env)
    assert seen == [0, 2, 4]
    assert capsys.readouterr().out == "> None\n> None\n> None\n"


def test_print_names_the_subtask_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    env = tr.Environment(parallelism=2)
    env.from_source(tr.sources.Sequence(0, 4)).sink_to(tr.sinks.Print())
    tr.testing.run(env)
    assert sorted(capsys.readouterr().out.splitlines()) == ["0> 0", "0> 2", "1> 1", "1> 3"]


def test_the_users_own_records_and_functions_are_left_alone() -> None:
    class Growing(tr.MapFunction):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def map(self, value: int) -> int:
            self.seen.append(value)
            return len(self.seen)

    growing, records = Growing(), [1, 2, 3]
    for _ in range(2):
        env = tr.Environment(parallelism=1)
        out = env.from_collection(records).map(growing).sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        assert out.result() == [1, 2, 3]
    assert growing.seen == [] and records == [1, 2, 3]


def test_what_a_simulated_worker_gets_was_pickled() -> None:
    seen: list[int] = []
    env = tr.Environment(parallelism=1)
    doubled(env, 3).map(seen.append).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env).await_termination()
    assert seen == []


def test_after_a_failure_nothing_is_left_in_the_folders_of_sinks(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, 100))
    # This sink is done, and its files are prepared, long before the other branch fails.
    env.from_collection(range(10)).sink_to(tr.sinks.TextFiles(str(tmp_path / "text")))
    numbers.map(lambda x: (x,)).sink_to(tr.sinks.Parquet(str(tmp_path / "parquet"), pa.schema({"x": pa.int64()})))
    numbers.rebalance().map(lambda x: 1 // (99 - x)).sink_to(tr.sinks.Callback(lambda record: None))
    with pytest.raises(tr.JobFailed):
        tr.testing.run(env)
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == []


@pytest.mark.parametrize("how", [tr.testing.run, tr.testing.simulate])
def test_each_run_adds_files_of_its_own_to_a_folder(how: Any, tmp_path: Path) -> None:
    """Names of files have the run in them. Two runs of one seed were one run for them: the second replaced the first's."""
    for values in ([1, 2, 3], [4]):
        env = tr.Environment(parallelism=1)
        env.from_collection(values).sink_to(tr.sinks.TextFiles(str(tmp_path)))
        how(env)
    assert sorted(line for file in tmp_path.iterdir() for line in file.read_text().split()) == ["1", "2", "3", "4"]


def test_an_environment_may_run_in_pieces() -> None:
    env = tr.Environment(parallelism=1)
    stream = doubled(env, 3)
    first = stream.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    second = stream.map(str).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert (first.result(), second.result()) == ([0, 2, 4], ["0", "2", "4"])


def test_records_of_a_class_that_pickle_cannot_find_fail_the_job_at_once() -> None:
    """A class inside of a function has no name by which pickle would find it again. No restart mends that, so there is
    none, and the error names where the class must be."""

    class Hidden:
        pass

    env = tr.Environment(parallelism=2, restart=tr.FixedDelay(attempts=3, delay=0.0))
    made = env.from_source(tr.sources.Sequence(0, 4), parallelism=1).map(lambda n: Hidden(), name="make")
    made.rebalance().filter(lambda r: True).sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env)
    assert job.status is tr.JobStatus.FAILED
    assert "move it out of the function, to the top level of the program or a module" in str(job.exception())
    assert job.trace and not any("RESTARTING" in line for line in job.trace)


class Endless(tr.Source):
    """A source that never ends."""

    bounded = False

    def reader(self, split: str, position: Any = None) -> Any:
        raise AssertionError("nobody reads it")


@pytest.mark.parametrize("how", [tr.testing.run, tr.testing.simulate, tr.testing.audit])
def test_a_source_without_an_end_is_refused(how: Any) -> None:
    """`simulate` never returned."""
    env = tr.Environment(parallelism=2)
    doubled(env).union(env.from_source(Endless(), name="clicks")).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.GraphError, match=r"'clicks' is unbounded.*give it an end"):
        how(env)
