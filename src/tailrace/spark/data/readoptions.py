"""The options of our data sources of Spark: their names in any case, paths, numbers and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.errors import ConfigError
from tailrace.storage.filesystem import scheme_of


def with_known_names(options: Mapping[str, str], known: Sequence[str], who: str) -> dict[str, str]:
    """The options under their names as documented: Spark takes names in any case. Raises `ConfigError` for an unknown
    one."""
    names = {name.lower(): name for name in known}
    for name in options:
        if name.lower() not in names:
            raise ConfigError(f"{who} has no option {name!r}; it has {', '.join(known)}")
    return {names[name.lower()]: value for name, value in options.items()}


def from_folder(folder: str, path: str) -> str:
    """A path or URL; a relative path starts at `folder`."""
    plain = scheme_of(path) == "file" and not path.lower().startswith("file:")
    return os.path.join(folder, os.path.expanduser(path)) if plain else path


def number_of(given: Mapping[str, str], name: str) -> int | None:
    """The value of an option that is a number from zero; None where it is not given."""
    value = given.get(name)
    if value is None:
        return None
    if not value.isdecimal():
        raise ConfigError(f'option "{name}" is a number, not {value!r}')
    return int(value)


def positive_number(given: Mapping[str, str], name: str) -> int | None:
    """The value of an option that is a number above zero; None where it is not given."""
    value = given.get(name)
    if value is not None and (not value.isdecimal() or not int(value)):
        raise ConfigError(f'option "{name}" is a number above zero, not {value!r}')
    return number_of(given, name)


def truth(given: Mapping[str, str], name: str) -> bool:
    """The value of an option that is true or false; false where it is not given."""
    value = given.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f'option "{name}" is "true" or "false", not {value!r}')
    return value == "true"


def storage_text(given: Mapping[str, Any] | None) -> dict[str, str]:
    """The option that carries options for the filesystem; none where there are none."""
    return {"storageOptions": json.dumps(dict(given))} if given else {}


def storage_options(text: str | None) -> Mapping[str, Any] | None:
    """The options for the filesystem, from JSON; None where they are not given."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f'option "storageOptions" is a JSON object for the filesystem, not {text!r}')
    return found
