"""Defaults of environments: from variables of the process (`tailrace.settings`), which the command line overrides."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from tailrace.api.config import CheckpointConfig, Elastic
from tailrace.api.launch import Settings
from tailrace.errors import ConfigError
from tailrace.settings import SETTINGS

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
    parallelism: str | None = None
    autoscale: bool = False
    progress: bool | None = None
    ui: bool | None = None
    conf: dict[str, str] = field(default_factory=dict)
    checkpoint_dir: str | None = None
    checkpoint_interval: float | None = None
    mode: str | None = None
    alignment_timeout: str | None = None
    max_inflight_bytes: int | None = None
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
        """The master of a session that is made. Raises `ConfigError` for a text that is no master."""
        master = SETTINGS["master"].value(self.master)
        return master and checked_master(master, SETTINGS["master"].source)

    def checkpoint_config(self) -> CheckpointConfig | None:
        """Checkpoint settings, or None. Raises `ConfigError` for settings without a folder."""
        folder = SETTINGS["checkpoint_dir"].value(self.checkpoint_dir)
        if not folder:
            given = [name for name in _OF_CHECKPOINTS if getattr(self, name) is not None]
            if given:
                flags = ", ".join(SETTINGS[name].flag for name in given)
                raise ConfigError(f"{flags}: there are no checkpoints without {SETTINGS['checkpoint_dir'].source}")
            return None
        interval, mode, timeout, most = (SETTINGS[name].value(getattr(self, name)) for name in _OF_CHECKPOINTS)
        return CheckpointConfig(
            folder,
            interval=interval or None,
            mode=mode,
            alignment_timeout=_duration(timeout),
            max_inflight_bytes=most,
        )

    def work_folder(self) -> str | None:
        """The `work_dir`, or None."""
        return SETTINGS["work_dir"].value(self.work_dir)

    def default_parallelism(self) -> int | Elastic:
        """The parallelism. Raises `ConfigError` where the option or the variable is neither a number nor two."""
        text = str(SETTINGS["parallelism"].value(self.parallelism))
        found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
        if found is None or int(found[1]) < 1:
            where = SETTINGS["parallelism"].source
            raise ConfigError(f"{where} must be a number of at least 1, or LEAST-MOST, not {text!r}")
        return int(found[1]) if found[2] is None else Elastic(int(found[1]), int(found[2]))

    def most_workers(self) -> int:
        """The parallelism; the upper bound of an elastic one."""
        found = self.default_parallelism()
        return found if isinstance(found, int) else found.most

    def ships(self) -> bool:
        """True where executors receive at once what they may lack. Raises `ConfigError` for a variable that is neither 1 nor
        0."""
        return SETTINGS["ship"].value(self.ship or None)

    def at_signal(self) -> Literal["cancel", "stop"]:
        """Effect of a signal on jobs. Raises `ConfigError` for a variable that is neither `cancel` nor `stop`."""
        return SETTINGS["on_signal"].value(self.on_signal)

    def is_supervised(self) -> bool:
        """True where this program is started again when it dies. Raises `ConfigError` for a variable that is neither 1 nor
        0."""
        return SETTINGS["supervised"].value()

    def overrides(self, env: Settings) -> list[str]:
        """Options of the command that have no effect on a job, because its environment has a setting of its own: a
        sentence on each."""
        given = None if self.parallelism is None else self.default_parallelism()
        parallelism = min(given, env.max_parallelism) if isinstance(given, int) else given
        settings = {
            "parallelism": ("parallelism", parallelism, env.sizing.elastic if env.sizing else env.parallelism),
            "checkpoint": ("checkpoint_dir", self.checkpoint_dir, env.checkpoint and env.checkpoint.dir),
            "standby": ("standby", self.standby, env.standby and env.standby.replicas),
            "work_dir": ("work_dir", self.work_dir, env.work_dir),
        }
        idle = [f"{SETTINGS['autoscale'].flag} does nothing, because the job is not elastic (--parallelism LEAST-MOST)"]
        return (idle if self.autoscale and not (env.sizing and env.sizing.autoscale) else []) + [
            f"{SETTINGS[option].flag} {mine} does nothing, because the Environment is given a {name} of its own"
            for name, (option, mine, found) in settings.items()
            if mine is not None and mine != found
        ]

    def page(self) -> bool | int:
        """True where the program's jobs have a page at some port, or its port. Raises `ConfigError` for a variable that is
        neither 1, nor 0, nor a port."""
        if self.ui is not None:
            return self.ui
        text = SETTINGS["ui"].read() or "0"
        if not text.isdecimal() or int(text) >= 1 << 16:
            raise ConfigError(f"{SETTINGS['ui'].variable} must be 1, 0 or a port, not {text!r}")
        return text == "1" if text in ("0", "1") else int(text)

    def show_progress(self) -> bool:
        """True where jobs print a progress line. Raises `ConfigError` for a variable that is neither 1 nor 0."""
        return bool(SETTINGS["progress"].value(self.progress))


_OF_CHECKPOINTS = ("checkpoint_interval", "mode", "alignment_timeout", "max_inflight_bytes")


def _duration(text: str) -> str | float | None:
    """A duration of the command line: seconds, a text, or none."""
    if text.strip().lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        return text


DEFAULTS = Defaults()
"""Process-wide defaults."""
