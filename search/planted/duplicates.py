"""Bugs to be planted in `drop_duplicates`."""

from __future__ import annotations

from typing import Any

from search.planted.patches import RANDOM, Bug, Patches, method
from tailrace.task.operators.duplicates.duplicates import DuplicatesTask
from tailrace.task.operators.duplicates.firsts import DistinctKeys


def _keys_forgotten_at_once() -> Patches:
    """Bug: a key is forgotten when event time reaches its record, and not when nothing near it can come any more."""

    def make(forget: Any) -> Any:
        def forget_early(self: DuplicatesTask, time: int, limit: int) -> None:
            forget(self, time + (self.spec.within or 0), limit)

        return forget_early

    return [method(DuplicatesTask, "_forget", make)]


def _earlier_batches_forgotten() -> Patches:
    """Bug: in columns, a key that was there in an earlier batch counts as new."""

    def make(kept_of: Any) -> Any:
        def all_new(self: DuplicatesTask, distinct: DistinctKeys, times: Any) -> Any:
            kept = kept_of(self, distinct, times)
            kept[distinct.first] = True
            return kept

        return all_new

    return [method(DuplicatesTask, "_kept_of", make)]


def _has(*kinds: str) -> Any:
    return lambda run: any(step.kind in kinds for step in run.flow.operators())


DUPLICATES_BUGS = (
    Bug(
        "a key is forgotten while its duplicates may come",
        RANDOM,
        _keys_forgotten_at_once,
        seed=1996,
        suits=_has("distinct within"),
    ),
    Bug(
        "a key of a batch before is new in columns",
        RANDOM,
        _earlier_batches_forgotten,
        seed=21,
        suits=_has("distinct in columns"),
    ),
)
