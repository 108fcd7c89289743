"""A script with classes beside its dataflow, as everybody writes them first: `tests/spark/test_program.py` runs it, kills
it, and goes on with another version of it.

    python shop.py die|go-on PARALLELISM
"""

import enum
import glob
import os
import signal
import sys
from dataclasses import dataclass
from typing import NamedTuple

import tailrace as tr


@dataclass
class Order:
    customer: int
    price: int


class Place(NamedTuple):
    zone: int
    row: int


class Kind(enum.Enum):
    PERSON = 1
    FIRM = 2


@dataclass(frozen=True)
class Customer:
    kind: Kind
    number: int


class Shop:
    class Total:  # a class in a class
        def __init__(self, n):
            self.n = n


class Plain:
    def __init__(self, n):
        self.n = n


@dataclass
class Seen:
    count: int = 0
    # MORE


class Count(tr.KeyedProcessFunction):
    seen = tr.ValueState(Seen)
    last = tr.MapState(str, object)

    def process(self, order, ctx):
        seen = self.seen.value or Seen()
        seen.count += 1
        self.seen.value = seen
        self.last.put("order", order)
        self.last.put("kind", Kind.FIRM)
        yield Shop.Total(seen.count), Plain(order.price), ctx.key, getattr(seen, "more", None)


class OfCustomer(tr.KeyedProcessFunction):
    seen = tr.ValueState(int, default=0)

    def process(self, number, ctx):
        self.seen.value += 1
        if not self.seen.value % 50:
            ctx.set_timer(processing_time=ctx.now())
        yield ctx.key, self.seen.value

    def on_timer(self, timestamp, ctx):
        yield ctx.key, -self.seen.value


def order(n):
    return Order(n % 3, n)


def loop(orders):
    again = orders.rebalance().filter(lambda o: o.price % 4).map(lambda o: Order(o.customer, o.price - o.price % 4))
    return again, orders


def dataflow(env):
    """Orders, some of which go round again."""
    orders = env.from_source(tr.sources.Sequence(0, 600, rate=600), uid="numbers").map(order, uid="made")
    back = orders.iterate(loop)
    counted = back.rebalance().key_by(lambda o: Place(o.customer, 0)).process(Count(), uid="count")
    counted.map(lambda r: (r[0].n, r[1].n, r[2], r[3])).map(str).sink_to(tr.sinks.TextFiles("orders"), uid="orders")


def customers(env):
    numbers = env.from_source(tr.sources.Sequence(0, 900, rate=300), uid="visits")
    counted = numbers.key_by(lambda n: Customer(Kind(1 + n % 2), n % 3)).process(OfCustomer(), uid="of customer")
    kinds = counted.filter(lambda r: r[1] > 0).key_by(lambda r: r[0].kind).count(uid="kinds")
    written = counted.map(lambda r: (r[0].kind.name, r[0].number, r[1])).union(kinds.map(lambda r: (r[0].name, r[1])))
    written.map(str).sink_to(tr.sinks.TextFiles("customers"), uid="customers")


if __name__ == "__main__":
    what, parallelism = sys.argv[1:]
    checkpoint = tr.CheckpointConfig("checkpoints", interval=0.2)
    env = tr.Environment(parallelism=int(parallelism), checkpoint=checkpoint)
    dataflow(env)
    customers(env)
    job = env.execute("shop", from_checkpoint="latest" if what == "go-on" else None)
    if what == "die":
        while not (glob.glob("orders/part-*") and glob.glob("customers/part-*")):
            job.checkpoint()  # it publishes them, once there were records
        os.kill(os.getpid(), signal.SIGKILL)
    job.await_termination()
