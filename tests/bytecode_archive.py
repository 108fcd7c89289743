"""The modules of PySpark, compiled, for the Python processes that Spark starts.

Spark gives them PySpark as `pyspark.zip`, which has sources only, and where no Python can keep what it has compiled: each
such process would compile them anew, for longer than it then needs for all the rest of its start. `python
tests/bytecode_archive.py` puts the bytecode beside the sources in that archive, once per environment. Another Python than
this one takes the sources.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from importlib import _bootstrap_external  # type: ignore[attr-defined]
from pathlib import Path

_UNUSED = ("pyspark/pandas/", "pyspark/ml/", "pyspark/mllib/", "pyspark/sql/connect/")
"""No worker imports these."""


def archives() -> list[Path]:
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    return sorted((Path(found.origin).parent / "python" / "lib").glob("*.zip"))


def make(archive: Path) -> None:
    """Puts another archive in its place, with the same sources and the bytecode."""
    part = archive.with_suffix(".part")
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            source = old.read(entry)
            new.writestr(entry, source)
            if entry.filename.endswith(".py") and _used(entry.filename):
                code = compile(source, os.path.join(archive, entry.filename), "exec", dont_inherit=True)
                bytecode = _bootstrap_external._code_to_hash_pyc(code, importlib.util.source_hash(source), False)
                new.writestr(zipfile.ZipInfo(f"{entry.filename}c", entry.date_time), bytecode)
    part.rename(archive)


def _used(name: str) -> bool:
    return "/tests/" not in name and not name.startswith(_UNUSED)


def is_made(archive: Path) -> bool:
    with zipfile.ZipFile(archive) as found:
        return any(name.endswith(".pyc") for name in found.namelist())


if __name__ == "__main__":
    for one in archives():
        if os.access(one, os.W_OK) and not is_made(one):
            make(one)
