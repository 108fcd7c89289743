"""An empty environment with a wheel in it, as `pip install` makes one, in seconds: what the wheel requires is linked from
the environment of the tests, and nothing else is there."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyspark
from packaging.requirements import Requirement

from tests.environ import plain_environ

OF_PYSPARK = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "python-dateutil", "pytz", "six", "tzdata")
"""What PySpark itself needs where its tasks run."""


def environment(folder: Path, wheel: Path, extras: Iterable[str] = ()) -> Path:
    """Makes a virtual environment with this wheel, these extras of it, and what they require. Returns its Python."""
    python, site = _made(folder)
    pip_install(python, "--no-index", "--no-deps", "--no-compile", str(wheel))
    (own,) = importlib.metadata.distributions(name="tailrace", path=[str(site)])
    for found in sorted(requested_by(own, frozenset(extras))):
        link(importlib.metadata.distribution(found), site)
    return python


def bare(folder: Path, *distributions: str) -> Path:
    """Makes a virtual environment with these distributions and no others. Returns its Python."""
    python, site = _made(folder)
    for name in distributions:
        link(importlib.metadata.distribution(name), site)
    return python


def spark_home(folder: Path) -> Path:
    """The Spark of this environment in another place: a local cluster writes into the home of its Spark."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    return folder


def _made(folder: Path) -> tuple[Path, Path]:
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    return folder / "bin" / "python", site


def pip_install(python: Path, *what: str) -> None:
    """Installs with the pip of the tests into the environment of another Python."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *what]
    subprocess.run(command, check=True, env=outside())


def outside() -> dict[str, str]:
    """The surroundings of somebody who has an environment and no checkout."""
    return {name: value for name, value in plain_environ().items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def requested_by(own: importlib.metadata.Distribution, extras: frozenset[str]) -> set[str]:
    """The names of all distributions that this one needs, directly or not. Raises `AssertionError` for one that is here in
    a version that is not wanted, and `PackageNotFoundError` for one that is not here."""
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(own, extras)]
    while todo:
        distribution, with_extras = todo.pop()
        for expected in requirements(distribution, with_extras):
            key = (expected.name, frozenset(expected.extras))
            if key not in seen:
                seen.add(key)
                found = importlib.metadata.distribution(expected.name)
                assert expected.specifier.contains(found.version, prereleases=True), (
                    f"{expected}, and here is {found.version}"
                )
                todo.append((found, frozenset(expected.extras)))
    return {name for name, _ in seen}


def requirements(distribution: importlib.metadata.Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in distribution.requires or ():
        expected = Requirement(text)
        if expected.marker is None or any(expected.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield expected


def link(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Puts a distribution of this environment into another one."""
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    assert tops, f"{distribution.name} does not say which files it has"
    for top in sorted(tops):
        place = site / top
        if not place.is_symlink():  # of a namespace that several share
            os.symlink(str(distribution.locate_file(top)), place)
