"""Running an environment's pending sinks under the simulator."""

from __future__ import annotations

import contextlib
import random
import tempfile
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tailrace.api.checks.arguments import check_job_name
from tailrace.api.environment import Environment, check_connectors
from tailrace.api.failure_options import capsules_of_job
from tailrace.connectors.filesinks import remove_unfinished
from tailrace.connectors.results import Result
from tailrace.connectors.sources import ArrowFiles
from tailrace.coordinator.workers.rescaling import ElasticSizes, JobSize
from tailrace.errors import GraphError
from tailrace.graph.operators import Sink, Source
from tailrace.graph.plan import Plan
from tailrace.graph.sizes import check_elastic, plan_of_size, size_text
from tailrace.runtime.driver.machine_settings import elastic_of, settings_of, size_of, strategy_of
from tailrace.runtime.worker.interception import intercept, release
from tailrace.task.contract.functions import with_own_functions
from tailrace.task.contract.jobspec import JobSpec, Kept
from tailrace.task.contract.tuning import Tuning
from tailrace.testing.faults import Fault
from tailrace.testing.job import SimulatedJob
from tailrace.testing.memorystore import MemoryFiles
from tailrace.testing.recording import Shipped
from tailrace.testing.setting import size_bytes
from tailrace.testing.simulator import Simulation
from tailrace.testing.world import Conditions


def run(env: Environment, name: str = "test") -> SimulatedJob:
    """Runs everything pending in this process and thread, without Spark, and returns the ended job.

    Raises `JobFailed` when it fails. Plain functions are used as they are, so breakpoints, print and closures work;
    function objects are copied for each subtask, as a real job does. Time is virtual: timers do not wait. A DataFrame is
    read once, in its own session.
    """
    job = _simulate(env, name, 0, Conditions.calm(), pickled=False, keep_trace=False)
    job.await_termination()
    return job


def simulate(
    env: Environment,
    *,
    seed: int = 0,
    name: str = "simulated",
    conditions: Conditions | None = None,
    faults: Sequence[Fault] = (),
    files: MemoryFiles | None = None,
) -> SimulatedJob:
    """Runs everything pending on a simulated cluster and returns the ended job, finished or failed.

    The seed decides how long messages take, how large steps are, and which party goes first; the same seed gives the same
    trace (`job.digest`). Functions are pickled to every worker, as in a real job. With checkpoints in the environment they
    are taken into a storage in memory, `files`, whatever their `dir` is. `faults` happen to the job at their turns.
    """
    return _simulate(env, name, seed, conditions, pickled=True, keep_trace=True, faults=faults, files=files)


def _simulate(
    env: Environment,
    name: str,
    seed: int,
    conditions: Conditions | None,
    *,
    pickled: bool,
    keep_trace: bool,
    faults: Sequence[Fault] = (),
    files: MemoryFiles | None = None,
) -> SimulatedJob:
    sinks = pending_sinks(env, name)
    simulation = prepared_simulation(
        env,
        name=name,
        seed=seed,
        conditions=conditions,
        pickled=pickled,
        keep_trace=keep_trace,
        faults=faults,
        files=files,
        tuning=Tuning(watches_state=True),
    )
    state = random.getstate(), np.random.get_state()
    try:
        simulation.run()
    finally:  # workers of a job with standbys seed the generators that a process shares, and all run in this process
        random.setstate(state[0])
        np.random.set_state(state[1])
        if env.standby is not None:
            release()
    for node in simulation.plan.graph.nodes:
        if isinstance(node.operator, Sink):
            with contextlib.suppress(OSError):  # the outcome of the job is reported, as for a real one
                remove_unfinished(node.operator.sink, simulation.driver.run_id, node.uid)
            if isinstance(node.operator.sink, Result):
                node.operator.sink.note_end()
    job = SimulatedJob(simulation)
    env._note_start(job, sinks, simulation.plan)
    return job


def pending_sinks(env: Environment, name: str) -> set[int]:
    """The sinks of an environment that are pending. Raises `GraphError` where a source of theirs never ends."""
    check_job_name(name)
    sinks = env._pending()
    for node in env._plan(sinks).graph.nodes:
        if isinstance(node.operator, Source) and not node.operator.source.bounded:
            raise GraphError(
                f"source {node.name!r} is unbounded, and a test ends only when its input does; give it an end (count=, end=)"
            )
    return sinks


