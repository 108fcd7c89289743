"""Expressions of pyarrow.compute on single batches: the same values as Arrow's own engine gives, exactly or not at all."""

import datetime as dt
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.columns.expressions import Formula, first_failing, require
from tailrace.elements.columns.misfit import Misfit

x, y, d, s, t, f, n = (pc.field(name) for name in ("x", "y", "d", "s", "t", "f", "n"))
SCHEMA = pa.schema(
    [
        ("x", pa.int64()),
        ("y", pa.int64()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("f", pa.bool_()),
        ("n", pa.struct([("a", pa.struct([("b", pa.int64())]))])),
        ("m", pa.decimal128(10, 2)),
        ("l", pa.list_(pa.int64())),
    ]
)
BATCH = pa.RecordBatch.from_pylist(
    [
        {
            "x": 3, "y": -2, "d": 0.25, "s": "Ärger", "t": dt.datetime(2026, 1, 31, 23, 59, tzinfo=dt.UTC), "f": True,
            "n": {"a": {"b": 7}}, "m": Decimal("1.25"), "l": [1, 2],
        },
        {"x": 1 << 40, "y": 5, "d": float("nan"), "s": "", "f": False, "n": {"a": None}, "m": Decimal("-3.00"), "l": []},
        {"y": 0, "d": float("inf"), "s": "a,b"},
    ],
    schema=SCHEMA,
)  # fmt: skip

SAME = [
    x, x + y, x - y, x * y, y > x, (x > 2) & (y < 3), (x > 2) | f, ~f, x == y, x != y, d + d, x.is_null(),
    x.is_valid(), d.is_nan(), x.isin([3, None]), s.isin(["", "a,b"]), x.cast("double"), x.cast(pa.decimal128(30, 2)),
    d.cast("float32"), t.cast("date32"), pc.if_else(f, x, y), pc.coalesce(x, y),
    pc.case_when(pc.make_struct(f, y > 3), x, y), pc.utf8_upper(s), pc.utf8_length(s),
    pc.binary_join_element_wise(s, s, "-"), pc.split_pattern(s, ","), pc.match_substring_regex(s, "^a"),
    pc.replace_substring(s, "a", "b"), pc.utf8_slice_codeunits(s, 0, 2), pc.strftime(t, "%Y-%m-%d"), pc.year(t),
    pc.floor_temporal(t, unit="month"), pc.field("n", "a", "b"), pc.struct_field(n, ["a"]),
    pc.list_value_length(pc.field("l")), pc.list_slice(pc.field("l"), 0, 1), pc.round(d, 1),
    pc.min_element_wise(x, y, skip_nulls=False), pc.field("m") * pc.field("m"), pc.field("m") + pc.field("m"),
    pc.index_in(x, value_set=pa.array([3, 4])), pc.choose(y.cast("int64") * 0, x, y), pc.bit_wise_and(x, y),
    pc.sign(y), pc.scalar("k"), pc.scalar(None), pc.scalar(Decimal("1.5")), pc.scalar(dt.date(2026, 1, 1)),
    pc.make_struct(x, s, field_names=["p", "q"]),
]  # fmt: skip


def by_arrow(expression: pc.Expression, batch: pa.RecordBatch) -> pa.Array:
    """What Arrow's own engine makes of it."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["made"]))
    made = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    return made.column("made").combine_chunks()


@pytest.mark.parametrize("expression", SAME, ids=str)
def test_it_gives_what_arrow_gives(expression: pc.Expression) -> None:
    expected = by_arrow(expression, BATCH)
    formula = Formula(expression)
    made = formula(BATCH)
    assert made.type == expected.type == formula.type_in(SCHEMA)
    assert repr(made.to_pylist()) == repr(expected.to_pylist())
    assert Formula(pickle.loads(pickle.dumps(expression)))(BATCH).type == made.type
    assert len(formula(BATCH.slice(0, 0))) == 0


numbers = st.one_of(st.none(), st.integers(-(1 << 62), (1 << 62) - 1))
columns = st.lists(st.tuples(numbers, numbers, st.one_of(st.none(), st.floats(width=64))), max_size=6)


def grown(inner: Any) -> Any:
    """Larger expressions of whole numbers, with their values computed in Python beside them."""

    def both(name: str, python: Callable[[Any, Any], Any]) -> Any:
        return st.tuples(inner, inner).map(
            lambda two: (
                getattr(pc, name)(two[0][0], two[1][0]),
                lambda row: None if None in (a := two[0][1](row), b := two[1][1](row)) else python(a, b),
            )
        )

    return st.one_of(
        both("add", lambda a, b: a + b),
        both("subtract", lambda a, b: a - b),
        both("multiply", lambda a, b: a * b),
    )


leaves = st.one_of(
    st.just((x, lambda row: row[0])),
    st.just((y, lambda row: row[1])),
    st.integers(-9, 9).map(lambda k: (pc.scalar(k), lambda row: k)),
)


@settings(max_examples=30, deadline=None)
@given(columns, st.recursive(leaves, grown, max_leaves=6))
def test_whole_numbers_are_exact_or_refused(rows: list[Any], pair: tuple[pc.Expression, Any]) -> None:
    """`pc.add` itself wraps around."""
    expression, python = pair
    batch = pa.RecordBatch.from_arrays(
        [pa.array([r[0] for r in rows], pa.int64()), pa.array([r[1] for r in rows], pa.int64())], names=["x", "y"]
    )
    try:
        made = Formula(expression)(batch).to_pylist()
    except pa.ArrowInvalid as error:
        assert "overflow" in str(error)
        return
    assert made == [python(row) for row in rows]


def test_a_constant_is_as_wide_as_in_python() -> None:
    """Arrow's engine takes 1.5 for a float of 32 bits, and 1 for a byte: it would have rounded, or overflowed."""
    batch = pa.RecordBatch.from_pydict({"x": [16_777_215], "b": pa.array([127], pa.int8())})
    assert Formula(x * 1.5)(batch) == pa.array([25_165_822.5])
    assert Formula(pc.add(pc.field("b"), 1))(batch) == pa.array([128])
    assert by_arrow(x * 1.5, batch).type == pa.float32()


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64()], ids=str)
def test_a_quotient_that_no_whole_number_is_fails(kind: pa.DataType) -> None:
    """`pc.divide` made 0 of the smallest number by -1. Floats are divided by zero as ever."""
    least = -(1 << (kind.bit_width - 1))
    quotient = Formula(pc.divide(x, y))
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        quotient(pa.RecordBatch.from_arrays([pa.array([least], kind), pa.array([-1], kind)], names=["x", "y"]))
    assert quotient(pa.RecordBatch.from_pydict({"x": [1.0], "y": [0.0]})).to_pylist() == [float("inf")]
    assert quotient(pa.RecordBatch.from_pydict({"x": [-7], "y": [2]})).to_pylist() == [-3]


