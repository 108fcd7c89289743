"""Features of customers in Redis, from the changes of a table `orders` (id, customer, total) in PostgreSQL.

python examples/features.py postgresql://user@host/shop redis://host:6379
"""

import argparse
from typing import Any

import tailrace as tr


class Moves(tr.KeyedProcessFunction):
    """(customer, orders, total) by which a change of an order moves the features of its customer, the old and the new."""

    known = tr.ValueState(tuple, default=None)

    def process(self, change: Any, ctx: tr.Context) -> Any:
        if self.known.value is not None:
            customer, total = self.known.value
            yield customer, -1, -total
        self.known.value = None if change.row is None else (change.row.customer, change.row.total)
        if change.row is not None:
            yield change.row.customer, 1, change.row.total


class Totals(tr.KeyedProcessFunction):
    """The features of a customer behind each move."""

    orders = tr.ValueState(int, default=0)
    total = tr.ValueState(object, default=0)

    def process(self, move: tuple, ctx: tr.Context) -> Any:
        self.orders.value += move[1]
        self.total.value += move[2]
        yield {"customer": ctx.key, "orders": self.orders.value, "total": str(self.total.value)}


def features(changes: tr.DataStream) -> tr.DataStream:
    """Rows of features from the changes of orders."""
    moves = changes.key_by(lambda change: change.key, uid="by_order").process(Moves(), uid="moves")
    return moves.key_by(lambda move: move[0], uid="by_customer").process(Totals(), uid="totals")


def sink(url: str) -> Any:
    """Hashes `customer:NAME`, for a service that reads features. A customer without orders has none."""
    return tr.sinks.RedisHash(
        url, key=lambda row: f"customer:{row['customer']}", fields=lambda row: row if row["orders"] else None
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Features of customers from changes of orders.")
    parser.add_argument("postgres")
    parser.add_argument("redis")
    args = parser.parse_args()

    env = tr.Environment(checkpoint=tr.CheckpointConfig(dir="checkpoints", interval=1.0), progress=True)
    changes = env.from_source(tr.sources.PostgresChanges(args.postgres, ["orders"], slot="features"), uid="changes")
    features(changes).sink_to(sink(args.redis), uid="features")
    env.execute("features", from_checkpoint="latest-or-new").await_termination()
