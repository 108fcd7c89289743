"""Passwords in URLs. No text that people read shows them: errors, logs, reprs, plans, and what commands print."""

from __future__ import annotations

import re
from typing import Any, TypeVar

T = TypeVar("T", bound=type)
SHOWN = "***"
"""Text in place of a password."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)((?:\[[^\]\s]*\]|[^\s:/?#])*):(\S*)@")
"""A scheme, a user or host, and everything up to the last @: people do not always escape what is in a password."""
_TOKEN = re.compile(r"\b((?:nats|tls|wss?)://)[^\s:/?#@]+@")
"""A scheme of NATS, and what stands alone where others have a user: a token."""
_PORT = re.compile(r"\d{1,5}[^\d]")
_WITHOUT_PORTS = ("s3://", "s3a://", "s3n://")
_PARAMETER = re.compile(
    r"([?&;](?:[\w.-]*(?:password|passwd|pwd|secret|token|signature|credential|api_?key|access_?key)[\w.-]*|sig)=)"
    r"[^\s&;#'\"]+",
    re.IGNORECASE,
)


def hide_passwords(text: str) -> str:
    """A text with `***` in place of each password in a URL: behind the user (`redis://me:***@host`), in place of a user
    for NATS, where it is a token, and in parameters with a name like password, secret, token or signature. What looks like a
    port (`http://host:80/a@b`) is left."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\1{SHOWN}", _TOKEN.sub(rf"\1{SHOWN}@", _URL.sub(_hide, text)))


def _hide(found: re.Match[str]) -> str:
    scheme, user, secret = found.groups()
    if _PORT.match(secret) and scheme.lower() not in _WITHOUT_PORTS:
        return f"{scheme}{user}:{_URL.sub(_hide, f'{secret}@')}"
    return f"{scheme}{user}:{SHOWN}@"


def hides_passwords(kind: T) -> T:
    """A decorator of a class whose repr is made of its fields: passwords in it are hidden."""
    made: Any = kind.__repr__

    def hiding(self: Any) -> str:
        return hide_passwords(made(self))

    kind.__repr__ = hiding  # type: ignore[assignment]
    return kind
