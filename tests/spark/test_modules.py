"""Modules of the user's that were changed between two jobs of one process."""

import importlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import pytest

import tailrace as tr
from tailrace.spark.shipping import modules
from tailrace.spark.shipping.modules import bring_up_to_date, versions_here

FILES = {
    "tr_labels": "def label(n):\n    return 'first'\n",
    "tr_reports": "from tr_labels import label\n\n\ndef report(n):\n    return label(n) + '!'\n",
}
CHANGED = "def label(n):\n    return 'the second one'\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with two modules of the user's; nothing of them is known before or afterwards."""
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(modules, "_in_driver", {})
    monkeypatch.setattr(modules, "_in_worker", {})
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name, None)


def imported(name: str) -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(name)


def edit(folder: Path) -> None:
    (folder / "tr_labels.py").write_text(CHANGED)
    importlib.invalidate_caches()


def ours() -> dict[str, str]:
    return {name: version for name, version in versions_here().items() if name in FILES}


def test_a_worker_imports_anew_what_was_changed_and_what_took_something_of_it(folder: Path) -> None:
    reports = imported("tr_reports")
    bring_up_to_date(ours())
    assert imported("tr_reports") is reports and reports.report(1) == "first!"
    edit(folder)
    bring_up_to_date(ours())
    assert imported("tr_reports").report(1) == "the second one!"


def test_what_was_not_changed_stays_as_it_is_with_all_that_it_has(folder: Path) -> None:
    labels = imported("tr_labels")
    for _ in range(3):
        bring_up_to_date(ours())
    (folder / "tr_labels.py").write_text(FILES["tr_labels"])  # the same, with another time
    bring_up_to_date(ours())
    assert imported("tr_labels") is labels


def test_modules_that_are_installed_or_compiled_are_left_alone(folder: Path) -> None:
    found = versions_here()
    assert not {"pytest", "pyarrow", "numpy", "tailrace", "json", "__main__"} & {
        name.partition(".")[0] for name in found
    }
    assert "msgspec._core" not in found


def test_an_edit_without_a_reload_is_reported_once_with_what_to_do(folder: Path, caplog: Any) -> None:
    labels = imported("tr_labels")
    with caplog.at_level(logging.WARNING, "tailrace"):
        versions_here()
        edit(folder)
        versions_here()
        versions_here()
    [message] = [record.getMessage() for record in caplog.records if "tr_labels" in record.getMessage()]
    assert "was changed since it was imported here" in message and "importlib.reload(tr_labels)" in message
    assert labels.label(1) == "first"


def test_an_edit_with_a_reload_needs_no_word(folder: Path, caplog: Any) -> None:
    labels = imported("tr_labels")
    with caplog.at_level(logging.WARNING, "tailrace"):
        versions_here()
        edit(folder)
        importlib.reload(labels)
        versions_here()
    assert not [record for record in caplog.records if "tr_labels" in record.getMessage()]


def test_a_module_is_read_once_as_long_as_its_file_does_not_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module is read once where it is changed at the same time by the clock of its filesystem, too, and is as long as
    before."""
    file, read = str(folder / "tr_labels.py"), list[str]()

    def counted(file: str, mode: str) -> IO[bytes]:
        read.append(file)
        return open(file, mode)

    monkeypatch.setattr(modules, "open", counted, raising=False)
    imported("tr_labels")
    assert ours() == ours() and read.count(file) == 2, "it was changed just now, and may be once more"
    monkeypatch.setattr(modules, "_SETTLED", -1.0)
    before = ours()
    assert ours() == before and read.count(file) == 3
    time_of_it = os.stat(file).st_mtime_ns
    (folder / "tr_labels.py").write_text(FILES["tr_labels"].replace("first", "other"))
    os.utime(file, ns=(time_of_it, time_of_it))
    assert ours() != before


@pytest.mark.spark
def test_the_next_job_runs_a_module_as_it_is_now(spark: Any, folder: Path) -> None:
    labels = imported("tr_labels")
    reports = imported("tr_reports")

    def seen() -> list[str]:
        env = tr.Environment(spark, parallelism=1, progress=False)
        return list(env.from_collection([1]).map(lambda n: (labels.label(n), reports.report(n))).collect())

    assert seen() == [("first", "first!")]
    edit(folder)
    importlib.reload(labels)
    importlib.reload(reports)
    assert seen() == [("the second one", "the second one!")]
