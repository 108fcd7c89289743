"""Queries in SQL on streams in columns: results, and what is refused, with its place in the text."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.api.sql.functions import ALIASES, FUNCTIONS, INSTEAD, LAZY, REWRITTEN
from tailrace.errors import GraphError, TypeMismatch

ROWS = [(1, 2.5, "Tea", None), (7, 0.0, "jam", 3), (None, None, None, -4)]
SCHEMA = "a int, x double, s string, n long"


def stream(rows: Any = ROWS, schema: Any = SCHEMA) -> tr.DataStream:
    return tr.Environment(parallelism=1).from_collection(rows).to_columns(schema)


def results(query: str, given: tr.DataStream | None = None, **options: Any) -> list[Any]:
    made = (stream() if given is None else given).sql(query, **options)
    sink = made.sink_to(tr.sinks.Collect())
    tr.testing.run(made.env)
    found = sink.result()
    assert all(row.asDict().keys() == set(made.columns or ()) for row in found)
    return [tuple(row) for row in found]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select a, x * 2 as y from stream where a > 1", [(7, 0.0)]),
        ("SELECT A AS b, stream.s FROM STREAM", [(1, "Tea"), (7, "jam"), (None, None)]),
        ("select t.a from stream as t where t.s like 'T%';", [(1,)]),
        ("select * from stream where n in (3, 5)", [(7, 0.0, "jam", 3)]),
        ("select * except (x, N), s || '!' as loud from stream where a = 1", [(1, "Tea", "Tea!")]),
        ("select a + 1 as b, b * 2 as c from stream where a is not null", [(2, 4), (8, 16)]),
        ("select case when x <> 0 then a / x end as r from stream", [(0.4,), (None,), (None,)]),
        ("select coalesce(a, n) as v, a <=> null as k from stream", [(1, False), (7, False), (-4, True)]),
        ("select n % 3 as r, n div 3 as q, n / 3 as p from stream where n < 0", [(-1, -1, -4 / 3)]),
        ("select 2147483648 as a, -2147483648 as b, 1.50 as c, 1e1 as d, 'it\\'s' as e from stream where a = 7",
         [(2147483648, -2147483648, Decimal("1.50"), 10.0, "it's")]),
        ("from stream select a where a = 1 -- a comment", [(1,)]),
        ("select a, /* not b */ `s` as `x y` from `stream` where not (a = 7 or n is null)", []),
    ],
)  # fmt: skip
def test_a_query_gives_the_columns_that_it_names(query: str, expected: list[Any]) -> None:
    assert results(query) == expected


def test_a_field_of_a_struct_is_reached_by_its_name() -> None:
    inner = pa.struct([("u", pa.int32()), ("v", pa.string())])
    given = stream([({"u": 3, "v": "a"},), (None,)], pa.schema([("p", inner)]))
    assert results("select p.u as u, stream.P.V as v, p from stream", given) == [
        (3, "a", {"u": 3, "v": "a"}),
        (None, None, None),
    ]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("select weird(a) as b from stream", r"'weird' is not translated \(line 1, column 8\); use map_batches"),
        ("select a,\n  sum(x) as y from stream", r"'sum' is not translated \(line 2, column 3\).*key_by\(...\).aggregate"),
        ("select a from stream group by a", r"GROUP BY is not translated \(line 1, column 31\); use key_by"),
        ("select distinct a from stream", "DISTINCT is not translated.*drop_duplicates"),
        ("select a from stream order by a", "ORDER BY is not translated.*top"),
        ("select a from stream limit 5", "LIMIT is not translated.*show"),
        ("select a from stream having a > 1", "HAVING is not translated"),
        ("select a from stream join other on true", "JOIN is not translated.*join.*lookup"),
        ("select a from stream, other", "JOIN is not translated"),
        ("select a from stream lateral view explode(s) t as c", r"LATERAL VIEW is not translated.*explode\(column\)"),
        ("select row_number() over (order by a) as r from stream", "OVER.*is not translated.*lag"),
        ("with t as (select 1) select a from t", "WITH is not translated"),
        ("select a from (select a from stream)", "a query in a query is not translated"),
        ("select a from stream where a in (select 1)", "a query in a query is not translated.*lookup"),
        ("select a from other", r"there is no table 'other' \(line 1, column 15\); the table of a query is stream"),
        ("select a from db.stream", "db of Table is not translated"),
        ("select a from stream tablesample (5 rows)", "sample of Table is not translated"),
        ("select a from stream version as of 3", "version of Table is not translated"),
        ("select 1 as a", "there is no FROM"),
        ("select a from stream union select a from stream", "UNION is not translated"),
        ("insert into x select a from stream", "INSERT is not translated"),
        ("select a from stream; select s from stream", "give one query, not 2"),
        ("select a frm stream x", r"no SQL that can be read.*line 1, at 'stream'"),
        ("", "give one query"),
        ("select a from stream |> where a > 1", r"the pipe \|> is not translated"),
        ("select /*+ broadcast(a) */ a from stream", "a hint is not translated"),
        ("select gone from stream", "there is no column 'gone' .line 1, column 8.; the stream has a, x, s, n"),
        ("select a from stream where b > 1", "there is no column 'b'"),
        ("select a + 1 as b from stream where b > 1", "there is no column 'b'"),
        ("select a.b as c from stream", "there is no field 'b' in a, which is int32"),
        ("select * except (z) from stream", "there is no column 'z' to leave out"),
        ("select s.* from stream", r"s\.\* is not translated"),
        ("select a, s as a from stream", "two columns 'a'; give one another name"),
        ("select a + 1 from stream", "a result has no name.*as name"),
        ("select null as b from stream", "always null has no type.*cast"),
        ("select a from stream where null", "always null has no type.*as boolean"),
        ("select case when null then a end as b from stream", "always null has no type.*as boolean"),
        ("select a as b, s as B, b as c from stream", "'b' is the name of 2 results.*rename one"),
        ("select nvl(a) as b from stream", "'nvl' takes 2 arguments, not 1"),
        ("select a from stream where a", "a condition of int, which is no truth value"),
        ("select a from stream where s", "a condition of string"),
        ("select s + 1 as b from stream", r"`\+` of string and int is not translated"),
        ("select a = s as b from stream", "`=` of int and string is not translated.*cast one of them"),
        ("select cast(x as string) as b from stream", "a cast from double to string is not translated"),
        ("select try_cast(s as int) as b from stream", "try_cast is not translated.*use cast"),
        ("select s::int as b from stream", r"a cast by :: .*cast\(x as type\)"),
        ("select cast(s as varchar(3)) as b from stream", "the type varchar .*use string.* is not translated"),
        ("select cast(a as interval) as b from stream", "the type interval is not translated"),
        ("select cast(n as timestamp_ntz) as b from stream", "a cast from bigint to timestamp_ntz is not translated"),
        ("select cast(s as timestamp) as b from stream", "depends on the time zone of a session"),
        ("select timestamp '2024-05-01 12:00:00' as b from stream", "depends on the time zone of a session.*Z'"),
        ("select current_timestamp() as b from stream", "other values when a job goes on after a failure"),
        ("select rand() as b from stream", "other values when a job goes on after a failure"),
        ("select date_format(s, 'yyyy') as b from stream", "depends on the time zone of a session"),
        ("select interval 3 months as b from stream", "this interval is not translated.*one of the units microsecond"),
        ("select exp(x) as b from stream", "its last digits differ"),
        ("select round(x, 2) as b from stream", r"round of double to 2 places is not translated.*decimal\(18,6\)"),
        ("select 1.5 / 2.5 as b from stream", "a division of decimals is not translated"),
        ("select x % 2 as b from stream", "`%` of double and int is not translated"),
        ("select 'a' 'b' as b from stream", r"stand beside each other.*put \|\| between"),
        ("select s like a as b from stream", "pattern of like that is no constant string"),
        ("select s like 'a!%' escape '!' as b from stream", "is not translated"),
        ("select s like 'a\\\\b' as b from stream", r"before neither"),
        (r"select s rlike r'a\b' as b from stream", "may have another meaning in Arrow than in Spark"),
        (r"select s rlike 'a$' as b from stream", "may have another meaning"),
        (r"select s rlike 'a.c' as b from stream", "may have another meaning"),
        ("select s rlike 'é' as b from stream", "may have another meaning"),
        ("select substring(s, a) as b from stream", "the start of a substring that is no constant integer"),
        ("select upper(s, s) as b from stream", "'upper' takes 1 arguments, not 2"),
        ("select if(a = 1, 2) as b from stream", "if needs three arguments"),
        ("select count(distinct a) as b from stream", "is not translated"),
        ("select sum(a) filter (where a > 1) as b from stream", "is not translated"),
        ("select n[0] as b from stream", "is not translated"),
        ("select a:b from stream", "this name of a column is not translated"),
        ("select explode(s) as b from stream", r"use explode\(column\)"),
        ("select struct(a, s) as b from stream", "'struct' is not translated"),
        ("select cast(1.5 as decimal(40,2)) as b from stream", r"decimal\(40,2\) is no type"),
        ("select a from stream for update", "locks of Select is not translated"),
        ("select transform(a) using 'x' from stream", "is not translated"),
        ("select coalesce(, a) as b from stream", r"nothing beside a comma \(line 1, column 17\)"),
        ("select a, from stream", "nothing beside a comma"),
        ("select a in (1, ) as b from stream", "nothing beside a comma"),
        ("values (1)", "VALUES is not translated"),
    ],
)  # fmt: skip
def test_what_is_not_translated_is_refused_with_its_name_and_its_place(query: str, why: str) -> None:
    with pytest.raises(GraphError, match=f"sql: .*{why}"):
        stream().sql(query)


@pytest.mark.parametrize(
    "condition",
    [
        "a | 1 & 2",
        "a || s + 'x'",
        "a << 1 | 2",
        "a between 1 and 2 = true",
        "a = 1 and s is null is null",
        "a ^ 1 & 2",
        "not a > 2 <=> 1 > 0",
    ],
)
def test_where_sqlglot_groups_operators_in_another_way_than_spark_parentheses_are_required(condition: str) -> None:
    with pytest.raises(GraphError):
        stream().sql(f"select {condition} as b from stream")


def test_operators_of_bits_bind_as_in_spark_or_need_parentheses() -> None:
    assert results("select a & 3 | 8 as b, a | (1 & 2) as c from stream where a = 1") == [(9, 1)]
    with pytest.raises(GraphError, match=r"which operator comes first here\? \(line 1, column 8\); write parentheses"):
        stream().sql("select a | 1 & 2 as b from stream")


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("select a / (a - 1) as b from stream", "column 'b' cannot be computed: ArrowInvalid: division by zero"),
        ("select a % 0 as b from stream", "divide by zero"),
        ("select a + 2147483647 as b from stream", "overflow"),
        ("select cast(n * 100 as tinyint) as b from stream", "does not fit"),
        ("select a from stream where 1 / x > 0", "the condition cannot be computed: ArrowInvalid: division by zero"),
        ("select cast(s as date) as b from stream", "a text is no date as yyyy-mm-dd"),
    ],
)
def test_what_is_an_error_in_spark_fails_the_job_with_the_record(query: str, why: str) -> None:
    with pytest.raises(tr.JobFailed, match=rf"record \((?s:.*){why}"):
        results(query)


def test_parts_that_spark_leaves_out_do_not_fail() -> None:
    """Arrow computes all branches, so records of other branches count as null in them."""
    given = "case when a = 7 then 1 when a % (a - 7) = 1 then 2 else a div (a - 7) end as p"
    assert results(f"select {given} from stream where a = 7") == [(1,)]
    query = "select x = 0 or a / x > 0 as o, x <> 0 and a / x > 0 as n, coalesce(a, n div (a - a)) as c from stream"
    assert results(query) == [(True, True, 1), (True, False, 7), (None, None, None)]


def test_a_stream_in_rows_or_without_types_is_refused() -> None:
    rows = tr.Environment(parallelism=1).from_collection(ROWS)
    with pytest.raises(TypeMismatch, match=r"sql: it needs a stream in columns.*call to_columns\(schema\) before"):
        rows.sql("select a from stream")
    made = stream().map_batches(lambda batch: batch)
    with pytest.raises(TypeMismatch, match="sql 'far': the types of the columns are not known"):
        made.sql("select a from stream", name="far")
    with pytest.raises(GraphError, match="sql: expected a query such as"):
        stream().sql(3)  # type: ignore[arg-type]


def test_columns_that_differ_only_in_the_size_of_their_letters_are_refused() -> None:
    given = stream([(1, 2)], "a int, A int")
    with pytest.raises(GraphError, match="'a' may be 'a' or 'A'"):
        given.sql("select a from stream")


def test_a_query_is_a_filter_and_a_select_with_the_options_of_verbs() -> None:
    made = stream().sql("select a + 1 as b from stream where a > 1", uid="q", name="query", parallelism=3)
    last = list(made.env._graph.nodes)[-2:]
    assert [(node.uid, node.name, node.parallelism) for node in last] == [
        ("q-where", "query-where", 3),
        ("q", "query", 3),
    ]
    whole = stream().sql("select * from stream where a > 1", uid="q")
    assert [node.uid for node in whole.env._graph.nodes][-1] == "q"
    with pytest.raises(GraphError, match="unknown option uidd"):
        stream().sql("select a from stream", uidd="q")


def test_types_that_spark_has_not_pass_and_have_no_functions() -> None:
    schema = pa.schema([("u", pa.uint8()), ("t", pa.timestamp("ns"))])
    given = tr.Environment(parallelism=1).from_collection([(1, None)]).to_columns(schema)
    assert results("select u, t is null as k from stream", given) == [(1, True)]
    with pytest.raises(GraphError, match=r"'\+' of uint8 is not translated"):
        given.sql("select u + 1 as v from stream")


def test_each_name_of_a_function_is_there_once() -> None:
    names = [*FUNCTIONS, *LAZY, *REWRITTEN]
    assert len(names) == len(set(names))
    assert not set(names) & (set(ALIASES) | set(INSTEAD)) and not set(ALIASES) & set(INSTEAD)
    assert set(ALIASES.values()) <= set(names)


def test_columns_of_arrow_count_as_the_types_of_spark_that_have_their_values() -> None:
    schema = pa.schema(
        [
            ("z", pa.timestamp("us", "Europe/Berlin")),
            ("w", pa.timestamp("s")),
            ("t", pa.date64()),
            ("s", pa.large_string()),
            ("v", pa.duration("s")),
        ]
    )
    when = datetime(2024, 5, 1, 12, tzinfo=UTC)
    row = when, when.replace(tzinfo=None), when.date(), "ab", timedelta(minutes=5)
    given = tr.Environment(parallelism=1).from_collection([row]).to_columns(schema)
    query = """
        select unix_seconds(z) as a, z = timestamp '2024-05-01 14:00:00+02:00' as b, hour(w + v) as c, last_day(t) as d,
               upper(s) || 'c' as e, t = '2024-05-01' as f, s, z
        from stream
    """
    assert results(query, given) == [(1714564800, True, 12, date(2024, 5, 31), "ABc", True, "ab", when)]


def test_a_query_that_is_nested_too_deeply_is_refused() -> None:
    deep = "(" * 3000 + "a" + ")" * 3000
    with pytest.raises(GraphError, match=r"sql: .*(nested too deeply|no SQL that can be read)"):
        stream().sql(f"select {deep} as b from stream")
    many = ", ".join(map(str, range(2000)))
    assert results(f"select a from stream where a in ({many})") == [(1,), (7,)]


@pytest.mark.parametrize("text", ["abs(m)", "- m"])
def test_the_sign_of_a_decimal_that_spark_would_round_is_refused(text: str) -> None:
    """Spark keeps 34 digits there, and fails where the rounded number does not fit."""
    given = stream([(Decimal("-9999999999999999999999999999.9999999999"),)], "m decimal(38,10)")
    with pytest.raises(GraphError, match=r"decimal\(38,10\) is not translated: Spark rounds it to 34 digits"):
        given.sql(f"select {text} as r from stream")
    narrow = stream([(Decimal("-999999999999999999999999.9999999999"),)], "m decimal(34,10)")
    assert results(f"select {text} as r from stream", narrow) == [(Decimal("999999999999999999999999.9999999999"),)]


@pytest.mark.parametrize("text", ["-nan", "0x1p3", "1.5d", "+5", " 1", "1e", "1_0"])
def test_texts_that_spark_and_arrow_read_differently_are_no_numbers(text: str) -> None:
    with pytest.raises(tr.JobFailed):
        results("select cast(s as double) as b from stream", stream([(1, 1.0, text, 1)]))
