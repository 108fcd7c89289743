"""Results that Arrow gives without an error, and that are wrong: each is refused, or computed in another way."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailrace.elements.columns.expressions import Formula

x, y = pc.field("x"), pc.field("y")


def made(expression: pc.Expression, values: list[Any], kind: pa.DataType, more: Any = None) -> list[Any]:
    columns = [pa.array(values, kind), *([] if more is None else [more])]
    found: list[Any] = Formula(expression)(
        pa.RecordBatch.from_arrays(columns, names=["x", "y"][: len(columns)])
    ).to_pylist()
    return found


def test_times_that_are_far_apart_overflow() -> None:
    apart = pc.nanoseconds_between(x, pc.scalar(dt.date(2024, 1, 1)))
    with pytest.raises(pa.ArrowInvalid, match="overflow of nanoseconds"):
        made(apart, [dt.date(2024, 1, 2), dt.date(1600, 1, 1)], pa.date32())
    assert made(apart, [dt.date(2024, 1, 2), None], pa.date32()) == [-86_400 * 10**9, None]


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_time_of_day_does_not_move_by_the_last_bits_of_a_duration(unit: str) -> None:
    """Fifty days later Arrow gave the same time again: of the duration it took 32 bits."""
    noon, wide = dt.time(12), pa.array([2**32, 2**32], pa.duration(unit))
    for expression in (pc.add(x, y), pc.add(y, x), pc.subtract(x, y)):
        with pytest.raises(pa.ArrowInvalid, match="a time of day moves within its day"):
            made(expression, [noon, noon], pa.time32(unit), wide)
        assert made(expression, [None, None], pa.time32(unit), wide) == [None, None]
    hour = pa.scalar(dt.timedelta(hours=1), pa.duration(unit))
    assert made(pc.subtract(x, pc.scalar(hour)), [noon], pa.time32(unit)) == [dt.time(11)]
    assert made(pc.add(pc.scalar(pa.scalar(noon, pa.time32(unit))), x), [3_600], pa.duration("s")) == [dt.time(13)]


def test_bits_that_are_pushed_out_overflow() -> None:
    for value, bits, kind in (
        (64, 1, pa.int8()),
        (2**62, 2, pa.int64()),
        (255, 1, pa.uint8()),
        (-(2**31), 1, pa.int32()),
    ):
        with pytest.raises(pa.ArrowInvalid, match="overflow"):
            made(pc.shift_left(x, pc.scalar(pa.scalar(bits, kind))), [value], kind)
    assert made(pc.shift_left(x, pc.scalar(2)), [2**60, -1], pa.int64()) == [2**62, -4]


@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.decimal128(37, 2), pa.decimal128(38, 2)], ids=str)
def test_a_decimal_without_room_for_its_rounding_fails_in_any_batch(kind: pa.DataType) -> None:
    """Arrow gave 0.00, unless it was the last of its batch."""
    most = Decimal((0, (9,) * kind.precision, -2))
    for values in ([most, Decimal("1.50")], [Decimal("1.50"), most], [most]):
        for expression in (pc.round(x, 0), pc.ceil(x), pc.round_to_multiple(x, pa.scalar(Decimal(5)))):
            with pytest.raises(ValueError, match=r"fit|digits"):
                made(expression, values, kind)
    assert made(pc.round(x, 0), [Decimal("2.50"), None], kind) == [Decimal(2), None]
    with pytest.raises(TypeError, match="cast it to a type of at most 38 digits"):
        Formula(pc.floor(x)).type_in(pa.schema([("x", pa.decimal256(64, 19))]))


def test_the_clocks_of_time_zones_are_known_until_2037() -> None:
    """In the summer of 2054 the hour in New York was one less for Arrow."""
    kind = pa.timestamp("s", "America/New_York")
    summer = [dt.datetime(year, 7, 1, 12, tzinfo=dt.UTC) for year in (2037, 2054)]
    assert made(pc.hour(x), summer[:1], kind) == [8]
    for expression in (pc.hour(x), pc.local_timestamp(x), pc.is_dst(x), pc.strftime(x, "%H")):
        with pytest.raises(pa.ArrowInvalid, match="years 1 to 2037"):
            made(expression, summer, kind)
    assert made(pc.hour(x), summer, pa.timestamp("s", "UTC")) == [12, 12]
    with pytest.raises(pa.ArrowInvalid, match="years 1 to 9999"):
        made(pc.year(x), [2**50], pa.timestamp("s"))


def test_a_day_that_is_not_in_the_calendar_is_no_time() -> None:
    parsed = pc.strptime(x, "%Y-%m-%d", "s")
    assert made(parsed, ["2024-02-29", "2024-3-1", None], pa.string())[0] == dt.datetime(2024, 2, 29)
    with pytest.raises(pa.ArrowInvalid, match="no such time in the format '%Y-%m-%d'"):
        made(parsed, ["2024-02-29", "2024-02-31"], pa.string())


def test_a_decimal_becomes_the_nearest_float() -> None:
    values = [Decimal(text) for text in ("0.1", "19.99", "123456789012345678.91", "-0.30")]
    assert made(x.cast("double"), values, pa.decimal128(38, 2)) == [float(value) for value in values]
    with pytest.raises(ValueError, match="before the decimal point"):
        made(x.cast(pa.decimal128(38, 36)), [Decimal("975712434024117.12")], pa.decimal128(28, 10))
    assert made(x.cast("int8", safe=False), [300], pa.int64()) == [44]  # as it was requested


def test_a_result_has_a_value_for_each_record() -> None:
    for keeps in (pc.Expression._call("random", [], pc.RandomOptions()), pc.Expression._call("make_struct", [])):
        with pytest.raises(ValueError, match=r"pc\.(random is refused|make_struct is given no column)"):
            Formula(keeps)
    with pytest.raises(TypeError, match="loses records"):
        made(pc.binary_join_element_wise(x, x, "-", null_handling="skip"), ["a", None], pa.string())


CONSTANTS = [
    pa.scalar(["a"]),
    pa.scalar([]),
    pa.scalar([1], pa.large_list(pa.int64())),
    pa.scalar([1, 2], pa.list_(pa.int64(), 2)),
    pa.scalar([("a", 1)], pa.map_(pa.string(), pa.int64())),
    pa.scalar({"x": [1]}),
    pa.scalar(None, pa.list_(pa.int8())),
    pa.array(["a"]).dictionary_encode()[0],
]


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda one: str(one.type))
def test_any_constant_is_a_column(constant: pa.Scalar) -> None:
    """A constant is a column where there is no record, too: Arrow cannot repeat a list no times."""
    formula = Formula(pc.scalar(constant))
    batch = pa.RecordBatch.from_pydict({"x": [1, 2]})
    assert formula(batch).to_pylist() == [constant.as_py()] * 2
    assert formula.type_in(batch.schema) == formula(batch).type and len(formula(batch.slice(0, 0))) == 0


@pytest.mark.parametrize(
    "pattern", ["^a", "(?m)^a", r"\Aa", r"\ba", r"\Ba", "b|(^a)", r"[\]^]^a", "[]a]^", r"\Q[\E^a[b]", r"\\\ba"]
)
def test_an_expression_that_looks_back_is_refused_where_matches_follow_each_other(pattern: str) -> None:
    """Arrow found `^a` three times in "aaa": it took what is behind a match for the beginning of a text."""
    texts = pa.schema([("x", pa.string())])
    for expression in (
        pc.count_substring_regex(x, pattern),
        pc.split_pattern_regex(x, pattern),
        pc.replace_substring_regex(x, pattern, "-", max_replacements=2),
    ):
        with pytest.raises(TypeError, match="is taken to hold behind each match, too"):
            Formula(expression).type_in(texts)
    assert made(pc.replace_substring_regex(x, "^a", "-"), ["aaa", "ba", None], pa.string()) == ["-aa", "ba", None]
    assert made(pc.match_substring_regex(x, "^a"), ["aaa", "ba", None], pa.string()) == [True, False, None]


@pytest.mark.parametrize("pattern", ["[^a]", r"\^", r"[[:alpha:]^]", "a$", r"a\z", r"[]^]"])
def test_an_expression_that_does_not_look_back_is_taken(pattern: str) -> None:
    assert Formula(pc.count_substring_regex(x, pattern)).type_in(pa.schema([("x", pa.string())])) == pa.int32()


def test_a_pattern_that_matches_nothing_at_all_is_refused_where_matches_follow_each_other() -> None:
    """Arrow never came back from some of these, and replaced at one place twice."""
    texts = pa.schema([("x", pa.string())])
    for pattern in ("x*", "$", "", "(a?)"):
        for expression in (
            pc.count_substring_regex(x, pattern),
            pc.split_pattern_regex(x, pattern),
            pc.replace_substring_regex(x, pattern, "-", max_replacements=2),
        ):
            with pytest.raises(TypeError, match="may match nothing"):
                Formula(expression).type_in(texts)
    for expression in (
        pc.replace_substring(x, "", "-"),
        pc.replace_substring(x, "", "-", max_replacements=2),
        pc.count_substring(x, ""),
        pc.split_pattern(x, ""),
    ):
        with pytest.raises(TypeError, match="an empty pattern is everywhere"):
            Formula(expression).type_in(texts)


def test_a_number_in_a_text_is_that_number_or_refused() -> None:
    """Arrow read "0x80" as -128, "1e39" as infinite and "1e-400" as zero."""
    text = pa.string()
    for digits, kind in (("0x80", pa.int8()), ("0xFFFFFFFFFFFFFFFF", pa.int64()), ("0X1f", pa.uint8())):
        with pytest.raises(pa.ArrowInvalid, match="digits of the base 16"):
            made(x.cast(kind), ["1", digits], text)
    for digits, kind in (("1e39", pa.float32()), ("-1e400", pa.float64()), ("0.01e-400", pa.float64())):
        with pytest.raises(pa.ArrowInvalid, match=f"out of the range of {kind}"):
            made(x.cast(kind), ["1", digits], text)
    assert made(x.cast(pa.float32()), ["inf", "-0", "0e5", "0.00", "3e38", None], text)[:2] == [float("inf"), 0.0]
    assert made(x.cast(pa.float64()), ["1e-320", "-inf", "1e308"], pa.large_string()) == [1e-320, float("-inf"), 1e308]
    assert made(x.cast(pa.int8()), ["-128", "007", None], text) == [-128, 7, None]


def test_a_decimal_that_no_float_is_near_is_refused() -> None:
    large, kind = Decimal(10) ** 60, pa.decimal256(70, 2)
    with pytest.raises(pa.ArrowInvalid, match="out of the range of float"):
        made(x.cast(pa.float32()), [Decimal(1), large], kind)
    assert made(x.cast(pa.float64()), [Decimal("0.00"), large, None], kind) == [0.0, 1e60, None]
