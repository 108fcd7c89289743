"""The restorer of a worker that takes the place of a lost one while the others go on."""

from __future__ import annotations

from tailrace.graph.plan import Plan
from tailrace.state.manifest import Manifest
from tailrace.state.parts import LogOf, ShapeOf
from tailrace.task.failover.channel_restore import AsItWas
from tailrace.task.subtask.machine import Task
from tailrace.task.worker.restore import Restorer


class ReplacementRestorer(Restorer):
    """A restorer that deals nothing out anew: records in flight come back into the channels in which they were."""

    def __init__(self, plan: Plan, tasks: list[Task], manifest: Manifest, own: bool) -> None:
        super().__init__(plan, tasks, manifest, own)
        self.channels = AsItWas(plan, tasks, self.places)
        """The contents of the lost worker's channels at the restored cut."""

    def in_flight(self, part: LogOf | ShapeOf) -> None:
        self.channels.part(part)

    def check_places(self) -> None:
        """Checks nothing: functions are fused as they were in the lost worker."""
