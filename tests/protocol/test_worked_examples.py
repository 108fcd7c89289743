"""The worked examples at the top of the two longest protocols: their numbers are those of the code."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from tailrace.protocol import replay, termination


@pytest.mark.parametrize("module", [replay, termination], ids=lambda module: module.__name__)
def test_a_worked_example_gives_what_it_shows(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 10, "the module has no worked example"
    assert not result.failed


@pytest.mark.parametrize("module", [replay, termination], ids=lambda module: module.__name__)
def test_a_module_begins_with_its_worked_example(module: ModuleType) -> None:
    assert (module.__doc__ or "").split("\n\n")[1].startswith("*A worked example.*")
