"""The translation of trees into expressions of `pyarrow.compute`, with the types of a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from tailrace.api.sql.dates import typed_literal
from tailrace.api.sql.functions import ALIASES, FUNCTIONS, INSTEAD, LAZY, REWRITTEN, condition
from tailrace.api.sql.tree import Cast, Constant, FieldName, FunctionCall, NotTranslated, Tree
from tailrace.api.sql.typed import BOOLEAN, Typed, column, common, constant, convert, is_known, name_of
from tailrace.elements.columns.expressions import Formula

Mask = Any
"""An expression that is true for the records for which a part of an expression is computed, and never null; None for all."""


class Translation:
    """The translation of trees over columns of `schema`. `others` are the results that later ones may use, by name."""

    def __init__(self, schema: pa.Schema, others: Mapping[str, list[Tree]] | None = None) -> None:
        self.schema = schema
        self.others: Mapping[str, list[Tree]] = {} if others is None else others

    def translate(self, tree: Tree, mask: Mask = None) -> Typed:
        """The expression of a tree with its type. Records without `mask` count as null: nothing fails for them. Raises
        `NotTranslated`."""
        if isinstance(tree, Constant):
            return constant(tree.value, pa.null() if tree.kind is None else tree.kind)
        if isinstance(tree, FieldName):
            return self._field(tree, mask)
        if isinstance(tree, Cast):
            return convert(self.translate(tree.given, mask), tree.kind, tree.at)
        assert isinstance(tree, FunctionCall)
        return self._call(tree, ALIASES.get(tree.name, tree.name), mask)

    # Columns.

    def name_of(self, field: FieldName) -> str | None:
        """The column of the schema of this name, in letters of any size; None if there is none. Raises `NotTranslated` for
        several."""
        found = [name for name in self.schema.names if name.lower() == field.path[0].lower()]
        if len(found) > 1:
            raise NotTranslated(
                f"{field.path[0]!r} may be {' or '.join(map(repr, found))}", field.at, "rename one with select"
            )
        return found[0] if found else None

    def _field(self, field: FieldName, mask: Mask) -> Typed:
        name = self.name_of(field)
        if name is None:
            others = self.others.get(field.path[0].lower(), []) if len(field.path) == 1 else []
            if not others:
                listed = ", ".join(self.schema.names)
                raise NotTranslated(
                    f"there is no column {'.'.join(field.path)!r}", field.at, f"the stream has {listed}"
                )
            if len(others) > 1:
                raise NotTranslated(f"{field.path[0]!r} is the name of {len(others)} results", field.at, "rename one")
            return self.translate(others[0], mask)
        path, kind = [name], self.schema.field(name).type
        for step in field.path[1:]:
            inner = [one for one in kind if one.name.lower() == step.lower()] if t.is_struct(kind) else []
            if len(inner) != 1:
                raise NotTranslated(f"there is no field {step!r} in {'.'.join(path)}, which is {kind}", field.at)
            path.append(inner[0].name)
            kind = inner[0].type
        found = column(pc.field(*path), kind)
        if mask is None:
            return found
        return Typed(pc.if_else(mask, found.expr, pc.scalar(pa.scalar(None, found.kind))), found.kind)

    # Calls.

    def _call(self, tree: FunctionCall, name: str, mask: Mask) -> Typed:
        if name in LAZY:
            return getattr(self, f"_{name}")(tree, mask)  # type: ignore[no-any-return]
        if name in REWRITTEN:
            return self.translate(self._rewritten(tree, name), mask)
        if name == "typed literal":
            text, cast = tree.given
            assert isinstance(cast, Cast)
            return typed_literal(self.translate(text), cast.kind, tree.at)
        function = FUNCTIONS.get(name)
        if function is None:
            raise NotTranslated(f"{tree.name!r} is not translated", tree.at, INSTEAD.get(name, "use map_batches"))
        self._check_count(tree, function.least, function.most)
        given = [self.translate(one, mask) for one in tree.given]
        for one in given:
            if name != "isnull" and not is_known(one.kind):
                raise NotTranslated(f"{tree.name!r} of {one.kind} is not translated", tree.at, "use map_batches")
        return function.make(*given, at=tree.at)

    def _check_count(self, tree: FunctionCall, least: int, most: int) -> None:
        if not least <= len(tree.given) <= most:
            count = f"{least}" if least == most else f"{least} to {most}" if most < 100 else f"{least} or more"
            raise NotTranslated(f"{tree.name!r} takes {count} arguments, not {len(tree.given)}", tree.at)

    def _rewritten(self, tree: FunctionCall, name: str) -> Tree:
        count = {"between": 3, "nullif": 2, "nvl2": 3, "isnotnull": 1}[name]
        self._check_count(tree, count, count)
        at, given = tree.at, tree.given
        if name == "between":
            bounds = FunctionCall(at, ">=", given[:2]), FunctionCall(at, "<=", (given[0], given[2]))
            return FunctionCall(at, "and", bounds)
        if name == "nullif":
            return FunctionCall(at, "when", (FunctionCall(at, "=", given), Constant(at, None, None), given[0]))
        if name == "nvl2":
            return FunctionCall(at, "when", (FunctionCall(at, "isnotnull", given[:1]), *given[1:]))
        return FunctionCall(at, "not", (FunctionCall(at, "isnull", given),))

    def _under_mask(self, tree: Tree, mask: Mask, holds: Any) -> Typed:
        """A part that Spark computes only where the condition holds as well. It is never null."""
        if not self._may_fail(tree):
            return self.translate(tree)
        return self.translate(tree, holds if mask is None else pc.and_kleene(mask, holds))

    def _and(self, tree: FunctionCall, mask: Mask) -> Typed:
        first, *others = tree.given
        found = condition(self.translate(first, mask), "and", tree.at)
        for one in others:
            holds = pc.coalesce(found, pc.scalar(True))
            found = pc.and_kleene(found, condition(self._under_mask(one, mask, holds), "and", tree.at))
        return Typed(found, BOOLEAN)

    def _or(self, tree: FunctionCall, mask: Mask) -> Typed:
        first, *others = tree.given
        found = condition(self.translate(first, mask), "or", tree.at)
        for one in others:
            holds = pc.invert(pc.coalesce(found, pc.scalar(False)))
            found = pc.or_kleene(found, condition(self._under_mask(one, mask, holds), "or", tree.at))
        return Typed(found, BOOLEAN)

    def _when(self, tree: FunctionCall, mask: Mask) -> Typed:
        if len(tree.given) < 2:
            raise NotTranslated(f"{tree.name!r} takes 2 or more arguments", tree.at)
        pairs = list(zip(tree.given[::2], tree.given[1::2], strict=False))
        left = pc.scalar(True)
        conditions: list[Any] = []
        values: list[Typed] = []
        for test, value in pairs:
            given = self.translate(test, mask) if not values else self._under_mask(test, mask, left)
            if tree.name == "when":  # of a `case`, where Spark refuses what it takes in `if`
                _check_typed(given, tree.at)
            found = condition(given, "when", tree.at)
            holds = pc.coalesce(found, pc.scalar(False))
            conditions.append(holds)
            values.append(self._under_mask(value, mask, pc.and_kleene(left, holds) if len(values) else holds))
            left = pc.and_not_kleene(left, holds) if len(conditions) > 1 else pc.invert(holds)
        has_default = len(tree.given) % 2
        values.append(self._under_mask(tree.given[-1], mask, left) if has_default else constant(None, pa.null()))
        kind = common(values, "`case`", tree.at)
        *chosen, found = [convert(one, kind, tree.at).expr for one in values]
        for holds, value in zip(reversed(conditions), reversed(chosen), strict=True):
            found = pc.if_else(holds, value, found)
        return Typed(found, kind)

    def _coalesce(self, tree: FunctionCall, mask: Mask) -> Typed:
        self._check_count(tree, *((1, 10_000) if tree.name == "coalesce" else (2, 2)))
        values: list[Typed] = []
        for one in tree.given:
            if not values or not self._may_fail(one):
                values.append(self.translate(one, mask))
                continue
            holds = pc.is_null(values[0].expr)
            for value in values[1:]:
                holds = pc.and_kleene(holds, pc.is_null(value.expr))
            values.append(self._under_mask(one, mask, holds))
        kind = common(values, "coalesce", tree.at)
        if t.is_null(kind):
            return values[0]
        return Typed(pc.coalesce(*(convert(one, kind, tree.at).expr for one in values)), kind)

    def _may_fail(self, tree: Tree) -> bool:
        """True if the expression may fail for some records, as far as its names show."""
        if isinstance(tree, Cast):
            return True
        if isinstance(tree, FieldName) and self.name_of(tree) is None:
            return any(map(self._may_fail, self.others.get(tree.path[0].lower(), ())))
        if isinstance(tree, FunctionCall):
            function = FUNCTIONS.get(ALIASES.get(tree.name, tree.name))
            if function is not None and function.fails:
                return True
        return any(map(self._may_fail, tree.parts()))


def check_condition(tree: Tree, schema: pa.Schema) -> Any:
    """The expression of a condition. Raises `NotTranslated`."""
    found = Translation(schema).translate(tree)
    _check_typed(found, tree.at)
    return _check_type(Typed(condition(found, "a condition", tree.at), pa.bool_()), schema, tree.at)


def _check_typed(found: Typed, at: str) -> None:
    """Raises `NotTranslated` for a condition that is always null and has no type."""
    if t.is_null(found.kind):
        raise NotTranslated("a condition that is always null has no type", at, "give it one: cast(null as boolean)")


def result(tree: Tree, translation: Translation) -> Any:
    """The expression of a result, or the name of the column that it is. Raises `NotTranslated`."""
    if isinstance(tree, FieldName) and len(tree.path) == 1 and (name := translation.name_of(tree)) is not None:
        return name
    found = translation.translate(tree)
    if t.is_null(found.kind):
        raise NotTranslated("a result that is always null has no type", tree.at, "give it one: cast(null as int)")
    return _check_type(found, translation.schema, tree.at)


def _check_type(found: Typed, schema: pa.Schema, at: str) -> Any:
    """The expression of a value. Raises `NotTranslated` unless Arrow gives the type that Spark gives."""
    try:
        kind = Formula(found.expr).type_in(schema)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise NotTranslated(f"Arrow cannot compute this: {error}", at) from None
    if kind != found.kind:
        raise NotTranslated(f"Arrow gives {kind} where Spark gives {name_of(found.kind)}", at)
    return found.expr
