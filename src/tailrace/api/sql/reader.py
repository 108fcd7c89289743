"""Queries in SQL, read by sqlglot in the dialect of Spark.

sqlglot reads to translate between dialects, and is lenient. So functions stay calls by name here, each part of a query that
is not known is refused, and where sqlglot groups operators in another way than Spark does the text needs parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from tailrace.api.sql.tree import Cast, Constant, FieldName, FunctionCall, NotTranslated, Tree
from tailrace.api.sql.typed import number
from tailrace.errors import ConfigError

STREAM = "stream"
"""The name of the stream in a query."""


@dataclass(frozen=True)
class SelectItem:
    """An entry of a select list: a name and an expression, or `*` without the names in `leaves_out`."""

    name: str | None
    tree: Tree | None
    at: str
    leaves_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class SqlQuery:
    """A query: its select list and its condition."""

    items: tuple[SelectItem, ...]
    where: Tree | None


_WRITTEN = "written in the text"
"""Mark of parentheses that are in the text. sqlglot puts others where it groups operators in its own way."""


@cache
def _sqlglot() -> Any:
    """The parts of sqlglot that are used. Raises `ConfigError` where it is not installed."""
    try:
        import sqlglot
        from sqlglot import exp, tokens
        from sqlglot.dialects.spark import Spark
        from sqlglot.errors import SqlglotError
    except ImportError:
        raise ConfigError('SQL is read by sqlglot: pip install "tailrace[sql]"') from None

    class Parser(Spark.Parser):  # type: ignore[misc, valid-type]
        FUNCTIONS: dict[str, Any] = {}
        NO_PAREN_FUNCTIONS: dict[Any, Any] = {}
        FUNCTION_PARSERS = {
            name: Spark.Parser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT", "POSITION")
        }

        def _parse_paren(self) -> Any:
            found = super()._parse_paren()
            if isinstance(found, exp.Paren):
                found.meta[_WRITTEN] = True
            return found

    class Dialect(Spark):
        pass

    Dialect.Parser = Dialect.parser_class = Parser
    return SimpleNamespace(exp=exp, parse=sqlglot.parse, Error=SqlglotError, dialect=Dialect, kinds=tokens.TokenType)


def read(text: str) -> SqlQuery:
    """The query in this text. Raises `NotTranslated`."""
    lib = _sqlglot()
    reader = _Reader(text, lib)
    try:
        reader.check_tokens()
        found = [one for one in lib.parse(text, dialect=lib.dialect) if one is not None]
    except lib.Error as error:
        first = (getattr(error, "errors", None) or [{}])[0]
        why = str(first.get("description") or error).splitlines()[0].removesuffix(".")
        why = re.sub(r" for <class '[\w.]*\.(\w+)'>", r" of \1", why)
        at = f"line {first['line']}, at {first['highlight']!r}" if first.get("line") and first.get("highlight") else ""
        raise NotTranslated(f"the text is no SQL that can be read: {why}", at) from None
    if len(found) != 1:
        raise NotTranslated(f"give one query, not {len(found)}")
    return reader.query(found[0])


_CLAUSES = {
    "with_": ("WITH", "call sql for each part: stream.sql(...).sql(...)"),
    "distinct": ("DISTINCT", "use key_by(...).drop_duplicates()"),
    "group": ("GROUP BY", "use key_by(...).aggregate(...), and window(...) before it for groups in time"),
    "having": ("HAVING", "use key_by(...).aggregate(...) and filter(...) behind it"),
    "joins": ("JOIN", "use a.key_by(...).join(b.key_by(...), within=...), or lookup(table, on=...)"),
    "laterals": ("LATERAL VIEW", "use explode(column)"),
    "windows": ("WINDOW", "use key_by(...).window(...)"),
    "qualify": ("QUALIFY", "use key_by(...).top(n, by=...)"),
    "order": ("ORDER BY", "a stream has no last record; use key_by(...).top(n, by=...), or order what a sink has"),
    "sort": ("SORT BY", "a stream has no last record; use key_by(...).top(n, by=...)"),
    "cluster": ("CLUSTER BY", "use key_by(...)"),
    "distribute": ("DISTRIBUTE BY", "use key_by(...)"),
    "limit": ("LIMIT", "use key_by(...).top(n, by=...), or show(n) to look at some"),
    "offset": ("OFFSET", "a stream has no first record"),
    "hint": ("a hint", "leave it out"),
    "into": ("INTO", "use sink_to(sink)"),
}
"""Part of a query as sqlglot names it -> (its name, what to do instead)."""

_LEVELS = (
    "", "Neg BitwiseNot", "Mul Div Mod IntDiv", "Add Sub DPipe", "BitwiseLeftShift BitwiseRightShift", "BitwiseAnd",
    "BitwiseXor", "BitwiseOr", "EQ NEQ LT LTE GT GTE NullSafeEQ",
    "Between In Like ILike RegexpLike Is NullSafeNEQ Escape", "Not", "And", "Or",
)  # fmt: skip
_LEVEL = {name: level for level, names in enumerate(_LEVELS) for name in names.split()}
"""Kind of node -> how loosely Spark binds its operator."""
_PREDICATE, _NOT = _LEVEL["Between"], _LEVEL["Not"]

_BINARY = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Mod": "%", "IntDiv": "div", "DPipe": "||", "EQ": "=", "NEQ": "!=",
    "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=", "NullSafeEQ": "<=>", "And": "and", "Or": "or", "BitwiseAnd": "&",
    "BitwiseOr": "|", "BitwiseXor": "^", "Like": "like", "ILike": "ilike", "RegexpLike": "rlike",
}  # fmt: skip
_TYPES = {
    "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(),
    "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "TEXT": pa.string(), "BINARY": pa.binary(), "DATE": pa.date32(),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"), "TIMESTAMPLTZ": pa.timestamp("us", "UTC"), "TIMESTAMPNTZ": pa.timestamp("us"),
}  # fmt: skip
_SECONDS = {"MICROSECOND": 1, "MILLISECOND": 10**3, "SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3600 * 10**6}
_SECONDS |= {"DAY": 86400 * 10**6, "WEEK": 7 * 86400 * 10**6}
"""Unit of an interval -> microseconds."""
_EXTRACTS = {
    "YEAR": "year", "QUARTER": "quarter", "MONTH": "month", "WEEK": "weekofyear", "DAY": "day", "DOY": "dayofyear",
    "DOW": "dayofweek", "HOUR": "hour", "MINUTE": "minute",
}  # fmt: skip
"""Part of a time in `extract` -> the function that gives it. (Of seconds it gives another type.)"""
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)


class _Reader:
    """The way from nodes of sqlglot to trees, for one text."""

    def __init__(self, text: str, lib: Any) -> None:
        self.text, self.lib = text, lib
        self.alias = STREAM

    # Places and parts.

    def place(self, node: Any) -> str:
        """The place of a node: the first of its parts whose place is known."""
        starts = [one.meta["start"] for one in node.walk() if "start" in one.meta]
        return self.place_of(min(starts)) if starts else ""

    def place_of(self, start: int) -> str:
        """The place of the character at this index."""
        return f"line {self.text.count(chr(10), 0, start) + 1}, column {start - self.text.rfind(chr(10), 0, start)}"

    def check_tokens(self) -> None:
        """Raises `NotTranslated` for what sqlglot reads in another way than Spark, or leaves out."""
        kinds = self.lib.kinds
        refused = {
            kinds.PIPE_GT: "the pipe |>",
            kinds.DCOLON: "a cast by :: (write cast(x as type))",
            **{getattr(kinds, one): "the type {text} (use string)" for one in ("VARCHAR", "CHAR", "NCHAR", "BPCHAR")},
        }
        before, comma = None, kinds.COMMA
        for token in self.lib.dialect().tokenize(self.text):
            kind = token.token_type
            if (kind == comma and before in (kinds.SELECT, kinds.L_PAREN, comma)) or (
                before == comma and kind in (kinds.FROM, kinds.WHERE, kinds.R_PAREN)
            ):
                raise NotTranslated("there is nothing beside a comma", self.place_of(token.start))
            before = kind
            if token.token_type in refused and self.text.startswith(token.text, token.start):
                what = refused[token.token_type].format(text=token.text)
                raise NotTranslated(f"{what} is not translated", self.place_of(token.start))

    def only(self, node: Any, *known: str) -> None:
        """Raises `NotTranslated` if a node has parts beyond the known ones."""
        for name, part in node.args.items():
            if part and name not in known:
                raise NotTranslated(f"{name.strip('_')} of {type(node).__name__} is not translated", self.place(node))

    # Queries.

    def query(self, node: Any) -> SqlQuery:
        """A whole query."""
        if type(node).__name__ != "Select":
            what = type(node).__name__.upper()
            raise NotTranslated(
                f"{what} is not translated", self.place(node), "give one SELECT; streams go together by union"
            )
        for name, (what, instead) in _CLAUSES.items():
            part = node.args.get(name)
            if part:
                raise NotTranslated(
                    f"{what} is not translated", self.place(part[0] if isinstance(part, list) else part), instead
                )
        self.only(node, "expressions", "from_", "where")
        self.table(node.args.get("from_"))
        where = node.args.get("where")
        return SqlQuery(tuple(map(self.item, node.expressions)), None if where is None else self.tree(where.this))

    def table(self, node: Any) -> None:
        """Checks that the query reads the stream, and nothing else."""
        named = f"the table of a query is {STREAM}: select ... from {STREAM} where ..."
        if node is None:
            raise NotTranslated("there is no FROM", "", named)
        table = node.this
        if type(table).__name__ != "Table":
            raise NotTranslated(
                "a query in a query is not translated", self.place(node), "call sql for each: a.sql(...).sql(...)"
            )
        self.only(table, "this", "alias")
        if type(table.this).__name__ != "Identifier" or table.name.lower() != STREAM:
            raise NotTranslated(f"there is no table {table.name or table.sql()!r}", self.place(node), named)
        if (alias := table.args.get("alias")) is not None:
            self.only(alias, "this")
            if type(alias.this).__name__ != "Identifier":
                raise NotTranslated("this name of a table is not translated", self.place(node))
            self.alias = alias.name

    def item(self, node: Any) -> SelectItem:
        """An entry of the select list."""
        at, kind = self.place(node), type(node).__name__
        if kind == "Star":
            self.only(node, "except_")
            left_out = [one.name for one in node.args.get("except_") or ()]
            return SelectItem(None, None, at, tuple(left_out))
        if kind == "Column" and type(node.this).__name__ == "Star":
            self.only(node, "this", "table")
            if node.table.lower() != self.alias.lower():
                raise NotTranslated(f"{node.table}.* is not translated", at, "name the fields of a struct one by one")
            return self.item(node.this)
        if kind == "Alias":
            self.only(node, "this", "alias")
            if type(node.args["alias"]).__name__ != "Identifier":
                raise NotTranslated("this name of a column is not translated", at)
            return SelectItem(node.alias, self.tree(node.this), at)
        tree = self.tree(node)
        return SelectItem(tree.path[-1] if isinstance(tree, FieldName) else None, tree, at)

    # Expressions.

    def tree(self, node: Any, parent: int | None = None) -> Tree:
        """An expression. `parent` is the loosest level that may be there without parentheses, in an operator."""
        while type(node).__name__ == "Paren":
            self.only(node, "this")
            parent, node = None if node.meta.get(_WRITTEN) else parent, node.this
        kind, at = type(node).__name__, self.place(node)
        level = _LEVEL.get(kind, 0)
        if parent is not None and level > parent:
            raise NotTranslated("which operator comes first here?", at, "write parentheses")
        read: Callable[[Any, str], Tree] | None = getattr(self, f"_{kind.lower()}", None)
        if read is not None:
            return read(node, at)
        if kind in _BINARY:
            return self._binary(node, at, level)
        raise NotTranslated(f"{self._name(node)} is not translated", at, _INSTEAD.get(kind, ""))

    def _binary(self, node: Any, at: str, level: int) -> Tree:
        self.only(node, "this", "expression", "safe", "typed", "negate")
        strict = level == _PREDICATE
        left = self.tree(node.this, level - strict)
        right = self.tree(node.expression, level if level > _NOT else level - 1)
        call = FunctionCall(at, _BINARY[type(node).__name__], (left, right))
        return FunctionCall(at, "not", (call,)) if node.args.get("negate") else call

    def _name(self, node: Any) -> str:
        return f"`{node.sql(dialect=self.lib.dialect)[:60]}`"

    def _column(self, node: Any, at: str) -> Tree:
        self.only(node, "this", "table", "db", "catalog")
        path = tuple(part.name for part in node.parts)
        if len(path) > 1 and path[0].lower() == self.alias.lower():
            path = path[1:]
        return FieldName(at, path)

    def _dot(self, node: Any, at: str) -> Tree:
        self.only(node, "this", "expression")
        inner = self.tree(node.this)
        if not isinstance(inner, FieldName) or type(node.expression).__name__ != "Identifier":
            raise NotTranslated(f"{self._name(node)} is not translated", at)
        return FieldName(at, (*inner.path, node.expression.name))

    def _literal(self, node: Any, at: str) -> Tree:
        if not node.is_string:
            return number(node.this, at)
        start, end = node.meta.get("start"), node.meta.get("end")
        if start is None or end is None:
            raise NotTranslated("this text is not translated", at)
        raw = self.text[start : end + 1]
        if len(raw) < 2 or raw[0] not in "'\"" or raw[-1] != raw[0]:
            raise NotTranslated(f"the text {raw} is not translated", at)
        return Constant(at, _unescape(raw[1:-1]), pa.string())

    def _rawstring(self, node: Any, at: str) -> Tree:
        return Constant(at, node.this, pa.string())

    def _null(self, node: Any, at: str) -> Tree:
        return Constant(at, None, None)

    def _boolean(self, node: Any, at: str) -> Tree:
        return Constant(at, bool(node.this), pa.bool_())

    def _neg(self, node: Any, at: str) -> Tree:
        self.only(node, "this")
        kind = type(node.this).__name__
        if kind == "Literal" and not node.this.is_string:
            return number(f"-{node.this.this}", at)
        if kind == "TryCast" and self._is_suffixed(node.this):
            return self._number_with_letter(node.this, at, "-")
        return FunctionCall(at, "negative", (self.tree(node.this, _LEVEL["Neg"]),))

    def _bitwisenot(self, node: Any, at: str) -> Tree:
        self.only(node, "this")
        return FunctionCall(at, "~", (self.tree(node.this, _LEVEL["Neg"]),))

    def _not(self, node: Any, at: str) -> Tree:
        self.only(node, "this")
        return FunctionCall(at, "not", (self.tree(node.this, _NOT),))

    def _nullsafeneq(self, node: Any, at: str) -> Tree:
        self.only(node, "this", "expression")
        inner = tuple(self.tree(one, _PREDICATE - 1) for one in (node.this, node.expression))
        return FunctionCall(at, "not", (FunctionCall(at, "<=>", inner),))

    def _is(self, node: Any, at: str) -> Tree:
        self.only(node, "this", "expression")
        inner, what = self.tree(node.this, _PREDICATE - 1), type(node.expression).__name__
        if what == "Null":
            return FunctionCall(at, "isnull", (inner,))
        if what != "Boolean":
            raise NotTranslated(f"{self._name(node)} is not translated", at)
        return FunctionCall(at, "<=>", (inner, Constant(at, bool(node.expression.this), pa.bool_())))

    def _between(self, node: Any, at: str) -> Tree:
        self.only(node, "this", "low", "high")
        parts = [self.tree(node.args[one], _PREDICATE - 1) for one in ("this", "low", "high")]
        return FunctionCall(at, "between", tuple(parts))

    def _in(self, node: Any, at: str) -> Tree:
        if node.args.get("query") is not None:
            raise NotTranslated("a query in a query is not translated", at, "use lookup(table, on=..., how='inner')")
        self.only(node, "this", "expressions")
        return FunctionCall(at, "in", (self.tree(node.this, _PREDICATE - 1), *map(self.tree, node.expressions)))

    def _case(self, node: Any, at: str) -> Tree:
        self.only(node, "this", "ifs", "default")
        value = None if node.this is None else self.tree(node.this)
        parts: list[Tree] = []
        for one in node.args["ifs"]:
            self.only(one, "this", "true")
            condition = self.tree(one.this)
            parts.append(condition if value is None else FunctionCall(condition.at, "=", (value, condition)))
            parts.append(self.tree(one.args["true"]))
        default = node.args.get("default")
        return FunctionCall(at, "when", (*parts, *(() if default is None else (self.tree(default),))))

    def _if(self, node: Any, at: str) -> Tree:
        self.only(node, "this", "true", "false")
        if node.args.get("false") is None:
            raise NotTranslated("if needs three arguments", at)
        return FunctionCall(at, "if", tuple(self.tree(node.args[one]) for one in ("this", "true", "false")))

    def _anonymous(self, node: Any, at: str) -> Tree:
        self.only(node, "this", "expressions")
        return FunctionCall(at, str(node.this).lower(), tuple(map(self.tree, node.expressions)))

    def _extract(self, node: Any, at: str) -> Tree:
        self.only(node, "this", "expression")
        name = _EXTRACTS.get(node.this.name.upper())
        if name is None:
            raise NotTranslated(
                f"{self._name(node)} is not translated", at, f"there are {', '.join(_EXTRACTS).lower()}"
            )
        return FunctionCall(at, name, (self.tree(node.expression),))

    def _concat(self, node: Any, at: str) -> Tree:
        raise NotTranslated("texts that stand beside each other are not translated", at, "put || between them")

    # Types and constants.

    def _cast(self, node: Any, at: str) -> Tree:
        """A literal with its type before it: `date '2024-05-01'`."""
        self.only(node, "this", "to", "_type")
        inner = node.this
        if type(inner).__name__ != "Literal" or not inner.is_string:
            raise NotTranslated(f"{self._name(node)} is not translated", at, "write cast(x as type)")
        text = self._literal(inner, at)
        return FunctionCall(at, "typed literal", (text, Cast(at, text, self._type(node.args["to"], at))))

    def _trycast(self, node: Any, at: str) -> Tree:
        if node.args.get("safe"):
            raise NotTranslated("try_cast is not translated", at, "use cast: a value that does not fit fails the job")
        self.only(node, "this", "to", "_type")
        if self._is_suffixed(node):
            return self._number_with_letter(node, at, "")
        return Cast(at, self.tree(node.this), self._type(node.args["to"], at))

    def _is_suffixed(self, node: Any) -> bool:
        """True for a number with a letter behind it, of which sqlglot makes a cast."""
        inner = node.this
        if type(inner).__name__ != "Literal":
            return False
        end = inner.meta.get("end")
        return bool(inner.is_string and end is None) or bool(end is not None and self.text[end].isalpha())

    def _number_with_letter(self, node: Any, at: str, sign: str) -> Tree:
        """A number with the letter of its type: 1L, 2.5D, 2.5BD."""
        kind, digits = self._type(node.args["to"], at), sign + node.this.this
        if pa.types.is_decimal(kind):
            return number(digits, at, exact=True)
        if pa.types.is_float32(kind):
            raise NotTranslated(f"the number {digits}F is not translated", at, "use cast(x as float)")
        value: Any = float(digits) if pa.types.is_floating(kind) else _whole(digits, kind, at)
        return Constant(at, value, kind)

    def _type(self, node: Any, at: str) -> pa.DataType:
        name = getattr(node.this, "name", None) or type(node.this).__name__.upper()
        parameters = [int(one.name) if one.name.isdecimal() else -1 for one in node.expressions]
        if name == "DECIMAL":
            precision, scale = (*parameters, 0)[:2] if parameters else (10, 0)
            if not 0 <= scale <= precision <= 38 or precision < 1:
                raise NotTranslated(f"decimal({precision},{scale}) is no type", at)
            return pa.decimal128(precision, scale)
        if name not in _TYPES or parameters:
            raise NotTranslated(f"the type {node.sql(dialect=self.lib.dialect).lower()} is not translated", at)
        return _TYPES[name]

    def _interval(self, node: Any, at: str) -> Tree:
        self.only(node, "this", "unit")
        unit = node.args.get("unit")
        name = "" if unit is None else unit.name.upper().removesuffix("S")
        literal = node.this
        value = literal.this if type(literal).__name__ == "Literal" else ""
        if name not in _SECONDS or not re.fullmatch(r"[+-]?[0-9]+", value):
            instead = f"one number and one of the units {', '.join(_SECONDS).lower()}: interval '5' minute"
            raise NotTranslated("this interval is not translated", at, instead)
        span = int(value) * _SECONDS[name]
        if abs(span) >= 2**63:
            raise NotTranslated("this interval is too long", at)
        return Constant(at, span, pa.duration("us"))


_INSTEAD = {
    "Window": "use key_by(...).window(...), key_by(...).lag(...) or key_by(...).top(...)",
    "Filter": "use filter(...) and key_by(...).aggregate(...)",
    "Subquery": "call sql for each: a.sql(...).sql(...)",
    "Exists": "use lookup(table, on=..., how='inner')",
    "Bracket": "items of lists and maps are reached in map_batches",
}


def _unescape(raw: str) -> str:
    """A text as Spark reads it, between its quotes."""

    def one(found: re.Match[str]) -> str:
        inner = found[1]
        if len(inner) > 1:
            return chr(int(inner[1:], 16) if inner[0] in "uU" else int(inner, 8))
        return _ESCAPES.get(inner, inner)

    return _ESCAPE.sub(one, raw)


def _whole(digits: str, kind: pa.DataType, at: str) -> int:
    value, half = int(digits), 1 << (kind.bit_width - 1)
    if not -half <= value < half:
        raise NotTranslated(f"{digits} is out of range", at)
    return value
