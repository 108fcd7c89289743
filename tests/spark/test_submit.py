"""Programs under `spark-submit`, and on a cluster whose executors have a Python of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tailrace as tr
from tests.installing import OF_PYSPARK, bare, outside, spark_home

pytestmark = pytest.mark.spark

SOURCE = str(Path(tr.__file__).parents[1])
FLOW = """
import tailrace as tr
import theirs

def build(env):
    env.from_collection([1, 2, 3]).rebalance().map(theirs.tenfold).sink_to(tr.sinks.TextFiles("out"))

if __name__ == "__main__":
    env = tr.Environment(parallelism=2)
    build(env)
    env.execute("submitted").await_termination()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "theirs.py").write_text("def tenfold(x):\n    return 10 * x\n")
    return tmp_path


def submit(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    home = spark_home(folder / "spark")
    env = outside() | {"SPARK_HOME": str(home), "PYTHONPATH": SOURCE, "PYSPARK_DRIVER_PYTHON": sys.executable}
    quiet = ["--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"]
    command = [str(home / "bin" / "spark-submit"), *quiet, *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250, check=False)


def numbers(folder: Path) -> list[int]:
    return sorted(int(line) for file in (folder / "out").glob("part-*") for line in file.read_text().split())


def test_a_program_runs_under_spark_submit(folder: Path) -> None:
    done = submit(folder, "--master", "local[3]", "flow.py")
    assert done.returncode == 0, done.stderr
    assert numbers(folder) == [10, 20, 30]


def test_a_standalone_cluster_has_no_cluster_mode_for_python(folder: Path) -> None:
    """Spark refuses it itself, before it looks for the master. The guide lists which masters have it."""
    done = submit(folder, "--master", "spark://127.0.0.1:9", "--deploy-mode", "cluster", "flow.py")
    assert done.returncode != 0
    assert (
        "Cluster deploy mode is currently not supported for python applications on standalone clusters" in done.stderr
    )


def test_a_command_ships_all_that_executors_lack(folder: Path) -> None:
    """The executors' Python has PySpark and its packages. It is named by the setting, which PySpark heeds under
    spark-submit only."""
    python = bare(folder / "venv", *OF_PYSPARK)
    temp = folder / "a space"
    temp.mkdir()
    # Executors inherit the environment, and must not find tailrace by it.
    program = f"import sys; sys.path.insert(0, {SOURCE!r}); from tailrace.__main__ import main; main()"
    env = outside() | {"SPARK_HOME": str(spark_home(folder / "spark")), "TMPDIR": str(temp)}
    settings = [f"spark.pyspark.python={python}", "spark.ui.enabled=false", "spark.log.level=ERROR"]
    command = [sys.executable, "-c", program, "run", "--ship", "--no-progress", "--master", "local-cluster[1,2,1024]"]
    command += [*(word for setting in settings for word in ("--conf", setting)), "flow.py:build"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "is shipped to them" not in done.stderr
    assert numbers(folder) == [10, 20, 30]
