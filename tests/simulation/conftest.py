from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.testing.checker import BOOKS
from tailrace.testing.stories import Story


@pytest.fixture
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    name = request.node.name
    yield Story.begin(name)
    del BOOKS[name]
