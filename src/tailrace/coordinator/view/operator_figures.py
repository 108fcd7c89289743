"""The figures of a snapshot that come from the reports of workers: of operators, inputs, sources, loops and subtasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from tailrace.coordinator.view.job_snapshot import (
    HeavyKey,
    InputFigures,
    LoopFigures,
    Metric,
    OperatorFigures,
    Share,
    Skew,
    SourceFigures,
    SubtaskFigures,
)
from tailrace.coordinator.view.jobview import JobView
from tailrace.coordinator.view.progress import LATE, inflight_bytes, largest_lags
from tailrace.elements.timestamps import FAR_AHEAD, MAX_TIME, MIN_TIME, isoformat
from tailrace.graph.explain import loops_of
from tailrace.graph.graph import Node
from tailrace.graph.operators import Head, Loop, Source
from tailrace.graph.plan import Plan, Vertex
from tailrace.protocol.deployment import BUCKET, BUCKETS, SUM, InputTime, OperatorReport, SubtaskReport

HELD_UP = frozenset({"no credit", "encoding", "held"})
"""The reasons (`SubtaskReport.waits_for`) with which a subtask does not go on although it has input: an operator behind it
takes nothing more, or a checkpoint does not let it."""
FAILED = "failed_records"
HELD_BY_SPLIT = ".held_by_split"
"""The end of the name of the figure with the split that holds event time back."""
Place = tuple[int, int]
"""A subtask: its vertex, or the node of an operator, and its number."""


class Reports:
    """The reports of a job's workers: the newest ones, and those of the views before, for rates and shares."""

    def __init__(self, plan: Plan, view: JobView, views: Sequence[JobView]) -> None:
        self._plan, self._view = plan, view
        self.newest = view.reports
        self._before = [one for one in views if one.at < view.at]
        self._first = _by_place(self._before[0]) if self._before else {}
        self._of: dict[int, list[SubtaskReport]] = {vertex.id: [] for vertex in plan.vertices}
        for one in self.newest:
            self._of[one.vertex].append(one)

    # Rates, shares and times.

    def rate(self, count: Callable[[SubtaskReport], int], vertex: int | None = None) -> float | None:
        """The rate of a count in the last seconds, over the subtasks of a vertex, or all; None where it is not known."""
        total, known = 0.0, False
        for one in self.newest if vertex is None else self._of[vertex]:
            before = self._first.get((one.vertex, one.subtask))
            if before is not None:
                known = True
                span = _moment(self._view, one) - before[0]
                total += max(0, count(one) - count(before[1])) * 1e6 / span if span > 0 else 0.0
        return total if known else None

    def _growth(self, amount: Callable[[SubtaskReport], float], vertex: int) -> float | None:
        """The growth of an amount in each of the last seconds, below zero where it falls; None where it is not known."""
        found = []
        for one in self._of[vertex]:
            before = self._first.get((one.vertex, one.subtask))
            span = 0 if before is None else _moment(self._view, one) - before[0]
            if before is not None and span > 0:
                found.append((amount(one) - amount(before[1])) * 1e6 / span)
        return sum(found) if found else None

    @cached_property
    def _reported(self) -> dict[Place, OperatorReport]:
        """The newest report of each operator, by its node and subtask."""
        return {(found.node, one.subtask): found for one in self.newest for found in one.operators}

    @cached_property
    def _reported_first(self) -> dict[Place, OperatorReport]:
        """The report of each operator in the first of the views before, by its node and subtask."""
        first = (report for _, report in self._first.values())
        return {(found.node, one.subtask): found for one in first for found in one.operators}

    def _count(self, node: int, reports: Sequence[SubtaskReport], field: str) -> int | None:
        """The sum of a count of an operator; None where no subtask knows it."""
        found = [self._reported.get((node, one.subtask)) for one in reports]
        known = [number for one in found if one is not None and (number := getattr(one, field)) is not None]
        return sum(known) if known else None

    def _rate_of(self, node: int, reports: Sequence[SubtaskReport], field: str) -> float | None:
        """The rate of a count of an operator in the last seconds; None where it is not known."""
        total, known = 0.0, False
        for one in reports:
            place, before = (node, one.subtask), self._first.get((one.vertex, one.subtask))
            new, old = self._reported.get(place), self._reported_first.get(place)
            if before is None or new is None or old is None or getattr(new, field) is None:
                continue
            known = True
            span = _moment(self._view, one) - before[0]
            total += max(0, getattr(new, field) - (getattr(old, field) or 0)) * 1e6 / span if span > 0 else 0.0
        return total if known else None

    @cached_property
    def _shares(self) -> dict[Place, tuple[float, float, float]]:
        """(busy, waiting, back-pressured): the shares of the last seconds, by subtask. What a subtask waited for is known at
        each report; between two of them it counts as the same."""
        seen: dict[Place, list[SubtaskReport]] = {}
        for view in (*self._before, self._view):
            for one in view.reports:
                seen.setdefault((one.vertex, one.subtask), []).append(one)
        found = {}
        for one in self.newest:
            place = one.vertex, one.subtask
            busy, reports = self._busy(one), seen[place]
            if busy is not None:
                held = sum(report.waits_for in HELD_UP for report in reports) / len(reports)
                ready = sum(not report.waits_for and report.queued_bytes > 0 for report in reports) / len(reports)
                found[place] = busy, (1 - busy) * max(0.0, 1 - held - ready), (1 - busy) * held
        return found

    @cached_property
    def _shares_of(self) -> dict[int, dict[int, tuple[float, float, float]]]:
        """The shares by vertex and subtask."""
        found: dict[int, dict[int, tuple[float, float, float]]] = {vertex: {} for vertex in self._of}
        for (vertex, subtask), shares in self._shares.items():
            found[vertex][subtask] = shares
        return found

    def _busy(self, one: SubtaskReport) -> float | None:
        before = self._first.get((one.vertex, one.subtask))
        if before is None:
            return None
        span = _moment(self._view, one) - before[0]
        if span <= 0:  # its worker has not reported since
            return 0.0
        return min(1.0, max(0.0, (one.worked_micros - before[1].worked_micros) / span))

    def workers_busy(self) -> Share | None:
        """The share of the last seconds in which each worker has worked, over all workers."""
        sums: dict[int, float] = {}
        for (_, subtask), (busy, _, _) in self._shares.items():
            sums[subtask] = min(1.0, sums.get(subtask, 0.0) + busy)
        return share_of(sums)

    def lag(self, watermark: int | None) -> float | None:
        """The seconds by which event time is behind the clock; None before its beginning and behind its end."""
        if watermark is None or not MIN_TIME < watermark < MAX_TIME:
            return None
        return (self._view.at - watermark) / 1e6

    # The parts of a snapshot.

    def operators(self, keys: Mapping[str, list[HeavyKey]] = {}) -> dict[str, OperatorFigures]:
        """The figures of all operators, by uid. `keys`: those on which an operator's time goes, where they are known."""
        found = {}
        for vertex in self._plan.vertices:
            for at, ident in enumerate(vertex.nodes):
                node = self._plan.graph.node(ident)
                figures = self._operator(vertex, node, root=at == 0)
                known = keys.get(node.uid)
                found[node.uid] = figures if known is None else msgspec.structs.replace(figures, heaviest_keys=known)
        return found

    def _operator(self, vertex: Vertex, node: Node, *, root: bool) -> OperatorFigures:
        mine = self._of[vertex.id]
        if not mine:
            return OperatorFigures()
        metrics = self._metrics(mine, node)
        timed = any(one.timed or one.inputs for one in mine) or any(one.watermark > MIN_TIME for one in mine)
        watermark = min(one.watermark for one in mine) if timed else None
        late, failed = metrics.pop(LATE[1:], None), metrics.pop(FAILED, None)
        shares = [
            share_of({subtask: share[at] for subtask, share in self._shares_of[vertex.id].items()}) for at in range(3)
        ]
        return OperatorFigures(
            subtasks_reporting=len(mine),
            subtasks_finished=sum(one.finished for one in mine),
            records_in=self._count(node.id, mine, "records_in"),
            records_out=self._count(node.id, mine, "records_out"),
            rate_in=self._rate_of(node.id, mine, "records_in"),
            rate_out=self._rate_of(node.id, mine, "records_out"),
            busy=shares[0],
            waiting=shares[1],
            backpressured=shares[2],
            skew=_skew(mine, lambda one: one.records_in) if root else None,
            waiting_skew=_skew(mine, lambda one: one.queued_bytes) if root else None,
            waiting_bytes=inflight_bytes(mine),
            late=None if late is None else int(late.total),
            failed=None if failed is None else int(failed.total),
            state_entries=self._count(node.id, mine, "state_entries"),
            state_bytes=self._count(node.id, mine, "state_bytes"),
            watermark=None if watermark is None else isoformat(watermark),
            lag=self.lag(watermark),
            metrics=metrics,
        )

    def _metrics(self, reports: Iterable[SubtaskReport], node: Node) -> dict[str, Metric]:
        """The counters, gauges and histograms of an operator, over its subtasks."""
        operator = node.name
        values: dict[str, list[float]] = {}
        gauges: set[str] = set()
        for one in reports:
            found = self._reported.get((node.id, one.subtask))
            gauges.update(() if found is None else found.gauges)
            for name, value in one.metrics.items():
                if name.startswith(f"{operator}."):
                    values.setdefault(name[len(operator) + 1 :], []).append(value)
        made = {}
        for name, each in sorted(values.items()):
            kind = "gauge" if name in gauges else "counter"
            made[name] = Metric(sum(each), min(each), max(each), kind)
        return _with_histograms(made)

    def inputs(self) -> list[InputFigures]:
        """Event time on each input of each operator, in the subtask that is farthest behind."""
        lowest: dict[int, tuple[InputTime, int]] = {}
        for one in self.newest:
            for time in one.inputs:
                if time.edge not in lowest or time.watermark < lowest[time.edge][0].watermark:
                    lowest[time.edge] = time, one.subtask
        least: dict[int, int] = {}
        for edge, (time, _) in lowest.items():
            target = self._plan.edges[edge].target
            least[target] = min(time.watermark, least.get(target, time.watermark))
        return [
            self._input(time, subtask, least[self._plan.edges[edge].target])
            for edge, (time, subtask) in sorted(lowest.items())
        ]

    def _input(self, time: InputTime, subtask: int, least: int) -> InputFigures:
        edge = self._plan.edges[time.edge]
        senders = [one for one in self._of[edge.source] if not one.finished]
        ahead = max((one.watermark for one in senders if one.subtask != time.subtask), default=MIN_TIME)
        splits = [
            int(value)
            for one in senders
            if one.subtask == time.subtask
            for name, value in one.metrics.items()
            if name.endswith(HELD_BY_SPLIT)
        ]
        return InputFigures(
            self._root(edge.target).uid,
            self._plan.graph.node(edge.source_node).uid,
            isoformat(time.watermark),
            self.lag(time.watermark),
            subtask,
            time.subtask,
            time.watermark == least,
            self._stands(edge.target, subtask, time),
            ahead - time.watermark >= FAR_AHEAD,
            splits[0] if splits else None,
        )

    def _stands(self, vertex: int, subtask: int, time: InputTime) -> bool:
        """True if an input of a subtask has not moved in the last seconds, or is known for the first time."""
        before = self._first.get((vertex, subtask))
        known = [] if before is None else before[1].inputs
        return all(one.watermark == time.watermark for one in known if one.edge == time.edge)

    def _root(self, vertex: int) -> Node:
        return self._plan.graph.node(self._plan.vertices[vertex].nodes[0])

    def sources(self) -> list[SourceFigures]:
        """What each source has read."""
        found = []
        for vertex in self._plan.vertices:
            node = self._root(vertex.id)
            if isinstance(node.operator, Source):
                mine = self._of[vertex.id]
                lags = largest_lags([one.metrics for one in mine])
                found.append(
                    SourceFigures(
                        node.uid,
                        node.operator.source.description,
                        sum(one.records_in for one in mine) if mine else None,
                        self.rate(lambda one: one.records_in, vertex.id),
                        lags.get("lag_records"),
                        lags.get("lag_seconds"),
                    )
                )
        return found

    def loops(self) -> list[LoopFigures]:
        """The loops, the outer ones first."""
        heads = {}
        for vertex in self._plan.vertices:
            node = self._root(vertex.id)
            if isinstance(node.operator, Head):
                heads[node.scope] = vertex.id, node.name
        return [
            self._loop(str(scope), loop, *heads[scope])
            for scope, loop in sorted(loops_of(self._plan).items(), key=lambda one: (one[0].level, str(one[0])))
        ]

    @cached_property
    def _waves(self) -> dict[str, int]:
        """The number of waves that have looked for the end of a loop, by the scope of an outermost one."""
        return {str(nest.scope): number for nest, number in zip(self._plan.nests, self._view.waves, strict=False)}

    def _loop(self, scope: str, loop: Loop, vertex: int, head: str) -> LoopFigures:
        mine = self._of[vertex]
        if not mine:
            return LoopFigures(scope, loop.name)
        rounds = [one.metrics[f"{head}.round"] for one in mine if f"{head}.round" in one.metrics]
        total, waits = f"{head}.feedback_total", f"{head}.feedback_records"

        def sum_of(what: str) -> int:
            return int(sum(one.metrics.get(f"{head}.{what}", 0.0) for one in mine))

        return LoopFigures(
            scope,
            loop.name,
            sum_of("feedback_records"),
            sum_of("feedback_spilled_bytes"),
            sum_of("feedback_total"),
            self.rate(lambda one: int(one.metrics.get(total, 0.0)), vertex),
            round=int(max(rounds)) if rounds else None,
            rounds=None if loop.rounds is None else loop.rounds.max,
            waves=self._waves.get(scope),
            growth=self._growth(lambda one: one.metrics.get(waits, 0.0), vertex),
        )

    def subtasks(self) -> list[SubtaskFigures]:
        """The figures of each subtask of each chain."""
        return [self._subtask(one) for one in self.newest]

    def _subtask(self, one: SubtaskReport) -> SubtaskFigures:
        share = self._shares.get((one.vertex, one.subtask))
        return SubtaskFigures(
            one.vertex,
            self._root(one.vertex).uid,
            one.subtask,
            one.records_in,
            one.records_out,
            None if share is None else share[0],
            one.worked_micros / 1e6,
            one.under_way_micros / 1e6,
            one.age_micros / 1e6,
            one.queued_bytes,
            one.unsent_bytes,
            one.state_entries,
            one.blocked,
            one.finished,
            one.waits_for,
            isoformat(one.watermark),
            [self._input(time, one.subtask, min(t.watermark for t in one.inputs)) for time in one.inputs],
            dict(one.metrics),
        )


