"""The checkpoint folder of a job that a reader knows by its name only."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.errors import ConfigError
from tailrace.passwords import hide_passwords
from tailrace.runtime.driver.control import jobs, query
from tailrace.runtime.job import JOBS
from tailrace.spark.data.readoptions import from_folder

SECONDS = 5.0
"""How long a running job may take to answer where its checkpoints are."""


def checkpoint_folder(given: Mapping[str, str], folder: str, who: str) -> str:
    """The checkpoint folder in the options of a read: the path, which starts at `folder` if it is relative, else the one of
    the job. Raises `ConfigError` if neither is given, and as `folder_by_name` does."""
    if given.get("path"):
        return from_folder(folder, given["path"])
    if given.get("job"):
        return folder_by_name(given["job"], who)
    raise ConfigError(
        f'{who} needs the checkpoint folder of the job, .option("path", "..."), or the name of a running job, '
        f'.option("job", "...")'
    )


def folder_by_name(job: str, who: str) -> str:
    """The checkpoint folder of a job: the last one of this name that this process has started, else the running one of this
    user on this machine. Raises `ConfigError` if there is none, or several with folders of their own, or if it takes no
    checkpoints."""
    own = [one._monitor.checkpoints for one in JOBS if one.name == job]
    found = set(own[-1:]) or _running(job)
    places = sorted(one for one in found if one is not None)
    if len(places) == 1:
        return places[0]
    if places:
        there = ", ".join(map(hide_passwords, places))
        raise ConfigError(
            f'{who}: several running jobs are called {job!r}. Name the folder of one, .option("path", ...): {there}'
        )
    if found:
        raise ConfigError(f"{who}: job {job!r} takes no checkpoints, so there is nothing of it that can be read")
    raise ConfigError(
        f"{who}: no job {job!r} of yours is running on the machine of Spark's driver. Name the checkpoint folder of the job "
        f'as well: .option("path", "...")'
    )


def _running(job: str) -> set[str | None]:
    """The checkpoint folders of the running jobs of this name; None for one that has none."""
    found: set[str | None] = set()
    for path, who in jobs():
        if who.get("name") == job:
            answer = query(path, {"verb": "place"}, SECONDS)
            if answer is not None:
                found.add(answer.get("checkpoints"))
    return found
