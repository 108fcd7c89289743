"""A process of an executor finds out which one that is."""

from __future__ import annotations

import pytest

from tailrace.spark.shipping.executor_id import executor_here

LOG = "http://10.0.0.1:8081/logPage/?appId=app-20260101000000-0000&executorId=7&logType=stdout"


@pytest.mark.parametrize(
    ("environ", "executor"),
    [
        ({"SPARK_EXECUTOR_ID": "3", "HOME": "/"}, "3"),
        ({"SPARK_LOG_URL_STDOUT": LOG}, "7"),
        (
            {"CONTAINER_ID": "container_1_0001_01_000002", "SPARK_LOG_URL_STDOUT": "http://node:8042/logs"},
            "container_1_0001_01_000002",
        ),
        ({"HOME": "/"}, ""),
    ],
    ids=["Kubernetes", "standalone", "YARN", "local"],
)
def test_each_cluster_manager_has_told_it_in_its_own_way(environ: dict[str, str], executor: str) -> None:
    assert executor_here(environ) == executor
