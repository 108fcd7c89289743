"""Orders with their payments: which are paid within 15 minutes, and which stay unpaid?

    python examples/payments.py --orders 20000

Orders and payments are two streams; either may be ahead. A payment may come several times, or never, or too late.
"""

import argparse

from random_tables import orders_and_payments

import tailrace as tr

SETTLED = "order long, amount double, state string, paid double"


def settled(pair: tuple) -> tuple:
    """A record of SETTLED, of an order and its payment, or of an order and None."""
    order, payment = pair
    if payment is None:
        return order.order, order.amount, "unpaid", 0.0
    return order.order, order.amount, "paid" if payment.paid >= order.amount else "short", payment.paid


def settle(orders: tr.DataStream, payments: tr.DataStream) -> tr.DataStream:
    """Records of SETTLED. Of several copies of a payment the first one counts."""
    made = orders.assign_timestamps("at", out_of_orderness=60).key_by("order")
    paid = payments.assign_timestamps("at", out_of_orderness=60).key_by("payment").drop_duplicates(within=3600)
    return made.join(paid.key_by("order"), within=(0, 900), how="left", uid="within 15 minutes").map(settled)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Orders with their payments, within 15 minutes.")
    parser.add_argument("--orders", type=int, default=20_000)
    args = parser.parse_args()

    env = tr.Environment(progress=True)
    orders, payments = (
        env.from_dataframe(env.spark.createDataFrame(table)) for table in orders_and_payments(args.orders)
    )
    settle(orders, payments).to_dataframe(SETTLED).groupBy("state").sum("amount").show()
