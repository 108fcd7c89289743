"""The ten pages that most users look at, every five minutes, from views that a flaky tracker sends twice.

    python examples/trending.py --views 100000

Views come a little out of order. A view that comes again within ten minutes counts once.
"""

import argparse
from typing import Any

import numpy as np
import pandas as pd

import tailrace as tr

TRENDING = "start double, rank int, page string, views long"


def views_of(row: Any) -> tuple:
    return row.views, row.page


def places(row: Any) -> tuple:
    return row.start, row.rank, row.value.page, row.value.views


def trending(views: tr.DataStream) -> tr.DataStream:
    """Records of TRENDING, from rows (view, page, at), as rows or in columns."""
    once = views.assign_timestamps("at", out_of_orderness=30).key_by("view").drop_duplicates(within=600, uid="once")
    counts = once.key_by("page").window(tr.Tumbling(300)).aggregate(views=tr.Count(), uid="views")
    best = counts.to_rows().key_by(lambda row: 0).window(tr.Tumbling(300)).top(10, by=views_of, uid="ten")
    return best.map(places)


def an_hour(views: int, seed: int = 4) -> pd.DataFrame:
    """Random views; a fifth comes twice, and few pages have most of them."""
    rng = np.random.default_rng(seed)
    pages = np.char.add("/", rng.zipf(1.3, views).clip(max=99).astype(str))
    table = pd.DataFrame({"view": np.arange(views), "page": pages, "at": rng.uniform(0, 3600, views).round(3)})
    table = pd.concat([table, table.sample(frac=0.2, random_state=seed)])
    arrival = table["at"] + rng.uniform(0, 29, len(table))
    return table.iloc[np.argsort(arrival, kind="stable")].reset_index(drop=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The ten pages of every five minutes.")
    parser.add_argument("--views", type=int, default=100_000)
    args = parser.parse_args()

    env = tr.Environment(progress=True)
    views = env.from_dataframe(env.spark.createDataFrame(an_hour(args.views)), form="columns")
    trending(views).to_dataframe(TRENDING).orderBy("start", "rank").show(24)
