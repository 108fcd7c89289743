"""The picture of a graph: each operator and edge is in it, boxes do not overlap, loops are around what is in them."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

import tailrace as tr
from tailrace.graph.layout import BoxLink, Layout, Rect, layout
from tailrace.graph.picture import as_svg, chains_of, layout_of

SVG = "{http://www.w3.org/2000/svg}"


def two_loops() -> tr.Environment:
    env = tr.Environment(parallelism=2)

    def inner(numbers):
        smaller = numbers.map(lambda n: n - 1, name="inner step").rebalance()
        return smaller.filter(lambda n: n > 0, name="more"), smaller.filter(lambda n: n <= 0, name="enough")

    def outer(numbers):
        stepped = numbers.map(lambda n: n, name="outer step").key_by(str)
        through = stepped.iterate(inner, name="inner loop").union(numbers.filter(bool, name="the long way")).rebalance()
        return through.filter(lambda n: n > 0, name="again"), through.filter(lambda n: n <= 0, name="done")

    first, second = env.from_collection([1, 2], name="first"), env.from_collection([3], name="second <b> & 'c'")
    first.union(second).iterate(outer, name="outer loop").key_by(str).count(name="count", uid="the count").sink_to(
        tr.sinks.Collect()
    )
    second.sink_to(tr.sinks.Print(), name="seen")
    return env


def overlap(a: Rect, b: Rect) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


def within(a: Rect, b: Rect) -> bool:
    return a.x >= b.x and a.y >= b.y and a.x + a.width <= b.x + b.width and a.y + a.height <= b.y + b.height


def test_a_picture_has_each_operator_each_edge_and_each_loop() -> None:
    graph = two_loops().graph()
    figures = graph.figures()
    picture = ET.fromstring(graph.svg())
    texts = [one.text or "" for one in picture.iter(f"{SVG}text")]
    assert {one["name"] for one in figures["operators"]} <= set(texts)
    assert {"loop outer loop", "loop inner loop"} <= set(texts) and texts.count("feedback") == 2
    edges = [one for one in picture.iter(f"{SVG}path") if "edge" in one.get("class", "")]
    assert len(edges) == sum(not one["chained"] for one in figures["edges"])
    assert sum("feedback" in one.get("class", "") for one in edges) == 2
    boxes = [one for one in picture.iter(f"{SVG}rect") if one.get("class") == "box"]
    assert len(boxes) == len(chains_of(figures)) < len(figures["operators"])


def test_the_figures_of_a_graph_name_its_operators_with_kind_chain_loop_and_line() -> None:
    figures = two_loops().graph().figures()
    by_name = {one["name"]: one for one in figures["operators"]}
    count = by_name["count"]
    assert (count["uid"], count["kind"], count["parallelism"], count["scope"]) == ("the count", "aggregate", 2, "")
    assert f"{__file__}:" in count["line"] and "count(" in count["line"]
    assert by_name["sink: collect"]["chain"] == count["chain"] != by_name["first"]["chain"]
    assert [one["loop"] for one in figures["scopes"]] == ["outer loop", "inner loop"]
    parents = {one["id"]: one["parent"] for one in figures["scopes"]}
    assert parents[by_name["inner step"]["scope"]] == by_name["outer step"]["scope"]
    assert parents[by_name["outer step"]["scope"]] == ""
    back = [one for one in figures["edges"] if one["feedback"]]
    names = {one["uid"]: one["name"] for one in figures["operators"]}
    assert sorted(names[one["to"]] for one in back) == ["inner loop", "outer loop"]
    assert {one["partitioning"] for one in figures["edges"]} >= {"hash(str)", "rebalance", "forward"}


def test_equal_graphs_have_equal_pictures() -> None:
    assert two_loops().graph().svg() == two_loops().graph().svg()


def test_a_picture_holds_what_a_name_has_as_text() -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1], name='<script>alert("x")</script>').sink_to(tr.sinks.Collect(), name="n" * 300)
    picture = env.graph().svg()
    assert "<script" not in picture and f"{'n' * 41}…" in picture
    ET.fromstring(picture)


def test_a_picture_stands_alone_and_has_a_dark_half() -> None:
    picture = two_loops().graph().svg()
    assert picture.startswith("<svg ") and "prefers-color-scheme:dark" in picture
    assert not re.search(r"(href|src|url)\s*=|https?://(?!www\.w3\.org/2000/svg)", picture)
    rules = re.findall(r"[{}]([^{}]+){", picture[picture.index("<style>") + 6 : picture.index("</style>")])
    assert all(rule.startswith((".tailrace-graph ", "@media")) for rule in rules), "no rule for the rest of the page"


def test_a_notebook_shows_the_picture() -> None:
    graph = two_loops().graph()
    assert graph._repr_svg_() == graph.svg() and graph.svg() in graph._repr_html_()
    assert str(graph) == two_loops().explain() and graph.mermaid() == two_loops().explain("mermaid")


# Layouts of random graphs.


def random_graph(
    seed: int,
) -> tuple[dict[str, tuple[float, float]], dict[str, str], dict[str, str | None], list[BoxLink]]:
    """Boxes in a tree of scopes, links in the order of the boxes between any of them, and feedback of some scopes."""
    chance = random.Random(seed)
    parents: dict[str, str | None] = {"": None}
    for number in range(chance.randrange(4)):
        parents[f"s{number}"] = chance.choice(list(parents))
    boxes = [f"b{number}" for number in range(chance.randrange(1, 14))]
    sizes = {box: (chance.uniform(40, 200), chance.uniform(20, 90)) for box in boxes}
    scope_of = {box: chance.choice(list(parents)) for box in boxes}
    pairs = [(a, b) for place, a in enumerate(boxes) for b in boxes[place + 1 :] if chance.random() < 0.25]
    links = [BoxLink(a, b, sizes[a][1] / 2, sizes[b][1] / 2) for a, b in pairs]
    for scope in list(parents)[1:]:
        members = [box for box in boxes if scope_of[box] == scope]
        links += [BoxLink(members[-1], members[0], 10, 10, back=True)] if members else []
    return sizes, scope_of, parents, links


def check(found: Layout, scope_of: dict[str, str], parents: dict[str, str | None], links: list[BoxLink]) -> None:
    whole = Rect(0, 0, found.width + 0.01, found.height + 0.01)
    for box, rect in found.boxes.items():
        assert within(rect, whole), box
        for other, there in found.boxes.items():
            assert box == other or not overlap(rect, there), (box, other)
        for scope, there in found.scopes.items():
            around, inside = scope_of[box], False
            while around and not inside:
                inside, around = around == scope, parents[around] or ""
            assert within(rect, there) if inside else not overlap(rect, there), (box, scope)
    for link, points in zip(links, found.links, strict=True):
        source, target = found.boxes[link.source], found.boxes[link.target]
        assert points[0] == (source.x + source.width, source.y + link.out)
        assert points[-1] == (target.x, target.y + link.into)
        assert all(whole.y <= y <= whole.height for _, y in points)


@pytest.mark.parametrize("seed", range(150))
def test_boxes_do_not_overlap_and_links_end_at_their_boxes(seed: int) -> None:
    sizes, scope_of, parents, links = random_graph(seed)
    found = layout(sizes, scope_of, parents, links)
    assert found.boxes.keys() == sizes.keys()
    check(found, scope_of, parents, links)


@pytest.mark.parametrize("seed", range(150))
def test_without_loops_every_link_leads_to_the_right(seed: int) -> None:
    sizes, _, _, links = random_graph(seed)
    forward = [link for link in links if not link.back]
    found = layout(sizes, dict.fromkeys(sizes, ""), {"": None}, forward)
    for points in found.links:
        assert all(a[0] <= b[0] for a, b in pairwise(points))


def test_a_graph_of_a_hundred_chains_is_laid_out() -> None:
    env = tr.Environment(parallelism=64)
    streams = [env.from_collection([1], name=f"source {number}") for number in range(20)]
    for number in range(80):
        streams.append(streams[number % len(streams)].rebalance().map(abs, name=f"map {number}"))
    for stream in streams[-20:]:
        stream.sink_to(tr.sinks.Print())
    figures = env.graph().figures()
    places = layout_of(figures)
    assert len(places.boxes) >= 50 and places.width > 0
    assert as_svg(figures).count('class="box"') == len(places.boxes)
