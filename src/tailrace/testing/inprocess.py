"""Running an environment's pending sinks under the simulator."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tailrace.api.environment import Environment
from tailrace.api.functions import Function
from tailrace.api.launch import launcher
from tailrace.connectors.sinks import Result
from tailrace.graph.graph import Node
from tailrace.graph.operators import Sink
from tailrace.graph.plan import Plan, make_plan
from tailrace.task.worker import JobSpec
from tailrace.testing.simulator import Conditions, SimulatedJob, Simulation


def run(env: Environment, name: str = "test") -> SimulatedJob:
    """Runs everything pending in this process and thread, without Spark, and returns the ended job.

    Raises `JobFailed` when it fails. Plain functions are used as they are, so breakpoints, print and closures work;
    function objects are copied for each subtask, as a real job does. Time is virtual: timers do not wait.
    """
    job = _simulate(env, name, 0, Conditions.calm(), pickled=False, keep_trace=False)
    job.await_termination()
    return job


def simulate(
    env: Environment, *, seed: int = 0, name: str = "simulated", conditions: Conditions | None = None
) -> SimulatedJob:
    """Runs everything pending on a simulated cluster and returns the ended job, finished or failed.

    The seed decides how long messages take, how large steps are, and who goes first; the same seed gives the same trace
    (`job.digest`). Functions are pickled to every worker, as in a real job.
    """
    return _simulate(env, name, seed, conditions, pickled=True, keep_trace=True)


def _simulate(
    env: Environment, name: str, seed: int, conditions: Conditions | None, *, pickled: bool, keep_trace: bool
) -> SimulatedJob:
    sinks = env._pending()
    plan = env._plan(sinks)
    results = tempfile.TemporaryDirectory(prefix="tailrace-test-")
    for node in plan.graph.nodes:
        if isinstance(node.operator, Sink) and isinstance(node.operator.sink, Result):
            node.operator.sink.bind(f"{results.name}/{node.id}")
    spec = JobSpec(name, 1, plan, env.memory, f"seed{seed}", seed, env.copy_records, env.debug)
    load = _pickling(spec) if pickled else lambda: replace(spec, plan=_own_functions(plan))
    simulation = Simulation(plan, load, seed=seed, name=name, conditions=conditions, keep_trace=keep_trace)
    simulation.run()
    env._executed |= sinks
    return SimulatedJob(simulation, results)


def _pickling(spec: JobSpec) -> Callable[[], JobSpec]:
    blob = launcher().dump_job(spec)
    return lambda: launcher().load_job(blob)


def _own_functions(plan: Plan) -> Plan:
    """The same plan with copies of the function objects, as unpickling gives them to each worker."""
    nodes = tuple(_own(node) for node in plan.graph.nodes)
    return make_plan(replace(plan.graph, nodes=nodes))


def _own(node: Node) -> Node:
    changes: dict[str, Any] = {}
    for field in ("fn", "reduce"):
        fn = getattr(node.operator, field, None)
        if isinstance(fn, Function):
            changes[field] = copy.deepcopy(fn)
    aggregates = getattr(node.operator, "aggregates", None)
    if aggregates is not None:
        changes["aggregates"] = tuple((name, copy.deepcopy(one)) for name, one in aggregates)
    return replace(node, operator=replace(node.operator, **changes)) if changes else node
