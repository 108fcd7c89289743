"""A record that fails goes aside, and its call leaves no trace."""

import random
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tailrace as tr

ASIDE = tr.Aside("errors")
NUMBERS = ["1", "x", "3", "", "5"]


def results(stream: tr.DataStream, tag: str = "errors") -> tuple[list[Any], list[tr.Failed]]:
    """The main output, and what went aside. Columns come as tuples."""
    out, aside = tr.sinks.Collect(), tr.sinks.Collect()
    stream.to_rows().sink_to(out)
    stream.side_output(tag).sink_to(aside)
    tr.testing.run(stream.env)
    return out.result(), aside.result()


def source(items: list[Any], **options: Any) -> tr.DataStream:
    return tr.Environment(parallelism=1, **options).from_collection(items)


def parse(text: str) -> int:
    return int(text)


def parse_each(text: str) -> Iterator[int]:
    for one in text.split():
        yield int(one)


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        (lambda s: s.map(parse, on_error=ASIDE), [1, 3, 5]),
        (lambda s: s.filter(lambda text: int(text) > 1, on_error=ASIDE), ["3", "5"]),
        (lambda s: s.flat_map(lambda text: [parse(text)] * 2, on_error=ASIDE), [1, 1, 3, 3, 5, 5]),
        (lambda s: s.process(lambda text, ctx: [parse(text)], on_error=ASIDE), [1, 3, 5]),
        (lambda s: s.key_by(lambda text: int(text) % 2, on_error=ASIDE), ["1", "3", "5"]),
        (lambda s: s.key_by(lambda t: 0).sum(lambda t: int(t), on_error=ASIDE), [(0, 1), (0, 4), (0, 9)]),
        (lambda s: s.key_by(lambda t: 0).reduce(add, on_error=ASIDE), ["1", "13", "135"]),
        (lambda s: s.assign_timestamps(lambda text: float(text), on_error=ASIDE), ["1", "3", "5"]),
    ],
)
def test_the_others_go_on_and_the_failed_ones_go_aside(verb: Any, expected: list[Any]) -> None:
    found, aside = results(verb(source(NUMBERS)))
    assert found == expected
    assert [one.record for one in aside] == ["x", ""]
    assert all("ValueError: " in one.error for one in aside)


def add(before: str, text: str) -> str:
    return before + str(int(text))


def test_a_failed_record_names_the_users_line_and_the_operator() -> None:
    _, aside = results(source(NUMBERS).map(parse, on_error=ASIDE, name="parsed"))
    assert re.fullmatch(r"test_failed_records\.py:\d+, in parse", aside[0].where)
    assert aside[0].operator == "parsed"
    _, aside = results(source(NUMBERS).map(int, on_error=ASIDE))
    assert re.search(r"map is written at .*test_failed_records\.py:\d+: _, aside", aside[0].where)


def test_addresses_in_errors_are_left_out_because_they_differ_in_each_process() -> None:
    def fail(value: Any) -> None:
        raise ValueError(f"{object()} is odd")

    _, aside = results(source([1]).map(fail, on_error=ASIDE))
    assert aside[0].error == "ValueError: <object object at 0x…> is odd"


def test_records_before_the_failure_of_one_call_are_not_emitted() -> None:
    found, aside = results(source(["1 2", "3 x", "4"]).flat_map(parse_each, on_error=ASIDE))
    assert (found, [one.record for one in aside]) == ([1, 2, 4], ["3 x"])


def test_a_failed_record_keeps_its_timestamp() -> None:
    timed = source([(10.0, "x")]).assign_timestamps(lambda r: r[0])
    aside = timed.map(lambda r: int(r[1]), on_error=ASIDE).side_output("errors")
    out = tr.sinks.Collect()
    aside.process(lambda one, ctx: [ctx.timestamp]).sink_to(out)
    tr.testing.run(timed.env)
    assert out.result() == [10.0]


