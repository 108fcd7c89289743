"""Values that Arrow or pyarrow would change on their way into a column, out of it, or into a column of another type."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.casts import column_as
from tailrace.elements.columns.encoding import plain_array
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.rows import plain_values

WIDTHS = [kind for kind in ("decimal32", "decimal64", "decimal128", "decimal256") if hasattr(pa, kind)]
MOST = {"decimal32": 9, "decimal64": 18, "decimal128": 38, "decimal256": 76}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("value", "given"),
    [(10**12, pa.int64()), ((1 << 63) - 1, pa.int64()), (4294967301, pa.decimal128(38, 0)), (70, pa.decimal128(2, 0))],
    ids=str,
)
def test_a_number_with_too_many_digits_is_refused_by_every_decimal(width: str, value: int, given: pa.DataType) -> None:
    """As a decimal with all digits behind the point but one. Arrow multiplied, and took what was left of the bits."""
    made = getattr(pa, width)
    array = pa.array([value, None], given)
    with pytest.raises(Misfit, match="before the decimal point"):
        column_as(array, pa.field("x", made(MOST[width], MOST[width] - 1)))
    fits = len(str(value)) <= MOST[width]
    if fits:
        assert column_as(array, pa.field("x", made(MOST[width], 0))).to_pylist() == [Decimal(value), None]
    else:
        with pytest.raises(Misfit, match=r"more than 9 digits before the decimal point|more than 18 digits"):
            column_as(array, pa.field("x", made(MOST[width], 0)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("value", ["1E-99", "12.3E-80", "5." + "0" * 70 + "1"])
def test_a_decimal_with_many_digits_behind_the_point_is_no_zero(width: str, value: str) -> None:
    field = pa.field("x", getattr(pa, width)(MOST[width], 2))
    with pytest.raises(Misfit, match="it has more than 2 digits after the decimal point") as error:
        column_of_values([Decimal("0.01"), None, Decimal(value)], field)
    assert error.value.row == 2
    same = [Decimal("1.50" + "0" * 80), Decimal("0E-200"), 3, None]
    assert column_of_values(same, field).to_pylist() == [Decimal("1.50"), 0, 3, None]


NANOS = pa.array([0, 1001, 3_000], pa.int64()).cast(pa.time64("ns"))
AROUND: list[pa.Array] = [
    NANOS,
    pa.StructArray.from_arrays([NANOS], ["t"]),
    pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), NANOS),
    pa.FixedSizeListArray.from_arrays(NANOS, 1),
    pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), NANOS),
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), NANOS),
    pa.ListViewArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array([1, 1, 1], pa.int32()), NANOS),
]


@pytest.mark.parametrize("array", AROUND, ids=lambda array: str(array.type))
def test_a_time_of_day_with_nanoseconds_is_not_cut(array: pa.Array) -> None:
    for kept in (array.slice(0, 1), array.slice(2)):
        assert len(plain_values(kept)) == 1
    for cut in (array, array.slice(1, 1)):
        with pytest.raises(Misfit, match=r"cannot hold: a time of day with 1 nanoseconds"):
            plain_values(cut)


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.time32("ms"), pa.time32("s")], ids=str)
def test_nanoseconds_go_into_no_coarser_time(kind: pa.DataType) -> None:
    with pytest.raises(Misfit) as error:
        column_as(NANOS, pa.field("x", kind))
    assert error.value.row == 1
    whole = pa.array([0, 5 * 10**9], pa.int64()).cast(pa.time64("ns"))
    assert column_as(whole, pa.field("x", kind)).cast(pa.time64("ns")) == whole


FAR = pa.array([[2**40], []], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("s")))
FAR_VIEW = pa.ListViewArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([1, 0], pa.int32()), FAR.values)


def test_list_views_around_times_that_python_has_not_are_refused() -> None:
    """List views are made, and made plain, through Python: its errors came out raw."""
    with pytest.raises(Misfit, match=r"column 'x' is declared list_view<.*>, which cannot hold its values: "):
        column_as(FAR, pa.field("x", pa.list_view(pa.timestamp("s"))))
    with pytest.raises(Misfit, match=r"column 'x' of list_view<.*cast the column before, to list<.*timestamp\[s\]>"):
        plain_array(FAR_VIEW, "x")
    near: Any = pa.array([[1], []], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("s")))
    assert column_as(near, pa.field("x", pa.list_view(pa.timestamp("s")))).to_pylist() == near.to_pylist()
