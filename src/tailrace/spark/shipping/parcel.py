"""An archive of what executors may lack, which Spark brings them: tailrace, the packages that its workers import, and the
user's own modules that the program has imported.

The archive has three folders. `program` has the user's modules, `tailrace` has tailrace, and `needs` has a folder for each
package that tailrace needs. Of the packages, an executor takes those that it lacks. It takes a compiled one only where its
Python is of the same kind as the driver's (`spark.shipping.arrival`).
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tailrace.elements.byte_texts import size_text
from tailrace.errors import OWN_FOLDER, ConfigError
from tailrace.log import log
from tailrace.spark.cluster.application import application

CARRIED = {"msgspec": "0.19", "xxhash": "3.5", "fsspec": "2025.7"}
"""The packages that workers import, and the oldest versions that will do. PySpark itself needs pyarrow, pandas and numpy
on executors, so these are there."""
LIMIT = 256 << 20
"""Largest number of bytes of all files together. Executors fetch and unpack them before they do anything else."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_COMPILED = tuple(importlib.machinery.EXTENSION_SUFFIXES)
_lock = threading.Lock()
_left_out: set[str] = set()
"""The modules that are not shipped and of which a warning was logged."""
_sent: dict[str, set[str]] = {}
"""The archives that Spark has, by application. Spark also brings them to executors that come later."""


class Parcel(NamedTuple):
    """An archive that executors have."""

    name: str
    """The folder into which Spark unpacks it."""
    kind: str
    """The kind of Python for which its compiled parts were built."""
    modules: tuple[str, ...]
    """The user's modules in it: packages and modules at the top level."""
    needs: tuple[tuple[str, str, bool], ...] = ()
    """The packages in it that tailrace needs: the name, the oldest version that will do, and whether it is compiled."""


def kind_of_python() -> str:
    """The version of Python, the system and the machine: what compiled modules must fit."""
    return f"{sysconfig.get_config_var('SOABI')} {platform.machine()}"


def send(spark: Any) -> Parcel:
    """Gives Spark an archive of what this process has. Spark receives each archive once. Raises `ConfigError` where it is
    too large."""
    modules, needs = local_modules(), {package: dict(_files_of(package)) for package in CARRIED}
    files = {f"tailrace/tailrace/{name}": path for name, path in _files_below(OWN_FOLDER)}
    files |= {f"program/{name}": path for top in modules.values() for name, path in top.items()}
    files |= {f"needs/{package}/{name}": path for package, all_of in needs.items() for name, path in all_of.items()}
    _check_size(modules, files)
    digest = hashlib.sha256()
    contents = {}
    for name in sorted(files):
        with open(files[name], "rb") as file:
            contents[name] = file.read()
        digest.update(f"{name} {len(contents[name])} ".encode() + contents[name])
    compiled = {package: any(path.endswith(_COMPILED) for path in all_of) for package, all_of in needs.items()}
    parcel = Parcel(
        f"tailrace-{digest.hexdigest()[:16]}",
        kind_of_python(),
        tuple(sorted(modules)),
        tuple((package, least, compiled[package]) for package, least in CARRIED.items()),
    )
    with _lock:
        app = application(spark)
        sent = _sent.setdefault(app.id, set())
        if parcel.name not in sent:
            app.send_archive(_write(parcel.name, contents), parcel.name)
            sent.add(parcel.name)
    return parcel


def was_sent(spark: Any) -> bool:
    """True where executors of this application have an archive."""
    with _lock:
        return bool(_sent.get(application(spark).id))


