"""The comparison of two commits: pairs in turns, and the median of their ratios."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import regression

OLD, NEW = Path("old"), Path("new")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of its own with one commit: what is tested here may be files without their history."""
    library = tmp_path / "src" / "tailrace" / "__init__.py"
    library.parent.mkdir(parents=True)
    library.write_text("first = True")

    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=A", "-c", "user.email=a@example.com", *arguments], cwd=tmp_path, check=True
        )

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "First")
    monkeypatch.setattr(regression, "ROOT", tmp_path)
    return tmp_path


def test_a_benchmark_is_slower_when_the_median_of_its_pairs_is_above_the_bar() -> None:
    steady = [(1.0, 1.04)] * 3
    assert not regression.verdict("chain", [*steady, (1.0, 9.0)])["slower"], "one disturbed pair says nothing"
    assert regression.verdict("chain", [(1.0, 1.06), (2.0, 2.2), (1.0, 0.9)])["slower"]


def test_each_commit_is_first_in_every_second_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def measured(watched: regression.Watched, source: Path) -> dict[str, Any]:
        order.append(source)
        return {"records_per_second": 100 if source == OLD else 200}

    monkeypatch.setattr(regression, "measured", measured)
    assert regression.pairs(regression.SHORT[0], OLD, NEW, 2) == [(0.01, 0.005)] * 2
    assert order == [OLD, NEW, NEW, OLD]


def test_a_slower_commit_fails_the_command_and_is_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(watched: regression.Watched, source: Path) -> dict[str, Any]:
        here = source == repository
        return {"records_per_second": 90 if here and watched.name == "keyed, columns" else 100}

    monkeypatch.setattr(regression, "measured", measured)
    assert regression.main(["HEAD", "--only", "keyed", "--pairs", "1"]) == 1
    assert "slower than HEAD by more than 5%: keyed, columns" in capsys.readouterr().err
    assert regression.main(["HEAD", "--only", "chain", "--pairs", "1"]) == 0


@pytest.mark.usefixtures("repository")
def test_an_unknown_commit_is_refused_with_its_name() -> None:
    with pytest.raises(SystemExit, match="no-such-commit"):
        regression.main(["no-such-commit"])


def test_files_of_a_commit_are_what_was_committed(repository: Path) -> None:
    (repository / "src" / "tailrace" / "__init__.py").write_text("first = False")
    with regression.checkout("HEAD") as base:
        assert (base / "src" / "tailrace" / "__init__.py").read_text() == "first = True"


def test_the_library_of_the_other_commit_is_measured(tmp_path: Path) -> None:
    """The benchmarks are those of this checkout; the library is the one in the folder."""
    package = tmp_path / "src" / "tailrace"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('the other library')")
    with pytest.raises(SystemExit, match="lap failed with the library in"):
        regression.measured(regression.SHORT[-1], tmp_path)
