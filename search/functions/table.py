"""All references, by the name of the function."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from search.functions import numbers, others, texts, times
from search.functions.cases import Case
from tailrace.elements.columns.functions import SINCE

CASES: dict[str, list[Case]] = {}
for _module in (numbers, texts, times, others):
    for _name, _case in _module.CASES.items():
        CASES.setdefault(_name, []).append(_case)


def installed_functions() -> list[str]:
    """The functions with a reference that this pyarrow has, and for which it is new enough."""
    there, version = set(pc.list_functions()), int(pa.__version__.partition(".")[0])
    return sorted(name for name in CASES if name in there and version >= SINCE.get(name, 0))
