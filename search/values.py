"""A search for values that change on their way: random types and values, through every conversion and both forms, against
a plain model.

    python -m search.values --seeds 0:1000

A seed is one case, and all that there is to know of it. `--only NAME` takes one kind of case.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

import tailrace as tr
from search.functions import table as functions_table
from search.functions.checking import check_function
from search.seeds import seeds_of
from search.value_model import group, key_of, results, windows
from search.value_shapes import (
    NAMES,
    NO_VALUES,
    ZONES,
    alike,
    any_type,
    decimal_type,
    same,
    scalar_type,
    spelt,
    value_of,
    wild_decimal,
)
from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.casts import column_as
from tailrace.elements.columns.encoding import plain_array
from tailrace.elements.columns.kinds import plain_type
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.schemas import columns_of
from tailrace.elements.keycolumns import groups_of_arrow
from tailrace.elements.keygroups import KeyGroups
from tailrace.elements.rows import Row, field_getter, made_rows, plain_values, rows_of


class Wrong(AssertionError):
    """The error for a value that is not what it should be."""


def check(good: bool, *details: Any) -> None:
    """Raises `Wrong`, with the details in `details`, unless `good`."""
    if not good:
        raise Wrong(" | ".join(map(repr, details)))


# A value into a column: equal, or refused.


def conversion(random: Random) -> None:
    """Checks that any value that is put into a column of any type is equal when it comes out, or is refused."""
    kind, other = any_type(random), any_type(random)
    for value in random.sample(NO_VALUES, 2):
        held = random.choice([value, [value], {"f0": value}, (None, value)])
        try:
            columns_of([(None,), (held,)] if random.random() < 0.5 else [(held,)], pa.schema({"x": kind}))
        except Misfit as error:
            check("column 'x" in str(error), "a column is not named", value, kind, str(error))
        else:
            check(False, "taken for a value", held, kind)
    for _ in range(20):
        value = spelt(random, value_of(random, other), other)
        if random.random() < 0.1:
            kind, value = decimal_type(random), wild_decimal(random)
        try:
            batch = columns_of([(value,)], pa.schema({"x": kind}))
        except Misfit:
            check(kind != other, "refused its own type", value, kind)
            continue
        batch.validate(full=True)
        [row] = rows_of(batch)
        expected = value
        if isinstance(value, float) and pa.types.is_floating(kind) and kind.bit_width < 64:
            expected = float((np.float16 if kind.bit_width == 16 else np.float32)(value))
        check(alike(_loose(expected, kind), _loose(row.x)), "value changed", value, kind, row.x)


def _loose(value: Any, kind: pa.DataType | None = None) -> Any:
    """A value without the details that a column of `kind` does not keep: tuples are lists, records dicts, numpy's scalars
    Python's."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if kind is not None and isinstance(value, list | tuple):
        if pa.types.is_struct(kind):
            value = dict(zip([field.name for field in kind], value, strict=True))
        elif pa.types.is_map(kind):
            value = dict(value)
    if isinstance(value, dict):
        inner = {field.name: field.type for field in kind} if kind is not None and pa.types.is_struct(kind) else {}
        item = kind.item_type if kind is not None and pa.types.is_map(kind) else None
        return {name: _loose(one, inner.get(name, item)) for name, one in value.items()}
    if isinstance(value, list | tuple):
        inside = kind.value_type if kind is not None and kind.num_fields == 1 else None
        return [_loose(one, inside) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return bytes(value) if isinstance(value, bytearray) else value


def cast(random: Random) -> None:
    """Checks that a cast of a column to another type equals a cast of its values one by one, or is refused as they are."""
    source = decimal_type(random) if random.random() < 0.2 else any_type(random)
    kind = any_type(random) if random.random() < 0.3 else _relate(random, source)
    values = [value_of(random, source) for _ in range(random.randint(0, 6))]
    field = pa.field("x", kind)
    array = column_of_values(values, pa.field("x", source))
    if len(values) > 2 and random.random() < 0.5:
        array, values = array.slice(1), values[1:]
    try:
        made = column_as(array, field)
    except Misfit:
        made = None
    try:
        expected = column_of_values(plain_values(plain_array(array)), field)
    except Misfit:
        expected = None
    if made is None or expected is None:
        # A column of another kind is refused even where all of its values are null, or there are none.
        hopeless = all(_empty(value) for value in values)
        check(made is expected or (made is None and hopeless), "one way refuses", source, kind, values, made, expected)
        return
    made.validate(full=True)
    check(same(plain_values(made), plain_values(expected)), "ways differ", source, kind, values, made)


def _empty(value: Any) -> bool:
    """True where a value has nothing in it that could be of a wrong type."""
    items = value.values() if isinstance(value, dict) else value
    return value is None or (isinstance(value, dict | list) and all(map(_empty, items)))


def _relate(random: Random, kind: pa.DataType) -> pa.DataType:
    """A type that the values may fit into."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = [pa.int8(), pa.uint64(), pa.int64(), pa.float16(), pa.float32(), pa.float64()]
        numbers += [decimal_type(random) for _ in numbers]
        return random.choice(numbers)
    if pa.types.is_timestamp(kind):
        return pa.timestamp(random.choice(["s", "ms", "us"]), random.choice([kind.tz, random.choice(ZONES)]))
    if pa.types.is_duration(kind):
        return pa.duration(random.choice(["s", "ms", "us", "ns"]))
    if pa.types.is_time(kind):
        return random.choice([pa.time32("s"), pa.time32("ms"), pa.time64("us")])
    if pa.types.is_struct(kind):
        fields = [field.with_type(_relate(random, field.type)) for field in kind]
        return pa.struct(random.sample(fields, len(fields)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _relate(random, kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = _relate(random, kind.value_type)
        return random.choice([pa.list_(item), pa.large_list(item), pa.list_(item, random.randint(0, 3))])
    return random.choice([kind, plain_type(kind), pa.large_string(), pa.string(), pa.binary()])


# Whole programs.


class Kept(tr.KeyedProcessFunction):
    """A function whose records wait in state until a timer emits them."""

    last = tr.ValueState(object)

    def process(self, value: Any, ctx: Any) -> Any:
        self.last.value = value
        ctx.set_timer(event_time=1.0)

    def on_timer(self, timestamp: float, ctx: Any) -> Any:
        yield self.last.value


def travel(random: Random) -> None:
    """Checks that records of any schema come out of random verbs, in both forms, as they went in."""
    names = ("id", *random.sample(NAMES, random.randint(1, 4)))
    fields = [pa.field("id", pa.int64()), *[pa.field(name, any_type(random)) for name in names[1:]]]
    schema = pa.schema(fields)
    count = random.randint(1, 40)
    records = [{"id": i, **{field.name: value_of(random, field.type) for field in fields[1:]}} for i in range(count)]
    given = [_record(random, record, schema) for record in records]
    env = tr.Environment(parallelism=random.randint(1, 3), state_backend="memory")
    stream = env.from_collection(given).to_columns(schema)
    for _ in range(random.randint(0, 4)):
        stream = random.choice(_VERBS)(stream, schema)
    rows = stream if stream.form == "rows" else stream.to_rows()
    sink = rows.sink_to(tr.sinks.Collect())
    if random.random() < 0.3:
        tr.testing.simulate(env, seed=random.randrange(1 << 30)).await_termination()
    else:
        tr.testing.run(env)
    out = {row.id: row for row in sink.result()}
    check(len(out) == len(sink.result()) == count, "records lost or doubled", len(sink.result()), count)
    for record in records:
        row = out[record["id"]]
        check(row.__fields__ == names, "names changed", names, row)
        for at, (name, value) in enumerate(record.items()):
            attribute = row[at] if name.startswith("__") else getattr(row, name)
            ways = (row[at], row[name], attribute, Row.asDict(row)[name], field_getter(name, row)(row))
            check(all(same(value, one) for one in ways), "value changed", name, schema.field(name).type, value, row)


def _record(random: Random, record: dict[str, Any], schema: pa.Schema) -> Any:
    made = {name: spelt(random, value, schema.field(name).type) for name, value in record.items()}
    turned = dict(random.sample(list(made.items()), len(made)))
    return random.choice([made, turned, tuple(made.values()), made_rows(tuple(turned), [tuple(turned.values())])[0]])


def _columns(stream: Any, schema: pa.Schema) -> Any:
    return stream if stream.form == "columns" else stream.to_columns(schema)


def _lap(stream: Any) -> Any:
    """Sends records once around a loop: a record leaves it when it has been around."""

    def body(rows: Any) -> Any:
        new, seen = rows.filter(lambda r: not r[0]), rows.filter(lambda r: r[0])
        return new.map(lambda r: (True, r[1])), seen.map(lambda r: r[1])

    return stream.to_rows().map(lambda row: (False, row)).iterate(body)


_VERBS: list[Callable[[Any, pa.Schema], Any]] = [
    lambda s, schema: s.rebalance().to_rows() if s.form == "columns" else s.rebalance().map(lambda row: row),
    lambda s, schema: _columns(s, schema).rebalance().map_batches(lambda batch: batch),
    lambda s, schema: _columns(s, schema).key_by("id").map_batches(lambda batch: batch.slice(0)).to_columns(schema),
    lambda s, schema: _columns(s, schema).map_batches(lambda b: b.take(pa.array(range(b.num_rows))[::-1])),
    lambda s, schema: _lap(_columns(s, schema)),
    lambda s, schema: s.key_by("id").reduce(lambda a, b: b) if s.form == "rows" else s.to_rows(),
    lambda s, schema: _columns(s, schema).to_rows(),
    lambda s, schema: (s if s.form == "rows" else s.to_rows()).key_by("id").process(Kept()),
]


# Aggregates and windows in both forms.

_REPEATED = [
    datetime(2024, 10, 27, 0, minute, tzinfo=UTC) + timedelta(hours=hour) for minute in (10, 50) for hour in (0, 1)
]


def _keys(random: Random) -> tuple[pa.DataType, list[Any]]:
    whole = [Decimal("0.50"), Decimal("-1.00"), Decimal("9.99")]
    kinds: list[tuple[pa.DataType, list[Any]]] = [
        (pa.string(), ["a", "b", "", None]),
        (pa.int64(), [0, -1, 2**63 - 1, -(2**61) - 1, None]),
        (pa.float64(), [0.0, -0.0, float("nan"), -float("nan"), 1.5, 2.0**61]),
        (pa.float32(), [0.0, -0.0, float("nan"), 0.25]),
        (pa.bool_(), [True, False, None]),
        (pa.decimal128(5, 2), whole),
        (pa.timestamp("us", "Europe/Berlin"), _REPEATED),
        (pa.timestamp("us"), [datetime(2024, 10, 27, 2, 30), datetime(1900, 1, 1)]),
        (pa.date32(), [date(2024, 1, 1), date(1, 1, 1), None]),
        (pa.dictionary(pa.int8(), pa.string()), ["x", "y", None]),
        (pa.string_view(), ["x", "yy"]),
    ]
    return random.choice(kinds)


def _numbers(random: Random) -> tuple[pa.DataType, list[Any], bool]:
    """A type, values of it, and True where they can be summed."""
    many = Decimal("123456789012345678901234567890.12")
    kinds: list[tuple[pa.DataType, list[Any], bool]] = [
        (pa.int64(), [1, -5, None, 2**40], True),
        (pa.int8(), [127, -128, None], True),
        (pa.uint32(), [2**32 - 1, 0], True),
        (pa.float64(), [0.25, -8.5, None, 1024.0], True),
        (pa.decimal128(38, 2), [many, Decimal("0.01"), -many, None], True),
        (pa.decimal128(7, 3), [Decimal("0.001"), Decimal("9999.999"), None], True),
        (pa.timestamp("us", "Europe/Berlin"), [*_REPEATED, None], False),
        (pa.string(), ["a", "", "zz", None], False),
    ]
    return random.choice(kinds)


def aggregates(random: Random) -> None:
    """Checks that aggregates and windows in both forms equal those of a plain loop over all records."""
    (key_kind, keys), (kind, drawn, summed) = _keys(random), _numbers(random)
    composite = random.random() < 0.3
    records = [
        (random.choice(keys), random.randint(-3, 3), random.randint(-50, 50), random.choice(drawn))
        for _ in range(random.randint(1, 60))
    ]
    schema = pa.schema([("k", key_kind), ("j", pa.int8()), ("t", pa.int64()), ("x", kind)])
    size = random.randint(1, 30)
    slide = random.choice([size, random.randint(1, size)])
    windowed = random.random() < 0.5
    named: dict[str, Any] = {"n": tr.Count(), "again": tr.Count(), "low": tr.Min("x"), "high": tr.Max("x")}
    if summed:
        named |= {"total": tr.Sum("x"), "mean": tr.Mean("x")}
    by_key = [((k, j) if composite else k, t, x) for k, j, t, x in records]
    model = windows(by_key, size, slide) if windowed else group((k, x) for k, _, x in by_key)
    expected = {key: results(values) for key, values in model.items()}
    for form in ("rows", "columns"):
        env = tr.Environment(parallelism=random.randint(1, 3))
        rate = random.choice([None, 1.0])
        source = tr.sources.Generator(lambda: iter(records), rate=rate)
        stream = env.from_source(source, parallelism=1).to_columns(schema)
        timed = (stream if form == "columns" else stream.to_rows()).assign_timestamps("t", out_of_orderness=200)
        keyed = timed.key_by(("k", "j") if composite else "k")
        made = (keyed.window(tr.Sliding(size, slide)) if windowed else keyed).aggregate(**named)
        sink = (made.to_rows() if made.form == "columns" else made).sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        _compare(form, sink.result(), expected, list(named), windowed, composite)


def _compare(
    form: str, rows: list[Any], expected: dict[Any, Any], names: list[str], windowed: bool, composite: bool
) -> None:
    found: dict[Any, tuple[Any, ...]] = {}
    for row in rows:
        flat = composite and (windowed or form == "columns")
        key, rest = ((row[0], row[1]), row[2:]) if flat else (row[0], row[1:])
        key = key_of(key)
        if windowed:
            keys = ("k", "j") if composite else ("k",)
            check(row.__fields__ == (*keys, "start", "end", *names), "other names", form, row)
            check((key, rest[0]) not in found, "a window fired twice", form, row)
            found[key, rest[0]] = rest[2:]
        else:
            found[key] = rest  # the last result of a key counts all its records
    check(found.keys() == expected.keys(), "other keys", form, found.keys() ^ expected.keys())
    for key, values in found.items():
        for name, value in zip(names, values, strict=True):
            should = expected[key]["n" if name == "again" else name]
            is_now = value if value is None else key_of(value) if name in ("low", "high") else Fraction(value)
            check(is_now == should, "another result", form, key, name, value, should)


def together(random: Random) -> None:
    """Checks that a key has one group, in rows and in columns of whatever encoding, and one state."""
    kind = scalar_type(random)
    if random.random() < 0.5 or pa.types.is_time(kind):  # a time of day is no key
        kind = _keys(random)[0]
    values = [value_of(random, kind) for _ in range(random.randint(1, 30))]
    array = column_of_values(values, pa.field("x", kind))
    rows = plain_values(plain_array(array))
    cache = KeyGroups(32_768)
    by_row = KeyGroups(32_768).groups_of(rows).tolist()
    check(groups_of_arrow(plain_array(array), cache).tolist() == by_row, "groups differ", kind, values)
    others = [spelt(random, value, kind) for value in values]
    try:
        spelt_groups = cache.groups_of(others).tolist()
    except TypeError:
        return  # a bytearray, which is no key
    check(spelt_groups == by_row, "groups of one value differ", kind, list(zip(values, others, strict=True)))
    _one_state(random, kind, others)


def _one_state(random: Random, kind: pa.DataType, keys: list[Any]) -> None:
    columns = [key for key in keys if random.random() < 0.5] or keys[:1]
    env = tr.Environment(parallelism=random.randint(1, 3))
    rows = env.from_collection([(key,) for key in keys])
    table = env.from_collection([(key,) for key in columns]).to_columns(pa.schema({"x": kind}))
    both = rows.connect(table).key_by(lambda r: r[0], "x").process(Counting())
    sink = both.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    counts: dict[Any, int] = {}
    for key, count in sink.result():
        counts[key_of(key)] = max(count, counts.get(key_of(key), 0))
    expected = {key: len(found) for key, found in group((key, 1) for key in [*keys, *columns]).items()}
    check(counts == expected, "keys met otherwise", kind, counts, expected)


class Counting(tr.CoProcessFunction):
    """A function that counts how often each key came, from both sides."""

    count = tr.ValueState(int, default=0)

    def process1(self, value: Any, ctx: Any) -> Any:
        self.count.value += 1
        yield ctx.key, self.count.value

    process2 = process1


def functions(random: Random) -> None:
    """Checks that a function of `pyarrow.compute` gives what exact Python does, in whatever batches."""
    name = random.choice(functions_table.installed_functions())
    check_function(random, name, random.choice(functions_table.CASES[name]))


CASES: dict[str, Callable[[Random], None]] = {
    "functions": functions,
    "conversion": conversion,
    "cast": cast,
    "travel": travel,
    "aggregates": aggregates,
    "together": together,
}


def run_case(seed: int, only: str | None = None) -> str:
    """Runs one case, and returns its kind. Raises whatever went wrong."""
    random = Random(seed)
    name = only or random.choice(list(CASES))
    CASES[name](random)
    return name


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. The exit code is 1 where a value changed."""
    parser = argparse.ArgumentParser(prog="python -m search.values", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="FIRST:LAST, LAST excluded (default: 0:200)")
    parser.add_argument("--only", choices=list(CASES), default=None, help="run this kind of case only")
    chosen = parser.parse_args(arguments)
    seeds, failed = seeds_of(chosen.seeds), 0
    for seed in seeds:
        try:
            run_case(seed, chosen.only)
        except Exception:
            failed += 1
            again = f"--seeds {seed}:{seed + 1}" + (f" --only {chosen.only}" if chosen.only else "")
            print(f"seed {seed} failed; again with: python -m search.values {again}", file=sys.stderr)
            traceback.print_exc()
    print(f"{len(seeds)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
