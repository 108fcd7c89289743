"""The examples of pipelines in event time: each finds what pandas finds, over kills of workers and of the driver."""

from __future__ import annotations

import os
import signal
from collections import namedtuple
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tailrace as tr
from tailrace.testing.faults import Fault

FAULTS = [Fault(90, "kill"), Fault(250, "crash-driver"), Fault(400, "kill", which=1)]


Order = namedtuple("Order", ["order", "amount", "at"])
Payment = namedtuple("Payment", ["order", "paid", "at", "payment"])
Paid = namedtuple("Paid", ["customer", "at", "amount"])
Profile = namedtuple("Profile", ["customer", "at", "country"])
Rule = namedtuple("Rule", ["country", "at", "most"])
View = namedtuple("View", ["view", "page", "at"])


def rows(table: pd.DataFrame, row: Any) -> list[Any]:
    return [row(*values) for values in table[list(row._fields)].itertuples(index=False)]


def environment(seed: int) -> tr.Environment:
    return tr.Environment(parallelism=1 + seed % 3, checkpoint=tr.CheckpointConfig("memory", interval=0.005))


def simulated(env: tr.Environment, stream: tr.DataStream, seed: int) -> list[Any]:
    """The sorted records of a stream, in a run in which workers and the driver are killed."""
    sink = stream.sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=seed, faults=FAULTS)
    assert job.await_termination()
    return sorted(sink.result())


# Orders and payments.


def settled_by_pandas(orders: pd.DataFrame, payments: pd.DataFrame) -> list[tuple[Any, ...]]:
    paid = payments.drop_duplicates("payment")[["order", "paid", "at"]].rename(columns={"at": "paid_at"})
    both = orders.merge(paid, on="order", how="left")
    found = both[both.paid_at.sub(both["at"]).between(0, 900)].set_index("order").paid
    return [
        (order, amount, "unpaid", 0.0)
        if order not in found
        else (order, amount, "paid" if found[order] >= amount else "short", found[order])
        for order, amount in orders[["order", "amount"]].itertuples(index=False)
    ]


@pytest.mark.search
@pytest.mark.parametrize("seed", range(3))
def test_orders_are_paid_within_15_minutes_or_unpaid(example: Any, seed: int) -> None:
    payments = example("payments")
    orders, paid = example("random_tables").orders_and_payments(80, seed)
    env = environment(seed)
    made = env.from_collection(rows(orders, Order), parallelism=1)
    found = payments.settle(made, env.from_collection(rows(paid, Payment), parallelism=1))
    assert simulated(env, found, seed) == sorted(settled_by_pandas(orders, paid))


@pytest.mark.spark
def test_orders_are_settled_on_spark(example: Any, spark: Any) -> None:
    payments = example("payments")
    tables = example("random_tables").orders_and_payments(2_000)
    env = tr.Environment(spark, parallelism=2, progress=False)
    streams = [env.from_dataframe(spark.createDataFrame(table).coalesce(1)) for table in tables]
    found = payments.settle(*streams).to_dataframe(payments.SETTLED).collect()
    assert sorted(map(tuple, found)) == sorted(settled_by_pandas(*tables))


# The ten pages of five minutes.


