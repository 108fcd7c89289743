"""What tests share: one Spark session for all that need one."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pyspark import cloudpickle

from tailrace.log import sparing
from tests import buckets, class_archive, servers
from tests.servers import Server

# How long an example takes depends more on the machine than on the code. The examples are the same in each run: what one run
# finds, the next one finds again. `HYPOTHESIS_PROFILE=default` draws others.
settings.register_profile("the same each time", deadline=None, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "the same each time"))

# Tests look at what is left in the temporary folder. What runs beside them leaves its things in another one.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) is not None:
    mine = os.path.join(os.environ.setdefault("TAILRACE_TESTS_TEMP", tempfile.gettempdir()), f"tailrace-tests-{worker}")
    os.makedirs(mine, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = mine

for name, options in class_archive.options().items():
    os.environ.setdefault(name, options)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive", action="store_true", help="all seeds and combinations, also those that CI leaves out"
    )


@pytest.fixture(scope="session")
def exhaustive(pytestconfig: pytest.Config) -> bool:
    """True where a test goes through all of its seeds and combinations, not through the smaller selection of CI."""
    return bool(pytestconfig.getoption("--exhaustive"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on `local[4]`, as `tailrace` starts it. Shared by all tests of a run: leave it as it was."""
    from tailrace.spark.cluster.session import local_session

    session = local_session(4)
    yield session
    session.stop()


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder that need not outlive anything: in memory, where the machine has some. A RocksDB waits for a disk
    whenever it is opened, whatever its options."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 1 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-tests-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A server that speaks S3, by its URL. Shared by all tests of a process."""
    with buckets.serving() as endpoint:
        yield endpoint


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of its own; the environment has its endpoint and credentials."""
    for name, value in {"AWS_ENDPOINT_URL": s3_endpoint, **buckets.ENVIRONMENT}.items():
        monkeypatch.setenv(name, value)
    return f"s3a://{buckets.new_bucket(s3_endpoint)}"


@pytest.fixture(scope="session")
def kafka() -> Iterator[Server]:
    """A broker of Kafka. Shared by all tests of a process: topics and groups have names of their own, and a test that kills
    it starts it anew, or takes one of its own (`tests.servers.kafka_server`)."""
    with servers.kafka_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server. Shared by all tests of a process, as `kafka` is."""
    with servers.postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """A Valkey server, which speaks Redis' protocol. Shared by all tests of a process, as `kafka` is."""
    with servers.valkey_server() as server:
        yield server


@pytest.fixture(scope="session")
def nats() -> Iterator[Server]:
    """A NATS server with JetStream. Shared by all tests of a process, as `kafka` is."""
    with servers.nats_server() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def _functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers need not be able to import the test's module, wherever pytest was started."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(autouse=True)
def _warnings_are_reset() -> None:
    """What another test was warned of is no news to this one."""
    sparing.forget()


# To import all files takes a quarter of a minute in each process, and few of them have tests with Spark.
RARE = {
    "spark": "pytest.mark.spark",
    "paths": "pytest.mark.paths",
    "search and not spark": "pytest.mark.search",
    "servers and not spark": "pytest.mark.servers",
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For a run that selects a rare mark: files that do not name it, nor does the `conftest.py` beside them."""
    mark = RARE.get(config.option.markexpr)
    if mark is None or collection_path.suffix != ".py":
        return None
    beside = collection_path.with_name("conftest.py")
    places = [collection_path, *([beside] if beside.exists() and beside != Path(__file__) else [])]
    return not any(mark in place.read_text() for place in places) or None


# Those files with Spark that take longest, the longest first: processes that take one file after the other (`./dev`)
# then end at about the same time.
# fmt: off
LONGEST = [
    "test_cluster", "test_allocation", "test_connect", "test_started_once_more", "test_losses_by_chance", "test_recovery",
    "test_flights", "test_executors", "test_service", "test_programs", "test_dataframes", "test_program", "test_submit",
    "test_run", "test_failures", "test_loop_recovery", "test_package", "test_flights_faults", "test_load",
    "test_checkpoints", "test_strangers", "test_types",
    "test_cancel", "test_golden", "test_aggregates_by_chance", "test_docs", "test_routes", "test_materialised",
]
# fmt: on


# Parameters and seeds that take longest among several of the same test or of a test beside it: only --exhaustive runs them.
MORE_OF_THE_SAME = {
    "tests/connectors/files/test_partitioned.py::test_rows_come_back_from_folders_by_columns[s3-0]",
    "tests/coordinator/loops/test_loop_orders.py::test_two_heads_in_every_order",
    "tests/examples/test_archive.py::test_each_line_is_in_the_folder_of_its_day[None-1]",
    "tests/examples/test_archive.py::test_each_line_is_in_the_folder_of_its_day[None-2]",
    "tests/examples/test_archive.py::test_each_line_is_in_the_folder_of_its_day[roll1-1]",
    "tests/examples/test_flights.py::test_january_is_the_same_at_any_parallelism_and_in_any_order_of_events[3-2]",
    "tests/examples/test_pipelines.py::test_visits_have_the_places_that_a_service_gives[1]",
    "tests/examples/test_supersteps.py::test_the_ranks_are_those_of_networkx[1-None]",
    "tests/simulation/test_failing.py::test_random_dataflows_are_right_though_their_workers_fail",
    "tests/simulation/test_overtaking.py::test_random_flows_left_with_records_in_flight_go_on_at_other_parallelisms[9]",
    "tests/simulation/test_replacing.py::test_random_dataflows_are_right_though_several_are_lost_at_once_with_records_in_flight",
}


def _only_exhaustive(item: pytest.Item) -> bool:
    return item.get_closest_marker("exhaustive") is not None or item.nodeid in MORE_OF_THE_SAME


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what is left of the simulated jobs when their time in CI is over: the tests behind them must still run."""
    until = float(os.environ.get("TAILRACE_SEARCH_UNTIL", "inf"))
    if item.get_closest_marker("search") and not item.get_closest_marker("spark") and time.time() > until:
        pytest.skip("the time of simulated jobs in CI is over")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--exhaustive"):
        left_out = [item for item in items if _only_exhaustive(item)]
        items[:] = [item for item in items if not _only_exhaustive(item)]
        config.hook.pytest_deselected(items=left_out)
    places = {f"{name}.py": place for place, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> int:
        return places.get(item.path.name, len(places)) if item.get_closest_marker("spark") else len(places)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """All test files are there to stay: nobody need look for garbage among what they have made."""
    gc.collect()
    gc.freeze()


TOGETHER = {f"tests/spark/test_{name}.py": "tests/spark/test_cluster.py" for name in ("allocation", "connect")}
"""Files that share what is made once in a process: a cluster."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where files are spread: as one, those that belong together."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return TOGETHER.get(file, file)

    return Files(config, log)
