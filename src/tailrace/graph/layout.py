"""A layered layout of a graph of boxes, from left to right: loops are boxes around boxes, and lead back below their boxes.

Each scope is laid out by itself and is one box in the scope around it. In a scope every box stands one column behind the
boxes that lead to it; a link that is longer than one column gets a lane in each column that it passes, and a link that
crosses the border of the scope a lane at that border. Equal graphs get equal layouts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

GAP, ROW_GAP, LANE = 44.0, 18.0, 10.0
"""Distance of columns, distance of boxes in a column, height of a lane."""
SIDE, TITLE, BACK = 16.0, 26.0, 26.0
"""Inside a loop: margin, height of its title, and height of the way back."""
ROUNDS = 6
"""Number of passes that order and align the boxes."""

Point = tuple[float, float]


class Rect(NamedTuple):
    """A rectangle: its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float


class BoxLink(NamedTuple):
    """A link between two boxes. `out` and `into`: its ends, as distances from the boxes' upper borders. `back`: feedback of
    a loop, which does not count for the order of boxes."""

    source: str
    target: str
    out: float
    into: float
    back: bool = False


@dataclass
class Layout:
    """Places of boxes, of scopes and of links; a link is a list of points."""

    width: float = 0.0
    height: float = 0.0
    boxes: dict[str, Rect] = field(default_factory=dict)
    scopes: dict[str, Rect] = field(default_factory=dict)
    links: list[list[Point]] = field(default_factory=list)


@dataclass
class _Item:
    """A box, a scope or a lane (neither of both) in its column."""

    width: float
    height: float
    box: str | None = None
    scope: str | None = None
    column: int = 0
    x: float = 0.0
    y: float = 0.0
    before: list[_Item] = field(default_factory=list)
    after: list[_Item] = field(default_factory=list)

    @property
    def middle(self) -> float:
        """The height of its middle."""
        return self.y + self.height / 2


@dataclass
class _Level:
    """A scope that is laid out, from its own upper left corner."""

    items: list[_Item]
    ways: dict[int, list[_Item]]
    """Number of a link -> the items on its way through this scope, lanes included."""
    width: float
    height: float

    def open_at(self, number: int) -> bool:
        """True if a link begins or ends outside of this scope."""
        way = self.ways[number]
        return any(end.box is None and end.scope is None for end in (way[0], way[-1]))


def layout(
    sizes: Mapping[str, tuple[float, float]],
    scope_of: Mapping[str, str],
    parents: Mapping[str, str | None],
    links: Sequence[BoxLink],
) -> Layout:
    """The layout of boxes with these sizes (width, height). `scope_of`: box -> its scope; `parents`: scope -> the scope that
    it is in, None for the outermost."""
    return _Drawing(sizes, scope_of, parents, links).whole()


