"""The first step in a process of an executor: it takes what was shipped, and looks for what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace import __version__
from tailrace.spark.shipping.parcel import CARRIED, Parcel


def looking(parcel: Parcel | None) -> Callable[[], str | None]:
    """A function that travels by value. It unpacks the parcel and returns as JSON what the executor still lacks of
    tailrace and its packages, or None. The process may have run other jobs before, with other parcels.

    The user's modules and tailrace come before the modules of the executor. Of the packages that tailrace needs, the
    function takes only those that the executor lacks: the executor's other software relies on the executor's own packages.

    Two versions of a package cannot be in one process: code that has imported one of them goes on with it. So the function
    imports tailrace only once its version is known. It refuses a process in which other code has imported another version.
    """
    required = __version__
    nothing = Parcel("", "", (), tuple((package, least, True) for package, least in CARRIED.items()))
    name, kind, modules, needs = parcel or nothing

    def place_of(module: Any) -> str:
        return str(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), ""))

    def forget(root: str, parcels: str) -> None:
        """Forgets what earlier parcels brought, and what the executor has under the names of the user's modules."""
        import importlib
        import sys

        sys.path[:] = [place for place in sys.path if not place.startswith(parcels)]
        for loaded, module in list(sys.modules.items()):
            stale = loaded.partition(".")[0] in modules or place_of(module).startswith(parcels)
            if stale and not place_of(module).startswith(root):
                del sys.modules[loaded]
        importlib.invalidate_caches()

    def has(package: str, least: str, root: str) -> bool:
        """True where this Python has a package by itself that is not too old. Raises `ImportError` where one that is too
        old is in use."""
        import importlib.metadata
        import importlib.util
        import re
        import sys

        loaded = sys.modules.get(package)
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None or (root and spec.origin.startswith(root)):
            return False
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return True  # its version is unknown
        there, needed = ([int(part) for part in re.findall(r"\d+", text)[:3]] for text in (version, least))
        if there < needed and (loaded is not None or not root):
            raise ImportError(f"{package} {version} is there, and tailrace needs {least}", name=package)
        return there >= needed

    def unpack(here: str) -> None:
        import os
        import sys

        from pyspark import SparkFiles

        parcels = os.path.join(SparkFiles.getRootDirectory(), "tailrace-")
        root = os.path.join(SparkFiles.getRootDirectory(), name) + os.sep
        forget(root, parcels)
        taken = [f"{root}program", f"{root}tailrace"]
        for package, least, compiled in needs:
            if compiled and here != kind:
                has(package, least, "")
            elif not has(package, least, root):
                taken.append(f"{root}needs{os.sep}{package}")
        sys.path[:0] = taken

    def version_there() -> str | None:
        """The version of tailrace that an import would find, or has found; None where it is unknown."""
        import importlib.util
        import re
        import sys

        loaded = sys.modules.get("tailrace")
        if loaded is not None:
            return getattr(loaded, "__version__", None)
        spec = importlib.util.find_spec("tailrace")
        source = getattr(spec and spec.loader, "get_source", lambda name: None)("tailrace")
        found = re.search(r"^__version__ = [\"'](.+?)[\"']", source or "", re.MULTILINE)
        return found[1] if found else None

    def look() -> str | None:
        import importlib
        import json
        import platform
        import socket
        import sys
        import sysconfig

        here = f"{sysconfig.get_config_var('SOABI')} {platform.machine()}"
        missing = {}
        try:
            if name:
                unpack(here)
            found = version_there()
            if found in (None, required):
                for package, least, _ in () if name else needs:
                    has(package, least, "")
                found = importlib.import_module("tailrace").__version__
                importlib.import_module("tailrace.runtime.worker.main_loop")  # with all packages that it needs
        except ImportError as error:
            missing = {"module": error.name, "said": str(error)}
        else:
            if found != required:
                missing = {"version": found}
                if "tailrace" in sys.modules:
                    missing["imported"] = place_of(sys.modules["tailrace"])
        if not missing:
            return None
        where = {"host": socket.gethostname(), "python": platform.python_version(), "program": sys.executable}
        return json.dumps({**missing, **where, "kind": here})

    return look
