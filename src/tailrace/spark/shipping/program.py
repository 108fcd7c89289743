"""The program's own definitions on their way to the workers: classes and functions of `__main__`.

A script, a notebook and a REPL are all the module `__main__`. A worker process has a `__main__` too, which is a module of
Spark. cloudpickle sends by value what the job refers to in `__main__`. Plain pickle writes records, keys and state: it
writes a class as a name, `__main__.Hit`, and looks the name up. So the worker puts the definitions that came with the job
into a module of that name: then both mean the same class. A checkpoint holds the name only, so the next version of the
program reads its state with its own classes.
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
"""Id of this process, by which `load` knows a process that has pickled a job itself: the simulator loads a job where it
was made."""


def dump(value: Any) -> bytes:
    """Pickles a value together with the definitions of `__main__` that it refers to."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(THIS_PROCESS)
    pickler.dump(value)
    sent: set[str] = set()
    while missing := sorted(pickler.roots - sent):  # a definition pickled here may refer to more of them
        sent.update(missing)
        pickler.dump({name: getattr(sys.modules[MAIN], name) for name in missing})
    pickler.dump(None)
    return buffer.getvalue()


def load(data: bytes) -> Any:
    """Unpickles the value. In a process other than the one that pickled it, the definitions that came with it become the
    module `__main__`."""
    unpickler = pickle.Unpickler(io.BytesIO(data))
    origin = unpickler.load()
    value = unpickler.load()
    program = types.ModuleType(MAIN)
    while (definitions := unpickler.load()) is not None:
        vars(program).update(definitions)
    if origin != THIS_PROCESS:
        # A new module, not the one that is there: functions of Spark look their own names up in that one.
        sys.modules[MAIN] = program
    return value


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that notes the names at the top level of `__main__` of all that it pickles by value."""

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
    """The name at the top level of `__main__` under which plain pickle finds a class or function. None where it does not
    find it: it was made inside a function, or the name means another object by now."""
    found: Any = sys.modules[MAIN]
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return obj.__qualname__.partition(".")[0] if found is obj else None
