"""The ten pages that most users look at, every five minutes, from views that a flaky tracker sends twice.

    python examples/trending.py --views 100000

Views come a little out of order. A view that comes again within ten minutes counts once.
"""

import argparse
from typing import Any

from random_tables import views_of_an_hour

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The ten pages of every five minutes.")
    parser.add_argument("--views", type=int, default=100_000)
    args = parser.parse_args()

    env = tr.Environment(progress=True)
    views = env.from_dataframe(env.spark.createDataFrame(views_of_an_hour(args.views)), form="columns")
    trending(views).to_dataframe(TRENDING).orderBy("start", "rank").show(24)
