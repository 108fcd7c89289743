"""What environments get that say nothing else: from `TAILRACE_*` variables, and over them from the command line."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tailrace.errors import ConfigError


@dataclass
class Defaults:
    """Settings for environments that leave them out. `None` is: nothing was said."""

    master: str | None = None
    parallelism: int | None = None
    progress: bool | None = None
    conf: dict[str, str] = field(default_factory=dict)

    def spark_master(self) -> str | None:
        """The master of a session that is made, `TAILRACE_MASTER` where nothing was said."""
        return self.master or os.environ.get("TAILRACE_MASTER")

    def default_parallelism(self) -> int:
        """The parallelism, `TAILRACE_PARALLELISM` where nothing was said, or 2. Raises `ConfigError` for no number."""
        if self.parallelism is not None:
            return self.parallelism
        text = os.environ.get("TAILRACE_PARALLELISM", "2")
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"TAILRACE_PARALLELISM must be a whole number of at least 1, not {text!r}")
        return int(text)

    def show_progress(self) -> bool:
        """Whether jobs print a progress line, `TAILRACE_PROGRESS=1` where nothing was said."""
        if self.progress is not None:
            return self.progress
        return os.environ.get("TAILRACE_PROGRESS", "") not in ("", "0")


DEFAULTS = Defaults()
"""Those of this process."""
