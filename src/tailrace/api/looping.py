"""The options of a loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace.api.checks import check_callable
from tailrace.errors import ConfigError, GraphError
from tailrace.graph.operators import Selector


@dataclass(frozen=True)
class Rounds:
    """The option of a loop to run in rounds: the feedback of one round is the input of the next one, and a round begins
    when the previous one is over in all subtasks. Round 0 is the input. `max` is the maximum number of rounds; None: the
    loop runs until nothing is fed back.

    `until(result)` is called at the end of each round. `result` is a list of all records that were fed back in the round.
    `result.round` is the number of the round, and `result.output` a list of all records that the loop emitted in it.
    Records in columns are rows there. If `until` returns true, no other round begins. The feedback of the last round is
    dropped.

    Raises `ConfigError` for a wrong setting.
    """

    max: int | None = None
    until: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.max is not None and (not isinstance(self.max, int) or isinstance(self.max, bool) or self.max < 1):
            raise ConfigError(f"Rounds: max must be a whole number of at least 1 or None, not {self.max!r}")
        if self.until is not None:
            _callable(self.until, 1, "Rounds: until")


@dataclass(frozen=True)
class Combine:
    """The option of a loop to merge waiting feedback: two records with equal `key` (a function, a column or several)
    become one, `merge(waiting, new)`. The merged record must have the effect of both. If the loop begins with a `key_by`,
    it must have the key of one of them.

    Raises `ConfigError` for a wrong setting."""

    key: Selector
    merge: Callable[[Any, Any], Any]

    def __post_init__(self) -> None:
        names = [self.key] if isinstance(self.key, str) else self.key
        if callable(names):
            _callable(names, 1, "Combine: key")
        elif not isinstance(names, tuple | list) or not names or not all(isinstance(n, str) and n for n in names):
            raise ConfigError(f"Combine: key must be a function, a column name or several of them, not {self.key!r}")
        _callable(self.merge, 2, "Combine: merge")


def _callable(fn: Any, arguments: int, what: str) -> None:
    try:
        check_callable(fn, arguments, what)
    except GraphError as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True)
class LoopCall:
    """The options of a loop as the user gives them, unchecked."""

    verb: str
    rounds: Any
    priority: Any
    combine: Any
    spill: Any
    uid: Any
    name: Any
    parallelism: Any
    feedback_schema: Any = None

    def __str__(self) -> str:
        named = isinstance(self.name, str) and self.name
        return f"{self.verb} {self.name!r}" if named else self.verb
