"""Scopes: the loops that an operator is in (FLIP-15, part I)."""

from __future__ import annotations

from tailrace.errors import ScopeError


class StreamScope:
    """The chain of loops around an operator, the outermost first. Immutable; equal for operators of the very same loop.

    `StreamScope()` is the scope outside of loops, of level 0. `a < b` means that `a` is an outer scope of `b`. If neither of
    two loops is in the other, their scopes are not comparable: neither `<` nor `>` holds.

    Invariant I1: `scope.nest()` returns a scope that equals no other one of its outermost scope, however `scope` was
    reached: `unnest` and `at_level` return the very object whose `nest` made this one, and a copy is the scope itself.
    """

    __slots__ = ("_nested", "_outer", "_path")

    _path: tuple[int, ...]
    _outer: StreamScope | None
    """The scope around this one: the very object, because it counts the scopes that are nested in it."""
    _nested: list[int]
    """Number of scopes that were nested in this one, in a cell: the scope itself never changes."""

    def __init__(self, _path: tuple[int, ...] = ()) -> None:
        path = tuple(_path)
        self._set(path, StreamScope(path[:-1]) if path else None, 0)
        if self._outer is not None:
            self._outer._nested[0] = path[-1] + 1

    def _set(self, path: tuple[int, ...], outer: StreamScope | None, nested: int) -> None:
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_outer", outer)
        object.__setattr__(self, "_nested", [nested])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a StreamScope is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a StreamScope is immutable")

    @property
    def level(self) -> int:
        """The number of scopes around this one."""
        return len(self._path)

    def nest(self) -> StreamScope:
        """A new scope in this one, a different one at each call."""
        index = self._nested[0]
        self._nested[0] += 1
        return _scope(self, index, 0)

    def unnest(self) -> StreamScope:
        """The scope around this one. Raises `ScopeError` for the outermost."""
        if self._outer is None:
            raise ScopeError("no scope is around the outermost one")
        return self._outer

    def at_level(self, level: int) -> StreamScope:
        """The scope of this level around this one, or this one itself. Raises `ScopeError` for a level that is deeper."""
        if not 0 <= level <= self.level:
            raise ScopeError(f"a scope of level {self.level} has none of level {level} around it")
        found = self
        while found.level > level:
            found = found.unnest()
        return found

    def is_inner_of(self, other: StreamScope) -> bool:
        """True if this scope is somewhere in the other one."""
        return self.level > other.level and self._path[: other.level] == other._path

    def is_outer_of(self, other: StreamScope) -> bool:
        """True if the other scope is somewhere in this one."""
        return other.is_inner_of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamScope) and self._path == other._path

    def __hash__(self) -> int:
        return hash(("StreamScope", self._path))

    def __lt__(self, other: StreamScope) -> bool:
        return self.is_outer_of(other) if isinstance(other, StreamScope) else NotImplemented

    def __le__(self, other: StreamScope) -> bool:
        return self == other or self < other if isinstance(other, StreamScope) else NotImplemented

    def __gt__(self, other: StreamScope) -> bool:
        return self.is_inner_of(other) if isinstance(other, StreamScope) else NotImplemented

    def __ge__(self, other: StreamScope) -> bool:
        return self == other or self > other if isinstance(other, StreamScope) else NotImplemented

    def __copy__(self) -> StreamScope:
        return self

    def __deepcopy__(self, memo: object) -> StreamScope:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (_scope, (self._outer, self._path[-1] if self._path else 0, self._nested[0]))

    def __str__(self) -> str:
        return ".".join(map(str, self._path))

    def __repr__(self) -> str:
        return f"StreamScope({self})"


def _scope(outer: StreamScope | None, index: int, nested: int) -> StreamScope:
    """The `index`-th scope in `outer`, with `nested` scopes in it. For `nest` and for pickle: unpickled scopes share their
    outer scope as before."""
    made = StreamScope.__new__(StreamScope)
    made._set((*outer._path, index) if outer is not None else (), outer, nested)
    return made


def path_of(scope: StreamScope) -> tuple[int, ...]:
    """The scope as a value that can be sent: its number in the scope around it, behind the path of that one."""
    return scope._path


NO_LOOP = StreamScope()
"""The scope outside of loops."""
