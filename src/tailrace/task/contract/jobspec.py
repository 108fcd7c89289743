"""The description of a job for its workers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.api.failure_options import FAIL, NOTED, NOTING, Capsules, takes_policy
from tailrace.graph.graph import Node
from tailrace.graph.plan import Plan
from tailrace.passwords import hides_passwords


@dataclass(frozen=True)
class Kept:
    """What each worker keeps: what it sends, for those that take the places of others, or its own; and failed calls."""

    bytes: int = 0
    """Bytes of it in memory, in each worker. The rest is in files in `dir` of its machine (None: the folder for temporary
    files)."""
    dir: str | None = None
    stored: bool = False
    """True if the rest is in the storage of checkpoints instead, for which a worker waits `JobSpec.storage_patience`
    seconds."""
    hot: bool = False
    """True if a worker also keeps what comes to it, for a standby that does what it does."""
    pace: int = 0
    """Microseconds, at least, from one answer of such a standby to the next."""
    capsules: Capsules | None = None
    """Settings for capsules of failed calls; None: there are none."""
    place: str = ""
    """The URL or path of the folder of the job, which has its capsules; empty where no file of them is written."""


@hides_passwords
@dataclass(frozen=True)
class JobSpec:
    """The description of a job for its workers: the content of `Deploy.plan`, once unpickled."""

    job: str
    incarnation: int
    plan: Plan
    memory: int
    run_id: str = ""
    seed: int = 0
    copy_records: bool = False
    debug: bool = False
    checkpointing: bool = False
    """True if checkpoints are taken: sinks then prepare at every cut."""
    overtaking: bool = False
    """True if barriers may overtake records."""
    ahead: bool = False
    """True if records that wait are written before the next checkpoint's cut."""
    depth: int = 0
    """Number of executors whose workers may be lost at once and are replaced while the others go on. 0: none, and workers
    keep no histories."""
    history_bytes: int = 0
    """Bytes of memory for the history of each worker, and as many in each worker for those of all others; 0: no limit."""
    compare_values: bool = True
    """True if a replacement compares all values that it makes with what the other workers have received; else only those
    of records without keys."""
    reseeds: bool = False
    """True if Python's shared random generators are seeded for each step, so that a replay gets equal numbers."""
    kept: Kept = Kept()
    storage_patience: float = 600.0
    """Seconds that a worker waits for the storage."""
    allow_dropped_state: tuple[str, ...] | bool = False
    """Operators (uids) whose state may be dropped where it does not fit any more, or True for all."""
    state_backend: str = "memory"
    checkpoint_dir: str | None = None
    storage_options: dict[str, Any] | None = field(default=None, repr=False)

    def place_of(self, operator: str) -> str:
        """The place where the user wrote an operator of this name; empty if there are several."""
        found = {node.written for node in self.plan.graph.nodes if node.name == operator}
        return found.pop() if len(found) == 1 else ""

    def takes_policy(self, operator: str | None) -> bool:
        """True if operators of this name take a policy for records that fail."""
        found = [node for node in self.plan.graph.nodes if node.name == operator]
        return bool(found) and all(takes_policy(node.operator, node.form) for node in found)

    def noting(self, operators: Collection[str]) -> JobSpec:
        """The job in which calls of these operators (names) are noted, so that a failed one is undone: for capsules. With
        `Capsules(exact=True)` those of all."""
        settings = self.kept.capsules
        if settings is None or settings.exact is False or not (operators or settings.exact):
            return self

        def with_notes(node: Node) -> Node:
            notes = node.on_error == FAIL and isinstance(node.operator, NOTING)
            return replace(node, on_error=NOTED) if notes and (settings.exact or node.name in operators) else node

        graph = self.plan.graph
        return replace(self, plan=replace(self.plan, graph=replace(graph, nodes=tuple(map(with_notes, graph.nodes)))))
