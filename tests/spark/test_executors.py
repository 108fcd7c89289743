"""Executors on which no worker can run: one sentence with the module or the Python, the executor, and the remedy."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

import tailrace as tr
from tailrace.runtime.network.config import WorkerConfig
from tailrace.spark.shipping.arrival import looking
from tailrace.spark.shipping.missing_modules import answer_text, lacking
from tailrace.spark.shipping.parcel import CARRIED, Parcel, kind_of_python
from tailrace.spark.shipping.spark_tasks import with_tailrace
from tailrace.spark.slots import worker_launch as slots_module
from tailrace.spark.slots.worker_task import worker_task
from tests.installing import OF_PYSPARK, bare, link, outside, spark_home

ABORTED = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent "
    "failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): {}\n"
    "\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:210)\n"
)


def test_another_minor_version_is_reported_with_both() -> None:
    errors = lacking(
        ABORTED.format(
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
            "version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions."
        )
    )
    assert errors is not None
    assert errors.startswith("executor 1 on 10.0.0.7 runs Python 3.12, this program Python 3.11")
    assert "PYSPARK_PYTHON" in errors


@pytest.mark.parametrize(
    "cause",
    ["error=2, No such file or directory", "Exec failed, error: 2 (No such file or directory) "],
)
def test_a_python_that_is_not_there_is_reported(cause: str) -> None:
    errors = lacking(ABORTED.format(f'java.io.IOException: Cannot run program "/opt/py/bin/python3": {cause}'))
    assert errors is not None
    assert errors.startswith("executor 1 on 10.0.0.7 cannot run the Python '/opt/py/bin/python3' (")
    assert "No such file or directory" in errors and errors.endswith("in PYSPARK_PYTHON")


@pytest.mark.parametrize(
    ("raised", "module"),
    [
        ("ModuleNotFoundError: No module named 'pyarrow'", "pyarrow"),
        ("ModuleNotFoundError: No module named 'numpy.core'", "numpy.core"),
        (
            "ImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found.",
            "PyArrow",
        ),
    ],
)
def test_what_pyspark_itself_needs_is_reported(raised: str, module: str) -> None:
    errors = lacking(ABORTED.format(raised))
    assert errors is not None and errors.startswith(f"executor 1 on 10.0.0.7 has no module {module!r}")
    assert "pyspark[sql]" in errors


@pytest.mark.parametrize("raised", ["ModuleNotFoundError: No module named 'theirs'", "KeyError: 'pandas'", ""])
def test_other_failures_are_none_of_an_executor(raised: str) -> None:
    assert lacking(ABORTED.format(raised)) is None


def test_the_answer_of_a_task_is_reported_with_place_and_remedy() -> None:
    where = {
        "host": "a",
        "python": "3.11.7",
        "program": "/usr/bin/python3",
        "kind": "cpython-311-x86_64-linux-gnu x86_64",
    }
    errors = answer_text(json.dumps({"module": "msgspec", "said": "No module named 'msgspec'", **where}))
    assert errors.startswith(
        "the executor on a has no module 'msgspec' (Python 3.11.7, /usr/bin/python3): install tailrace "
    )
    errors = answer_text(json.dumps({"module": None, "said": "tailrace needs Python 3.11", **where}))
    assert errors.startswith(
        "the executor on a cannot import tailrace (Python 3.11.7, /usr/bin/python3): tailrace needs Python"
    )
    errors = answer_text(json.dumps({"version": "0.0.9", **where}), executor="7")
    assert errors.startswith("executor 7 on a has tailrace 0.0.9, ")
    assert f"has tailrace 0.0.9, and this program has {tr.__version__}" in errors


def test_the_task_of_a_worker_is_unpickled_and_answers_where_there_is_no_tailrace(tmp_path: Path) -> None:
    """An executor unpickles the task before any of our code runs."""
    (tmp_path / "task").write_bytes(cloudpickle.dumps(worker_task(WorkerConfig(0, "job", 1, ("host", 1), b"token"))))
    program = "import pickle; [batch] = pickle.load(open('task', 'rb'))([]); print(batch['lacking'][0])"
    python = bare(tmp_path / "venv", "pyspark", "py4j", "pyarrow")
    done = subprocess.run(
        [python, "-c", program], cwd=tmp_path, env=outside(), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["module"] == "tailrace"
    # One that carries rows has no place for an answer.
    (tmp_path / "task").write_bytes(cloudpickle.dumps(with_tailrace(lambda batches: [], None)))
    failed = subprocess.run([python, "-c", program], cwd=tmp_path, env=outside(), capture_output=True, text=True)
    errors = lacking(failed.stderr)
    assert errors is not None and " has no module 'tailrace' (Python " in errors and "tailrace run --ship" in errors
    of_spark = lacking(ABORTED.format(failed.stderr))
    assert of_spark is not None and of_spark.startswith("executor 1 on ")


def test_a_task_that_has_tailrace_runs() -> None:
    assert list(with_tailrace(lambda batches: [2 * batch for batch in batches], None)([1, 2])) == [2, 4]


def test_a_process_forgets_what_an_earlier_parcel_brought(tmp_path: Path) -> None:
    """Spark uses the processes of executors again. One that had imported the user's module of an earlier archive would go on
    with it, and the results would be those of the program as it was."""
    for name, x in (("tailrace-old", 1), ("tailrace-new", 2)):
        (tmp_path / name / "program").mkdir(parents=True)
        (tmp_path / name / "program" / "their_code.py").write_text(f"x = {x}\n")
        (tmp_path / name / "program" / "their_space").mkdir()  # without an `__init__`
        (tmp_path / name / "program" / "their_space" / "inner.py").write_text(f"y = -{x}\n")
    kinds = {"tailrace-old": kind_of_python(), "tailrace-new": "another kind of Python"}
    parcels = [Parcel(name, kind, ("their_code", "their_space")) for name, kind in kinds.items()]
    looks = [looking(None), *[looking(parcel) for parcel in parcels for again in range(2)]]
    (tmp_path / "looks").write_bytes(cloudpickle.dumps(looks))
    program = """
