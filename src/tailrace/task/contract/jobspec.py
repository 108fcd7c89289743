"""What a worker needs to know of its job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailrace.graph.plan import Plan


@dataclass(frozen=True)
class JobSpec:
    """What a worker needs to know: the content of `Deploy.plan`, once unpickled."""

    job: str
    incarnation: int
    plan: Plan
    memory: int
    run_id: str = ""
    seed: int = 0
    copy_records: bool = False
    debug: bool = False
    checkpointing: bool = False
    """Whether checkpoints are taken: sinks then prepare at every cut."""
    overtaking: bool = False
    """Whether their barriers may overtake records."""
    ahead: bool = False
    """Whether records that wait are written before a checkpoint finds them."""
    depth: int = 0
    """How many workers may be lost at once, and are replaced while the others go on: what each does is kept. 0: none."""
    history_bytes: int = 0
    """So much memory that may take, of all workers together, in each of them; 0: any."""
    reseeds: bool = False
    """Whether Python's own generators of random numbers are seeded for each step, so that who does it again has the same."""
    kept_bytes: int = 0
    """And what each sends to others: so much of it in memory, and the rest in files in `kept_dir` of its machine (None: the
    folder for temporary files)."""
    kept_dir: str | None = None
    kept_stored: bool = False
    """Whether the rest is in the storage of checkpoints instead, for which a worker waits so many seconds."""
    storage_patience: float = 600.0
    allow_dropped_state: tuple[str, ...] | bool = False
    """Operators (uids) whose state may be dropped where it does not fit any more, or True for all."""
    state_backend: str = "memory"
    checkpoint_dir: str | None = None
    storage_options: dict[str, Any] | None = field(default=None, repr=False)

    def written(self, operator: str) -> str:
        """Where an operator of this name is written; nothing where there are several."""
        found = {node.written for node in self.plan.graph.nodes if node.name == operator}
        return found.pop() if len(found) == 1 else ""
