"""Calls of sinks in a simulation: the counterpart of `runtime.worker.sinkthreads`."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from tailrace.api.connectors import Sink
from tailrace.task.contract.actions import CallSink
from tailrace.task.contract.events import SinkAnswered
from tailrace.task.contract.sinkcalls import call_sink, close_sink
from tailrace.testing.cluster import Cluster
from tailrace.testing.world import SimulatedProcess


class Publishing:
    """Makes calls of sinks: at once where they take no time, else when their time has passed, one after the other for each
    sink of a process. By chance a call fails, before or behind its effect. The draws are its own: worlds in which calls
    take no time and never fail are what they were."""

    def __init__(self, cluster: Cluster, act: Callable[[SimulatedProcess], object]) -> None:
        """`act` carries out the actions of a worker."""
        self._cluster = cluster
        self._act = act
        self._chance = random.Random(f"publishing {cluster.seed}")
        self._calls: dict[tuple[int, str], deque[CallSink]] = {}
        """The calls that have not come back, by process and sink; the first one of each is under way."""
        self._sinks: dict[tuple[int, str], Sink] = {}
        """The sink of the newest call, by process and sink."""

    def call(self, process: SimulatedProcess, action: CallSink) -> None:
        """Makes a call, when those before it of the same sink have come back."""
        key = (process.party, action.uid)
        before, self._sinks[key] = self._sinks.get(key), action.sink
        if before is not None and before is not action.sink:
            close_sink(before, print)
        waiting = self._calls.setdefault(key, deque())
        waiting.append(action)
        if len(waiting) == 1:
            self._begin(process, action)

    def end(self, process: SimulatedProcess) -> None:
        """Makes the calls that are left, at the end of a process that leaves."""
        for key in [key for key in self._calls if key[0] == process.party]:
            for action in self._calls.pop(key):
                call_sink(action)
        for key in [key for key in self._sinks if key[0] == process.party]:
            close_sink(self._sinks.pop(key), print)

    def _begin(self, process: SimulatedProcess, action: CallSink) -> None:
        key, (low, high) = (process.party, action.uid), self._cluster.conditions.publishing
        if not high:
            self._return(process, action)
            return
        self._cluster.count("a sink published beside the steps")

        def act() -> None:
            # The process was killed, or has made its last calls: nothing more happens.
            if self._cluster.processes.get(process.party) is not process or key not in self._calls:
                return
            if process.frozen_until > self._cluster.now:
                self._cluster.later(process.frozen_until, f"sink {action.uid} is called", act)
            else:
                process.asleep_until = 0
                self._return(process, action)
                self._act(process)

        at = self._cluster.now + self._chance.randint(low, high)
        self._cluster.later(at, f"sink {action.uid} is called", act)

    def _return(self, process: SimulatedProcess, action: CallSink) -> None:
        """Makes the call, and lets the worker handle its end."""
        answer = self._answer(action)
        waiting = self._calls[process.party, action.uid]
        waiting.popleft()
        process.handle(answer)
        if waiting:
            self._begin(process, waiting[0])

    def _answer(self, action: CallSink) -> SinkAnswered:
        refused = self._cluster.conditions.refused
        if not refused or self._chance.random() >= refused:
            return call_sink(action)
        self._cluster.count("a sink that publishes was refused")
        if self._chance.random() < 0.5:
            return SinkAnswered(action.number, "ConnectionError: refused by a fault")
        answer = call_sink(action)
        return answer if answer.error else SinkAnswered(action.number, "ConnectionError: no answer, and it was done")
