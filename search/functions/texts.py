"""References for texts and bytes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from search.functions.cases import Call, Case, Refused, of
from search.functions.draws import BYTES, TEXTS, text

_TEXT, _EITHER = of(TEXTS), of([*TEXTS, *BYTES])

_SPACES = "".join(map(chr, range(9, 14))) + " "


def _simple(change: Callable[[str], str]) -> Callable[[str], str]:
    """A mapping of single characters. A character that Python maps to several stays one: Arrow has simple mappings
    only."""

    def map_text(one: str) -> str:
        made = change(one)
        return made if len(made) == 1 else _SIMPLE.get((change.__name__, one), one)

    return map_text


_SIMPLE = {("upper", "ß"): "ẞ", ("lower", "İ"): "i"}
_upper, _lower = _simple(str.upper), _simple(str.lower)


def _by_character(function: Callable[[str], str]) -> Callable[..., Any]:
    return lambda call, value: "".join(map(function, value))


def _ascii(function: Callable[[bytes], Any]) -> Callable[..., Any]:
    def reference(call: Call, value: str) -> Any:
        made = function(value.encode())
        return made.decode() if isinstance(made, bytes) else made

    return reference


def _title(value: str, upper: Callable[[str], str], lower: Callable[[str], str], cased: Callable[[str], bool]) -> str:
    found, inside = [], False
    for one in value:
        found.append(lower(one) if inside else upper(one))
        inside = cased(one)
    return "".join(found)


def _ascii_upper(one: str) -> str:
    return one.upper() if one.isascii() else one


def _ascii_lower(one: str) -> str:
    return one.lower() if one.isascii() else one


def _ascii_cased(one: str) -> bool:
    return one.isascii() and one.isalpha()


def _swap_case(one: str) -> str:
    return _ascii_lower(one) if one.isupper() else _ascii_upper(one)


def _is(test: Callable[[str], bool], empty: bool = False) -> Callable[..., Any]:
    return lambda call, value: all(map(test, value)) if value else empty


def _pad(random: Random, kinds: Sequence[pa.DataType], ascii_only: bool = False) -> tuple[Any, Any]:
    width, padding = random.randint(0, 12), random.choice(["x", " "] if ascii_only else ["x", " ", "é", "😀"])
    leans = random.random() < 0.5
    return pc.PadOptions(width, padding, leans), (width, padding, leans)


def _pad_text(call: Call, value: str, left: bool, right: bool) -> str:
    width, padding, leans = call.options
    missing = max(0, width - len(value))
    if left and right:
        before = missing // 2 if leans else missing - missing // 2
        return padding * before + value + padding * (missing - before)
    return padding * missing + value if left else value + padding * missing


def _trim(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    characters = random.choice(["a", "aZ ", "é", "\u0301e", "😀ß", ""])
    return pc.TrimOptions(characters), characters


def _ascii_trim(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    characters = random.choice(["a", "aZ ", "\t\n", "0_"])
    return pc.TrimOptions(characters), characters


def _strip(sides: str) -> Callable[..., Any]:
    def reference(call: Call, value: Any) -> Any:
        what = call.options
        if sides in ("both", "left"):
            value = value[len(value) - len(value.lstrip(what)) :] if what else value
        if sides in ("both", "right"):
            value = value.rstrip(what) if what else value
        return value

    return reference


def _white(sides: str, space: Callable[[str], bool]) -> Callable[..., Any]:
    def reference(call: Call, value: str) -> str:
        start, end = 0, len(value)
        while sides != "right" and start < end and space(value[start]):
            start += 1
        while sides != "left" and end > start and space(value[end - 1]):
            end -= 1
        return value[start:end]

    return reference


def _ascii_space(one: str) -> bool:
    return one in _SPACES


def _slice(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    start, stop = random.randint(-5, 5), random.choice([None, random.randint(-5, 6)])
    step = random.choice([1, 1, 2, -1, -2])
    return pc.SliceOptions(start, stop, step), (start, stop, step)


def _slice_text(call: Call, value: Any) -> Any:
    start, stop, step = call.options
    return value[slice(start, stop, step)]


def _replace_slice(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    start, stop, put = random.randint(-5, 5), random.randint(-5, 6), random.choice(["", "x", "é😀"])
    return pc.ReplaceSliceOptions(start, stop, put), (start, stop, put)


def _slice_replaced(call: Call, value: Any) -> Any:
    start, stop, put = call.options
    first, last, _ = slice(start, stop).indices(len(value))
    last = max(first, last)
    return value[:first] + (put.encode() if isinstance(value, bytes) else put) + value[last:]


def _pattern(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    pattern = random.choice(["a", "aZ", "ä", "😀", " ", "%", "\u0301", "", text(random)])
    return pc.MatchSubstringOptions(pattern), pattern


def _like(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    pattern = "".join(random.choices(["a", "%", "_", "\\%", "\\_", "Z", ".", "é"], k=random.randint(0, 4)))
    return pc.MatchSubstringOptions(pattern), pattern


_EXPRESSIONS = ["a", "[a-z]+", "^a", "Z", "a|ä", ".", "é?a", "(a)(Z)?", "\\d+", "\\ba", "a\\b", "[^a]", "a*"]


def _regex(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    pattern = random.choice(_EXPRESSIONS)
    return pc.MatchSubstringOptions(pattern), pattern


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _both(function: Callable[[Any, Any, Call], Any]) -> Callable[..., Any]:
    """The reference of a function of a value and a pattern, both as bytes."""
    return lambda call, value: function(_bytes(value), _bytes(call.options), call)


def _number(call: Call, found: int) -> int:
    return found


def _like_expression(pattern: bytes) -> re.Pattern[bytes]:
    found, at = b"", 0
    whole = pattern.decode()
    while at < len(whole):
        one = whole[at]
        if one == "\\" and at + 1 < len(whole) and whole[at + 1] in "%_":
            at += 1
            found += re.escape(whole[at]).encode()
        elif one == "%":
            found += b".*"
        elif one == "_":
            found += b"(?:[\\x00-\\x7f]|[\\xc0-\\xff][\\x80-\\xbf]*)"
        else:
            found += re.escape(one).encode()
        at += 1
    return re.compile(found, re.DOTALL)


def _count(call: Call, value: Any) -> int:
    return int(value.count(_as_value(call.options, value)))


def _as_value(pattern: str, value: Any) -> Any:
    return pattern.encode() if isinstance(value, bytes) else pattern


def _split_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    pattern, most, backwards = (
        random.choice(["a", "ä", " ", "aZ", ""]),
        random.choice([None, 0, 1, 2]),
        random.random() < 0.4,
    )
    return pc.SplitPatternOptions(pattern, max_splits=most, reverse=backwards), (pattern, most, backwards)


def _split(call: Call, value: Any) -> Any:
    pattern, most, backwards = call.options
    if not pattern:
        raise Refused("an empty separator")
    pattern, most = _as_value(pattern, value), -1 if most is None else most
    return value.rsplit(pattern, most) if backwards else value.split(pattern, most)


def _split_regex_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    pattern, most = random.choice(["a", "[a-z]", "a|ä", "\\d+", "^a", "\\ba", "a*"]), random.choice([None, 1, 2])
    return pc.SplitPatternOptions(pattern, max_splits=most), (pattern, most)


def _split_regex(call: Call, value: str) -> list[str]:
    pattern, most = call.options
    return list(re.split(pattern, value, maxsplit=most or 0, flags=re.ASCII))


def _replace_regex_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    pattern, put = random.choice(
        [
            ("a", "x"),
            ("([a-z])", "<\\1>"),
            ("a|ä", ""),
            ("\\d+", "é"),
            ("[.]", "_"),
            ("^a", "x"),
            ("^.", "x"),
            ("\\ba", ""),
        ]
    )
    most = random.choice([None, 1, 2])
    return pc.ReplaceSubstringOptions(pattern, put, max_replacements=most), (pattern, put, most)


def _replaced_regex(call: Call, value: str) -> str:
    pattern, put, most = call.options
    return re.sub(pattern, put, value, count=most or 0, flags=re.ASCII)


def _replace_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    pattern, put, most = (
        random.choice(["a", "ä", "aZ", "aa", ""]),
        random.choice(["", "x", "é"]),
        random.choice([None, 1, 2]),
    )
    return pc.ReplaceSubstringOptions(pattern, put, max_replacements=most), (pattern, put, most)


def _replace(call: Call, value: Any) -> Any:
    pattern, put, most = call.options
    return value.replace(_as_value(pattern, value), _as_value(put, value), -1 if most is None else most)


def _normal(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    form = random.choice(["NFC", "NFKC", "NFD", "NFKD"])
    return pc.Utf8NormalizeOptions(form), form


def _join_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    how, put = random.choice(["emit_null", "replace"]), random.choice(["", "-", "é"])
    return pc.JoinOptions(how, put), (how, put)


def _join(call: Call, *values: Any) -> Any:
    how, put = call.options
    *parts, separator = values
    if separator is None or (None in parts and how == "emit_null"):
        return None
    put = put.encode() if isinstance(separator, bytes) else put
    return separator.join(put if part is None else part for part in parts)


def _alike_texts(count: int) -> Callable[[Random], list[pa.DataType]]:
    return lambda random: [random.choice([*TEXTS, *BYTES])] * count


def _zero_fill_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    width = random.randint(0, 8)
    return pc.ZeroFillOptions(width, "0"), width


def _zero_filled(call: Call, value: str) -> str:
    return value.zfill(call.options)


def _extract_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    pattern = random.choice(["(?P<x>a+)(?P<y>Z)?", "(?P<x>[a-z])", "(?P<x>ä|é)"])
    return pc.ExtractRegexOptions(pattern), pattern


_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "alpha": str.isalpha,
    "decimal": str.isdecimal,
    "numeric": lambda one: unicodedata.category(one)[0] == "N",
}


def _has_case(one: str) -> bool:
    return one.isupper() or one.islower() or unicodedata.category(one) == "Lt"


def _whole(test: Callable[[str], bool], bad: Callable[[str], bool]) -> Callable[..., Any]:
    return lambda call, value: any(map(test, value)) and not any(map(bad, value))


def _reversed_ascii(call: Call, value: str) -> str:
    if not value.isascii():
        raise Refused("not ASCII")
    return value[::-1]


def _is_title(value: str) -> bool:
    inside = found = False
    for one in value:
        if _upper_letter(one) or _title_letter(one):
            if inside:
                return False
            inside = found = True
        elif _lower_letter(one):
            if not inside:
                return False
        else:
            inside = False
    return found


def _turn_case(one: str) -> str:
    if _title_letter(one):
        return one
    return _lower(one) if one.isupper() else _upper(one)


def _upper_letter(one: str) -> bool:
    return unicodedata.category(one) == "Lu" or (one.isupper() and _lower(one) != one)


def _lower_letter(one: str) -> bool:
    return unicodedata.category(one) == "Ll" or (one.islower() and _upper(one) != one)


def _title_letter(one: str) -> bool:
    return unicodedata.category(one) == "Lt"


CASES: dict[str, Case] = {
    "utf8_upper": Case(_TEXT, _by_character(_upper)),
    "utf8_lower": Case(_TEXT, _by_character(_lower)),
    "utf8_swapcase": Case(_TEXT, _by_character(_turn_case)),
    "utf8_capitalize": Case(_TEXT, lambda call, v: _upper(v[0]) + "".join(map(_lower, v[1:])) if v else v),
    "utf8_title": Case(_TEXT, lambda call, v: _title(v, _upper, _lower, _has_case)),
    "utf8_reverse": Case(_TEXT, lambda call, v: v[::-1]),
    "utf8_length": Case(_TEXT, lambda call, v: len(v)),
    "utf8_normalize": Case(_TEXT, lambda call, v: unicodedata.normalize(call.options, v), _normal),
    "ascii_upper": Case(_TEXT, _by_character(_ascii_upper)),
    "ascii_lower": Case(_TEXT, _by_character(_ascii_lower)),
    "ascii_swapcase": Case(_TEXT, _by_character(lambda one: _swap_case(one) if one.isascii() else one)),
    "ascii_capitalize": Case(_TEXT, lambda call, v: _ascii_upper(v[0]) + "".join(map(_ascii_lower, v[1:])) if v else v),
    "ascii_title": Case(_TEXT, lambda call, v: _title(v, _ascii_upper, _ascii_lower, _ascii_cased)),
    "ascii_reverse": Case(_TEXT, _reversed_ascii),
    "binary_reverse": Case(of(BYTES), lambda call, v: v[::-1]),
    "binary_length": Case(of([*TEXTS, *BYTES, pa.binary(3)]), lambda call, v: len(_bytes(v))),
    "binary_join_element_wise": Case(_alike_texts(3), _join, _join_options, nulls=True),
    "string_is_ascii": Case(_TEXT, lambda call, v: v.isascii()),
    **{f"utf8_is_{name}": Case(_TEXT, _is(test)) for name, test in _CATEGORIES.items()},
    "utf8_is_alnum": Case(_TEXT, _is(lambda one: one.isalnum())),
    "utf8_is_space": Case(_TEXT, _is(str.isspace)),
    "utf8_is_printable": Case(_TEXT, _is(str.isprintable, True)),
    "utf8_is_lower": Case(_TEXT, _whole(_lower_letter, lambda one: _upper_letter(one) or _title_letter(one))),
    "utf8_is_upper": Case(_TEXT, _whole(_upper_letter, lambda one: _lower_letter(one) or _title_letter(one))),
    "utf8_is_title": Case(_TEXT, lambda call, v: _is_title(v)),
    "ascii_is_alpha": Case(_TEXT, _is(_ascii_cased)),
    "ascii_is_decimal": Case(_TEXT, _is(lambda one: one in "0123456789")),
    "ascii_is_alnum": Case(_TEXT, _is(lambda one: one.isascii() and one.isalnum())),
    "ascii_is_space": Case(_TEXT, _is(_ascii_space)),
    "ascii_is_printable": Case(_TEXT, _is(lambda one: " " <= one <= "~", True)),
    "ascii_is_lower": Case(_TEXT, lambda call, v: v.encode().islower()),
    "ascii_is_upper": Case(_TEXT, lambda call, v: v.encode().isupper()),
    "ascii_is_title": Case(_TEXT, lambda call, v: v.encode().istitle()),
    "utf8_center": Case(_TEXT, lambda call, v: _pad_text(call, v, True, True), _pad),
    "utf8_lpad": Case(_TEXT, lambda call, v: _pad_text(call, v, True, False), _pad),
    "utf8_rpad": Case(_TEXT, lambda call, v: _pad_text(call, v, False, True), _pad),
    "utf8_zero_fill": Case(_TEXT, _zero_filled, _zero_fill_options),
    "utf8_trim": Case(_TEXT, _strip("both"), _trim),
    "utf8_ltrim": Case(_TEXT, _strip("left"), _trim),
    "utf8_rtrim": Case(_TEXT, _strip("right"), _trim),
    "ascii_trim": Case(_TEXT, _strip("both"), _ascii_trim),
    "ascii_ltrim": Case(_TEXT, _strip("left"), _ascii_trim),
    "ascii_rtrim": Case(_TEXT, _strip("right"), _ascii_trim),
    "utf8_trim_whitespace": Case(_TEXT, _white("both", str.isspace)),
    "utf8_ltrim_whitespace": Case(_TEXT, _white("left", str.isspace)),
    "utf8_rtrim_whitespace": Case(_TEXT, _white("right", str.isspace)),
    "ascii_trim_whitespace": Case(_TEXT, _white("both", _ascii_space)),
    "ascii_ltrim_whitespace": Case(_TEXT, _white("left", _ascii_space)),
    "ascii_rtrim_whitespace": Case(_TEXT, _white("right", _ascii_space)),
    "utf8_slice_codeunits": Case(_TEXT, _slice_text, _slice),
    "utf8_replace_slice": Case(_TEXT, _slice_replaced, _replace_slice),
    "binary_replace_slice": Case(of(BYTES), _slice_replaced, _replace_slice),
    "starts_with": Case(_EITHER, _both(lambda v, p, call: v.startswith(p)), _pattern),
    "ends_with": Case(_EITHER, _both(lambda v, p, call: v.endswith(p)), _pattern),
    "match_substring": Case(_EITHER, _both(lambda v, p, call: p in v), _pattern),
    "find_substring": Case(_EITHER, _both(lambda v, p, call: v.find(p)), _pattern),
    "count_substring": Case(_EITHER, _count, _pattern),
    "match_like": Case(_TEXT, _both(lambda v, p, call: _like_expression(p).fullmatch(v) is not None), _like),
    "match_substring_regex": Case(_TEXT, lambda call, v: re.search(call.options, v, re.ASCII) is not None, _regex),
    "find_substring_regex": Case(_TEXT, lambda call, v: _place_of(re.search(call.options, v, re.ASCII), v), _regex),
    "count_substring_regex": Case(_TEXT, lambda call, v: len(re.findall(call.options, v, re.ASCII)), _regex),
    "extract_regex": Case(_TEXT, lambda call, v: _groups(re.search(call.options, v)), _extract_options),
    "split_pattern": Case(_EITHER, _split, _split_options),
    "split_pattern_regex": Case(_TEXT, _split_regex, _split_regex_options),
    "replace_substring_regex": Case(_TEXT, _replaced_regex, _replace_regex_options),
    "replace_substring": Case(_EITHER, _replace, _replace_options),
}


def _place_of(match: re.Match[str] | None, value: str) -> int:
    return -1 if match is None else len(value[: match.start()].encode())


def _groups(match: re.Match[str] | None) -> dict[str, str] | None:
    return None if match is None else {name: part or "" for name, part in match.groupdict().items()}
