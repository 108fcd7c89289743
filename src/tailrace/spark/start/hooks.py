"""The monitor of a job with its hooks: the progress line, calls of sinks that have published, the clean-up at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from tailrace.api import connectors
from tailrace.api.launch import Settings
from tailrace.connectors.filesinks import remove_unfinished
from tailrace.connectors.results import Result
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.graph.operators import Sink
from tailrace.graph.plan import Plan
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.driver.progressline import ProgressLine
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.task.contract.jobspec import JobSpec


def monitor_of(env: Settings, spec: JobSpec, run_id: str) -> ProgramMonitor:
    """The monitor of a job in this program. `run_id`: the whole id of the run, which users see."""
    shown = env.progress if env.progress is not None else DEFAULTS.show_progress()
    line = ProgressLine(spec.job) if shown else None
    return ProgramMonitor(spec.job, run_id, spec.plan, line, _tidier(spec.plan, spec.run_id), _told(spec.plan))


def _told(plan: Plan) -> list[tuple[str, Callable[[], object]]]:
    """The calls in the driver after a publication, with the operator's name: one for each sink that implements
    `published`."""
    sinks: dict[int, tuple[str, Callable[[], object]]] = {}
    for node in plan.graph.nodes:
        if isinstance(node.operator, Sink):
            told = node.operator.sink.published
            if getattr(told, "__func__", None) is not connectors.Sink.published:
                sinks.setdefault(id(node.operator.sink), (node.name, told))
    return list(sinks.values())


def _tidier(plan: Plan, run_id: str) -> Callable[..., None]:
    """A function that cleans up at the end of a job. It removes all hidden output, except what a checkpoint that stays has
    prepared (`kept`, by the uid of the sink): a start from that checkpoint publishes it."""
    sinks = [(node.uid, node.operator.sink) for node in plan.graph.nodes if isinstance(node.operator, Sink)]

    def tidy(status: JobStatus, kept: Mapping[str, Sequence[bytes]] | None = None) -> None:
        for uid, sink in sinks:
            with contextlib.suppress(Exception):  # a store that is out of reach does not change how the job ended
                remove_unfinished(sink, run_id, uid, (kept or {}).get(uid, ()))
            if isinstance(sink, Result):
                sink.ended()

    return tidy