NOON = dt.datetime(2026, 1, 1, 12)
UTC, BERLIN, NONE = pa.timestamp("us", "UTC"), pa.timestamp("s", "Europe/Berlin"), pa.timestamp("us")
MIXED = [
    (pc.coalesce(x, y), (None, UTC), (NOON, NONE), "pc.coalesce is given a time with a zone and one without"),
    (pc.coalesce(x, y), (None, UTC), (NOON, BERLIN), "pc.coalesce is given times of the zones Europe/Berlin, UTC"),
    (pc.coalesce(x, y), (None, UTC), (NOON.date(), pa.date32()), "a time with a zone and one without"),
    (x < y, (NOON, UTC), (NOON.date(), pa.date32()), "a time with a zone and one without"),
    (pc.choose(pc.scalar(0), x, y), (NOON, pa.timestamp("s")), (NOON, NONE), r"given timestamp\[s\], timestamp\[us\]; cast"),
    (
        pc.choose(pc.scalar(0), x, y),
        (Decimal("9.1"), pa.decimal128(2, 1)),
        (Decimal("0.12345"), pa.decimal128(5, 5)),
        r"pc.choose is given decimal128\(2, 1\), decimal128\(5, 5\); cast them to one type",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "one", "other", "why"), MIXED, ids=str)
def test_values_of_which_arrow_makes_others_do_not_go_together(
    expression: pc.Expression, one: Any, other: Any, why: str
) -> None:
    """Of 9.1 a choose made 0.00091; of noon in Berlin a coalesce a quarter of an hour in 1970."""
    columns = [pa.array([value], kind) for value, kind in (one, other)]
    with pytest.raises(TypeError, match=why):
        Formula(expression)(pa.RecordBatch.from_arrays(columns, names=["x", "y"]))


def test_times_and_numbers_that_are_alike_go_together() -> None:
    both = pa.RecordBatch.from_arrays([pa.array([None], BERLIN), pa.array([NOON], UTC)], names=["x", "y"])
    assert Formula(pc.coalesce(x.cast(UTC), y))(both).cast(NONE).to_pylist() == [NOON]
    assert Formula(y == y.cast(pa.timestamp("us", "Europe/Berlin")))(both).to_pylist() == [True]
    assert len(Formula(pc.make_struct(x, pc.scalar(NOON), field_names=["a", "b"]))(both)) == 1
    numbers = pa.RecordBatch.from_arrays([pa.array([3], pa.int8()), pa.array([0.5])], names=["x", "y"])
    assert Formula(pc.choose(pc.scalar(0), x, y))(numbers).to_pylist() == [3.0]


def looked_up(expression: pc.Expression, values: Any, kind: Any = None) -> list[Any]:
    found: list[Any] = Formula(expression)(
        pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["x"])
    ).to_pylist()
    return found


