"""What `on_error` takes, and where. Whatever cannot work is refused where it is written."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr


def stream(**options: Any) -> tr.DataStream:
    return tr.Environment(parallelism=1, **options).from_collection([1, 2, 3], uid="numbers")


ASIDE = tr.Aside("errors")


@pytest.mark.parametrize(
    "verb",
    [
        lambda s: s.map(str, on_error=ASIDE),
        lambda s: s.filter(bool, on_error=ASIDE),
        lambda s: s.flat_map(lambda n: [n], on_error=ASIDE),
        lambda s: s.process(lambda n, ctx: [n], on_error=ASIDE),
        lambda s: s.key_by(lambda n: n, on_error=ASIDE),
        lambda s: s.key_by(lambda n: n).process(lambda n, ctx: [n], on_error=ASIDE),
        lambda s: s.key_by(lambda n: n).reduce(max, on_error=ASIDE),
        lambda s: s.key_by(lambda n: n).count(on_error=ASIDE),
        lambda s: s.key_by(lambda n: n).sum(lambda n: n, on_error=ASIDE),
        lambda s: s.key_by(lambda n: n).aggregate(tr.Count(), on_error=ASIDE),
        lambda s: s.key_by(lambda n: n).window(tr.Tumbling(1)).aggregate(tr.Count(), on_error=ASIDE),
        lambda s: s.assign_timestamps(lambda n: n, on_error=ASIDE),
        lambda s: s.to_columns(pa.schema([("n", pa.int64())]), on_error=ASIDE),
        lambda s: s.map_batches(lambda b: b, schema=pa.schema([("n", pa.int64())]), on_error=ASIDE),
        lambda s: s.to_columns(pa.schema([("n", pa.int64())])).select("n", on_error=ASIDE),
        lambda s: s.to_columns(pa.schema([("n", pa.int64())])).with_columns(m="n", on_error=ASIDE),
    ],
)
def test_every_verb_that_runs_user_code_takes_it_and_has_the_side_output(
    verb: Callable[[tr.DataStream], tr.DataStream],
) -> None:
    side = verb(stream()).side_output("errors")
    assert side.form == "rows"


def test_the_environment_has_the_default_and_a_verb_may_say_otherwise() -> None:
    numbers = stream(on_error=tr.Aside("bad"))
    assert numbers.map(str).side_output("bad").form == "rows"
    with pytest.raises(tr.GraphError, match="no side outputs"):
        numbers.map(str, on_error="fail").side_output("bad")
    assert numbers.key_by(lambda n: n).side_output("bad").form == "rows"


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda: stream(on_error="skip"), r"on_error must be 'fail', a tr.Aside or a tr.Retry, not 'skip'"),
        (lambda: stream().map(str, on_error=True), r"map: on_error must be 'fail'"),
        (lambda: tr.Aside(""), "the tag must be a non-empty string"),
        (lambda: tr.Aside("errors", at_most=1.5), r"at_most is a share of the records, from 0 to 1, not 1.5"),
        (lambda: tr.Aside("errors", at_most=True), "at_most is a share"),
        (lambda: tr.Retry(0), "attempts is a number of calls, at least 1, not 0"),
        (lambda: tr.Retry(2, wait=-1), "wait must not be negative"),
        (lambda: tr.Retry(2, wait="soon"), "Retry: wait"),
        (lambda: tr.Retry(2, then="ignore"), "then must be 'fail' or a tr.Aside, not 'ignore'"),
        (lambda: stream().map(str, on_error=tr.Retry(2, wait=0.5)), "would hold up all records of the subtask"),
    ],
)
def test_what_is_no_policy_is_refused(write: Callable[[], object], error: str) -> None:
    with pytest.raises(tr.ConfigError, match=error):
        write()


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda s: s.sink_to(tr.sinks.Collect(), on_error=ASIDE), "check the record before the sink, with map"),
        (lambda s: s.env.from_collection([1], on_error=ASIDE), "parse the records behind the source, with map"),
        (lambda s: s.to_columns(SCHEMA).to_rows(on_error=ASIDE), "to_rows: takes no on_error"),
        (lambda s: s.to_columns(SCHEMA).key_by("n", on_error=ASIDE), "only a key that is a function of rows"),
        (lambda s: s.to_columns(SCHEMA).key_by("n").count(on_error=ASIDE), "count: takes no on_error"),
        (
            lambda s: s.key_by(lambda n: n).window(tr.Tumbling(1)).count(on_error=tr.Aside("late")),
            "'late' has the late records",
        ),
        (lambda s: s.process(emits, on_error=ASIDE), "emits to 'errors' itself"),
    ],
)
def test_where_it_cannot_work_it_is_refused_with_what_to_do(
    write: Callable[[tr.DataStream], object], error: str
) -> None:
    with pytest.raises(tr.GraphError, match=error):
        write(stream())


SCHEMA = pa.schema([("n", pa.int64())])


def emits(value: int, ctx: tr.Context) -> None:
    ctx.emit("errors", value)


def add_one(record: dict[str, int]) -> dict[str, int]:
    record["n"] += 1
    if record["n"] == 3:
        raise ValueError("three")
    return record


def add_one_in(record: dict[str, int], ctx: tr.Context) -> Iterator[dict[str, int]]:
    yield add_one(record)


@pytest.mark.parametrize("policy", [ASIDE, tr.Retry(3, then=ASIDE)])
@pytest.mark.parametrize(
    "verb",
    [
        lambda s, policy: s.map(add_one, on_error=policy),
        lambda s, policy: s.process(add_one_in, on_error=policy),
        lambda s, policy: s.key_by(lambda r: 0).process(add_one_in, on_error=policy),
        lambda s, policy: s.key_by(lambda r: r["n"] % 1).reduce(lambda old, new: add_one(new), on_error=policy),
    ],
)
def test_what_a_failed_call_has_changed_in_its_record_is_undone(
    verb: Callable[[tr.DataStream, object], tr.DataStream], policy: object
) -> None:
    env = tr.Environment(parallelism=1)
    made = verb(env.from_collection([{"n": 1}, {"n": 2}, {"n": 5}], uid="numbers"), policy)
    good, bad = made.map(dict).sink_to(tr.sinks.Collect()), made.side_output("errors").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [record["n"] for record in good.result()][-1] == 6
    assert [failed.record for failed in bad.result()] == [{"n": 2}]


def not_two(n: int) -> int:
    if n == 2:
        raise ValueError("two")
    return n


def windowed(stream: tr.DataStream, windows: Any = None) -> tr.WindowedStream:
    return stream.assign_timestamps(float).key_by(lambda n: 0).window(windows or tr.Tumbling(10))


COMPOSED: dict[str, Callable[[tr.DataStream], Any]] = {
    "top": lambda s: s.key_by(lambda n: 0).top(9, by=not_two, on_error=ASIDE),
    "top of windows": lambda s: windowed(s).top(9, by=not_two, on_error=ASIDE),
    "rank of counted windows": lambda s: windowed(s, tr.CountWindow(9)).rank(by=not_two, on_error=ASIDE),
    "gaps": lambda s: windowed(s, tr.Session(not_two)).process(lambda k, w, records, ctx: records, on_error=ASIDE),
    "lag": lambda s: s.key_by(lambda n: 0).lag(of=not_two, on_error=ASIDE),
    "sample": lambda s: s.sample(1.0, by=not_two, on_error=ASIDE),
    "split": lambda s: s.split(lambda n: not_two(n) > 0, on_error=ASIDE)[0],
    "split by name": lambda s: s.split(lambda n: "all" if not_two(n) else "none", into=["all", "none"], on_error=ASIDE)[
        0
    ],
}


@pytest.mark.parametrize("verb", COMPOSED)
def test_verbs_that_are_made_of_others_set_the_record_aside_where_its_code_failed(verb: str) -> None:
    made = COMPOSED[verb](stream())
    good, bad = made.sink_to(tr.sinks.Collect()), made.side_output("errors").sink_to(tr.sinks.Collect())
    tr.testing.run(made.env)
    assert len(good.result()) == 2 and [failed.record for failed in bad.result()] == [2]


def test_records_that_fail_in_windows_and_what_fails_for_windows_are_one_side_output() -> None:
    found = windowed(stream(on_error=ASIDE), tr.Session(not_two)).process(lambda key, window, records, ctx: 1 // 0)
    bad = found.side_output("errors").sink_to(tr.sinks.Collect())
    tr.testing.run(found.env)
    assert [failed.record if failed.record == 2 else failed.record.records for failed in bad.result()] == [2, [1], [3]]


def test_a_result_that_is_no_value_goes_aside_with_what_is_wrong() -> None:
    env = tr.Environment(parallelism=1)
    made = env.from_collection([1], uid="numbers").map(lambda n: (m for m in [n]), on_error=ASIDE)
    bad = made.side_output("errors").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    [failed] = bad.result()
    assert failed.error.startswith("the function gave a generator")
