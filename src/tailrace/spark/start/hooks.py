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
from tailrace.runtime.job import Page
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.spark.start.checks import Checked
from tailrace.spark.start.listeners import EVERYWHERE, JobListeners


def monitor_of(checked: Checked) -> ProgramMonitor:
    """The monitor of a job in this program."""
    job = checked.submission
    shown = job.env.display.progress if job.env.display.progress is not None else DEFAULTS.show_progress()
    line = ProgressLine(job.name) if shown else None
    tidy, publications = _tidier(job.plan, checked.spec.run_id), _publication_calls(job.plan)
    listeners = JobListeners(job.name, job.run_id, [*EVERYWHERE, *job.env.display.listeners])
    monitor = ProgramMonitor(job.name, job.run_id, job.plan, line, tidy, publications, listeners)
    monitor.checkpoints = checked.spec.checkpoint_dir
    return monitor


def page_of(env: Settings) -> Page | None:
    """The page of this program's jobs; None where it is to have none. Raises `ConfigError` where there can be none."""
    chosen = DEFAULTS.page() if env.display.ui is None else env.display.ui
    if chosen is False:
        return None
    from tailrace.ui.server import own_page  # its libraries are optional

    return own_page(None if chosen is True else chosen)


def _publication_calls(plan: Plan) -> list[tuple[str, Callable[[], object]]]:
    """The calls in the driver after a publication, with the operator's name: one for each sink that implements
    `published`."""
    sinks: dict[int, tuple[str, Callable[[], object]]] = {}
    for node in plan.graph.nodes:
        if isinstance(node.operator, Sink):
            reports = node.operator.sink.published
            if getattr(reports, "__func__", None) is not connectors.Sink.published:
                sinks.setdefault(id(node.operator.sink), (node.name, reports))
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
                sink.note_end()

    return tidy