import pickle, sys
from pyspark import SparkFiles
root, source = sys.argv[1:]
sys.path.append(source)
SparkFiles._root_directory, SparkFiles._is_running_on_worker = root, True
for look in pickle.load(open(f"{root}/looks", "rb")):
    print(look(), end=" ")
    try:
        import their_code, their_space.inner
        print(their_code.x, their_space.inner.y, end=" ")
    except ImportError:
        print("none", end=" ")
    print([place[len(root) + 1:] for place in sys.path if place.startswith(root)])
"""
    command = [sys.executable, "-c", program, str(tmp_path), str(Path(tr.__file__).parents[1])]
    done = subprocess.run(command, cwd=tmp_path, env=outside(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "None none []",
        "None 1 -1 ['tailrace-old/program', 'tailrace-old/tailrace']",
        "None 1 -1 ['tailrace-old/program', 'tailrace-old/tailrace']",
        "None 2 -2 ['tailrace-new/program', 'tailrace-new/tailrace']",
        "None 2 -2 ['tailrace-new/program', 'tailrace-new/tailrace']",
    ]


LOOKS = """
import importlib, json, pickle, sys
from pyspark import SparkFiles
root = sys.argv[1]
SparkFiles._root_directory, SparkFiles._is_running_on_worker = root, True
looks = pickle.load(open(f"{root}/looks", "rb"))
def look(name):
    answer = looks[name]()
    print(name, {k: v for k, v in json.loads(answer or "{}").items() if k not in ("host", "python", "program", "kind")})
def whose(*names):
    print(*[f"{name} {importlib.import_module(name).__file__.removeprefix(root + '/').split('/')[0]}" for name in names])
