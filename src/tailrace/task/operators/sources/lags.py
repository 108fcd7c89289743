"""The distance of a source's readers from the present end of their splits, in metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeGuard

from tailrace.api.connectors import Reader, SourceLag
from tailrace.errors import error_text
from tailrace.task.operators.context import OperatorContext

PAUSE = 1_000_000
"""Time from one look at the lag to the next, at least (int64 microseconds)."""
SPLITS = 100
"""Number of splits up to which the metrics have the lag of each."""
_GAUGES = ("lag_records", "lag_seconds")


def measures_lag(reader: object) -> TypeGuard[Reader]:
    """True if a reader has a `lag` of its own."""
    return getattr(type(reader), "lag", Reader.lag) is not Reader.lag


class Lags:
    """The lag of the splits of one subtask: `lag_records` and `lag_seconds` are those of the split with most, and
    `lag_records[3]` is that of split 3."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._looked: int | None = None
        self._warned = False

    def look(self, now: int, ask: Callable[[float], Mapping[int, SourceLag | None]]) -> None:
        """Sets the gauges, if they are old. `ask` calls user code with the time in seconds since 1970. An error of it is a
        warning, the first time, and the lag is not known."""
        if self._looked is not None and now - self._looked < PAUSE:
            return
        self._looked = now
        try:
            found = ask(now / 1_000_000)
            self._set({number: SourceLag(*lag) for number, lag in found.items() if lag is not None})
        except Exception as error:
            self._set({})
            if not self._warned:
                self._warned = True
                self._ctx.services.outside.beside.warn(
                    f"operator {self._ctx.name!r}, subtask {self._ctx.subtask}: the lag of its reader is not known: "
                    f"{error_text(error)}"
                )

    def _set(self, lags: Mapping[int, SourceLag]) -> None:
        gauges = self._ctx.metrics.gauges
        for name in [name for name in gauges if name.partition("[")[0] in _GAUGES]:
            del gauges[name]
        for at, gauge in enumerate(_GAUGES):
            values = {number: float(value) for number, lag in lags.items() if (value := lag[at]) is not None}
            if values:
                gauges[gauge] = max(values.values())
            if len(values) <= SPLITS:
                gauges |= {f"{gauge}[{number}]": value for number, value in values.items()}