class _Drawing:
    """A layout in the making."""

    def __init__(
        self,
        sizes: Mapping[str, tuple[float, float]],
        scope_of: Mapping[str, str],
        parents: Mapping[str, str | None],
        links: Sequence[BoxLink],
    ) -> None:
        self.sizes, self.scope_of, self.links = sizes, scope_of, links
        self.order = {name: number for number, name in enumerate(sizes)}
        self.paths = {scope: _path(scope, parents) for scope in parents}
        self.parents = parents
        self.levels: dict[str, _Level] = {}

    def whole(self) -> Layout:
        """The layout of all scopes."""
        (root,) = [scope for scope, parent in self.parents.items() if parent is None]
        level = self._arrange(root)
        found = Layout(level.width, level.height)
        corners = {root: (0.0, 0.0)}
        self._place(root, corners, found)
        for number, link in enumerate(self.links):
            if link.back:
                scope = self.scope_of[link.source]
                lane = corners[scope][1] + self.levels[scope].height - SIDE
                found.links.append(_way_back(link, found, lane))
            else:
                around = next(
                    scope for scope, one in self.levels.items() if number in one.ways and not one.open_at(number)
                )
                found.links.append(self._points(number, around, corners))
        return found

    def _item_of(self, box: str, scope: str) -> str | None:
        """The key of the item of a scope that a box is or is in; None where it is outside of the scope."""
        path = self.paths[self.scope_of[box]]
        if scope not in path:
            return None
        depth = path.index(scope) + 1
        return f"scope {path[depth]}" if depth < len(path) else f"box {box}"

    def _arrange(self, scope: str) -> _Level:
        """Lays out a scope, and before it those that are in it."""
        items = self._items(scope)
        ends = [(self._item_of(one.source, scope), self._item_of(one.target, scope)) for one in self.links]
        inside = {n: pair for n, pair in enumerate(ends) if pair[0] != pair[1] and not self.links[n].back}
        _set_columns(items, [(a, b) for a, b in inside.values() if a is not None and b is not None])
        lanes: list[_Item] = []
        ways = {number: _way(items, pair, lanes) for number, pair in inside.items()}
        every = [*items.values(), *lanes]
        columns = _columns(every)
        _order(columns)
        _align(columns)
        outermost = self.parents[scope] is None
        margin, title = (0.0, 0.0) if outermost else (SIDE, TITLE)
        width = _set_x(columns, margin)
        top = min((item.y for item in every), default=0.0)
        for item in every:
            item.y += title - top
        bottom = max((item.y + item.height for item in every), default=title)
        back = BACK if any(one.back and self.scope_of[one.source] == scope for one in self.links) else 0.0
        self.levels[scope] = level = _Level(every, ways, width, bottom + margin + back)
        return level

    def _items(self, scope: str) -> dict[str, _Item]:
        """The boxes and the scopes directly in a scope."""
        items: dict[str, _Item] = {}
        for box in self.sizes:
            key = self._item_of(box, scope)
            if key is None or key in items:
                continue
            if key == f"box {box}":
                items[key] = _Item(*self.sizes[box], box=box)
            else:
                inner = key.removeprefix("scope ")
                level = self._arrange(inner)
                items[key] = _Item(level.width, level.height, scope=inner)
        return items

    def _place(self, scope: str, corners: dict[str, Point], found: Layout) -> None:
        """Adds the places of all that is in a scope."""
        x, y = corners[scope]
        for item in self.levels[scope].items:
            rect = Rect(x + item.x, y + item.y, item.width, item.height)
            if item.box is not None:
                found.boxes[item.box] = rect
            elif item.scope is not None:
                found.scopes[item.scope] = rect
                corners[item.scope] = rect.x, rect.y
                self._place(item.scope, corners, found)

    def _points(self, number: int, scope: str, corners: Mapping[str, Point]) -> list[Point]:
        """The points of a link in a scope, with those in the scopes that it leads into and out of."""
        link, (x, y) = self.links[number], corners[scope]
        found: list[Point] = []
        for item in self.levels[scope].ways[number]:
            left, upper = x + item.x, y + item.y
            if item.scope is not None:
                found += self._points(number, item.scope, corners)
            elif item.box is None:
                found += [(left, upper + LANE / 2), (left + item.width, upper + LANE / 2)]
            elif item.box == link.source:
                found.append((left + item.width, upper + link.out))
            else:
                found.append((left, upper + link.into))
        return found


def _way(items: Mapping[str, _Item], pair: tuple[str | None, str | None], lanes: list[_Item]) -> list[_Item]:
    """The items on the way of a link between two items, None for what is outside of the scope. Adds a lane for each column
    that the link passes, and for a border that it crosses."""
    source, target = (None if key is None else items[key] for key in pair)
    last = max(item.column for item in items.values())
    first = -1 if source is None else source.column + 1
    behind = last + 2 if target is None else target.column
    new = [_Item(0.0, LANE, column=column) for column in range(first, behind)]
    lanes += new
    way = [item for item in (source, *new, target) if item is not None]
    for one, other in pairwise(way):
        one.after.append(other)
        other.before.append(one)
    return way


