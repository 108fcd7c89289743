"""Requests to Spark Connect, and what follows from the answers; without a server."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkImportError
from pyspark.sql import SparkSession

import tailrace as tr
from tailrace.cli import run_file
from tailrace.runtime.network.config import WorkerConfig
from tailrace.spark.cluster.capacity import slots_of
from tailrace.spark.cluster.connect import Connect
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.spark.cluster.session import remote_session
from tailrace.spark.shipping.missing_modules import check_reach
from tailrace.spark.slots import slot_reservations
from tailrace.spark.slots.worker_task import worker_task


def session(endpoint: str = "127.0.0.1:15002", splits: int = 6, **conf: str) -> Any:
    """A client's session whose server has these settings, `_` for the dot, and so many cores."""
    settings = {name.replace("_", "."): value for name, value in conf.items()}
    plan = f"== Physical Plan ==\n*(1) Range (0, 1000000, step=1, splits={splits})\n"
    return SimpleNamespace(
        session_id="session",
        is_stopped=False,
        conf=SimpleNamespace(get=settings.get),
        sql=lambda text: SimpleNamespace(collect=lambda: [[plan]]),
        client=SimpleNamespace(_builder=SimpleNamespace(endpoint=endpoint)),
    )


# Slots.


def test_the_plan_of_a_query_tells_how_many_cores_a_server_has() -> None:
    assert Connect(session(splits=6)).total_slots() == 6
    assert Connect(session(splits=6, spark_task_cpus="2", spark_executor_cores="3")).total_slots() == 2


@pytest.mark.parametrize("name", ["spark_default_parallelism", "spark_sql_leafNodeDefaultParallelism"])
def test_a_server_that_says_something_else_there_is_not_believed(name: str) -> None:
    """Then the job starts, and its `slot_timeout` decides: it must not be refused for a number that means nothing."""
    app = Connect(session(splits=2, **{name: "2"}))
    assert app.total_slots() is None
    try:
        assert slot_reservations.take_slots(app, 5, "job", "a tag") is None
    finally:
        slot_reservations.give_back("a tag")


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, 12),
        ({"spark.task.cpus": "1"}, 12),
        ({"spark.task.cpus": "2"}, None),
        ({"spark.task.cpus": "2", "spark.executor.cores": "4"}, 6),
        ({"spark.task.cpus": "2", "spark.executor.cores": "3"}, 4),
        ({"spark.task.cpus": "0.5", "spark.executor.cores": "4"}, 24),
        ({"spark.task.cpus": "2", "spark.executor.cores": "5"}, None),
    ],
)
def test_cores_are_slots_by_what_a_task_takes_of_each_executor(settings: dict[str, str], slots: int | None) -> None:
    assert slots_of(12, settings.get) == slots


# Addresses.


@pytest.mark.parametrize(
    ("conf", "message", "address"),
    [
        ({"spark_driver_host": "127.0.0.2", "spark_master": "spark://there:7077"}, None, ("127.0.0.2", "127.0.0.2")),
        ({"spark_driver_host": "192.0.2.1", "spark_master": "spark://there:7077"}, None, ("127.0.0.1", "127.0.0.1")),
        ({"spark_driver_host": "127.0.0.2", "spark_master": "local[4]"}, None, ("127.0.0.1", "127.0.0.1")),
        ({"spark_driver_host": "127.0.0.2", "spark_master": "local[4]"}, "127.0.0.3", ("127.0.0.3", "")),
        ({"spark_driver_host": "127.0.0.2", "spark_master": "spark://x"}, "192.0.2.1", ("192.0.2.1", "127.0.0.2")),
    ],
)
def test_executors_dial_the_address_that_leads_to_the_server(
    conf: dict[str, str], message: str | None, address: tuple[str, str]
) -> None:
    """Behind a server on this machine there may be executors on others: they reach its driver, and so this process, at
    the driver's address. The address that the user gives to be dialed is bound where this machine has it."""
    assert Connect(session(**conf)).address(message) == address


def test_a_connection_of_the_users_own_making_needs_an_address() -> None:
    app = Connect(session(endpoint="made elsewhere"))
    with pytest.raises(tr.ConfigError, match="set TAILRACE_DRIVER_HOST to the address"):
        app.address(None)
    assert app.address("127.0.0.1") == ("127.0.0.1", "")
    assert app.over() is None


def test_a_server_that_is_gone_is_noticed_and_not_asked_any_more() -> None:
    """The client of Spark Connect tries to reach it for ten minutes."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        host, port = door.getsockname()
        found = session(endpoint=f"{host}:{port}")
        app = Connect(found)
        assert f"the Spark Connect server at 127.0.0.1:{port} is gone" in str(app.over())
        app.cancel("a tag")  # the session has no `interruptTag`
        door.listen()
        assert app.over() is None
        found.is_stopped = True
        assert app.over() == "the Spark session was stopped"


def test_a_worker_that_cannot_dial_the_driver_answers_so() -> None:
    """When it raised, Spark tried again three times, and printed a traceback."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        config = WorkerConfig(0, "job", 1, door.getsockname(), b"a token of the job")
        [answer] = list(worker_task(config)(iter([])))
        [row] = answer.to_pylist()
        assert row["left"] is None
        with pytest.raises(tr.ConfigError, match=r"cannot reach the driver at 127\.0\.0\.1:.*set TAILRACE_DRIVER_HOST"):
            check_reach(row["lacking"])


# Sessions.


def test_a_package_that_spark_connect_lacks_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(self: Any) -> None:
        parameters = {"package_name": "grpcio", "minimum_version": "1.76"}
        raise PySparkImportError(errorClass="PACKAGE_NOT_INSTALLED", messageParameters=parameters)

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lacking)
    with pytest.raises(tr.ConfigError, match=r"grpcio.*pip install 'tailrace\[connect\]'"):
        remote_session("sc://there", 2)


def test_a_script_gets_the_server_that_the_command_line_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script gets that server where it builds a session of its own, too: a master with `sc://` is none that Spark's
    launcher knows."""
    for name in ("SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.setenv(name, "")  # so that it is taken away again
        monkeypatch.delenv(name)
    for name in ("master", "parallelism", "progress", "conf"):
        monkeypatch.setattr(DEFAULTS, name, getattr(DEFAULTS, name))
    run_file._settings("sc://there:15002", 2, {}, True)
    assert run_file.os.environ["SPARK_REMOTE"] == "sc://there:15002"
    assert "PYSPARK_SUBMIT_ARGS" not in run_file.os.environ
    assert DEFAULTS.spark_master() == "sc://there:15002"
