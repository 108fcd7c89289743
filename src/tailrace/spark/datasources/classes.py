"""The class of a Python Data Source, by its name or by itself."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections.abc import Iterator
from typing import Any

from tailrace.errors import GraphError, error_text, short_repr


def class_of(given: Any, spark: Any) -> type:
    """The class that is given, or that has the given name. Names are looked up as Spark does, in any case of letters: among
    what is registered in the session, if there is one, in the modules `pyspark_*`, and among the classes that are defined or
    imported in this process. Raises `GraphError` for a name that no class or more than one class has."""
    from pyspark.sql.datasource import DataSource

    if isinstance(given, type) and issubclass(given, DataSource):
        return given
    if not isinstance(given, str):
        raise GraphError(
            f"from_data_source: expected the name of a Python Data Source, or a subclass of "
            f"pyspark.sql.datasource.DataSource, got {short_repr(given, 80)}"
        )
    name = given.lower()
    found = _class_in_session(name, spark) or _in_modules(name)
    if found is not None:
        return found
    loaded = [kind for kind in _subclasses(DataSource) if _name_of(kind) == name]
    if len(loaded) == 1:
        return loaded[0]
    if loaded:
        several = ", ".join(sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in loaded))
        raise GraphError(f"from_data_source: several classes have the name {given!r}: {several}; pass the class")
    known: list[str] = sorted({_name_of(kind) for kind in _subclasses(DataSource)} - {""})
    raise GraphError(
        f"from_data_source: no Python Data Source has the name {given!r}; known here: {', '.join(known) or 'none'}. Import "
        f"its class and pass that, or register it with spark.dataSource.register(...) (with Spark Connect the class must be "
        f"imported in this program). Data sources of the JVM are read with from_dataframe(spark.read...)"
    )


def _class_in_session(name: str, spark: Any) -> type | None:
    """The class that a classic session has under a name. The server of Spark Connect gives no class back."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return None
    manager = session.sessionState().dataSourceManager()
    if not manager.dataSourceExists(name):
        return None
    command = manager.lookupDataSource(name).dataSourceCls().command()
    try:
        found = pickle.loads(bytes(command.unsafeArray()))
    except Exception as error:  # a large class travels in a broadcast
        raise GraphError(
            f"from_data_source: the class that the session has under the name {name!r} cannot be taken from it "
            f"({error_text(error)}); pass the class"
        ) from None
    return found if isinstance(found, type) else None


def _in_modules(name: str) -> type | None:
    """The class of a module `pyspark_*` with a `DefaultSource` of this name, which Spark registers by itself."""
    for module in pkgutil.iter_modules():
        if module.name.startswith("pyspark_") and module.name.removeprefix("pyspark_") == name:
            found = getattr(importlib.import_module(module.name), "DefaultSource", None)
            if isinstance(found, type) and _name_of(found) == name:
                return found
    return None


def _subclasses(kind: Any) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def _name_of(kind: Any) -> str:
    try:
        return str(kind.name()).lower()
    except Exception:  # an unfinished class of the user's, or of another library
        return ""
