"""How many task slots Spark may give an application: what its settings say, where not all executors are there yet."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

Setting = Callable[[str], str | None]
"""A setting of the application by its name; None where it is not set."""

_EVERY = 2**31 - 1
"""What Spark takes for no limit."""
_UNITS = {"us": 1e-6, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_INSTANCES = 2
"""The executors that Spark starts on YARN and Kubernetes where nothing is said."""


def is_fixed(master: str) -> bool:
    """Whether all slots are there from the start: tasks are threads of the driver."""
    return master == "local" or master.startswith("local[")


def is_dynamic(master: str, setting: Setting) -> bool:
    """Whether executors come once tasks wait for them, and go when there are none."""
    return not is_fixed(master) and (setting("spark.dynamicAllocation.enabled") or "").lower() == "true"


def share_of(setting: Setting, cpus: float | None = None) -> Fraction:
    """How much of a core a task takes; `cpus` is what somebody has said for these ones."""
    return Fraction(setting("spark.task.cpus") or 1) if cpus is None else Fraction(str(cpus))


def may_give(master: str, setting: Setting, share: Fraction | None = None) -> int | None:
    """How many tasks may run at once at most, by the settings; None where these do not bound it. `share` is how much of a
    core each takes."""
    cpus = share_of(setting) if share is None else share
    simulated = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    if simulated is not None:
        return int(simulated[1]) * int(int(simulated[2]) / cpus)
    if master.startswith("spark://"):
        return _on_standalone(master, setting, cpus)
    if master.startswith(("yarn", "k8s://")):
        executors = _executors(master, setting, _INSTANCES)
        return None if executors is None else executors * int(int(setting("spark.executor.cores") or 1) / cpus)
    return None


def notices_after(master: str, setting: Setting) -> float:
    """Seconds after which Spark takes an executor for lost that does not answer: until then it counts on its slots. It looks
    now and then, so the time between two looks comes on top."""
    if is_fixed(master):
        return 0.0
    return _seconds(setting("spark.network.timeout"), 120.0) + _seconds(setting("spark.network.timeoutInterval"), 60.0)


def _seconds(text: str | None, else_: float) -> float:
    """A time as Spark's settings say it, where nothing is said of its unit in seconds."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", (text or "").lower())
    return int(found[1]) * _UNITS.get(found[2], 1.0) if found else else_


def slots_of(cores: int, setting: Setting) -> int | None:
    """How many tasks run at once on so many cores; None where that depends on how these are spread over executors."""
    cpus, each = Fraction(setting("spark.task.cpus") or 1), _number(setting("spark.executor.cores"))
    if cpus == 1:
        return cores
    return None if each is None or cores % each else cores // each * int(each / cpus)


def _on_standalone(master: str, setting: Setting, cpus: Fraction) -> int | None:
    """Executors there are bounded by their cores, and have all of a worker's where nothing is said."""
    cores, each = _number(setting("spark.cores.max")), _number(setting("spark.executor.cores"))
    if each is None:
        return None if cores is None else int(cores / cpus)
    executors = _executors(master, setting, None)
    bounds = [bound for bound in (executors, None if cores is None else cores // each) if bound is not None]
    return min(bounds) * int(each / cpus) if bounds else None


def _executors(master: str, setting: Setting, else_: int | None) -> int | None:
    """How many there may be; None for any number. `else_`: where executors do not come and go and nothing is said."""
    if is_dynamic(master, setting):
        most = _number(setting("spark.dynamicAllocation.maxExecutors"))
        return None if most is None or most >= _EVERY else most
    return None if else_ is None else _number(setting("spark.executor.instances")) or else_


def _number(text: str | None) -> int | None:
    return int(text) if text else None
