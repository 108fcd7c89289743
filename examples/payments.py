"""Orders with their payments: which are paid within 15 minutes, and which stay unpaid?

    python examples/payments.py --orders 20000

Orders and payments are two streams; either may be ahead. A payment may come several times, or never, or too late.
"""

import argparse

import numpy as np
import pandas as pd

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


def some_days(orders: int, seed: int = 3) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Random orders and payments: a tenth is never paid, a tenth too late, and a tenth of the payments come twice."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"order": np.arange(orders), "amount": rng.integers(1, 100, orders).astype(float)})
    made["at"] = np.sort(rng.uniform(0, 86_400, orders)).round(3)
    paid = made.sample(frac=0.9, random_state=seed).rename(columns={"amount": "paid"})
    paid["payment"] = paid.order + 1_000_000
    paid["at"] = (paid["at"] + rng.uniform(1, 1000, len(paid))).round(3)
    again = paid.sample(frac=0.1, random_state=seed)
    return made, pd.concat([paid, again]).sort_values("at", kind="stable", ignore_index=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Orders with their payments, within 15 minutes.")
    parser.add_argument("--orders", type=int, default=20_000)
    args = parser.parse_args()

    env = tr.Environment(progress=True)
    orders, payments = (env.from_dataframe(env.spark.createDataFrame(table)) for table in some_days(args.orders))
    settle(orders, payments).to_dataframe(SETTLED).groupBy("state").sum("amount").show()
