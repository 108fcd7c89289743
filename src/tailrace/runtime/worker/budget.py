"""How much a worker does at once, so that no piece of work takes long."""

from __future__ import annotations

TARGET_NANOS = 1_000_000
"""How long the records of a step should take."""
CEILING_NANOS = 10_000_000
"""Records never get more than half of this."""
FIRST_BUDGET = 64
FIRST_READ = 1
"""Of a source: nobody knows yet how large its records are, and it would make many at once. Others are given what came."""
MAX_BUDGET = 32_768
AMORTIZED = 4
"""The records of a step should take so many times as long as what the step costs without them."""
OFTEN, RARELY = 8, 32
"""After so many steps of like size one is twice as large, to see what that costs; rarely where steps take long already."""
SURPRISE = 4
"""A step above the ceiling that took so many times as long as was expected says that costs have changed: what was learned
before does not count any more."""
_MEMORY = 0.9
"""What a step counts, against the one behind it."""
_SPREAD = 0.1
"""Steps tell what they cost without their records where their sizes differ by this part of their mean."""
_LEAST = 0.1
"""Records are taken to have at least this part in the time of a step."""


class Budget:
    """How many records a step of one task may take, from how long steps took.

    A step costs something whatever it takes (a call into Arrow, a look at the timers), and something for each record. The
    two are told apart by a line through the steps of late, newer ones counting more. Without that a step with high fixed
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
        """Whether no step was seen: the first one also pays for what is done once."""

    def _forget(self) -> None:
        self.each = self.fixed = 0.0
        self._steps = self._sum_n = self._sum_t = self._sum_nn = self._sum_nt = 0.0
        self._alike = 0
        """How many steps went by since their sizes last differed enough to tell the costs apart."""

    def learn(self, records: int, nanos: int) -> None:
        """A step of this many records took this long."""
        if records <= 0:
            return
        expected = self.fixed + self.each * records
        if self._cold or (expected and nanos > max(CEILING_NANOS, SURPRISE * expected)):
            self._forget()
        else:
            self._see(records, nanos)
        self._cold = False
        wanted = 2 * records  # another size than before tells the costs apart
        if self.each:
            share = min(max(self.target, AMORTIZED * self.fixed), max(self.target, CEILING_NANOS / 2))
            wanted = round(share / self.each)
        elif nanos > CEILING_NANOS / 2:
            wanted = round(records * CEILING_NANOS / 4 / nanos)
        if self._alike > (RARELY if nanos > CEILING_NANOS else OFTEN):
            self._alike = 0
            wanted = max(wanted, 2 * records)
        self.records = max(1, min(MAX_BUDGET, wanted, 4 * self.records))

    def _see(self, records: int, nanos: int) -> None:
        """The line of least squares through the steps; where their sizes are alike, the parts stay what they were found to
        be, and grow or fall with the whole."""
        self._steps = _MEMORY * self._steps + 1
        self._sum_n = _MEMORY * self._sum_n + records
        self._sum_t = _MEMORY * self._sum_t + nanos
        self._sum_nn = _MEMORY * self._sum_nn + records * records
        self._sum_nt = _MEMORY * self._sum_nt + records * nanos
        size, time = self._sum_n / self._steps, self._sum_t / self._steps
        variance = self._sum_nn / self._steps - size * size
        if variance > (_SPREAD * size) ** 2:
            slope = (self._sum_nt / self._steps - size * time) / variance
            self.each = min(max(slope, _LEAST * time / size), time / size)
            self._alike = 0
        else:
            expected = self.fixed + self.each * size
            self.each *= time / expected if expected else 0.0
            self._alike += 1
        self.fixed = max(0.0, time - self.each * size)
