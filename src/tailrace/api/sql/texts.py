"""Functions of strings."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.sql.tree import NotTranslated
from tailrace.api.sql.typed import BOOLEAN, INT, STRING, Typed, convert, name_of
from tailrace.elements.columns.expressions import require


def text(a: Typed, what: str, at: str) -> Any:
    """The expression of a string. Raises `NotTranslated` for another type."""
    if a.kind == pa.null():
        return convert(a, STRING, at).expr
    if a.kind != STRING:
        raise NotTranslated(f"{what} of {name_of(a.kind)} is not translated", at, "cast it to string")
    return a.expr


def constant_text(a: Typed, what: str, at: str) -> str:
    """The value of a constant string."""
    if not (a.literal and isinstance(a.value, str)):
        raise NotTranslated(f"{what} that is no constant string is not translated", at)
    return a.value


def number(a: Typed, what: str, at: str) -> int:
    """The value of a constant integer."""
    if not (a.literal and isinstance(a.value, int) and a.kind != BOOLEAN):
        raise NotTranslated(f"{what} that is no constant integer is not translated", at)
    return a.value


_CASED = (
    r"^[\x{00}-\x{B4}\x{B6}-\x{DE}\x{E0}-\x{12F}\x{132}-\x{148}\x{14A}-\x{17E}\x{391}-\x{3A1}\x{3A4}-\x{3AB}\x{3B1}-\x{3C9}"
    r"\x{400}-\x{52F}\x{5D0}-\x{5EA}\x{621}-\x{64A}\x{E01}-\x{E5B}\x{2010}-\x{2027}\x{20A0}-\x{20BF}"
    r"\x{3041}-\x{30FF}\x{4E00}-\x{9FEF}\x{AC00}-\x{D7A3}\x{1F300}-\x{1F64F}]*$"
)
"""Texts of letters whose other size is one letter, and the same in Java and in Arrow."""


def change_case(name: str, a: Typed, at: str) -> Typed:
    """`upper` and `lower`."""
    expr = text(a, name, at)
    function: Any = pc.utf8_upper if name == "upper" else pc.utf8_lower
    why = f"{name}: a text has a letter whose other size is not one letter, or not the same for Spark and Arrow"
    return Typed(require(function(expr), pc.match_substring_regex(expr, _CASED), why), STRING)


def trim(name: str, a: Typed, at: str) -> Typed:
    """`trim`, `ltrim` and `rtrim`: without spaces, and no other white space."""
    function: Any = {"trim": pc.utf8_trim, "ltrim": pc.utf8_ltrim, "rtrim": pc.utf8_rtrim}[name]
    return Typed(function(text(a, name, at), characters=" "), STRING)


def join(values: list[Typed], at: str) -> Typed:
    """Strings one behind the other; null if one of them is."""
    texts = [convert(one, STRING, at).expr for one in values]
    if not texts:
        raise NotTranslated("concat of nothing is not translated", at)
    return Typed(pc.binary_join_element_wise(*texts, pc.scalar(""), null_handling="emit_null"), STRING)


def part(a: Typed, start: int, length: int | None, at: str) -> Typed:
    """`substring`: from a place that is counted from 1, or from the end if it is negative."""
    expr = text(a, "substring", at)
    begin = start - 1 if start > 0 else start
    if length is not None and length <= 0:
        return Typed(pc.utf8_slice_codeunits(expr, 0, 0), STRING)
    end = None if length is None else begin + length
    if begin < 0 and end is not None and end >= 0:
        end = None  # it ends at the end of each text, or behind it
    return Typed(pc.utf8_slice_codeunits(expr, begin, end), STRING)


_LIKE_ESCAPE = re.compile(r"\\(?![%_\\])")


def like(a: Typed, pattern: Typed, at: str) -> Typed:
    """`like` with a constant pattern."""
    expr, form = text(a, "like", at), constant_text(pattern, "a pattern of like", at)
    if _LIKE_ESCAPE.search(form.replace("\\\\", "")):
        raise NotTranslated(f"a pattern of like has \\ before neither %, _ nor \\: {form!r}", at)
    return Typed(pc.match_like(expr, form), BOOLEAN)


_PLAIN_REGEX = re.compile(
    r"""\^?(?:
      [A-Za-z0-9 _\-@#%&=,:;<>/'"~`!]   # a character that stands for itself
    | \\[.\\+*?()\[\]{}|^$/\-]           # one that is escaped
    | \\[dw]                             # ASCII in Java and in RE2
    | \[\^?(?:[A-Za-z0-9 _@#%=,:;<>/.+*?(){}|!]|[A-Za-z0-9]-[A-Za-z0-9]|\\[dw.\\\-\]])+\]
    | (?<=[^({|*+?^])(?:[*+?]|\{[0-9]{1,2}(?:,[0-9]{0,2})?\})
    | \((?:\?:)? | \) | \|
    )*""",
    re.VERBOSE,
)


def rlike(a: Typed, pattern: Typed, at: str) -> Typed:
    """`rlike` with a constant pattern of the part that Java and RE2 read alike."""
    expr, form = text(a, "rlike", at), constant_text(pattern, "a pattern of rlike", at)
    if not form.isascii() or not _PLAIN_REGEX.fullmatch(form):
        raise NotTranslated(f"the regular expression {form!r} may have another meaning in Arrow than in Spark", at)
    try:
        pc.match_substring_regex(pa.array([""]), form)
    except pa.ArrowInvalid as error:
        raise NotTranslated(f"the regular expression {form!r} cannot be read: {error}", at) from None
    return Typed(pc.match_substring_regex(expr, form), BOOLEAN)


def pad(name: str, a: Typed, size: Typed, fill: Typed | None, at: str) -> Typed:
    """`lpad` and `rpad`: a string of a constant size, filled with one character, or cut off."""
    expr, count = text(a, name, at), number(size, f"the size of {name}", at)
    sign = " " if fill is None else constant_text(fill, f"what {name} fills with", at)
    if len(sign) != 1:
        raise NotTranslated(f"{name} with {sign!r} is not translated", at, "fill with one character")
    function: Any = pc.utf8_lpad if name == "lpad" else pc.utf8_rpad
    count = max(count, 0)
    return Typed(pc.utf8_slice_codeunits(function(expr, width=count, padding=sign), 0, count), STRING)


def reverse(a: Typed, at: str) -> Typed:
    """The characters of a string from the last to the first."""
    return Typed(pc.utf8_reverse(text(a, "reverse", at)), STRING)


def contains(name: str, a: Typed, part: Typed, at: str) -> Typed:
    """`contains`, `startswith` and `endswith` with a constant."""
    function: Any = {"contains": pc.match_substring, "startswith": pc.starts_with, "endswith": pc.ends_with}[name]
    return Typed(function(text(a, name, at), constant_text(part, f"a part in {name}", at)), BOOLEAN)


def replace(a: Typed, old: Typed, new: Typed | None, at: str) -> Typed:
    """A string with another one in place of each occurrence of a constant."""
    expr, search = text(a, "replace", at), constant_text(old, "what replace looks for", at)
    instead = "" if new is None else constant_text(new, "what replace puts there", at)
    return Typed(pc.replace_substring(expr, search, instead) if search else expr, STRING)


def length(a: Typed, at: str) -> Typed:
    """The number of characters, or of bytes of a binary."""
    if a.kind == pa.binary():
        return Typed(pc.binary_length(a.expr), INT)
    return Typed(pc.utf8_length(text(a, "length", at)), INT)


def bytes_of(a: Typed, at: str) -> Typed:
    """The number of bytes."""
    expr = a.expr if a.kind == pa.binary() else text(a, "octet_length", at).cast(pa.binary())
    return Typed(pc.binary_length(expr), INT)