class Everything(tr.KeyedProcessFunction):
    """Changes each kind of state, sets and deletes timers, emits, and raises for negative numbers."""

    seen = tr.ValueState(int, default=0)
    bag = tr.ValueState(list, default=[])
    log = tr.ListState(int)
    shelves = tr.MapState(int, int)
    most = tr.ReducingState(int, reduce=max)
    mean = tr.AggregatingState(object, aggregate=tr.Mean())
    total = tr.OperatorState(list, default=[])

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        self.seen.value += 1
        self.bag.value.append(value)
        self.log.append(value)
        self.shelves.put(value, self.shelves.get(value, 0) + 1)
        self.most.add(abs(value))
        self.mean.add(value)
        self.total.value.append(value)
        ctx.delete_timer(event_time=1_000)
        ctx.set_timer(event_time=2_000 + value)
        ctx.emit("seen", value)
        yield value
        if value < 0:
            self.log.clear()
            self.shelves.value = {}
            raise ValueError(value)
        ctx.set_timer(event_time=1_000)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield timestamp

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        yield "total", self.total.value


@pytest.mark.parametrize("policy", [ASIDE, tr.Retry(3, then=ASIDE)])
@pytest.mark.parametrize("backend", ["memory", "disk"])
def test_the_changes_of_a_failed_call_are_undone(policy: Any, backend: str, scratch: Any) -> None:
    def outcome(items: list[int], **options: Any) -> tuple[list[Any], list[Any]]:
        env = tr.Environment(parallelism=1, state_backend=backend)
        out, seen = tr.sinks.Collect(), tr.sinks.Collect()
        stream = env.from_collection(items).key_by(lambda n: 0).process(Everything(), **options)
        stream.sink_to(out)
        stream.side_output("seen").sink_to(seen)
        tr.testing.run(env)
        return out.result(), seen.result()

    assert outcome([5, -1, 7, -2, -5, 5], on_error=policy) == outcome([5, 7, 5])


def test_a_timer_that_fails_goes_aside_with_its_key_and_time() -> None:
    class Late(tr.KeyedProcessFunction):
        fired = tr.ValueState(int, default=0)

        def process(self, value: int, ctx: tr.Context) -> None:
            ctx.set_timer(event_time=value)

        def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
            self.fired.value += 1
            if timestamp == 2:
                raise ValueError("two")
            yield timestamp, self.fired.value

    found, aside = results(source([1, 2, 3]).key_by(lambda n: "k").process(Late(), on_error=ASIDE))
    assert found == [(1.0, 1), (3.0, 2)]
    assert [(one.record, one.error, one.key, one.timer) for one in aside] == [(None, "ValueError: two", "k", 2.0)]


def test_two_connected_streams_go_aside_as_well() -> None:
    class Both(tr.CoProcessFunction):
        def process1(self, value: int, ctx: tr.Context) -> list[int]:
            return [10 // value]

        def process2(self, value: str, ctx: tr.Context) -> list[int]:
            return [int(value)]

    env = tr.Environment(parallelism=1)
    both = env.from_collection([0, 5]).connect(env.from_collection(["x", "3"])).process(Both(), on_error=ASIDE)
    found, aside = results(both)
    assert sorted(found) == [2, 3]
    assert sorted(one.error.partition(":")[0] for one in aside) == ["ValueError", "ZeroDivisionError"]


def test_a_retry_calls_again_and_fails_with_the_number_of_calls() -> None:
    calls: list[int] = []

    def shaky(value: int) -> int:
        calls.append(value)
        if calls.count(value) < value:
            raise ConnectionError(value)
        return value

    env = tr.Environment(parallelism=1)
    out = tr.sinks.Collect()
    env.from_collection([1, 2, 3]).map(shaky, on_error=tr.Retry(3)).sink_to(out)
    tr.testing.run(env)
    assert (out.result(), calls) == ([1, 2, 3], [1, 2, 2, 3, 3, 3])

    env.from_collection([4]).map(shaky, on_error=tr.Retry(3)).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"record 4: ConnectionError: 4 in each of 3 calls"):
        tr.testing.run(env)


