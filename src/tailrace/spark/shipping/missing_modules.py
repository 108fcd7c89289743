"""What executors lack that cannot run a task of Tailrace: which package it belongs to, and the remedy, each as one sentence.

There are two places where something may be missing. Tasks of Tailrace look for tailrace themselves: a worker's task
returns what is missing as its answer, other tasks raise it. Where PySpark itself lacks something before it runs a task,
the Spark job fails, and `unable` reads the reason from the text of that failure.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys

from tailrace import __version__
from tailrace.errors import ConfigError
from tailrace.runtime.network.binding import REMEDY
from tailrace.spark.shipping.parcel import Parcel
from tailrace.spark.shipping.spark_tasks import MARK

_OWN = re.compile(r"\b(pyarrow|pandas|numpy|pyspark|py4j)\b", re.IGNORECASE)
"""Packages that PySpark itself needs on executors."""
SOME = "an executor"


def answer_text(answer: str, parcel: Parcel | None = None, executor: str | None = None) -> str:
    """The answer of a task that found no tailrace it could run, as a sentence. `executor` is the id of its executor."""
    found = json.loads(answer)
    where = f"{_name_of(executor)} on {found['host']}"
    python = f"Python {found['python']}, {found['program']}"
    if "imported" in found:
        return (
            f"{where} has a process that has imported tailrace {found['version']} from {found['imported']} (something else "
            f"that Spark has run there did that), and this program has {__version__} ({python}): install the same version "
            f"on all of them, or give the job a Spark session of its own"
        )
    if "version" in found:
        return (
            f"{where} has tailrace {found['version']}, and this program has {__version__} ({python}): install the same "
            f"version on all of them"
        )
    remedy = f"install tailrace {__version__} there, with what it needs, or name a Python that has it in PYSPARK_PYTHON"
    if parcel is None:
        remedy += ", or let the job bring it along: tailrace run --ship"
    elif parcel.kind != found["kind"]:
        remedy = f"what was shipped is compiled for {parcel.kind}, and this is {found['kind']}; {remedy}"
    if found["said"] == f"No module named {found['module']!r}":
        return f"{where} has no module {found['module']!r} ({python}): {remedy}"
    return f"{where} cannot import tailrace ({python}): {found['said']}; {remedy}"


def check_reach(answer: str, executor: str | None = None) -> None:
    """Raises `ConfigError` where the answer of a task is that it cannot dial the driver."""
    found = json.loads(answer)
    if "unreachable" in found:
        raise ConfigError(unreachable(found["host"], found["unreachable"], executor))


def unreachable(host: str, why: str, executor: str | None = None) -> str:
    """Error for an executor that cannot dial the driver."""
    return f"{_name_of(executor)} on {host} cannot reach the driver at {why}; {REMEDY}"


def _name_of(executor: str | None) -> str:
    return "the executor" if executor is None else f"executor {executor}"


def lacks_tailrace(failure: BaseException) -> bool:
    """True where a task made by `with_tailrace` failed because the executor has no tailrace."""
    return MARK in _story(failure)


def unable(failure: BaseException, parcel: Parcel | None = None) -> str | None:
    """A sentence on what the executor lacked, where a Spark job failed because a task of Tailrace could not run there at
    all; None for any other failure. The sentence begins with `SOME` where the failure does not name the executor."""
    return lacking(_story(failure), parcel)


def _story(failure: BaseException) -> str:
    """The whole text that Spark has for a failure."""
    text = str(failure)
    origin = getattr(failure, "_origin", None)
    with contextlib.suppress(Exception):  # Spark is gone
        return text if origin is None else f"{origin.toString()}\n{text}"
    return text


def lacking(failure: str, parcel: Parcel | None = None) -> str | None:
    """Reads from the text of a failure what the executor lacked; see `unable`."""
    of_task = re.search(r"\(TID \d+\) \((\S+) executor (\w+)\)", failure)
    if found := re.search(re.escape(MARK) + r" (\{.*\})", failure):
        return answer_text(found[1], parcel, of_task and of_task[2])
    where = f"executor {of_task[2]} on {of_task[1]}" if of_task else SOME
    remedy = f"name a Python {sys.version_info[0]}.{sys.version_info[1]} that all executors have in PYSPARK_PYTHON"
    if found := re.search(r"different version:? (\d+\.\d+) than that in driver:? (\d+\.\d+)", failure):
        return f"{where} runs Python {found[1]}, this program Python {found[2]}, and PySpark needs the same; {remedy}"
    if found := re.search(r'Cannot run program "([^"]+)".*?:\s*(.+)', failure):
        return f"{where} cannot run the Python {found[1]!r} ({found[2].strip()}); {remedy}"
    if found := re.search(r"No module named '([\w.]+)'", failure):
        return _need_text(where, found[1]) if _OWN.match(found[1]) else None
    if found := re.search(r"\[(?:PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION)\] ((\w+) .+)", failure):
        return _need_text(where, found[2], f" ({found[1].strip()})") if _OWN.match(found[2]) else None
    return None


def _need_text(where: str, module: str, note: str = "") -> str:
    return (
        f"{where} has no module {module!r}{note}, which PySpark needs in every Python that runs its tasks: install it there "
        f"(pip install 'pyspark[sql]'), or name a Python that has it in PYSPARK_PYTHON"
    )
