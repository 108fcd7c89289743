"""Names of a module whose own modules are imported when the names are first used: a program pays for what it uses."""

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any


def resolve(owner: str, name: str, modules: Mapping[str, str]) -> Any:
    """The object that a module (`owner`) has by this name, from the module that the table names, or that module itself
    where it is called so. `owner` keeps it. None if the table does not have the name."""
    place = modules.get(name)
    if place is None:
        return None
    found = import_module(place)
    if place.rpartition(".")[2] != name:
        found = getattr(found, name)
    setattr(sys.modules[owner], name, found)
    return found


def by_name(names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The pairs of a table (name, module), from one of modules, each with its names in a row."""
    for module, row in names.items():
        for name in row.split():
            yield name, module
