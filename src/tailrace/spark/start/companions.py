"""The start of what runs beside a job in this program: streaming queries that feed it, and calls of `ForeachBatch`."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.workers.rescaling import ElasticSizes
from tailrace.errors import JobAlreadyFinished
from tailrace.graph.operators import Sink
from tailrace.graph.plan import Plan
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.driver.user_requests import Runner
from tailrace.runtime.job import Job
from tailrace.spark.data.places import Places
from tailrace.spark.start.allocation import Allocated, session_of
from tailrace.spark.start.checks import Checked, Submission
from tailrace.spark.start.finished_run import finished_job
from tailrace.spark.start.resizing import elastic_sizes, size_changes
from tailrace.spark.streaming.calls import ForeachCalls
from tailrace.spark.streaming.dataframe import StreamingDataFrame
from tailrace.spark.streaming.foreach import ForeachBatch, foreach_place
from tailrace.spark.streaming.queries import JobQueries, check_slots, pool_of, streaming_sources
from tailrace.storage.opening import absolute
from tailrace.storage.store import Store

streaming_source = StreamingDataFrame
foreach_sink = ForeachBatch


class Companions(NamedTuple):
    """The companions of a job in this program."""

    queries: JobQueries | None
    calls: ForeachCalls | None
    monitor: ProgramMonitor
    elastic: ElasticSizes | None
    """The sizes of an elastic job."""

    def start(self, runner: Runner) -> None:
        """Begins with them, for a job that has begun."""
        if self.queries is not None:
            self.queries.watch(runner, lambda: self.monitor.status is JobStatus.RUNNING)
        if self.calls is not None:
            self.calls.start(runner)


def companions_of(checked: Checked, allocated: Allocated, monitor: ProgramMonitor) -> Companions:
    """The companions of a job. Raises `ConfigError` where Spark has no slot for its streaming queries."""
    job = checked.submission
    monitor.sizes = size_changes(checked, allocated)
    queries, calls = None, None
    sources, sinks = streaming_sources(job.plan), _foreach_sinks(job.plan)
    if sources:
        check_slots(allocated.app, job.plan.slots + (allocated.standbys or 0), job.env.slot_timeout)
        monitor.queries = queries = JobQueries(job.name, sources, pool_of(allocated.app.context))
    if sinks:
        monitor.calls = calls = ForeachCalls(job.name, [(name, sink) for name, _, sink in sinks])
    return Companions(queries, calls, monitor, elastic_sizes(checked, allocated))


def job_that_finished(over: JobAlreadyFinished, job: Submission, *, by_program: bool) -> Job:
    """The handle of a job that came to its end in an earlier run (see `finished_job`). Makes the calls first that its
    program has not made because it died."""
    _call_what_is_left(job)
    return finished_job(over, job, by_program=by_program)


def _call_what_is_left(job: Submission) -> None:
    sinks, config = _foreach_sinks(job.plan), job.env.checkpoint
    if not sinks or config is None:
        return
    spark = session_of(job.env, job.plan.slots)
    store = Store(absolute(config.dir), job.name, config.storage_options)
    places = Places(spark, job.env.work_dir, store, 0, None)
    for _, uid, sink in sinks:
        sink.bind(spark, foreach_place(places, uid), begins_anew=False)
        sink.call(lambda: True)


def _foreach_sinks(plan: Plan) -> list[tuple[str, str, ForeachBatch]]:
    """The sinks of a dataflow that call functions in this program: name, uid and sink."""
    found = [(node.name, node.uid, node.operator) for node in plan.graph.nodes]
    return [
        (name, uid, operator.sink)
        for name, uid, operator in found
        if isinstance(operator, Sink) and isinstance(operator.sink, ForeachBatch)
    ]
