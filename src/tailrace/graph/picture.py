"""The graph of a job for users: as figures (operators, edges, loops), and as an SVG picture."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from tailrace.graph.explain import as_mermaid, as_text, loops_of
from tailrace.graph.graph import Node
from tailrace.graph.layout import BoxLink, Layout, Point, layout
from tailrace.graph.loops import tails_of
from tailrace.graph.operators import MARKERS, Head, Loop, Sink, Source
from tailrace.graph.plan import Plan, physical
from tailrace.passwords import hide_passwords

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")

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
    """The operators, the edges that records travel, and the loops of a plan: the part `graph` of a snapshot. An edge in a
    chain is `chained`."""
    graph = plan.graph
    chains = {node: vertex.id for vertex in plan.vertices for node in vertex.nodes}
    heads = {node.scope: node for node in graph.nodes if isinstance(node.operator, Head)}
    edges = [
        _edge(
            graph.node(edge.source),
            node,
            str(physical(edge.partitioning, graph.node(edge.source), node)),
            chained=chains[edge.source] == chains[node.id],
            port=edge.port,
            tag=edge.tag,
        )
        for node in graph.nodes
        for edge in node.inputs
        if edge.tag != MARKERS
    ]
    edges += [
        _edge(graph.node(tail), heads[scope], "forward", feedback=True)
        for scope, tails in tails_of(graph).items()
        for tail in tails
    ]
    operators = [_operator(node, chains[node.id]) for node in graph.nodes]
    loops = sorted(loops_of(plan).values(), key=lambda loop: (loop.scope.level, str(loop.scope)))
    return {"operators": operators, "edges": edges, "scopes": [_scope(loop) for loop in loops]}


def _edge(source: Node, target: Node, partitioning: str, **more: Any) -> dict[str, Any]:
    found = {"from": hide_passwords(source.uid), "to": hide_passwords(target.uid), "partitioning": partitioning}
    return {**found, "feedback": False, "chained": False, "port": 0, "tag": None, **more}


def _operator(node: Node, chain: int) -> dict[str, Any]:
    operator, described = node.operator, ""
    if isinstance(operator, Source):
        described = operator.source.description
    elif isinstance(operator, Sink):
        described = operator.sink.description
    return {
        "uid": hide_passwords(node.uid),
        "name": hide_passwords(node.name),
        "kind": _HUMP.sub("_", type(operator).__name__).lower(),
        "parallelism": node.parallelism,
        "chain": chain,
        "scope": str(node.scope),
        "form": str(node.form),
        "line": node.written,
        "description": hide_passwords(described),
    }


def _scope(loop: Loop) -> dict[str, Any]:
    rounds = loop.rounds
    return {
        "id": str(loop.scope),
        "parent": str(loop.scope.unnest()),
        "loop": hide_passwords(loop.name),
        "rounds": rounds is not None,
        "max_rounds": None if rounds is None else rounds.max,
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


def layout_of(figures: Mapping[str, Any], row: float = ROW, top: float = TOP, least: float = 120.0) -> Layout:
    """The places of the chains and edges of an outline. `row`: the height of an operator; `top`: the height above the rows
    of a box; `least`: the least width of a box. Edges inside a chain have no points."""
    chains = chains_of(figures)
    parents = {"": None, **{one["id"]: one["parent"] for one in figures["scopes"]}}
    sizes = {one.id: (max(least, *map(_width, one.names)), top + row * len(one.names) + PADDING / 2) for one in chains}
    rows = {uid: (chain.id, top + row * (place + 0.5)) for chain in chains for place, uid in enumerate(chain.uids)}
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
        if scope["id"] not in places.scopes:
            continue
        x, y, width, height = places.scopes[scope["id"]]
        name = escape(_short(scope["loop"]))
        yield f'<rect class="loop" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8"/>'
        yield f'<text class="name" x="{x + 10:.1f}" y="{y + 17:.1f}">loop {name}</text>'


def _edges_of(figures: Mapping[str, Any], places: Layout) -> Iterator[str]:
    for edge, points in zip(figures["edges"], places.links, strict=True):
        if points:
            kind = "edge feedback" if edge["feedback"] else "edge"
            path = _straight(points) if edge["feedback"] else _curve(points)
            way = "feedback" if edge["feedback"] else edge["partitioning"]
            title = escape(hide_passwords(way if edge["tag"] is None else f"{way}, side output {edge['tag']}"))
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
