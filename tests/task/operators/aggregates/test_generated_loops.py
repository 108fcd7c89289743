"""The generated loops of built-in aggregates: selectors that are no more than an expression stand in them as that."""

from __future__ import annotations

import itertools
from collections import namedtuple
from operator import attrgetter, itemgetter
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.rows import field_getter
from tailrace.task.operators.aggregates.generated_loops import RowsLoop, expression_of

Sale = namedtuple("Sale", "shop amount")


class Thing:
    def __init__(self, shop: str, amount: int | None) -> None:
        self.shop, self.amount = shop, amount


@pytest.mark.parametrize(
    ("getter", "message"),
    [
        (itemgetter(1), "r[1]"),
        (itemgetter(-1), "r[-1]"),
        (itemgetter("it's"), 'r["it\'s"]'),
        (attrgetter("shop"), "r.shop"),
        (itemgetter(0, 1), None),
        (itemgetter(slice(1)), None),
        (itemgetter(True), None),
        (attrgetter("shop.name"), None),
        (attrgetter("class"), None),
        (attrgetter("\ufb01"), None),
        (lambda record: record[1], None),
    ],
)
def test_what_only_reads_a_field_is_an_expression(getter: Any, message: str | None) -> None:
    assert expression_of(getter) == message


def first(key: Any) -> tuple[Any, ...]:
    return key, 0, 0


RECORDS = {
    "tuples": ([("a", 1), ("b", 2), ("a", None), ("a", 4)], itemgetter(0), itemgetter(1)),
    "named": ([Sale("a", 1), Sale("b", 2), Sale("a", None), Sale("a", 4)], "shop", "amount"),
    "mappings": ([{"shop": k, "amount": n} for k, n in (("a", 1), ("b", 2), ("a", None), ("a", 4))], "shop", "amount"),
    "objects": ([Thing("a", 1), Thing("b", 2), Thing("a", None), Thing("a", 4)], "shop", "amount"),
}


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("called", list(itertools.product([False, True], repeat=2)), ids=str)
def test_a_loop_gives_the_same_whether_it_calls_or_reads(kind: str, called: tuple[bool, bool]) -> None:
    records, *selectors = RECORDS[kind]
    getters = [field_getter(one, records[0]) if isinstance(one, str) else one for one in selectors]
    key, amount = [
        (lambda record, get=get: get(record)) if call else get for get, call in zip(getters, called, strict=True)
    ]
    table: dict[Any, Any] = {}
    found = RowsLoop([tr.Count(), tr.Sum("amount")]).over(list(records), key, [amount], table, first)
    assert found == [("a", 1, 1), ("b", 1, 2), ("a", 2, 1), ("a", 3, 5)]
    assert table == {"a": ("a", 3, 5), "b": ("b", 1, 2)}


def test_a_field_whose_name_python_would_write_otherwise_is_that_field() -> None:
    """In an expression the ligature of "fi" is "fi", which is another attribute."""
    thing: Any = Thing("a", 1)
    vars(thing).update({"fi": 5, "\ufb01": 7})
    loop = RowsLoop([tr.Sum("\ufb01")])
    assert loop.over([thing], attrgetter("shop"), [field_getter("\ufb01", thing)], {}, lambda key: (key, 0)) == [
        ("a", 7)
    ]


def of_records(records: list[Any]) -> None:
    env = tr.Environment(parallelism=1)
    stream = env.from_collection(records).key_by(itemgetter(0)).aggregate(total=tr.Sum(itemgetter(1)))
    stream.sink_to(tr.sinks.Callback(lambda record: None))
    tr.testing.run(env)


def test_a_field_that_is_not_there_is_reported_with_its_record() -> None:
    with pytest.raises(tr.JobFailed, match=r"record \('b',\): reading 'itemgetter' from a record raised IndexError"):
        of_records([("a", 1), ("b",), ("a", 2)])


def test_a_key_that_cannot_be_one_is_reported_with_its_record() -> None:
    with pytest.raises(tr.JobFailed, match=r"record \(\[\], 1\): \[\] of type list cannot be a key"):
        of_records([("a", 1), ([], 1)])
