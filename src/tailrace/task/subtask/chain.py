"""The operators of one vertex in one subtask: built, wired to each other and to the outbox, and moved through time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from weakref import proxy

from tailrace.elements.batches import Batch
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME
from tailrace.graph.graph import Node
from tailrace.graph.operators import (
    Aggregate,
    AssignTimestamps,
    EnterLoop,
    FilterColumns,
    Head,
    Judge,
    LeaveLoop,
    MapAsync,
    MapBatches,
    Operator,
    Reduce,
    Select,
    Sink,
    Source,
    Tail,
    ToColumns,
    ToRows,
)
from tailrace.graph.plan import ChainLink, Plan, Vertex
from tailrace.task.channels.outbox import Outbox, OutputEdge
from tailrace.task.channels.services import Services
from tailrace.task.contract.cut_state import CutState
from tailrace.task.operators.aggregates.running import AggregateTask, ReduceTask
from tailrace.task.operators.base import Emit, OperatorTask
from tailrace.task.operators.broadcasts.kinds import PROCESS_TASKS
from tailrace.task.operators.calls.task import MapAsyncTask
from tailrace.task.operators.columns.batches import BatchesTask
from tailrace.task.operators.columns.expressions import FilterColumnsTask, SelectTask
from tailrace.task.operators.columns.schemas import learn_schema
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.failures.tasks import operator_task
from tailrace.task.operators.joins.kinds import JOIN_TASKS
from tailrace.task.operators.loops import EnterTask, HeadTask, JudgeTask, LeaveTask, TailTask
from tailrace.task.operators.sink import SinkTask
from tailrace.task.operators.sources.source import SourceTask
from tailrace.task.operators.stateless import MAX_FUSED, ToColumnsTask, ToRowsTask, is_fusible
from tailrace.task.operators.timestamps import TimestampsTask
from tailrace.task.operators.windows.kinds import WINDOW_TASKS
from tailrace.task.subtask.handover import handing_over, into

RUNTIME: dict[type[Operator], Callable[[Node, OperatorContext], OperatorTask]] = {
    Source: SourceTask,
    MapBatches: BatchesTask,
    Select: SelectTask,
    FilterColumns: FilterColumnsTask,
    ToRows: ToRowsTask,
    ToColumns: ToColumnsTask,
    AssignTimestamps: TimestampsTask,
    **PROCESS_TASKS,
    MapAsync: MapAsyncTask,
    Aggregate: AggregateTask,
    Reduce: ReduceTask,
    **WINDOW_TASKS,
    **JOIN_TASKS,
    Sink: SinkTask,
    Head: HeadTask,
    Tail: TailTask,
    EnterLoop: EnterTask,
    LeaveLoop: LeaveTask,
    Judge: JudgeTask,
}
"""The runtime half of each operator kind but the fusible ones."""


@dataclass(eq=False)
class ChainCutState(CutState):
    """State of a chain at a cut that no checkpoint holds. Lists have an entry for each operator."""

    arrived: list[int] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    ending: int = 0
    """Number of operators that have ended, in order, once the input has."""
    _end_reported: bool = False
    fallen_silent: set[int] = field(default_factory=set)
    """The operators that assign timestamps whose outputs were announced as idle, and not as active again."""


Opening = Callable[[OperatorTask], AbstractContextManager[None]]
"""A context around the opening of each operator."""


def as_it_is(operator: OperatorTask) -> AbstractContextManager[None]:
    """Opens an operator without anything around it."""
    return nullcontext()


class Chain(ChainCutState):
    """A tree of operators; index 0 is the root, and every operator comes after the one that feeds it.

    Invariant C1: `reached[i] <= arrived[i]`: event time an operator has finished with, and event time that came to it.
    Invariant C2: what goes on from an operator is at most what it has finished with, and never decreases.
    """

    def __init__(self, operators: list[OperatorTask], feeds: list[list[int]], outputs: list[list[OutputEdge]]) -> None:
        times = [MIN_TIME] * len(operators)
        super().__init__([*times], [*times], [*times])
        self.operators = operators
        self.feeds = feeds
        """The operators that each operator feeds, by main or side output: they share its event time."""
        self.outputs = outputs
        """The edges that leave the vertex from each operator."""
        self.source = operators[0] if isinstance(operators[0], SourceTask) else None
        self.calling = operators[0] if isinstance(operators[0], MapAsyncTask) else None
        """The root, if it makes asynchronous calls."""
        self.requires_actions = self.source is not None or self.calling is not None
        """True if the chain may require actions of its worker also where a step has done nothing."""
        self.prompt = False
        """True in a loop: a timer set for a past time fires at once, because feedback is not late."""
        self._with_timers = [i for i, op in enumerate(operators) if type(op).next_event is not OperatorTask.next_event]
        self.fires = bool(self._with_timers)
        """True if event time may let anything fire."""
        self.clocked = any(type(op).next_processing is not OperatorTask.next_processing for op in operators)
        """True if any operator may set timers of the clock."""
        self.generators = [op for op in operators if isinstance(op, TimestampsTask)]
        clocks = [i for i, operator in enumerate(operators) if operator.generates_watermarks]
        clocks = [i for i in clocks if not isinstance(operators[i], LeaveTask)] or clocks
        self.timed = sorted({i for clock in clocks for i in self._sharing(clock)}) or list(range(len(operators)))
        """The operators whose event time counts: those from a clock on, or all where time comes from the input."""

    @property
    def root(self) -> OperatorTask:
        return self.operators[0]

    def open(self, opening: Opening = as_it_is) -> None:
        """Opens the operators, the last one first, so that no operator receives a record before it is open."""
        source = self.source
        if source is not None and self.generators:
            drifting = [generator for generator in self.generators if generator.spec.max_drift is not None]
            source.too_far = lambda: set().union(*(generator.too_far() for generator in drifting))
        for operator in reversed(self.operators):
            with opening(operator):
                operator.open()
        if source is not None:
            source.opened_splits.clear()
            for generator in self.generators:
                generator.splits_opened([split.index for split in source.splits])

    def close(self) -> list[BaseException]:
        """Closes every operator; returns what they raised."""
        raised: list[BaseException] = []
        for operator in self.operators:
            try:
                operator.close()
            except BaseException as error:  # the others must still be closed; the caller reports it
                raised.append(error)
        return raised

    @property
    def waits_for_calls(self) -> bool:
        """True while results of asynchronous calls have not gone on."""
        return self.calling is not None and self.calling.waits

    def splits_opened(self) -> None:
        """Passes splits that the source has got to the operators that keep a watermark per split, before it reads them."""
        source = self.source
        if source is not None and source.opened_splits:
            for generator in self.generators:
                generator.splits_opened(source.opened_splits)
            source.opened_splits.clear()
        for generator in self.generators:
            generator.all_opened()

    def splits_ended(self) -> bool:
        """Passes splits of the source that have ended to the operators that keep a watermark per split. True if some
        have."""
        source = self.source
        if source is None or not source.ended_splits:
            return False
        for split in source.ended_splits:
            for generator in self.generators:
                generator.split_ended(split, source.follows)
        source.ended_splits.clear()
        return True

    def watermark(self, time: int) -> None:
        """Takes event time that has come to the root."""
        self.arrived[0] = max(self.arrived[0], time)

    def advance(self, outbox: Outbox, limit: int) -> bool:
        """Moves event time on through the operators, firing at most about `limit` timers of each. True when it has
        reached all."""
        all_have = True
        for i, operator in enumerate(self.operators):
            if operator.generates_watermarks:
                over = self.arrived[i] == MAX_TIME or (
                    self.arrived[i] == LAST_TIME and not isinstance(operator, LeaveTask)
                )
                self.reached[i] = self.arrived[i] if over else operator.own_watermark()
            elif operator is self.calling:
                self.reached[i] = max(self.reached[i], self.calling.hold(self.arrived[i]))
            elif self.arrived[i] > self.reached[i] or self._due_at_once(i):
                if operator.advance(self.arrived[i], limit):
                    self.reached[i] = self.arrived[i]
                elif self._so_far(i):
                    all_have = False
                else:
                    return False
            if self.reached[i] > self.passed[i]:
                self._pass_on(i, outbox)
        return all_have

    def _so_far(self, i: int) -> bool:
        """Moves event time on after a portion of an operator's timers, as far as no older timer is left, so that the
        operators behind need not wait for all of them. True if it has moved."""
        done = self.operators[i].done_until()
        if done is None or not self.reached[i] < done < self.arrived[i]:
            return False
        self.reached[i] = done
        return True

    @property
    def near_the_end(self) -> bool:
        """True if the end of event time has come to an operator that has not reached it."""
        return any(at >= LAST_TIME and at > to for at, to in zip(self.arrived, self.reached, strict=True))

    def _due_at_once(self, i: int) -> bool:
        """True if a timer that an operator sets for a past time may be due now. At the end of event time no watermark
        comes any more; and in a loop the event time that leaves it covers all timers (`prompt`)."""
        if self.arrived[i] >= LAST_TIME or not self.prompt:
            return self.arrived[i] >= LAST_TIME
        due = self.operators[i].next_event()
        return due is not None and due <= self.arrived[i]

    @property
    def overdue(self) -> bool:
        """True if a timer is to fire for which no watermark will come."""
        return any(map(self._due_at_once, self._with_timers)) if self.prompt else self.arrived[0] >= LAST_TIME

    def _pass_on(self, i: int, outbox: Outbox) -> None:
        time = self.passed[i] = self.reached[i]
        if time == MAX_TIME:
            return  # `EndOfInput` marks it, when it is the operator's turn to end
        for child in self.feeds[i]:
            self.arrived[child] = max(self.arrived[child], time)
        for output in self.outputs[i]:
            outbox.watermark(output, time)

    def begin_epoch(self, checkpoint: int) -> None:
        """Begins what is behind the cut of a checkpoint."""
        for operator in self.operators:
            for ctx in operator.contexts():
                ctx.begin_epoch(checkpoint)

    def idle(self, outbox: Outbox) -> None:
        """Announces the input's idleness on every output that does not generate watermarks of its own, and flushes the
        outputs."""
        self.still_idle(outbox)
        outbox.flush()

    def still_idle(self, outbox: Outbox) -> None:
        """Announces idleness again, behind what was emitted while the input is idle: no task waits for it."""
        root = self.root
        for i in (
            self._sharing(0) if not root.generates_watermarks or (isinstance(root, LeaveTask) and root.idle) else ()
        ):
            for output in self.outputs[i]:
                outbox.still_idle(output)

    def awake(self, outbox: Outbox) -> None:
        """Announces that a leave of a loop is not idle any more, even if no record has come out yet."""
        for i in self._sharing(0):
            for output in self.outputs[i]:
                outbox.awake(output)

    def pass_on_idleness(self, outbox: Outbox) -> None:
        """Announces as idle the outputs below generators that fell silent or have no split, and below idle leaves of
        loops."""
        for i, operator in enumerate(self.operators):
            if operator.idle if isinstance(operator, LeaveTask) else self._is_silent(operator):
                if isinstance(operator, TimestampsTask):
                    self.fallen_silent.add(i)
                for j in self._sharing(i):
                    for output in self.outputs[j]:
                        outbox.idle(output)

    def take_back_idleness(self, outbox: Outbox) -> None:
        """Announces the outputs below generators as active again, if these have input or a split again. A channel may
        have had no record since; one that comes later may be as old as the generator's watermark."""
        for i in sorted(self.fallen_silent):
            if not self._is_silent(self.operators[i]):
                self.fallen_silent.discard(i)
                for j in self._sharing(i):
                    for output in self.outputs[j]:
                        outbox.awake(output)

    def _is_silent(self, operator: OperatorTask) -> bool:
        starved = self.source is not None and self.source.starved
        if not isinstance(operator, TimestampsTask):
            return False
        return operator.idle or (starved and not operator.former())

    def silent(self) -> set[int]:
        """The operators whose event time counts as idle: the generator above them is silent, or has no split."""
        if not self.generators:
            return set()
        silent = [i for i, op in enumerate(self.operators) if self._is_silent(op)]
        return {j for i in silent for j in self._sharing(i)}

    def _sharing(self, i: int) -> list[int]:
        """The operators below i, i included, down to where watermarks are generated anew."""
        found, open_ = [], [i]
        while open_:
            at = open_.pop()
            if at == i or not self.operators[at].generates_watermarks:
                found.append(at)
                open_.extend(self.feeds[at])
        return sorted(found)

    def next_processing(self) -> int | None:
        """The time of the next processing-time timer."""
        due = [time for op in self.operators if (time := op.next_processing()) is not None]
        return min(due, default=None)

    def fire_processing(self, now: int, limit: int) -> int:
        """Fires processing-time timers that are due, at most `limit`."""
        fired = 0
        for operator in self.operators:
            due = operator.next_processing()
            while due is not None and due <= now and fired < limit:
                done = operator.fire_processing(now, limit - fired)
                if not done:
                    break
                fired += done
                due = operator.next_processing()
        return fired

    def end(self, outbox: Outbox, limit: int) -> bool:
        """Does one bounded portion of ending: each operator in turn awaits its processing-time timers, reaches the end of
        event time, and finishes. False if it has done something, or there is more to do now; True when all have ended or
        the clock must move."""
        fired = False
        while self.ending < len(self.operators):
            i = self.ending
            operator = self.operators[i]
            if operator.finished:  # the operator had finished before the restored checkpoint
                self.reached[i] = self.passed[i] = MAX_TIME
                self.ending += 1
                continue
            if not self._end_reported:
                operator.input_ended()
                self._end_reported = True
            if operator.awaits_timers():
                return not fired
            if self.reached[i] != MAX_TIME:
                self.arrived[i] = MAX_TIME
                if not operator.generates_watermarks and not operator.advance(MAX_TIME, limit):
                    return False
                self.reached[i] = self.passed[i] = MAX_TIME
                fired = True
                continue  # timers that fired may have set others
            if not operator.generates_watermarks and not operator.advance(MAX_TIME, limit):
                return False  # a processing-time timer set event-time timers; they are due at once
            if operator.awaits_timers():
                return False  # event-time timers set processing-time timers again
            operator.finish()
            if operator.policy is not None:
                operator.policy.check_share()
            operator.finished = True
            self.ending += 1
            self._end_reported = False
            return False
        return True

    @property
    def ended(self) -> bool:
        return self.ending == len(self.operators)


