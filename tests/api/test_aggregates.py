"""Running aggregates per key: the same final values in both forms, at any parallelism."""

import datetime as dt
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr

NAN = float("nan")


def records(build: Callable[[tr.Environment], Any], parallelism: int = 1, **options: Any) -> list[Any]:
    env = tr.Environment(parallelism=parallelism, **options)
    out = build(env).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return list(out.result())


def final(form: str, rows: list[tuple[Any, Any]], kinds: tuple[Any, Any], parallelism: int = 1, **named: Any) -> Any:
    """The last result of each key `k` over the values `x`, in one of the forms."""
    schema = pa.schema([("k", kinds[0]), ("x", kinds[1])])

    def program(env: tr.Environment) -> tr.DataStream:
        stream = env.from_collection(rows).to_columns(schema)
        keyed = (stream if form == "columns" else stream.to_rows()).key_by("k")
        return keyed.aggregate(**named).map(tuple)

    return {
        repr(record[0] + 0 if record[0] == 0 else record[0]): record[1:] for record in records(program, parallelism)
    }


ALL = {"n": tr.Count(), "total": tr.Sum("x"), "low": tr.Min("x"), "high": tr.Max("x"), "mean": tr.Mean("x")}
FORMS = ["rows", "columns"]


# What is emitted.


def test_count_and_sum_emit_for_each_record() -> None:
    words = ["a", "b", "a"]
    assert records(lambda env: env.from_collection(words).key_by(lambda w: w).count()) == [("a", 1), ("b", 1), ("a", 2)]
    assert records(lambda env: env.from_collection([1, 2, 3]).key_by(lambda x: x % 2).sum(lambda x: x * 10)) == [
        (1, 10),
        (0, 20),
        (1, 40),
    ]


def test_reduce_emits_the_merged_value() -> None:
    assert records(lambda env: env.from_collection([5, 3, 9]).key_by(lambda x: 0).reduce(min)) == [5, 3, 3]


def test_columns_emit_once_per_distinct_key_and_batch() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        stream = env.from_collection([("a", 1), ("b", 2), ("a", 3)])
        return stream.to_columns(pa.schema([("k", pa.string()), ("x", pa.int64())])).key_by("k").sum("x").to_rows()

    assert records(program) == [("a", 4), ("b", 2)]


def test_a_key_of_several_columns_has_several_columns() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        stream = env.from_collection([("a", 1), ("a", 1)]).to_columns(
            pa.schema([("k", pa.string()), ("x", pa.int64())])
        )
        return stream.key_by(("k", "x")).count().to_rows()

    assert records(program) == [("a", 1, 2)]


def test_a_stream_of_plain_values_aggregates_the_values_themselves() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        return (
            env.from_collection([3, 1, 2]).key_by(lambda x: "all").aggregate(low=tr.Min(), mean=tr.Mean(), n=tr.Count())
        )

    assert records(program)[-1] == ("all", 1, 2.0, 3)


@pytest.mark.parametrize("form", FORMS)
def test_a_list_of_columns_is_aggregated_as_a_tuple_of_them_is(form: str) -> None:
    """The list was checked as a tuple, and kept as a list, which was an error of ours when the job ran."""
    rows, kinds = [(1, 3), (1, 2)], (pa.int64(), pa.int64())
    for columns in (["k", "x"], ("k", "x")):
        of: Any = columns
        assert final(form, rows, kinds, low=tr.Min(of)) == {"1": ((1, 2),)}


# One answer in both forms.


@pytest.mark.parametrize("parallelism", [1, 3])
@given(
    rows=st.lists(
        st.tuples(st.none() | st.integers(0, 5), st.none() | st.integers(-(2**40), 2**40)), min_size=1, max_size=40
    )
)
@settings(max_examples=25, deadline=None)
def test_both_forms_end_with_the_same_values(parallelism: int, rows: list[tuple[Any, Any]]) -> None:
    kinds = (pa.int64(), pa.int64())
    in_rows = final("rows", rows, kinds, parallelism, **ALL)
    assert final("columns", rows, kinds, parallelism, **ALL) == in_rows
    for key, (count, total, low, high, mean) in in_rows.items():
        mine = [x for k, x in rows if repr(k) == key]
        values = [x for x in mine if x is not None]
        assert (count, total) == (len(mine), sum(values))
        assert (low, high) == (min(values, default=None), max(values, default=None))
        assert mean == (sum(values) / len(values) if values else None)


