"""The figures of Kafka are of work that was done."""

from __future__ import annotations

import pytest

from benchmarks import kafka

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("work", ["read", "write"])
@pytest.mark.parametrize("system", ["client", "columns"])
def test_each_system_reads_and_writes_all_records(work: str, system: str) -> None:
    figures = kafka.run(kafka.KafkaSpec(work, system, records=2_500))
    assert figures["records_per_second"] > 0
    assert figures["cpu_us_per_record"] >= 0  # so few may take less than the clock shows


def test_tables_of_the_client_have_all_records() -> None:
    assert kafka.run(kafka.KafkaSpec("read", "tables", records=2_500))["records_per_second"] > 0


def test_one_reader_of_many_partitions_has_fewer_threads_than_one_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "IDLE", 0.1)
    one, each = (kafka.run(kafka.KafkaSpec("partitions", system, 500, partitions=4)) for system in ("one", "each"))
    assert one["threads"] < each["threads"] and one["connections"] < each["connections"]


def test_a_job_whose_output_lacks_records_gives_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kafka.JOBS, "client", lambda spec, url, topic, out: kafka.fill(url, out, spec.records))
    with pytest.raises(SystemExit, match="client: the topic has not what it must have"):
        kafka.run(kafka.KafkaSpec("map", "client", records=2_000))