def _way_back(link: BoxLink, found: Layout, lane: float) -> list[Point]:
    tail, head = found.boxes[link.source], found.boxes[link.target]
    right, left = tail.x + tail.width, head.x
    return [
        (right, tail.y + link.out),
        (right + SIDE / 2, tail.y + link.out),
        (right + SIDE / 2, lane),
        (left - SIDE / 2, lane),
        (left - SIDE / 2, head.y + link.into),
        (left, head.y + link.into),
    ]


def _path(scope: str, parents: Mapping[str, str | None]) -> list[str]:
    """The scopes around a scope, the outermost first, and itself."""
    found, here = [scope], parents[scope]
    while here is not None:
        found.insert(0, here)
        here = parents[here]
    return found


def _set_columns(items: dict[str, _Item], pairs: Sequence[tuple[str, str]]) -> None:
    """Sets the column of each item: one behind the last item that leads to it."""
    into, after = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for a, b in pairs:
        into[b].add(a)
        after[a].add(b)
    waiting, done = dict.fromkeys(items), list[str]()
    while waiting:
        # Where there is a circle the first item of it goes first.
        key = next((one for one in waiting if not into[one] & waiting.keys()), next(iter(waiting)))
        del waiting[key]
        items[key].column = max((items[one].column + 1 for one in into[key] - waiting.keys()), default=0)
        done.append(key)
    for key in reversed(done):
        near = [items[one].column - 1 for one in after[key] if items[one].column > items[key].column]
        if not into[key] and near:
            items[key].column = min(near)  # who has nothing before stands beside what follows


def _columns(items: Sequence[_Item]) -> list[list[_Item]]:
    found: dict[int, list[_Item]] = defaultdict(list)
    for item in items:
        found[item.column].append(item)
    return [found[column] for column in sorted(found)]


def _order(columns: list[list[_Item]]) -> None:
    """Orders each column by the places of the neighbours before it and behind it, so that few links cross."""
    for turn in range(ROUNDS):
        forward = turn % 2 == 0
        for column in columns if forward else reversed(columns):
            places = {id(item): place for near in columns for place, item in enumerate(near)}
            keys = {}
            for place, item in enumerate(column):
                near = item.before if forward else item.after
                keys[id(item)] = sum(places[id(one)] for one in near) / len(near) if near else float(place)
            column.sort(key=lambda item: keys[id(item)])


def _align(columns: list[list[_Item]]) -> None:
    """Sets the height of each item near the mean of its neighbours', without overlap."""
    for column in columns:
        y = 0.0
        for item in column:
            item.y = y
            y += item.height + ROW_GAP
    for turn in range(ROUNDS):
        forward = turn % 2 == 0
        for column in columns if forward else reversed(columns):
            middles = []
            for item in column:
                near = [*item.before, *item.after] if turn >= 2 else item.before if forward else item.after
                middles.append(sum(one.middle for one in near) / len(near) if near else item.middle)
            _spread(column, middles)


def _spread(column: list[_Item], middles: list[float]) -> None:
    """Moves the items of a column as near as possible to these middles, in their order and without overlap: items that
    would overlap move as one block."""
    offset, offsets = 0.0, []
    for item in column:
        offsets.append(offset + item.height / 2)
        offset += item.height + ROW_GAP
    blocks: list[tuple[float, list[int]]] = []
    for place, middle in enumerate(middles):
        blocks.append((middle - offsets[place], [place]))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (mean, members), (other, more) = blocks[-2], blocks[-1]
            size = len(members) + len(more)
            blocks[-2:] = [((mean * len(members) + other * len(more)) / size, members + more)]
    for start, members in blocks:
        for place in members:
            column[place].y = start + offsets[place] - column[place].height / 2


def _set_x(columns: list[list[_Item]], margin: float) -> float:
    """Sets the columns side by side. Returns the width of all."""
    x = 0.0
    for number, column in enumerate(columns):
        width = max(item.width for item in column)
        lanes = width == 0.0  # a border of a scope
        if number == 0 and not lanes:
            x += margin
        for item in column:
            item.x = x
            if item.width == 0.0:
                item.width = width
        last = number == len(columns) - 1
        x += width + (0.0 if last and lanes else margin if last else GAP)
    return x