def build_chain(
    plan: Plan,
    vertex: Vertex,
    subtask: int,
    attempt: int,
    services: Services,
    outbox: Outbox,
    outputs: dict[int, OutputEdge],
) -> Chain:
    """The operators of a vertex for one subtask; `outputs` are the edges out of it by plan edge id."""
    groups = _fusion_groups(plan, vertex, services)
    operators: list[OperatorTask] = []
    index_of: dict[int, int] = {}
    for group in groups:
        nodes = [plan.graph.node(ident) for ident in group]
        ctxs = [
            OperatorContext(
                n.name, n.uid, subtask, vertex.parallelism, attempt, services, n.scope, plan.loops.get(n.scope)
            )
            for n in nodes
        ]
        index_of.update({ident: len(operators) for ident in group})
        operators.append(operator_task(RUNTIME.get(type(nodes[0].operator)), nodes, ctxs))
        learn_schema(operators[-1], plan.graph)
    feeds: list[list[int]] = [[] for _ in operators]
    leaving: list[list[OutputEdge]] = [[] for _ in operators]
    targets: list[dict[str | None, list[Emit]]] = [{} for _ in operators]
    for link in vertex.links:
        source, target = index_of[link.source], index_of[link.target]
        if source != target:
            feeds[source].append(target)
            giver = None if link.tag in targets[source] else operators[source]
            onward = into(operators[target], services.debug, giver)
            targets[source].setdefault(link.tag, []).append(handing_over(operators[source], onward, services))
    for edge in plan.edges_out_of(vertex.id):
        source, output = index_of[edge.source_node], outputs[edge.id]
        leaving[source].append(output)
        onto = _onto(outbox, output, None if edge.tag in targets[source] else operators[source])
        targets[source].setdefault(edge.tag, []).append(handing_over(operators[source], onto, services))
    for operator, by_tag in zip(operators, targets, strict=True):
        _wire(operator, by_tag)
        operator.take_plan(plan)
    return Chain(operators, feeds, leaving)


