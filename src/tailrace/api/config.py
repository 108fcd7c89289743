"""Settings and how they are read. What is not there yet raises `ConfigError`; it never means something else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tailrace.errors import ConfigError

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


@dataclass(frozen=True)
class NoRestart:
    """A job that fails stays failed."""


def memory_bytes(value: int | str) -> int:
    """A memory size: bytes, or a text such as `"512m"` or `"1g"`. Raises `ConfigError` for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        found = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
        if found is None or found[2].lower() not in _UNITS:
            raise ConfigError(f"memory must be a number of bytes or a text such as '512m' or '1g', not {value!r}")
        size = int(found[1]) * _UNITS[found[2].lower()]
    if size < 1 << 20:
        raise ConfigError(f"memory must be at least 1m, not {value!r}")
    return size


def refuse_what_is_not_there(checkpoint: Any, restart: Any, standby: Any) -> None:
    """Raises `ConfigError` for a setting of a part that this version does not have."""
    if checkpoint is not None:
        raise ConfigError("checkpoint: this version of tailrace has no checkpoints yet; leave it None")
    if standby is not None:
        raise ConfigError("standby: this version of tailrace has no standbys yet; leave it None")
    if restart is not None and not isinstance(restart, NoRestart):
        raise ConfigError(
            f"restart: without checkpoints a job can only stay failed; leave it None or use tr.NoRestart(), not {restart!r}"
        )
