"""The graph of a job as a part of its snapshot: operators, edges, and loops as nested boxes."""

from __future__ import annotations

import msgspec

from tailrace.coordinator.view.job_snapshot import GraphShape
from tailrace.graph.picture import outline
from tailrace.graph.plan import Plan


def shape_of(plan: Plan) -> GraphShape:
    """The graph of a plan. Edges that carry only markers are left out."""
    return msgspec.convert(outline(plan), GraphShape)
