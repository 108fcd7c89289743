"""Trees of calls of Spark's functions: one form for SQL and for Columns of PySpark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


class NotTranslated(Exception):
    """The error for a part of a query that is not translated. `at` is its place in the text, or empty."""

    def __init__(self, what: str, at: str = "", instead: str = "") -> None:
        place = f" ({at})" if at else ""
        super().__init__(f"{what}{place}{instead and '; '}{instead}")


@dataclass(frozen=True)
class Tree:
    """A part of an expression, with its place in the text."""

    at: str

    def parts(self) -> Iterator[Tree]:
        """The trees directly in this one."""
        return iter(())


@dataclass(frozen=True)
class FieldName(Tree):
    """A column, or a field of a struct in it, by the names on the way."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class Constant(Tree):
    """A constant. Its type is None for NULL."""

    value: Any
    kind: pa.DataType | None


@dataclass(frozen=True)
class FunctionCall(Tree):
    """A call of a function by Spark's name in small letters; operators are functions too."""

    name: str
    given: tuple[Tree, ...]

    def parts(self) -> Iterator[Tree]:
        return iter(self.given)


@dataclass(frozen=True)
class Cast(Tree):
    """A cast that the user has written."""

    given: Tree
    kind: pa.DataType

    def parts(self) -> Iterator[Tree]:
        yield self.given
