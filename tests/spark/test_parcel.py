"""What is shipped to executors: tailrace, what its workers import, and the user's own modules."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from packaging.requirements import Requirement

import tailrace as tr
from tailrace.spark.shipping import parcel
from tailrace.spark.shipping.parcel import CARRIED, local_modules, send, was_sent


class Session:
    """A Spark that notes what it is given."""

    def __init__(self, name: str = "application") -> None:
        self.archives: list[str] = []
        self.sparkContext = SimpleNamespace(applicationId=name, addArchive=self.archives.append)

    def names(self, number: int = -1) -> list[str]:
        uri = urlsplit(self.archives[number])
        path, folder = unquote(uri.path), uri.fragment
        assert uri.scheme == "file" and os.path.basename(path) == f"{folder}.zip"
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()


@pytest.fixture(autouse=True)
def _forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel, "_sent", {})


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module, a package with data, and a package without `__init__`, all of them imported."""
    (tmp_path / "their_module.py").write_text("x = 1\n")
    for name in ("their_package/part", "their_space", "site-packages", "their_package/__pycache__"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "their_package" / "__init__.py").write_text("")
    (tmp_path / "their_package" / "__pycache__" / "old.pyc").write_text("")
    (tmp_path / "their_package" / "part" / "data.csv").write_text("1,2\n")
    (tmp_path / "their_package" / ".env").write_text("PASSWORD=x\n")
    (tmp_path / "their_space" / "inner.py").write_text("")
    (tmp_path / "site-packages" / "installed_module.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "site-packages"), *sys.path])
    importlib.invalidate_caches()
    names = ["their_module", "their_package", "their_space.inner", "installed_module"]
    for name in names:
        importlib.import_module(name)
    yield tmp_path
    for name in [*names, "their_space"]:
        sys.modules.pop(name, None)


def test_the_modules_of_the_user_are_those_that_are_imported_and_not_installed(theirs: Path) -> None:
    found = local_modules()
    assert found["their_module"] == {"their_module.py": str(theirs / "their_module.py")}
    assert sorted(found["their_package"]) == ["their_package/__init__.py", "their_package/part/data.csv"]
    assert sorted(found["their_space"]) == ["their_space/inner.py"]
    for name in ("installed_module", "tailrace", "pyspark", "os", "json", "encodings", "msgspec", "__main__", "pytest"):
        assert name not in found


def test_a_module_has_the_name_under_which_the_program_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A plugin that was loaded from `json.py` under a name of its own was shipped as `json`, and executors had no other."""
    monkeypatch.setattr(parcel, "_left_out", set())
    loaded = {"a_plugin": "json.py", "a_script": "json", "a_package": "json/__init__.py", "a_cached": "json.pyc"}
    for name, file in loaded.items():
        path = tmp_path / name / file
        path.parent.mkdir(parents=True)
        path.write_text("")
        loader = None if file.endswith(".pyc") else importlib.machinery.SourceFileLoader(name, str(path))
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))
    for _ in range(2):
        found = local_modules()
    assert found["a_plugin"].keys() == {"a_plugin.py"} and found["a_script"].keys() == {"a_script.py"}
    assert found["a_package"].keys() == {"a_package/__init__.py"}
    assert "a_cached" not in found and "json" not in found
    [record] = caplog.records
    assert "'a_cached' is not shipped" in record.getMessage() and "json.pyc" in record.getMessage()


@pytest.mark.parametrize("place", [None, 1, "nowhere", ["", None], "/"])
def test_a_module_that_says_nonsense_of_its_place_is_none_of_the_users(
    monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    monkeypatch.setitem(sys.modules, "odd_module", SimpleNamespace(__file__=place, __path__=place))  # type: ignore[arg-type]
    assert "odd_module" not in local_modules()


def test_an_archive_has_all_that_a_worker_imports(theirs: Path) -> None:
    spark: Any = Session()
    sent = send(spark)
    names = spark.names()
    assert "program/their_module.py" in names and "program/their_package/part/data.csv" in names
    assert "tailrace/tailrace/__init__.py" in names and "tailrace/tailrace/spark/quiet.properties" in names
    for package in CARRIED:
        assert f"needs/{package}/{package}/__init__.py" in names
    assert {package: compiled for package, _, compiled in sent.needs} == {
        "msgspec": True,
        "xxhash": True,
        "fsspec": False,
    }
    assert not [name for name in names if name.endswith((".pyc", ".env")) or ".." in name]
    assert {"their_module", "their_package", "their_space"} <= set(sent.modules)


def test_what_workers_import_of_others_is_shipped_or_is_there_with_pyspark() -> None:
    """A new dependency is one of these, or workers would miss it on executors to which tailrace was shipped."""
    texts = [text for text in importlib.metadata.requires("tailrace") or () if "extra ==" not in text]
    requested = {expected.name: str(expected.specifier) for expected in map(Requirement, texts)}
    assert requested.keys() == {*CARRIED, "pyspark", "pyarrow", "pandas", "numpy"}
    assert {name: f">={least}" for name, least in CARRIED.items()} == {name: requested[name] for name in CARRIED}


def test_the_same_is_sent_once_and_what_has_changed_again(theirs: Path) -> None:
    spark: Any = Session()
    assert not was_sent(spark)
    first = send(spark)
    assert send(spark) == first
    assert len(spark.archives) == 1 and was_sent(spark)
    (theirs / "their_module.py").write_text("x = 2\n")
    assert send(spark).name != first.name
    assert len(spark.archives) == 2
    other: Any = Session("another")
    assert not was_sent(other)
    send(other)
    assert len(other.archives) == 1


def test_too_much_is_refused_with_the_largest_module(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (theirs / "their_package" / "large.bin").write_bytes(b"\0" * (32 << 20))
    monkeypatch.setattr(parcel, "LIMIT", 16 << 20)
    with pytest.raises(tr.ConfigError, match=r"MiB of modules .* 16 MiB are allowed; .* 'their_package'"):
        send(Session())