def trending_by_pandas(views: pd.DataFrame) -> list[tuple[Any, ...]]:
    once = views.drop_duplicates("view").assign(start=lambda table: table["at"] // 300 * 300.0)
    counts = once.groupby(["start", "page"]).size().rename("views").reset_index()
    best = counts.sort_values(["start", "views", "page"], ascending=[True, False, False])
    best["place"] = best.groupby("start").cumcount() + 1
    return list(best[best.place <= 10][["start", "place", "page", "views"]].itertuples(index=False, name=None))


@pytest.mark.search
@pytest.mark.parametrize(("seed", "columns"), [(0, False), (1, True), (2, True)])
def test_the_ten_pages_that_most_look_at(example: Any, seed: int, columns: bool) -> None:
    trending = example("trending")
    views = example("random_tables").views_of_an_hour(300, seed)
    env = environment(seed)
    stream = env.from_collection(rows(views, View), parallelism=1)
    if columns:
        stream = stream.to_columns("view long, page string, at double")
    assert simulated(env, trending.trending(stream), seed) == trending_by_pandas(views)


@pytest.mark.spark
def test_the_ten_pages_on_spark(example: Any, spark: Any) -> None:
    trending = example("trending")
    views = example("random_tables").views_of_an_hour(20_000)
    env = tr.Environment(spark, parallelism=2, progress=False)
    stream = env.from_dataframe(spark.createDataFrame(views).coalesce(1), form="columns")
    found = trending.trending(stream).to_dataframe(trending.TRENDING).collect()
    assert sorted(map(tuple, found)) == trending_by_pandas(views)


# Alerts of fraud.


def alerts_by_pandas(payments: pd.DataFrame, profiles: pd.DataFrame, rules: pd.DataFrame) -> list[tuple[Any, ...]]:
    """The alerts, from what each payment, its profile and its rule are at its time."""
    known, ruled = profiles.sort_values("at"), rules.sort_values("at")
    paid = pd.merge_asof(payments.sort_values("at"), known, on="at", by="customer").dropna()
    paid = pd.merge_asof(paid, ruled, on="at", by="country")
    paid["spent"] = [
        payments[
            (payments.customer == p.customer) & (payments["at"] > p.at - 3600) & (payments["at"] <= p.at)
        ].amount.sum()
        for p in paid.itertuples()
    ]
    found = paid[paid.spent > paid.most]
    return sorted(found[["customer", "at", "country", "spent", "most"]].itertuples(index=False, name=None))


@pytest.mark.search
@pytest.mark.parametrize("seed", range(3))
def test_alerts_are_those_of_the_profiles_and_rules_of_their_time(example: Any, seed: int) -> None:
    fraud = example("fraud")
    tables = example("random_tables").payments_profiles_rules(400, seed)
    env = environment(seed)
    classes = (Paid, Profile, Rule)
    streams = [env.from_collection(rows(table, row), parallelism=1) for table, row in zip(tables, classes, strict=True)]
    expected = alerts_by_pandas(*tables)
    assert simulated(env, fraud.alerts(*streams), seed) == expected
    assert expected


class Killed(tr.MapFunction):
    """A map that kills its worker at one of the records, once in the life of `marker`."""

    def __init__(self, marker: Path, at: int) -> None:
        self.marker, self.at, self.seen = marker, at, 0

    def map(self, record: Any) -> Any:
        self.seen += 1
        if self.seen >= self.at and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return record


@pytest.mark.spark
def test_alerts_are_exact_though_a_worker_is_killed(example: Any, spark: Any, tmp_path: Path) -> None:
    fraud = example("fraud")
    tables = example("random_tables").payments_profiles_rules(3_000)
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.1)
    env = tr.Environment(spark, parallelism=2, progress=False, checkpoint=settings)
    paid, known, ruled = (env.from_dataframe(spark.createDataFrame(table).coalesce(1)) for table in tables)
    found = fraud.alerts(paid.map(Killed(tmp_path / "killed", 1_500)), known, ruled).sink_to(tr.sinks.Collect())
    job = env.execute("fraud")
    assert job.await_termination()
    assert job.restarts == 1
    assert sorted(found.result()) == alerts_by_pandas(*tables)


# Places over HTTP.


@pytest.mark.search
@pytest.mark.parametrize("seed", range(2))
def test_visits_have_the_places_that_a_service_gives(example: Any, seed: int) -> None:
    enrich = example("enrich")
    visits = [(n, f"{n % 200}.0.0.{n % 256}") for n in range(600)]
    env = environment(seed)
    found = enrich.enriched(env.from_collection(visits), example("place_service").service())
    unknown = found.side_output("unknown").map(lambda failed: failed.record).sink_to(tr.sinks.Collect())
    places = found.sink_to(tr.sinks.Collect())
    assert tr.testing.run(env).await_termination()
    known = [visit for visit in visits if not visit[1].endswith(".255")]
    assert sorted(places.result()) == [(visit, f"net {visit[0] % 200}") for visit in known]
    assert sorted(unknown.result()) == sorted(set(visits) - set(known))


@pytest.mark.spark
def test_visits_are_enriched_on_spark(example: Any, spark: Any) -> None:
    enrich = example("enrich")
    env = tr.Environment(spark, parallelism=2, progress=False)
    visits = [(n, f"{n % 200}.0.0.{n % 200}") for n in range(2_000)]
    places = enrich.enriched(env.from_collection(visits), example("place_service").service()).sink_to(
        tr.sinks.Collect()
    )
    assert env.execute("enrich").await_termination()
    assert sorted(places.result()) == [(visit, f"net {visit[0] % 200}") for visit in visits]
