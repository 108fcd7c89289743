"""What tests of examples share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """The module of an example, by its name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names: list[str] = []

    def load(name: str) -> Any:
        names.append(name)
        return importlib.import_module(name)

    yield load
    for name in names:
        sys.modules.pop(name, None)