@pytest.mark.parametrize(("bad", "fails"), [(19, False), (20, False), (21, True)])
def test_a_larger_share_than_allowed_fails_the_job_for_good(bad: int, fails: bool) -> None:
    env = tr.Environment(parallelism=1, restart=tr.FixedDelay(attempts=5, delay=0.0))
    items = ["x"] * bad + ["1"] * (200 - bad)
    env.from_collection(items).map(int, on_error=tr.Aside("errors", at_most=0.1)).sink_to(tr.sinks.Collect())
    if not fails:
        tr.testing.run(env)
        return
    with pytest.raises(tr.JobFailed, match=r"21 of 200 records failed, .* a share of 10.000%; the last error was Val"):
        tr.testing.run(env)


def test_the_share_counts_early_once_there_are_enough_records() -> None:
    env = tr.Environment(parallelism=1)
    numbers = env.from_source(tr.sources.Sequence(0, 100_000))
    numbers.map(lambda n: 1 // 0, on_error=tr.Aside("errors", at_most=0.5)).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"of \d?\d,\d\d\d records failed"):
        tr.testing.run(env)


@pytest.mark.parametrize("kind", [tr.StateAccessError, MemoryError, KeyboardInterrupt])
def test_what_no_record_is_to_blame_for_still_fails_the_job(kind: type[BaseException]) -> None:
    class Wrong(tr.KeyedProcessFunction):
        seen = tr.ValueState(int, default=0)

        def process(self, value: int, ctx: tr.Context) -> None:
            raise kind("wrong")

    env = tr.Environment(parallelism=1, restart=tr.NoRestart())
    env.from_collection([1]).key_by(lambda n: n).process(Wrong(), on_error=ASIDE).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match="wrong"):
        tr.testing.run(env)


def test_a_harness_takes_a_policy_and_shows_what_went_aside() -> None:
    harness = tr.testing.harness(Everything(), key=lambda n: 0, on_error=ASIDE)
    assert (harness.push(5), harness.push(-1), harness.push(7)) == ([5], [], [7])
    assert [one.record for one in harness.side("errors")] == [-1]
    assert harness.state("seen") == {0: 2} and harness.state("log") == {0: [5, 7]} and harness.timers["event"] == 3


# Batches: tried in halves.

SCHEMA = pa.schema([("n", pa.int64())])


def halves(batch: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.equal(batch.column("n"), 3)).as_py():
        raise ValueError("three")
    return batch


