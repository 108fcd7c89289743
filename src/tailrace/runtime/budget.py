"""How much a worker does at once, so that no piece of work takes long."""

from __future__ import annotations

TARGET_NANOS = 1_000_000
"""How long a step should take."""
CEILING_NANOS = 10_000_000
"""A step that took longer than this halves the budget at once."""
MAX_BUDGET = 32_768
SMALL_BUDGET = 256
"""Below this many records a step may take half the ceiling: its fixed costs weigh heavily there, and smaller steps
would only cost more for each record."""


class Budget:
    """How many records a step of one task may take: from the measured cost of records, so that a step takes about
    `target` nanoseconds."""

    __slots__ = ("cost", "records", "target")

    def __init__(self, target: int = TARGET_NANOS) -> None:
        self.records = 64
        self.cost = 0.0
        self.target = target

    def learn(self, records: int, nanos: int) -> None:
        """A step of this many records took this long."""
        if records <= 0:
            return
        cost = nanos / records
        self.cost = cost if not self.cost else 0.7 * self.cost + 0.3 * cost
        wanted = MAX_BUDGET
        if self.cost:
            wanted = max(int(self.target / self.cost), min(SMALL_BUDGET, int(CEILING_NANOS / 2 / self.cost)))
        if nanos > CEILING_NANOS:
            wanted = min(wanted, records // 2)
        self.records = max(1, min(MAX_BUDGET, wanted, 4 * self.records))
