"""Random tables that the examples read: orders, views, payments."""

import numpy as np
import pandas as pd


def orders_and_payments(orders: int, seed: int = 3) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Random orders and payments: a tenth is never paid, a tenth too late, and a tenth of the payments come twice."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"order": np.arange(orders), "amount": rng.integers(1, 100, orders).astype(float)})
    made["at"] = np.sort(rng.uniform(0, 86_400, orders)).round(3)
    paid = made.sample(frac=0.9, random_state=seed).rename(columns={"amount": "paid"})
    paid["payment"] = paid.order + 1_000_000
    paid["at"] = (paid["at"] + rng.uniform(1, 1000, len(paid))).round(3)
    again = paid.sample(frac=0.1, random_state=seed)
    return made, pd.concat([paid, again]).sort_values("at", kind="stable", ignore_index=True)


def views_of_an_hour(views: int, seed: int = 4) -> pd.DataFrame:
    """Random views; a fifth comes twice, and few pages have most of them."""
    rng = np.random.default_rng(seed)
    pages = np.char.add("/", rng.zipf(1.3, views).clip(max=99).astype(str))
    table = pd.DataFrame({"view": np.arange(views), "page": pages, "at": rng.uniform(0, 3600, views).round(3)})
    table = pd.concat([table, table.sample(frac=0.2, random_state=seed)])
    arrival = table["at"] + rng.uniform(0, 29, len(table))
    return table.iloc[np.argsort(arrival, kind="stable")].reset_index(drop=True)


def payments_profiles_rules(payments: int, seed: int = 5) -> list[pd.DataFrame]:
    """Random payments, profiles and rules, each with times of its own that are a little out of order."""
    rng, customers, day = np.random.default_rng(seed), max(payments // 100, 5), 86_400
    countries = np.array(["DE", "FR", "NO"])
    paid = pd.DataFrame(
        {"customer": rng.integers(customers, size=payments), "at": rng.uniform(0, day, payments).round(3)}
    )
    paid["amount"] = rng.integers(1, 100, payments).astype(float)
    moved = pd.DataFrame({"customer": rng.permuted(np.tile(np.arange(customers), 3))})
    moved["at"] = np.where(moved.duplicated(), rng.uniform(0, day, 3 * customers), 0.0)
    moved["country"] = countries[rng.integers(3, size=len(moved))]
    rules = pd.DataFrame({"country": rng.choice(countries, 40), "at": rng.uniform(0, day, 40)})
    rules["most"] = rng.integers(100, 400, 40).astype(float)
    return [
        t.iloc[np.argsort(t["at"] + rng.uniform(0, 59, len(t)))].reset_index(drop=True) for t in (paid, moved, rules)
    ]
