"""The share of a core that each worker's Spark task takes, by one of Spark's resource profiles: for one job, without a
setting of the session."""

from __future__ import annotations

import re
from typing import Any

import pyspark

from tailrace.errors import ConfigError
from tailrace.spark.cluster.application import Application

FRACTIONS_SINCE = (4, 3)
"""From this version on Spark's scheduler knows fractions of a core; before, `TaskResourceRequests.cpus` takes an int."""


def check_share(cpus: float, version: str = pyspark.__version__) -> None:
    """Raises `ConfigError` for a share of a core that this Spark cannot give a task."""
    if cpus != int(cpus) and tuple(map(int, re.findall(r"\d+", version)[:2])) < FRACTIONS_SINCE:
        raise ConfigError(
            f"task_cpus={cpus:g}: Spark {version} gives tasks whole cores only; it knows fractions from Spark "
            f"{FRACTIONS_SINCE[0]}.{FRACTIONS_SINCE[1]} on"
        )


def profile_of(app: Application, cpus: float) -> Any:
    """A resource profile for tasks that take this share of a core each. It is added to the profiles that Spark knows.
    Raises `ConfigError` where Spark has no resource profiles."""
    from pyspark.resource.profile import ResourceProfileBuilder
    from pyspark.resource.requests import TaskResourceRequests

    check_share(cpus)
    if app.context is None:
        raise ConfigError(f"task_cpus={cpus:g}: a session of Spark Connect cannot set that yet; leave it out")
    share: Any = int(cpus) if cpus == int(cpus) else cpus
    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(share)).build
    try:
        app.context._jsc.sc().resourceProfileManager().addResourceProfile(profile._java_resource_profile)
    except Exception as error:  # Spark's own, which is different with each version
        raise ConfigError(
            f"task_cpus={cpus:g}: Spark has no resource profiles here ({str(error).splitlines()[0]}); leave it out"
        ) from error
    return profile
