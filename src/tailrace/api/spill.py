"""The user's setting for records that have no room in memory."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.errors import ConfigError
from tailrace.passwords import hides_passwords
from tailrace.spelling import with_hints

CHECKPOINT = "checkpoint"
"""The `dir` that stands for the storage of checkpoints."""


@with_hints
@hides_passwords
@dataclass(frozen=True)
class Spill:
    """The places where feedback waits: up to `memory_bytes` of it in the memory of each subtask, the rest in files in the
    folder `dir` of its machine (None: the folder for temporary files). In a `tr.StandbyConfig` it holds for the records
    that each worker has sent to other workers and keeps, and `dir` may be "checkpoint": the rest is in the storage of
    checkpoints then, for machines with little disk. Only the worker that wrote these files reads them. A folder of this
    name is "./checkpoint".

    Raises `ConfigError` for a wrong setting."""

    memory_bytes: int = 64 << 20
    dir: str | None = None

    def __post_init__(self) -> None:
        size = self.memory_bytes
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ConfigError(f"Spill: memory_bytes must be a number of bytes, not {size!r}")
        if self.dir is not None:
            folder = self.dir.__fspath__() if hasattr(self.dir, "__fspath__") else self.dir
            if not isinstance(folder, str) or not folder:
                raise ConfigError(f"Spill: dir must be the path of a folder or None, not {self.dir!r}")
            if folder is not self.dir and folder == CHECKPOINT:  # a path names a folder
                folder = f"./{folder}"
            object.__setattr__(self, "dir", folder)

    @property
    def stored(self) -> bool:
        """True if the rest is in the storage of checkpoints."""
        return self.dir == CHECKPOINT

    @property
    def folder(self) -> str | None:
        """The folder of the machine for the rest, if one is given."""
        return None if self.stored else self.dir
