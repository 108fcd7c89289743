"""Queries that are damaged at random are read, or refused with an error of ours: nothing else comes out of them."""

import random
import re

import pytest

from tailrace.api.sql.reader import read
from tailrace.api.sql.translation import check_condition
from tailrace.api.sql.tree import NotTranslated
from tailrace.api.sql.verb import select_columns
from tests.spark.sqlqueries import RULES, SCHEMA, expression

_WORDS = re.compile(r"r?'(?:[^'\\]|\\.)*'|\d+\.\d+\w*|\w+|\s+|[<>=!|]+|\S")
_PIECES = [
    "select",
    "from",
    "where",
    "(",
    ")",
    ",",
    "*",
    "+",
    "-",
    "and",
    "or",
    "not",
    "case",
    "when",
    "then",
    "else",
    "end",
    "between",
    "in",
    "is",
    "null",
    "as",
    ".",
    "[",
    "]",
    ";",
    "'",
    '"',
    "`",
    "--",
    "/*",
    "*/",
    "@",
    ":",
    "?",
    "::",
    "->",
    "=>",
    "date",
    "interval",
    "timestamp",
    "'1'",
    "5",
    "1.5e3",
    "0x1",
    "x'1F'",
    "union",
    "join",
    "on",
    "group",
    "by",
    "having",
    "limit",
    "lateral",
    "view",
    "explode",
    "over",
    "partition",
    "cast(",
    "try_cast(",
    "int",
    "decimal(3,1)",
    "array<int>",
    "struct",
    "map",
    "true",
    "{a}",
    "$1",
    "#",
    "distinct",
    "with",
    "values",
    "extract(",
    "year",
]


def damaged(rng: random.Random) -> str:
    """A query with words that are left out, put in, or exchanged."""
    given = expression(rng, rng.choice(list(RULES)), 2)
    words = _WORDS.findall(f"select *, {given} as x from stream where {expression(rng, 'truth', 1)}")
    for _ in range(rng.choice((1, 1, 2))):
        at, change = rng.randrange(len(words)), rng.random()
        if change < 0.3:
            del words[at]
        elif change < 0.7:
            words.insert(at, f" {rng.choice(_PIECES)} ")
        else:
            other = rng.randrange(len(words))
            words[at], words[other] = words[other], words[at]
    return "".join(words)


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_query_is_read_or_refused(seed: int) -> None:
    rng, read_ones, refused = random.Random(seed), 0, 0
    for _ in range(150):
        text = damaged(rng)
        try:
            found = read(text)
            if found.where is not None:
                check_condition(found.where, SCHEMA)
            select_columns(found, SCHEMA)
            read_ones += 1
        except NotTranslated as error:
            assert str(error)
            refused += 1
    assert read_ones > 5 and refused > 50
