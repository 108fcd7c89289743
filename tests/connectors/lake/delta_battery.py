"""`check_sink` over sinks of Delta tables, in a process of its own: deltalake's threads do not survive a fork."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable

import deltalake
from deltalake.exceptions import TableNotFoundError

import tailrace as tr
from tailrace.testing import check_sink


def main(folder: str, rounds: int, seed: int, **options: object) -> None:
    """Prints the figures of the checks as JSON."""
    numbers = itertools.count()

    def make() -> tuple[tr.Sink, Callable[[], Iterable[int]]]:
        place = f"{folder}/{next(numbers)}"

        def read() -> list[int]:
            try:
                return list(deltalake.DeltaTable(place).to_pyarrow_table()["n"].to_pylist())
            except TableNotFoundError:
                return []

        return tr.sinks.Delta(place, "n long", **options), read

    report = check_sink(make, rounds=rounds, seed=seed)
    print(json.dumps(vars(report)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), **json.loads(sys.argv[4]))
