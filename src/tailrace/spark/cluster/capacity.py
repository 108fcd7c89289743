"""The number of task slots that Spark may give an application, by its settings, where not all executors are there yet."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

Setting = Callable[[str], str | None]
"""A setting of the application by its name; None where it is not set."""

_SIMULATED = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_EVERY = 2**31 - 1
"""Value that Spark takes for no limit."""
_UNITS = {"us": 1e-6, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_INSTANCES = 2
"""Number of executors that Spark starts on YARN and Kubernetes where no setting gives it."""


def is_fixed(master: str) -> bool:
    """True where all slots are there from the start: tasks are threads of the driver."""
    return master == "local" or master.startswith("local[")


def is_dynamic(master: str, setting: Setting) -> bool:
    """True where executors come once tasks wait for them, and go when there are none."""
    return not is_fixed(master) and (setting("spark.dynamicAllocation.enabled") or "").lower() == "true"


def share_of(setting: Setting, cpus: float | None = None) -> Fraction:
    """The share of a core that a task takes; `cpus` is the share that a job sets for its own tasks."""
    return Fraction(setting("spark.task.cpus") or 1) if cpus is None else Fraction(str(cpus))


def may_give(master: str, setting: Setting, share: Fraction | None = None) -> int | None:
    """Upper bound of the tasks that may run at once, by the settings; None where these do not bound it. `share` is the
    share of a core that each takes."""
    cpus = share_of(setting) if share is None else share
    simulated = _SIMULATED.fullmatch(master)
    if simulated is not None:
        return int(simulated[1]) * int(int(simulated[2]) / cpus)
    if master.startswith("spark://"):
        return _on_standalone(master, setting, cpus)
    if master.startswith(("yarn", "k8s://")):
        executors = _executors(master, setting, _INSTANCES)
        return None if executors is None else executors * int(int(setting("spark.executor.cores") or 1) / cpus)
    return None


def on_each_executor(master: str, setting: Setting, share: Fraction | None = None) -> int:
    """The number of tasks that run at once on one executor, by the settings; 0 where these do not give it, and where tasks
    are threads of the driver. `share` is the share of a core that each takes."""
    cpus, each = share_of(setting) if share is None else share, _number(setting("spark.executor.cores"))
    simulated = _SIMULATED.fullmatch(master)
    if simulated is not None:
        each = int(simulated[2])
    elif master.startswith(("yarn", "k8s://")):
        each = each or 1
    return 0 if each is None or is_fixed(master) else int(each / cpus)


def notices_after(master: str, setting: Setting) -> float:
    """Seconds after which Spark takes a silent executor for lost. Until then it counts on its slots. Spark checks at
    intervals, so one interval comes on top."""
    if is_fixed(master):
        return 0.0
    return _seconds(setting("spark.network.timeout"), 120.0) + _seconds(setting("spark.network.timeoutInterval"), 60.0)


def _seconds(text: str | None, else_: float) -> float:
    """Seconds of a time in Spark's settings. A time without a unit is in seconds; `else_` where there is none."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", (text or "").lower())
    return int(found[1]) * _UNITS.get(found[2], 1.0) if found else else_


def slots_of(cores: int, setting: Setting) -> int | None:
    """Number of tasks that run at once on so many cores; None where that depends on how these are spread over
    executors."""
    cpus, each = Fraction(setting("spark.task.cpus") or 1), _number(setting("spark.executor.cores"))
    if cpus == 1:
        return cores
    return None if each is None or cores % each else cores // each * int(each / cpus)


def _on_standalone(master: str, setting: Setting, cpus: Fraction) -> int | None:
    """Upper bound of the tasks on a standalone cluster; None for no bound. The setting of all cores bounds its executors.
    Without a setting of its own, an executor has all cores of its Spark worker."""
    cores, each = _number(setting("spark.cores.max")), _number(setting("spark.executor.cores"))
    if each is None:
        return None if cores is None else int(cores / cpus)
    executors = _executors(master, setting, None)
    bounds = [bound for bound in (executors, None if cores is None else cores // each) if bound is not None]
    return min(bounds) * int(each / cpus) if bounds else None


def _executors(master: str, setting: Setting, else_: int | None) -> int | None:
    """Upper bound of the number of executors; None for no bound. `else_` is the number where executors do not come and go
    and no setting gives it."""
    if is_dynamic(master, setting):
        most = _number(setting("spark.dynamicAllocation.maxExecutors"))
        return None if most is None or most >= _EVERY else most
    return None if else_ is None else _number(setting("spark.executor.instances")) or else_


def _number(text: str | None) -> int | None:
    return int(text) if text else None
