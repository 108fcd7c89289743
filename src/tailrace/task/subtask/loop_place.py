"""The place of a task in the loop nests of its dataflow, as the plan gives it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from tailrace.elements.frame_codec import ChannelId
from tailrace.graph.plan import Nest, Plan, Vertex
from tailrace.graph.scope import StreamScope, path_of
from tailrace.protocol.termination import Scope
from tailrace.task.channels.gate import Gate
from tailrace.task.operators.loops import HeadTask, LeaveTask, TailTask
from tailrace.task.operators.timestamps import TimestampsTask
from tailrace.task.subtask.chain import Chain

FEEDBACK_CHANNEL: Final = "feedback"
"""The name that a head uses, among its channels, for the one from its tail."""
Inner = ChannelId | Literal["feedback"]
"""A channel of a nest."""
NO_NEST = Nest(-1, StreamScope(), frozenset(), frozenset(), 0)
"""The nest of a task that is in none and leads out of none."""


class LoopPlace:
    """The channels and operators of one task that waves, rests, rounds and event time of its nest concern: the nest that
    the task is in or leads out of. Where there is none, nothing here concerns any."""

    def __init__(self, plan: Plan, vertex: Vertex, gate: Gate, chain: Chain) -> None:
        nests = {edge.id: found for edge in plan.edges_into(vertex.id) if (found := plan.nest_of(edge.source))}
        nest = plan.nest_of(vertex.id) or next(iter(nests.values()), NO_NEST)
        self.nest = None if nest is NO_NEST else nest.id
        self.inside = vertex.id in nest.vertices
        """True if the task is in the nest. A task that only leads out of it has no part in its end."""
        self.entry = vertex.id in nest.entries
        self.in_rounds = self.inside and nest.rounds is not None
        self.by_spans = self.in_rounds and nest.rounds is not None and nest.rounds.span is not None
        """True if the rounds of the nest go by spans of event time."""
        self.channels = {ident for ident in gate.channels if ident.edge in nests}
        """The task's channels from inside the nest, the feedback aside."""
        root = chain.root
        self.head = root if isinstance(root, HeadTask) else None
        self.tail = root if isinstance(root, TailTask) else None
        self.leave = root if isinstance(root, LeaveTask) else None
        self.leading = _leading(plan, chain)
        """Scopes that wait for the event time of operators here, with the indices of these operators in the chain."""
        self.into = [] if isinstance(root, TimestampsTask) else _scopes(plan, {ctx.uid for ctx in root.contexts()})
        """Scopes that records on the task's channels may leave with their event time."""
        self.leaves = [self.leave.scope] if self.leave is not None and self.inside else []
        """The scope inside the nest that the task is a leave of, if any."""
        self.outermost = path_of(nest.scope)
        self.brings_time = (self.entry or bool(chain.generators)) and self.outermost in self.leading
        """True if event time that leaves the nest enters it here."""
        self.beginning = [
            i
            for i, op in enumerate(chain.operators)
            if self.inside and op.ctx.uid in plan.time_begins and (self.entry or isinstance(op, TimestampsTask))
        ]
        """The operators at which the nest's event time begins, whether it leaves the nest or not, as indices of the
        chain."""


def _scopes(plan: Plan, uids: Iterable[str]) -> list[Scope]:
    return sorted({path_of(scope) for uid in uids for scope in plan.leads_out.get(uid, ())})


def _leading(plan: Plan, chain: Chain) -> dict[Scope, list[int]]:
    leading: dict[Scope, list[int]] = {}
    for i, operator in enumerate(chain.operators):
        for scope in _scopes(plan, {ctx.uid for ctx in operator.contexts()}):
            leading.setdefault(scope, []).append(i)
    return leading
