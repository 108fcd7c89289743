"""All scenarios, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import Setting, frames, loads, losses, sharing, stops, storms, strangers


@dataclass(frozen=True)
class Scenario:
    """`where`: both, or "cluster" or "local" alone."""

    run: Callable[[Setting], dict[str, Any]]
    where: str = ""


SCENARIOS = {
    "held": Scenario(stops.held),
    "endless": Scenario(stops.endless),
    "stop-worker": Scenario(stops.stop_worker),
    "stop-executor": Scenario(stops.stop_executor),
    "stop-machine": Scenario(stops.stop_machine, "cluster"),
    "stop-driver": Scenario(stops.stop_driver),
    "spare": Scenario(losses.spare),
    "full": Scenario(losses.full, "cluster"),
    "frames": Scenario(frames.malformed),
    "strangers": Scenario(strangers.strangers),
    "strangers-folder": Scenario(strangers.strangers_at_the_folder, "cluster"),
    "large": Scenario(loads.large),
    "slow": Scenario(loads.slow),
    "wide": Scenario(loads.wide),
    "operators": Scenario(loads.operators),
    "sharing": Scenario(sharing.sharing, "local"),
    "storm": Scenario(storms.storm),
    "flights": Scenario(storms.flights),
    "routes": Scenario(storms.routes),
}