class Summing(tr.MapBatchesFunction):
    total = tr.OperatorState(list, default=[])

    def map_batches(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.total.value.extend(batch.column("n").to_pylist())
        return halves(batch)

    def finish(self) -> pa.RecordBatch:
        return pa.record_batch({"n": [sum(self.total.value)]})


@pytest.mark.parametrize(
    ("verb", "expected", "failed"),
    [
        (lambda s: s.map_batches(halves, schema=SCHEMA, on_error=ASIDE), [(1,), (2,), (4,)], [(3,)]),
        (lambda s: s.map_batches(Summing(), schema=SCHEMA, on_error=ASIDE), [(1,), (2,), (4,), (7,)], [(3,)]),
        (
            lambda s: s.to_columns(SCHEMA).select(
                m=pc.divide(pc.scalar(6), pc.subtract(pc.field("n"), 3)), on_error=ASIDE
            ),
            [(-3,), (-6,), (6,)],
            [(3,)],
        ),
        (
            lambda s: s.to_columns(SCHEMA).filter(
                pc.greater(pc.divide(pc.scalar(6), pc.subtract(pc.field("n"), 3)), 0), on_error=ASIDE
            ),
            [(4,)],
            [(3,)],
        ),
    ],
)
def test_a_batch_that_fails_is_tried_in_halves(verb: Any, expected: list[Any], failed: list[Any]) -> None:
    found, aside = results(verb(source([(1,), (2,), (3,), (4,)])))
    assert [tuple(one) for one in found] == expected
    assert [tuple(one.record) for one in aside] == failed


def test_a_record_that_does_not_fit_a_schema_goes_aside() -> None:
    found, aside = results(source([(1,), ("x",), (1 << 70,), (4,)]).to_columns(SCHEMA, on_error=ASIDE))
    assert [tuple(one) for one in found] == [(1,), (4,)]
    assert [one.record for one in aside] == [("x",), (1 << 70,)]
    assert "column 'n' is declared int64" in aside[0].error


@pytest.mark.parametrize("early", [None, tr.Every(records=2)])
@pytest.mark.parametrize(("windows", "each"), [(tr.Tumbling(10), 1), (tr.Sliding(10, 5), 2)])
def test_a_record_that_fails_is_in_none_of_its_windows(windows: Any, each: int, early: Any) -> None:
    calls: list[Any] = []

    class Total(tr.AggregateFunction):
        """Raises for a negative number where it is added to the last one of its windows."""

        def create_accumulator(self) -> int:
            return 0

        def add(self, value: Any, accumulator: int) -> int:
            calls.append(value)
            if value[1] < 0 and calls.count(value) % each == 0:
                raise ValueError(value)
            return accumulator + value[1]

        def get_result(self, accumulator: int) -> int:
            return accumulator

    def outcome(items: list[Any], **options: Any) -> list[Any]:
        timed = source(items).assign_timestamps(lambda r: float(r[0]))
        out = tr.sinks.Collect()
        timed.key_by(lambda r: 0).window(windows, early=early).aggregate(Total(), **options).sink_to(out)
        tr.testing.run(timed.env)
        return [tuple(one) for one in out.result()]

    assert outcome([(1, 3), (6, -5), (7, 4)], on_error=ASIDE) == outcome([(1, 3), (7, 4)])
    assert outcome([(1, 3), (6, -5)], on_error=ASIDE) == outcome([(1, 3)])  # nothing comes behind it


@pytest.mark.parametrize("windows", [tr.Tumbling(10), tr.CountWindow(2)])
def test_a_window_without_a_result_fails_the_job_and_sets_no_record_aside(windows: Any) -> None:
    class NoTwo(tr.AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: Any, accumulator: int) -> int:
            return accumulator + 1

        def get_result(self, accumulator: int) -> int:
            return 1 // (2 - accumulator)

    keyed = source([1, 2, 3], restart=tr.NoRestart()).assign_timestamps(float).key_by(lambda r: 0)
    out = keyed.window(windows, early=tr.Every(records=2)).aggregate(NoTwo(), on_error=ASIDE)
    out.sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match="get_result raised ZeroDivisionError"):
        tr.testing.run(out.env)


