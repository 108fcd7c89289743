"""The preparation of the user's functions: what they set up before anything is known of state, subtask and time. A standby
prepares them before it takes a slot."""

from __future__ import annotations

from dataclasses import replace

from tailrace.task.channels.services import Services
from tailrace.task.contract.functions import functions_of, with_own_functions
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.operators.base import call_user


def with_functions_of_its_own(spec: JobSpec, *, keep_first: bool = True) -> JobSpec:
    """The job with a function object for each operator, as `with_own_functions` makes them."""
    return replace(spec, plan=with_own_functions(spec.plan, keep_first=keep_first))


def prepare_functions(spec: JobSpec, slot: int, services: Services, *, only_here: bool) -> None:
    """Prepares the functions of a job, each of which has an operator to itself; with `only_here` only those of operators
    with a subtask in this slot. They get equal random numbers in each worker. Raises `UserCodeError`."""
    for node in spec.plan.graph.nodes:
        for fn in functions_of(node) if slot < node.parallelism or not only_here else ():
            if services.shared is not None:
                services.shared.seed(services.seed_of("prepare", node.uid))
            call_user(fn.prepare, what="prepare", operator=node.name, subtask=slot)


def close_unopened(spec: JobSpec) -> list[BaseException]:
    """Closes functions that were prepared and never opened. Returns what they raised."""
    raised: list[BaseException] = []
    for fn in [fn for node in spec.plan.graph.nodes for fn in functions_of(node)]:
        try:
            fn.close()
        except Exception as error:  # the others must still be closed; the caller reports it
            raised.append(error)
    return raised
