"""`check_sink` over sinks of Iceberg tables, in a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

import tailrace as tr
from tailrace.testing import check_sink


def main(folder: str, rounds: int, seed: int, **options: object) -> None:
    """Prints the figures of the checks as JSON."""
    numbers = itertools.count()

    def make() -> tuple[tr.Sink, Callable[[], Iterable[int]]]:
        place = f"{folder}/{next(numbers)}"
        os.makedirs(place)
        catalog = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}

        def read() -> list[int]:
            try:
                return list(load_catalog("tailrace", **catalog).load_table("a.t").scan().to_arrow()["n"].to_pylist())
            except NoSuchTableError:
                return []

        return tr.sinks.Iceberg(catalog, "a.t", "n long", **options), read

    report = check_sink(make, record=lambda n: {"n": n}, rounds=rounds, seed=seed)
    print(json.dumps(vars(report)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), **json.loads(sys.argv[4]))
