"""What Tailrace cannot run on is refused when it is imported, with what to do."""

from __future__ import annotations

import compileall
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace import versions
from tailrace.versions import check_pyspark, check_python, pyspark_version

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 12, 1), (3, 13, 0), (3, 14, 99)])
def test_pythons_that_are_taken(version: tuple[int, ...]) -> None:
    check_python(version)


def test_an_old_python_is_refused() -> None:
    with pytest.raises(
        ImportError, match=r"needs Python 3\.11 or newer, and this is Python 3\.10\.13 .*PYSPARK_PYTHON"
    ):
        check_python((3, 10, 13))


@pytest.mark.parametrize("version", [(3, 15, 0), (3, 16, 1), (4, 0, 0)])
def test_a_python_that_nobody_has_tried_is_refused(version: tuple[int, ...]) -> None:
    found = r"needs a Python below 3\.15, for which it is not tried, and this is Python \d\.\d+\.\d .*PYSPARK_PYTHON"
    with pytest.raises(ImportError, match=found):
        check_python(version)


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4", "4.3.0", "4.4.0.dev1", "4.10.0"])
def test_versions_of_pyspark_that_are_taken(version: str) -> None:
    check_pyspark(version, (3, 13))


@pytest.mark.parametrize(("version", "python"), [("4.0.5", (3, 14)), ("4.0.0", (3, 14))])
def test_a_pyspark_that_does_not_take_the_python_is_refused(version: str, python: tuple[int, ...]) -> None:
    found = rf"Python 3\.14 needs PySpark 4\.1 or newer, and this is PySpark {version}; .*>=4\.1,<5'.*PYSPARK_PYTHON"
    with pytest.raises(ImportError, match=found):
        check_pyspark(version, python)
    check_pyspark("4.1.0", python)


@pytest.mark.parametrize("version", ["3.5.9", "5.0.0", "2.4.8", "unknown"])
def test_an_old_or_unknown_pyspark_is_refused(version: str) -> None:
    with pytest.raises(ImportError, match=rf"and this is PySpark {version}; install .* 'pyspark>=4\.0,<5'"):
        check_pyspark(version)


@pytest.mark.parametrize(("packed", "compiled"), [(False, False), (True, False), (True, True)])
def test_the_version_is_read_without_importing_pyspark(tmp_path: Path, packed: bool, compiled: bool) -> None:
    """Writing a dataflow starts no Spark and imports none. Spark's own distribution has PySpark in an archive, to which
    somebody may have added the bytecode."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "pyspark" / "version.py").write_text("# a licence\n__version__: str = '3.5.9'\n")
    place = tmp_path
    if compiled:
        compileall.compile_dir(tmp_path / "pyspark", quiet=1, legacy=True)
    if packed:
        place = Path(shutil.make_archive(str(tmp_path / "pyspark"), "zip", tmp_path, "pyspark"))
    program = f"import sys; sys.path[:0] = [{str(place)!r}, {str(ROOT / 'src')!r}]; import tailrace"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "ImportError: tailrace needs PySpark 4.0 or newer, below 5.0, and this is PySpark 3.5.9" in done.stderr


def test_the_package_asks_for_the_same() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (oldest, newest), ends = versions.OLDEST_PYTHON, versions.NEXT_PYTHON
    assert f'requires-python = ">={oldest}.{newest},<{ends[0]}.{ends[1]}"' in text
    classifiers = re.findall(r"Programming Language :: Python :: 3\.(\d+)", text)
    assert list(map(int, classifiers)) == list(range(newest, ends[1]))
    assert f'"pyspark>={versions.OLDEST_PYSPARK[0]}.{versions.OLDEST_PYSPARK[1]},<{versions.NEXT_PYSPARK[0]}"' in text
    found = pyspark_version()
    assert (
        found is not None and versions.OLDEST_PYSPARK <= tuple(map(int, found.split(".")[:2])) < versions.NEXT_PYSPARK
    )