def test_a_set_has_the_values_that_it_was_given() -> None:
    assert looked_up(x.isin([1, 300, 1.5]), [1, 44, None], pa.int8()) == [True, False, False]
    assert looked_up(x.isin([0.0]), [-0.0, 0.0, float("nan")]) == [True, True, False]
    assert looked_up(x.isin([-0.0, float("nan")]), [0.0, float("nan")], pa.float32()) == [True, True]
    assert looked_up(x.isin(pa.array([0.1], pa.float32())), [0.1], pa.float32()) == [True]
    assert looked_up(x.isin([1, None]), [None]) == [True]
    assert looked_up(pc.is_in(x, value_set=pa.array([None, 1]), skip_nulls=True), [None, 1]) == [False, True]
    assert looked_up(pc.index_in(x, value_set=pa.array([5, 0.0])), [-0.0, 5.0, 2.0]) == [1, 0, None]
    assert looked_up(x.isin([]), [1]) == [False] and looked_up(x.isin([1]), [None]) == [False]
    assert looked_up(x.isin([Decimal("1.0")]), [Decimal("1.00")]) == [True]


def test_places_in_a_text_are_counted_in_bytes_and_utf8_functions_count_characters() -> None:
    assert looked_up(pc.find_substring(x, "a"), ["éa", "a", "é", None]) == [2, 0, -1, None]
    assert looked_up(pc.binary_length(x), ["éa"]) == [3] and looked_up(pc.utf8_length(x), ["éa"]) == [2]
    assert looked_up(pc.utf8_slice_codeunits(x, 0, 1), ["éa"]) == ["é"]


@pytest.mark.parametrize(
    ("values", "kind", "expected", "why"),
    [
        ([NOON], pa.timestamp("us"), [NOON.date()], r"pc.is_in looks up date32\[day\] among timestamp\[us\]; cast one"),
        ([0.1], pa.float64(), [0.1], r"up float, and no such value is 0\.1; .*give the set as pa.array\(values, float\)"),
        ([1e300], pa.float64(), [float("inf")], r"no such value is 1e\+300"),
        ([2], pa.int64(), [True], "looks up bool among int64"),
        (["01"], pa.string(), [1], "looks up int64 among string"),
        ([0.1], pa.float32(), [Decimal("0.1")], r"looks up decimal128\(1, 1\) among float; cast one"),
        ([Decimal("0.1")], pa.decimal128(1, 1), [0.1], r"looks up double among decimal128\(1, 1\); cast one"),
    ],
)  # fmt: skip
def test_a_set_of_other_values_is_refused(values: Any, kind: Any, expected: Any, why: str) -> None:
    """Arrow found a day among the times of that day, infinity among large numbers, and a float among decimals near it."""
    column = pa.float32() if kind == pa.float64() else None
    with pytest.raises(TypeError, match=why):
        looked_up(x.isin(pa.array(values, kind)), expected, column)


def test_a_set_that_the_decimals_of_a_column_cannot_hold_is_refused() -> None:
    """Arrow casts the column then, and found -2.25 with 37 places among hundreds, as 0."""
    column, hundreds = pa.decimal128(38, 37), pa.array([Decimal(0), Decimal(99_900)]).cast(pa.decimal128(5, -2))
    with pytest.raises(
        TypeError, match=r"among decimal128\(5, -2\), which decimal128\(38, 37\) cannot hold; cast the col"
    ):
        looked_up(x.isin(hundreds), [Decimal("-2.25")], column)
    assert looked_up(x.isin(hundreds.slice(0, 1)), [Decimal("-2.25"), Decimal(0)], column) == [False, True]


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (pc.sum(x), "pc.sum does not work record by record"),
        (x - pc.mean(x), "pc.mean does not work"),
        (pc.cumulative_sum(x), "pc.cumulative_sum does not work"),
        (pc.unique(x), "pc.unique does not work"),
        (pc.field(0), "cannot be sent to the subtasks.*by name"),
    ],
    ids=str,
)
def test_what_says_nothing_of_single_records_is_refused(expression: pc.Expression, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Formula(expression)


def test_it_names_its_columns_and_those_that_are_missing() -> None:
    formula = Formula((x + y > 3) & pc.field("n", "a").is_valid() & (x < 9))
    assert formula.fields == ("x", "y", "n")
    with pytest.raises(Misfit, match=r"no column 'gone'; the stream has x, y, d"):
        Formula(pc.field("gone") > 1)(BATCH)


def test_the_first_record_that_fails_is_found() -> None:
    batch = pa.RecordBatch.from_pydict({"x": [4, 2, 0, 3, 0, 1]})
    assert first_failing(Formula(pc.scalar(1) / x), batch) == 2
    assert first_failing(Formula(pc.scalar(1) / pc.scalar(0)), batch) is None


def test_a_requirement_passes_the_value_or_fails_with_its_message() -> None:
    given = require(x, y != 0, "y is zero")
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), pa.array([1, None, 0])], names=["x", "y"])
    assert Formula(given)(batch.slice(0, 2)).to_pylist() == [1, 2]
    assert Formula(pickle.loads(pickle.dumps(given))).fields == ("x", "y")
    with pytest.raises(pa.ArrowInvalid, match="y is zero"):
        Formula(given)(batch)
    assert first_failing(Formula(given), batch) == 2
    assert Formula(require(x, pc.scalar(True), "never"))(batch).to_pylist() == [1, 2, 3]
    with pytest.raises(pa.ArrowInvalid, match="always"):
        Formula(require(x, pc.scalar(False), "always"))(batch)
