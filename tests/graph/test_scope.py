"""A scope names the loops around an operator."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr


def test_the_outermost_scope_is_of_level_zero() -> None:
    assert tr.StreamScope().level == 0
    assert tr.StreamScope() == tr.StreamScope()


def test_each_nest_gives_another_scope() -> None:
    scope = tr.StreamScope()
    first, second = scope.nest(), scope.nest()
    assert first != second
    assert (first.level, second.level) == (1, 1)


def test_unnest_gives_the_very_scope_around() -> None:
    outer = tr.StreamScope().nest()
    inner = outer.nest()
    assert inner.unnest() is outer
    assert inner.unnest().nest() not in (inner, outer.nest())


def test_the_outermost_scope_is_in_no_other() -> None:
    with pytest.raises(tr.ScopeError, match="no scope is around the outermost one"):
        tr.StreamScope().unnest()


def test_every_level_around_a_scope_can_be_had() -> None:
    root = tr.StreamScope()
    one = root.nest()
    two = one.nest()
    three = two.nest()
    assert [three.at_level(level) for level in range(4)] == [root, one, two, three]
    assert three.at_level(0) is root
    assert three.at_level(3) is three


@pytest.mark.parametrize("level", [-1, 2])
def test_a_level_that_a_scope_does_not_have_is_refused(level: int) -> None:
    with pytest.raises(tr.ScopeError, match=f"a scope of level 1 has none of level {level} around it"):
        tr.StreamScope().nest().at_level(level)


def test_outer_is_less_than_inner_and_neighbours_are_not_comparable() -> None:
    root = tr.StreamScope()
    left, right = root.nest(), root.nest()
    inner = left.nest()
    assert root < left < inner and inner > left > root
    assert inner.is_inner_of(root) and root.is_outer_of(inner)
    assert not inner.is_inner_of(inner) and not inner.is_outer_of(inner)
    assert inner <= inner and inner >= inner and not inner < inner
    for a, b in ((left, right), (inner, right)):
        assert not (a < b or a > b or a <= b or a >= b or a == b)


def test_a_scope_is_only_compared_with_scopes() -> None:
    assert tr.StreamScope() != ()
    with pytest.raises(TypeError):
        assert tr.StreamScope() < 1  # type: ignore[operator]


def test_a_scope_does_not_change() -> None:
    scope = tr.StreamScope()
    with pytest.raises(AttributeError, match="immutable"):
        scope._path = (1,)
    with pytest.raises(AttributeError, match="immutable"):
        del scope._path
    with pytest.raises(AttributeError):
        scope.level = 3  # type: ignore[misc]


def test_equal_scopes_hash_equally() -> None:
    scope = tr.StreamScope().nest().nest()
    assert {scope: 1}[pickle.loads(pickle.dumps(scope))] == 1


def test_a_scope_that_was_pickled_makes_no_scope_that_exists() -> None:
    outer = tr.StreamScope().nest()
    inner = outer.nest()
    again, inner_again = pickle.loads(pickle.dumps((outer, inner)))
    assert (again, inner_again) == (outer, inner)
    assert inner_again.unnest() is again
    assert again.nest() != inner


def test_a_scope_of_a_path_makes_no_scope_that_exists() -> None:
    scope = tr.StreamScope((0, 2))
    assert scope.unnest().nest() == tr.StreamScope((0, 3))


def test_a_copy_of_a_scope_is_the_scope() -> None:
    scope = tr.StreamScope().nest()
    assert copy.copy(scope) is scope
    assert copy.deepcopy([scope])[0] is scope


def test_a_scope_tells_its_path() -> None:
    scope = tr.StreamScope().nest()
    scope.nest()
    assert repr(scope.nest()) == "StreamScope(0.1)"


@given(st.lists(st.integers(0, 1_000), max_size=60))
def test_however_one_walks_no_scope_is_made_twice(steps: list[int]) -> None:
    """At each step: from any scope that there is, up to any level, and one down."""
    made = [tr.StreamScope()]
    for step in steps:
        scope = made[step % len(made)]
        fresh = scope.at_level(step % (scope.level + 1)).nest()
        assert fresh not in made
        made.append(fresh)
    assert len(set(made)) == len(made)
    assert all((a < b) == any(b.at_level(n) == a for n in range(b.level)) for a in made for b in made)