def prepared_simulation(
    env: Environment,
    *,
    name: str,
    seed: int = 0,
    conditions: Conditions | None = None,
    pickled: bool = True,
    debug: bool = False,
    **options: Any,
) -> Simulation:
    """A simulation of everything that is pending, not begun. Where workers are replaced, clocks of this process have
    stand-ins from here on (`runtime.worker.interception`). `debug` has the meaning that it has in the environment.
    `options` are options of a `Simulation`; without them, settings of checkpoints and restarts are the environment's."""
    plan = env._plan(env._pending())
    check_connectors(plan)
    options["elastic"], plan = _elastic(env, plan, conditions, options)
    for node in plan.graph.nodes:
        operator = node.operator
        if isinstance(operator, Source) and isinstance(operator.source, ArrowFiles):
            operator.source.fetch(_folder_of(operator.source))
        if isinstance(operator, Sink) and isinstance(operator.sink, Result):
            operator.sink.bind(_folder_of(operator.sink))
            operator.sink.begin()
    config = env.checkpoint
    # Each run has its own, as with a real job: names of files contain it, and several runs may write into one folder.
    run_id = options.setdefault("run_id", uuid.uuid4().hex[:8])
    options.setdefault("checkpoints", None if config is None else settings_of(config))
    options.setdefault("restarts", lambda: strategy_of(env.restart))
    options.setdefault("replaces", env.standby is not None)
    options.setdefault("spares", 0 if env.standby is None else env.standby.processes(plan.slots))
    options.setdefault("hot", env.standby is not None and env.standby.mode == "hot")
    options.setdefault("depth", 0 if env.standby is None else env.standby.depth)
    spill, hot = None if env.standby is None else env.standby.spill, options["hot"]
    capsules = capsules_of_job(env.capsules, config, env.restart)
    spec = JobSpec(
        name,
        1,
        plan,
        env.memory,
        run_id,
        seed,
        env.copy_records,
        env.debug or debug,
        checkpointing=options["checkpoints"] is not None,
        overtaking=options["checkpoints"] is not None and options["checkpoints"].overtakes_after >= 0,
        ahead=options["checkpoints"] is not None and options["checkpoints"].ahead,
        depth=options["depth"],
        reseeds=env.standby is not None or options["depth"] > 0,
        history_bytes=0 if env.standby is None else env.standby.history_bytes,
        compare_values=env.standby is None or env.standby.compare == "values",
        kept=Kept(hot=hot, capsules=capsules)
        if spill is None
        else Kept(spill.memory_bytes, spill.folder, spill.stored, hot, capsules=capsules),
        allow_dropped_state=options.get("allow_dropped_state", False),
    )
    load: Callable[[], JobSpec] = (
        Shipped(spec) if pickled else lambda: replace(spec, plan=with_own_functions(plan, keep_first=False))
    )
    if spec.reseeds:
        intercept()
    simulation = Simulation(plan, load, seed=seed, name=name, conditions=conditions, **options)
    simulation.storage.program = lambda: Shipped(spec).blob
    return simulation


def _elastic(
    env: Environment, plan: Plan, conditions: Conditions | None, options: dict[str, Any]
) -> tuple[ElasticSizes | None, Plan]:
    """The sizes of an elastic job, and the plan with which it begins: with as many workers as there are task slots. Option
    `waits` has other times than those of production."""
    waits = options.pop("waits", {})
    if env.sizing is None:
        return None, plan
    elastic = env.sizing.elastic
    check_elastic(plan, elastic.least, elastic.most)
    slots = 0 if conditions is None else conditions.slots
    allow = options.get("allow_dropped_state", False)
    spares = options.get("spares", 0) if options.get("replaces") else 0

    def standbys(workers: int) -> int:
        return workers if options.get("hot") and spares else spares

    def make(workers: int) -> JobSize:
        sized = plan_of_size(plan, workers)
        return replace(size_of(sized, size_bytes(workers), size_text(workers), allow), standbys=standbys(workers))

    sizes = replace(elastic_of(env.sizing, make, lambda workers: workers + standbys(workers)), **waits)
    return sizes, plan_of_size(plan, sizes.clamp(slots or elastic.most))


def _folder_of(reader: Result | ArrowFiles) -> str:
    """Path of a temporary folder that lives as long as the sink or the source that reads it."""
    folder = tempfile.TemporaryDirectory(prefix="tailrace-test-")
    weakref.finalize(reader, folder.cleanup)
    return folder.name
