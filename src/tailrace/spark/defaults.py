"""Defaults of environments: from `TAILRACE_*` variables, which the command line overrides."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from tailrace.api.config import CheckpointConfig
from tailrace.errors import ConfigError


@dataclass
class Defaults:
    """Settings for environments that leave them out. `None` is: nothing was said."""

    master: str | None = None
    parallelism: int | None = None
    progress: bool | None = None
    conf: dict[str, str] = field(default_factory=dict)
    checkpoint_dir: str | None = None
    checkpoint_interval: float | None = None
    mode: str | None = None
    standby: int | None = None
    work_dir: str | None = None
    from_checkpoint: str | None = None
    allow_dropped_state: bool = False
    if_finished: Literal["raise", "start-again"] = "raise"
    ship: bool = False
    on_signal: str | None = None
    dry_run: bool = False
    """Whether the first job is held against the checkpoint it would start from, and the program ends there."""
    by_command: bool = False
    """Whether this process is a command, which says on standard error what a program finds in its log."""

    def spark_master(self) -> str | None:
        """The master of a session that is made, `TAILRACE_MASTER` where nothing was said."""
        return self.master or os.environ.get("TAILRACE_MASTER") or None

    def checkpoint_config(self) -> CheckpointConfig | None:
        """Checkpoint settings, `TAILRACE_CHECKPOINT_DIR` where nothing was said, or None. Raises `ConfigError` for
        settings without a folder."""
        folder = self.checkpoint_dir or os.environ.get("TAILRACE_CHECKPOINT_DIR")
        if not folder:
            if self.mode is not None or self.checkpoint_interval is not None:
                raise ConfigError("--checkpoint-interval and --mode need --checkpoint-dir, or TAILRACE_CHECKPOINT_DIR")
            return None
        interval = 1.0 if self.checkpoint_interval is None else self.checkpoint_interval
        return CheckpointConfig(folder, interval=interval or None, mode=self.mode or "aligned")

    def work_folder(self) -> str | None:
        """The `work_dir`, `TAILRACE_WORK_DIR` where nothing was said, or None."""
        return self.work_dir or os.environ.get("TAILRACE_WORK_DIR") or None

    def default_parallelism(self) -> int:
        """The parallelism, `TAILRACE_PARALLELISM` where nothing was said, or 2. Raises `ConfigError` for no number."""
        if self.parallelism is not None:
            return self.parallelism
        text = os.environ.get("TAILRACE_PARALLELISM", "2")
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"TAILRACE_PARALLELISM must be a whole number of at least 1, not {text!r}")
        return int(text)

    def ships(self) -> bool:
        """Whether executors are brought what they may lack at once, `TAILRACE_SHIP=1` where nothing was said."""
        return self.ship or os.environ.get("TAILRACE_SHIP", "") not in ("", "0")

    def at_signal(self) -> Literal["cancel", "stop"]:
        """What a signal does to jobs, `TAILRACE_ON_SIGNAL` where nothing was said, or `cancel`. Raises `ConfigError` for
        anything else."""
        wanted = self.on_signal or os.environ.get("TAILRACE_ON_SIGNAL") or "cancel"
        if wanted == "stop":
            return "stop"
        if wanted != "cancel":
            raise ConfigError(f"--on-signal, or TAILRACE_ON_SIGNAL, must be 'stop' or 'cancel', not {wanted!r}")
        return "cancel"

    def show_progress(self) -> bool:
        """Whether jobs print a progress line, `TAILRACE_PROGRESS=1` where nothing was said."""
        if self.progress is not None:
            return self.progress
        return os.environ.get("TAILRACE_PROGRESS", "") not in ("", "0")


DEFAULTS = Defaults()
"""Those of this process."""
