"""The graph of a job for users: as figures (operators, edges, loops), and as an SVG picture."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from tailrace.graph.explain import as_mermaid, as_text
from tailrace.graph.graph import Node
from tailrace.graph.layout import BoxLink, Layout, Point, layout
from tailrace.graph.loops import tails_of
from tailrace.graph.operators import MARKERS, Head
from tailrace.graph.plan import Plan, physical
from tailrace.graph.scope import StreamScope
from tailrace.passwords import hide_passwords

ROW, TOP, PADDING = 20.0, 24.0, 10.0
"""Of a box: height of an operator's row, height above the rows, and margin."""
LONGEST = 42
"""The most characters of a name that are drawn; the rest is in the tooltip."""

COLORS = {
    "back": ("#ffffff", "#14181d"),
    "box": ("#f4f6f9", "#20262d"),
    "line": ("#5b6673", "#9aa7b5"),
    "text": ("#16191d", "#e8ecf0"),
    "loop": ("#7a4fb5", "#c3a2f2"),
}
"""Name -> color on a light and on a dark page."""


def outline(plan: Plan) -> dict[str, Any]:
    """The operators, the edges that records travel, and the loops of a plan, as the page and the HTTP interface have them.
    Operators of one chain have one number `chain`; an edge inside a chain has the partitioning `"chained"`."""
    graph = plan.graph
    chain_of = {node: vertex.id for vertex in plan.vertices for node in vertex.nodes}
    uid = {node.id: hide_passwords(node.uid) for node in graph.nodes}
    heads = {node.scope: node for node in graph.nodes if isinstance(node.operator, Head)}
    scopes = {node.scope.at_level(level) for node in graph.nodes for level in range(node.scope.level + 1)}
    operators = [
        {
            "uid": uid[node.id],
            "name": hide_passwords(node.name),
            "kind": type(node.operator).__name__,
            "parallelism": node.parallelism,
            "scope": str(node.scope),
            "chain": chain_of[node.id],
            "line": node.written,
        }
        for node in graph.nodes
    ]
    edges = [
        {"from": uid[source.id], "to": uid[node.id], "partitioning": how, "feedback": False}
        for node in graph.nodes
        for source, how in _inputs(plan, node, chain_of)
    ]
    for scope, tails in tails_of(graph).items():
        edges += [
            {"from": uid[tail], "to": uid[heads[scope].id], "partitioning": "feedback", "feedback": True}
            for tail in tails
        ]
    return {"operators": operators, "edges": edges, "scopes": [_loop(one, heads) for one in sorted(scopes, key=str)]}


def _inputs(plan: Plan, node: Node, chain_of: Mapping[int, int]) -> Iterator[tuple[Node, str]]:
    """The operators that records come from, and how they come."""
    for edge in node.inputs:
        if edge.tag == MARKERS:
            continue
        source = plan.graph.node(edge.source)
        chained = chain_of[source.id] == chain_of[node.id]
        how = "chained" if chained else str(physical(edge.partitioning, source, node))
        yield source, how if edge.tag is None else f"{how}, side output {edge.tag}"


def _loop(scope: StreamScope, heads: Mapping[StreamScope, Node]) -> dict[str, Any]:
    head = heads.get(scope)
    return {
        "id": str(scope),
        "parent": str(scope.unnest()) if scope.level else None,
        "loop": None if head is None else hide_passwords(head.name),
    }


