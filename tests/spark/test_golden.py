"""The golden programs on real Spark: what the simulator runs under every fault gives there what it must, on every Python and
every version of PySpark (`./dev matrix`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from search.programs.golden import PROGRAMS

pytestmark = [pytest.mark.spark, pytest.mark.matrix]


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden(jobs: Any, name: str) -> None:
    program = PROGRAMS[name]
    found = program.build(jobs.env(), program.n, None).collect()
    assert Counter(found) == program.expected(program.n)