CASES: list[tuple[Any, list[Any], tuple[Any, ...]]] = [
    (pa.float64(), [NAN, 1.0, NAN, 2.0], (4, "nan", 1.0, 2.0, "nan")),
    (pa.float64(), [NAN, NAN], (2, "nan", "nan", "nan", "nan")),
    (pa.float64(), [None, None], (2, 0, None, None, None)),
    (pa.bool_(), [True, False, True], (3, 2, False, True, 2 / 3)),
    (
        pa.decimal128(10, 2),
        [Decimal("1.50"), Decimal("2.25")],
        (2, Decimal("3.75"), Decimal("1.5"), Decimal("2.25"), 1.875),
    ),
    (pa.decimal128(10, 0), [Decimal(1), Decimal(2)], (2, 3, 1, 2, 1.5)),
    (pa.int8(), [127, 127], (2, 254, 127, 127, 127.0)),
    (pa.uint64(), [2**63, 5], (2, 2**63 + 5, 5, 2**63, (2**63 + 5) / 2)),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "values", "expected"), CASES, ids=lambda x: str(x)[:40])
def test_unusual_values_end_the_same_in_both_forms(form: str, kind: Any, values: list[Any], expected: Any) -> None:
    found = final(form, [(1, value) for value in values], (pa.int64(), kind), **ALL)["1"]
    assert tuple("nan" if isinstance(x, float) and math.isnan(x) else x for x in found) == expected


@pytest.mark.parametrize("form", FORMS)
def test_texts_and_times_have_a_least_and_a_greatest(form: str) -> None:
    named = {"low": tr.Min("x"), "high": tr.Max("x")}
    assert final(form, [(1, "b"), (1, "a"), (1, "c")], (pa.int64(), pa.string()), **named) == {"1": ("a", "c")}
    days = [dt.datetime(2020, 1, day) for day in (3, 1, 2)]
    found = final(form, [(1, day) for day in days], (pa.int64(), pa.timestamp("us")), **named)
    assert found == {"1": (days[1], days[0])}


@pytest.mark.parametrize("form", FORMS)
def test_a_mean_of_large_integers_is_exact_to_a_float(form: str) -> None:
    nanoseconds = [1_700_000_000_000_000_000 + i for i in range(100)]  # their sum has more than 64 bits
    found = final(form, [(1, x) for x in nanoseconds], (pa.int64(), pa.int64()), mean=tr.Mean("x"))
    assert found == {"1": (sum(nanoseconds) / 100,)}


def test_a_sum_beyond_64_bits_is_exact_in_rows_and_refused_in_columns() -> None:
    rows, kinds = [(1, 2**62), (1, 2**62)], (pa.int64(), pa.int64())
    assert final("rows", rows, kinds, total=tr.Sum("x")) == {"1": (2**63,)}
    with pytest.raises(
        tr.JobFailed,
        match=r"operator 'aggregate'.*a result does not fit.*'total' is declared int64, and 9223372036854775808",
    ):
        final("columns", rows, kinds, total=tr.Sum("x"))


@pytest.mark.parametrize("form", FORMS)
def test_keys_that_are_equal_share_their_aggregate(form: str) -> None:
    rows = [(NAN, 1.0), (0.0, 2.0), (NAN, 4.0), (-0.0, 8.0), (None, 16.0), (None, 32.0)]
    found = final(form, rows, (pa.float64(), pa.float64()), total=tr.Sum("x"))
    assert found == {"nan": (5.0,), "0.0": (10.0,), "None": (48.0,)}


# Functions of the user's own.


class Longest(tr.AggregateFunction):
    def create_accumulator(self) -> str:
        return ""

    def add(self, value: Any, accumulator: str) -> str:
        return max(accumulator, value, key=len)

    def get_result(self, accumulator: str) -> str:
        return accumulator


