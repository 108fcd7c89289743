"""The functions of `pyarrow.compute`, each with the types for which it is exact, or with the reason why it is refused.

A function that is not here is refused by name: a newer Arrow may have more. Each function here has a reference in exact
Python (`search.functions`), with which the search over values compares it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as t

from tailrace.elements.columns import guards
from tailrace.elements.columns.guards import Guard
from tailrace.elements.columns.kinds import family
from tailrace.elements.columns.mixed_types import LOOKUPS, check_together

Families = frozenset[str]


@dataclass(frozen=True)
class Rule:
    """The rule for an exact function: the families of types of each argument. The last entry also holds for all further
    arguments."""

    families: tuple[Families, ...]
    guard: Guard = guards.plainly
    called: str = ""
    """Name of the function that is called instead, which checks for overflow; empty if there is none."""
    together: frozenset[Families] = frozenset()
    """Sets of families that may be mixed among the arguments. Arguments of one family always may."""

    def check(self, name: str, kinds: Sequence[pa.DataType]) -> None:
        """Raises `TypeError` unless the function is known to be exact for arguments of these types."""
        for at, kind in enumerate(kinds):
            if family_of(kind) not in self.families[min(at, len(self.families) - 1)] and not _is_untyped(name, kind):
                listed = ", ".join(map(str, kinds))
                raise TypeError(f"pc.{name} is not known to be exact for {listed}; cast before, or use map_batches")
        check_together(name, kinds)
        if name in _BY_ITSELF:
            return
        several = {kind for kind in kinds[len(self.families) - 1 :] if not t.is_null(kind)}
        there = frozenset(map(family_of, several))
        nested = len(several) > 1 and any(kind.num_fields for kind in several)
        if nested or (len(there) > 1 and not any(there <= mixed for mixed in self.together)):
            listed = ", ".join(map(str, kinds))
            raise TypeError(f"pc.{name} is not known to be exact for {listed} together; cast them to one type")


def family_of(kind: pa.DataType) -> str:
    """The family of a type, finer than `kinds.family`: functions differ for floats of 16 bits and bytes of a fixed size."""
    if t.is_float16(kind):
        return "float16"
    if t.is_fixed_size_binary(kind):
        return "fixed bytes"
    return family(kind)


def _is_untyped(name: str, kind: pa.DataType) -> bool:
    """True if the type is null, which Arrow takes for any type. Not for `choose`, which would read memory out of bounds."""
    return t.is_null(kind) and name != "choose"


def _each(
    names: str, *families: Families, guard: Guard = guards.plainly, mixed: Iterable[Families] = ()
) -> dict[str, Rule]:
    return {name: Rule(families, guard, together=frozenset(mixed)) for name in names.split()}


def _checked_rules(
    names: str, *families: Families, guard: Guard = guards.plainly, mixed: Iterable[Families] = ()
) -> dict[str, Rule]:
    """Rules for functions that wrap around if numbers overflow: they are called in their checked form."""
    return {name: Rule(families, guard, f"{name}_checked", frozenset(mixed)) for name in names.split()}


_BY_ITSELF = frozenset(("make_struct", "atan2", "hypot", "power"))
"""Functions whose arguments are not converted to one type."""
_INTEGER, _TEXT, _BYTES, _BOOLEAN = (frozenset((one,)) for one in ("integer", "text", "bytes", "boolean"))
_REAL = frozenset(("integer", "float"))
_NUMBER = frozenset(("integer", "float", "decimal"))
_MIXED = (_REAL, frozenset(("integer", "decimal")))
_SEQUENCE = _TEXT | _BYTES
_DATED = frozenset(("date", "timestamp"))
_TIMED = frozenset(("timestamp", "time"))
_STAMP = frozenset(("timestamp",))
_SPAN = frozenset(("duration",))
_LATER = tuple(frozenset((one, "duration")) for one in ("timestamp", "duration", "time"))
_ORDERED = _NUMBER | _SEQUENCE | _DATED | _TIMED | _SPAN | _BOOLEAN
_FLAT = _ORDERED | {"fixed bytes", "float16"}
_NESTED = frozenset(("list", "fixed list", "map", "struct"))
_ANY = _FLAT | _NESTED | {"interval", "other"}

EXACT: dict[str, Rule] = {
    # Numbers.
    **_checked_rules("abs negate", _NUMBER),
    **_checked_rules("add", _NUMBER | _STAMP | _SPAN | {"time"}, guard=guards.add_duration, mixed=(*_MIXED, *_LATER)),
    **_checked_rules(
        "subtract", _NUMBER | _STAMP | _SPAN | {"date", "time"}, guard=guards.add_duration, mixed=(*_MIXED, *_LATER)
    ),
    **_checked_rules("multiply", _NUMBER, mixed=_MIXED),
    **_each("divide", _NUMBER, guard=guards.quotient, mixed=_MIXED),
    **_checked_rules("power", _REAL),
    **_checked_rules("shift_left", _INTEGER, guard=guards.shift_left),
    **_checked_rules("shift_right", _INTEGER),
    **_each("bit_wise_and bit_wise_not bit_wise_or bit_wise_xor", _INTEGER),
    **_each("sign", _REAL),
    **_each("ceil floor trunc round round_to_multiple", _NUMBER, guard=guards.round_value),
    **_each("is_finite is_inf is_nan", _NUMBER),
    **_each("sqrt exp expm1 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh ln log10 log1p log2", _REAL),
    **_each("atan2 hypot", _REAL),
    # Comparisons and choices.
    **_each("equal not_equal less less_equal greater greater_equal", _ORDERED, mixed=(*_MIXED, _DATED)),
    **_each("max_element_wise min_element_wise", _ORDERED - _BOOLEAN - _SEQUENCE, mixed=_MIXED),
    **_each("and and_kleene and_not and_not_kleene or or_kleene xor invert", _BOOLEAN),
    **_each("is_null", _ANY),
    **_each("is_valid true_unless_null", _ANY),
    **_each("coalesce", _ORDERED, mixed=(*_MIXED, _DATED)),
    **_each("if_else", _BOOLEAN, _FLAT | _NESTED, mixed=(*_MIXED, _DATED)),
    **_each("case_when", frozenset(("struct",)), _FLAT | _NESTED, mixed=(*_MIXED, _DATED)),
    **_each("choose", _INTEGER, _FLAT, guard=guards.choose, mixed=(_REAL,)),
    **_each("is_in index_in", _ORDERED),
    **_each("cast", _ANY | {"null"}, guard=guards.cast),
    # Texts and bytes.
    **_each(
        "utf8_upper utf8_lower utf8_swapcase utf8_capitalize utf8_title utf8_reverse utf8_length utf8_normalize", _TEXT
    ),
    **_each("utf8_is_alnum utf8_is_alpha utf8_is_decimal utf8_is_lower utf8_is_numeric utf8_is_printable", _TEXT),
    **_each("utf8_is_space utf8_is_title utf8_is_upper utf8_center utf8_lpad utf8_rpad utf8_zero_fill", _TEXT),
    **_each("utf8_trim utf8_ltrim utf8_rtrim utf8_trim_whitespace utf8_ltrim_whitespace utf8_rtrim_whitespace", _TEXT),
    **_each("utf8_slice_codeunits utf8_replace_slice", _TEXT),
    **_each("ascii_upper ascii_lower ascii_swapcase ascii_capitalize ascii_title ascii_reverse string_is_ascii", _TEXT),
    **_each("ascii_is_alnum ascii_is_alpha ascii_is_decimal ascii_is_lower ascii_is_printable ascii_is_space", _TEXT),
    **_each("ascii_is_title ascii_is_upper ascii_trim ascii_ltrim ascii_rtrim ascii_trim_whitespace", _TEXT),
    **_each("ascii_ltrim_whitespace ascii_rtrim_whitespace", _TEXT),
    **_each("match_like match_substring_regex find_substring_regex extract_regex", _TEXT),
    **_each("count_substring_regex split_pattern_regex replace_substring_regex", _TEXT, guard=guards.each_match),
    **_each("starts_with ends_with match_substring find_substring", _SEQUENCE),
    **_each("count_substring split_pattern replace_substring", _SEQUENCE, guard=guards.each_place),
    **_each("binary_join_element_wise", _SEQUENCE, guard=guards.join_texts),
    **_each("binary_length", _SEQUENCE | {"fixed bytes"}),
    **_each("binary_reverse binary_replace_slice", _BYTES),
    # Times.
    **_each(
        "year month day quarter day_of_week day_of_year iso_calendar iso_week iso_year", _DATED, guard=guards.calendar
    ),
    **_each("us_week us_year is_leap_year year_month_day strftime", _DATED, guard=guards.calendar),
    **_each("days_between weeks_between quarters_between years_between", _DATED, guard=guards.calendar),
    **_each("second", _TIMED, guard=guards.second),
    **_each("hour minute millisecond microsecond nanosecond subsecond", _TIMED, guard=guards.calendar),
    **_each("hours_between minutes_between seconds_between", _DATED | _TIMED, guard=guards.calendar),
    **_each("milliseconds_between microseconds_between", _DATED | _TIMED, guard=guards.calendar),
    **_each("nanoseconds_between", _DATED | _TIMED, guard=guards.nanoseconds_between),
    **_each("is_dst local_timestamp", _STAMP, guard=guards.calendar),
    **_each("assume_timezone", _STAMP, guard=guards.zone_assumed),
    **_each("floor_temporal ceil_temporal", _DATED, guard=guards.unit_bound),
    **_each("strptime", _TEXT, guard=guards.parse_time),
    # Nested types.
    **_each("list_element", frozenset(("list", "fixed list")), _INTEGER),
    **_each("list_value_length list_slice", frozenset(("list", "fixed list"))),
    **_each("map_lookup", frozenset(("map",))),
    **_each("struct_field", frozenset(("struct",))),
    **_each("make_struct", _ANY | {"null"}),
}
"""Name of a function that works record by record and is exact -> its rule."""

EXACT = {**EXACT, **{rule.called: rule for rule in EXACT.values() if rule.called}, "divide_checked": EXACT["divide"]}

_CHECKED_TOO = "acos asin cos sin tan sqrt ln log10 log1p log2 acosh atanh logb modulo remainder"
_INTERVALS = "Arrow has no type for what it gives that Python can read; use pc.days_between and pc.microseconds_between"

REFUSED: dict[str, str] = {
    **{f"{name}_checked": "" for name in _CHECKED_TOO.split()},
    "random": "it gives other numbers when a job goes on after a failure; draw in map, or in a source",
    "logb": "its rounding is not known; use pc.ln(x) / pc.ln(base)",
    "modulo": "",
    "remainder": "",
    "round_binary": "it fails, or hangs, for large numbers of digits; use pc.round(x, ndigits=...)",
    "round_temporal": "what is in the middle is not known to be exact; use pc.floor_temporal or pc.ceil_temporal",
    "binary_repeat": "it overflows where the texts become too long",
    "binary_slice": "it reads outside of values that are shorter",
    "utf8_split_whitespace": "it finds one part too many behind several spaces; use pc.split_pattern_regex",
    "ascii_split_whitespace": "it finds one part too many behind several spaces; use pc.split_pattern_regex",
    "ascii_center": "it counts bytes; use pc.utf8_center",
    "ascii_lpad": "it counts bytes; use pc.utf8_lpad",
    "ascii_rpad": "it counts bytes; use pc.utf8_rpad",
    "week": "which days are in a week of another year depends on three options; use pc.iso_week or pc.us_week",
    "binary_join": "its results depend on the batch; use pc.binary_join_element_wise",
    "utf8_is_digit": "it takes fractions and numerals for digits; use pc.utf8_is_decimal",
    "extract_regex_span": "its places are in bytes, and some are missing; use pc.extract_regex",
    "day_time_interval_between": _INTERVALS,
    "month_interval_between": _INTERVALS,
    "month_day_nano_interval_between": _INTERVALS,
}
"""Name of a function that works record by record and is refused -> the reason; empty: it is not known to be exact."""

_WHOLE = """
all any approximate_median array_filter array_sort_indices array_take count count_all count_distinct cumulative_max
cumulative_mean cumulative_min cumulative_prod cumulative_prod_checked cumulative_sum cumulative_sum_checked
dictionary_decode dictionary_encode drop_null fill_null_backward fill_null_forward filter first first_last hash_all
hash_any hash_approximate_median hash_count hash_count_all hash_count_distinct hash_distinct hash_first hash_first_last
hash_kurtosis hash_last hash_list hash_max hash_mean hash_min hash_min_max hash_one hash_pivot_wider hash_product
hash_skew hash_stddev hash_sum hash_tdigest hash_variance index index_in_meta_binary indices_nonzero
inverse_permutation is_in_meta_binary kurtosis last list_flatten list_parent_indices max mean min min_max mode
pairwise_diff pairwise_diff_checked partition_nth_indices pivot_wider product quantile rank rank_normal rank_quantile
replace_with_mask run_end_decode run_end_encode scatter search_sorted select_k_unstable skew sort_indices stddev sum
take tdigest unique value_counts variance winsorize
"""
WHOLE = frozenset(_WHOLE.split())
"""Functions of a whole column: their results depend on where one batch ends and the next begins."""


SINCE = {"utf8_normalize": 26, "find_substring_regex": 26}
"""Function that is wrong in an older pyarrow (18) -> version from which on it is known to be right."""


def rule_of(name: str) -> Rule:
    """The rule for a function. Raises `ValueError` for one that is refused."""
    rule = EXACT.get(name)
    if int(pa.__version__.partition(".")[0]) < SINCE.get(name, 0):
        raise ValueError(f"pc.{name} needs pyarrow {SINCE[name]}, and this is {pa.__version__}; use map_batches")
    if rule is not None:
        return rule
    if name in WHOLE:
        raise ValueError(
            f"pc.{name} does not work record by record, and a stream has no whole to apply it to; use an aggregate, or "
            f"map_batches for what is done within a batch"
        )
    if name in REFUSED:
        raise ValueError(f"pc.{name} is refused: {REFUSED[name] or 'it is not known to be exact'}; or use map_batches")
    raise ValueError(
        f"pc.{name} is no function that is known here to be exact, record by record; it, or a function of your own, goes "
        f"into map_batches"
    )


assert set(EXACT) > LOOKUPS
