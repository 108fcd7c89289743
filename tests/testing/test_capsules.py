"""Failed calls that a job keeps, and that are made again."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tailrace as tr
from tailrace.api.functions import MapFunction
from tailrace.runtime.capsules.rerun import same_error
from tailrace.task.contract.capsule import Capsule
from tailrace.task.contract.variables import Redaction

RECORDS = [("a", 1), ("b", 2), ("a", 3), ("b", -1), ("a", 5)]


def environment(**options: Any) -> tr.Environment:
    options.setdefault("restart", tr.FixedDelay(2, 0.1))
    return tr.Environment(parallelism=1, checkpoint=tr.CheckpointConfig(dir="unused", interval=0.1), **options)


def failed(env: tr.Environment) -> tuple[list[Capsule], tr.JobFailed]:
    job = tr.testing.simulate(env)
    error = job.exception()
    assert error is not None
    return [tr.testing.read_capsule(data) for data in job.capsules.values()], error


def check_same(capsule: Capsule) -> tr.testing.CapsuleHarness:
    """Makes the call again. Fails if it does not raise what it raised in the job."""
    harness = tr.testing.harness(capsule)
    with pytest.raises(tr.UserCodeError) as raised:
        harness.rerun()
    assert same_error(raised.value, capsule), (raised.value, capsule.error)
    return harness


def positive(record: Any) -> Any:
    if record[1] < 0:
        raise ValueError(f"negative: {record}")
    return record


class Sum(tr.KeyedProcessFunction):
    total = tr.ValueState(int, default=0)
    seen = tr.ListState(int)
    by = tr.MapState(str, int)

    def process(self, record: Any, ctx: Any) -> Any:
        self.total.value += record[1]
        self.seen.append(record[1])
        self.by["last"] = record[1]
        ctx.set_timer(event_time=100.0)
        if record[1] < 0:
            raise ValueError(f"{self.total.value} {self.seen.get()} {dict(self.by.items())} {ctx.timestamp} {ctx.key}")
        yield record[0], self.total.value

    def on_timer(self, timestamp: float, ctx: Any) -> Any:
        return ()


class AtTimer(Sum):
    def process(self, record: Any, ctx: Any) -> Any:
        self.total.value += record[1]
        ctx.set_timer(event_time=10.0)
        return ()

    def on_timer(self, timestamp: float, ctx: Any) -> Any:
        before, self.total.value = self.total.value, 0
        raise ValueError(f"{ctx.key} {before} at {timestamp}, {ctx.watermark}")


class Two(tr.CoProcessFunction):
    limit = tr.ValueState(int, default=0)

    def process1(self, record: Any, ctx: Any) -> Any:
        self.limit.value = record[1]
        return ()

    def process2(self, record: Any, ctx: Any) -> Any:
        raise ValueError(f"limit {self.limit.value} for {record}")


class OnlyPositive(tr.AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, record: Any, total: Any) -> Any:
        if record[1] < 0:
            raise ValueError(f"{record} after {total}")
        return total + record[1]

    def get_result(self, total: Any) -> Any:
        return total


class Opens(MapFunction):
    def open(self, ctx: Any) -> None:
        raise OSError("no such service")

    def map(self, record: Any) -> Any:
        return record


class Writes(tr.Sink):
    """A sink of a user."""

    def writer(self, ctx: Any) -> Any:
        return Refusing()

    def publish(self, prepared: Any) -> None:
        pass


class Refusing(tr.SinkWriter):
    def write(self, records: Any) -> None:
        for record in records:
            positive(record)

    def prepare(self) -> bytes | None:
        return None


def merge(a: Any, b: Any) -> Any:
    if b[1] < 0:
        raise ValueError(f"{a} and {b}")
    return a[0], a[1] + b[1]


def second(record: Any) -> float:
    return float(positive(record)[1])


def key_of(record: Any) -> Any:
    return positive(record)[0]


def whole(batch: Any) -> Any:
    for n in batch.column("n").to_pylist():
        positive(("", n))
    return batch


def timed(stream: Any) -> Any:
    return stream.assign_timestamps(lambda record: float(abs(record[1])))


KINDS = {
    "map": lambda s: s.map(positive),
    "fused": lambda s: s.map(lambda r: r).filter(lambda r: True).map(positive).map(lambda r: r),
    "filter": lambda s: s.filter(positive),
    "flat_map": lambda s: s.flat_map(lambda record: [positive(record)]),
    "map_batches": lambda s: s.to_columns("who string, n long").map_batches(whole),
    "assign_timestamps": lambda s: s.assign_timestamps(second),
    "key_by": lambda s: s.key_by(key_of).process(Sum()),
    "process": lambda s: s.process(lambda record, ctx: [positive(record)]),
    "keyed process": lambda s: s.key_by(lambda r: r[0]).process(Sum()),
    "in order": lambda s: timed(s).key_by(lambda r: r[0]).process(Sum(), in_order=True),
    "timer": lambda s: timed(s).key_by(lambda r: r[0]).process(AtTimer()),
    "connect": lambda s: (
        s.filter(lambda r: r[1] > 0)
        .key_by(lambda r: r[0])
        .connect(s.filter(lambda r: r[1] < 0).key_by(lambda r: r[0]))
        .process(Two())
    ),
    "reduce": lambda s: s.key_by(lambda r: r[0]).reduce(merge),
    "aggregate": lambda s: s.key_by(lambda r: r[0]).aggregate(total=OnlyPositive()),
    "window": lambda s: timed(s).key_by(lambda r: r[0]).window(tr.Tumbling(10)).aggregate(total=OnlyPositive()),
    "open": lambda s: s.map(Opens()),
    "sink": lambda s: s,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_call_raises_the_same_again_whatever_kind_the_operator_is(kind: str) -> None:
    env = environment()
    KINDS[kind](env.from_collection(RECORDS)).sink_to(Writes() if kind == "sink" else tr.sinks.Collect())
    capsules, error = failed(env)
    assert capsules, error
    check_same(capsules[-1])
    assert not capsules[-1].gaps
    assert "the failed call is kept, as capsules/" in str(error)


def test_state_and_timers_are_as_before_the_call_from_the_second_failure_on() -> None:
    env = environment()
    env.from_collection(RECORDS).key_by(lambda r: r[0]).process(Sum()).sink_to(tr.sinks.Collect())
    first, second, third = failed(env)[0]
    assert "as the failed call left them" in first.gaps[0]
    assert not second.gaps and not third.gaps
    assert second.error == first.error
    state = check_same(second).state
    assert (state["total"], state["seen"], state["by"]) == (2, [2], {"last": 2})


@pytest.mark.parametrize("options", [{"restart": tr.NoRestart()}, {"capsules": tr.Capsules(exact=True)}])
def test_where_calls_are_noted_the_first_failure_has_what_was_before_it(options: Any) -> None:
    env = environment(**options)
    env.from_collection(RECORDS).key_by(lambda r: r[0]).process(Sum()).sink_to(tr.sinks.Collect())
    first = failed(env)[0][0]
    assert not first.gaps
    check_same(first)


def test_random_numbers_and_answers_are_those_of_the_job() -> None:
    calls = []

    def ask() -> int:
        calls.append(1)
        return len(calls)

    def fn(record: Any, ctx: Any) -> Any:
        drawn, answer = ctx.random.random(), ctx.call(ask)
        if record[1] < 0:
            raise ValueError(f"{drawn} {answer} {ctx.now()}")
        yield record

    env = environment()
    env.from_collection(RECORDS).process(fn).sink_to(tr.sinks.Collect())
    capsule = failed(env)[0][-1]
    asked = len(calls)
    check_same(capsule)
    assert len(calls) == asked


def test_a_record_that_the_call_has_changed_is_as_it_was_from_the_second_failure_on() -> None:
    def takes(record: dict[str, Any]) -> Any:
        return 1 / (record.pop("n") - 3)

    env = environment()
    env.from_collection([{"n": 1}, {"n": 3}]).map(takes).sink_to(tr.sinks.Collect())
    first, second, _ = failed(env)[0]
    assert first.gaps and not second.gaps
    check_same(second)


def test_values_of_secret_names_are_not_shown_and_others_are_cut() -> None:
    def fn(record: Any) -> Any:
        password, nested = "hunter2", {"api_token": "hunter2", "n": [1] * 1_000}  # noqa: F841
        return 1 / record

    env = environment()
    env.from_collection([0]).map(fn).sink_to(tr.sinks.Collect())
    frame = failed(env)[0][0].frames[-1]
    shown = dict(frame.locals)
    assert shown["password"] == "<hidden>"
    assert shown["nested"].startswith("{'api_token': <hidden>, 'n': [1, 1")
    assert len(shown["nested"]) <= 300
    assert "hunter2" not in str(frame)


def test_what_raises_when_it_is_shown_is_named() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "repr raised RuntimeError" in Redaction(()).show(Odd())
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    assert Redaction(()).show(deep) == "[[[[[…]]]]]"


def test_a_job_keeps_no_capsule_where_it_is_not_to() -> None:
    for env in (environment(capsules=False), tr.Environment(parallelism=1)):
        env.from_collection(RECORDS).map(positive).sink_to(tr.sinks.Collect())
        capsules, error = failed(env)
        assert not capsules
        assert "kept" not in str(error)


def test_the_number_and_the_size_of_capsules_are_bounded() -> None:
    env = environment(restart=tr.FixedDelay(5, 0.1), capsules=tr.Capsules(keep=2, max_bytes="1m"))
    env.from_collection([("a", -1, "x" * (3 << 20))]).map(positive).sink_to(tr.sinks.Collect())
    capsules, _ = failed(env)
    assert [one.incarnation for one in capsules] == [5, 6]
    assert "left out" in capsules[-1].gaps[0]
    with pytest.raises(tr.ConfigError, match="left out"):
        tr.testing.harness(capsules[-1]).rerun()


def test_a_record_that_goes_aside_makes_no_capsule() -> None:
    env = environment()
    env.from_collection(RECORDS).map(positive, on_error=tr.Aside()).sink_to(tr.sinks.Collect())
    assert not tr.testing.simulate(env).capsules


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"keep": 0}, {"max_bytes": 10}, {"redact": "word"}, {"exact": "yes"}):
        with pytest.raises(tr.ConfigError):
            tr.Capsules(**wrong)  # type: ignore[arg-type]
    with pytest.raises(tr.ConfigError, match="capsules must be"):
        tr.Environment(capsules=3)  # type: ignore[arg-type]
    with pytest.raises(tr.ConfigError, match="no capsule of a failed call"):
        tr.testing.read_capsule(b"something else")


class Random(tr.KeyedProcessFunction):
    """A function that does what a program of random steps says, and fails in one of them."""

    one = tr.ValueState(int, default=0)
    many = tr.ListState(int)
    named = tr.MapState(int, int)
    free = tr.ValueState(list, default=[])

    def __init__(self, steps: list[tuple[str, int]]) -> None:
        self.steps = steps

    def process(self, record: Any, ctx: Any) -> Any:
        for step, n in self.steps:
            if step == "add":
                self.one.value += record[1] + n
            elif step == "append":
                self.many.append(self.one.value)
            elif step == "put":
                self.named[n] = self.named.get(n, 0) + record[1]
            elif step == "change":
                self.free.value.append(n)
            elif step == "clear":
                self.named.clear()
            elif step == "timer":
                ctx.set_timer(processing_time=ctx.now() + n)
            elif (step == "fail" and self.one.value % 7 > n) or len(self.free.value) > 9:
                state = self.one.value, self.many.get(), sorted(self.named.items()), self.free.value
                raise KeyError(f"{record} {state} {ctx.random.random()}")
            yield step

    def on_timer(self, timestamp: float, ctx: Any) -> Any:
        if self.one.value % 2:
            raise ArithmeticError(f"{ctx.key} {timestamp} {self.one.value} {self.free.value}")
        self.one.value += 1
        return ()


@pytest.mark.parametrize("seed", range(25))
def test_random_programs_fail_again_as_they_failed(seed: int) -> None:
    draw = random.Random(seed)
    kinds = ("add", "append", "put", "change", "clear", "timer")
    steps = [(draw.choice(kinds), draw.randrange(5)) for _ in range(draw.randrange(1, 8))]
    steps.insert(draw.randrange(len(steps) + 1), ("fail", draw.randrange(7)))
    env = environment(state_backend=draw.choice(["memory", "disk"]))
    records = [(draw.choice("abc"), draw.randrange(10)) for _ in range(40)]
    env.from_collection(records).key_by(lambda r: r[0]).process(Random(steps)).sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=seed)
    for data in list(job.capsules.values())[1:]:
        capsule = tr.testing.read_capsule(data)
        assert not capsule.gaps
        check_same(capsule)
