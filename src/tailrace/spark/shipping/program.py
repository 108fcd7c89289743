"""The program's own definitions on their way to the workers: classes and functions of `__main__`.

A script, a notebook and a REPL all are the module `__main__`, and so is a worker process, where it is a module of Spark.
cloudpickle sends what the job refers to in `__main__` by value. Records, keys and state are pickled by plain pickle, which
writes a class as a name, `__main__.Hit`, and looks the name up. So the worker puts the definitions that came with the
job into a module of that name: then both mean the same class. A checkpoint holds the name only, and so the next version
of the same program reads its state with the classes of its own.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
import uuid
from typing import Any

from pyspark import cloudpickle

MAIN = "__main__"
THIS_PROCESS = uuid.uuid4().hex
"""Tells the driver's own process from a worker's: the simulator loads a job where it was made."""


def dump(value: Any) -> bytes:
    """Pickles a value together with the definitions of `__main__` that it refers to."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(THIS_PROCESS)
    pickler.dump(value)
    sent: set[str] = set()
    while missing := sorted(pickler.roots - sent):  # what is pickled here may refer to others
        sent.update(missing)
        pickler.dump({name: getattr(sys.modules[MAIN], name) for name in missing})
    pickler.dump(None)
    return buffer.getvalue()


def load(data: bytes) -> Any:
    """The value, unpickled. In another process than the one that pickled it, its definitions of `__main__` are that module
    from now on."""
    unpickler = pickle.Unpickler(io.BytesIO(data))
    origin = unpickler.load()
    value = unpickler.load()
    program = types.ModuleType(MAIN)
    while (definitions := unpickler.load()) is not None:
        vars(program).update(definitions)
    if origin != THIS_PROCESS:
        # Not into the module that is there: functions of Spark look their own names up in it.
        sys.modules[MAIN] = program
    return value


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Notes the names at the top level of `__main__` of all that is pickled by value."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.roots: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | types.FunctionType) and obj.__module__ == MAIN:
            root = root_of(obj)
            if root is not None:
                self.roots.add(root)
        return super().reducer_override(obj)


def root_of(obj: Any) -> str | None:
    """The name at the top level of `__main__` under which plain pickle would find a class or function; None where it would
    not: it was made inside a function, or the name means another one by now."""
    found: Any = sys.modules[MAIN]
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return obj.__qualname__.partition(".")[0] if found is obj else None