"""


def looked(folder: Path, program: str) -> list[str]:
    """The report of an executor's process that has `site` of this folder for its packages, and takes a shipped
    archive."""
    site = folder / "site"
    for package, version in (("tailrace", "9.9.9"), ("msgspec", "0.1"), ("xxhash", "99.0"), ("fsspec", "2025.7.0")):
        (site / f"{package}-{version}.dist-info").mkdir(parents=True)
        (site / f"{package}-{version}.dist-info" / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
        if package in ("xxhash", "fsspec"):
            made = Path(str(importlib.metadata.distribution(package).locate_file(package)))
            (site / package).symlink_to(made)
        else:
            (site / package).mkdir()
            (site / package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    root, source = folder / "tailrace-shipped", Path(tr.__file__).parent
    (root / "program").mkdir(parents=True)
    (root / "tailrace").mkdir()
    (root / "tailrace" / "tailrace").symlink_to(source)
    for package in CARRIED:
        (root / "needs" / package).mkdir(parents=True)
        link(importlib.metadata.distribution(package), root / "needs" / package)
    needs = tuple((package, least, package != "fsspec") for package, least in CARRIED.items())
    looks = {
        "bare": looking(None),
        "shipped": looking(Parcel(root.name, kind_of_python(), (), needs)),
        "of another kind": looking(Parcel(root.name, "another kind of Python", (), needs)),
    }
    (folder / "looks").write_bytes(cloudpickle.dumps(looks))
    command = [bare(folder / "venv", *OF_PYSPARK), "-c", LOOKS + program, str(folder)]
    environ = outside() | {"PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_executors_of_another_version_run_what_is_shipped_in_the_same_process(tmp_path: Path) -> None:
    """The process had imported the other version, to see which one it is, and could not get rid of it: the job failed with
    what was shipped as it had without. Of the packages that tailrace needs, what the executor has in a version that will do
    is used, and the rest is taken from what was shipped."""
    found = looked(
        tmp_path, "look('bare'); look('shipped'); look('shipped'); whose('tailrace', *sorted(%r))" % [*CARRIED]
    )
    assert found == [
        "bare {'version': '9.9.9'}",
        "shipped {}",
        "shipped {}",
        "tailrace tailrace-shipped fsspec site msgspec tailrace-shipped xxhash site",
    ]


def test_what_is_compiled_for_another_kind_of_python_is_not_taken(tmp_path: Path) -> None:
    """What is plain Python is: tailrace itself, too."""
    program = "look('of another kind'); sys.path.remove(f'{root}/site'); look('of another kind')"
    message = "'msgspec 0.1 is there, and tailrace needs 0.19'", "\"No module named 'msgspec'\""
    assert looked(tmp_path, program) == [f"of another kind {{'module': 'msgspec', 'said': {text}}}" for text in message]


def test_a_process_in_which_others_have_imported_another_version_is_refused(tmp_path: Path) -> None:
    """A process that has imported a version goes on with its classes; with two of each the job would fail anywhere, or be
    wrong."""
    site = tmp_path / "site"
    found = looked(tmp_path, "import tailrace; look('shipped')")
    assert found == [f"shipped {{'version': '9.9.9', 'imported': '{site}/tailrace/__init__.py'}}"]
    answer = {
        "version": "9.9.9",
        "imported": f"{site}/tailrace/__init__.py",
        "host": "a",
        "python": "3",
        "program": "p",
    }
    errors = answer_text(json.dumps({**answer, "kind": ""}), Parcel("tailrace-shipped", "", ()))
    assert f"has imported tailrace 9.9.9 from {site}" in errors and "session of its own" in errors
    assert looked(tmp_path / "two", "import msgspec; look('shipped')") == [
        "shipped {'module': 'msgspec', 'said': 'msgspec 0.1 is there, and tailrace needs 0.19'}"
    ]


class Cluster:
    """A Spark whose executors have no tailrace before they are brought it. A job calls `before` while it runs."""

    def __init__(self) -> None:
        self.archives: list[str] = []
        self.before: Any = lambda: None
        self.ran: list[tuple[int, bool]] = []
        self.task: Any = None
        self.sparkContext = SimpleNamespace(
            applicationId=f"of {id(self)}",
            master="spark://somewhere:7077",
            addArchive=self.archives.append,
            parallelize=self.parallelize,
            addJobTag=lambda tag: None,
            removeJobTag=lambda tag: None,
            setJobDescription=lambda text: None,
            _conf={},
            _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)),
        )

    def parallelize(self, numbers: list[int], slices: int) -> Cluster:
        return self

    def mapPartitions(self, rows: Any) -> Cluster:
        (self.task,) = (cell.cell_contents for cell in rows.__closure__)
        return self

    def collect(self) -> list[Any]:
        slot, parcel = self.task
        self.ran.append((slot, parcel is not None))
        before, self.before = self.before, lambda: None
        before()
        answer = {
            "module": "tailrace",
            "said": "No module named 'tailrace'",
            "host": "a",
            "python": "3",
            "program": "p",
        }
        return [(None, None if parcel else json.dumps({**answer, "kind": ""}))]


def test_slots_that_find_no_tailrace_at_the_same_time_are_all_brought_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one had its answer when the first one had shipped it already, and gave up."""
    monkeypatch.setattr(slots_module, "take_slots", lambda *args: None)
    monkeypatch.setattr(slots_module, "worker_task", lambda config, host, parcel: (config.slot, parcel))
    spark: Any = Cluster()
    slots = slots_module.SparkSlots(spark, "job", "run", 2)
    try:
        configs = [WorkerConfig(slot, "job", 1, ("host", 1), b"token") for slot in range(2)]
        first: list[Any] = []
        spark.before = lambda: first.append(slots._keep(configs[0]))
        second = slots._keep(configs[1])
        assert (first[0].error, second.error) == (None, None)
        assert spark.ran == [(1, False), (0, False), (0, True), (1, True)]
        assert len(spark.archives) == 1
    finally:
        slots.close(1)


