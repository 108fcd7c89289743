"""Every function of `pyarrow.compute` is exact, guarded or refused by name: each that is not refused is compared with exact
Python. `python -m search.values --only functions` does more of it."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from search.functions.checking import check_function
from search.functions.table import CASES, installed_functions
from tailrace.elements.columns import guards
from tailrace.elements.columns.expressions import Formula
from tailrace.elements.columns.functions import EXACT, REFUSED, WHOLE, Rule, family_of

OWN = {name for name in EXACT if not name.endswith("_checked")}
SEEDS = 12


def test_each_function_of_this_pyarrow_is_in_the_table() -> None:
    """A new one is refused by name until it has a reference, or a reason."""
    known = [*EXACT, *REFUSED, *WHOLE]
    assert set(pc.list_functions()) <= set(known)
    assert len(set(known)) == len(known)
    with pytest.raises(ValueError, match=r"pc\.brand_new is no function that is known here to be exact.*map_batches"):
        Formula(pc.Expression._call("brand_new", [pc.field("x")]))


def test_what_depends_on_a_whole_column_is_no_function_of_records() -> None:
    installed = set(pc.list_functions())
    for name in installed & WHOLE:
        assert pc.get_function(name).kind != "scalar", name
    for name in installed & (set(EXACT) - {"cast"}):
        assert pc.get_function(name).kind == "scalar" and pc.get_function(name).arity != 0, name


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_exact_is_refused_by_name(name: str) -> None:
    arguments = [] if name == "random" else [pc.field("x")]
    with pytest.raises(ValueError, match=rf"pc\.{name} is refused: .*use map_batches"):
        Formula(pc.Expression._call(name, arguments))


@pytest.mark.parametrize("name", installed_functions())
def test_it_gives_what_exact_python_gives(name: str) -> None:
    """In any batches, of slices of columns, with constants among the arguments."""
    ran = 0
    for seed in range(SEEDS):
        random = Random(f"{name} {seed}")
        ran += check_function(random, name, random.choice(CASES[name])) is None
    assert ran > 1


_MASKS = {"interval", "other"}
ELSEWHERE = {
    **{name: {*_MASKS, "null"} for name in ("is_null", "is_valid", "true_unless_null", "make_struct")},
    "cast": {*_MASKS, "null", "float16", "list", "fixed list", "map", "struct"},
}
"""Families that no reference draws: those do not look at values, and casts within a family have a search of their own."""


def test_each_function_has_a_reference_for_all_types_that_it_takes() -> None:
    assert set(CASES) == OWN
    for name, rule in EXACT.items():
        if name not in CASES:
            continue
        drawn: list[set[str]] = [set() for _ in rule.families]
        for seed in range(1500):
            random = Random(seed)
            kinds = list(random.choice(CASES[name]).kinds(random))
            for at, kind in enumerate(kinds):
                drawn[min(at, len(drawn) - 1)].add(family_of(kind))
        for at, families in enumerate(rule.families):
            assert families - drawn[at] <= ELSEWHERE.get(name, set()), (name, at, families - drawn[at])


GUARDED = {name: rule for name, rule in EXACT.items() if rule.guard is not guards.plainly and name in OWN}
BY_NAME_ONLY = {
    "floor_temporal",
    "ceil_temporal",
    "binary_join_element_wise",
    "microsecond",
    "nanosecond",
    "split_pattern",
}
"""Guards that refuse options, types or years that no reference draws, or for which Arrow is right, or refuses them, too."""
UNSAFE = {"split_pattern_regex", "choose"}
"""Guards without which Arrow looks for matches of nothing for ever, or reads memory that is none of the column's."""


@pytest.mark.parametrize("name", sorted(set(GUARDED) - BY_NAME_ONLY - UNSAFE))
def test_each_guard_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the comparison finds a value that Arrow changes."""
    rule = GUARDED[name]
    monkeypatch.setitem(EXACT, name, Rule(rule.families, called=rule.called, together=rule.together))
    with pytest.raises(AssertionError, match=r" (gave|raised) "):
        for seed in range(600):
            random = Random(f"{name} {seed}")
            check_function(random, name, random.choice(CASES[name]))


@pytest.mark.parametrize(
    "kinds", [(pa.float16(), pa.int64()), (pa.null(), pa.bool_()), (pa.decimal128(5, 2), pa.float64())], ids=str
)
def test_a_choice_between_types_that_are_not_alike_is_refused(kinds: tuple[pa.DataType, pa.DataType]) -> None:
    """Arrow read what is not there; of a null it died."""
    formula = Formula(pc.choose(pc.field("i"), pc.field("a"), pc.field("b")))
    with pytest.raises(TypeError, match=r"pc\.choose is (not known to be exact for|given)"):
        formula.type_in(pa.schema([("i", pa.int64()), ("a", kinds[0]), ("b", kinds[1])]))


def test_a_function_that_an_older_pyarrow_computes_wrongly_is_refused_there(monkeypatch: pytest.MonkeyPatch) -> None:
    normal = pc.utf8_normalize(pc.field("x"), "NFKC")
    assert Formula(normal).fields == ("x",)
    monkeypatch.setattr(pa, "__version__", "18.0.0")
    with pytest.raises(ValueError, match=r"pc\.utf8_normalize needs pyarrow 26, and this is 18\.0\.0; use map_batches"):
        Formula(normal)
