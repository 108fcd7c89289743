"""What a job lives through: stops, losses, strangers and loads, on this machine and on a cluster of its own.

Each scenario is a function of a `Setting` that gives figures, and `wrong`: what is not as it must be, empty where all is.
It runs in a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Where a scenario runs."""

    scenario: str
    master: str | None
    """The cluster; None: Spark on this machine, without one."""
    folder: str
    """Seen by all processes; the scenario's own."""
    options: dict[str, str] = field(default_factory=dict)

    def option(self, name: str, default: Any) -> Any:
        """A number of the command line (`--set NAME=VALUE`), of the kind of its default."""
        return type(default)(self.options.get(name, default))


def run(setting: Setting) -> dict[str, Any]:
    """The figures of one scenario."""
    from benchmarks.stress.scenarios import SCENARIOS

    return SCENARIOS[setting.scenario].run(setting)
