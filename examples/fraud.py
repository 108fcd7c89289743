"""Alerts of fraud: payments with the profile that their customer had at that time, against rules that change meanwhile.

    python examples/fraud.py --payments 50000

A rule is the most that customers of a country may spend in an hour. Payments, profiles and rules are three streams, and the
alerts do not depend on which of them is ahead.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from random_tables import payments_profiles_rules

import tailrace as tr

ALERTS = "customer long, at double, country string, spent double, most double"


class Alerts(tr.BroadcastProcessFunction):
    """Records of ALERTS, one for each payment with which a customer has spent too much in an hour."""

    rules = tr.BroadcastState(str, float)
    payments = tr.ValueState(list, default=[])

    def process(self, pair: tuple, ctx: tr.Context) -> Iterator[tuple]:
        payment, profile = pair
        last_hour = [(at, amount) for at, amount in self.payments.value if at > payment.at - 3600]
        self.payments.value = [*last_hour, (payment.at, payment.amount)]
        spent = sum(amount for _, amount in self.payments.value)
        most = self.rules.get(profile.country)
        if most is not None and spent > most:
            yield payment.customer, payment.at, profile.country, spent, most

    def process_broadcast(self, rule: Any, ctx: tr.Context) -> None:
        self.rules[rule.country] = rule.most


def alerts(payments: tr.DataStream, profiles: tr.DataStream, rules: tr.DataStream) -> tr.DataStream:
    """Records of ALERTS, from rows (customer, amount, at), (customer, country, at) and (country, most, at)."""
    paid, known, ruled = (s.assign_timestamps("at", out_of_orderness=60) for s in (payments, profiles, rules))
    with_profile = paid.key_by("customer").join_as_of(known.key_by("customer"), uid="profiles")
    by_customer = with_profile.key_by(lambda pair: pair[0].customer)
    return by_customer.connect(ruled.broadcast()).process(Alerts(), ordered=True, uid="alerts")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Alerts of fraud.")
    parser.add_argument("--payments", type=int, default=50_000)
    args = parser.parse_args()

    env = tr.Environment(progress=True)
    streams = [env.from_dataframe(env.spark.createDataFrame(table)) for table in payments_profiles_rules(args.payments)]
    alerts(*streams).to_dataframe(ALERTS).groupBy("country").count().show()
