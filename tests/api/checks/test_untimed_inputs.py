"""Functions that release records which came before: with which timestamp they go on, and where a program must give
it."""

from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr


class Enrich(tr.CoProcessFunction):
    """Payments wait for the country of their customer, and keep their own time when they go on."""

    country = tr.ValueState(str)
    waiting = tr.ListState(tuple)

    def process1(self, payment: Any, ctx: tr.Context) -> Iterator[Any]:
        if self.country.exists():
            yield (*payment, self.country.value)
        else:
            self.waiting.append(payment)

    def process2(self, customer: Any, ctx: tr.Context) -> Iterator[Any]:
        self.country.value = customer[1]
        for payment in self.waiting:
            yield ctx.stamped((*payment, customer[1]), payment[2])
        self.waiting.clear()


class Careless(tr.CoProcessFunction):
    """Says nothing of the time of what it releases."""

    waiting = tr.ListState(tuple)

    def process1(self, payment: Any, ctx: tr.Context) -> None:
        self.waiting.append(payment)

    def process2(self, customer: Any, ctx: tr.Context) -> Iterator[Any]:
        yield from self.waiting


class Listens(tr.CoProcessFunction):
    """Emits nothing for its second input."""

    country = tr.ValueState(str)

    def process1(self, payment: Any, ctx: tr.Context) -> Iterator[Any]:
        yield payment

    def process2(self, customer: Any, ctx: tr.Context) -> None:
        self.country.value = customer[1]


def payments(env: tr.Environment) -> tr.DataStream:
    return env.from_collection([("ann", i, float(i)) for i in range(200)]).assign_timestamps(lambda p: p[2])


def connected(env: tr.Environment, fn: Any, timed: bool) -> tr.DataStream:
    customers = env.from_collection([("ann", "DE", 0.0)])
    if timed:
        customers = customers.assign_timestamps(lambda c: c[2])
    return payments(env).connect(customers).key_by(lambda p: p[0], lambda c: c[0]).process(fn)


@pytest.mark.parametrize("timed", [True, False], ids=["both inputs have event time", "one has"])
def test_a_record_that_is_released_with_its_own_time_is_in_its_own_window(timed: bool) -> None:
    """Without `ctx.stamped` it went on with the time of the record that released it: in 14 of 20 orders the windows
    were other ones, without an error."""
    found: set[tuple[tuple[float, int], ...]] = set()
    for seed in range(12):
        env = tr.Environment(parallelism=2)
        windows = connected(env, Enrich(), timed).key_by(lambda p: p[3]).window(tr.Tumbling(60)).count()
        out = windows.sink_to(tr.sinks.Collect())
        tr.testing.simulate(env, seed=seed).await_termination()
        found.add(tuple(sorted((w.start, w.count) for w in out.result())))
    assert found == {((0.0, 60), (60.0, 60), (120.0, 60), (180.0, 20))}


def test_an_input_without_event_time_that_emits_beside_one_with_it_is_an_error_where_it_is_written() -> None:
    env = tr.Environment()
    with pytest.raises(
        tr.GraphError, match=r"Careless\.process2 emits .* ctx\.stamped\(record, timestamp\).* second stream"
    ):
        connected(env, Careless(), timed=False)


def test_an_input_without_event_time_that_emits_nothing_is_none() -> None:
    connected(tr.Environment(), Listens(), timed=False)


def test_two_inputs_with_event_time_or_two_without_it_are_none() -> None:
    env = tr.Environment()
    connected(env, Careless(), timed=True)
    names = env.from_collection([("ann", 1)])
    names.connect(names).key_by(lambda n: n[0], lambda n: n[0]).process(Careless())


def test_a_function_that_returns_what_it_emits_is_seen_as_well() -> None:
    class Returns(tr.CoProcessFunction):
        def process1(self, value: Any, ctx: tr.Context) -> list[Any] | None:
            return [value] if value else None

        def process2(self, value: Any, ctx: tr.Context) -> None:
            return None

    env = tr.Environment()
    timed = payments(env)
    bare = env.from_collection([1])
    timed.connect(bare).process(Returns())
    with pytest.raises(tr.GraphError, match=r"Returns\.process1 emits .* first stream"):
        bare.connect(timed).process(Returns())


class Stamps(tr.KeyedProcessFunction):
    """Stamps what it emits everywhere that a function can emit."""

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        ctx.set_timer(event_time=100)
        yield ctx.stamped(("process", value), 1.5)
        yield "plain", value
        ctx.emit("aside", value, timestamp=2)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.stamped(("timer", 0), 2.5)
        yield "timer", 1

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.stamped(("finish", 0), 3.5)
        yield ctx.stamped(("nothing", 0), None)


def times(value: Any, ctx: tr.Context) -> Iterator[Any]:
    yield value, ctx.timestamp


def test_what_is_stamped_has_that_time_and_what_is_not_has_that_of_the_record_or_timer_at_hand() -> None:
    env = tr.Environment(parallelism=1)
    stamped = env.from_collection([7]).assign_timestamps(lambda n: n).key_by(lambda n: n).process(Stamps())
    main = stamped.process(times).sink_to(tr.sinks.Collect())
    aside = stamped.side_output("aside").process(times).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(main.result()) == [
        (("finish", 0), 3.5),
        (("nothing", 0), None),
        (("plain", 7), 7.0),
        (("process", 7), 1.5),
        (("timer", 0), 2.5),
        (("timer", 1), 100.0),
    ]
    assert aside.result() == [(7, 2.0)]


def test_a_stream_without_event_time_may_be_stamped() -> None:
    env = tr.Environment(parallelism=1)
    stamped = env.from_collection([7]).process(lambda n, ctx: [ctx.stamped(n, 4), n]).process(times)
    out = stamped.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(out.result(), key=str) == [(7, 4.0), (7, None)]


def test_a_single_stamped_record_is_no_iterable_of_records() -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([7]).process(lambda n, ctx: ctx.stamped(n, 4), name="one").sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"operator 'one'.*'Stamped' object is not iterable"):
        tr.testing.run(env)