class JobGraph:
    """The graph of a job. A notebook shows it as a picture."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def figures(self) -> dict[str, Any]:
        """The operators, edges and loops, as `GET /api/jobs/{id}` has them."""
        return outline(self._plan)

    def svg(self) -> str:
        """The graph as a picture (SVG): a box for each chain of operators and around each loop, feedback as a dashed line.
        It needs nothing else, and follows the light or dark colors of the page that shows it."""
        return as_svg(self.figures())

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return as_mermaid(self._plan)

    def __str__(self) -> str:
        return as_text(self._plan)

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        return f"<div>{self.svg()}</div>"


@dataclass(frozen=True)
class ChainBox:
    """Operators that run in one step: one box of the picture."""

    id: str
    names: tuple[str, ...]
    uids: tuple[str, ...]
    parallelism: int
    scope: str


def chains_of(figures: Mapping[str, Any]) -> list[ChainBox]:
    """The chains of an outline, in its order."""
    members: dict[Any, list[dict[str, Any]]] = {}
    for one in figures["operators"]:
        members.setdefault(one["chain"], []).append(one)
    return [
        ChainBox(
            str(number),
            tuple(one["name"] for one in ones),
            tuple(one["uid"] for one in ones),
            ones[0]["parallelism"],
            ones[0]["scope"],
        )
        for number, ones in members.items()
    ]


def layout_of(figures: Mapping[str, Any], row: float = ROW, least: float = 120.0) -> Layout:
    """The places of the chains and edges of an outline. `row`: the height of an operator; `least`: the least width of a box.
    Edges inside a chain have no points."""
    chains = chains_of(figures)
    parents = {one["id"]: one["parent"] for one in figures["scopes"]}
    sizes = {one.id: (max(least, *map(_width, one.names)), TOP + row * len(one.names) + PADDING / 2) for one in chains}
    rows = {uid: (chain.id, TOP + row * (place + 0.5)) for chain in chains for place, uid in enumerate(chain.uids)}
    links, numbers = [], []
    for number, edge in enumerate(figures["edges"]):
        (source, out), (target, into) = rows[edge["from"]], rows[edge["to"]]
        if source != target or edge["feedback"]:
            links.append(BoxLink(source, target, out, into, edge["feedback"]))
            numbers.append(number)
    found = layout(sizes, {chain.id: chain.scope for chain in chains}, parents, links)
    points = dict(zip(numbers, found.links, strict=True))
    found.links = [points.get(number, []) for number in range(len(figures["edges"]))]
    return found


def _width(text: str) -> float:
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text[:LONGEST])
    return 2 * PADDING + 7.1 * min(len(text), LONGEST) + 6.0 * wide


def as_svg(figures: Mapping[str, Any]) -> str:
    """The picture of an outline (`outline`)."""
    places = layout_of(figures)
    width, height = places.width + 2 * PADDING, places.height + 2 * PADDING
    title = f"A dataflow of {len(figures['operators'])} operators"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tailrace-graph" role="img" aria-label="{title}" '
        f'viewBox="{-PADDING:g} {-PADDING:g} {width:g} {height:g}" width="{width:g}" height="{height:g}">',
        f"<title>{title}</title>",
        f"<style>{_style()}</style>",
        '<defs><marker id="tailrace-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>',
        f'<rect class="back" x="{-PADDING:g}" y="{-PADDING:g}" width="{width:g}" height="{height:g}"/>',
        *_scopes_of(figures, places),
        *_edges_of(figures, places),
        *(line for chain in chains_of(figures) for line in _box_of(chain, places)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _scopes_of(figures: Mapping[str, Any], places: Layout) -> Iterator[str]:
    for scope in figures["scopes"]:
        if scope["parent"] is None or scope["id"] not in places.scopes:
            continue
        x, y, width, height = places.scopes[scope["id"]]
        name = escape(_short(scope["loop"] or ""))
        yield f'<rect class="loop" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8"/>'
        yield f'<text class="name" x="{x + 10:.1f}" y="{y + 17:.1f}">loop {name}</text>'


def _edges_of(figures: Mapping[str, Any], places: Layout) -> Iterator[str]:
    for edge, points in zip(figures["edges"], places.links, strict=True):
        if points:
            kind = "edge feedback" if edge["feedback"] else "edge"
            path = _straight(points) if edge["feedback"] else _curve(points)
            title = escape(hide_passwords(edge["partitioning"]))
            yield f'<path class="{kind}" d="{path}" marker-end="url(#tailrace-tip)"><title>{title}</title></path>'
        if points and edge["feedback"]:
            (x, y), (other, _) = points[2], points[3]
            yield f'<text class="name" x="{(x + other) / 2:.1f}" y="{y - 4:.1f}" text-anchor="middle">feedback</text>'


def _curve(points: list[Point]) -> str:
    """A path that leaves and reaches each point horizontally."""
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (other, height) in pairwise(points):
        middle = (x + other) / 2
        curve = f"C{middle:.1f} {y:.1f} {middle:.1f} {height:.1f} {other:.1f} {height:.1f}"
        path.append(f"H{other:.1f}" if abs(y - height) < 0.5 else curve)
    return "".join(path)


def _straight(points: list[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _box_of(chain: ChainBox, places: Layout) -> Iterator[str]:
    x, y, width, height = places.boxes[chain.id]
    yield f"<g><title>{escape(' → '.join(chain.names))}, {chain.parallelism} subtasks</title>"
    yield f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5"/>'
    yield f'<text class="small" x="{x + width - PADDING:.1f}" y="{y + 16:.1f}" text-anchor="end">×{chain.parallelism}</text>'
    for place, name in enumerate(chain.names):
        yield f'<text x="{x + PADDING:.1f}" y="{y + TOP + ROW * (place + 0.5) + 4:.1f}">{escape(_short(name))}</text>'
    yield "</g>"


def _short(text: str) -> str:
    text = " ".join(hide_passwords(text).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


RULES = (
    ("text", "font:13px system-ui,sans-serif;fill:{text}"),
    (".small", "font-size:11px;fill:{line}"),
    (".name", "font-size:11px;fill:{loop}"),
    (".back", "fill:{back}"),
    (".box", "fill:{box};stroke:{line}"),
    (".loop", "fill:none;stroke:{loop};stroke-dasharray:2 3"),
    (".edge", "fill:none;stroke:{line};stroke-width:1.3"),
    (".feedback", "stroke:{loop};stroke-dasharray:6 4"),
    (".tip", "fill:{line}"),
)


def _style() -> str:
    """The style of the picture, whose rules hold for it alone: a page may show it among others."""
    light, dark = (
        "".join(f".tailrace-graph {which}{{{rule.format(**colors)}}}" for which, rule in RULES)
        for colors in ({name: pair[place] for name, pair in COLORS.items()} for place in (0, 1))
    )
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"
