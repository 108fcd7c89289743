"""The user's own modules in workers that have run other jobs before: modules that were changed since then are imported
anew.

Spark uses the Python processes of its executors again, and Python imports a module once. The driver sends with each job
the versions of its modules. A worker that has older versions forgets all of the user's modules, since one module may have
imported a function of another by its name.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import sys
import time
from typing import Any

from tailrace.spark.shipping.parcel import is_of_the_user

Versions = dict[str, str]
"""A digest of the file of each module, by its full name."""
_log = logging.getLogger("tailrace")
_in_driver: dict[str, tuple[Any, str]] = {}
"""State of each module when a job was sent last: its import spec (another object once the module was reloaded), and its
digest."""
_in_worker: Versions = {}
"""Versions of the modules that this process last received with a job."""
_read: dict[str, tuple[tuple[int, ...], float, str]] = {}
"""Files that were read: their stamp in the filesystem, the time since which it was seen, and the digest; the digest is
empty until the stamp has stayed for `_SETTLED` seconds."""
_SETTLED = 2.0
"""Seconds during which a file may change once more and keep its stamp: the clock of a filesystem is coarse."""


def versions_here() -> Versions:
    """The versions of the user's modules that this process has imported. Logs a warning for each module that was changed
    on disk since the job before and not reloaded: the workers import the file as it is now."""
    found: Versions = {}
    for name, module in list(sys.modules.items()):
        file: Any = getattr(module, "__file__", None)
        if not is_of_the_user(name, file):
            continue
        try:
            digest = _digest_of(file)
        except OSError:
            continue  # the file is gone: a worker that lacks it reports so
        found[name] = digest
        spec, before = _in_driver.get(name, (None, digest))
        if digest != before and spec is getattr(module, "__spec__", None):
            _log.warning(
                "module %r was changed since it was imported here: the workers import it as it is in %s now, and this "
                "process goes on with what it had; importlib.reload(%s) brings both together",
                name,
                file,
                name,
            )
        _in_driver[name] = getattr(module, "__spec__", None), digest
    return found


def _digest_of(file: str) -> str:
    """The digest of a file. A file that does not change is read once: tests start hundreds of jobs with hundreds of
    modules."""
    now, found = time.monotonic(), os.stat(file)
    stamp = found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev
    before, since, digest = _read.get(file, (stamp, now, ""))
    if before != stamp:
        since, digest = now, ""
    if not digest:
        with open(file, "rb") as opened:
            digest = hashlib.sha256(opened.read()).hexdigest()[:16]
        _read[file] = stamp, since, digest if now - since > _SETTLED else ""
    return digest


def bring_up_to_date(versions: Versions) -> None:
    """Brings the modules of a worker up to date, before a job is unpickled. `versions` are the versions of the driver's
    modules. Where this process has known another version of one, it forgets all of them with their submodules. The job
    imports again the modules that it needs."""
    if any(_in_worker.get(name, version) != version for name, version in versions.items()):
        names = {name.partition(".")[0] for name in (*versions, *_in_worker)}
        for name in [name for name in sys.modules if name.partition(".")[0] in names]:
            del sys.modules[name]
        importlib.invalidate_caches()
    _in_worker.update(versions)
