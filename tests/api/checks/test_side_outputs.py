"""A side output whose tag is misspelt gets no records, and those that were meant for it go nowhere."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr
from tailrace.api.checks.side_outputs import tags_of


def parse(text: str, ctx: tr.Context) -> Iterator[int]:
    if text.isdigit():
        yield int(text)
    else:
        ctx.emit("bad", text)


class Sorts(tr.ProcessFunction):
    def process(self, value: str, ctx: tr.Context) -> None:
        [ctx.emit("odd", one) for one in value]

    def finish(self, ctx: tr.Context) -> None:
        ctx.emit("even", 0)


def computed(text: str, ctx: tr.Context) -> None:
    ctx.emit(text[0], text)


def elsewhere(text: str, ctx: tr.Context) -> Any:
    return parse(text, ctx)


def test_the_tags_of_a_function_are_seen() -> None:
    assert tags_of(parse) == {"bad"}
    assert tags_of(Sorts()) == {"odd", "even"}
    assert tags_of(computed) == tags_of(elsewhere) == tags_of(print) == set()


def test_a_side_output_that_nobody_emits_to_is_reported_at_the_users_line() -> None:
    parsed = tr.Environment().from_collection(["1"]).process(parse)
    with pytest.warns(
        UserWarning, match=r"side_output\('bda'\): nothing .* emits to 'bda'; it emits to 'bad'"
    ) as found:
        parsed.side_output("bda")
    assert found[0].filename == __file__


@pytest.mark.parametrize(("fn", "tag"), [(parse, "bad"), (Sorts(), "even"), (computed, "x"), (elsewhere, "bad")])
def test_one_that_is_or_may_be_emitted_to_is_not(fn: Any, tag: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tr.Environment().from_collection(["1"]).process(fn).side_output(tag)