PROGRAM = """
import importlib, json, os, sys
source, *pythons = sys.argv[1:]
sys.path.insert(0, source)
from pyspark.sql import SparkSession
import tailrace as tr

sys.path.insert(0, "lib")
import theirs
sys.path.remove("lib")  # the executors are on this machine, and would look for it there

settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local-cluster[1,2,1024]").config(map=settings).getOrCreate()

def told(python, fn=lambda x: x):
    spark.sparkContext.pythonExec = python
    env = tr.Environment(spark, parallelism=2)
    try:
        found = sorted(env.from_collection([1, 2, 3]).rebalance().map(fn).collect())
    except tr.JobFailed as error:
        found = str(error)
    print(json.dumps(found), flush=True)

without_pyarrow, without_theirs, without_tailrace, *other = pythons
told("/nowhere/python")
told(without_pyarrow)
try:
    tr.Environment(spark, parallelism=2).from_dataframe(spark.range(3)).collect()
except tr.ConfigError as error:
    print(json.dumps(str(error)), flush=True)
told(without_theirs, theirs.changed)
spark.sparkContext.pythonExec = without_tailrace
rows = tr.Environment(spark, parallelism=2).from_dataframe(spark.range(1, 4))
found = rows.map(lambda row: (theirs.changed(row.id),)).to_dataframe("n long")
print(json.dumps(sorted(row.n for row in found.collect())), flush=True)
with open("lib/theirs.py", "w") as file:
    file.write("def changed(x):\\n    return 100 * x\\n")
importlib.invalidate_caches()
sys.path.insert(0, "lib")
importlib.reload(theirs)
sys.path.remove("lib")
told(without_tailrace, theirs.changed)
for python in other:
    told(python)
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The errors of jobs on a cluster, with one Python after the other."""
    folder = tmp_path_factory.mktemp("cluster")
    source = Path(tr.__file__).parents[1]
    (folder / "program.py").write_text(PROGRAM)
    (folder / "lib").mkdir()
    (folder / "lib" / "theirs.py").write_text("def changed(x):\n    return 10 * x\n")
    pythons = [
        bare(folder / "without_pyarrow"),
        bare(folder / "without_theirs", *OF_PYSPARK, *CARRIED),
        bare(folder / "without_tailrace", *OF_PYSPARK),
    ]
    (site,) = (folder / "without_theirs").glob("lib/python*/site-packages")
    (site / "tailrace").symlink_to(source / "tailrace")
    if (other := another_python()) is not None:
        pythons.append(other)
    done = subprocess.run(
        [sys.executable, "program.py", source, *pythons],
        cwd=folder,
        env=outside() | {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(spark_home(folder / "spark"))},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("is shipped to them") == 1
    return [json.loads(line) for line in done.stdout.splitlines()]


def another_python() -> Path | None:
    """A Python of another minor version than this one that Spark supports, on PATH or of pyenv, where there is one."""
    for minor in {11, 12, 13} - {sys.version_info[1]}:
        found = shutil.which(f"python3.{minor}")
        of_pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python"))
        for candidate in [*([found] if found else []), *of_pyenv]:
            requested = [str(candidate), "-c", "import sys; print(sys.version_info[1])"]
            done = subprocess.run(requested, capture_output=True, text=True)
            if done.stdout.strip() == str(minor):
                return Path(candidate)
    return None


@pytest.mark.spark
def test_a_python_that_executors_do_not_have_is_one_error(errors: list[Any]) -> None:
    assert re.search(r"executor \d+ on \S+ cannot run the Python '/nowhere/python'", errors[0])
    assert "in PYSPARK_PYTHON" in errors[0]
    assert len(errors[0].splitlines()) == 1


@pytest.mark.spark
def test_executors_without_pyarrow_are_one_error(errors: list[Any]) -> None:
    assert "'pyarrow'" in errors[1].lower() and "pyspark[sql]" in errors[1]
    assert re.search(r"worker \d cannot be started: executor 0 on \S+ has no module", errors[1])
    assert len(errors[1].splitlines()) == 1


@pytest.mark.spark
def test_a_dataframe_on_its_way_in_has_the_same_error(errors: list[Any]) -> None:
    assert (
        errors[2].startswith("from_dataframe: ")
        and "'pyarrow'" in errors[2].lower()
        and len(errors[2].splitlines()) == 1
    )


@pytest.mark.spark
def test_executors_without_a_module_of_the_user_are_one_error(errors: list[Any]) -> None:
    assert "cannot import theirs" in errors[3] and f"on {socket.gethostname()}, Python" in errors[3]
    assert "tailrace run --ship" in errors[3] and len(errors[3].splitlines()) == 1
    assert errors[3].endswith(", in executor 0")


@pytest.mark.spark
def test_executors_without_tailrace_are_brought_it_with_the_users_modules(errors: list[Any]) -> None:
    """A job with DataFrames on their way in and out."""
    assert errors[4] == [10, 20, 30]


@pytest.mark.spark
def test_a_module_that_was_changed_is_shipped_anew(errors: list[Any]) -> None:
    """Executors use their processes again, which have imported the module as it was."""
    assert errors[5] == [100, 200, 300]


@pytest.mark.spark
def test_executors_with_another_python_are_one_error_with_both_versions(errors: list[Any]) -> None:
    if len(errors) < 7:
        pytest.skip("there is no other Python on this machine")
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"this program Python {mine}, and PySpark needs the same" in errors[6]
    assert len(errors[6].splitlines()) == 1
