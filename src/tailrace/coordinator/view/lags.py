"""The distance of a job from the end of its input, and its trend over a minute."""

from __future__ import annotations

from collections import deque

from tailrace.coordinator.view.job_snapshot import LagFigures
from tailrace.coordinator.view.jobview import JobView
from tailrace.coordinator.view.progress import largest_lags, overall_watermark
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.graph.operators import Source
from tailrace.graph.plan import Plan

EVERY = 10_000_000
"""Time from one figure that is kept to the next (int64 microseconds)."""
KEPT = 7
"""Figures that are kept: those of a minute."""
STEADY = 0.02
"""The share by which a lag may grow in a minute and count as steady."""
LEAST_SECONDS, LEAST_RECORDS = 2.0, 10.0
"""The growth in a minute up to which a lag counts as steady, however small it is."""


class LagTrend:
    """The lags of one job in the last minute. A figure is kept each ten seconds."""

    def __init__(self, plan: Plan) -> None:
        roots = {vertex.id: plan.graph.node(vertex.nodes[0]) for vertex in plan.vertices}
        self._sources = {ident: node.uid for ident, node in roots.items() if isinstance(node.operator, Source)}
        self._kept = deque[tuple[int, LagFigures]](maxlen=KEPT)
        """(time of the view, its lag), the oldest first."""

    def forget(self) -> None:
        """Forgets all figures: the job starts again."""
        self._kept.clear()

    def observe(self, view: JobView) -> None:
        """Takes a view of the job."""
        if not self._kept or view.at - self._kept[-1][0] >= EVERY:
            found = self._lag(view)
            if found is not None:
                self._kept.append((view.at, found))

    def lag(self, view: JobView) -> LagFigures | None:
        """The lag of a view, and by how much it has changed; None where it is not known."""
        found = self._lag(view)
        old = next((one for at, one in self._kept if EVERY <= view.at - at <= KEPT * EVERY), None)
        if found is None or old is None or old.source != found.source:
            return found
        pair = (old.seconds, found.seconds) if found.seconds is not None else (old.records, found.records)
        before, now = pair
        if before is None or now is None:
            return found
        least = LEAST_RECORDS if found.seconds is None else LEAST_SECONDS
        change = now - before
        grows = change > max(STEADY * now, least)
        return LagFigures(found.seconds, found.records, found.source, change, grows)

    def _lag(self, view: JobView) -> LagFigures | None:
        worst: LagFigures | None = None
        reports = view.reports
        for vertex, uid in self._sources.items():
            lags = largest_lags([one.metrics for one in reports if one.vertex == vertex])
            if lags:
                found = LagFigures(lags.get("lag_seconds"), lags.get("lag_records"), uid)
                worst = found if worst is None or _size(found) > _size(worst) else worst
        if worst is not None:
            return worst
        watermark = overall_watermark(reports)
        if watermark is None or not MIN_TIME < watermark < MAX_TIME:
            return None
        return LagFigures((view.at - watermark) / 1e6, None, None)


def _size(lag: LagFigures) -> tuple[bool, float]:
    """The order of lags: those in seconds first."""
    return (True, lag.seconds) if lag.seconds is not None else (False, lag.records or 0.0)
