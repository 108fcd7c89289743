"""Checks of the loops of a simulated job: they must end at the right moment.

When the coordinator reports that a loop is at rest or has ended, the watch searches every task and every link: nothing of
the loop may be left anywhere. No checkpoint that is begun after the end may hold feedback of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from search.watchers.checker import Book, WatchedFiles
from tailrace.coordinator.actions import Send
from tailrace.elements.frame_codec import GRANT, HISTORY
from tailrace.elements.frame_codec import decode as decode_frame
from tailrace.elements.markers import Marker, Watermark
from tailrace.elements.timestamps import MIN_TIME
from tailrace.errors import InternalError
from tailrace.graph.operators import Head
from tailrace.graph.plan import Nest, Plan
from tailrace.protocol.replay import Resume
from tailrace.protocol.snapshot import Trigger
from tailrace.protocol.termination import Advance, CallFinish, EndLoop, Release, StartRound, StartWave, StopRounds
from tailrace.state.manifest import Manifest
from tailrace.storage.reading import load_index
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.contract.events import Event
from tailrace.testing.simulator import Simulation
from tailrace.testing.world import Driver, FrameItem, Observer, SimulatedProcess

COUNTED: dict[type[Any], str] = {
    StartWave: "began a wave",
    Release: "let event time leave a loop",
    Advance: "brought event time in a loop to its end",
    CallFinish: "had functions finish in a loop",
    EndLoop: "ended a loop",
    StartRound: "began a round",
    StopRounds: "stopped rounds",
}
"""Messages of the coordinator to a loop, and the names under which they are counted."""

NO_ELEMENTS = (GRANT, HISTORY)
"""Kinds of frames that are no elements of a channel."""


class LoopFiles(WatchedFiles):
    """A storage of checkpoints that also knows what feedback they hold, and whether they may."""

    def __init__(self, books: Iterable[Book] = ()) -> None:
        super().__init__(books)
        self.feedback: list[dict[str, int]] = []
        """Number of records of feedback in each committed checkpoint, by head."""
        self.overtaken = 0
        """Number of committed checkpoints that hold records that barriers have overtaken."""
        self.over: dict[tuple[int, str], int] = {}
        """(incarnation, head) of loops that have ended -> the newest checkpoint that had been begun by then."""

    def _make(self, name: str, data: bytes) -> None:
        commits = self.commits
        super()._make(name, data)
        if self.commits == commits or self.newest is None:
            return
        manifest = self.newest[1]
        self.overtaken += bool(manifest.in_flight)
        held = self.feedback_in(manifest)
        self.feedback.append(held)
        for head, records in held.items():
            ended = self.over.get((manifest.incarnation, head))
            if records and ended is not None and manifest.checkpoint > ended:
                self.wrong.append(f"{name} holds {records} records of feedback to {head!r}, whose loop had ended")

    def feedback_in(self, manifest: Manifest) -> dict[str, int]:
        """Number of records of feedback in a checkpoint, by head."""
        held: Counter[str] = Counter()
        for file in manifest.files:
            if file.name in self.contents:
                for log in [log for log in load_index(self, file.name).logs if not log.overtaken]:
                    held[log.channel.target] += sum(piece.count for piece in log.pieces)
        return {uid: count for uid, count in held.items() if count}


class LoopWatch(Observer):
    """An observer of one simulation. Errors are in `wrong`, counts in the simulation's `covered`."""

    def __init__(self, world: Simulation, files: LoopFiles | None = None) -> None:
        self.world, self.files = world, files
        self.wrong: list[str] = []
        self._begun: dict[int, int] = {}
        """The newest checkpoint that was begun, by incarnation."""
        self._rests: dict[tuple[int, int], int] = {}
        """(incarnation, nest) -> the newest number of rest that was sent; 0 once event time was brought to its end."""
        self._followed: set[tuple[int, Advance | CallFinish | EndLoop]] = set()
        """Messages that were sent while a worker was being replaced."""
        self._seen: dict[FeedbackQueue, tuple[int, int]] = {}
        """For each queue of feedback, the number of records that it had brought back from a checkpoint, and that it had
        stored on disk."""
        world.watch(self)

    def on_message(self, driver: Driver, action: Send) -> None:
        message = action.message
        what = COUNTED.get(type(message))
        if what is not None and action.slot == 0:
            self.world.count(what)
        if isinstance(message, Resume) and message.together:
            self.world.count("several take places together")
        if isinstance(message, Trigger):
            self._begun[driver.coordinator.incarnation] = message.checkpoint
        if isinstance(message, Trigger | EndLoop) and action.slot == 0:
            self._check_queues()
        if isinstance(message, Advance | CallFinish | EndLoop):
            # A replacement has still to replay what the lost worker did, with records that are sent again.
            # It receives later what the other workers have received, and follows.
            incarnation = driver.coordinator.incarnation
            if driver.coordinator.takeovers.active:
                self._followed.add((incarnation, message))
            elif action.slot == 0 and (incarnation, message) not in self._followed:
                self._at_rest(incarnation, message)

    def on_event(self, process: SimulatedProcess, event: Event) -> None:
        """Counts the records that queues of feedback bring back from checkpoints, and that they spill."""
        slice = process.machine.slice
        for queue in slice.services.feedback.values() if slice is not None else ():
            now = queue.returned, queue.stored
            returned, stored = self._seen.get(queue, (0, 0))
            if now != (returned, stored):
                self._seen[queue] = now
                self.world.covered["records of feedback restored"] += queue.returned - returned
                self.world.covered["records of feedback spilled"] += queue.stored - stored

    def _check_queues(self) -> None:
        for worker in self.world.workers():
            if worker.slice is None or not worker.stepping:
                continue
            for queue in worker.slice.services.feedback.values():
                try:
                    queue.check()
                except InternalError as error:
                    self.wrong.append(str(error.args[0]))

    def _at_rest(self, incarnation: int, message: Advance | CallFinish | EndLoop) -> None:
        """Checks that nothing is left in a nest that the coordinator takes for being at rest. A message that is sent again
        is not checked again: its effects may be under way already."""
        nest = self.world.plan.nests[message.nest]
        number = message.number if isinstance(message, CallFinish) else 0
        ended = isinstance(message, EndLoop)
        if not ended and number <= self._rests.get((incarnation, nest.id), -1):
            return
        self._rests[incarnation, nest.id] = number
        state = "ended" if ended else "was said to be at rest"
        self.wrong += [f"a loop {state}, and there was {what}" for what in left_in(self.world, incarnation, nest)]
        if ended and self.files is not None:
            for uid in heads_of(self.world.plan, nest):
                self.files.over[incarnation, uid] = self._begun.get(incarnation, 0)