def test_calls_in_the_order_of_time_go_aside_as_well() -> None:
    timed = source([3, 0, 2]).assign_timestamps(lambda n: n, out_of_orderness=5).key_by(lambda n: 0)
    found, aside = results(timed.process(lambda n, ctx: [6 // n], in_order=True, on_error=ASIDE))
    assert (found, [one.record for one in aside]) == ([3, 2], [0])


def _with_bad(fn: Any) -> Any:
    """The function of one record, which raises for negative numbers."""

    def call(n: int, *more: Any) -> Any:
        if n < 0:
            raise ValueError(n)
        return fn(n, *more)

    return call


class MeanOfGood(tr.AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return _with_bad(lambda n: [*accumulator, n])(value)  # type: ignore[no-any-return]

    def get_result(self, accumulator: list[int]) -> float:
        return sum(accumulator) / len(accumulator)

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b


PIPELINES: list[Any] = [
    lambda s, **o: s.map(_with_bad(lambda n: n * 2), **o),
    lambda s, **o: s.key_by(lambda n: n % 3).process(_with_bad(lambda n, ctx: [(ctx.key, n)]), **o),
    lambda s, **o: s.key_by(_with_bad(lambda n: n % 3), **o).count(),
    lambda s, **o: s.key_by(lambda n: n % 3).sum(_with_bad(lambda n: n), **o),
    lambda s, **o: s.key_by(lambda n: n % 3).aggregate(MeanOfGood(), **o),
    lambda s, **o: s.key_by(lambda n: n % 3).aggregate(a=MeanOfGood(), b=tr.Sum(_with_bad(lambda n: n)), **o),
    lambda s, **o: s.key_by(lambda n: n % 3).window(tr.Sliding(20, 10)).aggregate(MeanOfGood(), **o),
    lambda s, **o: s.key_by(lambda n: n % 3).window(tr.Tumbling(10)).sum(_with_bad(lambda n: n), **o),
    lambda s, **o: s.key_by(lambda n: n % 3).window(tr.Session(3)).aggregate(MeanOfGood(), **o),
    lambda s, **o: s.key_by(lambda n: n % 3).window(tr.Session(_with_bad(lambda n: 1 + n % 4))).sum(lambda n: n, **o),
]


@pytest.mark.parametrize("pipeline", range(len(PIPELINES)))
@pytest.mark.parametrize("seed", range(3))
def test_results_are_those_of_the_records_that_do_not_fail(pipeline: int, seed: int) -> None:
    rng = random.Random(seed)
    items = [rng.randint(1, 60) * rng.choice([1, 1, 1, -1]) for _ in range(rng.choice([1, 10, 300]))]
    good = [n for n in items if n >= 0]

    def outcome(numbers: list[int], **options: Any) -> tuple[list[Any], list[Any]]:
        env = tr.Environment(parallelism=1)
        timed = env.from_collection(numbers).assign_timestamps(abs, out_of_orderness=100)
        out, aside = tr.sinks.Collect(), tr.sinks.Collect()
        keyed = PIPELINES[pipeline](timed, **options)
        keyed.sink_to(out)
        for node in env._graph.nodes if options else ():
            if node.on_error != "fail":
                tr.DataStream(env, ((node.id, "errors"),), "rows").sink_to(aside)
        tr.testing.run(env)
        failed = [one.record for one in aside.result()] if options else []
        return sorted(map(tuple, out.result()) if pipeline else out.result()), failed

    assert outcome(items, on_error=ASIDE) == (outcome(good)[0], [n for n in items if n < 0])


# Sources.


@pytest.mark.parametrize("options", [{}, {"rate": 1e6}])
def test_a_line_that_cannot_be_decoded_goes_aside(options: Any, tmp_path: Any) -> None:
    (tmp_path / "log.txt").write_bytes("\ufeffone\r\n".encode() + b"b\xffd\nthree")
    source = tr.sources.TextFiles(str(tmp_path), **options)
    found, aside = results(tr.Environment(parallelism=1).from_source(source, on_error=ASIDE))
    assert found == ["one", "three"]
    assert [one.record for one in aside] == [b"b\xffd"] and "UnicodeDecodeError" in aside[0].error


def test_a_generator_goes_on_behind_a_number_for_which_its_function_raises() -> None:
    source = tr.sources.Generator(lambda i: 6 // (i - 1), count=4)
    found, aside = results(tr.Environment(parallelism=1, on_error=ASIDE).from_source(source))
    assert (found, [one.record for one in aside]) == ([-6, 6, 3], [1])


def test_a_source_that_parses_its_records_itself_refuses_it() -> None:
    env = tr.Environment(parallelism=1)
    with pytest.raises(tr.GraphError, match="let them give raw records, and parse these with map"):
        env.from_source(tr.sources.Sequence(0, 3), on_error=ASIDE)
    assert env.from_source(tr.sources.Sequence(0, 3), on_error="fail").form == "rows"
