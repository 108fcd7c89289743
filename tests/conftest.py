"""What tests share: one Spark session for all that need one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from pyspark import cloudpickle

# How long an example takes says more of the machine than of the code.
settings.register_profile("no deadlines", deadline=None)
settings.load_profile("no deadlines")

# Tests look at what is left in the temporary folder. What runs beside them leaves its things in another one.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) is not None:
    mine = os.path.join(os.environ.setdefault("TAILRACE_TESTS_TEMP", tempfile.gettempdir()), f"tailrace-tests-{worker}")
    os.makedirs(mine, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = mine

# A Spark of a test lives for seconds: compiled thoroughly, its code takes longer to compile than it then saves.
for options in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):  # of the JVM itself, and of the one that makes its command
    os.environ.setdefault(options, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on `local[4]`, as `tailrace` starts it. Shared by all tests of a run: leave it as it was."""
    from tailrace.spark.session import local_session

    session = local_session(4)
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def _functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers need not be able to import the test's module, wherever pytest was started."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
