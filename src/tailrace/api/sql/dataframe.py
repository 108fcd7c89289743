"""Columns of PySpark, read as trees: those of a classic session from nodes of the JVM, those of Spark Connect from Python
objects. A node that is not known is refused by its name. PySpark is not imported: who gives a Column has done so."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tailrace.api.sql.functions import ALIASES
from tailrace.api.sql.reader import read
from tailrace.api.sql.tree import Cast, Constant, FieldName, FunctionCall, NotTranslated, Tree
from tailrace.api.sql.typed import DATE, DOUBLE, INSTANT, LONG, SPAN, STRING, WALL, number, type_named


def is_spark_column(given: Any) -> bool:
    """True for a Column of PySpark, classic or Connect."""
    kind = type(given)
    return kind.__name__ == "Column" and kind.__module__.startswith("pyspark.sql.")


def tree_of(given: Any) -> tuple[str | None, Tree]:
    """The name and the tree of a Column; the name is None if it has none. Raises `NotTranslated`."""
    node: Any
    if hasattr(given, "_jc"):
        node = _JvmNode(given._jc.node())
    else:
        node = _ConnectNode(given._expr)
    name = None
    if node.kind == "Alias":
        name, node = node.alias(), node.child()
    tree = _tree(node)
    if name is None and isinstance(tree, FieldName):
        name = tree.path[-1]
    return name, tree


def _tree(node: Any) -> Tree:
    kind = node.kind
    if kind == "Attribute":
        return FieldName("", node.path())
    if kind == "Literal":
        return node.constant()  # type: ignore[no-any-return]
    if kind == "Alias":
        return _tree(node.child())
    if kind == "Cast":
        return Cast("", _tree(node.child()), node.target())
    if kind == "Function":
        name = node.name()
        return FunctionCall("", ALIASES.get(name, name), tuple(map(_tree, node.arguments())))
    if kind == "CaseWhen":
        return FunctionCall("", "when", tuple(map(_tree, node.arguments())))
    if kind == "Sql":
        return _expression(node.text())
    raise NotTranslated(f"{node.kind} in {node.text_of_node()} is not translated", "", _INSTEAD.get(kind, ""))


_INSTEAD = {
    "Window": "use key_by(...).window(...), key_by(...).lag(...) or key_by(...).top(...)",
    "WindowExpression": "use key_by(...).window(...), key_by(...).lag(...) or key_by(...).top(...)",
    "PythonUDF": "a function goes into map_batches or map",
    "InvokeInlineUserDefinedFunction": "a function goes into map_batches or map",
    "CommonInlineUserDefinedFunction": "a function goes into map_batches or map",
    "UnresolvedExtractValue": "write F.col('struct.field')",
    "ExpressionColumnNode": "a column of a DataFrame is none of a stream: write F.col('name')",
}


def _expression(text: str) -> Tree:
    query = read(f"select {text} as result from stream")
    [item] = query.items if len(query.items) == 1 else [None]
    if item is None or item.tree is None or item.name != "result" or query.where is not None:
        raise NotTranslated(f"F.expr({text!r}) is no single expression")
    return item.tree


def _named_type(text: str) -> pa.DataType:
    kind = type_named(text)
    if kind is None:
        raise NotTranslated(f"the type {text.lower()} is not translated")
    return kind


_PART = re.compile(r"(?:`((?:[^`]|``)+)`|([^`.]+))(\.|$)")


def _parts(identifier: str) -> tuple[str, ...]:
    """The parts of a name with dots and backticks."""
    found, at = list[str](), 0
    while at < len(identifier):
        part = _PART.match(identifier, at)
        if part is None:
            raise NotTranslated(f"the name {identifier!r} is not translated")
        found.append(part[1].replace("``", "`") if part[1] else part[2])
        at = part.end()
    if not found or identifier.endswith("."):
        raise NotTranslated(f"the name {identifier!r} is not translated")
    return tuple(found)


def _plain_constant(value: Any) -> Constant | None:
    """The constant of a value of Python, with the type that Spark gives it; None for another one."""
    if value is None:
        return Constant("", None, None)
    if isinstance(value, bool):
        return Constant("", value, pa.bool_())
    if isinstance(value, int):
        return number(str(value), "")
    if isinstance(value, float):
        return Constant("", value, DOUBLE)
    if isinstance(value, str):
        return Constant("", value, STRING)
    if isinstance(value, Decimal) and value.is_finite():
        return number(f"{value:f}", "", exact=True)
    return None


class _JvmNode:
    """A node of a classic Column. Its class and its fields are those of Spark 4's `ColumnNode`."""

    _KINDS = {
        "UnresolvedAttribute": "Attribute",
        "UnresolvedFunction": "Function",
        "CaseWhenOtherwise": "CaseWhen",
        "SqlExpression": "Sql",
    }

    def __init__(self, node: Any) -> None:
        self._node = node
        name = str(node.getClass().getSimpleName())
        self.kind = self._KINDS.get(name, name)

    def text_of_node(self) -> str:
        """The node as Spark shows it."""
        return str(self._node.sql())[:80]

    def path(self) -> tuple[str, ...]:
        """The names of a column."""
        if self._node.planId().isDefined():
            raise NotTranslated(f"{self.text_of_node()} is a column of a DataFrame", "", "write F.col('name')")
        return tuple(map(str, _items(self._node.nameParts())))

    def child(self) -> _JvmNode:
        """The node below a cast or an alias."""
        return _JvmNode(self._node.child())

    def alias(self) -> str:
        """The name that an alias gives."""
        names = _items(self._node.name())
        if len(names) != 1:
            raise NotTranslated(f"{self.text_of_node()} has several names")
        return str(names[0])

    def target(self) -> pa.DataType:
        """The type of a cast."""
        mode = self._node.evalMode()
        if mode.isDefined() and str(mode.get().toString()).upper() != "ANSI":
            raise NotTranslated(
                f"{self.text_of_node()} is not translated", "", "use cast: a value that does not fit fails the job"
            )
        return _named_type(str(self._node.dataType().sql()))

    def name(self) -> str:
        """The name of a function."""
        if self._node.isDistinct() or self._node.isUserDefinedFunction():
            raise NotTranslated(
                f"{self.text_of_node()} is not translated", "", "a function goes into map_batches or map"
            )
        return str(self._node.functionName()).lower()

    def arguments(self) -> list[_JvmNode]:
        """The arguments of a function, or the conditions and values of a case."""
        if self.kind == "Function":
            return [_JvmNode(one) for one in _items(self._node.arguments())]
        found = [part for pair in _items(self._node.branches()) for part in (pair._1(), pair._2())]
        last = self._node.otherwise()
        return [_JvmNode(one) for one in (*found, *((last.get(),) if last.isDefined() else ()))]

    def text(self) -> str:
        """The text of an expression in SQL."""
        return str(self._node.expression())

    def constant(self) -> Constant:
        """The value of a literal."""
        value = self._node.value()
        found = None if self._node.dataType().isDefined() else _plain_constant(value)
        if found is not None:
            return found
        kind = str(value.getClass().getName()) if hasattr(value, "getClass") else type(value).__name__
        if kind == "java.sql.Date":
            return Constant("", pa.scalar(str(value.toString())).cast(DATE).cast(pa.int32()).as_py(), DATE)
        if kind == "java.sql.Timestamp":
            micros = value.getTime() // 1000 * 10**6 + value.getNanos() // 1000
            return Constant("", micros, INSTANT)
        if kind == "java.time.Duration":
            return Constant("", value.getSeconds() * 10**6 + value.getNano() // 1000, SPAN)
        raise NotTranslated(f"the constant {self.text_of_node()} is not translated")


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.length())]


