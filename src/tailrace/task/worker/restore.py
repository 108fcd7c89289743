"""The restorer, which puts a checkpoint back into the tasks of one worker, before their functions are opened."""

from __future__ import annotations

import itertools

import msgspec

from tailrace.api.restore.compatibility import continues, unreadable
from tailrace.elements.keygroups import group_range
from tailrace.elements.timestamps import LAST_TIME, MIN_TIME
from tailrace.errors import IncompatibleState, InternalError
from tailrace.graph.operators import Forward, Head
from tailrace.graph.plan import Plan
from tailrace.state.backend import MetaPart
from tailrace.state.format import LogKind
from tailrace.state.manifest import Manifest
from tailrace.state.parts import AnewOf, BlockOf, ChainsOf, LogOf, MetaOf, Part, ShapeOf
from tailrace.state.ttl_lifetimes import ExpiryOf
from tailrace.task.channels.channel_logs import restored_frame
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.columns.schemas import restore_schema
from tailrace.task.subtask.machine import Task
from tailrace.task.subtask.returning import Returned
from tailrace.task.subtask.snapshot import OperatorMeta, read_meta


class Restorer:
    """The restorer of one worker's tasks: it takes, part by part, what the driver reads from the files.

    An operator counts as finished, so that its `finish` is not called again, where its old subtask had finished, and those
    of all that feed it now. At another parallelism all old subtasks must have finished. An operator with an input that it
    did not have before never counts as finished: its event time begins anew if it had come to its end, and so do, in a loop,
    the numbers of rest and the rounds that were over.
    """

    def __init__(self, plan: Plan, tasks: list[Task], manifest: Manifest, own: bool) -> None:
        self.plan = plan
        self.tasks = tasks
        self.manifest = manifest
        self.own = own
        self._operators: dict[str, OperatorTask] = {
            operator.ctx.uid: operator for task in tasks for operator in task.chain.operators
        }
        self.places = {
            operator.contexts()[0].uid: (task, i) for task in tasks for i, operator in enumerate(task.chain.operators)
        }
        """The place of records that were in flight to an operator; fused functions receive them at the first one."""
        self.check_places()
        self._left = self._left_behind(manifest)
        self._returned: dict[str, Returned] = {}
        self._metas: dict[str, list[MetaOf]] = {}
        self._finished = {record.uid: record.finished for record in manifest.operators}
        self._known = set(self._finished) - self._left

    def required_groups(self) -> dict[str, tuple[int, int]]:
        """The operators of this worker, by uid, with their key groups [first, last)."""
        found = {}
        operators = self._operators | {uid: task.chain.operators[i] for uid, (task, i) in self.places.items()}
        for uid, operator in operators.items():
            groups = group_range(operator.ctx.subtask, operator.ctx.parallelism, self.manifest.max_parallelism)
            found[uid] = (groups.start, groups.stop)
        return found

    def part(self, part: Part) -> None:
        """Takes one part of the state."""
        if isinstance(part, ShapeOf) or (isinstance(part, LogOf) and part.kind is not LogKind.FEEDBACK):
            self.in_flight(part)
            return
        operator = self._operators.get(part.uid)
        if operator is None or part.uid in self._left:
            return  # the operator is fused with others now, and has no state: it was requested for records in flight to it
        if isinstance(part, MetaOf):
            self._metas.setdefault(part.uid, []).append(part)
            self._note_expiries(operator, part)
        elif isinstance(part, BlockOf):
            if operator.backend is not None:
                operator.backend.apply(part.table, part.group, part.data)
        elif isinstance(part, LogOf):
            frame = restored_frame(part, operator.node.name, operator.ctx.subtask)
            operator.restore_log(part.channel, part.parallelism, frame)
        elif isinstance(part, AnewOf):
            assert operator.backend is not None, "only state in a backend is held before"
            operator.backend.forget(part.group)
        elif isinstance(part, ChainsOf) and self.own:
            operator.chains.confirmed.update(part.chains)
            if operator.backend is not None:
                operator.backend.holds(part.chains)

    def _note_expiries(self, operator: OperatorTask, part: MetaOf) -> None:
        """Hands a backend the lifetimes of the entries that an old subtask had, before it gets any of them."""
        if operator.backend is None or part.data is None:
            return
        owned = group_range(part.subtask, part.parallelism, self.manifest.max_parallelism)
        for table, expiry in read_meta(part.data).expiries.items():
            operator.backend.note_expiries(table, [ExpiryOf((owned.start, owned.stop), expiry)])

    def _left_behind(self, manifest: Manifest) -> set[str]:
        """The uids of operators that start without the state of their uid, because it belongs to an operator of another
        kind. A start refuses this if there is state, unless the user gives it up."""
        found = set()
        for record in manifest.operators:
            operator = self._operators.get(record.uid)
            if operator is not None and not continues(record, operator.node):
                found.add(record.uid)
        return found

    def check_places(self) -> None:
        """Raises `InternalError` if records in flight to an operator of this worker would be left out."""
        here = {self.plan.graph.node(ident).uid for task in self.tasks for ident in task.vertex.nodes}
        lost = [uid for uid in self.manifest.in_flight if uid in here and uid not in self.places]
        if lost:
            raise InternalError(
                f"records in flight to {lost} would be lost: they are fused with others before them", ()
            )

    def in_flight(self, part: LogOf | ShapeOf) -> None:
        """Takes records that were in flight to an operator of this worker. The frames in which they were do not count."""
        if isinstance(part, ShapeOf) or (part.uid not in self.places and not part.count):
            return  # event time on its way to a function that is fused with one before it now
        if part.uid not in self._returned:
            task, position = self.places[part.uid]
            self._returned[part.uid] = Returned(self.plan, task, position, self.own)
        self._returned[part.uid].add(part)

    def _in_front(self, task: Task) -> list[list[InputChannel]]:
        """Channels with what was in flight to the operators of a task, in the order in which the task reads them. Of
        operators that are chained now the last one comes first, since the earlier ones had sent these records; within an
        operator the oldest age comes first."""
        numbers = itertools.count()
        uids = [operator.contexts()[0].uid for operator in task.chain.operators]
        returned = [self._returned[uid] for uid in uids if uid in self._returned]
        timely = all(one.as_they_were for one in returned) and self._fed_as_before(task.chain.root)
        found = []
        for one in reversed(returned):
            ages = one.front(timely, lambda: next(numbers))
            found += [ages[age] for age in sorted(ages, reverse=True)]
        return found

    def finish(self) -> None:
        """Restores all operators, once every part was read."""
        for task in self.tasks:
            for i, operator in enumerate(task.chain.operators):
                metas = sorted(self._metas.get(operator.ctx.uid, []), key=lambda meta: meta.subtask)
                uid = operator.ctx.uid
                operator.finished = uid in self._known and self._over(operator)
                if metas:
                    self._restore(task, i, operator, metas)
                if operator.backend is not None:
                    operator.backend.end_restore(self.own and bool(metas))
                operator.logs_restored()
            rested = min((op.rests for op in task.chain.operators if not op.finished), default=0)
            task.loop.rests.numbers.done = rested
            task.resume()
            task.reports.note(self.manifest.checkpoint)
            front = self._in_front(task)
            if front:
                task.put_in_front(front)

    def _restore(self, task: Task, i: int, operator: OperatorTask, metas: list[MetaOf]) -> None:
        read = [(meta, read_meta(meta.data)) for meta in metas if meta.data is not None]
        if not read:
            return
        ctx = operator.ctx
        own = [m for p, m in read if p.parallelism == ctx.parallelism and p.subtask == ctx.subtask]
        own_metas = own or [meta for _, meta in read]
        reached, arrived = min(meta.reached for meta in own_metas), min(meta.came for meta in own_metas)
        if self._fed_as_before(operator):
            self._restore_floors(operator, read, own)
        if reached >= LAST_TIME and not self._fed_as_before(operator):
            reached = arrived = MIN_TIME  # its inputs have not ended now, and all their records would be late
        elif reached >= LAST_TIME and not operator.finished and any(p.finished for p, m in read if m in own_metas):
            # It is fed by other subtasks than before, of which some go on. Its event time is what they bring.
            reached = arrived = MIN_TIME
        task.chain.arrived[i], task.chain.reached[i] = arrived, reached
        as_before = self._fed_as_before(operator)
        anew = not as_before and all(self._finished[operator.ctx.uid])
        if task.loop.place.nest is not None:
            rested = min(m.rested for m in own_metas) if as_before else 0
            last = min(own_metas, key=lambda meta: meta.round)
            number, following = (-1, 0) if anew else (last.round, last.next_round)
            self._loop_restored(task, operator, rested, number, number + 1 if following is None else following)
        for each in operator.contexts():
            each.watermark_time = reached if operator.sees_each_timer else arrived
        parts = [
            MetaPart(p.subtask, p.parallelism, p.finished, meta.data, meta.schema, meta.sides, meta.expiries)
            for p, meta in read
        ]
        restore_schema(operator, parts)
        try:
            operator.restore(parts)
        except msgspec.MsgspecError as error:  # the state is of no known kind
            raise IncompatibleState(unreadable(ctx.name, ctx.uid, error)) from error
        if as_before and arrived > MIN_TIME:
            operator.restore_closed([one for meta in own_metas for one in meta.closed])
        if anew:
            operator.start_anew()

    def _restore_floors(
        self, operator: OperatorTask, read: list[tuple[MetaOf, OperatorMeta]], own: list[OperatorMeta]
    ) -> None:
        """Tells the operator the event time of each key group, where unaligned cuts have found its old subtasks at
        different event times."""
        groups = self.manifest.max_parallelism
        floors: list[tuple[int, int, int]] = []
        for part, meta in read:
            if meta.floors and (not own or meta is own[0]):
                floors += meta.floors
            if not own:
                owned = group_range(part.subtask, part.parallelism, groups)
                floors.append((owned.start, owned.stop, meta.came))
        if len({time for _, _, time in floors}) > 1 or (own and floors):
            operator.restore_floors(floors)

    def _loop_restored(self, task: Task, operator: OperatorTask, rested: int, round: int, following: int) -> None:
        """Marks the rests and rounds that a subtask has done in its loop, so that it does not repeat them; of several old
        subtasks, those that all have done. `following`: the number of the next round, within its span."""
        task.loop.rounds.numbers.done, task.loop.rounds.next = round, following
        operator.rests, operator.rested = rested, rested > 0
        if operator.rested:
            operator.input_ended()
        place = task.loop.place
        if place.in_rounds:
            operator.at_round(following)
            if place.tail is not None:
                place.tail.queue.round_ended(round)

    def _over(self, operator: OperatorTask) -> bool:
        """True if the old subtask of an operator had finished, and so had those of all that feed it in this plan. A subtask
        in one chain with a source may have finished alone; with another partitioning it is fed by all of the source."""
        if not self._fed_as_before(operator):
            return False
        place: tuple[int, int | None] = (operator.node.id, operator.ctx.subtask)
        seen, open_ = {place}, [place]
        while open_:
            ident, subtask = open_.pop()
            node = self.plan.graph.node(ident)
            finished = self._finished[node.uid]
            alone = subtask is not None and len(finished) == node.parallelism
            if not (finished[subtask or 0] if alone else all(finished)):
                return False
            for edge in node.inputs:
                source = self.plan.graph.node(edge.source)
                forwards = isinstance(edge.partitioning, Forward) and source.parallelism == node.parallelism
                place = (edge.source, subtask if forwards else None)
                if place not in seen:
                    seen.add(place)
                    open_.append(place)
        return True

    def _fed_as_before(self, operator: OperatorTask) -> bool:
        return self._ancestors(operator.node.id) <= self._known

    def _ancestors(self, node: int) -> set[str]:
        found: set[str] = set()
        open_ = [node]
        while open_:
            for before in self._before(open_.pop()):
                uid = self.plan.graph.node(before).uid
                if uid not in found:
                    found.add(uid)
                    open_.append(before)
        return found

    def _before(self, node: int) -> list[int]:
        """The operators that feed an operator. A head is fed by its tail, too, and so by everything that enters its
        loop's body."""
        graph = self.plan.graph
        fed_back = (
            self.plan.tails.get(graph.node(node).scope, ()) if isinstance(graph.node(node).operator, Head) else ()
        )
        return [*(edge.source for edge in graph.node(node).inputs), *fed_back]
