"""Generated loops of built-in aggregates, one for each combination of them. A call per record and aggregate would cost
more than the arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from keyword import iskeyword
from operator import attrgetter, itemgetter
from typing import Any

from tailrace.api.aggregates import BuiltinAggregate, comparable
from tailrace.task.contract.usercode import fused_code

Getter = Callable[[Any], Any]
First = Callable[[Any], tuple[Any, ...]]
"""Function that gives the state of a key that a table does not find as it is."""


class RowsLoop:
    """Generated loop over a batch of rows.

    The state of a key is one tuple (key, accumulator, …). It is replaced and never changed, so that a snapshot may share
    it. If every accumulator is its own result, the tuple is also the output record.
    """

    def __init__(self, aggregates: Sequence[Any]) -> None:
        self._aggregates = aggregates
        self.reads = [i for i, f in enumerate(aggregates) if "x" in f.step]
        """Indexes of the aggregates that read a value from each record."""
        self._compiled: dict[tuple[str | None, ...], Callable[..., list[Any]]] = {}
        """Loops by the expressions that read the key and the values."""

    def over(
        self, records: list[Any], key: Getter, fields: Sequence[Getter], table: dict[Any, Any], first: First
    ) -> list[Any]:
        """Results of records, whose keys and values these getters read. A getter with an expression (`expression_of`) is
        compiled into the loop; any other is called record by record."""
        expressions = expression_of(key), *map(expression_of, fields)
        columns = [map(get, records) for get, read in zip((key, *fields), expressions, strict=True) if read is None]
        return self._loop(expressions)(records, table, first, *columns)

    def of(
        self, keys: Iterable[Any], fields: Sequence[Iterable[Any]], table: dict[Any, Any], first: First
    ) -> list[Any]:
        """Results of records with these keys and values."""
        return self._loop((None,) * (1 + len(fields)))((), table, first, keys, *fields)

    def _loop(self, expressions: tuple[str | None, ...]) -> Callable[..., list[Any]]:
        found = self._compiled.get(expressions)
        if found is None:
            found = self._compiled[expressions] = self._compile(expressions)
        return found

    def _compile(self, expressions: tuple[str | None, ...]) -> Callable[..., list[Any]]:
        """Generates a loop. `expressions`: the expressions of `r` that read the key and each value; None for one that
        comes as a column."""
        aggregates = self._aggregates
        states = ", ".join(f"a{i}" for i in range(len(aggregates)))
        names = ["k", *(f"x{i}" for i in self.reads)]
        given = [name for name, read in zip(names, expressions, strict=True) if read is None]
        over = [("r", "records")] if len(given) < len(names) else []
        over += [(name, f"c{name}") for name in given]
        items, columns = (", ".join(one) for one in zip(*over, strict=True))
        lines = [
            f"def loop(records, table, first{''.join(f', c{name}' for name in given)}):",
            "  out = []",
            f"  for {items} in {columns if len(over) == 1 else f'zip({columns})'}:",
        ]
        lines += [f"    {name} = {read}" for name, read in zip(names, expressions, strict=True) if read is not None]
        lines += [
            f"    try: _, {states} = table[k]",
            # Numbers of numpy cannot be compared with a Decimal: a TypeError.
            f"    except (KeyError, TypeError): k, {states} = first(k)",
        ]
        for i, aggregate in enumerate(aggregates):
            step = _with_number(aggregate.step, i)
            lines.append(f"    {f'if x{i} is not None: ' if i in self.reads else ''}a{i} = {step}")
        results = ", ".join(f"a{i}" if _is_result(f) else f"r{i}(a{i})" for i, f in enumerate(aggregates))
        lines.append(f"    table[k] = s = (k, {states})")
        lines += [
            f"    out.append({'s' if all(map(_is_result, aggregates)) else f'(k, {results})'})",
            "  return out",
        ]
        return _compile("loop", lines, aggregates)


def expression_of(getter: Getter) -> str | None:
    """Expression that reads from a record `r` what the getter reads; None if only a call does that."""
    if type(getter) is itemgetter:
        items = getter.__reduce__()[1]
        return f"r[{items[0]!r}]" if len(items) == 1 and type(items[0]) in (int, str) else None
    if type(getter) is attrgetter:
        names = getter.__reduce__()[1]
        # The compiler normalises letters that are not ASCII (a ligature of f and i becomes both); `getattr` does not.
        plain = len(names) == 1 and names[0].isascii() and names[0].isidentifier() and not iskeyword(names[0])
        return f"r.{names[0]}" if plain else None
    return None


def compiled_merge(aggregates: list[Any]) -> Callable[..., list[list[Any]]]:
    """Generated loop over the distinct keys of one batch in columns: (keys, table, first, partials, …) -> a list of
    results per aggregate."""
    count = range(len(aggregates))
    names = ", ".join(f"a{i}" for i in count)
    lines = [
        f"def merge(keys, table, first{''.join(f', p{i}' for i in count)}):",
        f"  {''.join(f'o{i} = []; ' for i in count)}",
        f"  for k{''.join(f', x{i}' for i in count)} in zip(keys{''.join(f', p{i}' for i in count)}):",
        f"    try: _, {names} = table[k]",
        f"    except KeyError: k, {names} = first(k)",
    ]
    for i, aggregate in enumerate(aggregates):
        lines.append(f"    a{i} = {_with_number(aggregate.joined, i)}")
        lines.append(f"    o{i}.append({f'a{i}' if _is_result(aggregate) else f'r{i}(a{i})'})")
    lines += [f"    table[k] = (k, {names})", f"  return [{', '.join(f'o{i}' for i in count)}]"]
    return _compile("merge", lines, aggregates)


def _compile(name: str, lines: list[str], aggregates: Sequence[Any]) -> Callable[..., Any]:
    scope: dict[str, Any] = {f"r{i}": f.get_result for i, f in enumerate(aggregates)}
    scope |= {"datetime": datetime, "held": comparable}
    exec(fused_code("\n".join(lines)), scope)
    return scope[name]  # type: ignore[no-any-return]


def _with_number(expression: str, i: int) -> str:
    """An aggregate's expression of `a` and `x` with the names of the i-th aggregate."""
    return re.sub(r"\ba\b", f"a{i}", re.sub(r"\bx\b", f"x{i}", expression))


def _is_result(aggregate: Any) -> bool:
    """True if the accumulator is the result, so that no call is needed."""
    return type(aggregate).get_result is BuiltinAggregate.get_result
