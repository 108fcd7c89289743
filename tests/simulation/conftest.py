from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from search.stories import Story
from search.watchers.checker import BOOKS


@pytest.fixture
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    name = request.node.name
    yield Story.begin(name)
    del BOOKS[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.search)
