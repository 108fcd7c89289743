"""Defaults of environments: from `TAILRACE_*` variables, which the command line overrides."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Literal

from tailrace.api.config import CheckpointConfig
from tailrace.api.launch import Settings
from tailrace.errors import ConfigError

_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\]|-cluster\[.*\])?|(spark|k8s|sc)://.+|yarn")
"""Pattern of the masters that Spark takes."""


def checked_master(master: str, who: str) -> str:
    """The master, unchanged. Raises `ConfigError` for a text that Spark does not take; `who` names its source in the
    message."""
    if _MASTER.fullmatch(master) is None:
        known = "local[4], local[*], spark://host:7077, yarn, k8s://https://host:443 or sc://host"
        raise ConfigError(f"{who}: expected a master of Spark such as {known}, got {master!r}")
    return master


@dataclass
class Defaults:
    """Settings for environments that leave them out. `None` means that a setting was not given."""

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
    """True where the first job is compared with the checkpoint it would start from, and the program ends there."""
    by_command: bool = False
    """True where this process is a command, which prints on standard error what a program writes into its log."""

    def spark_master(self) -> str | None:
        """The master of a session that is made; `TAILRACE_MASTER` where none was given. Raises `ConfigError` for a text
        that is no master."""
        master = self.master or os.environ.get("TAILRACE_MASTER") or None
        return master and checked_master(master, "--master, or TAILRACE_MASTER")

    def checkpoint_config(self) -> CheckpointConfig | None:
        """Checkpoint settings; from `TAILRACE_CHECKPOINT_DIR` where none were given, or None. Raises `ConfigError` for
        settings without a folder."""
        folder = self.checkpoint_dir or os.environ.get("TAILRACE_CHECKPOINT_DIR")
        if not folder:
            if self.mode is not None or self.checkpoint_interval is not None:
                raise ConfigError("--checkpoint-interval and --mode need --checkpoint-dir, or TAILRACE_CHECKPOINT_DIR")
            return None
        interval = 1.0 if self.checkpoint_interval is None else self.checkpoint_interval
        return CheckpointConfig(folder, interval=interval or None, mode=self.mode or "aligned")

    def work_folder(self) -> str | None:
        """The `work_dir`; `TAILRACE_WORK_DIR` where none was given, or None."""
        return self.work_dir or os.environ.get("TAILRACE_WORK_DIR") or None

    def default_parallelism(self) -> int:
        """The parallelism; `TAILRACE_PARALLELISM` where none was given, or 2. Raises `ConfigError` where that is no
        number."""
        if self.parallelism is not None:
            return self.parallelism
        text = os.environ.get("TAILRACE_PARALLELISM", "2")
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"TAILRACE_PARALLELISM must be a whole number of at least 1, not {text!r}")
        return int(text)

    def ships(self) -> bool:
        """True where executors receive at once what they may lack; by `TAILRACE_SHIP=1` where the command does not set it.
        Raises `ConfigError` for a value that is neither 1 nor 0."""
        return self.ship or _switch("TAILRACE_SHIP")

    def at_signal(self) -> Literal["cancel", "stop"]:
        """Effect of a signal on jobs; `TAILRACE_ON_SIGNAL` where none was given, or `cancel`. Raises `ConfigError` for
        anything else."""
        wanted = self.on_signal or os.environ.get("TAILRACE_ON_SIGNAL") or "cancel"
        if wanted == "stop":
            return "stop"
        if wanted != "cancel":
            raise ConfigError(f"--on-signal, or TAILRACE_ON_SIGNAL, must be 'stop' or 'cancel', not {wanted!r}")
        return "cancel"

    def overruled(self, env: Settings) -> list[str]:
        """Options of the command that have no effect on a job, because its environment has a setting of its own: a
        sentence on each."""
        parallelism = self.parallelism and min(self.parallelism, env.max_parallelism)
        wanted = {
            "parallelism": (parallelism, env.parallelism, "--parallelism"),
            "checkpoint": (self.checkpoint_dir, env.checkpoint and env.checkpoint.dir, "--checkpoint-dir"),
            "standby": (self.standby, env.standby and env.standby.replicas, "--standby"),
            "work_dir": (self.work_dir, env.work_dir, "--work-dir"),
        }
        return [
            f"{option} {said} does nothing, because the Environment is given a {name} of its own"
            for name, (said, found, option) in wanted.items()
            if said is not None and said != found
        ]

    def show_progress(self) -> bool:
        """True where jobs print a progress line; by `TAILRACE_PROGRESS=1` where it was not given. Raises `ConfigError` for
        a value that is neither 1 nor 0."""
        return self.progress if self.progress is not None else _switch("TAILRACE_PROGRESS")


def _switch(name: str) -> bool:
    """True where a variable of the process is 1. Raises `ConfigError` for a value that is neither 1 nor 0."""
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise ConfigError(f"{name} must be 1 or 0, not {text!r}")
    return text == "1"


DEFAULTS = Defaults()
"""Process-wide defaults."""