def local_modules() -> dict[str, dict[str, str]]:
    """The user's own modules that this process has imported: neither installed nor part of Python itself. The result has,
    by the name at the top level, the files of each module by their name in the archive. In the archive a module has the
    name under which the program knows it. Else a plugin that was loaded from a file of another name would be found as a
    module of that name, and hide the right one."""
    found: dict[str, dict[str, str]] = {}
    for name in {name.partition(".")[0] for name in list(sys.modules)} - _NOT_LOCAL:
        module = sys.modules.get(name)
        file: Any = getattr(module, "__file__", None)
        paths = getattr(module, "__path__", ())
        several = isinstance(paths, Iterable) and not isinstance(paths, str)
        folders = [folder for folder in paths if _is_local(folder)] if several else []
        if not name or os.path.basename(name) != name:
            continue  # no import would find it
        if folders:
            found[name] = {f"{name}/{below}": path for folder in folders for below, path in _files_below(folder)}
        elif _is_local(file) and os.path.isfile(file):
            shipped = _file_name(name, file, module)
            if shipped is not None:
                found[name] = {shipped: file}
            elif name not in _left_out:
                _left_out.add(name)
                log.warning(
                    "module %r is not shipped to the executors: it was loaded from %s, where no import would find it "
                    "under its name; install it there if a function of the job needs it",
                    name,
                    file,
                )
    return found


def is_of_the_user(name: str, file: Any) -> bool:
    """True where a module with this full name, from this file, is one of the user's own in source. A compiled one does not
    count: it cannot be imported twice."""
    return name.partition(".")[0] not in _NOT_LOCAL and str(file).endswith(".py") and _is_local(file)


def _file_name(name: str, file: str, module: Any) -> str | None:
    """The file name under which an import finds a module; None where there is none. A compiled module has its name in its
    file."""
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    if file.endswith(".py") or isinstance(loader, importlib.machinery.SourceFileLoader):
        return f"{name}.py"
    base = os.path.basename(file)
    return base if base.partition(".")[0] == name and base != name else None


def _is_local(path: Any) -> bool:
    """True where this file or folder was written here, not installed. The attributes of modules from which paths come may
    hold any value."""
    if not isinstance(path, str) or not path:
        return False
    place = path if os.path.isabs(path) else os.path.abspath(path)
    return not _is_installed(place) and os.path.exists(place)


@functools.cache
def _is_installed(path: str) -> bool:
    """True where this path belongs to an installed package, or to Python itself. The result is cached: a process checks
    thousands of paths for each job."""
    place = os.path.realpath(path)
    installed = {"site-packages", "dist-packages"} & set(place.split(os.sep))
    return bool(installed) or place.startswith(_OF_PYTHON)


_NOT_LOCAL = frozenset(
    {"__main__", "__mp_main__", "sitecustomize", "usercustomize", "tailrace", *CARRIED}
    | {"pyspark", "py4j", "pyarrow", "pandas", "numpy"}  # also where the user works on them
)
_OF_PYTHON = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")} | {os.path.dirname(os.__file__)}
)


def _files_of(package: str) -> Iterator[tuple[str, str]]:
    """The files of a package as it is installed here: the name in the package, and the path."""
    for file in importlib.metadata.distribution(package).files or ():
        path = str(file.locate())
        if ".." not in file.parts and file.suffix != ".pyc" and os.path.isfile(path):
            yield file.as_posix(), path


def _files_below(folder: str) -> Iterator[tuple[str, str]]:
    for place, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if name != "__pycache__" and not name.startswith("."))
        for name in sorted(names):
            if (
                not name.endswith(".pyc")
                and not name.startswith(".")
                and os.path.isfile(path := os.path.join(place, name))
            ):
                yield os.path.relpath(path, folder).replace(os.sep, "/"), path


def _check_size(modules: dict[str, dict[str, str]], files: dict[str, str]) -> None:
    size = sum(os.path.getsize(path) for path in files.values())
    if size <= LIMIT:
        return
    sizes = {name: sum(os.path.getsize(path) for path in top.values()) for name, top in modules.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    raise ConfigError(
        f"{size_text(size)} of modules would have to be shipped to the executors, and {size_text(LIMIT)} are allowed; "
        f"most of it is in {largest!r}: install that on the executors, or keep data out of its folder"
    )


def _write(name: str, contents: dict[str, bytes]) -> Path:
    """The path of the archive, written into a folder of its own. Spark reads it for as long as this process lives."""
    folder = tempfile.mkdtemp(prefix="tailrace-parcel-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, f"{name}.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in contents.items():
            entry = zipfile.ZipInfo(file, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path
