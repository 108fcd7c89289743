"""Report of what each party in a simulated cluster waits for, where a job does not end."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.task.contract.events import Step
from tailrace.task.subtask.idleness import Reason
from tailrace.task.subtask.machine import Task
from tailrace.testing.cluster import Cluster
from tailrace.testing.world import EPOCH, SimulatedProcess, line_about


def waits(cluster: Cluster) -> list[str]:
    """Lines on what the job, each task and each link waits for; tasks that merely have no input share one line. Each task
    takes a step, so the simulation cannot go on after this."""
    return [*_job(cluster), *_under_way(cluster), *_tasks(cluster)]


def _job(cluster: Cluster) -> Iterator[str]:
    coordinator = cluster.driver.coordinator
    pending = sorted(coordinator.checkpoints.pending)
    yield f"the job is {coordinator.status}, checkpoints under way: {pending}"


def _under_way(cluster: Cluster) -> Iterator[str]:
    for (source, target), link in cluster.links.items():
        if link.queue:
            at, item = link.queue[0]
            what = f"{cluster.who(source)} => {cluster.who(target)} {line_about(item)}"
            yield f"under way until {at - EPOCH}: {what}" + (f" and {len(link.queue) - 1} more" if link.queue else "")


def _tasks(cluster: Cluster) -> Iterator[str]:
    for process in cluster.processes.values():
        machine, waiting = process.machine, []
        for task in machine.tasks() if machine.stepping else ():
            line = _idle(cluster, process, task)
            if line == str(Reason.NO_INPUT.value):
                waiting.append(str(task.id))
            elif line != str(Reason.FINISHED.value):
                names = ", ".join(operator.node.name for operator in task.chain.operators)
                yield f"worker {process.slot}, {task.id} ({names}): {line}"
        yield f"worker {process.slot}, no input: {', '.join(waiting)}"


def _idle(cluster: Cluster, process: SimulatedProcess, task: Task) -> str:
    try:
        idle = process.machine.handle(Step(task.id.vertex, process.clocks.job.now(), 1))
    except Exception as error:
        return f"fails by {error!r}"
    if idle is None:
        return "has something to do"
    until = "" if idle.wake_at is None else f" until {idle.wake_at - process.clocks.ahead - EPOCH}"
    return f"{idle.reason.value}{until}"
