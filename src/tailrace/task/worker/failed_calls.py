"""Capsules of failed calls, as a worker sends them with the report of its failure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tailrace.errors import UserCodeError, error_text
from tailrace.graph.graph import Node
from tailrace.protocol.deployment import Failed
from tailrace.state.paths import capsule_name
from tailrace.task.contract.capsule import encode_capsule
from tailrace.task.contract.failedcall import FailedCall
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.operators.failures.capsules import capsule_of
from tailrace.task.subtask.machine import Task


def with_capsule(
    fault: Failed, error: UserCodeError, spec: JobSpec | None, tasks: Iterable[Task], where: tuple[int, int, int]
) -> Failed:
    """The failure with the capsule of the call that failed, and a sentence on it, if the job keeps capsules and the call can
    be made again. `where`: the incarnation, the slot and the epoch of the worker."""
    settings = None if spec is None else spec.kept.capsules
    if spec is None or settings is None:
        return fault
    try:
        node = _node_of(error, spec, tasks)
        capsule = None if node is None else capsule_of(error, node, error.subtask, settings)
        if capsule is None:
            return fault
        of_job = {"job": spec.job, "run_id": spec.run_id, "incarnation": where[0]}
        data = encode_capsule(msgspec.structs.replace(capsule, **of_job, keep=settings.keep, limit=settings.limit))
    except Exception as another:  # code of the user runs here, too: it must not hide the failure itself
        return msgspec.structs.replace(
            fault, message=f"{fault.message}\nno capsule of the failed call is kept: {error_text(another)}"
        )
    name = capsule_name(*where)
    text = f"{fault.message}\nthe failed call is kept; make it again with: tailrace debug {spec.kept.place}/{name}"
    if not spec.kept.place:
        text = f"{fault.message}\nthe failed call is kept, as {name} in job.capsules"
    return msgspec.structs.replace(fault, message=text, capsule=data, capsule_name=name)


def _node_of(error: UserCodeError, spec: JobSpec, tasks: Iterable[Task]) -> Node | None:
    """The operator whose call has failed. Notes it in the call, if it runs in this worker. None if several have the
    name."""
    call = error.call
    if not isinstance(call, FailedCall):
        return None
    if call.operator is None:
        running = [one for task in tasks for one in task.chain.operators if one.node.name == error.operator]
        call.operator = running[0] if len(running) == 1 else None
    uids = () if call.operator is None else {one.uid for one in call.operator.contexts() if one.name == error.operator}
    found = [node for node in spec.plan.graph.nodes if node.name == error.operator and (not uids or node.uid in uids)]
    return found[0] if len(found) == 1 else None
