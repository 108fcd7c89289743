"""The user's setting for records that have no room in memory."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.errors import ConfigError
from tailrace.passwords import hides_passwords


@hides_passwords
@dataclass(frozen=True)
class Spill:
    """The places where feedback waits: up to `memory_bytes` of it in the memory of each subtask, the rest in files in the
    folder `dir` of its machine (None: the folder for temporary files). In a `tr.StandbyConfig` it holds for the records
    that each worker has sent to other workers and keeps.

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
            object.__setattr__(self, "dir", folder)
