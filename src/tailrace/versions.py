"""The versions of Python and PySpark that this version of Tailrace runs on. Its import refuses others in one sentence,
before anything breaks."""

import importlib.util
import re
import sys

OLDEST_PYTHON = (3, 11)
NEXT_PYTHON = (3, 15)
"""The first version that is not tested."""
OLDEST_PYSPARK = (4, 0)
NEXT_PYSPARK = (5, 0)
"""The first version that is not tested."""
TOGETHER = (((3, 14), (4, 1)),)
"""Pythons, and the first PySpark that takes each of them, or a newer Python."""


def check_python(version: "tuple[int, ...]") -> None:
    """Raises `ImportError` for a Python that is too old, or newer than the tested ones."""
    if tuple(version[:2]) < OLDEST_PYTHON:
        raise ImportError(
            f"tailrace needs Python {_text(OLDEST_PYTHON)} or newer, and this is Python {_text(version[:3])} "
            f"({sys.executable}); run the program, and Spark's workers (PYSPARK_PYTHON), with a newer one"
        )
    if tuple(version[:2]) >= NEXT_PYTHON:
        raise ImportError(
            f"tailrace needs a Python below {_text(NEXT_PYTHON)}, for which it is not tried, and this is Python "
            f"{_text(version[:3])} ({sys.executable}); run the program, and Spark's workers (PYSPARK_PYTHON), with an older "
            f"one, from {_text(OLDEST_PYTHON)} on"
        )


def check_pyspark(version: str, python: "tuple[int, ...]" = sys.version_info[:2]) -> None:
    """Raises `ImportError` for a PySpark that is too old, also for this Python, or of a major version that is not known."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not OLDEST_PYSPARK <= (int(found[1]), int(found[2])) < NEXT_PYSPARK:
        raise ImportError(
            f"tailrace needs PySpark {_text(OLDEST_PYSPARK)} or newer, below {_text(NEXT_PYSPARK)}, and this is "
            f"PySpark {version}; install another one: pip install 'pyspark>={_text(OLDEST_PYSPARK)},<{NEXT_PYSPARK[0]}'"
        )
    for newest, needed in TOGETHER:
        if tuple(python[:2]) >= newest and (int(found[1]), int(found[2])) < needed:
            raise ImportError(
                f"Python {_text(python[:2])} needs PySpark {_text(needed)} or newer, and this is PySpark {version}; install "
                f"another one (pip install 'pyspark>={_text(needed)},<{NEXT_PYSPARK[0]}'), or run the program, and Spark's "
                f"workers (PYSPARK_PYTHON), with an older Python, from {_text(OLDEST_PYTHON)} on"
            )


def pyspark_version() -> "str | None":
    """The version of the PySpark that is or would be imported, found without importing it. None if there is no PySpark, or
    its version cannot be found."""
    loaded = sys.modules.get("pyspark")
    if loaded is not None:
        return getattr(loaded, "__version__", None)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or spec.loader is None:
        return None
    # find_spec("pyspark.version") would import all of pyspark. An archive may have bytecode beside its sources.
    beside = re.sub(r"__init__\.pyc?$", "version.py", spec.origin)
    try:
        text = spec.loader.get_data(beside).decode()  # type: ignore[attr-defined]
    except OSError:
        return None
    found = re.search(r"^__version__\b[^=]*=\s*[\"']([^\"']+)", text, re.MULTILINE)
    return found[1] if found else None


def _text(version: "tuple[int, ...]") -> str:
    return ".".join(map(str, version))


check_python(tuple(sys.version_info[:3]))
_pyspark = pyspark_version()
if _pyspark is not None:
    check_pyspark(_pyspark)
