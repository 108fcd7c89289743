"""Stream readers of Python Data Sources: ranges of offsets, each row once, whatever is restarted."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.connectors.sinks import Collect
from tailrace.spark.data.outputsource import LIMITS
from tailrace.spark.datasources.offsets import StreamOffsets
from tailrace.spark.datasources.source import data_source
from tailrace.testing.faults import Fault
from tests.spark.datasources.shop import Letters, OldVisits, Orders, Visits, orders
from tests.task.operators.sources.test_splits import counted_in


def read(source: Any, options: Any = None, *, form: Any = "rows", parallelism: int = 2) -> list[Any]:
    env, sink = tr.Environment(parallelism=parallelism), Collect()
    env.from_data_source(source, options, form=form, until="now").sink_to(sink)
    tr.testing.run(env)
    return list(map(tuple, sink.result()))


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("source", [Visits, OldVisits, Letters])
def test_all_rows_of_all_ranges_are_read(source: Any, form: str) -> None:
    assert sorted(read(source, {"count": 95, "parts": 3}, form=form)) == orders(0, 95)


@pytest.mark.skipif(not LIMITS, reason="Spark 4.2 and later say where a range begins")
def test_a_partition_follows_the_one_of_its_place_in_the_range_before() -> None:
    """Whatever the parallelism is, rows of partition 0 of all ranges come in order, and those of partition 1."""
    for parallelism in (1, 2, 3):
        found = [number for number, _ in read(Visits, {"count": 90, "step": 10, "parts": 2}, parallelism=parallelism)]
        for place in (0, 1):
            mine = [number for number in found if number % 10 // 5 == place]
            assert mine == sorted(mine) and len(mine) == 45


def test_restarts_read_the_same_ranges_and_no_row_twice(tmp_path: Path) -> None:
    """Each range is planned once, as long as it is in a checkpoint; what is committed was processed."""
    for source, seed in ((Visits, 1), (Letters, 2), (Visits, 3)):
        log = tmp_path / f"log-{seed}"
        log.touch()
        mode = "unaligned" if seed == 3 else "aligned"
        checkpoint = tr.CheckpointConfig(dir=str(tmp_path / str(seed)), interval=0.02, mode=mode)
        env = tr.Environment(parallelism=3, checkpoint=checkpoint, restart=tr.FixedDelay(20, 0.01))
        sink = Collect()
        options = {"count": 900, "parts": 4, "step": 90, "log": log}
        env.from_data_source(source, options, until="now").rebalance().sink_to(sink)
        faults = [Fault(turn, "kill", worker) for turn, worker in ((200, 0), (500, 1), (800, 0), (1_100, 2))]
        job = tr.testing.simulate(env, seed=seed, faults=faults)
        job.await_termination()
        assert job.metrics()["restarts"] > 0
        assert sorted(sink.result()) == orders(0, 900)
        commits = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("commit")]
        assert source is Letters or (commits and max(commits) == 900)


@pytest.mark.parametrize("source", [Visits, Letters, Orders])
def test_every_row_counts_once_however_often_the_job_is_lost_and_whatever_its_parallelism(source: Any) -> None:
    """Any order of messages, steps, cuts, confirmations and aborts; the job is lost at any moment, and goes on from its
    newest complete checkpoint at another parallelism, again and again."""
    reading = {} if source is Orders else {"until": "now", "every": 0}

    def make(_: list[Any]) -> tuple[tr.Source, bool]:
        options = {"count": 120, "step": 25, "parts": 3}
        return data_source(None, source, options, None, "rows", reading), False

    for seed in range(3):
        counted = counted_in(make, [], random.Random(f"{source.name()} {seed}"))
        assert sorted(counted) == orders(0, 120), seed


def test_a_worker_that_is_replaced_reads_on_while_the_others_go_on(tmp_path: Path) -> None:
    for source, seed in ((Visits, 1), (Letters, 2)):
        checkpoint = tr.CheckpointConfig(dir=str(tmp_path / str(seed)), interval=0.05)
        env = tr.Environment(parallelism=2, checkpoint=checkpoint, standby=tr.StandbyConfig(replicas=1))
        sink = Collect()
        env.from_data_source(source, {"count": 600, "parts": 3, "step": 60}, until="now").rebalance().sink_to(sink)
        faults = [Fault(400, "kill", 0), Fault(900, "kill", 1)]
        job = tr.testing.simulate(env, seed=seed, faults=faults)
        job.await_termination()
        assert sorted(sink.result()) == orders(0, 600)


@pytest.mark.skipif(not LIMITS, reason="Spark 4.2 and later say where a range begins")
def test_errors_of_a_reader_name_partition_and_offsets() -> None:
    with pytest.raises(tr.JobFailed, match="the shop is closed") as failed:
        read(Visits, {"failsAt": 47, "step": 50})
    where = (
        """while reading partition 1 of the data source 'visits', from {"shop": {"at": 0}} to {"shop": {"at": 50}}"""
    )
    assert where in str(failed.value)


def test_before_pyspark_4_2_a_reader_is_given_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def latestOffset(self, *given: Any) -> Any:
            return {"given": len(given)}

    offsets = StreamOffsets(Reader(), "visits")
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    assert offsets.latest("{}") == '{"given": 0}'


def test_offsets_that_are_no_json_are_refused() -> None:
    class Broken(Visits):
        def streamReader(self, schema: Any) -> Any:
            reader = super().streamReader(schema)
            reader.initialOffset = BROKEN
            return reader

    with pytest.raises(
        tr.JobFailed, match=r"initialOffset\(\) of the data source 'visits' returned \{1, 2\}, and offsets"
    ):
        read(Broken)


def BROKEN() -> Any:
    return {1, 2}


def test_a_data_source_without_such_a_reader_is_refused() -> None:
    env = tr.Environment()
    with pytest.raises(tr.GraphError, match="'orders' has no stream reader"):
        env.from_data_source(Orders, follow=True)
    with pytest.raises(tr.GraphError, match="'orders' has no stream reader"):
        env.from_data_source(Orders, until="now")
    with pytest.raises(tr.GraphError, match="'visits' has no batch reader"):
        env.from_data_source(Visits, follow=False)
    with pytest.raises(tr.ConfigError, match="until is 'now'"):
        env.from_data_source(Visits, until="later")  # type: ignore[arg-type]
