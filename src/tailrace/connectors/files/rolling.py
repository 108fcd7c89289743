"""When a sink begins another file: `Roll`."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.errors import ConfigError


@dataclass(frozen=True)
class Roll:
    """When a sink of files begins another file, beside the end of a transaction, which ends all files.

    - `bytes`: after this many bytes were written to a file; None: no limit.
    - `seconds`: with the first batch this long after the file was begun. Files go on over checkpoints until then, so there
      are fewer of them, and records become visible that much later. None: each complete checkpoint publishes its files.

    Raises `ConfigError` for what is no number above zero."""

    bytes: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("bytes", self.bytes), ("seconds", self.seconds)):
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ConfigError(f"Roll: {name} must be a number above zero, or None, not {value!r}")


def check_roll(roll: Roll | None, who: str) -> Roll | None:
    """The roll, checked. Raises `ConfigError` for what is none."""
    if roll is not None and not isinstance(roll, Roll):
        raise ConfigError(f"{who}: roll must be a tr.Roll(bytes=..., seconds=...), not {roll!r}")
    return roll