def _by_place(view: JobView) -> dict[Place, tuple[int, SubtaskReport]]:
    return {(one.vertex, one.subtask): (_moment(view, one), one) for one in view.reports}


def _moment(view: JobView, one: SubtaskReport) -> int:
    """The time of a report. A step under way counts until the view."""
    return view.at - (0 if one.under_way_micros else one.age_micros)


def share_of(shares: dict[int, float]) -> Share | None:
    """The most and the least of shares, by subtask."""
    if not shares:
        return None
    worst = max(shares, key=lambda subtask: shares[subtask])
    return Share(shares[worst], min(shares.values()), worst)


def _skew(reports: Sequence[SubtaskReport], amount: Callable[[SubtaskReport], int]) -> Skew | None:
    """The subtask with the most of something; None where there is nothing to compare."""
    amounts = {one.subtask: amount(one) for one in reports}
    total = sum(amounts.values())
    if len(amounts) < 2 or not total:
        return None
    most = max(amounts, key=lambda subtask: amounts[subtask])
    return Skew(most, amounts[most], min(amounts.values()), amounts[most] / total)


def _with_histograms(metrics: dict[str, Metric]) -> dict[str, Metric]:
    """The metrics with one for each histogram, in place of the counters of its buckets and of its sum."""
    buckets: dict[str, list[int]] = {}
    found = {}
    for name, metric in metrics.items():
        histogram, between, number = name.rpartition(BUCKET)
        if between:
            buckets.setdefault(histogram, [0] * (len(BUCKETS) + 1))[int(number)] = int(metric.total)
        else:
            found[name] = metric
    for name, counts in buckets.items():
        total = found.pop(f"{name}{SUM}")
        found[name] = Metric(total.total, total.least, total.most, "histogram", counts)
    return found
