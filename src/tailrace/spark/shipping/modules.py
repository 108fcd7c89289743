"""The user's own modules in workers that have run other jobs before: those that were changed since then are imported anew.

Spark uses the Python processes of its executors again, and Python imports a module once. The driver says with each job
what its modules are now; a worker that has older ones forgets the user's modules, all of them, since one may have taken a
function of another by its name.
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
"""How each module was when a job was sent last: what it was imported by (another object once it was reloaded), and its
digest."""
_in_worker: Versions = {}
"""What the modules were when this process was given a job last."""
_read: dict[str, tuple[tuple[int, ...], float, str]] = {}
"""What was read of files: what their filesystem says of them, since when, and the digest, once that was so for a while."""
_SETTLED = 2.0
"""A file that was changed in the last so many seconds may change once more at the same time by its filesystem's clock."""


def versions_here() -> Versions:
    """The versions of the user's modules that this process has imported. Logs a warning for those that were changed on disk
    since the job before and not reloaded: the workers import what is there now."""
    found: Versions = {}
    for name, module in list(sys.modules.items()):
        file: Any = getattr(module, "__file__", None)
        if not is_of_the_user(name, file):
            continue
        try:
            digest = _digest_of(file)
        except OSError:
            continue  # it is gone: a worker that lacks it says so
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
    """The digest of a file. It is read once, as long as it does not change: tests start hundreds of jobs with hundreds of
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


def bring_up_to_date(told: Versions) -> None:
    """In a worker, before a job is unpickled: `told` are the versions of the driver's modules. Where this process has known
    another one it forgets all of them, and what belongs to them; they are imported again by those who need them."""
    if any(_in_worker.get(name, version) != version for name, version in told.items()):
        names = {name.partition(".")[0] for name in (*told, *_in_worker)}
        for name in [name for name in sys.modules if name.partition(".")[0] in names]:
            del sys.modules[name]
        importlib.invalidate_caches()
    _in_worker.update(told)
