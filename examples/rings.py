"""Rings of fraud: accounts that pay each other in a circle of many, within an hour.

    python examples/rings.py --payments 20000

A ring is a core: accounts of which each has paid, or was paid by, at least four others of them in the last hour. A payment
is an edge that comes, and goes an hour later.
"""

import argparse
import random
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import tailrace as tr
from tailrace import graphs

HOUR = 3600.0
CORE = 4


class Paid(NamedTuple):
    payer: str
    payee: str
    at: float


class InWindow(tr.KeyedProcessFunction):
    """Changes of edges: a payment of these two accounts comes, and goes an hour later."""

    ends = tr.ListState(float)

    def process(self, paid: Paid, ctx: tr.Context) -> Iterator[tuple[str, str, str]]:
        self.ends.append(paid.at + HOUR)
        ctx.set_timer(event_time=paid.at + HOUR)
        yield "+", paid.payer, paid.payee

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[tuple[str, str, str]]:
        over = [end for end in self.ends if end <= timestamp]
        self.ends.update([end for end in self.ends if end > timestamp])
        for _ in over:
            yield "-", *ctx.key


def alerts(payments: tr.DataStream) -> tr.DataStream:
    """Changes ("+" or "-", account, core) of accounts that are in a ring."""
    timed = payments.assign_timestamps("at", out_of_orderness=1).key_by("payer", "payee")
    changes = timed.process(InWindow(), in_order=True, uid="window", parallelism=1)  # in the order of time
    return graphs.k_core(changes).filter(lambda change: change[2] >= CORE)


def random_payments(count: int, seed: int = 3) -> list[Paid]:
    """A day of payments of a thousand accounts, and a ring of six in which each pays each within an hour."""
    draw = random.Random(seed)
    made = [(f"a{draw.randrange(1000)}", f"a{draw.randrange(1000)}", draw.uniform(0, 24 * HOUR)) for _ in range(count)]
    ring = [f"a{n}" for n in draw.sample(range(1000), 6)]
    made += [(one, other, 12 * HOUR + draw.uniform(0, HOUR)) for one, other in combinations(ring, 2)]
    return [Paid(payer, payee, round(at, 3)) for payer, payee, at in sorted(made, key=lambda paid: paid[2])]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Rings of accounts.")
    parser.add_argument("--payments", type=int, default=20_000)
    env = tr.Environment(progress=True)
    payments = env.from_collection(random_payments(parser.parse_args().payments), parallelism=1)
    alerts(payments).to_dataframe("op string, account string, core int").groupBy("account").count().show()