def heads_of(plan: Plan, nest: Nest) -> list[str]:
    """Uids of the heads of a nest."""
    nodes = [plan.graph.node(node) for vertex in nest.vertices for node in plan.vertices[vertex].nodes]
    return [node.uid for node in nodes if isinstance(node.operator, Head)]


def left_in(world: Simulation, incarnation: int, nest: Nest) -> Iterator[str]:
    """Descriptions of everything of a nest that is somewhere in the simulated cluster and would still have an effect.
    Event time under way to a task that had come as far before a restore, and is sent again, has none."""
    reached: dict[tuple[int, int], int] = {}
    inside = {edge.id: edge.target for edge in world.plan.edges if edge.target in nest.vertices}
    for process in world.processes.values():
        machine = process.machine
        if machine.incarnation != incarnation or not machine.stepping:
            continue
        if not process.driver.coordinator.roster.holds(process.slot, process.epoch):
            continue  # another worker has replaced it, and it has not noticed: it is frozen
        for task in machine.tasks():
            reached[task.vertex.id, task.id.subtask] = task.chain.arrived[0]
            if task.vertex.id in nest.vertices and not task.finished:
                yield from (f"{what} in {task.id}" for what in _left_in_task(task, inside))
    for (_, target), link in world.links.items():
        for _, item in link.queue:
            if isinstance(item, FrameItem) and _counts(world, target, item):
                frame = decode_frame(item.data)
                if frame.incarnation == incarnation and frame.kind not in NO_ELEMENTS and frame.channel.edge in inside:
                    if frame.count:
                        yield f"{frame.count} records under way on {frame.channel}"
                    elif isinstance(marker := frame.marker(), Watermark):
                        if marker.time > reached.get((inside[frame.channel.edge], frame.channel.target), MIN_TIME):
                            yield f"event time under way on {frame.channel}"


def _counts(world: Simulation, target: int, item: FrameItem) -> bool:
    """True where a frame is between two workers that still have a link: one of them may have been replaced, and live
    on. What a worker sends on to its hot standby was counted before."""
    process, sender = world.processes.get(target), world.processes.get(item.party)
    if process is None or process.slot >= world.plan.slots or process.peers.get(item.slot) != item.party:
        return False
    return sender is None or sender.peers.get(process.slot) == target


def _left_in_task(task: Any, inside: Mapping[int, int]) -> Iterator[str]:
    """Descriptions of what a task of a nest still has. `inside`: the edges of the nest. What waits to leave the nest is
    not left in it."""
    for channel in task.gate.channels.values():
        waiting = [element for element, _ in channel.queue if not _is_marker(element)]
        if waiting or channel.reading is not None:
            yield f"something unread on {channel.id}"
        if any(isinstance(element, Watermark) for element, _ in channel.queue):
            yield f"event time unread on {channel.id}"
    for channel in task.outbox.channels.values():
        if channel.id.edge in inside and (channel.buffer or any(charge for _, _, charge in channel.queue)):
            yield f"something unsent on {channel.id}"
    if task.loop.head is not None and (task.loop.head.queue.records or task.loop.head.queue.waiting):
        yield f"feedback of {task.loop.head.queue.records + task.loop.head.queue.waiting} records"
    if any(operator.awaits_timers() for operator in task.chain.operators):
        yield "a timer of the clock"


def _is_marker(element: Any) -> bool:
    return isinstance(element, Marker) or getattr(element, "count", None) == 0