class Gather(tr.AggregateFunction):
    """Changes its accumulator in place, as one does in Python."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> tuple[Any, ...]:
        return tuple(accumulator)


class Squares(tr.Sum):
    """Of a built-in one, with a method of its own."""

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + value * value


class Weighted(tr.AggregateFunction):
    """Has a life of its own."""

    def open(self, ctx: tr.Context) -> None:
        self.weight = 10

    def create_accumulator(self) -> int:
        return self.weight

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + self.weight

    def get_result(self, accumulator: int) -> int:
        return accumulator


def test_an_aggregate_function_of_ones_own() -> None:
    words = ["a", "bb", "c", "ddd", "ee"]

    def program(env: tr.Environment) -> tr.DataStream:
        return env.from_collection(words).key_by(lambda w: len(w) > 1).aggregate(Longest())

    assert records(program) == [(False, "a"), (True, "bb"), (False, "a"), (True, "ddd"), (True, "ddd")]


def test_every_key_has_an_accumulator_of_its_own() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        return env.from_collection([1, 2, 3, 4]).key_by(lambda x: x % 2).aggregate(seen=Gather(), n=tr.Count())

    assert records(program)[-2:] == [(1, (1, 3), 2), (0, (2, 4), 2)]


def test_a_subclass_of_a_built_in_one_keeps_its_own_methods() -> None:
    keyed = lambda env: env.from_collection([1, 2, 3]).key_by(lambda x: 0)  # noqa: E731
    assert records(lambda env: keyed(env).aggregate(Squares()))[-1] == (0, 14)

    def in_columns(env: tr.Environment) -> tr.DataStream:
        stream = env.from_collection([(0, 1), (0, 2), (0, 3)])
        stream = stream.to_columns(pa.schema([("k", pa.int64()), ("x", pa.int64())]))
        return stream.key_by("k").aggregate(Squares("x"))

    assert records(in_columns)[-1] == (0, 14)


def test_an_aggregate_function_is_opened_before_its_first_accumulator() -> None:
    assert records(lambda env: env.from_collection([1, 2]).key_by(lambda x: 0).aggregate(Weighted())) == [
        (0, 20),
        (0, 30),
    ]


def test_a_reduce_function_of_ones_own() -> None:
    class Join(tr.ReduceFunction):
        def open(self, ctx: tr.Context) -> None:
            self.between = "-"

        def reduce(self, a: str, b: str) -> str:
            return f"{a}{self.between}{b}"

    assert records(lambda env: env.from_collection(["abc", "x", "y"]).key_by(len).reduce(Join()))[-1] == "x-y"


def test_a_named_tuple_is_read_by_name_whatever_came_before_it() -> None:
    from collections import namedtuple

    a, b = namedtuple("A", "k v"), namedtuple("B", "v k")
    mixed = [a("x", 1), b(10, "x"), {"k": "x", "v": 100}, a("y", 1)]
    found = records(lambda env: env.from_collection(mixed).key_by("k").sum("v"))
    assert found == [("x", 1), ("x", 11), ("x", 111), ("y", 1)]


def test_the_sum_of_a_column_that_arrow_cannot_sum_names_the_columns() -> None:
    with pytest.raises(
        tr.JobFailed, match=r"operator 'aggregate'.*Arrow cannot aggregate these columns .k int64, x string."
    ):
        final("columns", [(1, "a")], (pa.int64(), pa.string()), total=tr.Sum("x"))


def test_timestamps_survive_an_aggregate() -> None:
    def at(record: Any, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.timestamp

    for form in FORMS:

        def program(env: tr.Environment, form: str = form) -> tr.DataStream:
            stream = env.from_collection([(1, 5), (1, 3), (2, 4)])
            stream = stream.to_columns(pa.schema([("k", pa.int64()), ("x", pa.int64())])).assign_timestamps("x", 10)
            return (stream if form == "columns" else stream.to_rows()).key_by("k").count().process(at)

        assert records(program) == ([5.0, 3.0, 4.0] if form == "rows" else [5.0, 4.0])


# Decimals, instants and scalars of numpy.

LONG = Decimal("123456789012345678901234567890.12")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_sums_and_means_of_decimals_are_not_rounded(form: str, parallelism: int) -> None:
    """Python's own context has 28 digits, and Arrow's sums wrap around at 38."""
    rows = [("a", LONG), ("a", Decimal("0.01")), ("a", None), ("a", Decimal("0.02"))]
    found = final(form, rows, (pa.string(), pa.decimal128(34, 2)), parallelism, s=tr.Sum("x"), m=tr.Mean("x"))
    mean = Decimal("41152263004115226300411522630.050000")
    assert found == {"'a'": (Decimal("123456789012345678901234567890.15"), mean)}


def test_a_sum_of_decimals_beyond_38_digits_is_exact_in_rows_and_refused_in_columns() -> None:
    rows, kinds = [("a", Decimal(2**126))] * 4, (pa.string(), pa.decimal128(38, 0))
    assert final("rows", rows, kinds, s=tr.Sum("x")) == {"'a'": (Decimal(4 * 2**126),)}
    with pytest.raises(tr.JobFailed, match=r"'s' is declared decimal128.38, 0., and Decimal.'340282366920938463463"):
        final("columns", rows, kinds, s=tr.Sum("x"))


def test_a_mean_of_decimals_has_four_more_digits_rounded_half_up() -> None:
    rows = [("a", Decimal("1.00")), ("a", Decimal("1.00")), ("a", Decimal("0.00"))]
    for form in FORMS:
        assert final(form, rows, (pa.string(), pa.decimal128(5, 2)), m=tr.Mean("x")) == {"'a'": (Decimal("0.666667"),)}


def test_decimals_of_the_users_functions_are_theirs_to_round() -> None:
    third = records(lambda env: env.from_collection([1]).key_by(lambda x: 0).sum(lambda x: Decimal(x) / 3))
    assert third == [(0, Decimal(1) / 3)]


def test_decimals_that_come_behind_whole_numbers_are_not_rounded_unseen() -> None:
    """Only the first value of a batch is looked at before: that a later sum was rounded is seen behind it."""
    with pytest.raises(tr.JobFailed, match="a sum of decimals among other numbers may have been rounded"):
        records(lambda env: env.from_collection([1, LONG]).key_by(lambda x: 0).sum(lambda x: x))
    assert records(lambda env: env.from_collection([1, Decimal("0.5")]).key_by(lambda x: 0).sum(lambda x: x))[-1] == (
        0,
        Decimal("1.5"),
    )


@pytest.mark.parametrize("form", FORMS)
def test_one_aggregate_may_be_requested_twice(form: str) -> None:
    rows = [("a", 1), ("a", 2)]
    found = final(form, rows, (pa.string(), pa.int64()), n=tr.Count(), again=tr.Count(), s=tr.Sum("x"), t=tr.Sum("x"))
    assert found == {"'a'": (2, 2, 3, 3)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rate", [None, 1.0])
def test_the_later_instant_is_the_larger_one_in_the_repeated_hour(form: str, rate: float | None) -> None:
    """02:30 comes twice in that night, and Python compares wall clocks. With a rate each record is a batch."""
    early = dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC)
    late = dt.datetime(2024, 10, 27, 1, 10, tzinfo=dt.UTC)
    schema = pa.schema({"k": pa.string(), "x": pa.timestamp("us", "Europe/Berlin")})

    def program(env: tr.Environment) -> Any:
        source = tr.sources.Generator(lambda: iter([("a", early), ("a", late)]), rate=rate)
        stream = env.from_source(source, parallelism=1).to_columns(schema)
        keyed = (stream if form == "columns" else stream.to_rows()).key_by("k")
        return keyed.aggregate(low=tr.Min("x"), high=tr.Max("x")).map(tuple)

    _, low, high = records(program)[-1]
    assert (low.astimezone(dt.UTC), high.astimezone(dt.UTC)) == (early, late)


def test_a_key_of_columns_emits_once_for_all_zeros_and_all_nans_of_a_batch() -> None:
    rows = [(0.0, 1), (-0.0, 1), (NAN, 1), (-NAN, 1)]
    schema = pa.schema({"k": pa.float64(), "x": pa.int64()})
    found = records(lambda env: env.from_collection(rows, parallelism=1).to_columns(schema).key_by("k").count())
    assert [count for _, count in map(tuple, found)] == [2, 2]


@pytest.mark.parametrize(
    ("keys", "counts"),
    [
        ([Decimal(1), np.int64(1)], [1, 2]),
        ([(Decimal(1),), (np.int64(1),)], [1, 2]),
        ([np.int64(1), Decimal(1), 1.0], [1, 2, 3]),
        ([-(2.0**61), np.int64(-(2**61) - 1)], [1, 1]),
        ([(-(2.0**61),), (np.int64(-(2**61) - 1),)], [1, 1]),
    ],
)
def test_scalars_of_numpy_are_the_keys_that_they_stand_for(keys: list[Any], counts: list[int]) -> None:
    """numpy rounds when it compares, and its integers cannot be compared with a Decimal at all."""
    found = records(lambda env: env.from_collection(keys, parallelism=1).key_by(lambda k: k).count())
    assert [count for _, count in found] == counts


def test_a_key_that_numpy_may_mistake_in_the_midst_of_a_batch_is_never_mistaken() -> None:
    keys = [1, -(2.0**61), np.int64(-(2**61) - 1)]
    with pytest.raises(tr.JobFailed, match=r"numpy may take this key for another one.*key\.item"):
        records(lambda env: env.from_collection(keys, parallelism=1).key_by(lambda k: k).count())