def _fusion_groups(plan: Plan, vertex: Vertex, services: Services) -> list[list[int]]:
    """The nodes of a vertex, runs of fusible row functions together. In debug runs every operator stands alone."""
    uses: dict[int, int] = {}
    for inner in vertex.links:
        uses[inner.source] = uses.get(inner.source, 0) + 1
    for edge in plan.edges_out_of(vertex.id):
        uses[edge.source_node] = uses.get(edge.source_node, 0) + 1
    feeder: dict[int, ChainLink] = {link.target: link for link in vertex.links}
    groups: list[list[int]] = []
    group_of: dict[int, list[int]] = {}
    for ident in vertex.nodes:
        link = feeder.get(ident)
        joins = (
            not services.debug
            and link is not None
            and plan.graph.node(ident).uid not in services.in_flight
            and link.tag is None
            and uses[link.source] == 1
            and is_fusible(plan.graph.node(ident))
            and is_fusible(plan.graph.node(link.source))
            and len(group_of[link.source]) < MAX_FUSED
        )
        if joins and link is not None:
            group = group_of[link.source]
        else:
            group = []
            groups.append(group)
        group.append(ident)
        group_of[ident] = group
    return groups


def _onto(outbox: Outbox, output: OutputEdge, giver: OperatorTask | None) -> Emit:
    emit = outbox.emit
    if giver is None:
        return lambda batch: emit(output, batch)
    giver = proxy(giver)  # it holds this emitter: nothing is to wait for the collector of circles

    def counting(batch: Batch) -> None:
        giver.given += len(batch)
        emit(output, batch)

    return counting


def _wire(operator: OperatorTask, by_tag: dict[str | None, list[Emit]]) -> None:
    for tag, emits in by_tag.items():
        emit = emits[0] if len(emits) == 1 else _to_all(emits)
        if tag is None:
            operator.out = emit
        else:
            operator.side_out[tag] = emit


def _to_all(emits: list[Emit]) -> Emit:
    def emit(batch: Batch) -> None:
        for one in emits:
            one(batch)

    return emit