class _ConnectNode:
    """A node of a Column of Spark Connect."""

    _KINDS = {
        "ColumnReference": "Attribute",
        "LiteralExpression": "Literal",
        "ColumnAlias": "Alias",
        "CastExpression": "Cast",
        "UnresolvedFunction": "Function",
        "CaseWhen": "CaseWhen",
        "SQLExpression": "Sql",
    }
    _VALUES = {
        "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": LONG,
        "double": DOUBLE, "string": STRING, "date": DATE, "timestamp": INSTANT, "timestamp_ntz": WALL,
        "interval day to second": SPAN,
    }  # fmt: skip

    def __init__(self, node: Any) -> None:
        self._node = node
        name = type(node).__name__
        self.kind = self._KINDS.get(name, name)

    def text_of_node(self) -> str:
        """The node as Spark shows it."""
        return str(self._node)[:80]

    def path(self) -> tuple[str, ...]:
        """The names of a column."""
        if self._node._plan_id is not None:
            raise NotTranslated(f"{self.text_of_node()} is a column of a DataFrame", "", "write F.col('name')")
        return _parts(self._node._unparsed_identifier)

    def child(self) -> _ConnectNode:
        """The node below a cast or an alias."""
        return _ConnectNode(self._node._child if self.kind == "Alias" else self._node._expr)

    def alias(self) -> str:
        """The name that an alias gives."""
        if len(self._node._alias) != 1:
            raise NotTranslated(f"{self.text_of_node()} has several names")
        return str(self._node._alias[0])

    def target(self) -> pa.DataType:
        """The type of a cast."""
        if getattr(self._node, "_eval_mode", None) not in (None, "ansi"):
            raise NotTranslated(
                f"{self.text_of_node()} is not translated", "", "use cast: a value that does not fit fails the job"
            )
        given = self._node._data_type
        return _named_type(given if isinstance(given, str) else given.simpleString())

    def name(self) -> str:
        """The name of a function."""
        if self._node._is_distinct:
            raise NotTranslated(f"{self.text_of_node()} is not translated")
        return str(self._node._name).lower()

    def arguments(self) -> list[_ConnectNode]:
        """The arguments of a function, or the conditions and values of a case."""
        if self.kind == "Function":
            return list(map(_ConnectNode, self._node._args))
        parts: Iterable[Any] = [one for pair in self._node._branches for one in pair]
        last = self._node._else_value
        return [_ConnectNode(one) for one in (*parts, *(() if last is None else (last,)))]

    def text(self) -> str:
        """The text of an expression in SQL."""
        return str(self._node._expr)

    def constant(self) -> Constant:
        """The value of a literal, in the form that Spark has inside."""
        value, kind = self._node._value, self._node._dataType.simpleString()
        if value is None:
            return Constant("", None, None if kind == "void" else _named_type(kind))
        if kind.startswith("decimal") and isinstance(value, Decimal):
            return Constant("", value, _named_type(kind))
        if kind not in self._VALUES:
            raise NotTranslated(f"the constant {self.text_of_node()} is not translated")
        return Constant("", value, self._VALUES[kind])
