"""All references, by the name of the function."""

from __future__ import annotations

from tailrace.testing.functions import numbers, others, texts, times
from tailrace.testing.functions.cases import Case

CASES: dict[str, list[Case]] = {}
for _module in (numbers, texts, times, others):
    for _name, _case in _module.CASES.items():
        CASES.setdefault(_name, []).append(_case)
