"""The amount of work that a worker does at once, so that no piece of work takes long."""

from __future__ import annotations

TARGET_NANOS = 1_000_000
"""Nanoseconds that the records of a step should take."""
CEILING_NANOS = 10_000_000
"""Limit for a step in nanoseconds; records never get more than half of it."""
FIRST_BUDGET = 64
FIRST_READ = 1
"""First budget of a source: the size of its records is unknown, and it would make many at once. Other tasks process what
came."""
MAX_BUDGET = 32_768
AMORTIZED = 4
"""Factor by which the records of a step should take longer than the step without them."""
OFTEN, RARELY = 8, 32
"""Number of steps of like size after which one step is twice as large, to measure the costs; the second number holds
where steps take long already."""
SURPRISE = 4
"""Factor by which a step above the ceiling has to exceed its expected time for costs to count as changed: what was
learned before is dropped."""
_MEMORY = 0.9
"""Weight of a step, relative to the next one."""
_SPREAD = 0.1
"""Spread of the sizes of steps, as a part of their mean, from which on the fixed costs can be told apart."""
_LEAST = 0.1
"""Least part of the time of a step that counts for its records."""


class Budget:
    """The number of records that a step of one task may take, learned from the times of steps.

    A step costs something whatever it takes (a call into Arrow, a look at the timers), and something for each record. A
    line through recent steps tells the two apart, with more weight on newer ones. Without that a step with high fixed
    costs would look like one with slow records and get fewer of them, which makes them slower still, down to one record
    each. Other work on the machine makes steps longer whatever they take, and counts as a fixed cost, too.
    """

    __slots__ = (
        "_alike", "_cold", "_steps", "_sum_n", "_sum_nn", "_sum_nt", "_sum_t", "each", "fixed", "records", "target",
    )  # fmt: skip

    def __init__(self, target: int = TARGET_NANOS, first: int = FIRST_BUDGET) -> None:
        self.records = first
        self.target = target
        self.each: float
        """Nanoseconds for a record; 0 before the costs were told apart."""
        self.fixed: float
        """Nanoseconds for a step without its records."""
        self._forget()
        self._cold = True
        """True before the first step, which also pays for what is done once."""

    def _forget(self) -> None:
        self.each = self.fixed = 0.0
        self._steps = self._sum_n = self._sum_t = self._sum_nn = self._sum_nt = 0.0
        self._alike = 0
        """Steps since their sizes last differed enough to separate the costs."""

    def learn(self, records: int, nanos: int) -> None:
        """Learns from a step of this many records that took this long."""
        if records <= 0:
            return
        expected = self.fixed + self.each * records
        if self._cold or (expected and nanos > max(CEILING_NANOS, SURPRISE * expected)):
            self._forget()
        else:
            self._see(records, nanos)
        self._cold = False
        target = 2 * records  # another size than before tells the costs apart
        if self.each:
            share = min(max(self.target, AMORTIZED * self.fixed), max(self.target, CEILING_NANOS / 2))
            target = round(share / self.each)
        elif nanos > CEILING_NANOS / 2:
            target = round(records * CEILING_NANOS / 4 / nanos)
        if self._alike > (RARELY if nanos > CEILING_NANOS else OFTEN):
            self._alike = 0
            target = max(target, 2 * records)
        self.records = max(1, min(MAX_BUDGET, target, 4 * self.records))

    def _see(self, records: int, nanos: int) -> None:
        """Fits the line of least squares through the steps. If their sizes are alike, the two costs keep their ratio, and
        grow or fall with the whole."""
        self._steps = steps = _MEMORY * self._steps + 1
        self._sum_n = sum_n = _MEMORY * self._sum_n + records
        self._sum_t = sum_t = _MEMORY * self._sum_t + nanos
        self._sum_nn = sum_nn = _MEMORY * self._sum_nn + records * records
        self._sum_nt = sum_nt = _MEMORY * self._sum_nt + records * nanos
        size, time = sum_n / steps, sum_t / steps
        variance = sum_nn / steps - size * size
        if variance > (_SPREAD * size) ** 2:
            slope = (sum_nt / steps - size * time) / variance
            self.each = min(max(slope, _LEAST * time / size), time / size)
            self._alike = 0
        else:
            expected = self.fixed + self.each * size
            self.each *= time / expected if expected else 0.0
            self._alike += 1
        self.fixed = max(0.0, time - self.each * size)
