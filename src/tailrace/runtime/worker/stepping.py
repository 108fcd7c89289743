"""The order in which a worker's tasks take their steps, and in which it encodes their frozen state."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from tailrace.runtime.eventloop.clock import JobClock
from tailrace.runtime.worker.budget import FIRST_BUDGET, FIRST_READ, Budget
from tailrace.runtime.worker.logs import WorkerLog
from tailrace.runtime.worker.printing import WorkerOutput
from tailrace.task.contract.events import Encode, Flush, FreezeTook, Step
from tailrace.task.subtask.machine import Task
from tailrace.task.worker.attempt import Urgency
from tailrace.task.worker.machine import Worker

ENCODE_SHARE = 0.2
"""Share of a busy worker's time that encoding a snapshot may take."""
IN_FLIGHT_SHARE = 0.8
"""Share while records are encoded that barriers have overtaken, and while a savepoint is written whose barriers overtake
them. There are many only where records wait anyway, and then the checkpoint, or the user, waits for them."""
_SHARES = {Urgency.USUAL: ENCODE_SHARE, Urgency.IN_FLIGHT: IN_FLIGHT_SHARE, Urgency.LAST: 1.0}
PORTIONS = 4
"""Portions that are encoded, at most, between two looks at the sockets."""


class Stepper:
    """The stepper of one worker's tasks: it steps one at a time, and measures the time of each step."""

    def __init__(self, machine: Worker, clock: JobClock | None = None) -> None:
        self.machine = machine
        self.clock = JobClock() if clock is None else clock
        self._budgets: dict[int, Budget] = {}
        """Budgets by vertex."""
        self._busy: dict[int, int] = {}
        """Nanoseconds in steps, by vertex."""
        self.under_way: tuple[Task, int] | None = None
        """The task that takes a step now, and when that began (nanoseconds of `perf_counter`). Read by another thread."""
        self.output = WorkerOutput(sys.stdout, self.place)
        """What stands in for standard output: steps print what the driver shows."""
        self._encode_budget = Budget()
        self._answered_at = 0
        """The time at which a hot standby has answered its worker last (nanoseconds of `perf_counter`)."""
        self._worked = self._encoded = 0
        """Nanoseconds of stepping and of encoding while something was to be encoded, since that began."""

    def anew(self) -> None:
        """Begins a new attempt: the costs of steps in the last one do not hold for it."""
        self._budgets, self._busy = {}, {}
        self._encoded = self._worked = 0

    def place(self) -> tuple[int, int] | None:
        """The vertex and the subtask of the task that takes a step now."""
        step = self.under_way
        return None if step is None else (step[0].id.vertex, step[0].id.subtask)

    @contextlib.contextmanager
    def in_place(self, slot: int) -> Iterator[None]:
        """Brings what steps print and log to the driver meanwhile. `slot`: the place that this process was started for."""
        with self.output.in_place(), WorkerLog(slot, self.place, self.output.add).in_place():
            yield

    def busy_micros(self) -> dict[int, int]:
        """Microseconds that tasks have worked in this attempt, by vertex."""
        return {vertex: nanos // 1000 for vertex, nanos in self._busy.items()}

    def step(self) -> float | None:
        """Steps the first task in turn that has something to do. Returns for how many seconds the worker may sleep now: 0
        if something was done, None if only a message can give work."""
        if self.machine.follows:
            return self._follow()
        now = self.clock.now()
        for task in self.machine.awake(now):
            start = time.perf_counter_ns()
            made = task.cuts.made
            budget = self._budget(task)
            self.under_way = task, start
            idle = self.machine.handle(Step(task.id.vertex, now, budget.records))
            self.under_way = None
            if idle is None:
                took = time.perf_counter_ns() - start
                if self.machine.encoding:  # what was worked before is no credit: it would be spent all at once
                    self._worked += took
                count = task.work.last_count
                if task.cuts.made != made:
                    self.machine.handle(FreezeTook(task.id.vertex, took // 1000))
                elif not count and task.work.advancing:  # a portion of timers, and more of them are due
                    count = budget.records
                ident = task.id.vertex
                self._busy[ident] = self._busy.get(ident, 0) + took
                budget.learn(count, took)
                return 0.0
            if not self.machine.stepping:
                return 0.0
            now = self.clock.now()
        if self.machine.handle(Flush()):
            return 0.0
        wake_at = self.machine.wake_at
        return None if wake_at is None else max(0.0, (wake_at - now) / 1e6)

    def _follow(self) -> float | None:
        """Replays what the worker has sent that this standby follows, and answers at its pace: the worker gathers
        meanwhile, and to replay much together costs less than step by step. Returns as `step` does."""
        left = self._answered_at + 1000 * self.machine.pace - time.perf_counter_ns()
        if self.machine.handle(Flush(answers=left <= 0)):
            return 0.0
        if left > 0:
            return left / 1e9
        self._answered_at = time.perf_counter_ns()
        return None

    def encode(self, wake: float | None) -> float:
        """Encodes portions of a snapshot: whenever there is nothing else to do, else for its share of the time. It
        encodes several at once where barriers have overtaken records, or the job ends behind the checkpoint: a step
        between any two of them would take most of the time."""
        for _ in range(PORTIONS if wake == 0.0 else 1):
            share = self._share()
            if wake == 0.0 and self._encoded * (1 - share) > self._worked * share:
                break
            self._encode()
            if share == ENCODE_SHARE:
                break
        return 0.0

    def _share(self) -> float:
        """The share of a busy worker's time that encoding may take: all of it if the job ends behind the checkpoint."""
        return _SHARES[self.machine.urgency]

    def _encode(self) -> None:
        start = time.perf_counter_ns()
        limit = self._encode_budget.records
        self.machine.handle(Encode(self.clock.now(), limit))
        took = time.perf_counter_ns() - start
        self._encode_budget.learn(limit, took)
        self._encoded += took
        if not self.machine.encoding:
            self._encoded = self._worked = 0

    def _budget(self, task: Task) -> Budget:
        budget = self._budgets.get(task.id.vertex)
        if budget is None:
            first = FIRST_BUDGET if task.chain.source is None else FIRST_READ
            budget = self._budgets[task.id.vertex] = Budget(first=first)
        return budget
