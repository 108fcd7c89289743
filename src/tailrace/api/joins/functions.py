"""Functions that joins are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class SelectCall:
    """Calls of the user's function of two records with a pair of them."""

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        self.fn = fn

    def __call__(self, pair: Any) -> Any:
        return self.fn(*pair)
